"""Patterns of tools, mined from successful episodes (appendix D.5.2), feed the pattern confidence of the mask.

A pattern is two or three tools that succeeded one directly after the other. Its score is the mean score of the
successful episodes that contain it; an episode counts once for each pattern, however often it contains it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated

from annotated_types import MaxLen, MinLen

from resilisim.bounds import Count
from resilisim.envs.workflow.kernels.records import PATTERN_LENGTHS
from resilisim.policies.ppo.between_rollouts.remembered import Remembered

# With 30 tools there are 870 ordered pairs and 24,360 ordered triples; those of the 5,040 benchmark tasks fit easily.
MOST_PATTERNS = 512
# A pattern seen once says more about luck than about tools.
MIN_COUNT = 3


def extract_patterns(sequence: Sequence[str]) -> set[tuple[str, ...]]:
    """Return every run of two or three neighbours in a sequence of tools, each once."""
    return {
        tuple(sequence[start : start + length])
        for length in PATTERN_LENGTHS
        for start in range(len(sequence) - length + 1)
    }


@dataclass(frozen=True, slots=True)
class MinedPattern:
    """Tools one after the other, the sum of the scores of the episodes that contain them, and their number."""

    tools: Annotated[tuple[str, ...], MinLen(2), MaxLen(3)]
    total: float
    count: Count


@dataclass(frozen=True, slots=True)
class PatternLibrary(Remembered):
    """The patterns met so far, ordered by name.

    Of more than `max_patterns` those met most often are kept, among equals the first by name. One that is dropped
    starts again from nothing if it is met again.
    """

    max_patterns: Count = MOST_PATTERNS
    patterns: tuple[MinedPattern, ...] = ()

    def add(self, sequences: Iterable[Sequence[str]], scores: Iterable[float]) -> PatternLibrary:
        """Return the library after some more successful episodes: their tools as they succeeded, their final scores."""
        totals = {pattern.tools: (pattern.total, pattern.count) for pattern in self.patterns}
        for sequence, score in zip(sequences, scores, strict=True):
            for tools in extract_patterns(sequence):
                total, count = totals.get(tools, (0.0, 0))
                totals[tools] = (total + score, count + 1)
        kept = sorted(totals, key=lambda tools: (-totals[tools][1], tools))[: self.max_patterns]
        return replace(self, patterns=tuple(MinedPattern(tools, *totals[tools]) for tools in sorted(kept)))

    def scores(self, min_count: int = MIN_COUNT) -> dict[tuple[str, ...], float]:
        """Return the mean score of each pattern that at least `min_count` episodes contain, ordered by name."""
        return {pattern.tools: pattern.total / pattern.count for pattern in self.patterns if pattern.count >= min_count}
