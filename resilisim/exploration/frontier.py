"""The branches of an agent's episode that were not played yet, those first that can still succeed most.

No agent succeeds more often than V* says. So of a branch that was not played it is known how much of its weight can
succeed at most, which is often nothing.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from resilisim.simulator.draws import BranchingPoint
from resilisim.simulator.rulebook.dynamics import Draw


@dataclass(frozen=True, slots=True)
class Unplayed:
    """A branch of which nothing was played: every episode that begins with some results, and no other.

    Attributes:
        weight: Its probability.
        results: What its first branching points bring; by the last of them it leaves an episode that was played.
        sent: The messages up to the call of that one, which an agent that repeats itself sends again.
        worth: The most of its weight that can succeed.
        losses: By cause, what was lost on the way there.
        luck: The luck of each of its episodes, where none of them can succeed.
    """

    weight: float
    results: tuple[Draw, ...] = ()
    sent: tuple[str | None, ...] = ()
    worth: float = 1.0
    losses: Mapping[str, float] = field(default_factory=dict, hash=False)
    luck: float = 0.0

    @property
    def is_open(self) -> bool:
        """Whether any of it can succeed."""
        return self.worth > 0.0


@dataclass(frozen=True, slots=True)
class Outlook:
    """What is known of the branches that leave an episode at one branching point.

    Attributes:
        most: The most that the call's other results can succeed, all together, given that the call is made.
        losses: By cause, what was lost up to the call, and by it.
        luck: The luck of an episode that brings another result and cannot succeed then.
    """

    most: float = 1.0
    losses: Mapping[str, float] = field(default_factory=dict, hash=False)
    luck: float = 0.0


class Frontier:
    """The branches not played yet; at first one, the whole episode. No two of them have an episode in common."""

    def __init__(self) -> None:
        # Ties go to the branch that was met first, so that the order is the same everywhere.
        self._heap: list[tuple[float, float, int, Unplayed]] = [(-1.0, -1.0, 0, Unplayed(1.0))]
        self._num_met = 1
        # Running sums, for decisions: of the weights that can still succeed, and of how much they can.
        self.open_weight = self.open_worth = 1.0

    def __len__(self) -> int:
        """Return how many branches are left."""
        return len(self._heap)

    @property
    def weight(self) -> float:
        """Probability of all that was not played, exactly 0.0 if everything was."""
        return math.fsum(branch.weight for *_, branch in self._heap)

    @property
    def worth(self) -> float:
        """The most of that which can succeed, exactly 0.0 if nothing can."""
        return math.fsum(branch.worth for *_, branch in self._heap)

    @property
    def is_open(self) -> bool:
        """Whether any branch can succeed."""
        return bool(self._heap) and self._heap[0][-1].is_open

    def pop(self) -> Unplayed:
        """Take the branch out that can succeed most, or the likeliest where none can."""
        branch = heapq.heappop(self._heap)[-1]
        self._count(branch, -1.0)
        return branch

    def left(self) -> list[Unplayed]:
        """Return the branches that are left, in their order."""
        return [branch for *_, branch in sorted(self._heap, key=lambda entry: entry[:-1])]

    def _count(self, branch: Unplayed, sign: float) -> None:
        if branch.is_open:
            self.open_weight += sign * branch.weight
            self.open_worth += sign * branch.worth

    def enter(
        self, points: Sequence[BranchingPoint], first: int, sent: Sequence[str | None], outlooks: Sequence[Outlook]
    ) -> list[Unplayed]:
        """Take in the branches that leave an episode that was played, and return them.

        Args:
            points: Its branching points.
            first: Number of the first point, from 0, that was not given: the branches before it are known.
            sent: Its messages.
            outlooks: Of each point.
        """
        weight, results, branches = 1.0, tuple(point.draw for point in points), []
        for number, (point, outlook) in enumerate(zip(points, outlooks, strict=True)):
            for option, (chance, draw) in enumerate(point.options):
                if number < first or option == point.taken:
                    continue
                branch = Unplayed(
                    weight * chance,
                    (*results[:number], draw),
                    tuple(sent[: point.turn]),
                    weight * min(chance, outlook.most),
                    outlook.losses,
                    outlook.luck,
                )
                heapq.heappush(self._heap, (-branch.worth, -branch.weight, self._num_met, branch))
                self._count(branch, 1.0)
                self._num_met += 1
                branches.append(branch)
            weight *= point.options[point.taken][0]
        return branches
