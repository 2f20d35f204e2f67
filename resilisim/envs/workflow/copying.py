"""Copying of blocks inside compiled code, where `target[:] = source` is several times as slow."""

from __future__ import annotations

from resilisim.envs.workflow.arrays import Int
from resilisim.simulator.compiled import scalar


@scalar
def copy_words(target: Int, source: Int) -> None:
    """Copy `source` to `target`, both int64 (num_words,)."""
    for word in range(len(target)):
        target[word] = source[word]
