"""Tianshou, really run: the lines of the page."""

from __future__ import annotations

from pages import run_blocks
from tianshou.env import SubprocVectorEnv


def main() -> None:
    """Run the page, then its environments in processes."""
    names = run_blocks("rl-libraries", {}, section="Tianshou")
    assert names["collected"].n_collected_episodes >= 20
    assert len(names["collector"].buffer) >= 20
    envs = SubprocVectorEnv([names["make"]] * 2)
    observations, _ = envs.reset(seed=1)
    assert observations.shape == (2, *names["env"].observation_space.shape)
    envs.close()
    print("Tianshou: the page and processes are fine")


if __name__ == "__main__":
    main()
