"""The exact optimum of an agent whose calls are filtered (the dependency and constraint filters of appendix D.2.1).

* dependency: a tool may be called only when all its direct dependencies have succeeded
* constraint: a tool may be called only while it has not succeeded and has failed fewer than MAX_FAILED_EXECUTIONS times

Under the benchmark law dependencies are soft, so a filter can cost success: the ratio of the filtered optimum to V* is
what a policy behind that mask can reach at best. A problem becomes a graph whose nodes are what is known of the tools
of the closure, built in plain Python; a compiled sweep then does backward induction over node, failures, row of
failures and turns left. Without filters the result is V* itself. The fallback for the case that no call is left
(Algorithm 1) is left out: a closure tool that may not be called any more stays uncalled.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from resilisim.errors import ExactLimitError, unknown_name
from resilisim.simulator.compiled import kernel
from resilisim.simulator.exact.arena import NO_TOOL
from resilisim.simulator.law import FAILED, NOT_EXECUTED, SUCCEEDED, count_failed_dependencies, count_not_executed
from resilisim.simulator.problem import Problem, dependencies_within

FILTERS = ("dependency", "constraint")
MAX_FAILED_EXECUTIONS = 3  # "retries < 3", read as in SPEC section 5
MAX_NODES = 2_000_000

_DONE = -1  # instead of a number of failures: the tool has succeeded
_WORTHLESS = -1  # instead of a node: full success is out of reach

# For each tool of the closure, in its order: _DONE, or its failed executions as far as they matter.
_Node: TypeAlias = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class FilteredOptimum:
    """The highest probability of full success under filters, from the start.

    Attributes:
        value: A policy behind the filters that succeeds so often exists.
        gap: How far `value` may lie below the optimum; 0 where it is exact, which it is with equal reliabilities and
            enough tools outside the closure to break rows of failures (benchmark-v1 up to 20 turns).
    """

    value: float
    gap: float


def filtered_optimum(problem: Problem, filters: Collection[str] = ("dependency",)) -> FilteredOptimum:
    """Solve a problem for an agent whose calls are filtered.

    Args:
        problem: The task's numbers.
        filters: Any of FILTERS.

    Raises:
        InvalidInputError: A filter has no such name.
        ExactLimitError: The problem needs more than MAX_NODES nodes.
    """
    for name in filters:
        if name not in FILTERS:
            raise unknown_name("filter", name, FILTERS)
    filtering = _Filtering(problem, "dependency" in filters, "constraint" in filters)
    graph = _build_graph(filtering)
    lower_base, upper_base = _neutral_bases(filtering)
    value = _solve(problem, graph, lower_base)
    gap = 0.0 if upper_base == lower_base else _solve(problem, graph, upper_base) - value
    return FilteredOptimum(value, gap)


class _Filtering:
    """A problem and its filters, in the numbers of the closure's tools."""

    def __init__(self, problem: Problem, dependency: bool, constraint: bool) -> None:
        self.problem = problem
        self.dependency = dependency
        self.constraint = constraint
        self.dependencies: list[list[int]] = [
            [place for place in row if place >= 0] for row in dependencies_within(problem, problem.closure).tolist()
        ]
        self.place = [problem.place[tool] for tool in problem.closure]
        self.depended_on = {needed for row in self.dependencies for needed in row}

    def num_needed(self) -> int:
        """Return how many successes full success takes; behind the dependency filter all of the closure."""
        return len(self.place) if self.dependency else len(self.problem.required)

    def calls(self, node: _Node) -> Iterator[tuple[int, _Node | None, _Node | None]]:
        """Yield tool, node after success and node after failure of every call worth a thought; None is worthless.

        A call that could only succeed out of order is of use where its failure is: without the dependency filter a
        failed dependency weighs less than one never executed.
        """
        done = sum(place >= 0 and count == _DONE for place, count in zip(self.place, node, strict=True))
        for tool, count in enumerate(node):
            if count == _DONE or (self.constraint and count == MAX_FAILED_EXECUTIONS):
                continue
            if self.dependency and any(node[needed] != _DONE for needed in self.dependencies[tool]):
                continue
            in_order = self.place[tool] < 0 or self.place[tool] == done
            if in_order or (not self.dependency and tool in self.depended_on):
                after_success = _replaced(node, tool, _DONE) if in_order else None
                yield tool, after_success, self._after_failure(node, tool)

    def status(self, node: _Node) -> list[int]:
        """Return the status of each of the closure's tools."""
        return [SUCCEEDED if count == _DONE else FAILED if count > 0 else NOT_EXECUTED for count in node]

    def _after_failure(self, node: _Node, tool: int) -> _Node | None:
        if self.constraint:
            count = node[tool] + 1
            lost = count == MAX_FAILED_EXECUTIONS and (self.dependency or self.place[tool] >= 0)
            return None if lost else _replaced(node, tool, count)
        matters = not self.dependency and tool in self.depended_on
        return _replaced(node, tool, 1) if matters else node


def _replaced(node: _Node, tool: int, count: int) -> _Node:
    return (*node[:tool], count, *node[tool + 1 :])


@dataclass(frozen=True, slots=True, eq=False)
class _Graph:
    """Nodes and calls as the kernel reads them; node 0 is the start.

    Attributes:
        complete: bool (num_nodes,), whether all required tools have succeeded.
        first_call: int64 (num_nodes + 1,), the calls of a node are those from its entry to the next one's.
        after_success: int64 (num_calls,) nodes, or -1 where full success is out of reach.
        after_failure: int64 (num_calls,), likewise.
        law_index: int64 (num_calls, 3), base index, Nu and Nf of the call.
    """

    complete: NDArray[np.bool_]
    first_call: NDArray[np.int64]
    after_success: NDArray[np.int64]
    after_failure: NDArray[np.int64]
    law_index: NDArray[np.int64]


def _build_graph(filtering: _Filtering) -> _Graph:
    """Enumerate the nodes that can be reached with enough turns left."""
    problem = filtering.problem
    required = [slot for slot, place in enumerate(filtering.place) if place >= 0]
    start: _Node = (0,) * len(filtering.place)
    numbers: dict[_Node, int] = {start: 0}
    nodes = [start]

    def number_of(node: _Node | None) -> int:
        if node is None or _turns_used(node) + _num_missing(filtering, node, required) > problem.rules.max_turns:
            return _WORTHLESS
        if node not in numbers:
            if len(nodes) == MAX_NODES:
                raise ExactLimitError(
                    f"the filtered optimum of {len(problem.required)} required tools with {len(problem.closure)} in "
                    f"their dependency closure and {problem.rules.max_turns} turns needs more than {MAX_NODES:,} "
                    "nodes; use fewer turns or a shorter list"
                )
            numbers[node] = len(nodes)
            nodes.append(node)
        return numbers[node]

    complete: list[bool] = []
    first_call = [0]
    calls: list[tuple[int, int, int, int, int]] = []
    while len(complete) < len(nodes):
        node = nodes[len(complete)]
        complete.append(all(node[slot] == _DONE for slot in required))
        if not complete[-1]:
            status = filtering.status(node)
            for tool, after_success, after_failure in filtering.calls(node):
                dependencies = filtering.dependencies[tool]
                calls.append(
                    (
                        number_of(after_success),
                        number_of(after_failure),
                        problem.base_index[problem.closure[tool]],
                        count_not_executed(status, dependencies),
                        count_failed_dependencies(status, dependencies),
                    )
                )
        first_call.append(len(calls))
    table = np.array(calls, dtype=np.int64).reshape(len(calls), 5)
    return _Graph(
        complete=np.array(complete, dtype=np.bool_),
        first_call=np.array(first_call, dtype=np.int64),
        after_success=table[:, 0].copy(),
        after_failure=table[:, 1].copy(),
        law_index=table[:, 2:].copy(),
    )


def _turns_used(node: _Node) -> int:
    """Return the fewest calls that lead to a node."""
    return sum(1 if count == _DONE else count for count in node)


def _num_missing(filtering: _Filtering, node: _Node, required: list[int]) -> int:
    """Return how many successes are missing, at least."""
    if filtering.dependency:
        return sum(count != _DONE for count in node)
    return sum(node[slot] != _DONE for slot in required)


def _neutral_bases(filtering: _Filtering) -> tuple[int, int]:
    """Return base indices of an outside tool that can always be called to break a row, a real one and a bound.

    Without the constraint filter the second best tool without dependencies serves (`simulator.exact.arena`). With it
    each tool serves up to its success or its last failure, so as many are needed as can be used up. The optimum never
    breaks a row of no failures, so each success of a breaker has cost two turns beyond the successes that are needed,
    its own and that of a failure before, and a breaker that was lost has cost MAX_FAILED_EXECUTIONS.
    """
    problem = filtering.problem
    if problem.rules.max_consecutive_failures == 0:
        return NO_TOOL, NO_TOOL
    spare_turns = problem.rules.max_turns - filtering.num_needed()
    num_needed = max(spare_turns, 0) // 2 if filtering.constraint else 2
    if num_needed == 0:
        return NO_TOOL, NO_TOOL
    outside = set(range(problem.num_tools)).difference(problem.closure)
    free = sorted(
        (problem.base_index[tool] for tool in outside if not problem.dependencies[tool]), reverse=True
    )  # bases ascend with their indices
    return free[num_needed - 1] if len(free) >= num_needed else NO_TOOL, len(problem.table.bases) - 1


def _solve(problem: Problem, graph: _Graph, neutral_base: int) -> float:
    rules = problem.rules
    shape = (len(graph.complete), rules.max_turns + 1, max(rules.max_consecutive_failures, 1))
    values = np.zeros((2, *shape))
    sweep_graph(
        graph.complete,
        graph.first_call,
        graph.after_success,
        graph.after_failure,
        graph.law_index,
        problem.table.probability,
        neutral_base,
        rules.max_turns,
        rules.max_consecutive_failures,
        values,
    )
    return float(values[rules.max_turns % 2, 0, 0, 0])


@kernel
def sweep_graph(
    complete: NDArray[np.bool_],
    first_call: NDArray[np.int64],
    after_success: NDArray[np.int64],
    after_failure: NDArray[np.int64],
    law_index: NDArray[np.int64],
    probability: NDArray[np.float64],
    neutral_base: int,
    max_turns: int,
    max_consecutive_failures: int,
    values: NDArray[np.float64],
) -> None:
    """Fill `values` by backward induction, one sweep for each number of turns left.

    Args:
        complete: See `_Graph`.
        first_call: See `_Graph`.
        after_success: See `_Graph`.
        after_failure: See `_Graph`.
        law_index: See `_Graph`.
        probability: The law's table.
        neutral_base: Base index of a tool that is always there to break a row of failures, or -1.
        max_turns: End rule.
        max_consecutive_failures: End rule; 0 is off.
        values: float64 (2, num_nodes, max_turns + 1, rows), zero on entry: the highest probability of full success, by
            failures and consecutive failures, with an even and with an odd number of turns left; on return those with
            `max_turns` and one fewer.
    """
    rows = values.shape[3]
    for node in range(len(complete)):
        if complete[node]:
            values[:, node] = 1.0
    for turns_left in range(1, max_turns + 1):
        before = values[(turns_left - 1) % 2]
        now = values[turns_left % 2]
        for node in range(len(complete)):
            if complete[node]:
                continue
            for failures in range(max_turns - turns_left + 1):
                for consecutive in range(min(failures + 1, rows)):
                    failure_ends = max_consecutive_failures > 0 and consecutive + 1 == max_consecutive_failures
                    next_row = consecutive + 1 if max_consecutive_failures > 0 else 0
                    best = 0.0
                    if neutral_base >= 0:
                        chance = probability[neutral_base, 0, 0, failures]
                        best = chance * before[node, failures, 0]
                        if not failure_ends:
                            best += (1.0 - chance) * before[node, failures + 1, next_row]
                    for call in range(first_call[node], first_call[node + 1]):
                        chance = probability[law_index[call, 0], law_index[call, 1], law_index[call, 2], failures]
                        value = 0.0
                        if after_success[call] >= 0:
                            value += chance * before[after_success[call], failures, 0]
                        if after_failure[call] >= 0 and not failure_ends:
                            value += (1.0 - chance) * before[after_failure[call], failures + 1, next_row]
                        best = max(best, value)
                    now[node, failures, consecutive] = best
