"""Stable-Baselines3 and sb3-contrib, really run: the lines of the page, checkers, and a film of an episode."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import gymnasium
from pages import run_blocks
from stable_baselines3 import PPO
from stable_baselines3.common.env_checker import check_env
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import SubprocVecEnv


def main() -> None:
    """Run the page in a folder of its own, which gets the film."""
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        names = run_blocks("rl-libraries", {"20_000": "1_000"}, section="Stable-Baselines3")
        (film,) = Path("videos").glob("*.mp4")
        assert film.stat().st_size > 1000, film
        os.chdir("/")
    assert names["model"].num_timesteps >= 1_000
    assert names["info"]["steps"] == names["observation"]["task"][21]
    by_module = "resilisim:resilisim/Workflow-v0"
    check_env(gymnasium.make(by_module, tasks="test", observation_dtype="float32").unwrapped, skip_render_check=True)
    envs = make_vec_env(by_module, n_envs=2, vec_env_cls=SubprocVecEnv, env_kwargs={"tasks": "test"})
    PPO("MultiInputPolicy", envs, n_steps=64).learn(128)
    envs.close()
    print("Stable-Baselines3: the page, the checker and processes are fine")


if __name__ == "__main__":
    main()
