"""`shrink`, `adversary` and `matrix`: which failures make an agent lose, and what plays them again."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import resilisim
from resilisim import Task, evaluate, explore
from resilisim.envs import EnvironmentSettings, Session
from resilisim.errors import InvalidInputError
from resilisim.evaluation import read_records
from resilisim.exploration import Case, explore_program
from resilisim.exploration.failures.pattern import failures_by_luck
from resilisim.exploration.failures.watching import Steady
from resilisim.injection.functions import Injected
from resilisim.simulator import Law
from tests.exploration.agents import COUNTS
from tests.exploration.test_explore import SMALL, TASK
from tests.simulator.test_draws import LAWS

AGENTS = "tests.exploration.test_failures:"


def stubborn(session: Session) -> str:
    """Call c, then a and b, each at most twice; lose as soon as one of these fails twice."""
    session.call("c")
    for tool in ("a", "b"):
        if not session.call(tool).ok:
            session.call(tool)
    return "done"


def read() -> str:
    return "order"


def charge(order: str) -> str:
    return order


def twice(tools: Injected) -> None:
    """Call both, each at most twice."""
    for name, arguments in (("read", ()), ("charge", ("order",))):
        for _ in range(2):
            try:
                tools[name](*arguments)
                break
            except resilisim.InjectedFailure:
                pass


def runs(tmp_path: Path, law: Law, seeds: int = 12) -> Path:
    settings = EnvironmentSettings(law=law, max_turns=6, tools="native", protocol="native")
    evaluate(agents=AGENTS + "stubborn", tasks=[TASK], seeds=seeds, environment=settings, library=SMALL, out=tmp_path)
    return tmp_path


def small_task(_: str) -> Task:
    return Task.from_mapping(TASK, SMALL)


def case_of(run: Path, episode: int) -> Case:
    return Case.of_run(run, episode, find_task=small_task, library=SMALL)


@pytest.mark.parametrize("name", LAWS)
def test_no_failure_that_is_left_can_be_spared_and_what_is_forced_plays_it_again(name: str, tmp_path: Path) -> None:
    run = runs(tmp_path, LAWS[name])
    lost = [record for record in read_records(run) if not record["outcome"]]
    assert lost
    for record in lost[:2]:
        case = case_of(run, record["index"])
        found = case.shrink()
        pattern = found.pattern
        assert found.is_smallest
        assert len(pattern.failures) <= found.before
        again = case.play(pattern.force)
        assert not again["outcome"]
        assert again["steps"] == pattern.record["steps"]
        played = case.watch_forced(pattern.force)
        assert len(failures_by_luck(played)) == len(pattern.failures)
        for failure in pattern.failures:
            without = case.watch_forced(
                [text for text in pattern.force if not text.startswith(f"{failure.tool}#{failure.attempt}=")]
                + [f"{failure.tool}#{failure.attempt}=ok"]
            )
            assert not without.is_lost or len(failures_by_luck(without)) >= len(pattern.failures)


def test_it_says_how_likely_a_pattern_is_and_what_was_left_after_each_failure(tmp_path: Path) -> None:
    law = Law(base=0.5, not_executed=1.0, failed=1.0, history=1.0)
    run = runs(tmp_path, law, 40)
    found = [case_of(run, record["index"]).shrink().pattern for record in read_records(run) if record["outcome"] == 0]
    assert {len(pattern.failures) for pattern in found} == {2}  # the failure of c, or a first one, is never needed
    for pattern in found:
        first, second = pattern.failures
        assert (first.tool, first.attempt, second.attempt) == (second.tool, 1, 2)
        assert first.chance == second.chance == 0.5
        calls = sum(step["attempt"] is not None for step in pattern.record["steps"])
        assert pattern.probability == pytest.approx(0.5**calls, abs=1e-12)
        assert first.optimum_before is not None
        assert first.optimum_after is not None
        assert second.optimum_after is not None
        assert first.optimum_before > first.optimum_after == second.optimum_before > second.optimum_after > 0.0


def test_an_explored_branch_is_shrunk_too(tmp_path: Path) -> None:
    settings = EnvironmentSettings(law=LAWS["kinds"], max_turns=6, tools="native", protocol="native")
    explore(agents=AGENTS + "stubborn", tasks=[TASK], environment=settings, library=SMALL, out=tmp_path, plays=60)
    lost = [record for record in read_records(tmp_path) if not record["outcome"]]
    case = case_of(tmp_path, lost[-1]["index"])
    found = case.shrink()
    assert 0 < len(found.pattern.failures) <= found.before
    assert case.play(found.pattern.force)["steps"] == found.pattern.record["steps"]
    assert case.matrix().outcome  # which begins with nothing that the branch brought


def test_what_is_not_lost_or_does_not_repeat_itself_is_refused(tmp_path: Path) -> None:
    run = runs(tmp_path / "run", Law(base=0.99))
    won = next(record for record in read_records(run) if record["outcome"])
    with pytest.raises(InvalidInputError, match="has succeeded: expected an episode that was lost"):
        case_of(run, won["index"]).shrink()
    COUNTS.clear()
    other = tmp_path / "other"
    settings = EnvironmentSettings(max_turns=4, tools="native", protocol="native")
    evaluate(agents="tests.exploration.agents:restless", tasks=[TASK], environment=settings, library=SMALL, out=other)
    with pytest.raises(InvalidInputError, match=r"message 1 is .* and was "):
        case_of(other, 0).shrink()


def test_a_program_that_remembers_its_earlier_plays_is_refused() -> None:
    plays: list[int] = []

    def swapped(tools: Injected) -> None:
        plays.append(1)
        calls = [("read", ()), ("charge", ("order",))]
        for name, arguments in reversed(calls) if len(plays) % 2 == 0 else calls:
            with contextlib.suppress(resilisim.InjectedFailure):
                tools[name](*arguments)

    case = Case.of_program(swapped, [read, charge], law=0.8, required=["read", "charge"])
    for search in (case.adversary, case.matrix):
        plays.clear()
        with pytest.raises(InvalidInputError, match=r"message 1 is .*charge.* and was .*read"):
            search()


def test_failures_that_come_up_behind_one_that_is_spared_are_spared_too() -> None:
    def hopeless(tools: Injected) -> None:
        tools["read"]()
        tools["charge"]("order")
        raise ValueError("a bug of its own")

    options = {"law": 0.3, "required": ["read", "charge"]}
    cases = [Case.of_program(hopeless, [read, charge], seed=seed, **options) for seed in range(6)]
    assert [len(case.shrink().pattern.failures) for case in cases] == [0] * 6


async def twice_async(tools: Injected) -> None:
    twice(tools)


@pytest.mark.parametrize("program", [twice, twice_async])
def test_a_program_is_shrunk_and_two_lines_play_it_again(program: Any) -> None:
    options = {"law": 0.5, "required": ["read", "charge"]}
    seeds = (Case.of_program(program, [read, charge], seed=seed, **options) for seed in itertools.count())
    case = next(case for case in seeds if not case.play()["outcome"])
    found = case.shrink()
    assert len(found.pattern.failures) == 2
    names: dict[str, Any] = {"asyncio": asyncio, "resilisim": resilisim, "read": read, "charge": charge}
    names[program.__name__] = program
    first, second = found.pattern.reproduce
    exec(first, names)
    exec(second, names)
    assert names["tools"].record()["steps"] == found.pattern.record["steps"]
    assert [step["error"] for step in found.pattern.record["steps"]].count(None) == len(
        found.pattern.record["steps"]
    ) - len(found.pattern.failures)


def test_an_adversary_finds_the_fewest_failures_and_the_likeliest_of_as_many() -> None:
    options = {"law": 0.9, "required": ["read", "charge"]}
    case = Case.of_program(twice, [read, charge], **options)
    found = case.adversary(above=0.9)
    assert found.pattern is not None
    assert [(failure.tool, failure.attempt) for failure in found.pattern.failures] == [("read", 1), ("read", 2)]
    assert not case.play(found.pattern.force)["outcome"]
    bound = {**found.pattern.record, "optimum_knowledge": "informed"}
    assert "bound" not in found.told()
    assert "a bound that nobody may reach" in replace(found, pattern=replace(found.pattern, record=bound)).told()
    # Every branch that was explored, by number of failures and likelihood, says the same.
    lost = [record for record in explore_program(twice, [read, charge], **options).records if not record["outcome"]]
    fewest = min(sum(result != "success" for result in record["branch"]) for record in lost)
    assert fewest == len(found.pattern.failures)
    likeliest = max(
        record["weight"] for record in lost if sum(result != "success" for result in record["branch"]) == fewest
    )
    assert found.pattern.probability == pytest.approx(likeliest, abs=1e-12)
    impossible = case.adversary(above=1.0)
    assert impossible.pattern is None
    assert impossible.is_complete


# Under a time budget the outcome hangs on durations, too.
@pytest.mark.long
@pytest.mark.parametrize("name", [name for name in LAWS if name != "budget"])
def test_cells_add_up_to_what_single_faults_cost(name: str, tmp_path: Path) -> None:
    run = runs(tmp_path, LAWS[name], 1)
    case = case_of(run, 0)
    found = case.matrix()
    rows = explore(
        agents=AGENTS + "stubborn", tasks=[TASK], library=SMALL, out=tmp_path / "all", plays=5000,
        environment=EnvironmentSettings(law=LAWS[name], max_turns=6, tools="native", protocol="native"),
    )  # fmt: skip
    assert rows.rows[0].is_exact
    single = [record for record in rows.records() if _num_faults(record) == 1]
    assert found.single == pytest.approx(math.fsum(record["weight"] for record in single), abs=1e-9)
    cost = math.fsum(record["weight"] for record in single if not record["outcome"])
    assert found.cost == pytest.approx(cost, abs=1e-9)
    none = math.fsum(record["weight"] for record in rows.records() if not _num_faults(record))
    assert found.without == pytest.approx(none, abs=1e-9)


def _num_faults(record: Any) -> int:
    return sum(not result.startswith("success") for result in record["branch"])


def test_a_matrix_tells_codes_apart_and_what_lasts() -> None:
    def careful(tools: Injected) -> None:
        for _ in range(2):
            try:
                tools["read"]()
                return
            except resilisim.InjectedFailure as failure:
                if failure.code != "TIMEOUT":
                    return

    law = Law(base=0.8, errors={"TIMEOUT": 3, "E": 1})
    found = Case.of_program(careful, [read], law=law, required=["read"]).matrix()
    outcomes = {(cell.attempt, cell.fault, cell.lasting): cell.outcome for cell in found.cells if not cell.ran}
    assert outcomes == {(1, "TIMEOUT", False): 1, (1, "E", False): 0, (1, "TIMEOUT", True): 0}
    weights = {cell.fault: cell.weight for cell in found.cells if not cell.lasting and not cell.ran}
    assert weights["E"] == pytest.approx(0.05, abs=1e-12)
    assert "lost" in str(found.table())
    attack = Case.of_program(careful, [read], law=law, required=["read"]).adversary()
    assert attack.pattern is not None
    assert [failure.result for failure in attack.pattern.failures] == ["E"]  # TIMEOUT, which is likelier, needs two


def test_a_matrix_tells_who_does_twice_what_may_be_done_once() -> None:
    found = Case.of_program(twice, [read, charge], law=0.9, required=["read", "charge"], once=["charge"]).matrix()
    lost = {(cell.tool, cell.attempt, cell.ran) for cell in found.cells if not cell.outcome and not cell.lasting}
    assert lost == {("charge", 1, True)}
    assert all((cell.weight is None) == cell.ran for cell in found.cells if not cell.lasting)
    table = str(found.table())
    assert "(it ran)" in table
    assert "(it did not run)" in table


def test_what_can_succeed_does_where_nothing_else_is_said(tmp_path: Path) -> None:
    run = runs(tmp_path, LAWS["outage"], 1)
    played = case_of(run, 0).watch(Steady({("a", 1): "SERVICE_UNAVAILABLE"}))
    assert [(call.tool, call.result) for call in played.calls if call.result != "ok"] == [("a", "SERVICE_UNAVAILABLE")]
