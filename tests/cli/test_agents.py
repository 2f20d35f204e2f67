"""LLM agents on the command line: evaluate with a model, read an episode, play it again, list agents and options."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from resilisim.policies.registry import LLM_POLICIES
from tests.chat.loopback import LoopbackServer, error
from tests.cli.conftest import Command
from tests.evaluation.agent_models import following_answer

KEY = "sk-a-secret-that-must-not-be-seen-0123456789"
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


def run_arguments(script: Path, out: Path) -> tuple[object, ...]:
    policies = ("--policy", "react", "--policy", "react[steps=2]", "--policy", "random")
    return ("evaluate", *policies, "--model", f"scripted:{script}", "--tasks", 2, "--prompt", "optimal", "--out", out)


def test_agents_are_evaluated_beside_other_policies(command: Command, script: Path, tmp_path: Path) -> None:
    outcome = command(*run_arguments(script, tmp_path / "run"))
    assert outcome.code == 0, outcome.err
    for expected in ("react[steps=2]", "LLM agents, per episode", "nobody 100%"):
        assert expected in outcome.out
    result = command(*run_arguments(script, tmp_path / "run"), "--json").json()
    assert [agent["policy"] for agent in result["agents"]] == ["react", "react[steps=2]"]
    assert result["agents"][0]["components"]["agent"]["calls"] == 2 * 3
    assert result["num_failures"] == 0
    page = command("report", tmp_path / "run")
    assert page.code == 0, page.err


def test_an_episode_is_read_and_played_again(command: Command, script: Path, tmp_path: Path) -> None:
    assert command(*run_arguments(script, tmp_path / "run")).code == 0
    shown = command("episode", "show", tmp_path / "run", 0)
    for expected in (
        "Thought: I begin",
        "malformed reply",
        "that is all",
        "regret",
        "luck",
        "V*",
        "Calls of the model",
    ):
        assert expected in shown.out, expected
    whole = command("episode", "show", tmp_path / "run", 0, "--full").out
    assert len(whole) > len(shown.out)
    assert "more characters: --full" not in whole
    record = command("episode", "show", tmp_path / "run", 0, "--json").json()
    assert record["agent"]["answer"] == "that is all"
    again = command("episode", "replay", tmp_path / "run", 0)
    assert (again.code, again.err) == (0, "the same as recorded, to the last digit\n")
    assert again.out == shown.out
    scripted = command("episode", "replay", tmp_path / "run", 2)
    assert (scripted.code, scripted.err) == (0, "the same as recorded, to the last digit\n")
    live = command("episode", "replay", tmp_path / "run", 0, "--live")
    assert (live.code, live.err) == (0, "recorded: failure; now: failure\n")


def test_wrong_episodes_are_refused_in_one_line(command: Command, script: Path, tmp_path: Path) -> None:
    assert command(*run_arguments(script, tmp_path / "run")).code == 0
    assert "holds no episode '99'" in command("episode", "show", tmp_path / "run", 99).refusal()
    assert "no folder of results" in command("episode", "show", tmp_path / "nowhere", 0).refusal()


def test_a_broken_endpoint_leaves_an_unfinished_run(command: Command, tmp_path: Path) -> None:
    arguments = ("evaluate", "--policy", "react", "--model", "openai:m", "--tasks", 3, "--prompt", "optimal")
    with LoopbackServer(lambda seen: error(503)) as server:
        where = ("--base-url", server.base_url, "--retries", 0, "--out", tmp_path / "run")
        outcome = command(*arguments, *where)
        assert outcome.code == 3
        assert "3 episodes broke and no score counts them" in outcome.err
        assert "the last because http://127.0.0.1" in outcome.err
        shown = command("episode", "show", tmp_path / "run", 1)
        assert "not finished" in shown.out
        assert "EndpointError" in shown.out
        stopped = command(*arguments, *where, "--give-up-after", 2)
        assert stopped.code == 3
        assert "2 episodes in a row broke" in stopped.err


def test_a_mended_endpoint_finishes_the_run(command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    is_down = True

    def answer(seen: object) -> object:
        return error(500, f"broken, and here is your key {KEY}") if is_down else following_answer(seen)

    arguments = ("evaluate", "--policy", "react", "--model", "openai:m", "--tasks", 3, "--prompt", "optimal")
    with LoopbackServer(answer) as server:
        where = ("--base-url", server.base_url, "--retries", 0, "--out", tmp_path / "run")
        outcome = command(*arguments, *where)
        assert outcome.code == 3
        is_down = False
        assert command(*arguments, *where).code == 0
    written = b"".join(path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file())
    assert KEY.encode() not in written
    assert KEY not in outcome.out + outcome.err


def test_agents_and_their_options_are_listed(command: Command) -> None:
    listed = command("agents")
    for name in LLM_POLICIES:
        assert name in listed.out
        options = command("agents", name, "--json").json()
        assert {"max_llm_calls", "examples", "templates"} <= {option["name"] for option in options}
        assert all(option["help"] and option["takes"] for option in options)
    assert "theta" in command("agents", "kpi-chain").out


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--policy", "react"], "needs a language model"),
        (["--policy", "react", "--model", "opnai:x"], "did you mean 'openai'?"),
        (["--policy", "react", "--model", "scripted:nowhere.jsonl"], "nowhere.jsonl"),
        (["--policy", "react[stps=3]", "--model", "{script}"], "did you mean 'steps'?"),
        (["--policy", "react[steps=0]", "--model", "{script}"], "option steps=0: expected a whole number of 1 or more"),
        (["--policy", "react[steps]", "--model", "{script}"], "'steps' is no option, expected name=value"),
        (["--policy", "react[steps=3", "--model", "{script}"], "the bracket is not closed"),
        (["--policy", "react[templates={empty}]", "--model", "{script}"], "holds no .md file"),
        (["--policy", "react[templates=nowhere]", "--model", "{script}"], "templates='nowhere' does not exist"),
        (["--policy", "react", "--model", "{script}", "--prices", "nowhere.json"], "nowhere.json"),
    ],
)
def test_unusable_arguments_are_refused_in_one_line(
    command: Command, script: Path, tmp_path: Path, arguments: list[str], expected: str
) -> None:
    (tmp_path / "empty").mkdir()
    given = [f"scripted:{script}" if argument == "{script}" else argument for argument in arguments]
    given = [argument.replace("{empty}", str(tmp_path / "empty")) for argument in given]
    line = command("evaluate", *given, "--tasks", 1, "--out", tmp_path / "run").refusal()
    assert expected in line
    assert not (tmp_path / "run").exists()


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


@pytest.mark.parametrize(
    ("more", "warning"),
    [
        (["--model", "planner=scripted:{script}"], "no policy of this run has a component 'planner'"),
        (["--policy", "code-act", "--protocol", "native"], "no native tool calls by code-act"),
    ],
)
def test_what_changes_nothing_is_warned_of(
    command: Command, script: Path, tmp_path: Path, more: list[str], warning: str
) -> None:
    given = [part.format(script=script) for part in more]
    arguments = ("--policy", "react", "--model", f"scripted:{script}", "--tasks", 1, "--out", tmp_path / "run")
    outcome = command("evaluate", *arguments, *given)
    assert warning in outcome.err
