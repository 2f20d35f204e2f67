"""Who plays the eight tasks: agents with a model, scripted policies, sessions side by side, MCP clients, people."""

from __future__ import annotations

import asyncio
import io
import json
import os
import sys
import threading
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from mcp import Client, StdioServerParameters

from resilisim import ModelSettings, evaluate, open_session
from resilisim.cli.main import main
from resilisim.envs import EnvironmentSettings, Session
from resilisim.integrations.mcp.server import Episodes, ServedRun
from resilisim.policies.registry import LLM_POLICIES
from resilisim.tasks import Task
from resilisim.worlds import load_world
from resilisim.worlds.base import reference_calls, resolve_parameters
from tests.chat.loopback import LoopbackServer
from tests.doubles.world_models import WorldModel
from tests.doubles.worlds import play
from tests.guards import WAITING_SECONDS
from tests.worlds import notebook

WORLD = load_world("apis-v1")
TASK = next(task for task in WORLD.tasks() if task.task_type == "reading_tip")
SETTINGS = EnvironmentSettings().in_world("apis-v1")
Call = Callable[[str, Mapping[str, Any]], Mapping[str, Any]]


def solved(call: Call, task: Task = TASK) -> str:
    """Make the calls of a task's reference, each with what the ones before returned, and return the answer."""
    results: dict[str, Any] = {}
    for step in reference_calls(task):
        results[str(step.save)] = call(step.tool, resolve_parameters(step.parameters, results))
    return str(resolve_parameters({"answer": task.metadata["answers"][0]}, results)["answer"])


def played(agent: str, tasks: tuple[Task, ...]) -> list[Any]:
    with LoopbackServer(WorldModel([WORLD])) as server:
        return asyncio.run(play(WORLD, agent, tasks, server.base_url))


@pytest.mark.parametrize("agent", ["react", "kpi-chain"])
def test_agents_pass_on_what_a_competent_model_asks_it_to(agent: str) -> None:
    [record] = played(agent, (TASK,))
    assert record["outcome"] == 1, record["answer"]
    assert record["score"]["grade"]["criteria"] == {"passed_on": 1.0, "in_answer": 1.0}


@pytest.mark.long
@pytest.mark.parametrize("agent", LLM_POLICIES)
def test_every_agent_solves_all_eight_tasks(agent: str) -> None:
    assert [record["outcome"] for record in played(agent, WORLD.tasks())] == [1] * 8


def test_policies_that_know_names_alone_never_succeed() -> None:
    policies = ["random", "plan-follower", "repairing-follower", "exact-optimum"]
    found = evaluate(policies, f"apis-v1:{TASK.instance_id}", "optimal", seeds=3)
    grades = [(record["outcome"], record["score"]["grade"]["score"]) for record in found.records()]
    assert set(grades) == {(0, 0.0)}
    assert len(grades) == 4 * 3


def test_a_session_plays_and_constants_do_not_count() -> None:
    with open_session(TASK.instance_id, environment=SETTINGS, seed=3) as session:
        session.finish(solved(lambda tool, given: session.call(tool, given).data))
    assert session.score["grade"]["score"] == 1.0
    assert session.record()["regret"] == 0.0
    with open_session(TASK.instance_id, environment=SETTINGS, seed=4) as other:
        for step in session.record()["steps"][:-1]:
            other.call(step["tool"], arguments_of(step["message"]))
        other.finish(session.record()["answer"])
    assert other.score["grade"]["score"] == 0.0


def arguments_of(message: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(json.loads(message)["tool_calls"][0]["function"]["arguments"])
    return found


def test_a_person_plays(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    workspace, typed = WORLD.open(TASK, 5), []

    def call(tool: str, given: Mapping[str, Any]) -> Mapping[str, Any]:
        typed.append(f"c {tool} {json.dumps(given, ensure_ascii=False)}\n")
        return workspace.call(tool, given)

    answer = solved(call)
    monkeypatch.setattr("sys.stdin", io.StringIO("".join(typed) + f"f {' '.join(answer.split())}\n"))
    with pytest.raises(SystemExit, match="0"):
        main(["play", "--tasks", "apis-v1", "--task", TASK.instance_id, "--seed", "5"])
    assert "full_success" in capsys.readouterr().out


class SlowWorkspace(notebook.NotebookWorkspace):
    """Reads pages only while somebody else does, too."""

    meeting = threading.Barrier(2, timeout=WAITING_SECONDS)

    def call(self, tool: str, parameters: Mapping[str, Any]) -> Mapping[str, Any]:
        self.meeting.wait()
        return super().call(tool, parameters)


@pytest.fixture
def slow_world(monkeypatch: pytest.MonkeyPatch) -> EnvironmentSettings:
    monkeypatch.setattr(SlowWorkspace, "meeting", threading.Barrier(2, timeout=WAITING_SECONDS))
    monkeypatch.setattr(notebook, "NotebookWorkspace", SlowWorkspace)
    return EnvironmentSettings().in_world(notebook.NAME)


def test_sessions_go_on_while_the_tool_of_another_is_at_work(slow_world: EnvironmentSettings) -> None:
    async def agent(session: Session) -> None:
        for page in (1, 2):
            assert (await session.acall("notebook_reader", {"page": page})).ok

    found = evaluate(agents=[agent], tasks=f"{notebook.NAME}:1", seeds=2, environment=slow_world)
    assert (found.num_episodes, found.call.num_failures) == (2, 0)


@pytest.mark.long
def test_a_call_that_was_given_up_does_not_reach_into_the_next_episode(monkeypatch: pytest.MonkeyPatch) -> None:
    release, returned = threading.Event(), threading.Event()

    class Stuck(notebook.NotebookWorkspace):
        def call(self, tool: str, parameters: Mapping[str, Any]) -> Mapping[str, Any]:
            if parameters == {"page": 1}:
                release.wait(WAITING_SECONDS)
            return {"text": "", "number": 1}

    def impatient(session: Session) -> None:
        first = not starts
        starts.append(1)
        if first:
            try:
                session.call("notebook_reader", {"page": 1})  # until long after the episode was given up
            finally:
                returned.set()
        else:
            session.call("notebook_reader", {"page": 2})
            release.set()
            returned.wait(WAITING_SECONDS)
            session.call("notebook_reader", {"page": 3})

    starts: list[int] = []
    monkeypatch.setattr(notebook, "NotebookWorkspace", Stuck)
    limits = ModelSettings(concurrency=1, episode_seconds=3.0, episode_retries=0)
    found = evaluate(agents=[impatient], tasks=f"{notebook.NAME}:1", seeds=2, model=limits, environment=in_notebook())
    assert found.call.num_failures == 1
    [record] = found.records()
    assert [step["tool"] for step in record["steps"]] == ["notebook_reader"] * 2 + [None]


def test_calls_of_one_session_come_in_the_order_in_which_they_were_made() -> None:
    session = open_session(load_world(notebook.NAME).tasks()[0].instance_id, environment=in_notebook())

    async def all_at_once() -> None:
        await asyncio.gather(*(session.acall("notebook_reader", {"page": page}) for page in (3, 1, 4, 1, 5, 9, 2)))

    asyncio.run(all_at_once())
    session.finish("0")
    pages = [arguments_of(step["message"])["page"] for step in session.record()["steps"][:-1]]
    assert pages == [3, 1, 4, 1, 5, 9, 2]


def in_notebook() -> EnvironmentSettings:
    return EnvironmentSettings().in_world(notebook.NAME)


def test_episodes_of_mcp_go_on_while_the_tool_of_another_is_at_work(slow_world: EnvironmentSettings) -> None:
    async def both() -> list[Any]:
        episodes = Episodes(ServedRun(tasks=f"{notebook.NAME}:1", seeds=2))
        hosts = [episodes.host(repeats=False) for _ in range(2)]
        for host in hosts:
            await host.call("episode_start", {})
        return await asyncio.gather(*(host.call("notebook_reader", {"page": 1}) for host in hosts))

    answers = asyncio.run(both())
    assert [answer.is_error for answer in answers] == [False, False], answers


def test_whoever_is_cancelled_leaves_when_the_tool_is_done(slow_world: EnvironmentSettings) -> None:
    session = open_session(load_world(notebook.NAME).tasks()[0].instance_id, environment=slow_world)

    async def cancelled() -> None:
        call = asyncio.create_task(session.acall("notebook_reader", {"page": 1}))
        while not SlowWorkspace.meeting.n_waiting:
            await asyncio.sleep(0.005)
        call.cancel()
        await asyncio.sleep(0.05)
        assert not call.done()
        await asyncio.to_thread(SlowWorkspace.meeting.wait)
        with pytest.raises(asyncio.CancelledError):
            await call

    asyncio.run(cancelled())
    assert session.turns_left == 9


@pytest.mark.long
def test_a_real_client_plays_over_mcp() -> None:
    command = StdioServerParameters(
        command=sys.executable,
        args=["-m", "resilisim", "mcp", "serve", "--tasks", "apis-v1", "--task", TASK.instance_id, "--seed", "2"],
        env=dict(os.environ),
    )

    async def over_stdio() -> Any:
        async with Client(command) as client:
            assert (await client.call_tool("episode_start", {})).is_error is False
            results: dict[str, Any] = {}
            for step in reference_calls(TASK):
                done = await client.call_tool(step.tool, resolve_parameters(step.parameters, results))
                text = done.content[0].text
                results[str(step.save)] = json.JSONDecoder().raw_decode(text[text.index("{") :])[0]
            answer = resolve_parameters({"answer": TASK.metadata["answers"][0]}, results)["answer"]
            return (await client.call_tool("episode_finish", {"answer": answer})).structured_content

    assert asyncio.run(over_stdio())["level"] == "full_success"
