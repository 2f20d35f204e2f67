"""Training on random libraries: the same to the bit, also when resumed in the middle of a library."""

from __future__ import annotations

import json

import numpy as np
import pytest

from resilisim.envs.workflow import random_libraries
from resilisim.policies.ppo import training
from resilisim.policies.ppo.checkpoint import PROGRESS_FILE, RESUME_FILE, load_checkpoint, read_resume_point
from resilisim.policies.ppo.config import load_config
from resilisim.policies.ppo.training import train

SETTINGS = (
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
    "device=cpu",
    "tensorboard=false",
)
CONFIG = load_config("generalist", settings=SETTINGS)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Small libraries; the list is filled with the numbers of those that are entered."""
    monkeypatch.setattr(random_libraries, "MOST_TOOLS", 16)
    monkeypatch.setattr(random_libraries, "NUM_PARTS", {0: 1})
    monkeypatch.setattr(training, "VALIDATION_LIBRARIES", 2)
    monkeypatch.setattr(training, "VALIDATION_TASKS_OF_A_LIBRARY", 1)
    monkeypatch.setattr(training, "TASKS_OF_A_LIBRARY", 4)
    entered: list[int] = []
    draw = training.draw_settings

    def noted(config, stream, number, home):
        entered.extend([number] if stream == "training" else [])
        return draw(config, stream, number, home)

    monkeypatch.setattr(training, "draw_settings", noted)
    return entered


def test_libraries_change_and_a_stopped_run_goes_on_as_if_nothing_had_happened(tmp_path, small):
    whole = train(CONFIG, tmp_path / "whole")
    assert small == [0, 1, 2]
    assert whole.steps == 384
    assert set(whole.best.shares) == {"benchmark", "random"}

    class Stopped(Exception):
        pass

    def stop(progress):
        if progress.steps >= 320:  # the point is that at 256, in library 1, and 256 steps are as many updates as two
            raise Stopped

    with pytest.raises(Stopped):
        train(CONFIG, tmp_path / "parts", stop)
    assert read_resume_point(tmp_path / "parts" / RESUME_FILE).facts["run"]["update"] == 4
    del small[:]
    train(CONFIG, tmp_path / "parts")
    assert small == [0, 1, 2]
    one, other = (read_resume_point(tmp_path / name / RESUME_FILE) for name in ("whole", "parts"))
    assert one.arrays.keys() == other.arrays.keys()
    for name, array in one.arrays.items():
        np.testing.assert_array_equal(array, other.arrays[name], err_msg=name)
    assert one.facts["run"]["refused"] == other.facts["run"]["refused"]
    lines = (tmp_path / "whole" / PROGRESS_FILE).read_text(encoding="utf-8").splitlines()
    assert all("drawn_again" in json.loads(line) for line in lines)
    assert load_checkpoint(tmp_path / "whole").network.part_features is not None
