"""Exploring an agent on one task: which branch is played next, and what all that were played come to."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final

from resilisim.bounds import Count, Share
from resilisim.envs.session import not_repeated
from resilisim.errors import CheckFailed, InvalidInputError
from resilisim.evaluation.episode.record import EpisodeRecord, UnplayedRecord, gap_of_optimum, has_no_ceiling
from resilisim.exploration.frontier import Frontier, Outlook, Unplayed
from resilisim.exploration.rates import LOOK_BACK, Played, Rest, drawn_by_weight, is_worth_playing, rate_of
from resilisim.options import check_options, option
from resilisim.seeding import Draws
from resilisim.simulator.draws import Branch, BranchingPoint
from resilisim.simulator.rulebook.dynamics import Draw
from resilisim.statistics.estimates import clustered_proportion

WEIGHT_TOLERANCE: Final = 1e-9  # by how much weights of all branches may miss 1, and their luck 0
WIDTH_ROUNDING: Final = 1e-15  # of a width
NO_WORTH: Final = 1e-14  # a chance below it is the rounding error of V*


@dataclass(frozen=True, slots=True)
class ExplorationLimits:
    """Where exploring an agent on a task stops.

    Raises:
        InvalidInputError: A limit is none.
    """

    plays: Count = option(
        2000, "Maximum number of episodes to play, or states to visit, for each task, policy and prompt."
    )
    width: Share = option(
        0.0,
        "Stop once the success rate is known to within this: at 0 it is exact, unless --plays ends it first.",
    )

    def __post_init__(self) -> None:
        """Refuse limits that are none."""
        check_options(self, "limit ")


@dataclass(frozen=True, slots=True)
class ExploredRow:
    """What is known of an agent on one task, under one prompt.

    Attributes:
        policy: Name of the agent.
        task: `instance_id` of the task.
        prompt: Prompt type.
        low: Its success rate is surely not below this.
        high: Nor above this; both are the rate itself where everything was played.
        estimate: The rate, or an estimate of it that is unbiased within the bracket.
        interval: 95% interval of the estimate, (2,).
        dice: How many independent sets of a model's replies are behind it; all numbers are means over them, and the
            interval is one over them where there are several.
        plays: Episodes that were played; of a policy that was followed from state to state, states that were met.
        drawn: Those of them that were drawn from what the others left.
        unplayed: Weight of what was not played, whether or not it can still succeed.
        optimum: V*; None where nobody knows it.
        optimum_gap: By how much it may be too low; 0 where it is exact.
        is_informed: Whether it is that of an agent that sees what the law hides, a bound above what anyone can reach.
        losses: By cause, what was lost against V*; where the rate is exact they add up to V* minus the rate.
    """

    policy: str
    task: str
    prompt: str
    low: float
    high: float
    estimate: float
    interval: tuple[float, float]
    plays: int
    drawn: int
    unplayed: float
    optimum: float | None
    losses: Mapping[str, float] = field(default_factory=dict)
    dice: int = 1
    optimum_gap: float = 0.0
    is_informed: bool = False

    @property
    def is_exact(self) -> bool:
        """Whether nothing that was not played can succeed."""
        return self.low == self.high

    @classmethod
    def of_dice(cls, rows: Sequence[ExploredRow]) -> ExploredRow:
        """Return what rows of one agent, task and prompt say together, each with replies of its own."""
        first, number = rows[0], len(rows)
        if number == 1:
            return first
        low, high, estimate = (
            math.fsum(getattr(row, name) for row in rows) / number for name in ("low", "high", "estimate")
        )
        over_dice = clustered_proportion([row.estimate for row in rows], [1.0] * number)
        labels = dict.fromkeys(label for row in rows for label in row.losses)
        return replace(
            first,
            low=low,
            high=high,
            estimate=estimate,
            interval=(over_dice.low, over_dice.high),
            plays=sum(row.plays for row in rows),
            unplayed=math.fsum(row.unplayed for row in rows) / number,
            drawn=sum(row.drawn for row in rows),
            losses={label: math.fsum(row.losses.get(label, 0.0) for row in rows) / number for label in labels},
            dice=number,
        )

    def to_mapping(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        return {**asdict(self), "interval": list(self.interval)}


@dataclass(frozen=True, slots=True)
class Play:
    """An episode to play.

    Attributes:
        number: How many branches were played before it.
        unplayed: What was known of the branch.
        branch: Where its draws come from.
        is_drawn: Whether it is drawn from what is left, to estimate that.
    """

    number: int
    unplayed: Unplayed
    branch: Branch
    is_drawn: bool

    @property
    def sent(self) -> tuple[str | None, ...]:
        """What the agent has sent on the way there, and has to send again."""
        return self.unplayed.sent


class Exploring:
    """Explores one agent on one task under one prompt: says what to play, and takes in what comes of it.

    Args:
        policy: The agent's name.
        task: Id of the task.
        prompt: Prompt type.
        seed: Whose words the tools say.
        limits: Where to stop.
    """

    def __init__(
        self,
        policy: str,
        task: str,
        prompt: str,
        seed: int,
        limits: ExplorationLimits,
    ) -> None:
        self._policy, self.task, self._prompt, self._limits = policy, task, prompt, limits
        self._frontier, self._played, self._drawn = Frontier(), Played(), Played()
        self._to_draw: Iterator[Unplayed] | None = None
        self._share = 0.0  # weight of each that is drawn
        self._play: Play | None = None
        self._optimum: float | None = None
        self._gap, self._is_informed = 0.0, False
        self._ceiling = 0.0  # no rate is above it, where branches differ in what no agent sees
        self._luck_has_mean_zero = True
        self._choices = Draws("resilisim/explore", task, prompt, seed, policy)

    @property
    def num_played(self) -> int:
        """Episodes that were played."""
        return len(self._played) + len(self._drawn)

    @property
    def bracket(self) -> tuple[float, float]:
        """Between what the success rate surely lies, by what was played so far."""
        low = self._played.succeeded
        return low, low + self._still(self._frontier.open_worth, low)

    def next(self) -> Play | None:
        """Return the episode to play next; None when the limits are reached, or nothing is left."""
        if self._to_draw is None and self._is_to_be_played():
            unplayed = self._frontier.pop()
            branch = Branch(unplayed.results)
        else:
            if self._to_draw is None:
                self._to_draw = self._draws()
            drawn = next(self._to_draw, None)
            if drawn is None:
                return None
            unplayed, branch = drawn, Branch(drawn.results, self._by_weight)
        self._play = Play(len(self._played), unplayed, branch, self._to_draw is not None)
        return self._play

    def enter(self, record: EpisodeRecord) -> bool:
        """Take in what was played last; return whether its record is one of a branch of its own.

        Raises:
            InvalidInputError: The agent did not come to where it was before.
            CheckFailed: A bug.
        """
        if self._play is None:
            raise CheckFailed("no episode is under way")
        play, branch, self._play = self._play, self._play.branch, None
        if len(branch.points) < len(branch.results):
            raise self._refusal(record, play.sent)
        self._optimum = None if has_no_ceiling(record) else record["optimum"]
        self._ceiling = max(self._ceiling, _ceiling_of(record, branch))
        if self._optimum is not None:
            self._gap = max(self._gap, gap_of_optimum(record))
            self._is_informed = record.get("optimum_knowledge") == "informed"
        known = record.get("optimum_knowledge", "observing") == "observing" and not record["optimum_gap"]
        known = known and not branch.tells_unseen_apart
        self._luck_has_mean_zero = self._luck_has_mean_zero and known and not has_no_ceiling(record)
        if self._to_draw is not None:
            self._drawn.enter(self._share, record["outcome"], record["luck"], record["losses"])
            return False
        sent = [step["message"] for step in record["steps"]]
        leaving = self._frontier.enter(branch.points, len(branch.results), sent, outlooks(record, branch.points))
        record["unplayed"] = _change(play.unplayed, leaving)
        self._played.enter(branch.probability, record["outcome"], record["luck"], record["losses"])
        return True

    def row(self) -> ExploredRow:
        """Return what is known.

        Raises:
            CheckFailed: The weights do not add up to 1, or everything was played and its luck is not 0: a bug.
        """
        unplayed = self._frontier.weight
        if abs(self._played.weight + unplayed - 1.0) > WEIGHT_TOLERANCE:
            raise CheckFailed(f"the branches of {self._what} add up to {self._played.weight + unplayed}, expected 1")
        rest, left = Played(), self._frontier.left()
        for branch in left:
            if not (branch.is_open and len(self._drawn)):  # else those that were drawn stand for it
                rest.enter(branch.weight, 0, 0.0 if branch.is_open else branch.luck, branch.losses)
        luck = self._played.luck + rest.luck
        if not self._frontier.is_open and self._luck_has_mean_zero and abs(luck) > WEIGHT_TOLERANCE:
            raise CheckFailed(f"the luck of all branches of {self._what} is {luck}, expected 0")
        weight = math.fsum(branch.weight for branch in left if branch.is_open)
        known = rest.luck if self._luck_has_mean_zero else None
        worth = self._still(self._frontier.worth, self._played.succeeded)
        rate = rate_of(self._played, Rest(weight, worth, known), self._drawn)
        labels = dict.fromkeys((*self._played.losses, *rest.losses, *self._drawn.losses))
        return ExploredRow(
            policy=self._policy,
            task=self.task,
            prompt=self._prompt,
            low=rate.low,
            high=rate.high,
            estimate=rate.estimate,
            interval=rate.interval,
            plays=self.num_played,
            drawn=len(self._drawn),
            optimum=self._optimum,
            optimum_gap=self._gap,
            is_informed=self._is_informed,
            unplayed=unplayed,
            losses={label: sum(part.loss(label) for part in (self._played, rest, self._drawn)) for label in labels},
        )

    @property
    def _what(self) -> str:
        return f"{self._policy} on {self.task} under {self._prompt}"

    def _is_to_be_played(self) -> bool:
        """Return whether the likeliest branch is to be played, rather than nothing, or one that is drawn."""
        left = self._limits.plays - self.num_played
        if not len(self._frontier) or left <= 0 or self._is_narrow():
            return False
        if not self._frontier.is_open:  # the rate is known: what is left completes the records
            return True
        return is_worth_playing(self._played.weights[-LOOK_BACK:], self._frontier.open_weight, left)

    def _is_narrow(self) -> bool:
        still = self._still(self._frontier.open_worth, self._played.succeeded)
        return len(self._played) > 0 and still <= self._limits.width - WIDTH_ROUNDING

    def _still(self, worth: float, low: float) -> float:
        """Return the most that can still succeed of what was not played, by its branches and by V* of the start."""
        if not self._frontier.is_open:
            return 0.0
        return min(worth, max(self._ceiling - low, 0.0)) if self.num_played else worth

    def _draws(self) -> Iterator[Unplayed]:
        """Return what is drawn with the plays that are left."""
        left = self._limits.plays - self.num_played
        if left <= 0 or not self._frontier.is_open or self._is_narrow():
            return iter(())
        branches = [branch for branch in self._frontier.left() if branch.is_open]
        self._share = math.fsum(branch.weight for branch in branches) / left
        return drawn_by_weight(branches, left, self._choices)

    def _by_weight(self, options: Sequence[tuple[float, Draw]]) -> int:
        return self._choices.weighted(range(len(options)), [chance for chance, _ in options])

    def _refusal(self, record: EpisodeRecord, sent: Sequence[str | None]) -> InvalidInputError:
        """Return the refusal of an agent that ended before it came to where it was."""
        place = min(len(record["steps"]), len(sent)) - 1
        step = record["steps"][place]
        return not_repeated(place, step["message"] or step["error"] or step["kind"], sent[place], self._what)


def _change(before: Unplayed, after: Sequence[Unplayed]) -> UnplayedRecord:
    """Return by how much an episode changes what was not played: the branch that it was, into those that leave it."""
    losses: dict[str, list[float]] = {}
    for sign, branch in ((-1.0, before), *((1.0, branch) for branch in after)):
        for label, loss in branch.losses.items():
            losses.setdefault(label, []).append(sign * branch.weight * loss)
    return UnplayedRecord(
        most=math.fsum((*(branch.worth for branch in after), -before.worth)),
        losses={label: math.fsum(changes) for label, changes in losses.items()},
    )


def _ceiling_of(record: EpisodeRecord, branch: Branch) -> float:
    """Return V* of the start where the bounds of branches do not hold it already, and 1 else."""
    if (
        not branch.tells_unseen_apart
        or has_no_ceiling(record)
        or any(step.get("real", False) for step in record["steps"])
    ):
        return 1.0
    return record["optimum"] + record["optimum_gap"]


def outlooks(record: EpisodeRecord, points: Sequence[BranchingPoint]) -> list[Outlook]:
    """Return what is known, at each branching point of an episode, of the branches that leave it there.

    Q* of the call is the mean of what all its results are worth, so the others are worth what the one that was played
    leaves of it. Where V* is no ceiling (in worlds, or by the tool's own failure) nothing is known. Where branches
    differ in what no agent sees, V* is the mean of several: that nothing can succeed any more holds for each of
    them, and no more than that.
    """
    lost: dict[str, float] = {}
    luck, turn, found, differs = 0.0, 0, [], False
    for point in points:
        while turn < point.turn:
            step = record["steps"][turn]
            if step["label"] is not None:
                lost = {**lost, step["label"]: lost.get(step["label"], 0.0) + step["regret"]}
            turn += 1
            if turn < point.turn:
                luck += step["luck"]
        chance, value = point.options[point.taken][0], step["action_value"]
        differs = differs or point.has_unseen
        if "world" in record or step.get("real", False):
            found.append(Outlook(losses=lost))
        elif differs:
            found.append(Outlook(0.0 if value + record["optimum_gap"] <= NO_WORTH else 1.0, lost))
        else:
            most = value + record["optimum_gap"] - chance * (value + step["luck"])
            found.append(Outlook(most if most > NO_WORTH else 0.0, lost, luck - value))
        luck += step["luck"]
    return found
