"""The references of a task (SPEC section 7)."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any

from resilisim.errors import MAX_COUNT, ExactLimitError, check_integer
from resilisim.seeding import EVALUATION_SALT
from resilisim.simulator.exact.clairvoyant import clairvoyant
from resilisim.simulator.exact.optimum import Solved, solve, solve_afresh
from resilisim.simulator.exact.plan_following import plan_following, plan_following_with_search
from resilisim.simulator.failure_model import Law
from resilisim.simulator.law import BenchmarkLaw, EndRules
from resilisim.simulator.problem import Problem, build_problem
from resilisim.simulator.state import start_state
from resilisim.tasks import Task
from resilisim.tasks.searches import SearchMany, searches_needed
from resilisim.tool_library import ToolLibrary, default_library


@dataclass(frozen=True, slots=True)
class References:
    """Success rates that a task's score can be compared with, each a probability of full success.

    Attributes:
        known_probabilities: V*(start): the best that an agent can do that knows the law but not its luck.
        known_probabilities_gap: How far V*(start) may lie above that value: 0 where it is exact (`Optimum.gap`).
        plan_following: The required tools in order, each again until it succeeds, nothing else.
        plan_following_with_search: The same with one turn fewer for each required tool.
        first_call: The tool that the optimal policy calls first.
        after_search: V* after 0, 1, ... different searches at the start; never more are needed than tools are required.

    Example:
        >>> from resilisim import default_library
        >>> from resilisim.simulator import build_problem
        >>> from resilisim.simulator.exact import References, solved_references
        >>> found = solved_references(build_problem(default_library(), ["network_validator"]))
        >>> isinstance(found, References), found.first_call
        (True, 'network_fetcher')
    """

    known_probabilities: float
    known_probabilities_gap: float
    plan_following: float
    plan_following_with_search: float
    first_call: str
    after_search: tuple[float, ...]


def solved_references(problem: Problem) -> References:
    """Return the references of a problem that are solved (all but the clairvoyant one); keeps no table.

    Example:
        >>> from resilisim import default_library
        >>> from resilisim.simulator import build_problem
        >>> from resilisim.simulator.exact import solved_references
        >>> found = solved_references(build_problem(default_library(), ["file_operations_reader"]))
        >>> round(found.known_probabilities, 6), len(found.after_search)
        (0.996096, 2)
    """
    return _references_of(solve_afresh(problem))


def _references_of(optimum: Solved) -> References:
    start = start_state(optimum.problem)
    return References(
        known_probabilities=optimum.value(start),
        known_probabilities_gap=optimum.start_gap,
        plan_following=plan_following(optimum.problem),
        plan_following_with_search=plan_following_with_search(optimum.problem),
        first_call=optimum.best_action(start).tool or "",
        after_search=tuple(optimum.after_search(number) for number in range(len(optimum.problem.required) + 1)),
    )


def solve_all(problems: Iterable[Problem], threads: int = 2) -> dict[Problem, References]:
    """Return the solved references of many problems, each distinct one solved once, on a few threads.

    The compiled kernels release the interpreter lock, so threads run side by side.

    Example:
        >>> from resilisim import default_library
        >>> from resilisim.simulator import build_problem
        >>> from resilisim.simulator.exact import solve_all
        >>> problems = [build_problem(default_library(), [name]) for name in ("network_fetcher", "utility_cache")]
        >>> len(solve_all(problems))
        2
    """
    distinct = list(dict.fromkeys(problems))
    with ThreadPoolExecutor(threads) as pool:
        return dict(zip(distinct, pool.map(solved_references, distinct), strict=True))


def references(
    required_tools: Sequence[str] | Task,
    *,
    library: ToolLibrary | None = None,
    law: BenchmarkLaw | Law | None = None,
    rules: EndRules | None = None,
    clairvoyant_seeds: int = 200,
    salt: str = EVALUATION_SALT,
    instance_id: str | None = None,
    search_many: SearchMany | None = None,
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

    Returns:
        `known_probabilities`, `known_probabilities_gap`, `plan_following`, `plan_following_with_search`, `first_call`,
        and, with seeds, `clairvoyant` and its standard error `clairvoyant_se`, which are None under a law with parts
        and where there are too many sequences of calls to look through. Of a task also `known_after_search`, the
        ceiling of an agent that has to find its tools, with `searches_needed`; where nobody knows that number both are
        None, and `no_search_ceiling` says why.

    Raises:
        InvalidInputError: Unknown, repeated or missing tools, or too many seeds.
        ExactLimitError: The task is too large to be solved.

    Example:
        >>> from resilisim.simulator.exact import references
        >>> found = references(["file_operations_reader"], clairvoyant_seeds=0)
        >>> round(found["known_probabilities"], 6), found["first_call"]
        (0.996096, 'file_operations_reader')
    """
    clairvoyant_seeds = check_integer("clairvoyant_seeds", clairvoyant_seeds, 0, MAX_COUNT)
    library = library or default_library()
    task = required_tools if isinstance(required_tools, Task) else None
    names = required_tools.required_tools if isinstance(required_tools, Task) else required_tools
    problem = build_problem(library, names, law, rules)
    result: dict[str, Any] = asdict(_references_of(solve(problem)))
    after_search = result.pop("after_search")
    if task is not None:
        searches = searches_needed(task, library, search_many)
        result["known_after_search"] = None if searches.fewest is None else after_search[searches.fewest]
        result |= {"searches_needed": searches.fewest, "no_search_ceiling": searches.reason}
        instance_id = instance_id or task.instance_id
    if clairvoyant_seeds > 0:
        luck_of = instance_id or "tools_" + hashlib.sha256("\n".join(names).encode()).hexdigest()[:12]
        mean, error = clairvoyant_if_known(problem, range(clairvoyant_seeds), salt, luck_of)
        result |= {"clairvoyant": mean, "clairvoyant_se": error}
    return result


def clairvoyant_if_known(
    problem: Problem, seeds: Sequence[int], salt: str, instance_id: str
) -> tuple[float | None, float | None]:
    """Return the clairvoyant bound and its standard error, None both where nobody has worked it out."""
    if problem.parts is not None:
        return None, None
    try:
        return clairvoyant(problem, seeds, salt, instance_id)
    except ExactLimitError:
        return None, None
