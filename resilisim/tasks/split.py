"""Train, validation or test: decided by the set of required tools alone, so that no test combination is trained on."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from resilisim.seeding import hash_words

Split = Literal["train", "validation", "test"]
SPLITS: tuple[Split, ...] = ("train", "validation", "test")
SPLIT_SALT = "resilisim/split/v1"
TRAIN_SHARE = 0.70
VALIDATION_SHARE = 0.15


def split_of(required_tools: Iterable[str]) -> Split:
    """Return the part of the data that a set of required tools belongs to, whatever their order.

    The hash of the sorted set is a uniform number; below 0.70 it says train, below 0.85 validation, else test.
    """
    high, low = hash_words(SPLIT_SALT, *sorted(set(required_tools)))
    share = (high * 2**32 + low) / 2**64
    if share < TRAIN_SHARE:
        return "train"
    return "validation" if share < TRAIN_SHARE + VALIDATION_SHARE else "test"
