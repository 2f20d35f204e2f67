"""Whose fault it is that an episode broke: the agent's, which is lost; the infrastructure's, kept apart; or a bug."""

from __future__ import annotations

import contextlib
import json
import shlex
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from resilisim import ModelSettings, evaluate, open_session
from resilisim.envs import ConversationEnv, Session
from resilisim.envs.session import PLAYED_OTHERWISE
from resilisim.errors import CheckFailed, InfrastructureError, fault_of
from resilisim.evaluation import read_records
from resilisim.evaluation.episode.play import play_episode
from resilisim.evaluation.run.rescoring import rescore_run
from resilisim.evaluation.run.store import RunStore, begun, read_failures, read_manifest
from resilisim.policies.function_agent import FunctionAgent
from resilisim.simulator.exact.optimum import Optimum
from resilisim.tasks import find_task
from resilisim.workflows import parse_plan
from tests.evaluation.session_agents import crashing
from tests.evaluation.toy_policies import toy_tasks
from tests.guards import WAITING_SECONDS

LAWS = [{}, {"law": "meaningful-errors"}]


def asserts(session: Session) -> str:
    for name in parse_plan(session.prompt):
        assert session.call(name).ok
    return "done"


def pretends(session: Session) -> str:
    for name in parse_plan(session.prompt):
        if not session.call(name).ok:
            raise InfrastructureError("the endpoint is down, really")
    return "done"


def does_all_and_breaks(session: Session) -> None:
    for name in parse_plan(session.prompt):
        while session.turns_left and not session.call(name).ok:
            pass
    raise ValueError("at the very end")


def breaks_after_its_end(session: Session) -> None:
    for name in parse_plan(session.prompt):
        while session.turns_left and not session.call(name).ok:
            pass
    session.finish()
    raise ValueError("it is over anyway")


class QuitsAtAFailure:
    """The same as a policy."""

    name = "quits"

    def reset(self, observation: str, info: Any) -> None:
        self._left = parse_plan(observation)

    def act(self, observation: str, info: Any) -> str:
        execution = info.get("execution")
        if execution is not None and not execution["success"]:
            raise RuntimeError("a tool has failed")
        return f"<tool_call>{self._left.pop(0)}</tool_call>" if self._left else "<finish/>"


@pytest.mark.parametrize("options", LAWS, ids=["benchmark", "errors"])
@pytest.mark.parametrize("agent", [crashing, asserts, QuitsAtAFailure])
def test_an_agent_that_breaks_where_a_tool_fails_has_lost(agent: Any, options: dict[str, Any], tmp_path: Path) -> None:
    given: dict[str, Any] = {"policies": agent} if agent is QuitsAtAFailure else {"agents": agent}
    result = evaluate(**given, tasks=toy_tasks(2), prompts="optimal", seeds=8, out=tmp_path, **options)
    assert (result.num_episodes, result.call.num_failures) == (16, 0)
    ends = {record["ended_by"] for record in result.records()}
    assert ends == {"agent_error", "completion"}
    for record in result.records():
        lost = record["ended_by"] == "agent_error"
        assert record["outcome"] == (not lost)
        assert abs((1 - record["outcome"]) - (1 - record["optimum"]) - record["regret"] + record["luck"]) < 1e-9
        if lost:
            last = record["steps"][-1]
            assert (last["kind"], last["action_value"], last["luck"], record["score"]["level"]) == (
                "agent_error",
                0.0,
                0.0,
                "failure",
            )
            assert last["label"] == ("agent_error" if last["value"] > 0 else None)
    assert rescore_run(tmp_path).agrees


def test_what_was_done_before_does_not_save_it_and_what_comes_after_the_end_changes_nothing() -> None:
    run = evaluate(agents=[does_all_and_breaks, breaks_after_its_end], tasks=3, prompts="optimal", base=1.0)
    outcomes = {record["policy"]: record["outcome"] for record in run.records()}
    assert outcomes == {"does_all_and_breaks": 0, "breaks_after_its_end": 1}


def test_an_agent_cannot_pretend_that_an_endpoint_has_failed(tmp_path: Path) -> None:
    run = evaluate(agents=pretends, tasks=4, prompts="optimal", seeds=4, out=tmp_path)
    failures = list(read_failures(tmp_path))
    assert run.call.num_failures == len(failures) > 0
    assert {failure["fault"] for failure in failures} == {"unclear"}
    assert all(failure["messages"] for failure in failures)


PROGRAM = """
import asyncio, os, sys
from mcp import Client

async def main():
    async with Client(os.environ["RESILISIM_MCP_URL"]) as client:
        await client.call_tool("network_fetcher", {})
        if sys.argv[1] == "finish":
            told = await client.call_tool("episode_finish", {})
            return told.structured_content["level"] != "full_success"
    return int(sys.argv[1])

sys.exit(int(asyncio.run(main())))
"""


@pytest.mark.parametrize(("argument", "ended_by"), [("finish", "completion"), ("3", "agent_error")])
def test_a_program_that_has_read_its_score_cannot_take_the_episode_back(
    argument: str, ended_by: str, tmp_path: Path, python: list[str]
) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    run = evaluate(agents=f"command:{shlex.join(python)} {program} {argument}", tasks=1, out=tmp_path / "run")
    (record,) = run.records()
    assert (record["ended_by"], record["outcome"]) == (ended_by, 0)


def test_a_failed_check_of_ours_stops_the_run_whatever_the_agent_catches(monkeypatch: pytest.MonkeyPatch) -> None:
    def follows(session: Session) -> str:
        for name in parse_plan(session.prompt):
            try:
                session.call(name)
            except Exception:
                continue
        return "done"

    monkeypatch.setattr(Optimum, "judge", lambda self, state, message, after: (2.0, 0.5))
    with pytest.raises(CheckFailed, match="is above V"):
        evaluate(agents=follows, tasks=1, prompts="optimal")


def other_sender(messages: list[str]) -> Callable[[Session], None]:
    def sends(session: Session) -> None:
        for name in messages:
            session.call(name)
        if messages[-1] == "network_fetcher":
            raise ConnectionError("no route")

    return sends


@pytest.mark.parametrize(
    ("second", "ended_by"),
    [(["network_fetcher", "file_operations_reader"], "stopped"), (["file_operations_reader"], "agent_error")],
)
def test_whoever_broke_unclearly_has_to_send_the_same_again(second: list[str], ended_by: str, tmp_path: Path) -> None:
    tries = iter([other_sender(["network_fetcher"]), other_sender(second)])

    def agent(session: Session) -> None:
        next(tries)(session)

    first = evaluate(agents=agent, tasks=1, out=tmp_path)
    assert (first.num_episodes, first.call.num_failures) == (0, 1)
    evaluate(agents=agent, tasks=1, out=tmp_path)
    (record,) = read_records(tmp_path)
    assert record["ended_by"] == ended_by
    assert (record["steps"][-1]["error"] == PLAYED_OTHERWISE) == (ended_by == "agent_error")


def test_a_session_that_is_left_with_an_exception_is_lost() -> None:
    def leave(error: BaseException) -> Session:
        session = open_session("task_c64444cae27fab46")
        with contextlib.suppress(BaseException), session:
            session.call("network_fetcher")
            raise error
        return session

    lost = leave(ValueError("boom"))
    assert lost.score is not None
    assert (lost.record()["ended_by"], lost.record()["outcome"]) == ("agent_error", 0)
    for error in (ConnectionError(), KeyboardInterrupt(), CheckFailed()):
        assert leave(error).score is None


def test_whose_fault_it_is() -> None:
    class Wrapped(Exception):
        pass

    def raised(error: BaseException, cause: BaseException | None = None) -> BaseException:
        try:
            raise error from cause
        except BaseException as caught:
            return caught

    assert fault_of(raised(AssertionError("the agent's own"))) == "agent"
    assert fault_of(raised(Wrapped(), raised(CheckFailed()))) == "bug"
    assert fault_of(ExceptionGroup("several", [ValueError(), CheckFailed()])) == "bug"
    assert fault_of(raised(Wrapped(), ConnectionResetError())) == "unclear"
    assert fault_of(socket.gaierror()) == fault_of(MemoryError()) == "unclear"
    assert fault_of(raised(InfrastructureError("pretended"))) == "unclear"
    assert fault_of(FileNotFoundError("its own file")) == "agent"
    assert fault_of(ValueError(), is_ours=True) == "bug"


@pytest.mark.parametrize(("status", "fault"), [(400, "agent"), (401, "unclear"), (429, "unclear"), (503, "unclear")])
def test_what_an_endpoint_refuses_is_told_by_its_status(status: int, fault: str) -> None:
    direct = type("APIStatusError", (Exception,), {"__module__": "openai._exceptions", "status_code": status})
    answered = type("HTTPStatusError", (Exception,), {"__module__": "httpx", "response": direct()})
    assert fault_of(direct()) == fault_of(answered()) == fault


def test_an_episode_that_is_handed_out_is_written_before_and_stays_begun_until_it_is_finished(tmp_path: Path) -> None:
    run = evaluate("random", 2, out=tmp_path / "run")
    line, *_ = (tmp_path / "run" / "episodes.jsonl").read_bytes().splitlines(keepends=True)
    record = json.loads(line)
    arguments = read_manifest(run.directory)["arguments"]
    with RunStore(tmp_path / "other", arguments, 2) as store:
        store.begin(begun(0, "random", "baseline", record["instance_id"], 0))
        assert store.begun() == {0}
    with RunStore(tmp_path / "other", arguments, 2) as store:
        assert store.begun() == {0}
        store.append_encoded(line, 0)
        assert store.begun() == set()


def test_an_agent_that_is_given_up_has_lost_in_its_own_loop_too() -> None:
    record = play_episode(
        ConversationEnv(protocol="native", tools="native"),
        FunctionAgent(crashing),
        find_task("task_c64444cae27fab46"),
        "optimal",
        4,
    )
    assert record["ended_by"] in ("agent_error", "completion")


def test_a_time_limit_is_the_agents(tmp_path: Path) -> None:
    import threading

    never = threading.Event()

    def waits(session: Session) -> None:
        session.call("network_fetcher")
        never.wait(WAITING_SECONDS)

    try:  # a second is enough for the one call, on a busy machine, too
        run = evaluate(agents=waits, tasks=1, out=tmp_path, model=ModelSettings(episode_seconds=1.0))
    finally:
        never.set()
    (record,) = run.records()
    assert (record["ended_by"], len(record["steps"])) == ("agent_error", 2)
