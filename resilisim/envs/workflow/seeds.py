"""Seeds of sequences of episodes."""

from __future__ import annotations

from collections.abc import Sequence

from resilisim.envs.workflow.kernel import Episodes
from resilisim.seeding import hash_words


def plant_seeds(episodes: Episodes, envs: Sequence[int], seeds: Sequence[int]) -> None:
    """Let environments begin new sequences of episodes.

    Args:
        episodes: The environments' records, changed in place.
        envs: Which environments.
        seeds: The seed of each.
    """
    for env, seed in zip(envs, seeds, strict=True):
        word0, word1 = hash_words("workflow episodes", seed)
        episodes["seed0"][env], episodes["seed1"][env] = word0, word1
    episodes["episode"][list(envs)] = 0
