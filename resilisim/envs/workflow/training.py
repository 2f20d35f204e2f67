"""What training adds: a law of its own (appendix D.4.1), a curriculum (D.4.2), and the success rate that they read.

The training law is p = base x 0.8^(unmet dependencies) x 0.95^retries x (1 + 0.3 c_task), at most 1; its base depends
on the running success rate that the trainer measured.

Curriculum and running success rate are values: a trainer keeps one, hands it the episodes that finished during a
rollout, and gets the next. Between rollouts it tells the environments the stage and the rate. `to_mapping` and
`from_mapping` go through JSON without loss, so a training run that is resumed continues exactly where it stopped.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import TYPE_CHECKING, Any, TypeVar

from resilisim.errors import InvalidInputError, unknown_name
from resilisim.inputs import shown
from resilisim.simulator.compiled import scalar

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    Kind = TypeVar("Kind", bound=DataclassInstance)


LOW_SUCCESS = 0.1  # below it the training law and the error penalty are at their mildest
ADAPTATION_THRESHOLD = 0.3  # theta_adapt: the sequence phase begins
BASES = (0.95, 0.90, 0.85)
UNMET_DEPENDENCY = 0.8
RETRY = 0.95
ALIGNMENT = 0.3  # g = 1 + ALIGNMENT * c_task


@scalar
def training_base(running_success: float) -> float:
    """Return the base probability of the training law at a running success rate."""
    if running_success < LOW_SUCCESS:
        return BASES[0]
    if running_success < ADAPTATION_THRESHOLD:
        return BASES[1]
    return BASES[2]


@scalar
def phase_of(running_success: float) -> int:
    """Return the phase of the reward: 0 coverage, 1 sequence."""
    return 1 if running_success >= ADAPTATION_THRESHOLD else 0


@scalar
def training_probability(base: float, num_unmet: int, num_retries: int, task_confidence: float) -> float:
    """Return the training law's success probability."""
    value = base * (1.0 + ALIGNMENT * task_confidence)
    for _ in range(num_unmet):
        value *= UNMET_DEPENDENCY
    for _ in range(num_retries):
        value *= RETRY
    return min(1.0, max(0.0, value))


# What `phase_of` returns and the column PHASE shows.
COVERAGE_PHASE = 0
SEQUENCE_PHASE = 1


@dataclass(frozen=True, slots=True)
class Stage:
    """What an episode must reach at a stage of the curriculum to count as a success.

    Attributes:
        min_progress: Least progress p, in [0, 1].
        max_errors: Consecutive failed executions that an episode survives (e_max); one more ends it.
        required_coverage: Least share of the required tools that must have succeeded, in [0, 1].
    """

    min_progress: float
    max_errors: int
    required_coverage: float


# Table 12. Its last row, "4+", is as far as stages go (docs/decisions.md).
STAGES = (
    Stage(min_progress=0.1, max_errors=50, required_coverage=0.2),
    Stage(min_progress=0.3, max_errors=30, required_coverage=0.4),
    Stage(min_progress=0.5, max_errors=20, required_coverage=0.7),
    Stage(min_progress=0.7, max_errors=15, required_coverage=0.9),
    Stage(min_progress=0.7, max_errors=10, required_coverage=1.0),
)
MAX_STAGE = len(STAGES) - 1

ADVANCE_ABOVE = 0.7  # theta_advance
REGRESS_BELOW = 0.3  # theta_regress
MIN_EPISODES = 50  # n_min
RUNNING_SUCCESS_EPISODES = 100  # rho_episode of appendix D.4.1 is taken over this many (docs/decisions.md)


def stage_at(number: int) -> Stage:
    """Return what a stage asks for; every number above the last stage means the last.

    Raises:
        InvalidInputError: The number is negative.
    """
    if number < 0:
        raise InvalidInputError(f"stage {number} is negative: expected 0 to {MAX_STAGE} (more means {MAX_STAGE})")
    return STAGES[min(number, MAX_STAGE)]


@dataclass(frozen=True, slots=True)
class Curriculum:
    """The stage, and the latest outcomes that decide on the next one.

    Attributes:
        stage: 0 to 4, a place in STAGES.
        outcomes: Successes of the latest episodes since the last change of stage, oldest first, at most `min_episodes`.
        advance_above: A success rate above it moves a stage up.
        regress_below: A success rate below it moves a stage down.
        min_episodes: Episodes that the rate is taken over, both ways.
    """

    stage: int = 0
    outcomes: tuple[bool, ...] = ()
    advance_above: float = ADVANCE_ABOVE
    regress_below: float = REGRESS_BELOW
    min_episodes: int = MIN_EPISODES

    def __post_init__(self) -> None:
        """Refuse what no curriculum can be."""
        check_whole("stage", self.stage, 0, MAX_STAGE)
        check_whole("min_episodes", self.min_episodes, 1)
        check_number("regress_below", self.regress_below, 0.0, 1.0)
        check_number("advance_above", self.advance_above, 0.0, 1.0)
        if self.regress_below > self.advance_above:
            raise InvalidInputError(
                f"regress_below is {self.regress_below}: expected at most advance_above, which is {self.advance_above}"
            )
        _check_outcomes(self.outcomes, self.min_episodes)

    @property
    def success_rate(self) -> float | None:
        """Success rate over the latest `min_episodes` episodes, or None while there are fewer since the last change."""
        return sum(self.outcomes) / self.min_episodes if len(self.outcomes) == self.min_episodes else None

    def after(self, successes: Iterable[bool]) -> Curriculum:
        """Return the curriculum after some more episodes, in the order in which they finished.

        One call is one update event: the stage moves by one at most, because all these episodes were played at the
        present stage and say nothing about the next. A change empties the window.

        Args:
            successes: Whether each episode was a success by the standard of the present stage.
        """
        outcomes = (*self.outcomes, *(bool(success) for success in successes))[-self.min_episodes :]
        grown = replace(self, outcomes=outcomes)
        rate = grown.success_rate
        stage = self.stage
        if rate is not None and rate > self.advance_above:
            stage = min(stage + 1, MAX_STAGE)
        elif rate is not None and rate < self.regress_below:
            stage = max(stage - 1, 0)
        return grown if stage == self.stage else replace(grown, stage=stage, outcomes=())

    def to_mapping(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        return asdict(self) | {"outcomes": list(self.outcomes)}

    @classmethod
    def from_mapping(cls, mapping: object) -> Curriculum:
        """Read what `to_mapping` gave.

        Raises:
            InvalidInputError: A field is missing, unknown or unusable.
        """
        return read_state(cls, mapping, "curriculum")


@dataclass(frozen=True, slots=True)
class RunningSuccess:
    """The success rate over the last finished episodes: rho_episode of the training law and of the reward's phases.

    Attributes:
        outcomes: Successes of the latest episodes, oldest first, at most `num_episodes`.
        num_episodes: Episodes that the rate is taken over.
    """

    outcomes: tuple[bool, ...] = ()
    num_episodes: int = RUNNING_SUCCESS_EPISODES

    def __post_init__(self) -> None:
        """Refuse what no window can be."""
        check_whole("num_episodes", self.num_episodes, 1)
        _check_outcomes(self.outcomes, self.num_episodes)

    @property
    def rate(self) -> float:
        """Share of successes, over fewer episodes while fewer have finished; 0 before the first (the mildest law)."""
        return sum(self.outcomes) / len(self.outcomes) if self.outcomes else 0.0

    def after(self, successes: Iterable[bool]) -> RunningSuccess:
        """Return the window after some more episodes, in the order in which they finished."""
        outcomes = (*self.outcomes, *(bool(success) for success in successes))[-self.num_episodes :]
        return replace(self, outcomes=outcomes)

    def to_mapping(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        return asdict(self) | {"outcomes": list(self.outcomes)}

    @classmethod
    def from_mapping(cls, mapping: object) -> RunningSuccess:
        """Read what `to_mapping` gave.

        Raises:
            InvalidInputError: A field is missing, unknown or unusable.
        """
        return read_state(cls, mapping, "running success")


def read_state(kind: type[Kind], mapping: object, where: str) -> Kind:
    """Make a dataclass again from what its `to_mapping` gave, after a trip through JSON.

    Arrays become tuples; what the fields may hold is checked by the class itself.

    Args:
        kind: A dataclass whose `__post_init__` refuses what it cannot use.
        mapping: The object that was read.
        where: What the object is, as messages should call it.

    Raises:
        InvalidInputError: A field is missing, unknown, or holds something unusable.
    """
    known = [field.name for field in fields(kind)]
    if not isinstance(mapping, Mapping):
        raise InvalidInputError(f"{where}: expected an object with {', '.join(known)}, got {shown(mapping)}")
    for name in mapping:
        if name not in known:
            raise unknown_name("field", name, known, where)
    for name in known:
        if name not in mapping:
            raise InvalidInputError(f"{where}, field {name!r}: is missing; expected a value")
    values = {name: tuple(value) if isinstance(value, list) else value for name, value in mapping.items()}
    try:
        return kind(**values)
    except (InvalidInputError, TypeError) as error:  # TypeError: a number stands where an array is expected
        raise InvalidInputError(f"{where}: {error}") from None


def check_whole(name: str, value: object, low: int, high: int | None = None) -> None:
    """Refuse a value that is no whole number within bounds."""
    if not isinstance(value, int) or isinstance(value, bool) or value < low or (high is not None and value > high):
        expected = f"at least {low}" if high is None else f"{low} to {high}"
        raise InvalidInputError(f"{name} is {shown(value)}: expected a whole number, {expected}")


def check_number(name: str, value: object, low: float = -math.inf, high: float = math.inf) -> None:
    """Refuse a value that is no finite number within bounds."""
    number = float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else math.nan
    if not (low <= number <= high and math.isfinite(number)):
        bounds = "" if low == -math.inf else f", at least {low:g}" if high == math.inf else f", {low:g} to {high:g}"
        raise InvalidInputError(f"{name} is {shown(value)}: expected a number{bounds}")


def _check_outcomes(outcomes: object, at_most: int) -> None:
    if not isinstance(outcomes, tuple) or not all(isinstance(outcome, bool) for outcome in outcomes):
        raise InvalidInputError(f"outcomes are {shown(outcomes)}: expected true or false for each episode")
    if len(outcomes) > at_most:
        raise InvalidInputError(f"{len(outcomes)} outcomes are in the window: expected at most {at_most}")
