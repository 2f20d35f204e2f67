"""What the parts of a training remember: immutable values that go through JSON without loss.

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

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Annotated, Any, ClassVar, Literal, Self, TypeAlias, cast, get_args

from annotated_types import Ge, Le, MaxLen, MinLen
from pydantic import ConfigDict

from resilisim.envs.workflow.training import (
    COVERAGE_PHASE,
    MAX_STAGE,
    SEQUENCE_PHASE,
    check_number,
)
from resilisim.errors import InvalidInputError, unknown_name
from resilisim.inputs import validated

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

Phase = Annotated[int, Ge(COVERAGE_PHASE), Le(SEQUENCE_PHASE)]
Share = Annotated[float, Ge(0), Le(1)]


class Remembered:
    """What a part remembers: a frozen dataclass that goes through JSON without loss."""

    __pydantic_config__: ClassVar = ConfigDict(extra="forbid", allow_inf_nan=False)

    def to_mapping(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        mapping: dict[str, Any] = json.loads(json.dumps(asdict(cast("Any", self))))
        return mapping

    @classmethod
    def from_mapping(cls, mapping: object) -> Self:
        """Read what `to_mapping` gave.

        Raises:
            InvalidInputError: A field is unknown or unusable.
        """
        return validated(cls, mapping, "a part of the training")


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
class ScheduleState(Remembered):
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

    iteration: Annotated[int, Ge(-1)] = -1
    phase: Phase = COVERAGE_PHASE
    stage: Annotated[int, Ge(0), Le(MAX_STAGE)] = 0
    changed_at: Annotated[int, Ge(0)] | None = None
    rates: tuple[Share, ...] = ()
    recent_iterations: Annotated[int, Ge(0)] = RECENT_ITERATIONS
    decline_window: Annotated[int, Ge(1)] = DECLINE_WINDOW
    decline_margin: Share = DECLINE_MARGIN

    def __post_init__(self) -> None:
        """Refuse what cannot be."""
        if self.changed_at is not None and self.changed_at > self.iteration:
            raise ValueError(f"changed_at is {self.changed_at}: expected at most the iteration, {self.iteration}")
        if len(self.rates) > self.decline_window:
            raise ValueError(f"{len(self.rates)} rates are kept: expected at most {self.decline_window}")

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
        stored = validated(_StoredLibrary, mapping, "pattern library")
        totals = {pattern.tools: (pattern.total, pattern.count) for pattern in stored.patterns}
        if len(totals) < len(stored.patterns):
            raise InvalidInputError("pattern library: a pattern stands there twice; expected each once")
        return cls(totals, stored.max_patterns)


@dataclass(frozen=True, slots=True)
class _StoredPattern(Remembered):
    tools: Annotated[tuple[str, ...], MinLen(2), MaxLen(3)]
    total: float
    count: Annotated[int, Ge(1)]


@dataclass(frozen=True, slots=True)
class _StoredLibrary(Remembered):
    max_patterns: Annotated[int, Ge(1)]
    patterns: list[_StoredPattern]


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
class ConvergenceMonitor(Remembered):
    """The latest windows of the present phase.

    Attributes:
        phase: Phase of the windows.
        correct: For each window, oldest first, the mean that its phase is judged by: coverage or sequence correctness.
        steps: For each window the mean steps of its successful episodes, or None if it had none.
        consistent_windows: Windows in a row that "consistently" means.
        coverage_above: Line of the coverage phase.
        sequence_above: Line of the sequence phase.
    """

    phase: Phase = COVERAGE_PHASE
    correct: tuple[Share, ...] = ()
    steps: tuple[Annotated[float, Ge(0)] | None, ...] = ()
    consistent_windows: Annotated[int, Ge(1)] = CONSISTENT_WINDOWS
    coverage_above: Share = COVERAGE_ABOVE
    sequence_above: Share = SEQUENCE_ABOVE

    def __post_init__(self) -> None:
        """Refuse what cannot be."""
        if len(self.correct) != len(self.steps) or len(self.steps) > 2 * self.consistent_windows:
            raise ValueError(
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


def _mean(steps: tuple[float | None, ...]) -> float | None:
    """Return the mean over the windows that had a successful episode, or None if none had."""
    numbers = [number for number in steps if number is not None]
    return sum(numbers) / len(numbers) if numbers else None
