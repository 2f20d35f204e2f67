from __future__ import annotations

import json
import sys
from itertools import islice

import pytest

from resilisim.cli.options import chosen_tasks
from resilisim.evaluation.run import runner
from resilisim.tasks.benchmark import benchmark_tasks
from resilisim.tasks.split import SPLITS, split_of
from resilisim.tool_library import default_library

RUN = ["evaluate", "--policy", "exact-optimum", "--policy", "plan-follower", "--prompt", "optimal", "--tasks", "6"]


def test_evaluate_writes_records_the_same_command_changes_nothing_and_others_are_refused(command, tmp_path):
    out = tmp_path / "results"
    first = command(*RUN, "--out", out)
    assert first.code == 0, first.err
    assert "plan-follower" in first.out
    assert f"resilisim report {out}" in first.err
    assert "already there" not in first.err
    lines = (out / "episodes.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    played = {(record["policy"], record["instance_id"], record["seed"]) for record in map(json.loads, lines)}
    assert len(lines) == len(played) == 2 * 6
    again = command(*RUN, "--out", out)
    assert again.out == first.out
    assert "12 of 12 episodes were already there; policy code is not compared, use a different --out" in again.err
    assert (out / "episodes.jsonl").read_text(encoding="utf-8") == "".join(lines)
    line = command(*RUN, "--out", out, "--turns", "9").refusal()
    assert "max_turns" in line
    assert "another folder" in line
    (out / "episodes.jsonl").write_text(lines[0], encoding="utf-8")
    assert "1 of 12 episodes was already there" in command(*RUN, "--out", out, "--json").err


def test_options_reach_the_environment(command, tmp_path, model_folder):
    options = ["--turns", "7", "--max-consecutive-failures", "0", "--success-probability", "1", "--loop-length", "3"]
    options += ["--not-executed", "0.4", "--failed", "0.6", "--history", "0.8", "--search-detail", "full"]
    options += ["--payload", "verbose", "--prompt-style", "compact"]
    options += ["--salt", "mine", "--parameters", "ignore", "--list-tools", "--embedding-model", model_folder]
    assert command(*RUN, "--out", tmp_path / "a", *options).code == 0
    manifest = json.loads((tmp_path / "a" / "manifest.json").read_text(encoding="utf-8"))
    environment = manifest["arguments"]["environment"]
    expected = {
        "max_turns": 7,
        "max_consecutive_failures": 0,
        "base": 1.0,
        "not_executed": 0.4,
        "failed": 0.6,
        "history": 0.8,
        "search_detail": "full",
        "payload": "verbose",
        "prompt_style": "compact",
        "loop_length": 3,
        "salt": "mine",
        "parameters": "ignore",
        "tools": "listed",
        "embedding_model": model_folder,
    }
    assert {name: environment[name] for name in expected} == expected


def test_split_takes_tasks_of_that_part_only():
    library = default_library()
    drawn = chosen_tasks("8", "validation", library)
    assert len(drawn) == 8
    assert {split_of(task.required_tools) for task in drawn} == {"validation"}
    whole = chosen_tasks("benchmark-v1", "validation", library)
    assert {split_of(task.required_tools) for task in whole} == {"validation"}
    parts = [chosen_tasks("benchmark-v1", split, library) for split in SPLITS]
    assert sum(map(len, parts)) == 5040
    assert chosen_tasks("8", None, library) == list(benchmark_tasks()[:8])


def test_ctrl_c_says_what_is_kept_and_the_same_command_goes_on(command, tmp_path, monkeypatch):
    whole = runner.play_anywhere

    def interrupted(*arguments):
        yield from islice(whole(*arguments), 5)
        raise KeyboardInterrupt

    out = tmp_path / "results"
    with monkeypatch.context() as patch:
        patch.setattr(runner, "play_anywhere", interrupted)
        stopped = command(*RUN, "--out", out)
    assert stopped.code == 130
    assert stopped.out == ""
    assert stopped.err == "interrupted: 5 of 12 episodes kept; the same command resumes it\n"
    assert command("report", out).out.lstrip().startswith("not finished: 5 of 12 episodes")
    assert "5 of 12 episodes were already there" in command(*RUN, "--out", out).err
    assert "not finished" not in command("report", out).out


def test_a_split_that_holds_none_of_the_tasks_is_refused(command, tmp_path):
    tasks = [task for task in benchmark_tasks() if split_of(task.required_tools) == "train"][:2]
    for count, words in ((2, "none of the 2 tasks is in split 'test'"), (1, "the only task is not in split 'test'")):
        path = tmp_path / f"{count}.jsonl"
        path.write_text("".join(json.dumps(task.to_mapping()) + "\n" for task in tasks[:count]), encoding="utf-8")
        arguments = ["evaluate", "--policy", "random", "--tasks", path, "--split", "test", "--out", tmp_path / "a"]
        assert words in command(*arguments).refusal()


POLICIES = """
class Forgetful:
    def reset(self, observation, info):
        pass

    def act(self, observation, info):
        "<finish/>"


class Broken(Forgetful):
    def act(self, observation, info):
        return self.choose({})

    def choose(self, known):
        return known["tool"]


class Refused(Forgetful):
    def act(self, observation, info):
        return None if info["turn"] else "<tool_call>no_such_tool</tool_call>"
"""


@pytest.fixture
def own_policies(tmp_path, monkeypatch):
    """A module of a user's own in the working directory."""
    (tmp_path / "own_policies_of_a_test.py").write_text(POLICIES, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield "own_policies_of_a_test"
    sys.modules.pop("own_policies_of_a_test", None)


def test_a_forgotten_return_is_asked_about(command, own_policies):
    arguments = ["--policy", "plan-follower", "--tasks", "3", "--out", "run"]
    outcome = command("evaluate", "--policy", f"{own_policies}:Forgetful", *arguments)
    assert outcome.code == 0
    assert (
        "returned None from act() at its first turn in all 3 episodes, which means stopping: was a return forgotten?"
    ) in outcome.err
    assert outcome.err.count("was a return forgotten?") == 1


def test_what_a_policy_raises_is_told_with_its_place(command, own_policies):
    outcome = command("evaluate", "--policy", f"{own_policies}:Broken", "--tasks", "1", "--out", "run")
    assert outcome.code == 0
    assert "broke in 1 episode, which is lost: KeyError: 'tool' (own_policies_of_a_test.py:" in outcome.err


def test_the_transcript_says_why_a_call_was_rejected(command, own_policies):
    command("evaluate", "--policy", f"{own_policies}:Refused", "--tasks", "1", "--out", "run")
    assert "rejected no_such_tool: unknown tool 'no_such_tool'" in command("runs", "episode", "run", "0").out


def test_where_no_episode_could_be_played_the_last_line_says_how_to_look(command, tmp_path):
    outcome = command(
        *("evaluate", "--policy", "direct", "--model", "openai:none", "--base-url", "http://127.0.0.1:9/v1"),
        *("--tasks", 1, "--retries", 0, "--out", tmp_path / "run"),
    )
    assert outcome.code == 3
    expected = "next: resilisim agents check --model openai:none --base-url http://127.0.0.1:9/v1"
    assert expected in outcome.err


def test_tasks_that_cannot_carry_a_flaw_are_left_out_and_counted(command, tmp_path):
    lists = [["file_operations_reader"], ["file_operations_reader", "data_processing_parser", "data_processing_filter"]]
    lines = [json.dumps({"required_tools": tools, "description": f"Do {len(tools)}."}) for tools in lists]
    (tmp_path / "tasks.jsonl").write_text("\n".join(lines) + "\n")
    run = ("evaluate", "--policy", "plan-follower", "--tasks", tmp_path / "tasks.jsonl")
    outcome = command(*run, "--out", tmp_path / "some", "--prompt", "optimal", "--prompt", "flawed:missing_step")
    assert outcome.code == 0
    assert "1 of 2 tasks cannot carry the flaw of prompt 'flawed:missing_step' and is left out" in outcome.err
    assert "2 episodes in " in outcome.err
