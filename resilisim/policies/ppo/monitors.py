"""Convergence, watched by phase (appendix D.5.1).

* Coverage phase: the mean coverage of the required tools is above 0.8 "consistently": in CONSISTENT_WINDOWS windows in
  a row.
* Sequence phase: the mean sequence correctness is above 0.7 in as many windows in a row, and over these the mean number
  of steps of successful episodes is smaller than over as many windows before ("step efficiency improvement").

A window is what a trainer makes it, usually the episodes that finished during one rollout.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from resilisim.envs.workflow.training import COVERAGE_PHASE, SEQUENCE_PHASE, check_number, check_whole, read_state
from resilisim.errors import InvalidInputError

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
