"""Learning rate and entropy coefficient during training: the paper's adaptive ones (appendix D.5.1), and plain ones.

Everything here is a pure function or a value. A `ScheduleState` is told once for each iteration (a rollout and the
updates on it) in which phase and stage it stood and how successful it was, and answers the two questions that the
adaptive learning rate asks: has the sequence phase begun recently, and is performance declining?
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, get_args

from resilisim.envs.workflow.training import (
    COVERAGE_PHASE,
    MAX_STAGE,
    SEQUENCE_PHASE,
    check_number,
    check_whole,
    read_state,
)
from resilisim.errors import InvalidInputError, unknown_name

BASE_LEARNING_RATE = 3e-4  # alpha_base
STAGE_FACTOR = 0.95  # gamma_curriculum
PHASE_CHANGE_FACTOR = 1.2  # beta_phase after a change to the sequence phase
DECLINE_FACTOR = 0.8  # beta_phase while performance declines
COVERAGE_ENTROPY = 0.01  # beta_entropy
SEQUENCE_ENTROPY = 0.005

# Without a value in the paper (docs/decisions.md).
# "Recently": about as long as the value network needs to learn the returns of the new phase's reward.
RECENT_ITERATIONS = 10
# "Declining": a success rate over 100 episodes has a standard error of 0.05 at worst, so the best of ten lies 0.08
# above the truth by chance alone. In a steady run at 0.5 this margin sees decline in 1.3% of the iterations where each
# rate comes from new episodes; a margin of 0.1 would in 30%.
DECLINE_WINDOW = 10
DECLINE_MARGIN = 0.2

ScheduleKind = Literal["constant", "linear", "cosine"]


@dataclass(frozen=True, slots=True)
class Schedule:
    """A number that depends on how much of the training is done.

    Attributes:
        base: Value at the start.
        kind: constant; linear, along a straight line; cosine, along half a cosine wave.
        floor: Value at the end, unless constant.
    """

    base: float
    kind: ScheduleKind = "constant"
    floor: float = 0.0

    def __post_init__(self) -> None:
        """Refuse what is no schedule."""
        if self.kind not in get_args(ScheduleKind):
            raise unknown_name("schedule", self.kind, get_args(ScheduleKind))
        check_number("base", self.base)
        check_number("floor", self.floor)

    def at(self, progress: float) -> float:
        """Return the value after a share of the training; shares outside [0, 1] count as the nearer end."""
        done = min(max(progress, 0.0), 1.0)
        if self.kind == "constant":
            return self.base
        left = 1.0 - done if self.kind == "linear" else 0.5 * (1.0 + math.cos(math.pi * done))
        return self.floor + (self.base - self.floor) * left


def learning_rate(base: float, stage: int, phase_changed_recently: bool, declining: bool) -> float:
    """Return the adaptive learning rate: base x 0.95^stage x beta_phase.

    Both conditions can hold: a change of phase changes the reward, and success may well fall then. The paper names the
    change first, so it counts.

    Args:
        base: Learning rate at stage 0 of a stable phase; the paper's is BASE_LEARNING_RATE.
        stage: Stage of the curriculum, 0 to 4.
        phase_changed_recently: Whether training went over to the sequence phase a short while ago.
        declining: Whether success is falling.
    """
    phase_factor = PHASE_CHANGE_FACTOR if phase_changed_recently else DECLINE_FACTOR if declining else 1.0
    return base * STAGE_FACTOR**stage * phase_factor


def entropy_coefficient(phase: int) -> float:
    """Return the weight of the entropy in the objective: 0.01 in the coverage phase, 0.005 in the sequence phase."""
    return SEQUENCE_ENTROPY if phase == SEQUENCE_PHASE else COVERAGE_ENTROPY


@dataclass(frozen=True, slots=True)
class ScheduleState:
    """What the adaptive learning rate remembers of the training so far.

    Attributes:
        iteration: Number of the latest iteration, or -1 before the first.
        phase: Its phase.
        stage: Its stage.
        changed_at: Iteration with which the sequence phase last began after a coverage phase; None if none has.
        rates: Running success of the latest iterations of this phase and stage, oldest first; at most `decline_window`.
        recent_iterations: Iterations from that beginning on that count as recent.
        decline_window: Iterations that the best rate is looked for in.
        decline_margin: How far below the best a rate must have fallen.
    """

    iteration: int = -1
    phase: int = COVERAGE_PHASE
    stage: int = 0
    changed_at: int | None = None
    rates: tuple[float, ...] = ()
    recent_iterations: int = RECENT_ITERATIONS
    decline_window: int = DECLINE_WINDOW
    decline_margin: float = DECLINE_MARGIN

    def __post_init__(self) -> None:
        """Refuse what cannot be."""
        check_whole("iteration", self.iteration, -1)
        check_whole("phase", self.phase, COVERAGE_PHASE, SEQUENCE_PHASE)
        check_whole("stage", self.stage, 0, MAX_STAGE)
        if self.changed_at is not None:
            check_whole("changed_at", self.changed_at, 0, self.iteration)
        check_whole("recent_iterations", self.recent_iterations, 0)
        check_whole("decline_window", self.decline_window, 1)
        check_number("decline_margin", self.decline_margin, 0.0, 1.0)
        for rate in self.rates:
            check_number("rates", rate, 0.0, 1.0)
        if len(self.rates) > self.decline_window:
            raise InvalidInputError(f"{len(self.rates)} rates are kept: expected at most {self.decline_window}")

    @property
    def phase_changed_recently(self) -> bool:
        """Whether the sequence phase lasts and began at most `recent_iterations` iterations ago."""
        if self.changed_at is None or self.phase != SEQUENCE_PHASE:
            return False
        return self.iteration - self.changed_at < self.recent_iterations

    @property
    def declining(self) -> bool:
        """Whether running success lies more than the margin below its best within the window."""
        return bool(self.rates) and self.rates[-1] < max(self.rates) - self.decline_margin

    def learning_rate(self, base: float = BASE_LEARNING_RATE) -> float:
        """Return the adaptive learning rate for the next updates."""
        return learning_rate(base, self.stage, self.phase_changed_recently, self.declining)

    def after(self, iteration: int, phase: int, running_success: float, stage: int = 0) -> ScheduleState:
        """Return the state after an iteration.

        Rates of another phase or stage are dropped: there, success meant something else.

        Args:
            iteration: Its number, larger than that before.
            phase: The phase in which its episodes were played.
            running_success: The success rate at its end, in [0, 1].
            stage: The stage at which its episodes were played.
        """
        if iteration <= self.iteration:
            raise InvalidInputError(f"iteration {iteration} comes after {self.iteration}: expected a larger number")
        first = self.iteration < 0
        began = phase == SEQUENCE_PHASE and self.phase == COVERAGE_PHASE and not first
        same = phase == self.phase and stage == self.stage
        rates = (*self.rates, float(running_success)) if same else (float(running_success),)
        return replace(
            self,
            iteration=iteration,
            phase=phase,
            stage=stage,
            changed_at=iteration if began else self.changed_at,
            rates=rates[-self.decline_window :],
        )

    def to_mapping(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        return asdict(self) | {"rates": list(self.rates)}

    @classmethod
    def from_mapping(cls, mapping: object) -> ScheduleState:
        """Read what `to_mapping` gave.

        Raises:
            InvalidInputError: A field is missing, unknown or unusable.
        """
        return read_state(cls, mapping, "schedule state")
