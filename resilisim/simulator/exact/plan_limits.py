"""Limits of a plan's steps, chosen so that the plan, followed to the letter, succeeds as often as it can."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from resilisim.simulator.compiled import kernel
from resilisim.simulator.exact.plan_following import MAX_TRIES, NEVER, SKIP_FROM, compile_plan, follow
from resilisim.simulator.problem import Problem

MAX_ENTRIES = 100_000  # of each of the hundreds of plans that are tried
TOLERANCE = 1e-9  # a smaller gain is none: limits should not hang on the last bits


@dataclass(frozen=True, slots=True)
class PlanLimits:
    """A plan with limits.

    Attributes:
        kept: (num_kept,) places of the steps that are not left out, in the plan that the limits were chosen for.
        limits: (num_kept,) `max_tries` and `skip_from` of each of them, None for no such limit.
        success: Probability of full success of following them to the letter.
    """

    kept: tuple[int, ...]
    limits: tuple[tuple[int | None, int | None], ...]
    success: float


def best_limits(problem: Problem, tools: Sequence[int], left_out: Collection[int] = ()) -> PlanLimits:
    """Choose limits for the steps of a plan outside the required list, so that it succeeds as often as can be.

    Coordinate ascent: one number of one step after the other is set to the best of its values, until none can be
    improved. A step that is better skipped than ever tried is left out. Choices that would be too large to be valued
    count as worse than all others.

    Args:
        problem: The task's numbers.
        tools: Library indices of the steps' tools, in plan order.
        left_out: Tools among them with which the ascent begins as if they were not there.
    """
    plan = compile_plan(problem, tools, limits=[(None, 1 if tool in left_out else None) for tool in tools])
    optional = [number for number, tool in enumerate(tools) if problem.place[tool] < 0]
    rules = problem.rules
    success = ascend(
        plan.steps,
        plan.dependencies,
        plan.num_signatures,
        np.array(optional, dtype=np.int64),
        len(problem.required),
        problem.table.probability,
        rules.max_turns,
        rules.max_consecutive_failures,
        rules.loop_length,
        MAX_ENTRIES,
    )
    numbers = plan.steps.tolist()
    kept = _ever_tried([step[SKIP_FROM] for step in numbers])
    limits = tuple((_limit(numbers[place][MAX_TRIES]), _limit(numbers[place][SKIP_FROM])) for place in kept)
    return PlanLimits(kept, limits, max(float(success), 0.0))


def _ever_tried(skip_from: Sequence[int]) -> tuple[int, ...]:
    """Return the places of the steps that can be reached before the message from which they are skipped.

    Any other step is only one more thing to read, and a flaw in it would do no harm.
    """
    tried: list[int] = []
    for place, limit in enumerate(skip_from):
        if len(tried) + 1 < limit:  # each step that was tried took a message, if it succeeded at once
            tried.append(place)
    return tuple(tried)


def _limit(number: int) -> int | None:
    return None if number == NEVER else number


@kernel
def ascend(
    steps: NDArray[np.int64],
    dependencies: NDArray[np.int64],
    num_signatures: int,
    optional: NDArray[np.int64],
    num_required: int,
    probability: NDArray[np.float64],
    turns: int,
    max_consecutive_failures: int,
    loop_length: int,
    max_entries: int,
) -> float:
    """Set the limits in `steps` by coordinate ascent and return the chance of full success.

    Args:
        steps: (num_steps, NUM_COLUMNS) the plan's steps, changed in place.
        dependencies: (num_steps, max_dependencies) local numbers, padded with -1.
        num_signatures: Messages that the loop rule can meet again.
        optional: Steps that may have limits.
        num_required: Length of the required list.
        probability: The law's table.
        turns: Messages that run something.
        max_consecutive_failures: End rule; 0 is off.
        loop_length: End rule; 0 is off.
        max_entries: Bound of the chances that are kept apart.
    """
    rest = (num_signatures, num_required, probability, turns, max_consecutive_failures, loop_length, max_entries)
    best, _ = follow(steps, dependencies, *rest)
    improved = True
    while improved:
        improved = False
        for number in optional:
            for column in (MAX_TRIES, SKIP_FROM):
                chosen = steps[number, column]
                for limit in range(turns + 1, 0, -1):
                    steps[number, column] = limit if limit <= turns else NEVER
                    success, _ = follow(steps, dependencies, *rest)
                    if success > best + TOLERANCE:
                        best, chosen, improved = success, steps[number, column], True
                steps[number, column] = chosen
    # A number that changes nothing would only be one more thing to read.
    for number in optional:
        for column in (MAX_TRIES, SKIP_FROM):
            chosen = steps[number, column]
            if column == SKIP_FROM and chosen == 1:
                continue
            steps[number, column] = NEVER
            success, _ = follow(steps, dependencies, *rest)
            if success < best - TOLERANCE:
                steps[number, column] = chosen
            else:
                best = success
    return best
