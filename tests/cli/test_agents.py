"""LLM agents on the command line: evaluate with a model, read an episode, play it again, list agents and options."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from resilisim.policies.registry import LLM_POLICIES
from tests.chat.loopback import Answer, LoopbackServer, Seen, error
from tests.cli.conftest import Command
from tests.evaluation.agent_models import KEY, following_answer

SCRIPT = [
    'Thought: I begin\nAction: tool_call {"name": "file_operations_reader"}',
    "nonsense",
    'Action: finish {"answer": "that is all"}',
]


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "script.jsonl"
    path.write_text("".join(json.dumps({"reply": reply}) + "\n" for reply in SCRIPT))
    return path


def test_agents_are_evaluated_beside_other_policies_and_their_episodes_read_and_played_again(
    command: Command, script: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    policies = ("--policy", "react", "--policy", "react[steps=2]", "--policy", "random")
    where = ("--model", f"scripted:{script}", "--tasks", 2, "--prompt", "optimal", "--out", run)
    outcome = command("evaluate", *policies, *where)
    assert outcome.code == 0, outcome.err
    for expected in ("react[steps=2]", "LLM agents, per episode", "nobody 100%"):
        assert expected in outcome.out
    result = command("evaluate", *policies, *where, "--json").json()
    assert [agent["policy"] for agent in result["agents"]] == ["react", "react[steps=2]"]
    assert (result["agents"][0]["components"]["agent"]["calls"], result["num_failures"]) == (2 * 3, 0)
    assert command("report", run).code == 0

    shown = command("episode", "show", run, 0)
    transcript = ("Thought: I begin", "malformed reply", "that is all", "regret", "luck", "V*", "Calls of the model")
    for expected in transcript:
        assert expected in shown.out, expected
    order = [shown.out.index(part) for part in ("-- call 0", "== turn 1", "-- call 1", "malformed reply", "-- call 2")]
    assert order == sorted(order)
    whole = command("episode", "show", run, 0, "--full").out
    assert len(whole) > len(shown.out)
    assert "more characters: --full" in shown.out
    assert "more characters: --full" not in whole
    assert command("episode", "show", run, 0, "--json").json()["agent"]["answer"] == "that is all"
    for number in (0, 2):
        again = command("episode", "replay", run, number)
        assert (again.code, again.err) == (0, "the same as recorded, to the last digit\n")
        assert again.out == command("episode", "show", run, number).out
    live = command("episode", "replay", run, 0, "--live")
    assert (live.code, live.err) == (0, "recorded: failure; now: failure\n")
    assert "holds no episode '99'" in command("episode", "show", run, 99).refusal()
    assert "no folder of results" in command("episode", "show", tmp_path / "nowhere", 0).refusal()


def test_a_broken_endpoint_leaves_an_unfinished_run_and_a_mended_one_finishes_it(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    is_down = True

    def answer(seen: Seen) -> Answer:
        return error(503, f"broken, and here is your key {KEY}") if is_down else following_answer(seen)

    run = tmp_path / "run"
    arguments = ("evaluate", "--policy", "react", "--model", "openai:m", "--tasks", 3, "--prompt", "optimal")
    with LoopbackServer(answer) as server:
        where = ("--base-url", server.base_url, "--retries", 0, "--out", run)
        broken = command(*arguments, *where)
        shown = command("episode", "show", run, 1)
        stopped = command(*arguments, *where, "--give-up-after", 2)
        is_down = False
        assert command(*arguments, *where).code == 0
    assert (broken.code, stopped.code) == (3, 3)
    assert "3 episodes broke and are not scored" in broken.err
    assert "the last because http://127.0.0.1" in broken.err
    assert "2 episodes in a row broke" in stopped.err
    for expected in ("Episode 1: not finished", "EndpointError: http://", "0 calls of the model had been answered"):
        assert expected in shown.out
    written = b"".join(path.read_bytes() for path in run.rglob("*") if path.is_file())
    assert KEY.encode() not in written
    assert all(KEY not in done.out + done.err for done in (broken, shown, stopped))


def test_agents_and_their_options_are_listed(command: Command) -> None:
    listed = command("agents")
    for name in LLM_POLICIES:
        assert name in listed.out
        options = command("agents", name, "--json").json()
        assert {"max_llm_calls", "examples", "templates"} <= {option["name"] for option in options}
        assert all(option["help"] and option["takes"] for option in options)
    assert "theta" in command("agents", "kpi-chain").out


def test_prompts_are_written_out_changed_and_used(command: Command, script: Path, tmp_path: Path) -> None:
    folder = tmp_path / "prompts"
    written = command("agents", "react", "--write-templates", folder)
    assert written.code == 0
    assert f'--policy "react[templates={folder}]"' in written.err
    system = folder / "system.md"
    system.write_text("BE BRIEF.\n" + system.read_text(encoding="utf-8"), encoding="utf-8")
    spec = f"react[templates={folder}]"
    arguments = ("--model", f"scripted:{script}", "--tasks", 1, "--prompt", "optimal", "--out", tmp_path / "run")
    assert command("evaluate", "--policy", spec, *arguments).code == 0
    record = command("episode", "show", tmp_path / "run", 0, "--json").json()
    assert record["agent"]["messages"][0]["content"].startswith("BE BRIEF.")
    assert "exists already" in command("agents", "react", "--write-templates", folder).refusal()
