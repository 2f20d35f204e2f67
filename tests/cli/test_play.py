"""`resilisim play`: a person in the agent's place."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from resilisim.cli.evaluation import play as play_module
from resilisim.cli.evaluation.play import HELP, PersonPolicy, expand
from resilisim.policies.registry import LLM_POLICIES
from tests.chat.loopback import Answer, LoopbackServer, Seen, error
from tests.cli.conftest import Command
from tests.evaluation.agent_models import KEY, following_answer

READER = "file_operations_reader"
CERTAIN = ["--success-probability", "1"]
TASKS = (
    {"instance_id": "task_reader", "required_tools": [READER], "description": "Read a file."},
    {"instance_id": "task_chain", "required_tools": ["data_processing_parser", "data_processing_aggregator"]},
    {"instance_id": "odd", "required_tools": [READER], "description": "[/b] :smile: \x1b[31m"},
)


@pytest.fixture
def play(command, monkeypatch, tmp_path):
    """A function that plays a task with the given lines typed in."""
    path = tmp_path / "tasks.jsonl"
    path.write_text("".join(json.dumps(task) + "\n" for task in TASKS), encoding="utf-8")

    def run(task, lines=(), *options):
        monkeypatch.setattr("sys.stdin", io.StringIO("".join(line + "\n" for line in lines)))
        return command("play", "--task", task, "--tasks", path, *options)

    return run


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("s read a file", "<tool_search>read a file</tool_search>"),
        (f"i {READER}", f"<tool_info>{READER}</tool_info>"),
        (f"c {READER}", f"<tool_call>{READER}</tool_call>"),
        (f'c {READER} {{"source": "a b"}}', f'<tool_call>{READER} {{"source": "a b"}}</tool_call>'),
        ("f", "<finish/>"),
        *((line, line) for line in ("<finish/>", "find the file", "so what", "s", "f it")),
    ],
)
def test_shorthands_become_tags_and_other_lines_stay(line, message):
    assert expand(line) == message


def test_a_played_success_costs_nothing(play):
    record = play("task_reader", [f"c {READER}", "f"], *CERTAIN, "--json").json()
    assert (record["policy"], record["score"]["level"]) == ("person", "full_success")
    assert record["salt"] == "resilisim/evaluation"  # which decided the luck
    assert [(step["kind"], step["regret"], step["value"]) for step in record["steps"]] == [
        ("execute", 0.0, 1.0),
        ("finish", 0.0, 1.0),
    ]


def test_the_table_shows_what_each_call_cost_and_help_uses_no_turn(play):
    # Without its parser the aggregator succeeds with half the chance, and it would come too early.
    outcome = play("task_chain", ["", "help", "?", "c data_processing_aggregator", "f"], *CERTAIN, "--turns", "2")
    assert outcome.code == 0
    assert outcome.err.count("[2 turns left]") == 4
    assert " ".join(outcome.out.split()).count("s WORDS searches") == 3
    words = " ".join(outcome.out.split())
    for word in ("before Q regret luck reason", "wrong order", "best possible from the start: 1.0000"):
        assert word in words
    assert "points lost: 1 = 0.0000 unavoidable" in outcome.out


def test_the_end_of_the_input_gives_up(play):
    record = play("task_reader", [], "--json").json()
    assert (record["ended_by"], record["steps"][0]["label"]) == ("stopped", "gave_up_early")
    assert record["steps"][0]["regret"] == pytest.approx(record["optimum"])


def test_the_same_seed_brings_the_same_luck(play):
    def outcomes(seed):
        record = play("task_reader", [f"c {READER}"] * 5, "--seed", seed, "--json").json()
        return tuple(step["success"] for step in record["steps"])

    assert outcomes(4) == outcomes(4)
    assert len({outcomes(seed) for seed in range(12)}) > 1


def test_options_reach_the_environment(play, model_folder):
    options = ["--not-executed", "0.4", "--failed", "0.6", "--history", "0.8", "--loop-length", "3"]
    record = play("task_chain", ["i data_processing_parser"] * 3, *options, "--json").json()
    assert record["law"] == {"base": 0.8, "not_executed": 0.4, "failed": 0.6, "history": 0.8}
    assert (record["rules"]["loop_length"], record["ended_by"]) == (3, "loop")
    lines = ["s read a file", f"c {READER}"]
    brief = play("task_reader", lines, *CERTAIN).out
    assert READER in brief
    assert len(play("task_reader", lines, *CERTAIN, "--search-detail", "full").out) > len(brief) + 500
    assert len(play("task_reader", lines, *CERTAIN, "--payload", "verbose").out) > len(brief) + 5000
    assert play("task_reader", lines, *CERTAIN, "--embedding-model", model_folder).out == brief
    for prompt, shown in (("optimal", True), ("baseline", False)):
        assert ("Execute data_processing_parser" in play("task_chain", [], "--prompt", prompt).out) is shown


def test_markup_in_messages_and_replies_is_shown_as_it_stands(play):
    outcome = play("odd", ["c [/nothing]", "[/x]"])
    assert outcome.code == 0, outcome.err
    assert "[/b] :smile: \\x1b[31m" in outcome.out
    assert "[/nothing]" in outcome.out


@pytest.mark.parametrize(
    ("line", "waits", "message"),
    [
        ("w", True, "<wait/>"),
        (" w ", True, "<wait/>"),
        ("w", False, "w"),
        ("w a while", True, "w a while"),
        ("f", True, "<finish/>"),
    ],
)
def test_w_lets_a_turn_pass_where_agents_can_wait(line: str, waits: bool, message: str) -> None:
    assert expand(line, waits=waits) == message


@pytest.mark.parametrize("offered", [True, False])
def test_help_tells_of_it_where_it_works(monkeypatch: pytest.MonkeyPatch, offered: bool) -> None:
    monkeypatch.setattr(play_module, "_ask", lambda prompt: "w")
    out = Console(record=True, width=300)
    person = PersonPolicy(out)
    person.reset("", {"offers_wait": True} if offered else {})
    assert person.act("The prompt.", {"turns_left": 3}) == ("<wait/>" if offered else "w")
    shown = out.export_text()
    assert ("w waits" in shown) == offered
    assert offered or HELP in shown


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
    for expected in ("react[steps=2]", "Use of language models per episode, by component", "nobody 100%"):
        assert expected in outcome.out
    result = command("evaluate", *policies, *where, "--json").json()
    assert [agent["policy"] for agent in result["agents"]] == ["react", "react[steps=2]"]
    assert (result["agents"][0]["components"]["agent"]["calls"], result["num_failures"]) == (2 * 3, 0)
    assert command("report", run).code == 0

    shown = command("runs", "episode", run, 0)
    transcript = ("Thought: I begin", "malformed reply", "that is all", "regret", "luck", "V*", "Calls of the model")
    for expected in transcript:
        assert expected in shown.out, expected
    order = [shown.out.index(part) for part in ("-- call 0", "== turn 1", "-- call 1", "malformed reply", "-- call 2")]
    assert order == sorted(order)
    whole = command("runs", "episode", run, 0, "--full").out
    assert len(whole) > len(shown.out)
    assert "more characters: --full" in shown.out
    assert "more characters: --full" not in whole
    assert command("runs", "episode", run, 0, "--json").json()["agent"]["answer"] == "that is all"
    for number in (0, 2):
        again = command("runs", "replay", run, number)
        assert (again.code, again.err) == (0, "the same as recorded, to the last digit\n")
        assert again.out == command("runs", "episode", run, number).out
    live = command("runs", "replay", run, 0, "--live")
    assert (live.code, live.err) == (0, "recorded: failure; now: failure\n")
    assert "holds no episode '99'" in command("runs", "episode", run, 99).refusal()
    assert "not a folder of results" in command("runs", "episode", tmp_path / "nowhere", 0).refusal()


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
        shown = command("runs", "episode", run, 1)
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
    listed = command("agents", "list")
    for name in LLM_POLICIES:
        assert name in listed.out
        options = command("agents", "show", name, "--json").json()
        assert {"max_llm_calls", "examples", "templates"} <= {option["name"] for option in options}
        assert all(option["help"] and option["takes"] for option in options)
    assert "theta" in command("agents", "show", "kpi-chain").out


def test_prompts_are_written_out_changed_and_used(command: Command, script: Path, tmp_path: Path) -> None:
    folder = tmp_path / "prompts"
    written = command("agents", "show", "react", "--write-templates", folder)
    assert written.code == 0
    assert f'--policy "react[templates={folder}]"' in written.err
    system = folder / "system.md"
    system.write_text("BE BRIEF.\n" + system.read_text(encoding="utf-8"), encoding="utf-8")
    spec = f"react[templates={folder}]"
    arguments = ("--model", f"scripted:{script}", "--tasks", 1, "--prompt", "optimal", "--out", tmp_path / "run")
    assert command("evaluate", "--policy", spec, *arguments).code == 0
    record = command("runs", "episode", tmp_path / "run", 0, "--json").json()
    assert record["agent"]["messages"][0]["content"].startswith("BE BRIEF.")
    assert "exists already" in command("agents", "show", "react", "--write-templates", folder).refusal()
