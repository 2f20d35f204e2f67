"""The parts of a training run that can be switched off, one class each.

A part learns from the episodes that finished in a rollout and sets values of the environments or the model before the
next rollout, never during one: an episode stays a function of its seed and of values that are logged. Each part keeps
one immutable value, which goes through JSON without loss, so that a resumed run goes on exactly where it stopped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Literal, Protocol, Self, TypeVar

import numpy as np
from numpy.typing import NDArray
from sb3_contrib import MaskablePPO

from resilisim.envs.workflow.training import (
    MAX_STAGE,
    Curriculum,
    RunningSuccess,
    phase_of,
)
from resilisim.errors import StoreError
from resilisim.policies.ppo.config import TrainingConfig
from resilisim.policies.ppo.states import (
    COVERAGE_ENTROPY,
    ConvergenceMonitor,
    PatternLibrary,
    Schedule,
    ScheduleKind,
    ScheduleState,
    entropy_coefficient,
)


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
