"""The parts of a training run that can be switched off, together; and the running success, which most of them follow.

A part learns from the episodes that finished in a rollout and sets values of the environments or the model before the
next rollout, never during one: an episode stays a function of its seed and of values that are logged.

Running success decides the training law's base and the phase of the reward; phase and stage decide the entropy
coefficient (appendix D.5.1) as they do the learning rate.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray
from sb3_contrib import MaskablePPO

from resilisim.bounds import Count
from resilisim.envs.workflow.kernels.training_law import MAX_STAGE, SEQUENCE_PHASE, phase_of
from resilisim.envs.workflow.vector import WorkflowVectorEnv
from resilisim.errors import StoreError
from resilisim.policies.ppo.between_rollouts.convergence import ConvergenceMonitor
from resilisim.policies.ppo.between_rollouts.curriculum import BY_OPTIMUM, PAPER_LESSONS, Curriculum, Lesson
from resilisim.policies.ppo.between_rollouts.learning_rate import ScheduleState, scheduled
from resilisim.policies.ppo.between_rollouts.patterns import PatternLibrary
from resilisim.policies.ppo.between_rollouts.remembered import Remembered
from resilisim.policies.ppo.config import TrainingConfig

# Of each episode that finished in a rollout, in the order of finishing: float64 (num_finished,) by name.
Figures: TypeAlias = Mapping[str, NDArray[np.float64]]
StateT = TypeVar("StateT", bound=Remembered)

SEQUENCE_ENTROPY_FACTOR = 0.5  # beta_entropy is 0.01 in the coverage phase and 0.005 in the sequence phase
RUNNING_SUCCESS_EPISODES = 100  # rho_episode of appendix D.4.1 is taken over this many (docs/decisions)


@dataclass(frozen=True, slots=True)
class RunningSuccess(Remembered):
    """The successes of the latest `num_episodes` finished episodes, oldest first."""

    outcomes: tuple[bool, ...] = ()
    num_episodes: Count = RUNNING_SUCCESS_EPISODES

    @property
    def rate(self) -> float:
        """Share of successes, over fewer episodes while fewer have finished; 0 before the first (the mildest law)."""
        return sum(self.outcomes) / len(self.outcomes) if self.outcomes else 0.0

    @property
    def phase(self) -> int:
        """The phase of the reward that the rate stands for."""
        return int(phase_of(self.rate))

    def after(self, successes: Iterable[bool]) -> RunningSuccess:
        """Return the window after some more episodes, in the order in which they finished."""
        return replace(self, outcomes=(*self.outcomes, *successes)[-self.num_episodes :])


class TrainingParts:
    """The parts that a configuration switches on; those that are off remember None and set nothing."""

    def __init__(self, config: TrainingConfig, lessons: Sequence[Lesson] = PAPER_LESSONS) -> None:
        self._config = config
        self._lessons = lessons
        self._running = RunningSuccess()
        rules = {"none": None, "paper": Curriculum(), "optimum": BY_OPTIMUM}
        self._curriculum = rules[config.curriculum]
        self.patterns = PatternLibrary() if config.patterns else None
        self._schedule = ScheduleState()
        self._monitor = ConvergenceMonitor() if config.monitors else None
        self.learning_rate = config.learning_rate
        self._entropy = config.entropy

    def before_rollout(self, model: MaskablePPO, environments: WorkflowVectorEnv, progress: float) -> None:
        """Set the values for the next rollout and the updates on it, after a share `progress` of the training.

        Without a curriculum the last stage is played.
        """
        config = self._config
        environments.set_running_success(self._running.rate)
        lesson = self._lessons[MAX_STAGE if self._curriculum is None else self._curriculum.stage]
        environments.set_stage(lesson.row, max_turns=lesson.max_turns, tasks=lesson.tasks)
        if self.patterns is not None:
            environments.set_patterns(self.patterns.scores())
        if config.learning_rate_schedule == "adaptive":
            self.learning_rate = self._schedule.learning_rate(config.learning_rate)
        else:
            self.learning_rate = scheduled(config.learning_rate, config.learning_rate_schedule, progress)
        if config.adaptive_entropy:
            is_sequence = self._running.phase == SEQUENCE_PHASE
            self._entropy = config.entropy * (SEQUENCE_ENTROPY_FACTOR if is_sequence else 1.0)
            model.ent_coef = self._entropy

    def after_rollout(self, update: int, figures: Figures, sequences: Sequence[tuple[str, ...]]) -> None:
        """Learn from the episodes that finished in rollout number `update`.

        `sequences` holds the successful tools of each by first success; empty where nobody asks for them.
        """
        phase, stage = self._running.phase, 0 if self._curriculum is None else self._curriculum.stage
        succeeded = figures["success"] > 0
        successes: list[bool] = succeeded.tolist()
        self._running = self._running.after(successes)
        self._schedule = self._schedule.after(update, phase, self._running.rate, stage)
        if self._curriculum is not None:
            self._curriculum = self._curriculum.after(successes, self._lessons[stage].optimum)
        if self.patterns is not None:
            successful = [sequence for sequence, success in zip(sequences, successes, strict=True) if success]
            self.patterns = self.patterns.add(successful, figures["score"][succeeded].tolist())
        coverage, sequence = mean_of(figures["coverage"]), mean_of(figures["sequence"])
        if self._monitor is not None and coverage is not None and sequence is not None:
            self._monitor = self._monitor.after(phase, coverage, sequence, mean_of(figures["steps"][succeeded]))

    def figures(self) -> dict[str, float]:
        """Return what to log."""
        figures = {"running_success": self._running.rate, "phase": float(self._running.phase)}
        if self._curriculum is not None:
            figures["stage"] = float(self._curriculum.stage)
            figures["optimum_of_stage"] = self._lessons[self._curriculum.stage].optimum
        if self.patterns is not None:
            figures["patterns"] = float(len(self.patterns.scores()))
        figures["learning_rate"] = self.learning_rate
        if self._config.adaptive_entropy:
            figures["entropy_coefficient"] = self._entropy
        if self._monitor is not None:
            figures["converged"] = float(self._monitor.converged)
            figures["consistent_windows"] = float(self._monitor.windows_above)
        return figures

    def to_mapping(self) -> dict[str, Any]:
        """Return what every part that is on remembers."""
        states = {
            "success_rate": self._running,
            "curriculum": self._curriculum,
            "patterns": self.patterns,
            "learning_rate": self._schedule,
            "monitors": self._monitor,
        }
        return {name: state.to_mapping() for name, state in states.items() if state is not None}

    def restore(self, mapping: Mapping[str, Any]) -> None:
        """Take over what `to_mapping` returned for the same configuration; a StoreError tells what is missing."""

        def read(name: str, state: StateT) -> StateT:
            if name not in mapping:
                raise StoreError(f"the point to resume from knows nothing of {name}: expected all parts")
            return state.from_mapping(mapping[name])

        self._running = read("success_rate", self._running)
        self._curriculum = self._curriculum and read("curriculum", self._curriculum)
        self.patterns = self.patterns and read("patterns", self.patterns)
        self._schedule = read("learning_rate", self._schedule)
        self._monitor = self._monitor and read("monitors", self._monitor)


def mean_of(values: NDArray[np.float64]) -> float | None:
    """Return the mean of some episodes' values, or None if there are none."""
    return float(values.mean()) if len(values) else None
