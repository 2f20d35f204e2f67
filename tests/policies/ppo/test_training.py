from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from networks import SMALL as SMALL_NETWORK
from networks import save_random

from resilisim.envs.workflow import spaces
from resilisim.envs.workflow.vector import WorkflowVectorEnv
from resilisim.errors import InvalidInputError, StoreError
from resilisim.policies.ppo import checkpoint, training
from resilisim.policies.ppo.adjustment import EPISODE_FIGURES, successful_tools
from resilisim.policies.ppo.between_rollouts import training_parts
from resilisim.policies.ppo.checkpoint import (
    PROGRESS_FILE,
    RESUME_FILE,
    load_checkpoint,
    read_resume_point,
    save_checkpoint,
)
from resilisim.policies.ppo.config import load_config
from resilisim.policies.ppo.network import READ, WorkflowActor
from resilisim.policies.ppo.training import choose_device, train, training_tasks
from resilisim.policies.ppo.validation import Validator
from resilisim.tasks.split import split_of
from resilisim.tool_library import ToolLibrary, default_library

SMALL = (
    "tasks=40",
    "num_envs=8",
    "rollout_steps=8",
    "batch_size=32",
    "epochs=2",
    "width=8",
    "heads=2",
    "layers=1",
    "validation_tasks=4",
    "validation_episodes=2",
    "evaluate_every=128",
    "checkpoint_every=128",
    "max_minutes=none",
    "max_steps=512",
    "num_threads=1",
    "device=cpu",
    "tensorboard=false",
)
EVERYTHING = ("imitation_updates=2",)  # with preset paper, which has the rest


def small(preset="quick", *settings):
    return load_config(preset, settings=[*SMALL, *settings])


def weights(folder):
    """The final network, whichever was the best."""
    point = read_resume_point(Path(folder) / RESUME_FILE)
    return {name: array for name, array in point.arrays.items() if name.startswith("policy/")}


def assert_same(left, right):
    assert left.keys() == right.keys()
    for name, array in left.items():
        assert array.dtype == right[name].dtype
        np.testing.assert_array_equal(array, right[name], err_msg=name)


def without_clock(folder):
    lines = (Path(folder) / PROGRESS_FILE).read_text(encoding="utf-8").splitlines()
    return [{key: value for key, value in json.loads(line).items() if key != "minutes"} for line in lines]


@pytest.fixture(scope="module")
def plain_run(tmp_path_factory):
    """A run with the plain reward: its folder, what it told, and its result."""
    folder = tmp_path_factory.mktemp("training") / "plain"
    told = []
    result = train(small(), folder, told.append)
    return folder, told, result


@pytest.fixture(scope="module")
def paper_run(tmp_path_factory):
    """A run with everything switched on."""
    folder = tmp_path_factory.mktemp("training") / "paper"
    told = []
    result = train(small("paper", *EVERYTHING), folder, told.append)
    assert [step.imitated for step in told[:3]] == [1, 2, 0]
    return folder, result


def test_a_run_leaves_a_policy_a_log_and_a_result(plain_run):
    folder, told, result = plain_run
    assert (result.steps, result.reason, result.was_finished) == (512, "512 steps are done", False)
    lines = without_clock(folder)
    assert [line["steps"] for line in lines] == [0, 128, 256, 384, 512]
    assert result.best.share == max(line["share"] for line in lines)
    assert all(line["share"] == line["success"] / line["optimum"] for line in lines)
    assert [step.steps for step in told if step.latest is not None][-1] == 512
    assert told[-1].seconds_left == 0.0
    loaded = load_checkpoint(folder)
    assert loaded.description.training["warm_start"] is None
    assert loaded.description.training["width"] == 8
    assert loaded.description.results["validation"]["share"] == result.best.share


def test_another_seed_gives_other_weights(tmp_path):
    first, other = (tmp_path / seed for seed in "01")
    for folder in (first, other):
        train(small("quick", f"seed={folder.name}", "max_steps=64", "evaluate_every=100000"), folder)
    assert any((array != weights(other)[name]).any() for name, array in weights(first).items())


def test_evaluating_more_or_less_often_changes_no_weight(plain_run, tmp_path):
    folder, _, _ = plain_run
    train(small("quick", "evaluate_every=100000", "checkpoint_every=64"), tmp_path / "rarely")
    assert_same(weights(folder), weights(tmp_path / "rarely"))


KILLED = """
import os, signal, sys
from resilisim.policies.ppo.config import load_config
from resilisim.policies.ppo.network import READ, WorkflowActor
from resilisim.policies.ppo.training import train

def report(progress):
    if progress.steps >= 320:  # between the points at 256 and 384
        os.kill(os.getpid(), signal.SIGKILL)

train(load_config("paper", settings=sys.argv[2:]), sys.argv[1], report)
"""


@pytest.mark.long
def test_a_run_that_was_killed_goes_on_as_if_nothing_had_happened(paper_run, tmp_path, python):
    folder, result = paper_run
    out = tmp_path / "killed"
    done = subprocess.run([*python, "-c", KILLED, str(out), *SMALL, *EVERYTHING], timeout=300)
    assert done.returncode == -signal.SIGKILL
    assert read_resume_point(out / RESUME_FILE).facts["run"]["steps"] == 256
    resumed = train(small("paper", *EVERYTHING), out)
    assert resumed.steps == result.steps
    assert_same(weights(folder), weights(out))
    whole, parts = (read_resume_point(path / RESUME_FILE) for path in (folder, out))
    assert_same(dict(whole.arrays), dict(parts.arrays))
    assert whole.facts["parts"] == parts.facts["parts"]
    assert without_clock(folder) == without_clock(out)
    assert (folder / "policy.safetensors").read_bytes() == (out / "policy.safetensors").read_bytes()
    assert resumed.minutes > 0


def test_imitation_that_was_stopped_goes_on_as_if_nothing_had_happened(paper_run, tmp_path, monkeypatch):
    folder, _ = paper_run
    monkeypatch.setattr(training, "IMITATION_CHECKPOINT_EVERY", 1)

    class Stopped(Exception):
        pass

    def stop(progress):
        if progress.imitated == 2:
            raise Stopped

    with pytest.raises(Stopped):
        train(small("paper", *EVERYTHING), tmp_path, stop)
    assert read_resume_point(tmp_path / RESUME_FILE).facts["imitation"]["num_batches"] == 1
    train(small("paper", *EVERYTHING), tmp_path)
    assert_same(weights(folder), weights(tmp_path))
    assert without_clock(folder) == without_clock(tmp_path)


@pytest.mark.long
def test_a_run_with_a_curriculum_that_was_stopped_goes_on_at_its_stage(tmp_path, monkeypatch):
    """Stages change quickly here: a rate of two episodes decides."""
    monkeypatch.setattr(training_parts, "BY_OPTIMUM", replace(training_parts.BY_OPTIMUM, min_episodes=2))
    config = small("quick", "curriculum=optimum", "max_steps=384", "evaluate_every=64")
    train(config, tmp_path / "whole")
    stages = [line["parts"]["stage"] for line in without_clock(tmp_path / "whole")]
    assert len(set(stages)) > 1

    def stop(progress):
        if progress.steps == 256:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(config, tmp_path / "stopped", stop)
    train(config, tmp_path / "stopped")
    assert_same(weights(tmp_path / "whole"), weights(tmp_path / "stopped"))
    assert without_clock(tmp_path / "whole") == without_clock(tmp_path / "stopped")


def test_killed_before_the_first_point_begins_anew_and_comes_to_the_same_to_the_bit(plain_run, tmp_path):
    folder, _, _ = plain_run
    out = tmp_path / "early"

    class Killed(Exception):
        pass

    def report(progress):
        if progress.steps == 64:
            raise Killed

    with pytest.raises(Killed):
        train(small(), out, report)
    assert len(without_clock(out)) == 1
    train(small(), out)
    assert_same(weights(folder), weights(out))
    assert without_clock(folder) == without_clock(out)


def test_a_finished_run_says_so_and_another_configuration_is_refused(plain_run):
    folder, _, result = plain_run
    before, threads = (folder / RESUME_FILE).read_bytes(), torch.get_num_threads()
    again = train(small(), folder)
    assert again.was_finished
    assert (again.steps, again.best, again.reason) == (result.steps, result.best, result.reason)
    assert (folder / RESUME_FILE).read_bytes() == before
    assert torch.get_num_threads() == threads
    with pytest.raises(StoreError, match=r"training\.learning_rate is .* use another folder"):
        train(small("quick", "learning_rate=0.5"), folder)


def test_a_full_disk_is_told_in_one_line_and_the_last_point_stays(tmp_path, monkeypatch):
    out = tmp_path / "run"
    write = checkpoint.write_file_atomically
    calls = []

    def full(path, data):
        calls.append(path.name)
        if calls.count(RESUME_FILE) > 2:
            raise StoreError(f"cannot write {path}: the disk is full")
        write(path, data)

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "write_file_atomically", full)
        with pytest.raises(StoreError, match="the disk is full"):
            train(small(), out)
    assert read_resume_point(out / RESUME_FILE).facts["run"]["steps"] == 128
    assert train(small(), out).steps == 512
    error = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    monkeypatch.setattr(training.Logger, "dump", Mock(side_effect=error))
    with pytest.raises(StoreError, match=r"cannot write .*other: the disk is full"):
        train(small(), tmp_path / "other")


@pytest.mark.parametrize("damage", ["empty", "cut", "other"])
def test_a_broken_point_is_refused(plain_run, tmp_path, damage):
    folder, _, _ = plain_run
    data = (folder / RESUME_FILE).read_bytes()
    path = tmp_path / RESUME_FILE
    other = (folder / "policy.safetensors").read_bytes()
    path.write_bytes({"empty": b"", "cut": data[: len(data) // 2], "other": other}[damage])
    with pytest.raises(StoreError, match=RESUME_FILE) as refused:
        read_resume_point(path)
    assert "\n" not in str(refused.value)


def test_training_ends_early_when_nothing_gets_better_or_the_target_is_reached(tmp_path, monkeypatch):
    rates = iter([0.2, 0.3, 0.3, 0.1, 0.9])
    monkeypatch.setattr(Validator, "success", lambda *_: next(rates))
    result = train(small("quick", "patience=2"), tmp_path / "patience")
    assert result.reason == "2 evaluations in a row were no better"
    assert result.last.steps == 384
    assert (result.best.success, result.best.steps) == (0.3, 256)  # of equals the one that has trained longer
    monkeypatch.setattr(Validator, "success", lambda self, *_: self.optimum)
    reached = train(small("quick", "target_share=0.99"), tmp_path / "target")
    assert (reached.steps, reached.reason) == (0, "0.99 of the optimum is reached")
    result = train(small("quick", "max_minutes=0.0001", "max_steps=none"), tmp_path / "time")
    assert (result.steps, result.reason) == (0, "0.0001 minutes are over")


def test_everything_switched_on_is_logged(paper_run):
    folder, _ = paper_run
    last = without_clock(folder)[-1]
    assert set(last["training"]) == set(EPISODE_FIGURES)
    tools = np.zeros((5, spaces.NUM_TOOL_COLUMNS), dtype=np.uint8)
    tools[[3, 0, 4], spaces.TOOL_SUCCESS_ORDER] = [1, 2, 3]
    assert successful_tools(tools) == [3, 0, 4], "by first success"
    names = {"running_success", "phase", "stage", "patterns", "learning_rate", "entropy_coefficient", "converged"}
    assert names <= set(last["parts"])
    about = load_checkpoint(folder).description.training
    assert about["warm_start"]["updates"] == 2


def test_tensorboard_logs_are_written(tmp_path):
    train(small("quick", "tensorboard=true", "max_steps=128"), tmp_path / "run")
    assert list((tmp_path / "run" / "tensorboard").glob("events.out.tfevents*"))


def test_tasks_come_from_their_splits():
    config = small()
    tasks, held_out = training_tasks(config, default_library())
    assert tasks
    assert {split_of(task.required_tools) for task in tasks} == {"train"}
    assert len(held_out) == 4
    assert {split_of(task.required_tools) for task in held_out} == {"validation"}


def test_cuda_is_refused_where_there_is_none(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert choose_device("auto").type == "cpu"
    with pytest.raises(InvalidInputError, match="device 'cuda': torch finds no CUDA device here"):
        choose_device("cuda")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert choose_device("auto").type == "cuda"


def test_a_training_begins_with_the_weights_of_its_start(tmp_path, plain_run):
    folder, _, _ = plain_run
    begun = train(small("quick", f"start={folder}", "max_steps=64", "evaluate_every=64"), tmp_path / "run")
    first, last = (json.loads(line) for line in (tmp_path / "run" / PROGRESS_FILE).read_text().splitlines())
    same = load_checkpoint(folder).description.results["validation"]
    assert (first["steps"], first["success"], first["share"]) == (0, same["success"], same["share"])
    assert last["steps"] == begun.steps == 64
    known, moved = load_checkpoint(folder).network.state_dict(), weights(tmp_path / "run")
    changes = [
        np.abs(moved[f"policy/features_extractor.network.{name}"] - value.numpy()).max()
        for name, value in known.items()
    ]
    assert 0 < max(changes) < 0.01  # two times four gradient steps at a learning rate of 0.001


def test_a_run_is_not_resumed_from_another_start(tmp_path, plain_run):
    start = tmp_path / "start"
    shutil.copytree(plain_run[0], start)
    config = small("quick", f"start={start}", "max_steps=64")
    train(config, tmp_path / "run")
    loaded = load_checkpoint(start)
    with torch.no_grad():
        loaded.network.value_head.bias.add_(1.0)
    save_checkpoint(start, loaded.network, loaded.description)
    with pytest.raises(StoreError, match="start"):
        train(config, tmp_path / "run")


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("width=16", r"^width is 16: expected 8, as the start '.*' has it$"),
        ("layers=2", r"^layers is 2: expected 1, as the start '.*' has it$"),
        ("heads=1", r"^heads is 1: expected 2, as the start '.*' has it$"),
        ("attention_tokens=none", r"^attention_tokens is None: expected 12, as the start '.*' has it$"),
        ("tool_embeddings=true", r"^tool_embeddings is True: expected False, as the start '.*' has it$"),
        ("network=mlp", r"^network is 'mlp': expected 'transformer', as the start '.*' has it$"),
        ("start=missing", r"^no checkpoint 'missing': "),
    ],
)
def test_a_start_of_another_architecture_is_refused(tmp_path, plain_run, setting, message):
    with pytest.raises(InvalidInputError, match=message):
        train(small("quick", f"start={plain_run[0]}", setting), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_start_with_a_vector_for_every_tool_serves_its_library_only(tmp_path):
    other = ToolLibrary(tool for tool in default_library() if not tool.dependencies)
    start = save_random(tmp_path / "start", library=other, options={**SMALL_NETWORK, "tool_embeddings": True})
    settings = [f"start={start}", "tool_embeddings=true", "attention_tokens=6"]
    with pytest.raises(InvalidInputError, match="was trained for the tool library"):
        train(small("quick", *settings), tmp_path / "run")


@pytest.mark.parametrize("law", ["rate-limits", "benchmark"])
def test_what_a_start_does_not_read_of_laws_has_no_weight_and_what_it_reads_stays(tmp_path, law):
    reads = law == "benchmark"
    start = save_random(tmp_path / "start", options={**SMALL_NETWORK, "law_parts": reads})
    settings = [f"start={start}", f"law={law}", "attention_tokens=6", "max_steps=64", "evaluate_every=1000000"]
    run = train(small("quick", *settings, "learning_rate=1e-9"), tmp_path / "run")
    loaded, own = load_checkpoint(start), load_checkpoint(run.directory)
    assert own.description.network.arguments["law_parts"] is True
    envs = WorkflowVectorEnv(16, law="rate-limits", tasks="test", max_turns=8)
    seen, _ = envs.reset(seed=0)
    for _ in range(6):
        mask = seen["action_mask"]
        shown = {name: torch.tensor(seen[name]) for name in READ}
        with torch.no_grad():
            torch.testing.assert_close(own.network(**shown), loaded.network(**shown), atol=1e-4, rtol=0)
        chosen = WorkflowActor(own.network).act(seen, mask)
        np.testing.assert_array_equal(chosen, WorkflowActor(loaded.network).act(seen, mask))
        seen = envs.step(chosen)[0]
