"""What an episode knows of each tool, what the law counts of that (SPEC section 3), and what luck is compared with."""

from __future__ import annotations

import math
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from resilisim.seeding import UNIFORM_BITS
from resilisim.simulator.compiled import scalar

# A vector of integers that a scalar function reads or writes: list or tuple in Python, int array in compiled code.
IntVector: TypeAlias = Any

TWO_TO_THE_BITS = 2.0**UNIFORM_BITS

# What an episode knows of each tool.
NOT_EXECUTED = 0
FAILED = 1  # executed, not yet successful
SUCCEEDED = 2  # for ever, whatever later calls bring


@scalar
def success_threshold(probability: float) -> int:
    """Return ceil(p * 2^53): uniform bits below it succeed. The product is exact: 2^53 only moves the exponent."""
    return math.ceil(probability * TWO_TO_THE_BITS)


def success_thresholds(probability: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return `success_threshold` of each probability of a table, of the same shape."""
    return np.ceil(probability * TWO_TO_THE_BITS).astype(np.int64)


@scalar
def count_unmet(status: IntVector, dependencies: IntVector) -> tuple[int, int]:
    """Return Nu and Nf of a tool: `status` (num_tools,) and its `dependencies` (indices, -1 ends the list early)."""
    num_not_executed, num_failed = 0, 0
    for dependency in dependencies:
        if dependency < 0:
            break
        known = status[dependency]
        if known == NOT_EXECUTED:
            num_not_executed += 1
        elif known == FAILED:
            num_failed += 1
    return num_not_executed, num_failed
