"""The chance of an agent that calls the required tools in order, each again until it succeeds, and nothing else."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from resilisim.simulator.compiled import kernel
from resilisim.simulator.problem import Problem


def plan_following(problem: Problem, turns: int | None = None) -> float:
    """Return the probability of full success of following the required list to the letter.

    Args:
        problem: The task's numbers.
        turns: Messages that the agent may use; all turns if omitted. Fewer than the list is long give 0.
    """
    turns = problem.rules.max_turns if turns is None else turns
    if turns < len(problem.required):
        return 0.0
    base_index, num_not_executed = [], []
    done: set[int] = set()
    for tool in problem.required:
        base_index.append(problem.base_index[tool])
        num_not_executed.append(sum(dependency not in done for dependency in problem.dependencies[tool]))
        done.add(tool)
    return _follow(
        np.array(base_index),
        np.array(num_not_executed),
        problem.table.probability,
        turns,
        problem.rules.max_consecutive_failures,
    )


def plan_following_with_search(problem: Problem) -> float:
    """Return `plan_following` for an agent that spends one turn on a search for each required tool."""
    return plan_following(problem, problem.rules.max_turns - len(problem.required))


@kernel
def _follow(
    base_index: NDArray[np.int64],
    num_not_executed: NDArray[np.int64],
    probability: NDArray[np.float64],
    turns: int,
    max_consecutive_failures: int,
) -> float:
    # reach[k, h, c]: chance to stand at place k of the plan with h failures, the last c of them in a row.
    num_required = len(base_index)
    rows = turns + 1 if max_consecutive_failures == 0 else min(turns + 1, max_consecutive_failures)
    reach = np.zeros((num_required + 1, turns + 1, rows + 1))
    reach[0, 0, 0] = 1.0
    for _ in range(turns):
        after = np.zeros_like(reach)
        for failures in range(turns + 1):
            for consecutive in range(rows):
                after[num_required, failures, consecutive] = reach[num_required, failures, consecutive]
        for place in range(num_required):
            for failures in range(turns):
                chance = probability[base_index[place], num_not_executed[place], 0, failures]
                for consecutive in range(rows):
                    mass = reach[place, failures, consecutive]
                    after[place + 1, failures, 0] += mass * chance
                    if consecutive + 1 < rows or max_consecutive_failures == 0:
                        after[place, failures + 1, consecutive + 1] += mass * (1.0 - chance)
        reach = after
    return float(reach[num_required].sum())
