"""Patterns of tools mined from successful episodes (appendix D.5.2); they feed the pattern confidence of the mask.

A pattern is two or three tools that succeeded one directly after the other. Its score is the mean score of the
successful episodes that contain it; an episode counts once for each pattern, however often it contains it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from resilisim.envs.workflow.training import check_number, check_whole
from resilisim.errors import InvalidInputError
from resilisim.tool_library.json_fields import object_fields

PATTERN_LENGTHS = (2, 3)
# With 30 tools there are 870 ordered pairs and 24,360 ordered triples; those of the 5,040 benchmark tasks fit easily.
MAX_PATTERNS = 512
# A pattern seen once says more about luck than about tools.
MIN_COUNT = 3

Pattern: TypeAlias = tuple[str, ...]


def extract_patterns(sequence: Sequence[str]) -> set[Pattern]:
    """Return every run of two or three neighbours in a sequence of tools, each once."""
    return {
        tuple(sequence[start : start + length])
        for length in PATTERN_LENGTHS
        for start in range(len(sequence) - length + 1)
    }


@dataclass(frozen=True, slots=True)
class PatternLibrary:
    """How often each pattern was met, and with what scores. A value: `add` returns another library.

    Attributes:
        totals: For each pattern the sum of the scores of the episodes that contain it, and their number; not to be
            changed.
        max_patterns: Patterns kept; of more, those met most often, among equals the first by name. One that is dropped
            starts again from nothing if it is met again.
    """

    totals: Mapping[Pattern, tuple[float, int]] = field(default_factory=dict)
    max_patterns: int = MAX_PATTERNS

    def __post_init__(self) -> None:
        """Refuse what no library can be."""
        check_whole("max_patterns", self.max_patterns, 1)
        if len(self.totals) > self.max_patterns:
            raise InvalidInputError(f"{len(self.totals)} patterns are kept: expected at most {self.max_patterns}")

    def __len__(self) -> int:
        """Return the number of patterns."""
        return len(self.totals)

    def add(self, sequences: Iterable[Sequence[str]], scores: Iterable[float]) -> PatternLibrary:
        """Return the library after some more successful episodes.

        Args:
            sequences: For each episode its successful tools, in the order of execution.
            scores: For each episode its final score.

        Raises:
            InvalidInputError: A score is not a finite number.
            ValueError: There are not as many scores as sequences (a bug of the caller).
        """
        totals = dict(self.totals)
        for sequence, score in zip(sequences, scores, strict=True):
            if not math.isfinite(score):
                raise InvalidInputError(f"the score of an episode is {score}: expected a finite number")
            for pattern in extract_patterns(sequence):
                total, count = totals.get(pattern, (0.0, 0))
                totals[pattern] = (total + float(score), count + 1)
        return PatternLibrary(_most_met(totals, self.max_patterns), self.max_patterns)

    def scores(self, min_count: int = MIN_COUNT) -> dict[Pattern, float]:
        """Return the mean score of each pattern that at least `min_count` episodes contain, ordered by name."""
        return {pattern: total / count for pattern, (total, count) in sorted(self.totals.items()) if count >= min_count}

    def to_mapping(self) -> dict[str, Any]:
        """Return the library as JSON values, ordered by name."""
        patterns = [
            {"tools": list(pattern), "total": total, "count": count}
            for pattern, (total, count) in sorted(self.totals.items())
        ]
        return {"max_patterns": self.max_patterns, "patterns": patterns}

    @classmethod
    def from_mapping(cls, mapping: object) -> PatternLibrary:
        """Read what `to_mapping` gave.

        Raises:
            InvalidInputError: A field is missing, unknown or unusable.
        """
        given = object_fields(mapping, "pattern library", ("max_patterns", "patterns"))
        totals = dict(given.items("patterns", _read_pattern))
        if len(totals) < len(given.array("patterns")):
            given.fail("patterns", "a pattern stands there twice", "each once")
        check_whole("max_patterns of the pattern library", given.values.get("max_patterns"), 1)
        return cls(totals, given.values["max_patterns"])


def pattern_confidence(tool: str, executed: Sequence[str], scores: Mapping[Pattern, float]) -> float:
    """Return c_pattern: the best score of a pattern that a tool extends after the tools executed so far.

    A tool extends a pattern if it is the pattern's last tool and the tools before it are the latest executed ones. The
    environments compute the same from tool numbers (`envs.workflow.actions`).

    Args:
        tool: The tool that might be called.
        executed: Successful tools of the episode in the order of execution.
        scores: Scores of the patterns.

    Returns:
        The score, or 0 if there is no such pattern.
    """
    extended = (
        (*executed[len(executed) - length + 1 :], tool) for length in PATTERN_LENGTHS if len(executed) >= length - 1
    )
    return max((scores.get(pattern, 0.0) for pattern in extended), default=0.0)


def _most_met(totals: dict[Pattern, tuple[float, int]], at_most: int) -> dict[Pattern, tuple[float, int]]:
    if len(totals) <= at_most:
        return totals
    kept = sorted(totals, key=lambda pattern: (-totals[pattern][1], pattern))[:at_most]
    return {pattern: totals[pattern] for pattern in kept}


def _read_pattern(value: Any, where: str) -> tuple[Pattern, tuple[float, int]]:
    given = object_fields(value, where, ("tools", "total", "count"))
    tools = given.texts("tools")
    if len(tools) not in PATTERN_LENGTHS:
        given.fail("tools", f"{len(tools)} tools", "two or three")
    total, count = given.values.get("total"), given.values.get("count")
    check_number(f"{where}: total", total)
    check_whole(f"{where}: count", count, 1)
    return tools, (float(given.values["total"]), int(given.values["count"]))
