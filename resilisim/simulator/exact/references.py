"""The references of a task (SPEC section 7).

The clairvoyant bound is the chance that some sequence of calls succeeds when all luck is known beforehand (the paper's
second bound). For each seed the luck of every execution is a given number, so a search over sequences of calls decides
whether the task can be done. The mean over seeds estimates the bound; its standard error goes with it.

Calls that only break a row of failures (tools outside the closure without dependencies, and tools that have succeeded)
are considered where they succeed at once, and among those the one with the largest luck number, since a smaller one
stays good for longer. Calls that would only prepare a later break are left out, so the result never claims too much.
Everything else is searched exhaustively, up to a hash of 64 bits that knows visited states again. A list with so many
helpers that a search finds no end is refused.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from resilisim.bounds import CountOrNone, checked
from resilisim.errors import ExactLimitError
from resilisim.seeding import EVALUATION_SALT, PURPOSE_SUCCESS, episode_key, hash_words, threefry2x32, uniform_bits
from resilisim.simulator.compiled import kernel, scalar
from resilisim.simulator.end_rules import EndRules
from resilisim.simulator.exact.optimum import solve, solve_afresh
from resilisim.simulator.exact.plan_following import plan_following, plan_following_with_search
from resilisim.simulator.exact.search_kernels import mix_bits
from resilisim.simulator.exact.values import Knowledge, Values
from resilisim.simulator.goal import Goal
from resilisim.simulator.law import Law
from resilisim.simulator.problem import Problem, build_problem, dependencies_within, start_state
from resilisim.simulator.tool_status import FAILED, NOT_EXECUTED, SUCCEEDED, IntVector, count_unmet
from resilisim.tasks import Task
from resilisim.tasks.searches import SearchMany, searches_needed
from resilisim.tool_library import ToolLibrary, default_library

_VISITED_SIZE = 1 << 19
MAX_TRIED_CALLS = 20_000_000  # of one seed: up to half a minute; a list of the benchmark takes some thousands
_GIVEN_UP = -1


def luck_table(problem: Problem, salt: str, seeds: Sequence[int], instance_id: str) -> NDArray[np.int64]:
    """Return the 53 luck bits of every execution that can be, int64 (num_seeds, num_tools, max_turns)."""
    keys = np.array([episode_key(salt, seed, instance_id) for seed in seeds], dtype=np.int64)  # (num_seeds, 2)
    names = np.array([hash_words(name) for name in problem.library.names], dtype=np.int64)  # (num_tools, 2)
    tool0, tool1 = threefry2x32(keys[:, :1], keys[:, 1:], names[None, :, 0], names[None, :, 1])
    attempts = np.arange(problem.rules.max_turns, dtype=np.int64)
    bits: NDArray[np.int64] = uniform_bits(
        tool0[:, :, None], tool1[:, :, None], attempts[None, None, :], np.int64(PURPOSE_SUCCESS)
    )
    return bits


# Hands on what it is given, and may tell how far that is, as `Progressing.track` does.
Track = Callable[[Iterable[int]], Iterable[int]]


def clairvoyant(
    problem: Problem, seeds: Sequence[int], salt: str, instance_id: str, track: Track = iter
) -> tuple[float, float]:
    """Return the share of seeds for which some sequence of calls succeeds, and its standard error (or NaN).

    A seed of a long list can take half a minute; `track` is handed their numbers as they are worked on.

    Raises:
        ExactLimitError: There are too many sequences to look through.
    """
    num_required = len(problem.required)
    if num_required > problem.rules.max_turns:
        return 0.0, 0.0
    closure = np.array(problem.closure, dtype=np.int64)
    slot = {int(tool): index for index, tool in enumerate(closure)}
    dependencies = dependencies_within(problem, problem.closure)
    outside = np.array(
        [
            tool
            for tool in range(problem.num_tools)
            if tool not in slot and not problem.dependencies[tool] and problem.rules.max_consecutive_failures
        ],
        dtype=np.int64,
    )
    base_index = np.array(problem.base_index, dtype=np.int64)
    required = np.array([slot[tool] for tool in problem.required], dtype=np.int64)
    place = np.array([problem.place[tool] for tool in problem.closure], dtype=np.int64)
    charged = _charge_helpers(problem, slot)
    luck = luck_table(problem, salt, seeds, instance_id)
    thresholds = problem.tables.threshold
    visited = np.zeros(_VISITED_SIZE, dtype=np.uint64)
    num_visited = np.zeros(1, dtype=np.int64)
    found = np.zeros(len(seeds))
    for number in track(range(len(seeds))):
        breakers = outside[_can_break(problem, thresholds, luck[number][outside], base_index[outside])]
        found[number] = _search(
            np.ascontiguousarray(luck[number][closure]),
            np.ascontiguousarray(luck[number][breakers]),
            base_index[closure],
            base_index[breakers],
            place,
            required,
            dependencies,
            charged,
            thresholds,
            problem.rules.max_turns,
            problem.rules.max_consecutive_failures,
            number,
            visited,
            num_visited,
            MAX_TRIED_CALLS,
        )
        if found[number] == _GIVEN_UP:
            raise ExactLimitError(
                f"the clairvoyant bound of {num_required} required tools with {len(closure)} in their dependency "
                f"closure looks through more than {MAX_TRIED_CALLS:,} calls: leave it out, or use fewer turns"
            )
    error = float(found.std(ddof=1)) / math.sqrt(len(found)) if len(found) > 1 else math.nan
    return float(found.mean()), error


def _charge_helpers(problem: Problem, slot: Mapping[int, int]) -> NDArray[np.int64]:
    """Charge every helper to a required tool that depends on it: int64 (num_required, most), padded with -1."""
    users: dict[int, list[int]] = {}
    for place, tool in enumerate(problem.required):
        for helper in problem.dependencies[tool]:
            if problem.place[helper] < 0:
                users.setdefault(helper, []).append(place)
    charged: list[list[int]] = [[] for _ in problem.required]
    for helper, places in sorted(users.items(), key=lambda one: (len(one[1]), one[0])):
        charged[min(places, key=lambda place: (len(charged[place]), place))].append(slot[helper])
    most = max(1, *(len(helpers) for helpers in charged))
    return np.array([[*helpers, *[-1] * (most - len(helpers))] for helpers in charged], dtype=np.int64)


def _can_break(
    problem: Problem, thresholds: NDArray[np.int64], luck: NDArray[np.int64], base_index: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return the outside tools that the search can take to break a row, ascending; `luck` is (num_outside, max_turns).

    It takes the one with the largest luck number that succeeds. After `failures` failed executions fewer than that many
    rows have been broken, so fewer outside tools have been called, and one of the first `failures` by their first
    number, of those that succeed, is there uncalled and better than any other uncalled one.
    """
    chosen: set[int] = set()
    for failures in range(1, problem.rules.max_turns - len(problem.required)):
        succeeds = np.flatnonzero(luck[:, 0] < thresholds[base_index, 0, 0, failures])
        order = np.argsort(-luck[succeeds, 0], kind="stable")
        chosen.update(succeeds[order[:failures]].tolist())
    return np.array(sorted(chosen), dtype=np.int64)


@scalar
def _calls_needed(
    luck: NDArray[np.int64],
    base_index: IntVector,
    required: IntVector,
    done: int,
    status: IntVector,
    executions: IntVector,
    charged: NDArray[np.int64],
    threshold: NDArray[np.int64],
    failures: int,
    most: int,
) -> int:
    """Return a lower bound on the calls still needed, or one above `most`, if it is above.

    Each required tool that is missing must reach a luck number that is good enough. Its calls before that one fail, so
    all later required tools succeed after those failures, too. For each of the helpers that it depends on and that are
    charged to it, none to two tools, it has to do without, or at least one call of the helper is needed.
    """
    needed = 0
    for place in range(done, len(required)):
        tool = required[place]
        num_fresh, num_failed = 0, 0
        for helper in charged[place]:
            if helper < 0:
                break
            if status[helper] == NOT_EXECUTED:
                num_fresh += 1
            elif status[helper] == FAILED:
                num_failed += 1
        fewest = luck.shape[1] + 1
        fewest_skipped = fewest
        for fresh in range(num_fresh, -1, -1):
            for failed in range(num_failed, -1, -1):
                helped = num_fresh - fresh + num_failed - failed
                skipped = 0
                while helped + skipped + 1 < fewest or skipped < fewest_skipped:
                    attempt = executions[tool] + skipped
                    if attempt >= luck.shape[1] or failures + skipped >= threshold.shape[3]:
                        break  # more failures than turns
                    if luck[tool, attempt] < threshold[base_index[tool], fresh, failed, failures + skipped]:
                        fewest = min(fewest, helped + skipped + 1)
                        break
                    skipped += 1
                fewest_skipped = min(fewest_skipped, skipped)
        needed += fewest
        if needed > most:
            break
        failures += fewest_skipped
    return int(needed)


@kernel
def _search(
    luck: NDArray[np.int64],
    outside_luck: NDArray[np.int64],
    base_index: NDArray[np.int64],
    outside_base: NDArray[np.int64],
    place: NDArray[np.int64],
    required: NDArray[np.int64],
    dependencies: NDArray[np.int64],
    charged: NDArray[np.int64],
    threshold: NDArray[np.int64],
    max_turns: int,
    max_consecutive_failures: int,
    number: int,
    visited: NDArray[np.uint64],
    num_visited: NDArray[np.int64],
    max_tried: int,
) -> int:
    """Return 1 if some sequence of calls completes the list, 0 if none does, -1 if there are too many to try.

    The search is depth-first and knows visited states.

    All searches of a task share their table, told apart by `number`: clearing it takes longer than most searches do.
    """
    num_tools, num_outside = len(place), len(outside_base)
    status = np.zeros((max_turns + 1, num_tools), dtype=np.int64)
    executions = np.zeros((max_turns + 1, num_tools), dtype=np.int64)
    outside_used = np.zeros((max_turns + 1, max(num_outside, 1)), dtype=np.int64)
    failures = np.zeros(max_turns + 1, dtype=np.int64)
    consecutive = np.zeros(max_turns + 1, dtype=np.int64)
    done = np.zeros(max_turns + 1, dtype=np.int64)
    option = np.zeros(max_turns + 1, dtype=np.int64)
    if num_visited[0] > len(visited) // 4:
        visited[:] = 0
        num_visited[0] = 0
    depth = 0
    tried = 0
    while depth >= 0:
        # Options of a state: 0 the next required tool, then every closure tool, then breaking the row of failures.
        choice = option[depth]
        option[depth] += 1
        if depth == max_turns or choice > num_tools + 1:
            depth -= 1
            continue
        current = done[depth]
        success = False
        tool = -1
        breaker = -1
        if choice <= num_tools:
            tool = required[current] if choice == 0 else choice - 1
            if status[depth, tool] == SUCCEEDED or (choice > 0 and tool == required[current]):
                continue
            missing, failed = count_unmet(status[depth], dependencies[tool])
            bits = luck[tool, executions[depth, tool]]
            success = bits < threshold[base_index[tool], missing, failed, failures[depth]]
            if success and place[tool] > current:
                continue  # it would break the order
            if not success and consecutive[depth] + 1 == max_consecutive_failures:
                continue  # it would end the episode
        else:
            if max_consecutive_failures == 0 or consecutive[depth] == 0:
                continue
            largest = np.int64(-1)
            for other in range(num_outside):
                bits = outside_luck[other, outside_used[depth, other]]
                if largest < bits < threshold[outside_base[other], 0, 0, failures[depth]]:
                    largest, breaker = bits, other
            for other in range(num_tools):
                if status[depth, other] == SUCCEEDED:
                    missing, failed = count_unmet(status[depth], dependencies[other])
                    bits = luck[other, executions[depth, other]]
                    if largest < bits < threshold[base_index[other], missing, failed, failures[depth]]:
                        largest, breaker = bits, num_outside + other
            if breaker < 0:
                continue
            success = True
        after = depth + 1
        status[after] = status[depth]
        executions[after] = executions[depth]
        outside_used[after] = outside_used[depth]
        failures[after] = failures[depth]
        consecutive[after] = consecutive[depth]
        done[after] = current
        if tool >= 0:
            executions[after, tool] += 1
        elif breaker < num_outside:
            outside_used[after, breaker] += 1
        else:
            executions[after, breaker - num_outside] += 1
        if success:
            consecutive[after] = 0
            if tool >= 0:
                status[after, tool] = SUCCEEDED
                if place[tool] == current:
                    done[after] = current + 1
                    if done[after] == len(required):
                        return 1
        else:
            failures[after] += 1
            consecutive[after] += 1
            if status[after, tool] == NOT_EXECUTED:
                status[after, tool] = FAILED
        left = max_turns - after
        needed = _calls_needed(
            luck,
            base_index,
            required,
            done[after],
            status[after],
            executions[after],
            charged,
            threshold,
            failures[after],
            left,
        )
        if needed > left:
            continue
        state_hash = mix_bits(np.uint64(number + 1))
        state_hash = mix_bits(state_hash + np.uint64(failures[after] * 64 + consecutive[after] + 1))
        for index in range(num_tools):
            state_hash = mix_bits(state_hash + np.uint64(executions[after, index] * 4 + status[after, index] + 1))
        for index in range(num_outside):
            state_hash = mix_bits(state_hash + np.uint64(outside_used[after, index] + 1))
        position = np.int64(state_hash & np.uint64(len(visited) - 1))
        seen = False
        while visited[position] != 0:
            if visited[position] == state_hash:
                seen = True
                break
            position = (position + 1) & (len(visited) - 1)
        if seen:
            continue
        if num_visited[0] < len(visited) // 2:  # a full table only costs time
            visited[position] = state_hash
            num_visited[0] += 1
        tried += 1
        if tried > max_tried:
            return _GIVEN_UP
        depth = after
        option[depth] = 0
    return 0


@dataclass(frozen=True, slots=True)
class References:
    """Success rates that a task's score can be compared with, each a probability of full success.

    Attributes:
        optimum: V*(start): the best that an agent can do that knows the law but not its luck.
        optimum_gap: How far V*(start) may lie above that value: 0 where it is exact (`Values.gap`).
        knowledge: What that agent knows: what agents can see.
        plan_following: The required tools in order, each again until it succeeds, nothing else.
        plan_following_with_search: The same with one turn fewer for each required tool.
        first_call: The tool that the optimal policy calls first.
        after_search: V* after 0, 1, ... different searches at the start; never more are needed than tools are required.
    """

    optimum: float
    optimum_gap: float
    knowledge: Knowledge
    plan_following: float
    plan_following_with_search: float
    first_call: str
    after_search: tuple[float, ...]


def solved_references(problem: Problem) -> References:
    """Return the references of a problem that are solved (all but the clairvoyant one); keeps no table."""
    return _references_of(solve_afresh(problem))


def _references_of(optimum: Values) -> References:
    start = start_state(optimum.problem)
    return References(
        optimum=optimum.value(start),
        optimum_gap=optimum.start_gap,
        knowledge=optimum.knowledge,
        plan_following=plan_following(optimum.problem),
        plan_following_with_search=plan_following_with_search(optimum.problem),
        first_call=optimum.best_action(start).tool or "",
        after_search=tuple(optimum.after_search(number) for number in range(len(optimum.problem.required) + 1)),
    )


def solve_all(problems: Iterable[Problem], threads: int = 2) -> dict[Problem, References]:
    """Return the solved references of many problems, each distinct one solved once, on a few threads.

    The compiled kernels release the interpreter lock, so threads run side by side.
    """
    distinct = list(dict.fromkeys(problems))
    with ThreadPoolExecutor(threads) as pool:
        return dict(zip(distinct, pool.map(solved_references, distinct), strict=True))


def bound(
    required_tools: Sequence[str] | Task,
    *,
    library: ToolLibrary | None = None,
    law: Law | None = None,
    rules: EndRules | None = None,
    clairvoyant_seeds: int = 200,
    salt: str = EVALUATION_SALT,
    instance_id: str | None = None,
    search_many: SearchMany | None = None,
    track: Track = iter,
    goal: Goal | None = None,
) -> dict[str, float | str | None]:
    """Compute the references of a task, or of a list of required tools.

    Args:
        required_tools: Names in the required order, or a task.
        library: Tool library; the default one if omitted.
        law: Success law; the benchmark's if omitted.
        rules: End rules; the benchmark's if omitted.
        clairvoyant_seeds: Seeds 0, 1, ... that the clairvoyant bound is estimated over; 0 leaves it out.
        salt: Salt of the luck that the clairvoyant agent sees.
        instance_id: Task whose luck it is; by default the given task, or an id made from the list.
        search_many: What answers searches (`tasks.searches.searches_needed`); retrieval with the default model if
            omitted.
        track: What tells how far the clairvoyant bound is (`clairvoyant`).
        goal: What is to be reached, if it is not that these tools answer in their order.

    Returns:
        `optimum`, `optimum_gap`, `knowledge` (`References`), `plan_following`,
        `plan_following_with_search`, `first_call`, and, with seeds, `clairvoyant` and its standard error
        `clairvoyant_se`, which are None under a law with parts, towards another goal than answers in order, and where
        there are too many sequences of calls to look through. Of a task also `optimum_after_searches`, V* after the
        searches of an agent that finds its tools clause by clause, with `searches_needed`; where nobody knows that
        number both are None, and `no_search_ceiling` says why.

    Raises:
        InvalidInputError: Unknown, repeated or missing tools, or too many seeds.
        ExactLimitError: The task is too large to be solved.

    Example:
        >>> from resilisim.simulator.exact import bound
        >>> found = bound(["file_operations_reader"], clairvoyant_seeds=0)
        >>> round(found["optimum"], 6), found["first_call"]
        (0.996096, 'file_operations_reader')
    """
    clairvoyant_seeds = checked(CountOrNone, "clairvoyant_seeds", clairvoyant_seeds)
    library = library or default_library()
    task = required_tools if isinstance(required_tools, Task) else None
    names = required_tools.required_tools if isinstance(required_tools, Task) else required_tools
    problem = build_problem(library, names if goal is None else goal, law, rules)
    result: dict[str, Any] = asdict(_references_of(solve(problem)))
    after_search = result.pop("after_search")
    if task is not None:
        searches = searches_needed(task, library, search_many)
        result["optimum_after_searches"] = None if searches.fewest is None else after_search[searches.fewest]
        result |= {"searches_needed": searches.fewest, "no_search_ceiling": searches.reason}
        instance_id = instance_id or task.instance_id
    if clairvoyant_seeds > 0:
        luck_of = instance_id or "tools_" + hashlib.sha256("\n".join(names).encode()).hexdigest()[:12]
        mean, error = clairvoyant_if_known(problem, range(clairvoyant_seeds), salt, luck_of, track)
        result |= {"clairvoyant": mean, "clairvoyant_se": error}
    return result


def clairvoyant_if_known(
    problem: Problem, seeds: Sequence[int], salt: str, instance_id: str, track: Track = iter
) -> tuple[float | None, float | None]:
    """Return the clairvoyant bound and its standard error, None both where nobody has worked it out."""
    if problem.dynamics.has_sections or problem.goal.to_mapping():
        return None, None
    try:
        return clairvoyant(problem, seeds, salt, instance_id, track)
    except ExactLimitError:
        return None, None
