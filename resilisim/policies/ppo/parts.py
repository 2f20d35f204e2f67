"""The parts of a training run that can be switched off, and what each remembers.

A part learns from the episodes that finished in a rollout and sets values of the environments or the model before the
next rollout, never during one: an episode stays a function of its seed and of values that are logged. What is
remembered are immutable values that go through JSON without loss, so that a resumed run goes on exactly where it
stopped.

* Running success decides the training law's base and the phase of the reward.
* The curriculum moves through stages (appendix D.4.2): those of Table 12, which ask for more and more of a task, or
  ours, of harder and harder tasks with fewer and fewer steps, whose optimum is known.
* Learning rate and entropy coefficient follow stage, phase and success (D.5.1), or the learning rate a plain schedule.
* Patterns of tools are mined from successful episodes (D.5.2) and feed the pattern confidence of the mask. A pattern is
  two or three tools that succeeded one directly after the other. Its score is the mean score of the successful episodes
  that contain it; an episode counts once for each pattern, however often it contains it.
* Convergence is watched by phase (D.5.1). Coverage phase: the mean coverage of the required tools is above 0.8
  "consistently", in CONSISTENT_WINDOWS windows in a row. Sequence phase: the mean sequence correctness is above 0.7 in
  as many windows in a row, and over these the mean number of steps of successful episodes is smaller than over as many
  windows before ("step efficiency improvement"). A window is the episodes that finished during one rollout.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Annotated, Any, ClassVar, Literal, Self, TypeAlias, TypeVar, cast

import numpy as np
from annotated_types import Ge, Le, MaxLen, MinLen
from numpy.typing import NDArray
from pydantic import ConfigDict
from sb3_contrib import MaskablePPO

from resilisim.envs.workflow.kernels.records import PATTERN_LENGTHS
from resilisim.envs.workflow.kernels.training_law import COVERAGE_PHASE, MAX_STAGE, SEQUENCE_PHASE, phase_of
from resilisim.envs.workflow.options import BENCHMARK_TURNS
from resilisim.envs.workflow.vector import WorkflowVectorEnv
from resilisim.errors import InvalidInputError, StoreError
from resilisim.inputs import validated
from resilisim.policies.ppo.config import TrainingConfig
from resilisim.simulator.end_rules import EndRules
from resilisim.simulator.exact.references import solve_all
from resilisim.simulator.law import Law
from resilisim.simulator.problem import build_problem
from resilisim.tool_library import ToolLibrary

# Of each episode that finished in a rollout, in the order of finishing: float64 (num_finished,) by name.
Figures: TypeAlias = Mapping[str, NDArray[np.float64]]
Phase = Annotated[int, Ge(COVERAGE_PHASE), Le(SEQUENCE_PHASE)]
Stage = Annotated[int, Ge(0), Le(MAX_STAGE)]
Share = Annotated[float, Ge(0), Le(1)]
Count = Annotated[int, Ge(1)]


class Remembered:
    """What a part remembers: a frozen dataclass that goes through JSON without loss."""

    __pydantic_config__: ClassVar = ConfigDict(extra="forbid", allow_inf_nan=False)

    def to_mapping(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        mapping: dict[str, Any] = json.loads(json.dumps(asdict(cast("Any", self))))
        return mapping

    @classmethod
    def from_mapping(cls, mapping: object) -> Self:
        """Read what `to_mapping` gave; an InvalidInputError tells a field that is unknown or unusable."""
        return validated(cls, mapping, "a part of the training")


StateT = TypeVar("StateT", bound=Remembered)

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


@dataclass(frozen=True, slots=True)
class Lesson:
    """What is played at a stage of a curriculum.

    Attributes:
        row: The row of Table 12 that says what success is.
        optimum: Mean V* of what is played; 1 where nobody knows it.
        tasks: Indices of the tasks among those of the training; all if None.
        max_turns: Steps of an episode; those of the environment if None.
    """

    row: Stage = MAX_STAGE
    optimum: float = 1.0
    tasks: tuple[int, ...] | None = None
    max_turns: int | None = None


# Lessons by stage; without a curriculum the last one is played from the beginning.
PAPER_LESSONS = tuple(Lesson(row) for row in range(MAX_STAGE + 1))
# Ours: more steps than the law has, by stage; played are the easiest fifth of the tasks, two fifths, ... all.
MORE_STEPS = (4, 3, 2, 1, 0)


def lessons_by_optimum(library: ToolLibrary, required: Sequence[tuple[str, ...]], law: Law) -> tuple[Lesson, ...]:
    """Return lessons of tasks that get harder, which is longer, too, in fewer steps, with the optimum of each.

    Args:
        library: The tools.
        required: The required tools of each task.
        law: A law without parts; others take long to solve for so many tasks.

    Raises:
        InvalidInputError: The law has parts.
    """
    if law.has_sections:
        raise InvalidInputError(f"curriculum is 'optimum' under the law {law.name!r}: expected a law without parts")

    def values(places: Sequence[int], max_turns: int) -> list[float]:
        problems = [build_problem(library, required[place], law, EndRules(max_turns)) for place in places]
        solved = solve_all(problems)
        return [solved[problem].optimum for problem in problems]

    every = range(len(required))
    of_task = values(every, BENCHMARK_TURNS)
    ordered = sorted(every, key=lambda place: (-of_task[place], len(required[place]), place))
    lessons = []
    for stage, more in enumerate(MORE_STEPS):
        tasks = tuple(sorted(ordered[: max(1, len(ordered) * (stage + 1) // len(MORE_STEPS))]))
        optimum = float(np.mean(values(tasks, BENCHMARK_TURNS + more) if more else of_task))
        lessons.append(Lesson(MAX_STAGE, optimum, tasks, BENCHMARK_TURNS + more))
    return tuple(lessons)


@dataclass(frozen=True, slots=True)
class Curriculum(Remembered):
    """The stage, and the latest outcomes that decide on the next one; by default the paper's rule."""

    stage: Stage = 0  # a place among the lessons
    outcomes: tuple[bool, ...] = ()  # since the last change of stage, oldest first, at most `min_episodes`
    advance_above: Share = 0.7  # a success rate, as a share of the optimum, above it moves a stage up (theta_advance)
    regress_below: Share = 0.3  # one below it moves a stage down (theta_regress)
    min_episodes: Count = 50  # episodes that the rate is taken over, both ways (n_min)

    def after(self, successes: Iterable[bool], optimum: float = 1.0) -> Curriculum:
        """Return the curriculum after some more episodes, successes and optimum those of the present stage.

        One call is one update event: the stage moves by one at most, because all these episodes were played at the
        present stage and say nothing about the next. A change empties the window.
        """
        outcomes = (*self.outcomes, *successes)[-self.min_episodes :]
        rate = sum(outcomes) / self.min_episodes / optimum
        stage = self.stage
        if len(outcomes) == self.min_episodes and rate > self.advance_above:
            stage = min(stage + 1, MAX_STAGE)
        elif len(outcomes) == self.min_episodes and rate < self.regress_below:
            stage = max(stage - 1, 0)
        return replace(self, stage=stage, outcomes=outcomes if stage == self.stage else ())


# How ours moves, without a paper that says so: a rate of 500 episodes, about those of a rollout, has a standard error
# of 0.02 of the optimum, and a policy at 0.9 of it has learnt what a stage is about.
BY_OPTIMUM = Curriculum(advance_above=0.9, regress_below=0.5, min_episodes=500)


STAGE_FACTOR = 0.95  # gamma_curriculum
PHASE_CHANGE_FACTOR = 1.2  # beta_phase after a change to the sequence phase
DECLINE_FACTOR = 0.8  # beta_phase while performance declines
SEQUENCE_ENTROPY_FACTOR = 0.5  # beta_entropy is 0.01 in the coverage phase and 0.005 in the sequence phase

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


# With 30 tools there are 870 ordered pairs and 24,360 ordered triples; those of the 5,040 benchmark tasks fit easily.
MOST_PATTERNS = 512
# A pattern seen once says more about luck than about tools.
MIN_COUNT = 3


def extract_patterns(sequence: Sequence[str]) -> set[tuple[str, ...]]:
    """Return every run of two or three neighbours in a sequence of tools, each once."""
    return {
        tuple(sequence[start : start + length])
        for length in PATTERN_LENGTHS
        for start in range(len(sequence) - length + 1)
    }


@dataclass(frozen=True, slots=True)
class MinedPattern:
    """Tools one after the other, the sum of the scores of the episodes that contain them, and their number."""

    tools: Annotated[tuple[str, ...], MinLen(2), MaxLen(3)]
    total: float
    count: Count


@dataclass(frozen=True, slots=True)
class PatternLibrary(Remembered):
    """The patterns met so far, ordered by name.

    Of more than `max_patterns` those met most often are kept, among equals the first by name. One that is dropped
    starts again from nothing if it is met again.
    """

    max_patterns: Count = MOST_PATTERNS
    patterns: tuple[MinedPattern, ...] = ()

    def add(self, sequences: Iterable[Sequence[str]], scores: Iterable[float]) -> PatternLibrary:
        """Return the library after some more successful episodes: their tools as they succeeded, their final scores."""
        totals = {pattern.tools: (pattern.total, pattern.count) for pattern in self.patterns}
        for sequence, score in zip(sequences, scores, strict=True):
            for tools in extract_patterns(sequence):
                total, count = totals.get(tools, (0.0, 0))
                totals[tools] = (total + score, count + 1)
        kept = sorted(totals, key=lambda tools: (-totals[tools][1], tools))[: self.max_patterns]
        return replace(self, patterns=tuple(MinedPattern(tools, *totals[tools]) for tools in sorted(kept)))

    def scores(self, min_count: int = MIN_COUNT) -> dict[tuple[str, ...], float]:
        """Return the mean score of each pattern that at least `min_count` episodes contain, ordered by name."""
        return {pattern.tools: pattern.total / pattern.count for pattern in self.patterns if pattern.count >= min_count}


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


class Parts:
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
