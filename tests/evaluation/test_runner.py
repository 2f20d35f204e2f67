"""`evaluate`: the same episodes whatever the workers, the interruptions and the folder."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from resilisim.errors import InfrastructureError, InvalidInputError, StoreError
from resilisim.evaluation import evaluate, read_results
from resilisim.evaluation.store import RunStore, read_records
from resilisim.evaluation.workers import _transportable
from resilisim.tool_library import ToolLibrary, default_library
from tests.evaluation.kill_target import ARGUMENTS
from tests.evaluation.toy_policies import Broken, Quitter, Reading, Unreachable, toy_tasks

ROOT = Path(__file__).parents[2]
TOYS = "tests.evaluation.toy_policies"


def sorted_lines(folder: Path) -> list[bytes]:
    """Return the lines of a run's episodes in the order of its plan."""
    lines = (folder / "episodes.jsonl").read_bytes().splitlines(keepends=True)
    return sorted(lines, key=lambda line: json.loads(line)["index"])


@pytest.fixture(scope="module")
def whole_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the kill target's run, played in one go by one process."""
    folder = tmp_path_factory.mktemp("whole")
    evaluate(tasks=toy_tasks(), out=folder, **ARGUMENTS)
    return folder


def test_every_combination_is_played_once_in_the_order_of_the_plan(whole_run: Path) -> None:
    records = list(read_records(whole_run))
    assert [record["index"] for record in records] == list(range(6 * 2 * 2 * 10))
    combinations = [(r["instance_id"], r["policy"], r["prompt_type"], r["seed"]) for r in records]
    assert combinations == [
        (task.instance_id, policy, prompt, seed)
        for task in toy_tasks()
        for policy in ("slow", "quitter")
        for prompt in ("baseline", "optimal")
        for seed in range(10)
    ]


def test_several_processes_write_the_same_records(whole_run: Path, tmp_path: Path) -> None:
    result = evaluate(tasks=toy_tasks(), out=tmp_path, workers=2, **ARGUMENTS)
    assert sorted_lines(tmp_path) == sorted_lines(whole_run)
    assert result.num_episodes == 240
    for row, other in zip(result.rows, read_results(whole_run).rows, strict=True):
        assert (row.policy, row.prompt_type) == (other.policy, other.prompt_type)
        assert row.success == other.success
        assert row.luck_adjusted.value == pytest.approx(other.luck_adjusted.value, abs=1e-12)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_killed_run_goes_on_and_ends_as_if_nothing_had_happened(
    whole_run: Path, tmp_path: Path, workers: int
) -> None:
    folder, pids = tmp_path / "run", tmp_path / "pids"
    pids.mkdir()
    command = [sys.executable, "-m", "tests.evaluation.kill_target", str(folder), str(workers)]
    process = subprocess.Popen(command, cwd=ROOT, env={**os.environ, "RESILISIM_TEST_PIDS": str(pids)})
    episodes = folder / "episodes.jsonl"
    while not episodes.exists() or episodes.read_bytes().count(b"\n") < 20:
        assert process.poll() is None, "the run ended before it could be killed"
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    finished = episodes.read_bytes()
    assert 20 <= finished.count(b"\n") < 240
    wait_until_gone(int(name) for name in os.listdir(pids))
    with episodes.open("ab") as stream:
        stream.write(b'{"schema":"resilisim-episode-1","ind')  # as if the kill had hit the middle of a write
    evaluate(tasks=toy_tasks(), out=folder, workers=workers, **ARGUMENTS)
    kept = finished[: finished.rindex(b"\n") + 1]
    assert episodes.read_bytes().startswith(kept)
    assert sorted_lines(folder) == sorted_lines(whole_run)


def wait_until_gone(pids: Any) -> None:
    """Workers whose parent was killed must end by themselves."""
    deadline = time.monotonic() + 20
    for pid in pids:
        while Path(f"/proc/{pid}").exists() and Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z":
            assert time.monotonic() < deadline, f"worker {pid} outlived its parent"
            time.sleep(0.05)


def test_a_finished_run_plays_nothing_again(whole_run: Path) -> None:
    before = (whole_run / "episodes.jsonl").read_bytes()
    result = evaluate(tasks=toy_tasks(), out=whole_run, workers=2, **ARGUMENTS)
    assert result.num_episodes == 240
    assert (whole_run / "episodes.jsonl").read_bytes() == before


@pytest.mark.parametrize(
    ("changes", "difference"),
    [
        ({"seeds": 11}, "num_episodes is 240 there and 264 here"),
        ({"base": 0.7}, r"environment\.base is 0\.8 there and 0\.7 here"),
        ({"salt": "mine"}, r"environment\.salt"),
        ({"policies": [f"{TOYS}:Slow", f"{TOYS}:Reading"]}, "policies is"),
    ],
)
def test_another_command_on_the_same_folder_is_refused(
    whole_run: Path, changes: dict[str, Any], difference: str
) -> None:
    before = (whole_run / "episodes.jsonl").read_bytes()
    with pytest.raises(StoreError, match=difference):
        evaluate(**{"tasks": toy_tasks(), "out": whole_run, **ARGUMENTS, **changes})
    assert (whole_run / "episodes.jsonl").read_bytes() == before


def test_without_a_folder_the_records_live_as_long_as_the_result() -> None:
    result = evaluate(Quitter, toy_tasks(2), seeds=[4, 9])
    folder = result.directory
    assert [record["seed"] for record in result.records()] == [4, 9, 4, 9]
    assert result.row("quitter").success.value == 0.0
    assert result.row("quitter").biggest_loss == "gave_up_early"
    assert result.write_report().exists()
    del result
    assert not folder.exists()


@pytest.mark.parametrize("workers", [1, 2])
def test_a_policy_that_raises_is_told_with_its_episode_and_the_rest_is_kept(tmp_path: Path, workers: int) -> None:
    with pytest.raises(KeyError, match="no such thing") as failure:
        evaluate(Broken, toy_tasks(), "optimal", 2, out=tmp_path, workers=workers)
    note = "".join(failure.value.__notes__)
    assert "episode 4: policy broken, prompt optimal" in note
    assert toy_tasks()[2].instance_id in note
    if workers == 1:
        assert [record["index"] for record in read_records(tmp_path)] == [0, 1, 2, 3]


@pytest.mark.parametrize("workers", [1, 2])
def test_what_is_refused_is_one_line_that_names_the_episode(workers: int) -> None:
    with pytest.raises(InfrastructureError, match=r"does not answer \(episode \d+: policy unreachable") as failure:
        evaluate(Unreachable, toy_tasks(2), "optimal", workers=workers)
    assert "\n" not in str(failure.value)


def test_a_worker_that_dies_is_reported() -> None:
    with pytest.raises(InfrastructureError, match=r"worker process died \(exit code 3\)"):
        evaluate(f"{TOYS}:Dying", toy_tasks(2), "optimal", workers=2)


def test_a_script_without_a_guard_is_told_what_it_lacks(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "from resilisim.evaluation import evaluate\n"
        "from tests.evaluation.toy_policies import toy_tasks\n"
        f"evaluate('{TOYS}:Quitter', toy_tasks(2), workers=2)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    ended = subprocess.run([sys.executable, str(script)], env=environment, capture_output=True, text=True)
    assert ended.returncode == 1
    assert "needs the guard `if __name__" in ended.stderr.splitlines()[-1]


def test_an_error_that_cannot_travel_is_told_as_text() -> None:
    class Local(Exception):
        pass

    error = Local("what")
    error.add_note("where")
    told = _transportable(error)
    assert (type(told), str(told), told.__notes__) == (RuntimeError, "Local: what", ["where"])
    kept = _transportable(KeyError("x"))
    assert isinstance(kept, KeyError)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"policies": []}, "no policy"),
        ({"policies": ["plan-folower"]}, "plan-follower"),
        ({"policies": [Reading()]}, "expected a name, module:attribute, or a class"),
        ({"policies": [dict]}, "without reset"),
        ({"policies": [Quitter, Quitter]}, "two policies are named 'quitter'"),
        ({"tasks": []}, "no task"),
        ({"tasks": [*toy_tasks(1), *toy_tasks(1)]}, "given twice"),
        ({"prompts": []}, "no prompt type"),
        ({"prompts": "basline"}, "baseline"),
        ({"prompts": ["baseline", "baseline"]}, "given twice"),
        ({"seeds": 0}, "expected at least 1"),
        ({"seeds": [1, 1]}, "each once"),
        ({"seeds": [-1]}, "out of range"),
        ({"workers": 0}, "workers is 0"),
        ({"base": 2.0}, "law constant base"),
        ({"planner": "exat"}, "exact"),
        ({"protocol": "nativ"}, "native"),
    ],
)
def test_unusable_arguments_are_named_before_anything_is_written(
    tmp_path: Path, arguments: dict[str, Any], expected: str
) -> None:
    out = tmp_path / "run"
    with pytest.raises(InvalidInputError, match=expected):
        evaluate(**{"policies": [Quitter], "tasks": toy_tasks(2), "out": out, **arguments})
    assert not out.exists()


def test_a_policy_that_cannot_travel_needs_one_worker() -> None:
    class Local(Quitter):
        pass

    with pytest.raises(InvalidInputError, match="use one worker"):
        evaluate(Local, toy_tasks(2), workers=2)
    assert evaluate(Local, toy_tasks(2)).num_episodes == 2


def test_another_library_reaches_the_workers(tmp_path: Path) -> None:
    content = json.loads(default_library().to_json())
    for tool in content["tools"]:
        tool["success_probability"] = 1.0
    library = ToolLibrary.from_json(json.dumps(content))
    assert library.content_hash != default_library().content_hash
    result = evaluate(Reading, toy_tasks(2), "optimal", 3, library=library, workers=2, out=tmp_path)
    assert result.rows[0].success.value == result.rows[0].optimum.value == 1.0  # nothing can fail
    assert result.manifest["arguments"]["library"] == library.content_hash


def test_the_finished_set_is_one_bit_per_episode(tmp_path: Path) -> None:
    with RunStore(tmp_path, {}, 200_000) as store:
        assert len(store.finished) == 25_000


def test_results_can_be_read_while_nothing_is_finished(tmp_path: Path) -> None:
    RunStore(tmp_path, {"policies": []}, 5).close()
    result = read_results(tmp_path)
    assert (result.num_episodes, result.rows) == (0, ())
    assert result.to_mapping()["results"] == []
