"""A task under a law and end rules, in the numbers that the simulator and the exact solver read."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from resilisim.errors import InvalidInputError, unknown_name
from resilisim.simulator.end_rules import EndRules
from resilisim.simulator.goal import Goal
from resilisim.simulator.law import ACCESS_CODES, BENCHMARK, INPUT_CODES, Law
from resilisim.simulator.messages import Message
from resilisim.simulator.rulebook.build import Aims, law_numbers
from resilisim.simulator.rulebook.dynamics import Draw, Dynamics
from resilisim.simulator.rulebook.rules import Tables
from resilisim.simulator.state import COMPLETION, ENDED, NEXT_PLACE, RUNNING, STOPPED, TURNS_USED, EpisodeState
from resilisim.simulator.tool_status import SUCCEEDED
from resilisim.tool_library import ToolLibrary


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Problem:
    """A goal within a tool library, under a law and end rules. Tools are numbered as in the library.

    Attributes:
        goal: What has to happen.
        required: (num_required,) tool indices in the required order.
        place: (num_tools,) place of each tool in the required list, or -1; tools that can stand in share one.
        once: (num_tools,) whether each may run only once.
        closure: Indices of the required tools, of what can stand in for them, and of all their direct and indirect
            dependencies, ascending.
        dynamics: What messages lead to under the law, and how likely.
        arguments_matter: Whether calls with other parameters are other calls, as in worlds: there a tool that has
            succeeded is called again for something new, and only equal calls that succeed count as a loop.

    Example:
        >>> from resilisim import default_library
        >>> from resilisim.simulator import build_problem
        >>> problem = build_problem(default_library(), ["network_validator"])
        >>> [problem.library.names[tool] for tool in problem.closure]
        ['network_fetcher', 'network_validator']
    """

    library: ToolLibrary
    law: Law
    rules: EndRules
    goal: Goal
    required: tuple[int, ...]
    place: tuple[int, ...]
    once: tuple[bool, ...]
    closure: tuple[int, ...]
    dynamics: Dynamics
    arguments_matter: bool = False

    def __repr__(self) -> str:
        """Return what tells problems apart, without the tables."""
        return f"Problem(required_tools={self.required_tools}, law={self.law}, rules={self.rules})"

    def __reduce__(self) -> tuple[Any, ...]:
        # Copies are the same object, or that of another process: what is solved is remembered by it.
        return build_problem, (self.library, self.goal, self.law, self.rules, self.arguments_matter)

    @property
    def num_tools(self) -> int:
        """Number of tools in the library."""
        return len(self.place)

    @property
    def dependencies(self) -> tuple[tuple[int, ...], ...]:
        """For each tool the indices of its direct dependencies."""
        return self.dynamics.numbers.dependencies

    @property
    def base_index(self) -> tuple[int, ...]:
        """(num_tools,) index of each tool's base probability in `bases`."""
        return self.dynamics.numbers.base_index

    @property
    def bases(self) -> tuple[float, ...]:
        """The distinct base probabilities that tools have at first, ascending."""
        return self.dynamics.numbers.bases

    @property
    def tables(self) -> Tables:
        """What executions read: the law's constants, tabulated for this library and these rules."""
        return self.dynamics.numbers.tables

    @property
    def required_tools(self) -> tuple[str, ...]:
        """Names of the required tools, in the required order."""
        return self.goal.required

    def base(self, tool: int) -> float:
        """Return the base success probability of a tool."""
        return self.bases[self.base_index[tool]]


def dependencies_within(problem: Problem, tools: Sequence[int]) -> NDArray[np.int64]:
    """Number dependencies by their places among `tools`: int64 (num_chosen, max_dependencies), padded with -1."""
    place = {tool: index for index, tool in enumerate(tools)}
    width = max(1, max(len(problem.dependencies[tool]) for tool in tools))
    numbered = np.full((len(tools), width), -1, dtype=np.int64)
    for index, tool in enumerate(tools):
        for column, dependency in enumerate(problem.dependencies[tool]):
            numbered[index, column] = place[dependency]
    return numbered


@functools.lru_cache(maxsize=4096)
def _build_problem(
    library: ToolLibrary,
    goal: Goal,
    law: Law,
    rules: EndRules,
    arguments_matter: bool,
) -> Problem:
    numbers = _law_numbers(library, law, rules)
    required = tuple(library.index(name) for name in goal.required)
    if not required:
        raise InvalidInputError("the list of required tools is empty: expected at least one tool")
    place = [-1] * len(library)
    for position, tool in enumerate(required):
        if place[tool] >= 0:
            raise InvalidInputError(f"required tool {library.names[tool]!r} is listed twice: expected each tool once")
        place[tool] = position
    for tool in required:
        for other in numbers.equivalents.get(tool, ()):
            if place[other] < 0:
                place[other] = place[tool]
    wanted = [name for tool, name in enumerate(library.names) if place[tool] >= 0]
    closure = tuple(sorted(library.index(name) for name in library.closure(wanted)))
    if arguments_matter:
        law.check_world()
    only_once = {library.index(name) for name in goal.once}
    once = tuple(tool in only_once for tool in range(len(library)))
    program = None if goal.program is None else tuple(library.index(name) for name in goal.program)
    aims = Aims(place, len(required), goal.ordered, once, goal.counts == "effects", program)
    dynamics = Dynamics(tuple(library), numbers, aims, arguments_matter)
    return Problem(library, law, rules, goal, required, tuple(place), once, closure, dynamics, arguments_matter)


@functools.lru_cache(maxsize=16)
def _with_declared_equivalents(library: ToolLibrary, law: Law) -> Law:
    """Return a law that breaks tools, with the library's equivalents.

    They stand in the law from here on, and so in records, which are scored again without the library.
    """
    declared = {tool.name: tool.equivalents for tool in library if tool.equivalents}
    return replace(law, equivalents=declared) if declared else law


def check_law_names(library: ToolLibrary, law: Law) -> None:
    """Refuse a law that says something of tools or error codes that a library does not have.

    A run takes a law whose codes the tools do not document: their own codes are alike there.

    Raises:
        InvalidInputError: A tool, a category or a code is unknown; the line gives the nearest name.
    """
    build_problem(library, library.names[:1], law)  # tools and categories
    documented = sorted({error.code for tool in library for error in tool.failure_errors})
    given = [("errors", code) for code in law.errors]
    if law.error_kinds is not None:
        told = {"input_codes": law.error_kinds.input_codes, "access_codes": law.error_kinds.access_codes}
        usual = {*INPUT_CODES, *ACCESS_CODES}  # those that nobody wrote down
        given += [(name, code) for name, codes in told.items() for code in codes if code not in usual]
    for field, code in given:
        if code not in documented:
            raise unknown_name("error code", code, documented, f"{field} (no tool documents it, so it never occurs)")


_law_numbers = functools.lru_cache(maxsize=16)(law_numbers)


def build_problem(
    library: ToolLibrary,
    goal: Goal | Sequence[str],
    law: Law | None = None,
    rules: EndRules | None = None,
    arguments_matter: bool = False,
) -> Problem:
    """Turn a goal, or names in the required order, into a problem; equal arguments give the same object.

    A law that breaks tools and names no equivalents takes those that the library declares, except where
    `arguments_matter`. Without one it is the benchmark's.

    Raises:
        InvalidInputError: An unknown, repeated or missing tool, or one that the law names and the library lacks.

    Example:
        >>> from resilisim import default_library
        >>> from resilisim.simulator import EndRules, build_problem
        >>> build_problem(default_library(), ["network_fetcher"], rules=EndRules(max_turns=5)).required_tools
        ('network_fetcher',)
    """
    law = law or BENCHMARK
    if law.broken is not None and not law.equivalents and not arguments_matter:
        law = _with_declared_equivalents(library, law)
    goal = goal if isinstance(goal, Goal) else Goal(tuple(goal))
    return _build_problem(library, goal, law, rules or EndRules(), arguments_matter)


# Questions about states.


def start_state(problem: Problem, key: tuple[int, int] | None = None) -> EpisodeState:
    """Return the state in which an episode of a problem begins; without its luck key, what is hidden is left open.

    Example:
        >>> from resilisim import default_library
        >>> from resilisim.simulator import build_problem, start_state
        >>> sum(start_state(build_problem(default_library(), ["network_fetcher"])).executions)
        0
    """
    return problem.dynamics.start(key)


def is_done(problem: Problem, state: EpisodeState) -> bool:
    """Return whether all required tools have succeeded, in the required order, with outputs that are surely sound."""
    return problem.dynamics.chance_done(state) == 1.0


def next_required(problem: Problem, state: EpisodeState) -> int:
    """Return the first required tool that has not succeeded, or the last one if all have."""
    if problem.goal.ordered:
        return problem.required[min(state.counters[NEXT_PLACE], len(problem.required) - 1)]
    missing = (tool for tool in problem.required if state.status[tool] != SUCCEEDED)
    return next(missing, problem.required[-1])


def is_awaiting_closing(problem: Problem, state: EpisodeState) -> bool:
    """Return whether every turn is used, or all time, and only the closing message is left."""
    counters, dynamics = state.counters, problem.dynamics
    rules = dynamics.rules
    if counters[TURNS_USED] != rules.max_turns and (rules.budget < 0 or not dynamics.is_out_of_time(state)):
        return False
    return counters[ENDED] == RUNNING


def outcome(problem: Problem, state: EpisodeState) -> int:
    """Return 1 if an ended episode is a full success, else 0; an agent's own stop counts as completion."""
    return int(state.counters[ENDED] in (COMPLETION, STOPPED) and is_done(problem, state))


def success_probability(problem: Problem, state: EpisodeState, tool: int, message: Message | None = None) -> float:
    """Return the probability that an execution of a tool (its index) succeeds in a state.

    It is the probability by what an agent can know; a `message` gives the parameters.
    """
    return problem.dynamics.chance_of_success(state, tool, message)


def next_state(problem: Problem, state: EpisodeState, message: Message, success: bool | Draw = False) -> EpisodeState:
    """Return the state after a message in a running state; for an execution, given whether it succeeds.

    There are more results than two, which a `Draw` tells; `branches` has all of them.
    """
    tool = problem.library.index(message.tool or "") if message.kind == "execute" else -1
    return problem.dynamics.after(state, message, tool, success)


def branches(problem: Problem, state: EpisodeState, message: Message) -> list[tuple[float, EpisodeState]]:
    """Return every state that a message in a running state can lead to, with its probability.

    Where `state.hidden` is left open, probabilities are those of an agent that knows the law and what it saw.
    """
    executes = message.kind == "execute" and not is_awaiting_closing(problem, state)
    tool = problem.library.index(message.tool or "") if executes else -1
    return problem.dynamics.branches(state, message, tool)
