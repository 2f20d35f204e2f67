"""The parts of a training run that can be switched off, one class each, and the values that they keep.

A part learns from the episodes that finished in a rollout and sets values of the environments or the model before the
next rollout, never during one: an episode stays a function of its seed and of values that are logged. Each part keeps
one immutable value, which goes through JSON without loss, so that a resumed run goes on exactly where it stopped.

* Learning rate and entropy coefficient: the paper's adaptive ones (appendix D.5.1), and plain ones. A `ScheduleState`
  is told once for each iteration (a rollout and the updates on it) in which phase and stage it stood and how successful
  it was, and answers: has the sequence phase begun recently, and is performance declining?
* Patterns of tools mined from successful episodes (D.5.2), which feed the pattern confidence of the mask. A pattern is
  two or three tools that succeeded one directly after the other. Its score is the mean score of the successful episodes
  that contain it; an episode counts once for each pattern, however often it contains it.
* Convergence, watched by phase (D.5.1). Coverage phase: the mean coverage of the required tools is above 0.8
  "consistently", in CONSISTENT_WINDOWS windows in a row. Sequence phase: the mean sequence correctness is above 0.7 in
  as many windows in a row, and over these the mean number of steps of successful episodes is smaller than over as many
  windows before ("step efficiency improvement"). A window is the episodes that finished during one rollout.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Annotated, Any, ClassVar, Generic, Literal, Protocol, Self, TypeAlias, TypeVar, get_args

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field
from sb3_contrib import MaskablePPO

from resilisim.envs.workflow.training import (
    COVERAGE_PHASE,
    MAX_STAGE,
    SEQUENCE_PHASE,
    Curriculum,
    RunningSuccess,
    check_number,
    check_whole,
    phase_of,
    read_state,
)
from resilisim.errors import InvalidInputError, StoreError, unknown_name
from resilisim.inputs import validated
from resilisim.policies.ppo.config import TrainingConfig

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


class _StoredPattern(BaseModel):
    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    tools: Annotated[tuple[str, ...], Field(min_length=min(PATTERN_LENGTHS), max_length=max(PATTERN_LENGTHS))]
    total: float
    count: Annotated[int, Field(ge=1)]


class _StoredPatterns(BaseModel):
    model_config = ConfigDict(extra="forbid")

    max_patterns: Annotated[int, Field(ge=1)]
    patterns: tuple[_StoredPattern, ...]


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
        where = "pattern library"
        given = validated(_StoredPatterns, mapping, where)
        totals = {stored.tools: (stored.total, stored.count) for stored in given.patterns}
        if len(totals) < len(given.patterns):
            raise InvalidInputError(f"{where}, field 'patterns': a pattern stands there twice; expected each once")
        return cls(totals, given.max_patterns)


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


COVERAGE_ABOVE = 0.8
SEQUENCE_ABOVE = 0.7
# Without a value in the paper: windows hold hundreds of episodes, so five in a row above the line are no accident.
CONSISTENT_WINDOWS = 5

Criterion = Literal["coverage", "sequence"]


@dataclass(frozen=True, slots=True)
class Convergence:
    """What the monitor says now.

    Attributes:
        criterion: The criterion of the present phase if it holds, else None.
        consistent_windows: Windows in a row, up to now, above the phase's line; counting stops at twice
            `consistent_windows` of the monitor.
        steps_now: Mean steps of successful episodes over the latest windows of the sequence phase, if there are enough.
        steps_before: The same over as many windows before, if there are enough.
    """

    criterion: Criterion | None
    consistent_windows: int
    steps_now: float | None
    steps_before: float | None

    @property
    def converged(self) -> bool:
        """Whether the criterion of the present phase holds."""
        return self.criterion is not None


@dataclass(frozen=True, slots=True)
class ConvergenceMonitor:
    """The latest windows of the present phase.

    Attributes:
        phase: Phase of the windows.
        correct: For each window, oldest first, the mean that its phase is judged by: coverage or sequence correctness.
        steps: For each window the mean steps of its successful episodes, or None if it had none.
        consistent_windows: Windows in a row that "consistently" means.
        coverage_above: Line of the coverage phase.
        sequence_above: Line of the sequence phase.
    """

    phase: int = COVERAGE_PHASE
    correct: tuple[float, ...] = ()
    steps: tuple[float | None, ...] = ()
    consistent_windows: int = CONSISTENT_WINDOWS
    coverage_above: float = COVERAGE_ABOVE
    sequence_above: float = SEQUENCE_ABOVE

    def __post_init__(self) -> None:
        """Refuse what cannot be."""
        check_whole("phase", self.phase, COVERAGE_PHASE, SEQUENCE_PHASE)
        check_whole("consistent_windows", self.consistent_windows, 1)
        for line in (self.coverage_above, self.sequence_above, *self.correct):
            check_number("coverage, sequence correctness or its line", line, 0.0, 1.0)
        for number in self.steps:
            if number is not None:
                check_number("steps", number, 0.0)
        if len(self.correct) != len(self.steps) or len(self.steps) > 2 * self.consistent_windows:
            raise InvalidInputError(
                f"{len(self.correct)} windows with {len(self.steps)} numbers of steps: expected as many of both, "
                f"at most {2 * self.consistent_windows}"
            )

    def after(self, phase: int, coverage: float, sequence: float, steps: float | None) -> ConvergenceMonitor:
        """Return the monitor after a window in which at least one episode finished; a new phase starts from nothing.

        Args:
            phase: The phase in which its episodes were played.
            coverage: Mean share of required tools that succeeded, in [0, 1].
            sequence: Mean sequence correctness r_sequence, in [0, 1].
            steps: Mean steps of the successful episodes, or None if there were none. Failed ones are left out, because
                an episode that fails early is short.
        """
        kept = 2 * self.consistent_windows
        same = phase == self.phase
        value = sequence if phase == SEQUENCE_PHASE else coverage
        correct = (*(self.correct if same else ()), float(value))
        counted = (*(self.steps if same else ()), None if steps is None else float(steps))
        return replace(self, phase=phase, correct=correct[-kept:], steps=counted[-kept:])

    @property
    def convergence(self) -> Convergence:
        """What the monitor says now."""
        in_sequence_phase = self.phase == SEQUENCE_PHASE
        line = self.sequence_above if in_sequence_phase else self.coverage_above
        consistent = 0
        while consistent < len(self.correct) and self.correct[-1 - consistent] > line:
            consistent += 1
        now = before = None
        if in_sequence_phase and len(self.steps) == 2 * self.consistent_windows:
            now = _mean(self.steps[self.consistent_windows :])
            before = _mean(self.steps[: self.consistent_windows])
        holds = consistent >= self.consistent_windows
        if in_sequence_phase:
            holds = holds and now is not None and before is not None and now < before
        criterion: Criterion = "sequence" if in_sequence_phase else "coverage"
        return Convergence(criterion if holds else None, consistent, now, before)

    def to_mapping(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        return asdict(self) | {"correct": list(self.correct), "steps": list(self.steps)}

    @classmethod
    def from_mapping(cls, mapping: object) -> ConvergenceMonitor:
        """Read what `to_mapping` gave.

        Raises:
            InvalidInputError: A field is missing, unknown or unusable.
        """
        return read_state(cls, mapping, "convergence monitor")


def _mean(steps: tuple[float | None, ...]) -> float | None:
    """Return the mean over the windows that had a successful episode, or None if none had."""
    numbers = [number for number in steps if number is not None]
    return sum(numbers) / len(numbers) if numbers else None


class Environments(Protocol):
    """The environments, as far as parts set values of theirs."""

    def set_running_success(self, rate: float) -> None:
        """Set the running success rate that the training law and the reward's phase read."""

    def set_stage(self, stage: int) -> None:
        """Set the stage of the curriculum."""

    def set_patterns(self, patterns: Mapping[tuple[str, ...], float]) -> None:
        """Set the mined patterns with their scores."""


@dataclass(frozen=True, slots=True, eq=False)
class Rollout:
    """The episodes that finished during a rollout, and under what they were played.

    Attributes:
        update: Number of the rollout, from 0.
        phase: Phase of the reward.
        stage: Stage of the curriculum.
        running_success: Running success rate after these episodes.
        figures: For each of recorders.EPISODE_FIGURES a float64 array (num_finished,), in the order of finishing.
        sequences: For each episode its successful tools by first success; empty where nobody asks for them.
    """

    update: int
    phase: int
    stage: int
    running_success: float
    figures: Mapping[str, NDArray[np.float64]]
    sequences: Sequence[tuple[str, ...]]

    @property
    def num_finished(self) -> int:
        """How many episodes finished."""
        return len(self.figures["success"])

    def mean(self, figure: str) -> float | None:
        """Return the mean of a figure over the finished episodes, or None if there are none."""
        values = self.figures[figure]
        return float(values.mean()) if len(values) else None


class State(Protocol):
    """What a part remembers: an immutable value that goes through JSON without loss."""

    def to_mapping(self) -> dict[str, Any]:
        """Return the fields as JSON values."""

    @classmethod
    def from_mapping(cls, mapping: object) -> Self:
        """Read what `to_mapping` gave."""


StateT = TypeVar("StateT", bound=State | None)


class Part(Generic[StateT]):
    """A part of a training run; this one does nothing.

    Args:
        state: What the part remembers at first; None if it remembers nothing.
    """

    name: ClassVar[str]

    def __init__(self, state: StateT) -> None:
        self.state = state

    def after_rollout(self, rollout: Rollout) -> None:
        """Learn from a rollout."""

    def before_rollout(self, model: MaskablePPO, environments: Environments, progress: float) -> None:
        """Set values for the next rollout and the updates on it.

        Args:
            model: What is trained.
            environments: Where it is trained.
            progress: Share of the training that is done, in [0, 1].
        """

    def figures(self) -> dict[str, float]:
        """Return what to log."""
        return {}

    def to_mapping(self) -> dict[str, Any] | None:
        """Return what the part remembers, as JSON values."""
        return None if self.state is None else self.state.to_mapping()

    def restore(self, mapping: Any) -> None:
        """Take over what `to_mapping` returned."""
        if self.state is not None:
            self.state = self.state.from_mapping(mapping)


class SuccessRate(Part[RunningSuccess]):
    """Tells the environments the running success rate, which decides the training law's base and the reward's phase."""

    name = "success_rate"

    def __init__(self) -> None:
        super().__init__(RunningSuccess())

    @property
    def phase(self) -> int:
        """The phase that the rate stands for."""
        return int(phase_of(self.state.rate))

    def after_rollout(self, rollout: Rollout) -> None:
        """Add the episodes to the window."""
        self.state = self.state.after(bool(success) for success in rollout.figures["success"])

    def before_rollout(self, model: MaskablePPO, environments: Environments, progress: float) -> None:
        """Set the rate."""
        environments.set_running_success(self.state.rate)

    def figures(self) -> dict[str, float]:
        """Return rate and phase."""
        return {"running_success": self.state.rate, "phase": float(self.phase)}


class CurriculumStages(Part[Curriculum]):
    """Moves through the stages of Table 12 (D.4.2)."""

    name = "curriculum"

    def __init__(self) -> None:
        super().__init__(Curriculum())

    def after_rollout(self, rollout: Rollout) -> None:
        """Move a stage up or down, if the episodes say so."""
        self.state = self.state.after(bool(success) for success in rollout.figures["success"])

    def before_rollout(self, model: MaskablePPO, environments: Environments, progress: float) -> None:
        """Set the stage."""
        environments.set_stage(self.state.stage)

    def figures(self) -> dict[str, float]:
        """Return the stage."""
        return {"stage": float(self.state.stage)}


class MinedPatterns(Part[PatternLibrary]):
    """Mines patterns of tools from successful episodes for the pattern confidence (D.5.2)."""

    name = "patterns"

    def __init__(self) -> None:
        super().__init__(PatternLibrary())

    def after_rollout(self, rollout: Rollout) -> None:
        """Add the successful episodes."""
        chosen = np.flatnonzero(rollout.figures["success"]).tolist()
        sequences = [rollout.sequences[place] for place in chosen]
        self.state = self.state.add(sequences, rollout.figures["score"][chosen].tolist())

    def before_rollout(self, model: MaskablePPO, environments: Environments, progress: float) -> None:
        """Set the patterns."""
        environments.set_patterns(self.state.scores())

    def figures(self) -> dict[str, float]:
        """Return how many patterns there are."""
        return {"patterns": float(len(self.state.scores()))}


class LearningRate(Part[ScheduleState]):
    """Sets the learning rate from the share of the training that is done, or by stage and phase (D.5.1).

    Args:
        base: Learning rate at the start.
        schedule: constant, linear, cosine, or adaptive.
    """

    name = "learning_rate"

    def __init__(self, base: float, schedule: ScheduleKind | Literal["adaptive"]) -> None:
        super().__init__(ScheduleState())
        self.base = base
        self.value = base
        self.plain = None if schedule == "adaptive" else Schedule(base, schedule)

    def __call__(self, _: float) -> float:
        """Return the present value; stable-baselines3 asks for it before each update."""
        return self.value

    def after_rollout(self, rollout: Rollout) -> None:
        """Remember how the rollout went."""
        self.state = self.state.after(rollout.update, rollout.phase, rollout.running_success, rollout.stage)

    def before_rollout(self, model: MaskablePPO, environments: Environments, progress: float) -> None:
        """Set the rate of the next updates."""
        self.value = self.state.learning_rate(self.base) if self.plain is None else self.plain.at(progress)

    def figures(self) -> dict[str, float]:
        """Return the rate."""
        return {"learning_rate": self.value}


class AdaptiveEntropy(Part[None]):
    """Halves the entropy's coefficient in the sequence phase: 0.01 and 0.005 in D.5.1.

    Args:
        base: Coefficient in the coverage phase.
        rate: The part that knows the phase.
    """

    name = "adaptive_entropy"

    def __init__(self, base: float, rate: SuccessRate) -> None:
        super().__init__(None)
        self.base = base
        self.value = base
        self._rate = rate

    def before_rollout(self, model: MaskablePPO, environments: Environments, progress: float) -> None:
        """Set the coefficient of the next updates."""
        self.value = self.base * (entropy_coefficient(self._rate.phase) / COVERAGE_ENTROPY)
        model.ent_coef = self.value

    def figures(self) -> dict[str, float]:
        """Return the coefficient."""
        return {"entropy_coefficient": self.value}


class Monitors(Part[ConvergenceMonitor]):
    """Watches convergence by phase (D.5.1) and logs it."""

    name = "monitors"

    def __init__(self) -> None:
        super().__init__(ConvergenceMonitor())

    def after_rollout(self, rollout: Rollout) -> None:
        """Add the rollout as a window."""
        coverage, sequence = rollout.mean("coverage"), rollout.mean("sequence")
        if coverage is None or sequence is None:
            return
        steps = rollout.figures["steps"][rollout.figures["success"] > 0]
        mean_steps = float(steps.mean()) if len(steps) else None
        self.state = self.state.after(rollout.phase, coverage, sequence, mean_steps)

    def figures(self) -> dict[str, float]:
        """Return whether the criterion of the present phase holds, and for how many windows its line was passed."""
        now = self.state.convergence
        return {"converged": float(now.converged), "consistent_windows": float(now.consistent_windows)}


class Parts:
    """The parts that a configuration switches on, in the order in which they work.

    Args:
        config: The configuration.
    """

    def __init__(self, config: TrainingConfig) -> None:
        self.rate = SuccessRate()
        self.learning_rate = LearningRate(config.learning_rate, config.learning_rate_schedule)
        self.curriculum = CurriculumStages() if config.curriculum else None
        self.patterns = MinedPatterns() if config.patterns else None
        entropy = AdaptiveEntropy(config.entropy, self.rate) if config.adaptive_entropy else None
        monitors = Monitors() if config.monitors else None
        chosen = (self.rate, self.curriculum, self.patterns, self.learning_rate, entropy, monitors)
        self.all: tuple[Part[Any], ...] = tuple(part for part in chosen if part is not None)

    def before_rollout(self, model: MaskablePPO, environments: Environments, progress: float) -> None:
        """Let every part set its values; without a curriculum success is measured as at its last stage."""
        if self.curriculum is None:
            environments.set_stage(MAX_STAGE)
        for part in self.all:
            part.before_rollout(model, environments, progress)

    def after_rollout(
        self, update: int, figures: Mapping[str, NDArray[np.float64]], sequences: Sequence[tuple[str, ...]]
    ) -> Rollout:
        """Let every part learn from the episodes that finished, and return the rollout."""
        phase = self.rate.phase
        stage = 0 if self.curriculum is None else self.curriculum.state.stage
        after = self.rate.state.after(bool(success) for success in figures["success"])
        rollout = Rollout(update, phase, stage, after.rate, figures, sequences)
        for part in self.all:
            part.after_rollout(rollout)
        return rollout

    def figures(self) -> dict[str, float]:
        """Return what every part logs."""
        return {name: value for part in self.all for name, value in part.figures().items()}

    def to_mapping(self) -> dict[str, Any]:
        """Return what every part remembers."""
        return {part.name: part.to_mapping() for part in self.all}

    def restore(self, mapping: Mapping[str, Any]) -> None:
        """Take over what `to_mapping` returned for the same configuration.

        Raises:
            StoreError: A part is missing.
        """
        for part in self.all:
            if part.name not in mapping:
                raise StoreError(f"the point to resume from knows nothing of {part.name}: expected all parts")
            part.restore(mapping[part.name])
