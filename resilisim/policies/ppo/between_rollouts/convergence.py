"""Convergence is watched by phase (appendix D.5.1).

Coverage phase: the mean coverage of the required tools is above 0.8 "consistently", in CONSISTENT_WINDOWS windows in a
row. Sequence phase: the mean sequence correctness is above 0.7 in as many windows in a row, and over these the mean
number of steps of successful episodes is smaller than over as many windows before ("step efficiency improvement"). A
window is the episodes that finished during one rollout.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

from annotated_types import Ge

from resilisim.bounds import Count, Share
from resilisim.envs.workflow.kernels.training_law import COVERAGE_PHASE, SEQUENCE_PHASE
from resilisim.policies.ppo.between_rollouts.remembered import Phase, Remembered

# Without a value in the paper: windows hold hundreds of episodes, so five in a row above the line are no accident.
CONSISTENT_WINDOWS = 5


@dataclass(frozen=True, slots=True)
class ConvergenceMonitor(Remembered):
    """The latest windows of the present phase, oldest first, at most twice `consistent_windows`."""

    phase: Phase = COVERAGE_PHASE
    correct: tuple[Share, ...] = ()  # the means that the phase is judged by: coverage or sequence correctness
    steps: tuple[Annotated[float, Ge(0)] | None, ...] = ()  # means of successful episodes, None where there were none
    consistent_windows: Count = CONSISTENT_WINDOWS  # windows in a row that "consistently" means
    coverage_above: Share = 0.8
    sequence_above: Share = 0.7

    def after(self, phase: int, coverage: float, sequence: float, steps: float | None) -> ConvergenceMonitor:
        """Return the monitor after a window in which at least one episode finished; a new phase starts from nothing.

        Steps of failed episodes are left out, because an episode that fails early is short.
        """
        kept = 2 * self.consistent_windows
        same = phase == self.phase
        value = sequence if phase == SEQUENCE_PHASE else coverage
        correct = (*(self.correct if same else ()), value)
        counted = (*(self.steps if same else ()), steps)
        return replace(self, phase=phase, correct=correct[-kept:], steps=counted[-kept:])

    @property
    def windows_above(self) -> int:
        """Windows in a row, up to now, above the line of the phase, as far back as windows are kept."""
        line = self.sequence_above if self.phase == SEQUENCE_PHASE else self.coverage_above
        count = 0
        while count < len(self.correct) and self.correct[-1 - count] > line:
            count += 1
        return count

    @property
    def converged(self) -> bool:
        """Whether the criterion of the present phase holds."""
        half = self.consistent_windows
        if self.windows_above < half or self.phase == COVERAGE_PHASE:
            return self.windows_above >= half
        now = [steps for steps in self.steps[half:] if steps is not None]
        before = [steps for steps in self.steps[:half] if steps is not None]
        if len(self.steps) < 2 * half or not now or not before:
            return False
        return sum(now) / len(now) < sum(before) / len(before)
