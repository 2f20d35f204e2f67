"""The chances of an agent that does a plan to the letter: each step again until it succeeds, and nothing else.

While such an agent works, every tool of an earlier step has succeeded and every other tool but the present one is
untouched, so its state is the step it stands at, how its failures lie, and how often it repeated itself.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from resilisim.simulator.compiled import kernel
from resilisim.simulator.problem import Problem

# What a step of a plan asks for.
RUN = 0  # a tool that no earlier step has run
RUN_AGAIN = 1  # a tool that an earlier step has run: unproductive for the loop rule
REPEAT = 2  # likewise, and the step before asks for the same tool, so that its row of equal calls goes on
REFUSED = 3  # a call that is refused: never executed, so the plan never gets past it


@dataclass(frozen=True, slots=True)
class Obedience:
    """What doing a plan to the letter brings.

    Attributes:
        success: Probability of full success.
        coverage: Expected share of the required tools that succeed in the required order: the longest run of first
            successes (not necessarily adjacent) whose required places ascend, divided by the number of required tools.
    """

    success: float
    coverage: float


def obey_plan(problem: Problem, tools: Sequence[int], refused: Sequence[bool] | None = None) -> Obedience:
    """Return the chances of doing a plan to the letter, each step until it succeeds, then signalling completion.

    Args:
        problem: The task's numbers.
        tools: Library indices of the steps' tools, in plan order; a tool may stand more than once.
        refused: Whether each call is refused because of its parameters; none is if omitted.
    """
    kinds, base_index, num_not_executed = _steps(problem, tools, refused)
    reach = _follow(
        kinds,
        base_index,
        num_not_executed,
        problem.table.probability,
        problem.rules.max_turns,
        problem.rules.max_consecutive_failures,
        problem.rules.loop_length,
    )
    in_order = _ordered_successes(problem, tools)
    shares = np.array(in_order) / len(problem.required)
    done = _is_done(problem, tools)
    # The last entry is the chance that the plan is completed, the one before it that all steps ran but a rule ended it.
    return Obedience(float(reach[-1]) if done else 0.0, float(reach[:-1] @ shares + reach[-1] * shares[-1]))


def plan_following(problem: Problem, turns: int | None = None) -> float:
    """Return the probability of full success of following the required list to the letter.

    Args:
        problem: The task's numbers.
        turns: Messages that the agent may use; all turns if omitted. Fewer than the list is long give 0.
    """
    turns = problem.rules.max_turns if turns is None else turns
    if turns < len(problem.required):
        return 0.0
    kinds, base_index, num_not_executed = _steps(problem, problem.required, None)
    rules = problem.rules
    reach = _follow(
        kinds,
        base_index,
        num_not_executed,
        problem.table.probability,
        turns,
        rules.max_consecutive_failures,
        rules.loop_length,
    )
    return float(reach[-1])


def plan_following_with_search(problem: Problem) -> float:
    """Return `plan_following` for an agent that spends one turn on a search for each required tool."""
    return plan_following(problem, problem.rules.max_turns - len(problem.required))


def _steps(
    problem: Problem, tools: Sequence[int], refused: Sequence[bool] | None
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    kinds, base_index, num_not_executed = [], [], []
    done: set[int] = set()
    for place, tool in enumerate(tools):
        if refused is not None and refused[place]:
            kinds.append(REFUSED)
        elif tool not in done:
            kinds.append(RUN)
        else:
            repeats = tools[place - 1] == tool and kinds[place - 1] in (RUN_AGAIN, REPEAT)
            kinds.append(REPEAT if repeats else RUN_AGAIN)
        base_index.append(problem.base_index[tool])
        num_not_executed.append(sum(dependency not in done for dependency in problem.dependencies[tool]))
        done.add(tool)
    return (
        np.array(kinds, dtype=np.int64),
        np.array(base_index, dtype=np.int64),
        np.array(num_not_executed, dtype=np.int64),
    )


def _ordered_successes(problem: Problem, tools: Sequence[int]) -> list[int]:
    """Return, after 0, 1, ... steps, the length of the longest ascending run of required places among the successes."""
    lengths = [0]
    ends: list[int] = []  # ends[k]: smallest place that ends a run of k + 1
    for place, tool in enumerate(tools):
        required = problem.place[tool]
        if required >= 0 and tool not in tools[:place]:
            slot = bisect_left(ends, required)
            ends[slot : slot + 1] = [required]
        lengths.append(len(ends))
    return lengths


def _is_done(problem: Problem, tools: Sequence[int]) -> bool:
    """Return whether the first successes of a completed plan are the required tools in their order."""
    firsts = [tool for tool in dict.fromkeys(tools) if problem.place[tool] >= 0]
    return firsts == list(problem.required)


@kernel
def _follow(
    kinds: NDArray[np.int64],
    base_index: NDArray[np.int64],
    num_not_executed: NDArray[np.int64],
    probability: NDArray[np.float64],
    turns: int,
    max_consecutive_failures: int,
    loop_length: int,
) -> NDArray[np.float64]:
    """Return (num_steps + 2,): the chance to end after k steps without completing, then the chance to complete."""
    num_steps = len(kinds)
    result = np.zeros(num_steps + 2)
    # reach[k, c, r]: chance to stand at step k with the last c executions failed and r equal calls in a row behind.
    # Each turn is a success, which is a step done, or a failure, so turns - k failures lie behind.
    rows = turns + 1 if max_consecutive_failures == 0 else min(turns + 1, max_consecutive_failures)
    loops = max(loop_length, 1)
    reach = np.zeros((num_steps + 1, rows + 1, loops + 1))
    reach[0, 0, 0] = 1.0
    for turn in range(turns):
        after = np.zeros_like(reach)
        for step in range(min(num_steps, turn + 1)):
            kind = kinds[step]
            if kind == 3:
                continue
            chance = probability[base_index[step], num_not_executed[step], 0, turn - step]
            for consecutive in range(rows):
                for loop in range(loops):
                    mass = reach[step, consecutive, loop]
                    if mass == 0.0:
                        continue
                    # Equal unproductive calls in a row once this one is made.
                    row = 0 if kind == 0 or loop_length == 0 else loop + 1
                    looped = loop_length > 0 and row >= loop_length
                    # What the next step takes over: its row goes on only if it repeats this one.
                    kept = row if step + 1 < num_steps and kinds[step + 1] == 2 else 0
                    if looped:
                        result[step + 1] += mass * chance
                    else:
                        after[step + 1, 0, kept] += mass * chance
                    failed = consecutive + 1
                    if looped or (max_consecutive_failures > 0 and failed >= max_consecutive_failures):
                        result[step] += mass * (1.0 - chance)
                    else:
                        after[step, failed, row] += mass * (1.0 - chance)
        # A completed plan stays completed, and a refused call stays refused.
        after[num_steps, 0, 0] += reach[num_steps].sum()
        for step in range(num_steps):
            if kinds[step] == 3:
                result[step] += reach[step].sum()
        reach = after
    for step in range(num_steps):
        result[step] += reach[step].sum()
    result[num_steps + 1] = reach[num_steps].sum()
    return result
