from __future__ import annotations

import io
import json

import pytest

from resilisim.cli.evaluation.play import expand

READER_TASK = {
    "instance_id": "task_reader",
    "required_tools": ["file_operations_reader"],
    "description": "Read a file.",
}
CERTAIN = ["--success-probability", "1"]


@pytest.fixture
def tasks_file(tmp_path):
    path = tmp_path / "tasks.jsonl"
    chain = {"instance_id": "task_chain", "required_tools": ["data_processing_parser", "data_processing_aggregator"]}
    path.write_text(json.dumps(READER_TASK) + "\n" + json.dumps(chain) + "\n", encoding="utf-8")
    return path


@pytest.fixture
def play(command, monkeypatch, tasks_file):
    """A function that plays a task with the given lines typed in."""

    def run(task, lines, *options):
        monkeypatch.setattr("sys.stdin", io.StringIO("".join(line + "\n" for line in lines)))
        return command("play", "--task", task, "--tasks", tasks_file, *options)

    return run


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("s read a file", "<tool_search>read a file</tool_search>"),
        ("i file_operations_reader", "<tool_info>file_operations_reader</tool_info>"),
        ("c file_operations_reader", "<tool_call>file_operations_reader</tool_call>"),
        (
            'c file_operations_reader {"source": "a b"}',
            '<tool_call>file_operations_reader {"source": "a b"}</tool_call>',
        ),
        ("f", "<finish/>"),
        ("<finish/>", "<finish/>"),
        ("find the file", "find the file"),
        ("so what", "so what"),
        ("s", "s"),
        ("f it", "f it"),
    ],
)
def test_shorthands_become_tags_and_other_lines_stay(line, message):
    assert expand(line) == message


def test_a_played_success_costs_nothing(play):
    record = play("task_reader", ["c file_operations_reader", "f"], *CERTAIN, "--json").json()
    assert record["policy"] == "person"
    assert record["score"]["level"] == "full_success"
    assert [step["kind"] for step in record["steps"]] == ["execute", "finish"]
    assert [step["regret"] for step in record["steps"]] == [0.0, 0.0]
    assert [step["value"] for step in record["steps"]] == [1.0, 1.0]


def test_the_table_shows_what_each_call_cost(play):
    # Without its parser the aggregator succeeds with half the chance, and it would come too early.
    outcome = play("task_chain", ["c data_processing_aggregator", "f"], *CERTAIN)
    assert outcome.code == 0
    for word in ("V before", "regret", "luck", "wrong_order", "best possible from the start: 1.0000"):
        assert word in outcome.out
    assert "points lost: 1 = 0.0000 unavoidable" in outcome.out


def test_the_end_of_the_input_gives_up(play):
    record = play("task_reader", [], "--json").json()
    assert record["ended_by"] == "stopped"
    assert record["steps"][0]["label"] == "gave_up_early"
    assert record["steps"][0]["regret"] == pytest.approx(record["optimum"])


def test_empty_lines_use_no_turn_and_the_turns_left_are_shown(play):
    outcome = play("task_reader", ["", "  ", "c file_operations_reader", "f"], *CERTAIN, "--turns", "2")
    assert "[2 turns left]" in outcome.err
    assert "[1 turn left]" in outcome.err
    assert "full_success" in outcome.out


def test_the_closing_message_is_asked_for(play):
    outcome = play("task_reader", ["c file_operations_reader", "f"], *CERTAIN, "--turns", "1")
    assert "[closing message]" in outcome.err
    assert "full_success" in outcome.out


def test_the_plan_is_shown_with_the_optimal_prompt(play):
    assert "Execute data_processing_parser" in play("task_chain", [], "--prompt", "optimal").out
    assert "Execute data_processing_parser" not in play("task_chain", [], "--prompt", "baseline").out


def test_the_same_seed_brings_the_same_luck(play):
    lines = ["c file_operations_reader"] * 5
    first, again = (play("task_reader", lines, "--seed", "4", "--json").json() for _ in range(2))
    assert first == again
    outcomes = {
        tuple(step["success"] for step in play("task_reader", lines, "--seed", seed, "--json").json()["steps"])
        for seed in range(12)
    }
    assert len(outcomes) > 1


@pytest.mark.parametrize(
    ("arguments", "word"),
    [(["--task", "task_raeder"], "'task_reader'"), (["--task", "task_reader", "--prompt", "optimall"], "'optimal'")],
)
def test_wrong_values_are_refused(command, tasks_file, arguments, word):
    assert word in command("play", *arguments, "--tasks", tasks_file).refusal()


def test_law_and_rules_are_options(play):
    options = ["--not-executed", "0.4", "--failed", "0.6", "--history", "0.8", "--loop-length", "3"]
    record = play("task_chain", ["i data_processing_parser"] * 3, *options, "--json").json()
    assert record["law"] == {"base": 0.8, "not_executed": 0.4, "failed": 0.6, "history": 0.8}
    assert record["rules"]["loop_length"] == 3
    assert record["ended_by"] == "loop"


def test_how_much_is_told_is_an_option(play):
    lines = ["s read a file", "c file_operations_reader"]
    brief, full = (play("task_reader", lines, *CERTAIN, "--search-detail", detail).out for detail in ("brief", "full"))
    assert "parameters" not in brief.lower().split("read a file")[-1].split("file_operations_reader")[0]
    assert len(full) > len(brief) + 500
    verbose = play("task_reader", lines, *CERTAIN, "--payload", "verbose").out
    assert len(verbose) > len(brief) + 5000


def test_a_model_of_ones_own_answers_searches(play, model_folder):
    own, shipped = (
        play("task_reader", ["s read a file"], *options).out for options in (["--embedding-model", model_folder], [])
    )
    assert own == shipped
    assert "file_operations_reader" in own
    assert "no/such/folder" in play("task_reader", ["s x"], "--embedding-model", "no/such/folder").refusal()


def test_markup_in_messages_and_replies_is_shown_as_it_stands(play, tasks_file):
    task = {"instance_id": "odd", "required_tools": ["file_operations_reader"], "description": "[/b] :smile: \x1b[31m"}
    with tasks_file.open("a", encoding="utf-8") as stream:
        stream.write(json.dumps(task) + "\n")
    outcome = play("odd", ["c [/nothing]", "[/x]"])
    assert outcome.code == 0, outcome.err
    assert "[/b] :smile: \\x1b[31m" in outcome.out
    assert "[/nothing]" in outcome.out


def test_help_repeats_the_shorthands_and_uses_no_turn(play):
    outcome = play("task_reader", ["help", "?", "c file_operations_reader", "f"], *CERTAIN, "--turns", "2")
    assert " ".join(outcome.out.split()).count("s WORDS searches") == 3
    assert outcome.err.count("[2 turns left]") == 3
    assert "full_success" in outcome.out


def test_the_record_names_the_salt_that_decided_the_luck(play):
    assert play("task_reader", [], "--json").json()["salt"] == "resilisim/evaluation"
