"""Training on random libraries: the same to the bit, also when resumed in the middle of a library."""

from __future__ import annotations

import json

import numpy as np
import pytest

from resilisim.envs import random_libraries
from resilisim.policies.ppo import training
from resilisim.policies.ppo.checkpoint import (
    PROGRESS_FILE,
    RESUME_FILE,
    load_checkpoint,
    model_state,
    read_resume_point,
)
from resilisim.policies.ppo.config import load_config
from resilisim.policies.ppo.states import teaching
from resilisim.policies.ppo.training import train

SETTINGS = (
    "start=",
    "tasks=40",
    "library_updates=2",
    "num_envs=8",
    "rollout_steps=8",
    "batch_size=32",
    "epochs=1",
    "width=8",
    "heads=2",
    "layers=1",
    "validation_tasks=2",
    "validation_episodes=2",
    "evaluate_every=192",
    "checkpoint_every=64",
    "max_minutes=none",
    "max_steps=384",
    "imitation_updates=3",
    "imitation_evaluations=0",
    "device=cpu",
    "tensorboard=false",
)
CONFIG = load_config("generalist", settings=SETTINGS)


@pytest.fixture(autouse=True)
def drawn(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[int]]:
    """Small libraries; the lists are filled with the numbers of those that are drawn."""
    monkeypatch.setattr(random_libraries, "MOST_TOOLS", 16)
    monkeypatch.setattr(random_libraries, "NUM_PARTS", {0: 1})
    monkeypatch.setattr(random_libraries, "MAX_CLOSURE", 5)  # so that lists are drawn again, which is counted
    monkeypatch.setattr(teaching, "VALIDATION_LIBRARIES", 2)
    for stream, number in {"training": 4, "imitation": 2, "validation": 1}.items():
        monkeypatch.setitem(teaching.TASKS_OF_A_LIBRARY, stream, number)
    numbers: dict[str, list[int]] = {"training": [], "imitation": [], "validation": []}
    draw = training.draw_settings

    def noted(config, stream, number, home):
        numbers[stream].append(number)
        return draw(config, stream, number, home)

    for module in (training, teaching):
        monkeypatch.setattr(module, "draw_settings", noted)
    monkeypatch.setattr(teaching, "IMITATION_UPDATES_OF_A_LIBRARY", 2)
    return numbers


@pytest.fixture(autouse=True)
def nothing_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that going to another library keeps all that a model knows, and no more of the generators than that."""
    enter = training._Run._enter

    def checked(run, number):
        before = model_state(run._model)
        enter(run, number)
        after = model_state(run._model)
        assert after.facts == before.facts
        for name in before.arrays:
            if not name.startswith("last"):
                np.testing.assert_array_equal(after.arrays[name], before.arrays[name], err_msg=name)

    monkeypatch.setattr(training._Run, "_enter", checked)


@pytest.mark.long
def test_libraries_change_and_a_stopped_run_goes_on_as_if_nothing_had_happened(tmp_path, drawn):
    whole = train(CONFIG, tmp_path / "whole")
    assert drawn == {"training": [0, 1, 2], "imitation": [1], "validation": [0, 1]}
    assert whole.steps == 384
    assert load_checkpoint(tmp_path / "whole").description.training["warm_start"]["updates"] == 3
    assert set(whole.best.shares) == {"benchmark", "random"}

    class Stopped(Exception):
        pass

    def stop(progress):
        if progress.steps >= 320:  # the point is that at 256, in library 1, and 256 steps are as many updates as two
            raise Stopped

    with pytest.raises(Stopped):
        train(CONFIG, tmp_path / "parts", stop)
    assert read_resume_point(tmp_path / "parts" / RESUME_FILE).facts["run"]["update"] == 4
    drawn["training"].clear()
    train(CONFIG, tmp_path / "parts")
    assert drawn["training"] == [0, 1, 2]
    assert len(drawn["validation"]) == 6
    one, other = (read_resume_point(tmp_path / name / RESUME_FILE) for name in ("whole", "parts"))
    assert one.arrays.keys() == other.arrays.keys()
    for name, array in one.arrays.items():
        np.testing.assert_array_equal(array, other.arrays[name], err_msg=name)
    (reason,) = one.facts["run"]["refused"]
    assert reason == "the dependencies close over more than 5 tools"
    assert one.facts["run"]["refused"] == other.facts["run"]["refused"]
    lines = (tmp_path / "whole" / PROGRESS_FILE).read_text(encoding="utf-8").splitlines()
    assert all("drawn_again" in json.loads(line) for line in lines)
    assert load_checkpoint(tmp_path / "whole").network.part_features is not None


@pytest.mark.long
def test_imitation_that_was_stopped_goes_on_as_if_nothing_had_happened(tmp_path, drawn, monkeypatch):
    monkeypatch.setattr(training, "IMITATION_CHECKPOINT_EVERY", 2)
    settings = (*SETTINGS, "imitation_updates=7", "imitation_evaluations=2", "max_steps=64")
    config = load_config("generalist", settings=settings)
    whole = train(config, tmp_path / "whole")
    assert drawn["imitation"] == [1, 2, 3]  # lesson 0 is of the training's tasks

    class Stopped(Exception):
        pass

    told = []

    def stop(progress):
        told.append(progress.imitated)
        if progress.imitated == 5:  # the point is that after 4
            raise Stopped

    with pytest.raises(Stopped):
        train(config, tmp_path / "parts", stop)
    point = read_resume_point(tmp_path / "parts" / RESUME_FILE)
    assert point.facts["imitation"]["num_updates"] == 4
    told.clear()
    drawn["imitation"].clear()
    with pytest.raises(Stopped):
        train(config, tmp_path / "parts", stop)
    assert told == [5]
    parts = train(config, tmp_path / "parts")
    assert drawn["imitation"] == [2, 2, 3]
    assert parts.best.share == whole.best.share
    curves = [(tmp_path / name / PROGRESS_FILE).read_text(encoding="utf-8").splitlines() for name in ("whole", "parts")]
    measured = [[(line.get("imitated"), line["success"]) for line in map(json.loads, lines)] for lines in curves]
    assert measured[0] == measured[1], "what was measured after the point is measured again"
    assert [imitated for imitated, _ in measured[0] if imitated] == [4, 7]
    lines = [json.loads(line) for line in curves[0]]
    kept = max(enumerate(lines), key=lambda line: (line[1]["share"], line[0]))[1]
    taught = load_checkpoint(tmp_path / "whole").description.training["warm_start"]
    assert taught["updates"] == kept.get("imitated", 7), "a policy says how much it had imitated when it was kept"
    one, other = (read_resume_point(tmp_path / name / RESUME_FILE) for name in ("whole", "parts"))
    assert one.arrays.keys() == other.arrays.keys()
    assert not any(name.startswith("imitation/") for name in one.arrays), "what only imitation needs goes with it"
    for name, array in one.arrays.items():
        np.testing.assert_array_equal(array, other.arrays[name], err_msg=name)
    assert one.facts["run"]["warm_start"] == other.facts["run"]["warm_start"]
