"""Laws with parts through every door: the same calls are the same episode, with the same luck and the same worth."""

from __future__ import annotations

import asyncio
import functools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import pytest

from resilisim import evaluate, open_session
from resilisim.cli.main import main
from resilisim.envs import EnvironmentSettings, Session
from resilisim.envs.session import EpisodeEnded
from resilisim.evaluation import read_results
from resilisim.evaluation.run.rescoring import rescore_run
from resilisim.integrations.mcp.server import Episodes, ServedRun
from resilisim.simulator import load_law, shipped_laws

LAWS = tuple(name for name in shipped_laws() if not load_law(name).is_plain)
# A reader whose output flows, and a connector, which can be closed until the authenticator has run.
TASK = {
    "instance_id": "task_of_laws",
    "required_tools": ["file_operations_reader", "data_processing_transformer", "integration_connector"],
    "description": "Read the file, transform it, connect to the source.",
    "inputs": {"source": "orders.csv"},
}
SEEDS = 6
TURNS = {"max_turns": 8}  # few enough to be solved at once


@functools.cache
def played(law: str) -> list[dict[str, Any]]:
    """Return the records of the exact optimum under a law, one for each seed."""
    result = evaluate("exact-optimum", [TASK], "optimal", SEEDS, law=law, progress=False, **TURNS)
    return list(result.records())


def calls(record: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the messages of a record as calls of functions."""
    for step in record["steps"]:
        if step["kind"] in ("wait", "finish"):
            yield step["kind"], {}
        else:
            assert step["kind"] == "execute"
            given = step["message"].removeprefix(f"<tool_call>{step['tool']}").removesuffix("</tool_call>").strip()
            yield step["tool"], json.loads(given) if given else {}


def judged(record: dict[str, Any]) -> dict[str, Any]:
    """Return what no door may change."""
    names = ("outcome", "optimum", "optimum_knowledge", "regret", "luck", "losses", "ended_by", "score", "law", "seed")
    of_steps = ("kind", "tool", "success", "error", "result", "success_probability", "value", "action_value", "luck")
    steps = [{name: step.get(name) for name in of_steps} for step in record["steps"]]
    return {**{name: record.get(name) for name in names}, "steps": steps}


def play_session(session: Session, record: dict[str, Any]) -> None:
    for name, given in calls(record):
        if name == "wait":
            session.wait()
        elif name != "finish":
            session.call(name, given)
        elif not session.ended:
            session.finish()


@pytest.mark.parametrize("law", LAWS)
def test_every_door_gives_the_same_episode(law: str, tmp_path: Path) -> None:
    records = played(law)
    outcomes = {record["outcome"] for record in records}
    assert all(record["law"]["name"] == law for record in records)
    assert 1 in outcomes
    for record in records:
        seed = record["seed"]
        assert record["regret"] == pytest.approx(0.0, abs=1e-9)

        env = gymnasium.make("resilisim/Conversation-v0", law=law, **TURNS)
        _, info = env.reset(seed=seed, options={"task": TASK, "prompt": "optimal"})
        for step in record["steps"]:
            _, reward, ended, _, info = env.step(step["message"])
            assert info.get("execution", {}).get("success") == step["success"]
        assert ended
        assert reward == record["outcome"]
        assert info["score"] == record["score"]

        with open_session(TASK, seed, "optimal", law=law, **TURNS) as session:
            play_session(session, record)
        assert judged(session.record()) == judged(record)

    assert play_over_mcp(law, records, tmp_path / "mcp") == [judged(record) for record in records]


def play_over_mcp(law: str, records: list[dict[str, Any]], out: Path) -> list[dict[str, Any]]:
    environment = EnvironmentSettings(law=law, **TURNS)
    episodes = Episodes(ServedRun([TASK], prompts="optimal", seeds=SEEDS, environment=environment, out=out))
    host = episodes.host(repeats=True)

    async def play() -> None:
        for record in records:
            assert not (await host.call("episode_start", {"seed": record["seed"]})).is_error
            for name, given in calls(record):
                if name != "finish":
                    await host.call(name, given)
            await host.call("episode_finish", {})

    asyncio.run(play())
    return [judged(record) for record in read_results(out).records()]


@pytest.mark.parametrize("law", LAWS)
def test_the_command_plays_a_law_and_the_run_agrees_with_itself(law: str, tmp_path: Path) -> None:
    tasks, out = tmp_path / "tasks.jsonl", tmp_path / "run"
    tasks.write_text(json.dumps(TASK) + "\n")
    options = ["--tasks", str(tasks), "--prompt", "optimal", "--seeds", str(SEEDS), "--law", law, "--turns", "8"]
    with pytest.raises(SystemExit) as left:
        main(["evaluate", "--policy", "exact-optimum", "--policy", "repairing-follower", "--out", str(out), *options])
    assert left.value.code == 0
    result = read_results(out)
    found = [judged(record) for record in result.records() if record["policy"] == "exact-optimum"]
    assert found == [judged(record) for record in played(law)]
    assert json.loads((out / "manifest.json").read_text())["arguments"]["environment"]["law"]["name"] == law
    assert rescore_run(out).agrees


def test_an_agent_function_waits_and_is_judged() -> None:
    def waits(session: Session) -> None:
        try:
            while True:
                session.wait()
        except EpisodeEnded:
            return

    result = evaluate(agents=[waits], tasks=[TASK], prompts="optimal", law="rate-limits", progress=False)
    (record,) = result.records()
    assert {step["kind"] for step in record["steps"]} == {"wait"}
    assert record["ended_by"] == "turns"
    assert set(record["losses"]) == {"waited_in_vain"}
