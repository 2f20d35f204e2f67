"""The draws of an episode, compiled: the functions of `seeding` and nothing else.

In plain Python they were the largest part of an environment step.
"""

from __future__ import annotations

import functools

from resilisim.seeding import hash_words, threefry2x32, uniform_bits
from resilisim.simulator.compiled import kernel, scalar

_threefry2x32 = kernel(scalar(threefry2x32))
draw_bits = kernel(uniform_bits)
_name_words = functools.lru_cache(maxsize=4096)(hash_words)  # the same few names in every episode


def tool_luck_key(episode0: int, episode1: int, tool_name: str) -> tuple[int, int]:
    """Return `seeding.tool_key` of the same arguments."""
    name0, name1 = _name_words(tool_name)
    return _threefry2x32(episode0, episode1, name0, name1)
