"""`evaluate`: the same episodes whatever the workers, the interruptions, the parts and the folder."""

import json
import os
import re
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

from resilisim.errors import CheckFailed, ExactLimitError, InfrastructureError, InvalidInputError
from resilisim.evaluation import ModelSettings, RunLimits, evaluate, read_results
from resilisim.evaluation.run.plan import PlannedEpisodes
from resilisim.evaluation.run.store import RunStore, read_failures, read_manifest, read_records
from resilisim.reporting import write_report
from resilisim.tasks import benchmark_tasks
from resilisim.tool_library import ToolLibrary, default_library
from tests.evaluation.toy_policies import (
    Broken,
    Exiting,
    Halves,
    Quitter,
    Reading,
    Searching,
    Unreachable,
    Unsound,
    toy_tasks,
)
from tests.killing import kill_when, num_lines, wait_until_gone

FIRST_ID = benchmark_tasks()[0].instance_id
ROOT = Path(__file__).parents[2]
ARGUMENTS = {
    "policies": ["tests.evaluation.toy_policies:Noting", "tests.evaluation.toy_policies:Quitter"],
    "prompts": ("baseline", "optimal"),
    "seeds": 10,
}
# A run that comes no further than to its twentieth episode, so that nobody has to be quick to kill it.
KILLED = """
import sys, threading
from resilisim.evaluation import evaluate
from resilisim.evaluation.run.store import RunStore
from tests.evaluation.test_runner import ARGUMENTS, toy_tasks

append, written = RunStore.append_encoded, []

def append_until_killed(store, line, index, **more):
    append(store, line, index, **more)
    written.append(index)
    if len(written) == 20:
        threading.Event().wait()

RunStore.append_encoded = append_until_killed
evaluate(tasks=toy_tasks(), out=sys.argv[1], workers=int(sys.argv[2]), progress=False, **ARGUMENTS)
"""
BOTH = [f"tests.evaluation.toy_policies:{name}" for name in ("Reading", "Quitter")]


def sorted_lines(folder):
    """Return the lines of a run's episodes in the order of its plan."""
    lines = (folder / "episodes.jsonl").read_bytes().splitlines(keepends=True)
    return sorted(lines, key=lambda line: json.loads(line)["index"])


def indices(folder):
    return [record["index"] for record in read_records(folder)]


@pytest.fixture(scope="module")
def whole_run(tmp_path_factory):
    """The folder of the run that others kill, played in one go by one process."""
    folder = tmp_path_factory.mktemp("whole")
    evaluate(tasks=toy_tasks(), out=folder, **ARGUMENTS)
    return folder


def test_every_combination_is_played_once_in_the_order_of_the_plan(whole_run):
    assert indices(whole_run) == list(range(6 * 2 * 2 * 10))
    assert [(r["instance_id"], r["policy"], r["prompt_type"], r["seed"]) for r in read_records(whole_run)] == [
        (task.instance_id, policy, prompt, seed)
        for task in toy_tasks()
        for policy in ("noting", "quitter")
        for prompt in ("baseline", "optimal")
        for seed in range(10)
    ]


@pytest.mark.long
def test_several_processes_write_the_same_records_and_a_finished_run_plays_nothing(whole_run, tmp_path):
    result = evaluate(tasks=toy_tasks(), out=tmp_path, workers=2, **ARGUMENTS)
    assert sorted_lines(tmp_path) == sorted_lines(whole_run)
    assert (result.num_episodes, result.call.num_already_there) == (240, 0)
    for row, other in zip(result.rows, read_results(whole_run).rows, strict=True):
        assert (row.policy, row.prompt_type, row.success) == (other.policy, other.prompt_type, other.success)
        assert row.luck_adjusted.value == pytest.approx(other.luck_adjusted.value, abs=1e-12)
    before = (tmp_path / "episodes.jsonl").read_bytes()
    assert evaluate(tasks=toy_tasks(), out=tmp_path, **ARGUMENTS).call.num_already_there == 240
    assert (tmp_path / "episodes.jsonl").read_bytes() == before


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.long)])
def test_a_killed_run_goes_on_and_ends_as_if_nothing_had_happened(whole_run, tmp_path, workers, python):
    folder, pids = tmp_path / "run", tmp_path / "pids"
    pids.mkdir()
    command = [*python, "-c", KILLED, str(folder), str(workers)]
    environment = {**os.environ, "RESILISIM_TEST_PIDS": str(pids)}
    process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE)
    episodes = folder / "episodes.jsonl"
    kill_when(process, lambda: num_lines(episodes) >= 20)
    finished = episodes.read_bytes()
    assert 20 <= finished.count(b"\n") < 240
    wait_until_gone(pids)
    with episodes.open("ab") as stream:
        stream.write(b'{"schema":"resilisim-episode-1","ind')  # as if the kill had hit the middle of a write
    evaluate(tasks=toy_tasks(), out=folder, workers=workers, **ARGUMENTS)
    kept = finished[: finished.rindex(b"\n") + 1]
    assert episodes.read_bytes().startswith(kept)
    assert sorted_lines(folder) == sorted_lines(whole_run)


@pytest.mark.parametrize("count", [1, 2, 4, 6])
def test_shards_are_whole_tasks_and_together_the_run(count):
    plans = [
        PlannedEpisodes(toy_tasks(), 2, "abc", (0, 1), slice(number - 1, None, count)) for number in range(1, count + 1)
    ]
    parts = [list(plan.pending(lambda index: False)) for plan in plans]
    assert sorted(index for part in parts for index in part) == list(range(len(plans[0])))
    assert [plan.part_size for plan in plans] == [len(part) for part in parts]
    tasks = [{plans[0][index].task.instance_id for index in part} for part in parts]
    assert sum(len(part) for part in tasks) == 6


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.long)])
def test_shards_and_limits_play_a_part_and_the_same_call_without_them_the_rest(tmp_path, workers):
    arguments = (BOTH, toy_tasks(), "optimal", 3)
    shard = evaluate(*arguments, out=tmp_path, shard="2/4", workers=workers)
    assert (shard.num_episodes, shard.num_planned, shard.call.stopped_by) == (2 * 2 * 3, 36, None)
    limited = evaluate(*arguments, out=tmp_path, limits=RunLimits(episodes=15), workers=workers)
    assert (limited.num_episodes, limited.call.stopped_by) == (15, "the limit of 15 episodes")
    again = evaluate(*arguments, out=tmp_path, limits=RunLimits(episodes=15), workers=workers)
    assert (again.num_episodes, again.call.stopped_by) == (15, "the limit of 15 episodes")
    whole = evaluate(*arguments, out=tmp_path, limits=RunLimits(episodes=36), workers=workers)
    assert (whole.num_episodes, whole.call.stopped_by) == (36, None)
    assert sorted(indices(tmp_path)) == list(range(36))
    assert whole.row("reading", "optimal").success == evaluate(*arguments).row("reading", "optimal").success


def test_without_a_folder_the_records_live_as_long_as_the_result():
    result = evaluate(Quitter, toy_tasks(2), seeds=[4, 9])
    folder = result.directory
    assert [record["seed"] for record in result.records()] == [4, 9, 4, 9]
    assert (result.row("quitter").success.value, result.row("quitter").biggest_loss) == (0.0, "gave_up_early")
    assert result.call.silent_policies == ("quitter",)
    assert repr(result) == f"EvaluationResult({str(folder)!r}, 4 of 4 episodes, policies: quitter)"
    assert result == read_results(folder) != evaluate(Quitter, toy_tasks(2), seeds=[4, 9])
    with pytest.raises(InvalidInputError, match="unknown result 'quiter under baseline': did you mean 'quitter under"):
        result.row("quiter")
    assert write_report(result.directory).exists()
    del result
    assert not folder.exists()
    seeds = [record["seed"] for record in evaluate(Quitter, toy_tasks(1), seeds=2).records()]
    assert seeds == [0, 1]  # although nobody kept the result


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.long)])
@pytest.mark.parametrize(
    ("policy", "words"),
    [
        (Broken, r"KeyError: 'no such thing' \(toy_policies.py:\d+\)"),
        (Exiting, r"SystemExit: good bye \(toy_policies.py:\d+\)"),
    ],
)
def test_what_a_policy_raises_has_lost_it_the_episode_and_the_others_are_played(tmp_path, workers, policy, words):
    result = evaluate(policy, toy_tasks(), "optimal", 2, out=tmp_path, workers=workers)
    assert result.num_episodes == result.num_planned
    lost = [record for record in result.records() if record["ended_by"] == "agent_error"]
    assert 4 in [record["index"] for record in lost]
    assert all(record["outcome"] == 0 and re.fullmatch(words, record["steps"][-1]["error"]) for record in lost)
    (told,) = result.call.agent_errors
    assert (told.policy, told.num_episodes) == (policy.name, len(lost))


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.long)])
def test_what_may_be_an_endpoint_is_no_score_and_many_in_a_row_stop_the_run(tmp_path, workers):
    with pytest.raises(InfrastructureError, match=r"2 episodes in a row broke, .* the endpoint does not answer"):
        evaluate(
            Unreachable,
            toy_tasks(),
            "optimal",
            2,
            out=tmp_path,
            workers=workers,
            model=ModelSettings(give_up_after=2),
        )
    assert indices(tmp_path) == []
    assert {failure["fault"] for failure in read_failures(tmp_path)} == {"unclear"}


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.long)])
def test_halves_of_characters_do_no_harm(tmp_path, workers):
    result = evaluate(Halves, toy_tasks(2), out=tmp_path, workers=workers, salt="\ud800")
    for name in ("manifest.json", "episodes.jsonl"):
        assert "\\ud800" in (tmp_path / name).read_text(encoding="utf-8")
    assert next(result.records())["steps"][0]["message"] == "\ud800 half <tool_info>\udfff</tool_info>"
    page = write_report(result.directory).read_bytes()
    assert "half" in page.decode("utf-8")
    assert read_results(tmp_path).rows == result.rows
    assert write_report(tmp_path).read_bytes() == page
    evaluate(Halves, toy_tasks(2), out=tmp_path, salt="\ud800")  # is the same run


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"policies": []}, "no policy"),
        ({"policies": None}, "policies is None: expected a policy or a list"),
        ({"policies": ["plan-folower"]}, "plan-follower"),
        ({"policies": ["random", None]}, "policy None: expected a name"),
        ({"policies": Reading()}, "expected a name, module:attribute, or a class"),
        ({"policies": [Reading()]}, "expected a name, module:attribute, or a class"),
        ({"policies": [dict]}, "without reset"),
        ({"policies": [Quitter, Quitter]}, "two policies are named 'quitter'"),
        ({"policies": type("Bad", (Quitter,), {"name": "n\ud800"})}, r"policy name 'n\\ud800' holds"),
        ({"policies": type("Bad", (Quitter,), {"name": "two\nlines"})}, r"policy name 'two\\nlines' holds"),
        ({"policies": "react"}, "'react' needs a language model: name one, such as --model openai"),
        ({"policies": "react", "model": ["openai:a", "openai:a"]}, "model 'openai:a' is given twice"),
        ({"tasks": []}, "no task"),
        ({"tasks": None}, "tasks is None: expected a number, a name"),
        ({"tasks": 2.5}, "tasks is 2.5: expected a number, a name"),
        ({"tasks": [3]}, r"tasks\[0\] is 3: expected an id, a mapping or a Task"),
        ({"tasks": [*toy_tasks(1), *toy_tasks(1)]}, "given twice"),
        ({"tasks": [FIRST_ID[:-1] + "x"]}, FIRST_ID),
        ({"tasks": [{"required_tools": ["file_operations_read"]}]}, r"tasks\[0\].*file_operations_reader"),
        ({"tasks": [{"required_tools": []}]}, r"tasks\[0\].*a non-empty array"),
        ({"tasks": [replace(toy_tasks(1)[0], required_tools=("reader_x",))]}, r"tool 'reader_x' in tasks\[0\], task_"),
        ({"prompts": []}, "no prompt type"),
        ({"prompts": None}, "prompts is None: expected a prompt type or a list"),
        ({"prompts": "basline"}, "baseline"),
        ({"prompts": ["baseline", "baseline"]}, "given twice"),
        ({"prompts": ["baseline", 3]}, "unknown prompt type 3"),
        ({"seeds": 0}, "expected at least 1 and at most 1,000,000"),
        ({"seeds": None}, "seeds is None"),
        ({"seeds": True}, "seeds is True"),
        ({"seeds": "3"}, "seeds is '3': expected the number of seeds or a list"),
        ({"seeds": 2.0}, "seeds is 2.0: expected"),
        ({"seeds": [1, 1]}, "each once"),
        ({"seeds": [-1]}, "expected at least 0 and at most 9"),
        ({"seeds": [0, 1.0]}, "seed is 1.0: expected a whole number"),
        ({"seeds": np.arange(2.0)}, "expected a whole number"),
        ({"shard": "0/3"}, "expected a number from 1 to 3"),
        ({"shard": "4/3"}, "expected a number from 1 to 3"),
        ({"shard": "0/0"}, "expected a number from 1 to 1"),
        ({"shard": "1"}, "expected i/n, such as '1/4'"),
        ({"shard": "a/b"}, "expected i/n"),
        ({"shard": 3}, "expected i/n"),
        ({"shard": "3/9"}, "expected at most 2 parts"),
        ({"workers": 0}, "workers is 0"),
        ({"workers": 1.5}, "workers is 1.5: expected a whole number"),
        ({"max_turns": 5.0}, "max_turns is 5.0: expected a whole number"),
        ({"planner": "exat"}, "exact"),
        ({"model": 5}, "model is 5: expected a text"),
        ({"embedding_model": "no such model"}, "embedding model 'no such model' does not exist"),
        ({"library": "lib.json"}, "library is 'lib.json': expected a ToolLibrary"),
        ({"ray": "here"}, "address 'here' of a Ray cluster"),
        ({"record_texts": "failure"}, "did you mean 'failures'"),
    ],
)
def test_unusable_arguments_are_named_before_anything_is_written(tmp_path, arguments, expected):
    out = tmp_path / "run"
    with pytest.raises(InvalidInputError, match=expected) as refusal:
        evaluate(**{"policies": [Quitter], "tasks": toy_tasks(2), "out": out, **arguments})
    assert "\n" not in str(refusal.value)
    assert not out.exists()
    with pytest.raises(InvalidInputError, match="out is 5: expected a folder"):
        evaluate(Quitter, toy_tasks(1), out=5)


@pytest.mark.parametrize(
    "limits",
    [{"episodes": 0}, {"tokens": 1.5}, {"cost": float("nan")}, {"cost": 0.0}, {"seconds": -1.0}, {"seconds": 1e10}],
)
def test_a_limit_that_is_none_is_refused(limits):
    with pytest.raises(InvalidInputError, match=f"limit of {next(iter(limits))} is .*: expected a"):
        RunLimits(**limits)


def test_tasks_may_be_ids_mappings_and_tasks_and_numbers_of_numpy_are_numbers(tmp_path):
    mapping = {"required_tools": ["file_operations_reader"], "instance_id": "mine"}
    mixed = ["task_c64444cae27fab46", mapping, toy_tasks(1)[0]]
    whole = {"max_turns": np.int64(4), "workers": np.int8(1), "base": np.float32(0.5), "history": 1}
    result = evaluate(Quitter, mixed, seeds=np.array([3, 5]), out=tmp_path, **whole)
    records = list(read_records(tmp_path))
    ids = ["task_c64444cae27fab46", "mine", toy_tasks(1)[0].instance_id]
    assert [(r["instance_id"], r["seed"]) for r in records] == [(name, seed) for name in ids for seed in (3, 5)]
    assert records[0]["rules"]["max_turns"] == 4
    assert records[0]["law"] == {"base": 0.5, "not_executed": 0.5, "failed": 0.7, "history": 1.0}
    assert result.manifest["arguments"]["seeds"] == [3, 5]
    for seeds in (np.int64(2), range(2), (seed for seed in range(2))):
        assert evaluate(Quitter, mapping, seeds=seeds).num_episodes == 2
    assert evaluate(Quitter, toy_tasks(1)[0]).num_episodes == evaluate(Quitter, np.int64(1)).num_episodes == 1


def test_a_task_too_large_to_be_solved_is_named_before_anything_is_written(tmp_path):
    large = replace(toy_tasks(1)[0], required_tools=default_library().names, instance_id="large")
    with pytest.raises(ExactLimitError, match=r"^task large: the exact optimum of 30 required tools[^\n]*$"):
        evaluate(Quitter, large, out=tmp_path / "run", max_turns=9000)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("law", "number", "max_turns", "reason"),
    [
        ({"rate_limit": {"calls": 1, "window": 2, "per": "tool"}}, 5, 9000, "with 9000 turns is too large"),
        ({"corrupt": {"probability": 0.2, "shows": "validators"}}, 20, 30, "look at 262,155 results of one call"),
    ],
    ids=["turns", "results"],
)
def test_what_parts_make_too_large_is_named_before_anything_is_written(law, number, max_turns, reason, tmp_path):
    large = replace(toy_tasks(1)[0], required_tools=default_library().names[:number], instance_id="large")
    with pytest.raises(ExactLimitError, match=rf"^task large: the exact optimum of {number} [^\n]*{reason}[^\n]*$"):
        evaluate(Quitter, large, out=tmp_path / "run", max_turns=max_turns, law=law)
    assert not (tmp_path / "run").exists()


class FakeRetriever:
    """Remembers its model, and every query that it is asked."""

    asked: ClassVar[list[tuple[str | None, str]]] = []

    def __init__(self, library, model):
        self.model = model

    def embed(self, texts):
        pass

    def search_many(self, queries, k):
        self.asked += [(self.model, query) for query in queries]
        return [[] for _ in queries]


def test_the_embedding_model_answers_the_searches_and_stands_in_the_manifest(tmp_path, monkeypatch):
    monkeypatch.setattr("resilisim.tool_library.retrieval.ToolRetriever", FakeRetriever)
    result = evaluate(Searching, toy_tasks(1), embedding_model="some/model", out=tmp_path)
    # The agent's search, and the clause of the task that its ceiling hangs on.
    assert FakeRetriever.asked == [("some/model", "read a file"), ("some/model", "Toy number 0")]
    assert read_manifest(tmp_path)["arguments"]["environment"]["embedding_model"] == "some/model"
    assert next(result.records())["steps"][0]["kind"] == "search"


def test_a_policy_that_cannot_travel_needs_one_worker():
    class Local(Quitter):
        pass

    with pytest.raises(InvalidInputError, match="use one worker"):
        evaluate(Local, toy_tasks(2), workers=2)
    assert evaluate(Local, toy_tasks(2)).num_episodes == 2


def test_another_library_reaches_the_workers(tmp_path):
    content = json.loads(default_library().to_json())
    for tool in content["tools"]:
        tool["success_probability"] = 1.0
    library = ToolLibrary.from_json(json.dumps(content))
    result = evaluate(Reading, toy_tasks(2), "optimal", 3, library=library, workers=2, out=tmp_path)
    assert result.rows[0].success.value == result.rows[0].optimum.value == 1.0  # nothing can fail
    assert result.manifest["arguments"]["library"] == library.content_hash != default_library().content_hash


def test_results_can_be_read_while_nothing_is_finished(tmp_path):
    RunStore(tmp_path, {"policies": []}, 5).close()
    result = read_results(tmp_path)
    assert (result.num_episodes, result.rows, result.to_mapping()["results"]) == (0, (), [])


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.long)])
def test_a_failed_check_of_ours_stops_the_run_and_keeps_the_rest(tmp_path, workers):
    with pytest.raises(CheckFailed, match="the identity does not hold") as raised:
        evaluate(Unsound, toy_tasks(), "optimal", 2, out=tmp_path, workers=workers)
    (note,) = raised.value.__notes__
    assert f"episode 4: policy unsound, prompt optimal, task {toy_tasks()[2].instance_id}, seed 0" in note
    if workers == 1:
        assert indices(tmp_path) == [0, 1, 2, 3]
