"""Functions under a law that call each other, and calls that overlap: each is one, in the order in which they begin."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from resilisim import InjectedFailure, inject, read_results
from resilisim.evaluation.episode.attribution import identity_error
from resilisim.injection.functions import Injected

CERTAIN = {"base": 1.0, "history": 1.0}
GUARD = 30.0  # seconds, after which something hangs


def in_time(work: Callable[[], Any]) -> Any:
    """Return what work returns; a deadlock becomes a failure."""
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(work()), daemon=True)
    thread.start()
    thread.join(GUARD)
    assert found, "it hangs or has raised something"
    return found[0]


def order(tools: Injected) -> list[str]:
    return [call.tool for call in tools.calls]


def inner(number: int = 0) -> int:
    return number + 1


async def inner_later(number: int = 0) -> int:
    await asyncio.sleep(0)
    return number + 1


def program(how: str, **options: Any) -> Injected:
    """Return functions of which the second calls the first, in one way or another."""
    tools: Any = None

    def outer(number: int = 0) -> int:
        if how == "in a thread":
            with ThreadPoolExecutor(1) as pool:
                return int(pool.submit(tools["inner"], number).result(GUARD))
        return int(asyncio.run(tools["inner"](number))) if how == "async in sync" else int(tools["inner"](number))

    async def outer_later(number: int = 0) -> int:
        if how == "sync in async":
            return int(tools["inner"](number))
        if how == "in a thread of async":
            return int(await asyncio.to_thread(tools["inner"], number))
        if how == "in a group":
            async with asyncio.TaskGroup() as group:
                return int(await group.create_task(tools["inner"](number)))
        return int(await tools["inner"](number))

    functions: dict[str, Any] = {"inner": inner, "outer": outer}
    if how in ("async in async", "in a group"):
        functions = {"inner": inner_later, "outer": outer_later}
    elif how in ("sync in async", "in a thread of async"):
        functions["outer"] = outer_later
    elif how == "async in sync":
        functions["inner"] = inner_later
    tools = inject(functions, **options)
    return tools


WAYS = [
    "sync in sync",
    "in a thread",
    "async in sync",
    "async in async",
    "sync in async",
    "in a thread of async",
    "in a group",
]


def called(tools: Injected, name: str = "outer", *args: Any) -> Any:
    result = tools[name](*args)
    return asyncio.run(result) if asyncio.iscoroutine(result) else result


@pytest.mark.parametrize("fail", ["before", "after"])
@pytest.mark.parametrize("goal", [["outer"], ["outer", "inner"], ["inner"], []])
@pytest.mark.parametrize("how", WAYS)
def test_a_function_may_call_another_one(how: str, goal: list[str], fail: str) -> None:
    tools = program(how, law=CERTAIN, required=goal, fail=fail)
    with tools:
        assert in_time(lambda: called(tools, "outer", 5)) == 6
    assert order(tools) == ["inner", "outer"]  # as they ended
    assert [call.outcome for call in tools.calls] == ["ok", "ok"]
    if goal:
        steps = tools.record()["steps"]
        assert [step["tool"] for step in steps] == ["outer", "inner", None]  # as they began
        assert tools.record()["outcome"] == 1


def test_a_call_that_is_made_within_another_comes_after_it() -> None:
    with program("sync in sync", law=CERTAIN, required=["inner", "outer"]) as tools:
        called(tools)
    assert tools.record()["losses"] == {"wrong_order": 1.0}
    with program("sync in sync", law=CERTAIN, required=["inner", "outer"], ordered=False) as tools:
        called(tools)
    assert tools.record()["outcome"] == 1


def test_a_failure_within_a_call_is_the_outer_ones_too_unless_it_is_caught() -> None:
    tools = program("sync in sync", law={**CERTAIN, "bases": {"inner": 1e-9}}, required=["outer"])
    with tools, pytest.raises(InjectedFailure, match="inner: "):
        called(tools)
    assert [(call.tool, call.outcome) for call in tools.calls] == [("inner", "injected"), ("outer", "real")]
    assert tools.record()["losses"] == {"gave_up_early": 1.0}
    assert identity_error(tools.record()) < 1e-12


def test_functions_may_call_themselves() -> None:
    tools: Any = None

    def count(number: int) -> int:
        return 0 if number == 0 else 1 + int(tools["count"](number - 1))

    tools = inject([count], law=CERTAIN, required=["count"], turns=40)
    with tools:
        assert in_time(lambda: tools["count"](30)) == 30
    assert len(tools.calls) == 31
    assert tools.record()["outcome"] == 1


def test_a_function_that_waits_for_another_thread_holds_nobody_up() -> None:
    met = threading.Barrier(2, timeout=GUARD)
    tools = inject(
        {"one": met.wait, "other": lambda: met.wait()}, law=CERTAIN, required=["one", "other"], ordered=False
    )
    with tools, ThreadPoolExecutor(2) as pool:
        assert in_time(lambda: sorted(future.result(GUARD) for future in [pool.submit(each) for each in tools])) == [
            0,
            1,
        ]
    assert tools.record()["outcome"] == 1


def test_a_sync_function_may_be_called_while_an_async_one_is_under_way() -> None:
    async def play() -> int:
        begun, done = asyncio.Event(), asyncio.Event()

        async def slow() -> int:
            begun.set()
            await done.wait()
            return 1

        tools = inject({"slow": slow, "quick": inner}, law=CERTAIN, required=["slow", "quick"])
        with tools:
            task = asyncio.ensure_future(tools["slow"]())
            await begun.wait()
            assert tools["quick"](1) == 2
            done.set()
            await task
        assert order(tools) == ["quick", "slow"]
        assert tools.record()["outcome"] == 1
        return 1

    assert in_time(lambda: asyncio.run(play())) == 1


def test_what_overlaps_is_judged_in_the_order_of_beginnings_and_adds_up() -> None:
    """A call that fails by itself after others have begun is taken back from the state that they changed."""
    for refused in range(3):
        for goal in (["f0", "f1", "f2"], ["f2", "f0"], ["f1"]):

            async def play(refused: int = refused, goal: list[str] = goal) -> Injected:
                gates = [asyncio.Event() for _ in range(3)]

                def function(number: int) -> Any:
                    async def run() -> int:
                        await gates[number].wait()
                        if number == refused:
                            raise ValueError(number)
                        return number

                    return run

                functions = {f"f{number}": function(number) for number in range(3)}
                needs = {"f1": ["f0"], "f2": ["f1"]}
                tools = inject(functions, law={"base": 1.0}, required=goal, dependencies=needs, turns=6)
                with tools:
                    tasks = [asyncio.ensure_future(each()) for each in tools]
                    await asyncio.sleep(0)
                    for number in (2, 0, 1):
                        gates[number].set()
                        await asyncio.wait([tasks[number]])
                        tasks[number].exception()
                return tools

            tools = asyncio.run(play())
            record = tools.record()
            assert identity_error(record) < 1e-12
            assert Counter(call.outcome for call in tools.calls) == {"ok": 2, "real": 1}
            answers = [f"f{number}" for number in range(3) if number != refused]
            reached = set(goal) <= set(answers) and goal == sorted(goal)
            assert record["outcome"] == reached
            assert [step["success"] for step in record["steps"]] == [number != refused for number in range(3)] + [None]


@pytest.mark.parametrize("required", [[], ["f"]])
def test_refusals_that_overlap_count_in_what_comes_next(required: list[str]) -> None:
    async def play() -> Injected:
        gates = [asyncio.Event() for _ in range(3)]

        async def f(number: int) -> int:
            if number < 3:
                await gates[number].wait()
                raise ValueError(number)
            return number

        tools = inject([f], law={"base": 1.0, "history": 0.5}, required=required, seed=2)
        tasks = [asyncio.ensure_future(tools["f"](number)) for number in range(3)]
        await asyncio.sleep(0)
        for number in (1, 2, 0):
            gates[number].set()
            await asyncio.wait([tasks[number]])
            tasks[number].exception()
        with contextlib.suppress(InjectedFailure):
            await tools["f"](5)
        tools.finish()
        return tools

    tools = asyncio.run(play())
    assert [call.probability for call in tools.calls] == [1.0, 1.0, 1.0, 0.125]
    assert [call.outcome for call in tools.calls][:3] == ["real"] * 3


def test_a_function_that_may_run_once_and_fails_while_it_is_called_again_has_not_run_twice() -> None:
    """What a function that failed has done nobody knows: it counts as nothing, also if that is learned later."""

    async def play(failing: tuple[int, ...]) -> Injected:
        gates = [asyncio.Event() for _ in range(2)]

        async def charge(number: int) -> int:
            await gates[number].wait()
            if number in failing:
                raise ValueError(number)
            return number

        tools = inject([charge], law={"base": 1.0}, required=["charge"], once=["charge"], seed=3)
        with tools:
            tasks = [asyncio.ensure_future(tools["charge"](number)) for number in range(2)]
            await asyncio.sleep(0)
            for gate, task in zip(gates, tasks, strict=True):
                gate.set()
                await asyncio.wait([task])
                task.exception()
        return tools

    for failing, outcome in (((), 0), ((0,), 1), ((1,), 0), ((0, 1), 0)):
        record = asyncio.run(play(failing)).record()
        assert (record["outcome"], identity_error(record) < 1e-12) == (outcome, True)
        assert record["score"]["grade"]["criteria"]["ran_once"] == (0 in failing)


def test_what_a_refusal_costs_may_be_more_than_one_and_can_be_read_again(tmp_path: Path) -> None:
    """A bad choice that was drawn to succeed and then failed by itself loses what it had, and the luck that it had."""
    law = {"base": 1.0, "bases": {"b": 0.9}, "not_executed": 0.333, "history": 1.0}

    def fails() -> None:
        raise ValueError

    regrets = []
    for seed in range(20):
        needs = {"b": ["a"]}
        tools = inject(
            {"a": fails, "b": fails}, law=law, required=["b"], turns=2, dependencies=needs, record=tmp_path, seed=seed
        )
        with tools, contextlib.suppress(ValueError, InjectedFailure):
            tools["b"]()
        assert identity_error(tools.record()) < 1e-12
        regrets.append(tools.record()["steps"][0]["regret"])
    assert max(regrets) > 1.05
    assert read_results(tmp_path).num_episodes == 20
