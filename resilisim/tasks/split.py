"""Which part of the data a task belongs to, train, validation or test: by the set of its tools.

Tasks with the same tools, in whatever order, are in the same part.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Literal, get_args

from resilisim.seeding import hash_words
from resilisim.tasks.task import Task

Split = Literal["train", "validation", "test"]
SPLITS: tuple[Split, ...] = get_args(Split)
SPLIT_SALT = "resilisim/split/v1"
TRAIN_SHARE = 0.70
VALIDATION_SHARE = 0.15


def split_of(required_tools: Iterable[str]) -> Split:
    """Return the part of the data that a set of required tools belongs to, whatever their order.

    The hash of the sorted set is a uniform number; below 0.70 it says train, below 0.85 validation, else test.

    Example:
        >>> from resilisim.tasks import split_of
        >>> split_of(["file_operations_reader"])
        'train'
    """
    return _split_of(tuple(sorted(set(required_tools))))


@lru_cache(maxsize=10_000)  # who looks for the tasks of a split looks through all of the benchmark, and again
def _split_of(names: tuple[str, ...]) -> Split:
    high, low = hash_words(SPLIT_SALT, *names)
    share = (high * 2**32 + low) / 2**64
    if share < TRAIN_SHARE:
        return "train"
    return "validation" if share < TRAIN_SHARE + VALIDATION_SHARE else "test"


def split_of_task(task: Task) -> Split:
    """Return the part of the data that a task belongs to: by its tools, or as its world says (its tasks share them)."""
    own = task.metadata.get("split") if "world" in task.metadata else None
    return own if own in SPLITS else split_of(task.required_tools)
