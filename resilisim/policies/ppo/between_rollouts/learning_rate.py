"""The learning rate follows stage, phase and success (appendix D.5.1), or a plain schedule."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Annotated, Literal

from annotated_types import Ge

from resilisim.bounds import Count, Share
from resilisim.envs.workflow.kernels.training_law import COVERAGE_PHASE, SEQUENCE_PHASE
from resilisim.policies.ppo.between_rollouts.remembered import Phase, Remembered, Stage

STAGE_FACTOR = 0.95  # gamma_curriculum
PHASE_CHANGE_FACTOR = 1.2  # beta_phase after a change to the sequence phase
DECLINE_FACTOR = 0.8  # beta_phase while performance declines

# Without a value in the paper (docs/decisions).
# "Recently": about as long as the value network needs to learn the returns of the new phase's reward.
RECENT_ITERATIONS = 10
# "Declining": a success rate over 100 episodes has a standard error of 0.05 at worst, so the best of ten lies 0.08
# above the truth by chance alone. In a steady run at 0.5 this margin sees decline in 1.3% of the iterations where each
# rate comes from new episodes; a margin of 0.1 would in 30%.
DECLINE_WINDOW = 10
DECLINE_MARGIN = 0.2


def scheduled(base: float, kind: Literal["constant", "linear", "cosine"], progress: float) -> float:
    """Return a value that falls from `base` to 0 with the share of the training that is done, unless constant."""
    done = min(max(progress, 0.0), 1.0)
    if kind == "constant":
        return base
    return base * (1.0 - done if kind == "linear" else 0.5 * (1.0 + math.cos(math.pi * done)))


@dataclass(frozen=True, slots=True)
class ScheduleState(Remembered):
    """What the adaptive learning rate remembers; an iteration is a rollout and the updates on it."""

    iteration: Annotated[int, Ge(-1)] = -1  # the latest one, before the first -1
    phase: Phase = COVERAGE_PHASE
    stage: Stage = 0
    changed_at: Annotated[int, Ge(0)] | None = None  # when the sequence phase last began after a coverage phase
    rates: tuple[Share, ...] = ()  # running success in this phase and stage, oldest first; at most `decline_window`
    recent_iterations: Annotated[int, Ge(0)] = RECENT_ITERATIONS  # from that beginning on
    decline_window: Count = DECLINE_WINDOW
    decline_margin: Share = DECLINE_MARGIN  # how far below the best a rate must have fallen

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

    def learning_rate(self, base: float) -> float:
        """Return the learning rate for the next updates: base x 0.95^stage x beta_phase.

        Both conditions can hold: a change of phase changes the reward, and success may well fall then. The paper names
        the change first, so it counts.
        """
        factor = PHASE_CHANGE_FACTOR if self.phase_changed_recently else DECLINE_FACTOR if self.declining else 1.0
        return base * STAGE_FACTOR**self.stage * factor

    def after(self, iteration: int, phase: int, running_success: float, stage: int = 0) -> ScheduleState:
        """Return the state after an iteration that was played in this phase and stage, with its success at the end.

        Rates of another phase or stage are dropped: there, success meant something else.
        """
        began = phase == SEQUENCE_PHASE and self.phase == COVERAGE_PHASE and self.iteration >= 0
        same = phase == self.phase and stage == self.stage
        rates = (*(self.rates if same else ()), running_success)
        return replace(
            self,
            iteration=iteration,
            phase=phase,
            stage=stage,
            changed_at=iteration if began else self.changed_at,
            rates=rates[-self.decline_window :],
        )
