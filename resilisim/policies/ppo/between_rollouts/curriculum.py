"""The curriculum moves through stages (appendix D.4.2).

They are those of Table 12, which ask for more and more of a task, or ours, of harder and harder tasks with fewer and
fewer steps, whose optimum is known.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from resilisim.bounds import Count, Share
from resilisim.envs.workflow.kernels.training_law import MAX_STAGE
from resilisim.envs.workflow.options import BENCHMARK_TURNS
from resilisim.errors import InvalidInputError
from resilisim.policies.ppo.between_rollouts.remembered import Remembered, Stage
from resilisim.simulator.end_rules import EndRules
from resilisim.simulator.exact.references import solve_all
from resilisim.simulator.law import Law
from resilisim.simulator.problem import build_problem
from resilisim.tool_library import ToolLibrary


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
