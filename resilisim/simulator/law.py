"""The success law (SPEC section 3): how likely an execution succeeds, a table that sampling reads; and the end rules.

p = base * 0.5^Nu * 0.7^Nf * 0.9^Nh, where Nu counts the tool's direct dependencies that were never executed in this
episode, Nf those executed but not yet successful, and Nh every failed execution so far, of all tools.

The table is computed once, in one order of multiplication; Python, NumPy and compiled code compare luck to the same
integers, so they cannot differ in a single bit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from resilisim.errors import MAX_TURNS, InvalidInputError, check_integer, shown_value
from resilisim.seeding import UNIFORM_BITS
from resilisim.simulator.compiled import scalar

# A vector of integers that a scalar function reads or writes: list or tuple in Python, int array in compiled code.
IntVector: TypeAlias = Any

TWO_TO_THE_BITS = 2.0**UNIFORM_BITS

# What an episode knows of each tool.
NOT_EXECUTED = 0
FAILED = 1  # executed, not yet successful
SUCCEEDED = 2  # for ever, whatever later calls bring


@dataclass(frozen=True, slots=True)
class BenchmarkLaw:
    """Constants of the benchmark law.

    Attributes:
        base: Success probability of a tool whose library entry gives none, in (0, 1].
        not_executed: Factor for each dependency never executed, in [0, 1].
        failed: Factor for each dependency executed but not yet successful, in [0, 1].
        history: Factor for each failed execution so far in the episode, in [0, 1].

    Raises:
        InvalidInputError: A constant is out of range.

    Example:
        >>> from resilisim.simulator import BenchmarkLaw
        >>> round(BenchmarkLaw().probability(0.8, num_not_executed=1, num_failed_dependencies=0, num_failures=2), 3)
        0.324
    """

    base: float = 0.8
    not_executed: float = 0.5
    failed: float = 0.7
    history: float = 0.9

    def __post_init__(self) -> None:
        """Refuse constants that are not probabilities."""
        for name in self.__slots__:
            value = getattr(self, name)
            in_range = isinstance(value, int | float | np.number) and 0.0 <= value <= 1.0
            if not in_range or (name == "base" and value == 0.0):
                expected = "a probability in (0, 1]" if name == "base" else "a factor in [0, 1]"
                raise InvalidInputError(f"law constant {name} is {shown_value(value)}: expected {expected}")

    def probability(self, base: float, num_not_executed: int, num_failed_dependencies: int, num_failures: int) -> float:
        """Return the success probability of an execution; the definition that the table repeats."""
        value = base
        for _ in range(num_not_executed):
            value *= self.not_executed
        for _ in range(num_failed_dependencies):
            value *= self.failed
        for _ in range(num_failures):
            value *= self.history
        return value

    @property
    def has_sections(self) -> bool:
        """Whether it says more than one table of chances can: never; see `Law.has_sections`."""
        return False

    def to_mapping(self) -> dict[str, float]:
        """Return the constants as they stand in every record."""
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, slots=True, eq=False)
class LawTable:
    """The law, tabulated by base, Nu, Nf and Nh; entries with Nu + Nf above the most dependencies are never read."""

    bases: tuple[float, ...]  # (num_bases,) the distinct base probabilities of a library
    # (num_bases, max_dependencies + 1, max_dependencies + 1, max_failures + 1)
    probability: NDArray[np.float64]
    threshold: NDArray[np.int64]  # same shape: an execution succeeds iff its 53 luck bits are below the entry


def tabulate_law(law: BenchmarkLaw, bases: Sequence[float], max_dependencies: int, max_failures: int) -> LawTable:
    """Tabulate the law for every base and every count that an episode can meet."""
    shape = (len(bases), max_dependencies + 1, max_dependencies + 1, max_failures + 1)
    probability = np.zeros(shape, dtype=np.float64)
    threshold = np.zeros(shape, dtype=np.int64)
    for base_index, base in enumerate(bases):
        for num_not_executed in range(max_dependencies + 1):
            for num_failed in range(max_dependencies + 1 - num_not_executed):
                value = law.probability(base, num_not_executed, num_failed, 0)
                for num_failures in range(max_failures + 1):
                    probability[base_index, num_not_executed, num_failed, num_failures] = value
                    threshold[base_index, num_not_executed, num_failed, num_failures] = success_threshold(value)
                    value *= law.history  # the next step of the definition's own product
    return LawTable(tuple(bases), probability, threshold)


@scalar
def success_threshold(probability: float) -> int:
    """Return ceil(p * 2^53): uniform bits below it succeed. The product is exact: 2^53 only moves the exponent."""
    return math.ceil(probability * TWO_TO_THE_BITS)


@scalar
def count_unmet(status: IntVector, dependencies: IntVector) -> tuple[int, int]:
    """Return Nu and Nf of a tool, as the two functions below do, at one go."""
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


@scalar
def count_not_executed(status: IntVector, dependencies: IntVector) -> int:
    """Return Nu for a tool: `status` (num_tools,) and the tool's `dependencies` (indices, -1 ends the list early)."""
    count = 0
    for dependency in dependencies:
        if dependency >= 0 and status[dependency] == NOT_EXECUTED:
            count += 1
    return count


@scalar
def count_failed_dependencies(status: IntVector, dependencies: IntVector) -> int:
    """Return Nf for a tool: dependencies executed but not yet successful."""
    count = 0
    for dependency in dependencies:
        if dependency >= 0 and status[dependency] == FAILED:
            count += 1
    return count


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
