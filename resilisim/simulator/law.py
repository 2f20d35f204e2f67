"""What the success law counts (SPEC section 3), what luck is compared with, and the end rules.

The law itself is `failure_model.Law.probability`, which `rulebook.build` tabulates.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from resilisim.errors import MAX_TURNS, InvalidInputError, check_integer
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


@dataclass(frozen=True, slots=True)
class EndRules:
    """The rules that end an episode, apart from the agent's own completion signal.

    Attributes:
        max_turns: Messages that an agent has; one more, the closing message, executes nothing.
        max_consecutive_failures: Failed executions without a successful one between them that end the episode; 0 turns
            the rule off.
        loop_length: Unproductive messages in a row that are the same and end the episode; 0 turns the rule off.

    Raises:
        InvalidInputError: A number under which no episode could be played.

    Example:
        >>> from resilisim.simulator import EndRules
        >>> EndRules(max_turns=20).to_mapping()
        {'max_turns': 20, 'max_consecutive_failures': 5, 'loop_length': 4}
    """

    max_turns: int = 10
    max_consecutive_failures: int = 5
    loop_length: int = 4

    def __post_init__(self) -> None:
        """Refuse numbers that no episode could be played under."""
        for name, least in (("max_turns", 1), ("max_consecutive_failures", 0), ("loop_length", 0)):
            # Also where NumPy's integers were given: compiled code and JSON want Python's.
            object.__setattr__(self, name, check_integer(name, getattr(self, name), least, MAX_TURNS))
        if self.loop_length == 1:
            raise InvalidInputError("loop_length is 1: expected 0 (off) or at least 2")

    def to_mapping(self) -> dict[str, int]:
        """Return the rules as they stand in every record."""
        return {name: getattr(self, name) for name in self.__slots__}
