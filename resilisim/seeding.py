"""Counter-based uniforms: luck is a function of what is asked, not of what was asked before.

The generator is Threefry-2x32 with 20 rounds (Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as
1, 2, 3", SC 2011; the Random123 library holds its known-answer vectors, which the tests repeat).

Every word is kept in a signed 64-bit integer between 0 and 2^32 - 1, and no intermediate result leaves the range of a
signed 64-bit integer. Therefore `threefry2x32` is one text with three uses: on Python integers, on NumPy int64 arrays
of any (broadcastable) shape, and compiled by Numba. All three agree to the bit.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np

T = TypeVar("T")

WORD_MASK = 0xFFFFFFFF
KEY_PARITY = 0x1BD11BDA  # Skein's parity constant for 32-bit words
UNIFORM_BITS = 53
MAX_SEED = 2**63 - 1
_DRAWN_SINGLY = 16  # draws of one name; what comes after them is computed in blocks, the same but faster
_BLOCK = 256

# What a draw is for; it is part of the counter, so that draws for different ends never meet.
PURPOSE_SUCCESS = 0
PURPOSE_FAILURE = 1
PURPOSE_PAYLOAD = 2
PURPOSE_ERROR_CODE = 3  # under a law with kinds of errors
PURPOSE_CORRUPT = 4
PURPOSE_DURATION = 5
PURPOSE_LOST = 6

# The salts of the three uses of luck; any other text makes a private leaderboard.
EVALUATION_SALT = "resilisim/evaluation"
VALIDATION_SALT = "resilisim/validation"
TRAINING_SALT = "resilisim/training"


def threefry2x32(key0: Any, key1: Any, counter0: Any, counter1: Any) -> tuple[Any, Any]:
    """Encrypt a counter of two 32-bit words under a key of two: Python ints, int64 arrays, or int64 when compiled."""

    def mixed(x0: Any, x1: Any, rotation: int) -> tuple[Any, Any]:
        x0 = (x0 + x1) & WORD_MASK
        return x0, (((x1 << rotation) & WORD_MASK) | (x1 >> (32 - rotation))) ^ x0

    # The rounds are written out, not looped over, so that compiled loops over many draws compute several side by side.
    key2 = KEY_PARITY ^ key0 ^ key1
    x0, x1 = (counter0 + key0) & WORD_MASK, (counter1 + key1) & WORD_MASK
    x0, x1 = mixed(x0, x1, 13)
    x0, x1 = mixed(x0, x1, 15)
    x0, x1 = mixed(x0, x1, 26)
    x0, x1 = mixed(x0, x1, 6)
    x0, x1 = (x0 + key1) & WORD_MASK, (x1 + key2 + 1) & WORD_MASK
    x0, x1 = mixed(x0, x1, 17)
    x0, x1 = mixed(x0, x1, 29)
    x0, x1 = mixed(x0, x1, 16)
    x0, x1 = mixed(x0, x1, 24)
    x0, x1 = (x0 + key2) & WORD_MASK, (x1 + key0 + 2) & WORD_MASK
    x0, x1 = mixed(x0, x1, 13)
    x0, x1 = mixed(x0, x1, 15)
    x0, x1 = mixed(x0, x1, 26)
    x0, x1 = mixed(x0, x1, 6)
    x0, x1 = (x0 + key0) & WORD_MASK, (x1 + key1 + 3) & WORD_MASK
    x0, x1 = mixed(x0, x1, 17)
    x0, x1 = mixed(x0, x1, 29)
    x0, x1 = mixed(x0, x1, 16)
    x0, x1 = mixed(x0, x1, 24)
    x0, x1 = (x0 + key1) & WORD_MASK, (x1 + key2 + 4) & WORD_MASK
    x0, x1 = mixed(x0, x1, 13)
    x0, x1 = mixed(x0, x1, 15)
    x0, x1 = mixed(x0, x1, 26)
    x0, x1 = mixed(x0, x1, 6)
    x0, x1 = (x0 + key2) & WORD_MASK, (x1 + key0 + 5) & WORD_MASK
    return x0, x1


def uniform_bits(key0: Any, key1: Any, index: Any, purpose: Any) -> Any:
    """Return 53 uniform bits, an integer in 0 to 2^53 - 1, for draw number `index` made for `purpose` under a key."""
    x0, x1 = threefry2x32(key0, key1, index, purpose)
    return (x0 << 21) | (x1 >> 11)


def hash_words(*parts: object) -> tuple[int, int]:
    """Hash texts (and whatever prints unambiguously) to two 32-bit words (BLAKE2b; parts cannot run together)."""
    digest = hashlib.blake2b(digest_size=8)
    for part in parts:
        text = str(part).encode("utf-8", "surrogatepass")
        digest.update(len(text).to_bytes(8, "little"))
        digest.update(text)
    value = digest.digest()
    return int.from_bytes(value[:4], "little"), int.from_bytes(value[4:], "little")


def episode_key(salt: str, seed: int, instance_id: str) -> tuple[int, int]:
    """Return the luck key of an episode: two 32-bit words, different for every (salt, seed, task)."""
    task0, task1 = hash_words(salt, instance_id)
    return threefry2x32(task0, task1, seed & WORD_MASK, seed >> 32)


def tool_key(episode0: int, episode1: int, tool_name: str) -> tuple[int, int]:
    """Return the luck key of one tool within an episode: for one episode, different names cannot share a key."""
    name0, name1 = hash_words(tool_name)
    return threefry2x32(episode0, episode1, name0, name1)


class Draws:
    """A named sequence of choices for work that is not luck: a function of its name parts alone, everywhere."""

    def __init__(self, *name: object) -> None:
        self._key = hash_words(*name)
        self._count = 0
        self._ahead: list[int] = []  # the next ones, last first, where many were wanted

    def bits(self) -> int:
        """Return the next 53 uniform bits."""
        if self._ahead:
            return self._ahead.pop()
        index, self._count = self._count, self._count + 1
        if index >= _DRAWN_SINGLY:
            block = np.arange(index, index + _BLOCK, dtype=np.int64)
            self._ahead = uniform_bits(*self._key, block & WORD_MASK, block >> 32)[::-1].tolist()
            self._count += _BLOCK - 1
            return self._ahead.pop()
        value: int = uniform_bits(*self._key, index & WORD_MASK, index >> 32)
        return value

    def uniform(self) -> float:
        """Return the next uniform number in [0, 1)."""
        return self.bits() * 2.0**-UNIFORM_BITS

    def below(self, size: int) -> int:
        """Return the next integer in 0 to size - 1 (bias below size / 2^53)."""
        return (self.bits() * size) >> UNIFORM_BITS

    def between(self, low: int, high: int) -> int:
        """Return the next integer in low to high, both included."""
        return low + self.below(high - low + 1)

    def choice(self, options: Sequence[T]) -> T:
        """Return one of the options, all equally likely."""
        return options[self.below(len(options))]

    def weighted(self, options: Sequence[T], weights: Sequence[float]) -> T:
        """Return one of the options with probability proportional to its weight."""
        target = self.uniform() * sum(weights)
        for option, weight in zip(options, weights, strict=True):
            target -= weight
            if target < 0.0:
                return option
        return options[-1]

    def shuffled(self, options: Sequence[T]) -> list[T]:
        """Return the options in a random order."""
        result = list(options)
        for last in range(len(result) - 1, 0, -1):
            other = self.below(last + 1)
            result[last], result[other] = result[other], result[last]
        return result
