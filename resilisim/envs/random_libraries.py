"""Random libraries, required lists, turns and laws: what a policy trains on, and is measured on, that is to serve any.

Number k of a stream is a function of the stream's name, of k and of RANDOM_LIBRARIES_VERSION, on every machine. Drawn
are

* 10 to 300 tools, small libraries as often as large ones (by the logarithm); 0 to 3 dependencies among the 60 tools
  before; in half of the libraries one reliability for all, in the others one of four between 0.60 and 0.98 for each
* 5 to 30 turns; lists of 2 to 12 tools, at most 0.7 of the turns, half of the tools dependencies of others in the list
* in half of the laws the benchmark's constants, else a base of 0.6 to 0.95 and factors from the benchmark's
  neighbourhood; no part in two laws of five, one in two of five, two in one of five
* the strength of each part, as `_PARTS` says

For training, lists whose dependencies close over more than MAX_CLOSURE tools are drawn again, and so are, where values
are asked for, those that are too large to be solved; both are counted. What is measured on is not selected: whatever
list comes is taken, and where V* is not known it is bounded (`optimum_bracket`).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from resilisim.envs.workflow.options import WorkflowOptions
from resilisim.errors import ExactLimitError
from resilisim.seeding import Draws
from resilisim.simulator.end_rules import EndRules
from resilisim.simulator.exact.arena import build_arena
from resilisim.simulator.exact.optimum import solve, solve_afresh, tabulate
from resilisim.simulator.exact.reachable import solve_reachable
from resilisim.simulator.exact.values import Values
from resilisim.simulator.law import (
    TASK_PARTS,
    Broken,
    Corrupt,
    Drift,
    Duration,
    ErrorKinds,
    Latency,
    Law,
    Outage,
    RateLimit,
)
from resilisim.simulator.problem import Problem, build_problem, start_state
from resilisim.tasks import Task
from resilisim.tool_library import ToolLibrary, default_library
from resilisim.tool_library.generator import one_of_few, random_library, rounded_between

RANDOM_LIBRARIES_VERSION = 1  # to be raised when anything here draws otherwise

FEWEST_TOOLS, MOST_TOOLS = 10, 300
FEWEST_TURNS, MOST_TURNS = 5, 30
MOST_REQUIRED, MOST_REQUIRED_SHARE = 12, 0.7  # of a list, and of the turns
MAX_CLOSURE, MAX_SOLVED_CLOSURE = 32, 12
MAX_ENTRIES, MAX_STATES = 2_000_000, 20_000  # of what is solved: a second at most
MOST_TOO_LARGE = 2  # lists that are too large, for each wanted, after which the setting is drawn again
# Of what is solved to be asked for other states, under a law without parts and with some: half a second.
MAX_KEPT_STATES, MAX_KEPT_UNDER_PARTS = 100_000, 8_000
MAX_CLOSURE_UNDER_PARTS = 6  # of such lists: larger ones can hardly ever be solved with so many states
# Of what is measured: states that a list without parts is searched with, and those of what is bounded: seconds each.
MAX_SEARCHED_STATES, MAX_BRACKET_STATES = 1_000_000, 20_000
# Of lists that are not selected, one for so many wanted: where one is too large, most are. Half as many lists as are
# wanted will do.
FEW_TOO_LARGE = 4
MAX_GAP = 1e-3  # of values whose bounds are all that is known
HOME_SHARE = 0.25  # of settings with the library and the turns of tasks that are given, where some are
MOST_DRAWS = 50  # of a required list; after so many the setting is drawn again
# Numbers of parts of a law, and how often each is drawn.
NUM_PARTS = {0: 2, 1: 2, 2: 1}


@dataclass(frozen=True, slots=True)
class RandomSettings:
    """Settings that were drawn.

    Attributes:
        options: Tasks, library, law and turns; what else there is has its default.
        tasks: The tasks of the options.
        optima: V* of each task; empty if it was not asked for.
        refused: How many lists were drawn again, by reason.
    """

    options: WorkflowOptions
    tasks: tuple[Task, ...]
    optima: tuple[float, ...]
    refused: Mapping[str, int]


def random_settings(
    stream: str,
    number: int,
    num_tasks: int,
    *,
    num_tools: int | None = None,
    parts: Sequence[str] | None = None,
    home: Sequence[Task] = (),
    solved: bool = False,
    selected: bool = True,
) -> RandomSettings:
    """Draw number `number` of a stream, with so many tasks.

    Args:
        stream: Name of the stream; those of training and measurement differ.
        number: Which.
        num_tasks: Required lists.
        num_tools: Tools of the library; drawn if None.
        parts: Parts of the law; drawn if None.
        home: Tasks of the default library that take part; HOME_SHARE of the settings hold some of them.
        solved: Whether V* is computed, and lists that are too large for that are drawn again.
        selected: Whether lists whose dependencies close over very many tools are drawn again, too. If not, what solves
            a list is kept for later questions, and such lists are drawn again only where they would have to be solved
            under a law with parts.
    """
    refused: Counter[str] = Counter()
    # What it is stays, however often the rest has to be drawn again.
    draws = Draws("resilisim/random libraries", RANDOM_LIBRARIES_VERSION, stream, number)
    is_home = bool(home) and draws.uniform() < HOME_SHARE
    if num_tools is None:
        num_tools = round(FEWEST_TOOLS * (MOST_TOOLS / FEWEST_TOOLS) ** draws.uniform())
    if parts is None:
        count = draws.weighted(tuple(NUM_PARTS), tuple(NUM_PARTS.values()))
        parts = draws.shuffled(TASK_PARTS)[:count]
    most: float = math.inf
    if selected:
        most = MAX_SOLVED_CLOSURE if solved else MAX_CLOSURE
    elif solved and parts:
        most = MAX_CLOSURE_UNDER_PARTS
    while True:
        library = default_library() if is_home else _random_library(draws, num_tools)
        law, turns = random_law(draws, library, parts), draws.between(FEWEST_TURNS, MOST_TURNS)
        turns = EndRules().max_turns if is_home else turns
        pool = draws.shuffled(home) if is_home else []
        small = [] if selected or most == math.inf else _closing_over(library, most // 2)
        tasks: list[Task] = []
        optima: list[float] = []
        too_large = 0
        for _ in range(num_tasks * MOST_DRAWS):
            task = pool.pop() if pool else _random_task(draws, library, turns, f"{stream}/{number}/{len(tasks)}", small)
            problem = build_problem(library, task.required_tools, law, EndRules(turns))
            if len(problem.closure) > most:
                refused[f"the dependencies close over more than {most} tools"] += 1
                continue
            if solved:
                try:
                    optima.append(_value(problem) if selected else _kept_value(problem))
                except ExactLimitError:
                    refused["too large to be solved"] += 1
                    too_large += 1
                    if too_large > (MOST_TOO_LARGE * num_tasks if selected else num_tasks // FEW_TOO_LARGE):
                        break
                    continue
            tasks.append(task)
            if len(tasks) == num_tasks:
                break
        if len(tasks) == num_tasks or (not selected and len(tasks) >= math.ceil(num_tasks / 2)):
            options = WorkflowOptions(
                tasks=tasks, library=library, law=law, max_turns=turns, similarity="auto" if is_home else None
            )
            return RandomSettings(options, tuple(tasks), tuple(optima), dict(refused))


def optimum_bracket(problem: Problem) -> tuple[float, float]:
    """Return what V* of the start surely reaches, and what it is surely not above: the same where it is known.

    Nothing is too large: what cannot be solved within MAX_BRACKET_STATES states under a law with parts, or
    MAX_SEARCHED_STATES under one without, is bounded.
    """
    start = start_state(problem)
    try:
        if not problem.dynamics.has_sections:
            value = solve_afresh(problem, MAX_SEARCHED_STATES, may_bound=False).value(start)
            return value, value
    except ExactLimitError:
        pass
    try:
        optimum = solve_reachable(problem, max_states=MAX_BRACKET_STATES)
    except ExactLimitError:
        return 0.0, 1.0
    low = optimum.value(start)
    return low, min(low + optimum.start_gap, 1.0)


def _kept_value(problem: Problem) -> float:
    """Return V* of the start, if it is known with few states; what solved the problem stays, to be asked for others."""
    if not problem.dynamics.has_sections:
        return solve(problem, MAX_KEPT_STATES, may_bound=False).value(start_state(problem))
    # What each choice is worth takes more states than the best one.
    return solve(problem, MAX_KEPT_UNDER_PARTS, may_bound=False).best_choices(start_state(problem)).value


def _value(problem: Problem) -> float:
    """Return V* of the start, if it does not take long."""
    optimum: Values
    if not problem.dynamics.has_sections:
        if math.prod(build_arena(problem).table_shape) > MAX_ENTRIES:
            raise ExactLimitError(f"the table has more than {MAX_ENTRIES:,} entries")
        optimum = tabulate(problem)
    else:
        optimum = solve_reachable(problem, "observing", MAX_STATES)
    if optimum.start_gap > MAX_GAP:
        raise ExactLimitError(f"known to {optimum.start_gap:g} only")
    return optimum.value(start_state(problem))


def _random_library(draws: Draws, num_tools: int) -> ToolLibrary:
    reliability = one_of_few(draws, 0.6, 0.98) if draws.uniform() < 0.5 else lambda _: None
    return random_library(draws, num_tools, reliability)


def _closing_over(library: ToolLibrary, most: float) -> list[str]:
    """Return the tools whose dependencies close over no more tools than that."""
    return [name for name in library.names if len(library.closure([name])) <= most]


def _random_task(draws: Draws, library: ToolLibrary, turns: int, name: str, first: Sequence[str] = ()) -> Task:
    """Draw a list that grows by dependencies and other tools, from `first` if there are any, and their dependencies."""
    most = min(MOST_REQUIRED, int(MOST_REQUIRED_SHARE * turns), len(library))
    wanted, tools = draws.between(2, most), [draws.choice(first or library.names)]
    while len(tools) < wanted:
        deeper = [other for other in library.closure(tools) if other not in tools]
        others = [other for other in first or library.names if other not in tools]
        if not deeper and not others:
            break
        tools.append(draws.choice(deeper if deeper and draws.uniform() < 0.5 else others))
    required = sorted(tools, key=library.index)
    return Task.from_mapping({"instance_id": name, "required_tools": required}, library)


def random_law(draws: Draws, library: ToolLibrary, parts: Sequence[str]) -> Law:
    """Draw a law with these parts."""
    constants: dict[str, Any] = {"base": 0.8, "not_executed": 0.5, "failed": 0.7, "history": 0.9}
    if draws.uniform() < 0.5:
        bounds = {"base": (0.6, 0.95), "not_executed": (0.3, 0.9), "failed": (0.5, 1.0), "history": (0.8, 1.0)}
        constants = {name: rounded_between(draws, *bound) for name, bound in bounds.items()}
    drawn: dict[str, Any] = {part: _PARTS[part](draws) for part in parts}
    if "broken" in parts:
        drawn["equivalents"] = _equivalents(draws, library)
    return Law(name="+".join(("random", *parts)), **constants, **drawn)


def _rate_limit(draws: Draws) -> RateLimit:
    scopes: tuple[Literal["tool", "category", "all"], ...] = ("tool", "category", "all")
    per = draws.choice(scopes)
    calls = draws.between(1, 3) if per != "all" else draws.between(2, 4)
    return RateLimit(calls, calls + draws.between(1, 3 if per != "all" else 1), per)


def _outage(draws: Draws) -> Outage:
    return Outage(
        rounded_between(draws, 0.02, 0.2), rounded_between(draws, 0.2, 0.6), draws.choice(("category", "all"))
    )


def _corrupt(draws: Draws) -> Corrupt:
    return Corrupt(rounded_between(draws, 0.05, 0.35), draws.choice(("payload", "validators")))


def _drift(draws: Draws) -> Drift:
    return Drift(rounded_between(draws, -0.03, 0.02))


def _error_kinds(draws: Draws) -> ErrorKinds:
    return ErrorKinds(1.0, rounded_between(draws, 0.0, 1.5), draws.choice((0.0, rounded_between(draws, 0.1, 1.0))))


def _latency(draws: Draws) -> Latency:
    slow = rounded_between(draws, 0.02, 0.3)
    budget = draws.choice((None, float(draws.between(60, 300))))
    return Latency((Duration(1.0, 1.0 - slow), Duration(60.0, slow)), draws.choice((30.0, None)), budget)


_PARTS: Mapping[str, Callable[[Draws], Any]] = {
    "rate_limit": _rate_limit,
    "outage": _outage,
    "broken": lambda draws: Broken(rounded_between(draws, 0.02, 0.2)),
    "corrupt": _corrupt,
    "drift": _drift,
    "error_kinds": _error_kinds,
    "latency": _latency,
}


def _equivalents(draws: Draws, library: ToolLibrary) -> dict[str, tuple[str, ...]]:
    """Let another tool of the category stand in for about half of the tools."""
    equivalents: dict[str, tuple[str, ...]] = {}
    for tool in library:
        others = [other.name for other in library if other.category == tool.category and other.name != tool.name]
        if others and draws.uniform() < 0.5:
            equivalents[tool.name] = (draws.choice(others),)
    return equivalents
