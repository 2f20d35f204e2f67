"""A Gymnasium space of texts; Gymnasium's own `Text` knows a fixed alphabet, ours is all of Unicode."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium.spaces import Space

_SAMPLE_LENGTH = 60
# Ranges that samples are drawn from: ASCII, Latin with accents, Greek, CJK, emoji.
_SAMPLE_RANGES = ((0x20, 0x7E), (0xC0, 0x17F), (0x391, 0x3C9), (0x4E00, 0x4FFF), (0x1F600, 0x1F64F))


class UnicodeText(Space[str]):
    """All texts up to a length.

    Args:
        max_length: Largest number of characters.
        seed: Seed of `sample`.
    """

    def __init__(self, max_length: int, seed: int | np.random.Generator | None = None) -> None:
        self.max_length = max_length
        super().__init__(dtype=str, seed=seed)

    @property
    def is_np_flattenable(self) -> bool:
        """Texts have no fixed size, so they cannot become vectors."""
        return False

    def sample(self, mask: Any = None, probability: Any = None) -> str:
        """Return a short random text; masks have no meaning here."""
        length = int(self.np_random.integers(0, min(_SAMPLE_LENGTH, self.max_length) + 1))
        characters = []
        for _ in range(length):
            low, high = _SAMPLE_RANGES[int(self.np_random.integers(len(_SAMPLE_RANGES)))]
            characters.append(chr(int(self.np_random.integers(low, high + 1))))
        return "".join(characters)

    def contains(self, x: Any) -> bool:
        """Return whether `x` is a text that is not too long."""
        return isinstance(x, str) and len(x) <= self.max_length

    def __eq__(self, other: object) -> bool:
        """Return whether the other space holds the same texts."""
        return isinstance(other, UnicodeText) and other.max_length == self.max_length

    def __repr__(self) -> str:
        """Return the constructor call."""
        return f"UnicodeText({self.max_length})"
