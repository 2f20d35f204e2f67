"""What is known of an agent's success rate once some branches were played: a bracket, and an estimate of the rest.

The bracket is certain: the weight of the branches that succeeded, and that plus what of the rest can still succeed, by
V*. Where the plays do not suffice for all branches, some are spent on the rest: episodes are drawn by their weight from
what of it can succeed, which estimates its success rate without bias. The luck of the draws has mean zero over all
episodes, those that were played and the rest together, so that a multiple of it is taken off; which multiple, the
played ones say, on which the draws do not depend.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from resilisim.exploration.frontier import Unplayed
from resilisim.seeding import Draws
from resilisim.statistics.estimates import ROUNDING, clopper_pearson, t_quantile

FEWEST_DRAWN = 30  # episodes for which Student's t is trusted where luck is taken off
FEWEST_PLAYED = 20  # branches from which a multiple of the luck is fitted
LOOK_BACK = 8  # branches whose mean weight says what the next ones will weigh


@dataclass(slots=True)
class Played:
    """Sums over episodes that were played: by their weights where they are branches, alike where they were drawn."""

    weights: list[float] = field(default_factory=list)
    outcomes: list[int] = field(default_factory=list)
    lucks: list[float] = field(default_factory=list)
    losses: dict[str, list[float]] = field(default_factory=dict)  # weighted

    def enter(self, weight: float, outcome: int, luck: float, losses: Mapping[str, float]) -> None:
        """Take in an episode."""
        self.weights.append(weight)
        self.outcomes.append(outcome)
        self.lucks.append(luck)
        for label, loss in losses.items():
            self.losses.setdefault(label, []).append(weight * loss)

    def __len__(self) -> int:
        """Return the number of episodes."""
        return len(self.weights)

    @property
    def weight(self) -> float:
        """Weight of all."""
        return math.fsum(self.weights)

    @property
    def succeeded(self) -> float:
        """Weight of those that succeeded."""
        return math.fsum(weight for weight, outcome in zip(self.weights, self.outcomes, strict=True) if outcome)

    @property
    def luck(self) -> float:
        """Their luck by weight."""
        return math.fsum(weight * luck for weight, luck in zip(self.weights, self.lucks, strict=True))

    def loss(self, label: str) -> float:
        """Return what was lost to one cause, by weight."""
        return math.fsum(self.losses.get(label, ()))


def is_worth_playing(recent: Sequence[float], rest: float, plays_left: int) -> bool:
    """Return whether the next play tells more as the likeliest branch than as one more drawn from the rest.

    With a rest of weight R and n plays left to be drawn from it the error of the rate is about R / sqrt(n): a branch of
    weight w is worth its play while w > R / 2n.

    Args:
        recent: Weights of the last branches, (LOOK_BACK,) or fewer.
        rest: Weight of what was not played.
        plays_left: Plays that are left.
    """
    return not recent or 2 * plays_left * sum(recent) > rest * len(recent)


def drawn_by_weight(branches: Sequence[Unplayed], number: int, draws: Draws) -> Iterator[Unplayed]:
    """Yield that many branches, each as often as its weight says, but for rounding: systematic sampling."""
    total, sum_before = math.fsum(branch.weight for branch in branches), 0.0
    start, place = draws.uniform(), 0
    for count in range(number):
        target = (count + start) / number * total
        while place < len(branches) - 1 and sum_before + branches[place].weight <= target:
            sum_before += branches[place].weight
            place += 1
        yield branches[place]


@dataclass(frozen=True, slots=True)
class Rate:
    """A success rate, as far as it is known.

    Attributes:
        low: Weight of the branches that succeeded: it is surely not below.
        high: That plus what can succeed of the rest: it is surely not above.
        estimate: The rate itself where both are one; else an unbiased estimate within them, or their middle where
            nothing was drawn from the rest.
        interval: 95% interval of the estimate, never wider than the bracket.
    """

    low: float
    high: float
    estimate: float
    interval: tuple[float, float]


@dataclass(frozen=True, slots=True)
class Rest:
    """What was not played.

    Attributes:
        weight: Weight of what can succeed of it.
        worth: The most of that which can.
        luck: Luck of what cannot, by weight; None if the luck of all episodes together is not known to be 0.
    """

    weight: float
    worth: float
    luck: float | None


def rate_of(played: Played, rest: Rest, drawn: Played) -> Rate:
    """Return what branches, and episodes that were drawn from the rest, say of the success rate.

    Args:
        played: The branches.
        rest: What is left beside them.
        drawn: Episodes that were drawn by their weight from what of it can succeed.
    """
    low = played.succeeded
    high = min(low + rest.worth, 1.0)
    if not len(drawn):
        return Rate(low, high, (low + high) / 2.0 if rest.worth else low, (low, high))
    number, share = len(drawn), sum(drawn.outcomes) / len(drawn)
    slope = _slope(played) if rest.luck is not None and number >= FEWEST_DRAWN else 0.0
    if slope:
        values = [won - slope * luck for won, luck in zip(drawn.outcomes, drawn.lucks, strict=True)]
        mean = math.fsum(values) / number
        spread = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (number - 1) / number)
    value = low + rest.weight * share
    if slope:
        value = low - slope * (played.luck + (rest.luck or 0.0)) + rest.weight * mean
    if slope and spread > ROUNDING:
        half = rest.weight * spread * t_quantile(number)
        ends = value - half, value + half
    else:  # that nothing varies among those that were drawn does not mean that nothing does
        shares = clopper_pearson(float(sum(drawn.outcomes)), float(number))
        ends = min(low + rest.weight * shares[0], value), max(low + rest.weight * shares[1], value)
    value, least, most = (min(max(each, low), high) for each in (value, *ends))
    return Rate(low, high, value, (least, most))


def _slope(played: Played) -> float:
    """Return the multiple of the luck that goes with the outcome best, by the branches that were played."""
    total = played.weight
    if len(played) < FEWEST_PLAYED or total <= 0.0:
        return 0.0
    outcome, luck = played.succeeded / total, played.luck / total
    together = math.fsum(
        weight * (won - outcome) * (each - luck)
        for weight, won, each in zip(played.weights, played.outcomes, played.lucks, strict=True)
    )
    alone = math.fsum(weight * (each - luck) ** 2 for weight, each in zip(played.weights, played.lucks, strict=True))
    return together / alone if alone > 0.0 else 0.0
