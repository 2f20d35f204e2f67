"""`evaluate(agents=...)`: functions of a session beside policies, with time limits, retries and failures apart."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from resilisim import ModelSettings, evaluate
from resilisim.envs import Session
from resilisim.errors import InfrastructureError, InvalidInputError
from resilisim.evaluation import read_records
from resilisim.evaluation.run.rescoring import rescore_run
from resilisim.workflows import parse_plan
from tests.evaluation.session_agents import careful
from tests.guards import WAITING_SECONDS, no_endless_wait

TASKS = 4


async def follow_async(session: Session) -> None:
    for name in parse_plan(session.prompt):
        while session.turns_left and not (await session.acall(name)).ok:
            pass
    session.finish("done")


def lazy(session: Session) -> Iterator[str]:
    yield session.call("network_fetcher")


class Follower:
    """An object that is called."""

    async def __call__(self, session: Session) -> None:
        await follow_async(session)


def scores(directory: Path, policy: str) -> list[tuple[Any, ...]]:
    return sorted(
        (record["instance_id"], record["seed"], record["outcome"], record["optimum"], record["regret"])
        for record in read_records(directory)
        if record["policy"] == policy
    )


def test_agents_play_beside_policies_on_the_same_draws(tmp_path: Path) -> None:
    run = evaluate("exact-optimum", TASKS, "optimal", 2, agents=[careful, follow_async, Follower()], out=tmp_path)
    assert [row.num_episodes for row in run.rows] == [2 * TASKS] * 4
    assert scores(tmp_path, "careful") == scores(tmp_path, "follow_async") == scores(tmp_path, "Follower")
    assert run.manifest["arguments"]["environment"]["tools"] == "native"
    assert run.manifest["arguments"]["policies"][1] == f"agent:{careful.__module__}:careful"
    assert {record["agent"]["architecture"] for record in run.records() if "agent" in record} >= {"careful", "Follower"}
    again = evaluate("exact-optimum", TASKS, "optimal", 2, agents=[careful, follow_async, Follower()], out=tmp_path)
    assert again.call.num_already_there == 8 * TASKS


def test_processes_find_agents_by_their_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "their_agents.py").write_text("def quick(session):\n    return session.tools[0]()\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    one = evaluate(agents="their_agents:quick", tasks=TASKS, out=tmp_path / "one")
    two = evaluate(agents=["their_agents:quick"], tasks=TASKS, out=tmp_path / "two", workers=2)
    assert scores(tmp_path / "one", "quick") == scores(tmp_path / "two", "quick")
    assert one.num_episodes == two.num_episodes == TASKS
    sys.modules.pop("their_agents", None)


def test_what_an_agent_raises_is_lost_and_what_may_be_an_endpoint_is_tried_again(
    tmp_path: Path,
) -> None:
    tries: dict[str, int] = {}

    def shaky(session: Session) -> str:
        tries[session.prompt] = tries.get(session.prompt, 0) + 1
        if tries[session.prompt] == 1:
            raise ConnectionError("no route")
        return "done"

    def broken(session: Session) -> str:
        session.tools[0]()
        raise SystemExit("bye")

    def unreachable(session: Session) -> None:
        raise ConnectionError("no route")

    run = evaluate(agents=[shaky, broken], tasks="benchmark-v1:2", out=tmp_path, model=ModelSettings(episode_retries=1))
    assert (run.num_episodes, run.call.num_failures) == (4, 0)
    assert [(each.policy, each.num_episodes) for each in run.call.agent_errors] == [("broken", 2)]
    for record in run.records():
        lost = record["policy"] == "broken"
        assert (record["ended_by"] == "agent_error", record["outcome"]) == (lost, 0)
        if lost:
            event = record["agent"]["first_failure"]
            assert "SystemExit: bye (test_function_agents.py:" in event["text"] == record["steps"][-1]["error"]
            assert "in broken" in event["details"]["traceback"]
            assert record["steps"][-1]["label"] == "agent_error"
    assert rescore_run(tmp_path).agrees
    with pytest.raises(InfrastructureError, match="2 episodes in a row broke"):
        evaluate(agents=unreachable, tasks=4, model=ModelSettings(give_up_after=2))


class Unspeakable(Exception):
    """An error that cannot say what it is."""

    def __str__(self) -> str:
        raise ValueError("no words")


def test_whatever_an_agent_raises_the_others_play_on() -> None:
    def unspeakable(session: Session) -> None:
        raise Unspeakable

    def cancelled(session: Session) -> None:
        raise asyncio.CancelledError  # as an event loop of its own may do

    async def cancelled_too(session: Session) -> None:
        raise asyncio.CancelledError

    async def many_at_once(session: Session) -> None:
        async with asyncio.TaskGroup() as group:  # the end reaches it as an ExceptionGroup
            for _ in range(40):
                group.create_task(session.acall("network_fetcher"))

    run = evaluate(agents=[unspeakable, cancelled, cancelled_too, many_at_once], tasks=2)
    assert (run.num_episodes, run.call.num_failures) == (8, 0)
    ended = {(record["policy"], record["ended_by"]) for record in run.records()}
    others = {"unspeakable", "cancelled", "cancelled_too"}
    assert {policy for policy, ended_by in ended if ended_by == "agent_error"} == others


def test_an_agent_that_takes_too_long_is_given_up() -> None:
    played_on: list[str] = []
    given_up, ended = threading.Event(), threading.Event()

    async def sleeper(session: Session) -> None:
        await asyncio.sleep(60)

    def thread(session: Session) -> None:
        given_up.wait(WAITING_SECONDS)
        try:
            session.tools[0]()
            played_on.append("played on")
        finally:
            ended.set()

    run = evaluate(agents=[sleeper, thread], tasks=1, model=ModelSettings(episode_seconds=0.3))
    assert [record["ended_by"] for record in run.records()] == ["agent_error"] * 2
    assert {each.first for each in run.call.agent_errors} == {"the agent took longer than 0.3 seconds"}
    given_up.set()
    assert ended.wait(WAITING_SECONDS)
    assert not played_on


def test_many_wait_at_once() -> None:
    waiting = {"tasks": 0, "threads": 0}
    enough = {kind: threading.Event() for kind in waiting}  # that many wait at the same time
    counting = threading.Lock()

    def begin(kind: str) -> None:
        with counting:
            waiting[kind] += 1
            if waiting[kind] > 16:
                enough[kind].set()

    async def waits(session: Session) -> str:
        begin("tasks")
        while not enough["tasks"].is_set():
            await asyncio.sleep(0.005)
        return "done"

    def waits_in_a_thread(session: Session) -> str:
        begin("threads")
        enough["threads"].wait(WAITING_SECONDS)
        return "done"

    with no_endless_wait():
        run = evaluate(agents=[waits, waits_in_a_thread], tasks=1, seeds=64, model=ModelSettings(concurrency=64))
    assert run.num_episodes == 128
    assert all(event.is_set() for event in enough.values())


def test_tools_can_have_to_be_found() -> None:
    def searcher(session: Session) -> None:
        assert [tool.name for tool in session.tools] == ["tool_search", "tool_info", "tool_call", "finish"]
        session.call("tool_search", {"query": "read a file"})

    record = next(evaluate(agents=searcher, tasks=1, tools="discovery").records())
    assert record["steps"][0]["kind"] == "search"
    assert record["optimum_after_searches"] is not None


def test_nobody_who_is_judged_learns_from_rewards_what_a_call_was_worth() -> None:
    seen: list[float] = []

    def peeks(session: Session) -> None:
        session.tools[0]()
        seen.extend(session.rewards)

    evaluate(agents=peeks, tasks=2, reward="advantage")
    assert seen == [0.0, 0.0]


@pytest.mark.parametrize(
    ("agents", "message"),
    [
        ([3], "agent 3: expected a function of a session"),
        ([lazy], "is a generator, which nobody would run"),
        ([Session], "expected a function of a session, or module:function"),
        ("nowhere:f", "agent 'nowhere:f': cannot import nowhere"),
        ("json:nothing", "json has no attribute 'nothing'"),
        ([careful, careful], "two policies are named 'careful'"),
    ],
)
def test_what_is_no_agent_is_refused(agents: Any, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        evaluate(agents=agents, tasks=1)
    with pytest.raises(InvalidInputError, match="no policy was given"):
        evaluate(tasks=1)


@pytest.mark.parametrize("kind", ["blocks", "takes no notice", "waits in its end", "computes"])
def test_the_limit_of_time_holds_for_async_agents_that_do_not_let_go(kind: str) -> None:
    """Whatever they do, they are given up, and others go on meanwhile."""
    stopped = threading.Event()

    async def stubborn(session: Session) -> None:
        while not stopped.is_set():
            if kind == "blocks":
                stopped.wait(WAITING_SECONDS)
            elif kind == "computes":
                sum(range(10_000))
            elif kind == "waits in its end":
                try:
                    await asyncio.sleep(WAITING_SECONDS)
                finally:
                    await asyncio.sleep(WAITING_SECONDS)
            else:
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.sleep(WAITING_SECONDS)

    async def quick(session: Session) -> str:
        await session.acall("file_operations_scanner")
        return "done"

    models = ModelSettings(episode_seconds=1.0)  # enough for the quick one, on a busy machine, too
    try:
        with no_endless_wait():
            run = evaluate(agents=[stubborn, quick], tasks=2, model=models)
    finally:
        stopped.set()
    ended = {(record["policy"], record["ended_by"]) for record in run.records()}
    assert ended == {("stubborn", "agent_error"), ("quick", "completion")}


def test_two_agents_of_one_name_are_told_apart_and_an_agent_can_be_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module, call in (("first_agents", "network_fetcher"), ("second_agents", "file_operations_reader")):
        (tmp_path / f"{module}.py").write_text(f"def agent(session):\n    session.call({call!r})\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    run = evaluate(agents=["first_agents:agent", "second_agents:agent"], tasks=1)
    assert [row.policy for row in run.rows] == ["first_agents:agent", "second_agents:agent"]
    assert [row.policy for row in evaluate(agents="first_agents:agent", tasks=1).rows] == ["agent"]
    run = evaluate(agents=["fast=first_agents:agent", "second_agents:agent"], tasks=1, out=tmp_path / "named")
    assert [row.policy for row in run.rows] == ["fast", "agent"]
    assert len(list(read_records(tmp_path / "named"))) == 2
    with pytest.raises(InvalidInputError, match=r"two policies are named 'fast': .*--agent NAME=module:function"):
        evaluate(agents=["fast=first_agents:agent", "fast=second_agents:agent"], tasks=1)
    with pytest.raises(InvalidInputError, match="two policies are named 'agent'"):
        evaluate(agents=["first_agents:agent", "first_agents:agent"], tasks=1)
    for module in ("first_agents", "second_agents"):
        sys.modules.pop(module, None)
