"""The four references of a task (SPEC section 7)."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass

from resilisim.errors import MAX_COUNT, check_integer
from resilisim.seeding import EVALUATION_SALT
from resilisim.simulator.exact.clairvoyant import clairvoyant
from resilisim.simulator.exact.optimum import Optimum, compute_optimum, solve
from resilisim.simulator.exact.plan_following import plan_following, plan_following_with_search
from resilisim.simulator.law import BenchmarkLaw
from resilisim.simulator.problem import Problem, build_problem
from resilisim.simulator.rules import EndRules
from resilisim.simulator.state import start_state
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
    """

    known_probabilities: float
    known_probabilities_gap: float
    plan_following: float
    plan_following_with_search: float
    first_call: str


def solved_references(problem: Problem) -> References:
    """Return the references of a problem that are solved (all but the clairvoyant one); keeps no table."""
    return _references_of(compute_optimum(problem))


def _references_of(optimum: Optimum) -> References:
    start = start_state(optimum.problem)
    return References(
        known_probabilities=optimum.value(start),
        known_probabilities_gap=optimum.gap,
        plan_following=plan_following(optimum.problem),
        plan_following_with_search=plan_following_with_search(optimum.problem),
        first_call=optimum.best_action(start).tool or "",
    )


def solve_all(problems: Iterable[Problem], threads: int = 2) -> dict[Problem, References]:
    """Return the solved references of many problems, each distinct one solved once, on a few threads.

    The compiled kernels release the interpreter lock, so threads run side by side.
    """
    distinct = list(dict.fromkeys(problems))
    with ThreadPoolExecutor(threads) as pool:
        return dict(zip(distinct, pool.map(solved_references, distinct), strict=True))


def references(
    required_tools: Sequence[str],
    *,
    library: ToolLibrary | None = None,
    law: BenchmarkLaw | None = None,
    rules: EndRules | None = None,
    clairvoyant_seeds: int = 200,
    salt: str = EVALUATION_SALT,
    instance_id: str | None = None,
) -> dict[str, float | str]:
    """Compute the references of a required list.

    Args:
        required_tools: Names in the required order.
        library: Tool library; the default one if omitted.
        law: Success law; the benchmark's if omitted.
        rules: End rules; the benchmark's if omitted.
        clairvoyant_seeds: Seeds 0, 1, ... that the clairvoyant bound is estimated over; 0 leaves it out.
        salt: Salt of the luck that the clairvoyant agent sees.
        instance_id: Task whose luck it is; by default an id made from the list.

    Returns:
        `known_probabilities`, `known_probabilities_gap`, `plan_following`, `plan_following_with_search`, `first_call`,
        and, with seeds, `clairvoyant` and its standard error `clairvoyant_se`.

    Raises:
        InvalidInputError: Unknown, repeated or missing tools, or too many seeds.
        ExactLimitError: The task is too large to be solved.
    """
    clairvoyant_seeds = check_integer("clairvoyant_seeds", clairvoyant_seeds, 0, MAX_COUNT)
    problem = build_problem(library or default_library(), required_tools, law, rules)
    result: dict[str, float | str] = asdict(_references_of(solve(problem)))
    if clairvoyant_seeds > 0:
        task = instance_id or "tools_" + hashlib.sha256("\n".join(required_tools).encode()).hexdigest()[:12]
        mean, error = clairvoyant(problem, range(clairvoyant_seeds), salt, task)
        result |= {"clairvoyant": mean, "clairvoyant_se": error}
    return result
