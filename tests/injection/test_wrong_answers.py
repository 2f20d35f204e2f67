"""Wrong, slow and missing answers of functions under a law: what the caller gets, and what the record says of it."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import dataclasses
import json
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import resilisim
from resilisim.errors import InvalidInputError
from resilisim.evaluation.episode.attribution import identity_error
from resilisim.exploration import Case, explore_program
from resilisim.injection.wrong_answers import WrongAnswers
from resilisim.schema_check import schema_problem
from resilisim.simulator import Corrupt, Duration, Latency, Law
from resilisim.simulator.law import CORRUPTIONS

SURE = {"base": 1.0, "not_executed": 1.0, "failed": 1.0, "history": 1.0}
ITEM = {"name": "lamp", "price": 40, "sizes": [10, 20], "seller": {"city": "Bonn"}}


@dataclasses.dataclass(frozen=True)
class Item:
    name: str
    price: float


def find(name: str) -> dict[str, Any]:
    return {**ITEM, "name": name}


def corrupting(kind: str | None, probability: float = 1.0, **more: Any) -> Law:
    kinds = None if kind is None else (kind,)
    return Law(**SURE, corrupt=Corrupt(probability=probability, kinds=kinds, **more))


@pytest.mark.parametrize("kind", [*CORRUPTIONS, "oversized"])
@pytest.mark.parametrize("answer", [ITEM, [ITEM], "receipt 12", Item("lamp", 40.0), (1, "two")], ids=repr)
def test_a_wrong_answer_is_another_one_of_its_kind_and_nothing_of_the_caller_is_touched(kind: str, answer: Any) -> None:
    before = repr(answer)
    answers = WrongAnswers([kind])
    answers.keep("find", {"name": "chair"})
    seen = set()
    for bits in range(40):
        wrong, way = answers.wrong("find", answer, bits)
        assert wrong != answer
        assert (repr(wrong), way) == (repr(answers.wrong("find", answer, bits)[0]), way)
        seen.add(way)
    assert repr(answer) == before
    if answer == ITEM:
        assert seen == {kind}
    if kind == "truncated" and isinstance(answer, str):
        assert answer.startswith(wrong)
    if kind == "missing_field" and answer == ITEM:
        assert json.dumps(wrong) in {json.dumps(_without(ITEM, key)) for key in ITEM} | {
            json.dumps({**ITEM, "seller": {}})
        }
    if kind == "oversized" and answer == ITEM:
        assert len(repr(wrong)) > 10**6


def _without(item: dict[str, Any], key: str) -> dict[str, Any]:
    return {name: value for name, value in item.items() if name != key}


def test_what_nothing_can_be_made_of_stays_and_the_record_says_so() -> None:
    def sends() -> None:
        pass

    with resilisim.inject([sends], law=corrupting(None), required=["sends"]) as tools:
        assert tools["sends"]() is None
    assert [call.corruption for call in tools.calls] == ["none"]
    assert tools.record()["steps"][0]["result"] == "corrupt"


def test_a_schema_holds_for_wrong_answers_too() -> None:
    schema = {
        "type": "object",
        "required": ["name", "price"],
        "properties": {
            "name": {"enum": ["lamp", "chair"]},
            "price": {"type": "integer", "minimum": 0},
            "sizes": {"type": "array"},
        },
        "additionalProperties": True,
    }

    def described(name: str) -> dict[str, Any]:
        return find(name)

    described.output_schema = schema  # type: ignore[attr-defined]
    ways = set()
    for seed in range(30):
        tools = resilisim.inject([described], law=corrupting(None), seed=seed)
        wrong = tools["described"]("lamp")
        assert schema_problem(schema, wrong) is None
        assert wrong != find("lamp")
        ways.add(tools.calls[0].corruption)
    assert len(ways) >= 3
    only = {"type": "object", "properties": {"name": {"const": "lamp"}}, "required": ["name"]}
    assert WrongAnswers().wrong("x", {"name": "lamp"}, 3, {**only, "additionalProperties": False}) == (
        {"name": "lamp"},
        None,
    )


def test_a_stale_answer_is_an_earlier_one_as_it_was_then(tmp_path: Path) -> None:
    stock = {"lamp": [3]}
    force = ["look#1=ok", "look#2=corrupt:stale"]

    def look(name: str) -> dict[str, list[int]]:
        return stock

    law = corrupting(None, 0.5)
    with resilisim.inject([look], law=law, required=["look"], force=force, record=tmp_path) as tools:
        assert tools["look"]("lamp") == {"lamp": [3]}
        stock["lamp"].append(4)
        assert tools["look"]("lamp") == {"lamp": [3]}
    lines = [json.loads(line) for line in (tmp_path / "calls.jsonl").read_text().splitlines()]
    assert [(line["success"], line.get("corruption")) for line in lines] == [(True, None), (True, "stale")]
    assert tools.record()["outcome"] == 0  # the last answer is the one that counts, and it is wrong


def test_promises_answer_wrongly_when_their_answer_is_there() -> None:
    pool = concurrent.futures.ThreadPoolExecutor(1)

    async def coroutine() -> str:
        return "receipt 12"

    def future() -> concurrent.futures.Future[str]:
        return pool.submit(lambda: "receipt 12")

    def asyncio_future() -> asyncio.Future[str]:
        return asyncio.ensure_future(coroutine())

    def items() -> Iterator[str]:
        yield "receipt 12"
        yield "receipt 13"

    async def async_items() -> Any:
        yield "receipt 12"
        yield "receipt 13"

    async def play() -> list[Any]:
        functions = [coroutine, future, asyncio_future, items, async_items]
        with resilisim.inject(functions, law=corrupting("truncated"), required=["items"], ordered=False) as tools:
            answers = [await tools[0](), tools[1]().result(), await tools[2](), list(tools[3]())]
            answers.append([item async for item in tools[4]()])
        assert [call.corruption for call in tools.calls] == ["truncated"] * 5
        return answers

    for answer in asyncio.run(play()):
        first, *rest = [answer] if isinstance(answer, str) else answer
        assert first != "receipt 12"
        assert "receipt 12".startswith(first)
        assert rest in ([], ["receipt 13"])


def checks(tools: Any) -> None:
    """Ask again as long as the answer cannot be right."""
    for _ in range(5):
        answer = tools["find"]("lamp")
        if answer == {**ITEM, "name": "lamp"}:
            return


def test_who_looks_at_answers_is_worth_the_ceiling_and_who_does_not_is_told_the_price() -> None:
    law = Law(**{**SURE, "base": 0.9}, corrupt=Corrupt(probability=0.3))

    def looks(tools: Any) -> None:
        for _ in range(10):
            try:
                if tools["find"]("lamp") == {**ITEM, "name": "lamp"}:
                    return
            except resilisim.InjectedFailure:
                pass

    def trusts(tools: Any) -> None:
        for _ in range(10):
            try:
                return tools["find"]("lamp")
            except resilisim.InjectedFailure:
                pass

    options: dict[str, Any] = {"law": law, "required": ["find"], "turns": 6}
    found = explore_program(looks, [find], **options)
    assert found.row.optimum == pytest.approx(1.0 - (1.0 - 0.9 * 0.7) ** 6, abs=1e-12)
    assert found.row.low == pytest.approx(found.row.optimum, abs=1e-12)
    trusting = explore_program(trusts, [find], **options)
    assert trusting.row.estimate == pytest.approx(0.7 * (1.0 - 0.1**6), abs=1e-12)
    assert trusting.row.optimum - trusting.row.low == pytest.approx(sum(trusting.row.losses.values()), abs=1e-9)
    record = resilisim.run_program(trusts, [find], 40, **options)
    assert max(identity_error(each) for each in record.records()) < 1e-9
    assert record.rows[0].success.value == pytest.approx(0.7, abs=0.2)


def test_the_matrix_has_a_row_for_each_way_of_being_wrong_and_one_for_slowness() -> None:
    law = Law(
        **SURE,
        corrupt=Corrupt(probability=0.3, kinds=("missing_field", "stale")),
        latency=Latency((Duration(1.0, 0.5), Duration(4.0, 0.5)), budget=9.0),
    )

    def reads_price(tools: Any) -> None:
        tools["find"]("chair")
        for _ in range(2):
            try:
                if tools["find"]("lamp")["price"] == 40:
                    return
            except KeyError:
                pass

    case = Case.of_program(reads_price, [find], law=law, required=["find"], seed=4)
    cells = {(cell.attempt, cell.fault): cell for cell in case.matrix().cells if not cell.lasting}
    assert {fault for _, fault in cells} == {"corrupt:missing_field", "corrupt:stale", "slow", "TIMEOUT"} - (
        {"TIMEOUT"} if (1, "TIMEOUT") not in cells and (2, "TIMEOUT") not in cells else set()
    )
    assert cells[2, "corrupt:stale"].outcome == 0  # the price is right, and the answer that of another question
    assert cells[1, "slow"].weight is None
    assert cells[1, "slow"].ran is cells[1, "corrupt:stale"].ran is None
    assert cells[1, "slow"].outcome == 1
    weights = [cells[1, f"corrupt:{kind}"].weight for kind in ("missing_field", "stale")]
    assert weights[0] == weights[1] > 0.0

    faults = Case.of_program(reads_price, [find], law=corrupting(None, 0.3), required=["find"]).matrix()
    ways = [cell.fault for cell in faults.cells if cell.attempt == 1 and not cell.lasting]
    assert ways == [f"corrupt:{kind}" for kind in CORRUPTIONS]
    assert faults.without + faults.single == pytest.approx(0.7**2 + 2 * 0.7 * 0.3, abs=0.7 * 0.3 * 0.3 + 1e-12)


@pytest.mark.long
def test_rates_bounds_and_prices_of_programs_under_wrong_and_slow_answers_agree() -> None:
    def first(number: int) -> dict[str, Any]:
        return {"number": number, "list": [1, 2]}

    def second(number: int) -> str:
        return "text 12"

    right = {"first": first(1), "second": second(1)}
    drawn = random.Random(5)
    for _ in range(25):
        parts: dict[str, Any] = {"base": drawn.choice([0.7, 0.9]), "history": drawn.choice([1.0, 0.9])}
        if drawn.random() < 0.8:
            tools = drawn.choice([None, ("first",)])
            parts["corrupt"] = Corrupt(probability=drawn.choice([0.2, 0.5]), tools=tools)
        if drawn.random() < 0.6:
            durations = (Duration(1.0, 0.7), Duration(3.0, 0.3))
            parts["latency"] = Latency(durations, drawn.choice([None, 2.0]), drawn.choice([None, 7.0]))
        required = drawn.choice([["first"], ["first", "second"], ["second", "first"]])
        looks = drawn.random() < 0.6

        def program(tools: Any, required: list[str] = required, looks: bool = looks) -> None:
            for name in required:
                for _ in range(3):
                    with contextlib.suppress(resilisim.InjectedFailure):
                        if tools[name](1) == right[name] or not looks:
                            break

        options: dict[str, Any] = {"law": Law(**{**SURE, **parts}), "required": required, "turns": 5}
        options["once"] = required[:1] if drawn.random() < 0.3 else []
        explored = explore_program(program, [first, second], **options)
        row = explored.row
        assert sum(record["weight"] for record in explored.records) == pytest.approx(1.0, abs=1e-9)
        assert row.optimum - row.low == pytest.approx(sum(row.losses.values()), abs=1e-9)
        played = resilisim.run_program(program, [first, second], 150, **options)
        spread = max(row.low * (1.0 - row.low), 0.002) / 150
        assert abs(played.rows[0].success.value - row.low) < 5.0 * spread**0.5
        assert max(identity_error(record) for record in played.records()) < 1e-9


@pytest.mark.parametrize(("wait", "duration"), [(False, 1000.0), (True, 0.25)])
def test_durations_are_counted_and_waited_for_if_asked(wait: bool, duration: float) -> None:
    law = Law(**SURE, latency=Latency((Duration(duration, 1.0),), timeout=None))

    async def afind(name: str) -> str:
        return name

    def items() -> Iterator[int]:
        yield 1

    began = time.perf_counter()
    with resilisim.inject([find, items], law=law, required=["find"], wait=wait) as tools:
        tools["find"]("lamp")
        assert list(tools["items"]()) == [1]
    seconds = time.perf_counter() - began
    assert [call.duration for call in tools.calls] == [duration, duration]
    assert [step.get("seconds") for step in tools.record()["steps"]] == [duration, duration, None]
    assert (tools.calls[0].seconds >= 0.8 * duration) == wait
    assert (seconds >= 2 * duration) == wait

    async def play() -> None:
        with resilisim.inject([afind], law=law, required=["afind"], wait=wait) as tools:
            await asyncio.gather(*(tools["afind"]("x") for _ in range(8)))
        assert all((call.seconds >= 0.8 * duration) == wait for call in tools.calls)

    asyncio.run(play())


def test_an_episode_ends_with_its_time() -> None:
    law = Law(**SURE, latency=Latency((Duration(1.0, 1.0),), budget=2.5))
    with resilisim.inject([find], law=law, required=["find"]) as tools:
        for _ in range(2):
            tools["find"]("lamp")
        with pytest.raises(resilisim.InjectedFailure, match=r"No result within 0\.5 seconds"):
            tools["find"]("lamp")
        tools["find"]("lamp")
    assert [call.outcome for call in tools.calls] == ["ok", "ok", "injected"]
    with pytest.raises(InvalidInputError, match="needs a goal"):
        resilisim.inject([find], law=law)


def test_a_call_hangs_until_its_caller_gives_up() -> None:
    async def afind(name: str) -> str:
        return name

    async def play() -> None:
        options: dict[str, Any] = {"law": 0.9, "required": ["afind"], "force": ["afind#1=TIMEOUT"]}
        for fail in ("before", "after"):
            with resilisim.inject([afind], raises={"TIMEOUT": "hang"}, fail=fail, **options) as tools:
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(tools["afind"]("x"), 0.05)
                assert await tools["afind"]("x") == "x"
            assert [(call.outcome, call.error) for call in tools.calls] == [("injected", "TIMEOUT"), ("ok", None)]
            assert [call.ran for call in tools.calls] == [fail == "after", True]
            assert tools.record()["outcome"] == 1

        with pytest.raises(TimeoutError), resilisim.inject([afind], raises="hang", **options) as tools:
            await asyncio.wait_for(tools["afind"]("x"), 0.05)
        assert tools.record()["losses"].keys() == {"agent_error"}  # a program has to cope with that

    asyncio.run(play())

    def impatient(tools: Any) -> None:
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(tools["find"], "x")
            try:
                waiting.result(timeout=0.05)
            finally:
                tools.finish()  # which releases whoever hangs

    options = {"law": 0.9, "required": ["find"], "force": ["find#1=TIMEOUT"], "raises": "hang:30"}
    result = resilisim.run_program(impatient, [find], 1, **options)
    assert result.rows[0].success.value == 0.0
    for raises, kind in (("hang:0.05", resilisim.InjectedFailure), ({"TIMEOUT": "cut"}, ConnectionResetError)):
        options["raises"] = raises
        with pytest.raises(kind), resilisim.inject([find], **options) as tools:
            tools["find"]("x")


@pytest.mark.parametrize("raises", ["hangs", "hang:", "hang:0", "hang:x", "cut:3", {"TIMEOUT": "gone"}])
def test_ways_of_failing_that_are_none(raises: Any) -> None:
    with pytest.raises(InvalidInputError, match="expected a class of exceptions, 'hang'"):
        resilisim.inject([find], raises=raises)


@pytest.mark.parametrize(
    ("kinds", "problem"),
    [(("stael",), "did you mean 'stale'"), ((), "at least one"), (("stale", "stale"), "each once")],
)
def test_kinds_that_are_none(kinds: Any, problem: str) -> None:
    with pytest.raises(InvalidInputError, match=problem):
        Corrupt(probability=0.1, kinds=kinds)
