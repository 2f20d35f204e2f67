"""The branches of an agent's episode that were not played yet, the likeliest first."""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass

from resilisim.simulator.draws import BranchingPoint
from resilisim.simulator.rulebook.play import Draw


@dataclass(frozen=True, slots=True)
class Unplayed:
    """A branch of which nothing was played: every episode that begins with some results, and no other.

    Attributes:
        weight: Its probability.
        results: What its first branching points bring; by the last of them it leaves an episode that was played.
        sent: The messages up to the call of that one, which an agent that repeats itself sends again.
    """

    weight: float
    results: tuple[Draw, ...] = ()
    sent: tuple[str | None, ...] = ()


class Frontier:
    """The branches that were not played yet; at first one, the whole episode. No two of them have an episode in common.

    Example:
        >>> from resilisim.exploration.frontier import Frontier
        >>> from resilisim.simulator.draws import BranchingPoint
        >>> from resilisim.simulator.rulebook.play import FAILS, SUCCEEDS
        >>> frontier = Frontier()
        >>> frontier.pop().results
        ()
        >>> call = BranchingPoint("reader", 1, 1, ((0.8, SUCCEEDS), (0.2, FAILS)), taken=0)
        >>> frontier.enter([call], 0, ["<tool_call>reader</tool_call>", "<finish/>"])
        >>> frontier.weight, frontier.pop().sent
        (0.2, ('<tool_call>reader</tool_call>',))
    """

    def __init__(self) -> None:
        # Ties go to the branch that was met first, so that the order is the same everywhere.
        self._heap: list[tuple[float, int, Unplayed]] = [(-1.0, 0, Unplayed(1.0))]
        self._num_met = 1

    def __len__(self) -> int:
        """Return how many branches are left."""
        return len(self._heap)

    @property
    def weight(self) -> float:
        """Probability of all that was not played, exactly 0.0 if everything was."""
        return math.fsum(branch.weight for _, _, branch in self._heap)

    def pop(self) -> Unplayed:
        """Take the likeliest branch out."""
        return heapq.heappop(self._heap)[2]

    def left(self) -> list[Unplayed]:
        """Return the branches that are left, the likeliest first."""
        return [branch for _, _, branch in sorted(self._heap, key=lambda entry: entry[:2])]

    def enter(self, points: Sequence[BranchingPoint], first: int, sent: Sequence[str | None]) -> None:
        """Take in the branches that leave an episode that was played.

        Args:
            points: Its branching points.
            first: Number of the first point, from 0, that was not given: the branches before it are known.
            sent: Its messages.
        """
        weight, results = 1.0, tuple(point.draw for point in points)
        for number, point in enumerate(points):
            for option, (chance, draw) in enumerate(point.options):
                if number >= first and option != point.taken:
                    branch = Unplayed(weight * chance, (*results[:number], draw), tuple(sent[: point.turn]))
                    heapq.heappush(self._heap, (-branch.weight, self._num_met, branch))
                    self._num_met += 1
            weight *= point.options[point.taken][0]
