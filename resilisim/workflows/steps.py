"""What a planner puts into steps: reasons, outcomes, chances, parameters, and how well tools match the task's text."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from resilisim.simulator.messages import execution
from resilisim.simulator.problem import Problem
from resilisim.simulator.state import EpisodeState
from resilisim.tasks.wording import clauses
from resilisim.tool_library import Parameter, Tool
from resilisim.tool_library.parameters import changed_parameters, check_parameters
from resilisim.tool_library.retrieval import SCORE_DECIMALS

if TYPE_CHECKING:
    from resilisim.tool_library.retrieval import Retriever

# Not "number 2 of 5": a plan from which a step was taken would tell so by its numbers.
REASON_REQUIRED = "an operation that the task asks for"


@dataclass(frozen=True, slots=True)
class Wording:
    """What only the planner can know about its choices."""

    left_out: str = "running {} first would not pay"  # of dependencies that no earlier step runs
    unexplained: str = "but raises the chance that the task succeeds"  # outside the list, needed by no later step


SOUND_WORDING = Wording()


def chance(problem: Problem, name: str, before: Sequence[str]) -> float:
    """Return the success probability of a tool's first execution when exactly `before` have run, all successfully."""
    missing = sum(dependency not in before for dependency in problem.library.dependencies(name))
    return problem.law.probability(problem.base(problem.library.index(name)), missing, 0, 0)


def reason(problem: Problem, tools: Sequence[str], place: int, wording: Wording = SOUND_WORDING) -> str:
    """Return one line on why a step stands in a plan."""
    name, before = tools[place], tools[:place]
    if name not in problem.required_tools:
        return _reason_outside_list(problem, tools, place, wording)
    missing = [dependency for dependency in problem.library.dependencies(name) if dependency not in before]
    if not missing:
        return REASON_REQUIRED
    left_out = wording.left_out.format(" and ".join(missing))
    return f"{REASON_REQUIRED}; {left_out} (success probability {chance(problem, name, before):.3f} without)"


def _reason_outside_list(problem: Problem, tools: Sequence[str], place: int, wording: Wording) -> str:
    name = tools[place]
    helped: dict[str, list[str]] = {}
    for later, dependent in enumerate(tools):
        if later > place and name in problem.library.dependencies(dependent):
            with_it = chance(problem, dependent, tools[:later])
            without_it = chance(problem, dependent, [tool for tool in tools[:later] if tool != name])
            effect = f"success probability {with_it:.3f} with it, {without_it:.3f} without"
            helped.setdefault(effect, []).append(dependent)
    clauses = [f"required by {' and '.join(dependents)} ({effect})" for effect, dependents in helped.items()]
    direct = set().union(*helped.values())
    if direct and direct.isdisjoint(problem.required_tools):
        in_turn = [tool for tool in problem.required_tools if direct & set(problem.library.closure((tool,)))]
        if in_turn:
            clauses.append(f"a tool on which {' and '.join(in_turn)} in turn depends")
    return ", ".join(["not on the task's list", *(clauses or [wording.unexplained])])


def expected_outcome(tool: Tool) -> str:
    """Return one line on what a tool gives when it succeeds."""
    names = [value.name for value in tool.returns if value.name != "success"]
    return f"success, with {', '.join(names)}" if names else "success"


# Parameters through which the result of one step reaches the next (SPEC section 1, Table 10 of the seed).
FLOWING_PARAMETERS = frozenset({"source", "data"})
# Under these two forms a plan passes the result of one step to another.
RESULT_TEXT = "result of "
RESULT_KEY = "result_of"
# What stands for a text that neither the task nor the step before gives, and for values of the other types.
UNSTATED_TEXT = "as in the work order"
_UNSTATED: Mapping[str, Any] = {
    "string": UNSTATED_TEXT,
    "object": {},
    "array": [],
    "number": 1,
    "integer": 1,
    "boolean": True,
}


def reference(tool: str, as_object: bool) -> Any:
    """Return what passes the result of a tool on."""
    return {RESULT_KEY: tool} if as_object else RESULT_TEXT + tool


def step_parameters(tool: Tool, inputs: Mapping[str, Any], step_before: str | None) -> dict[str, Any]:
    """Return parameters for a step that the tool's schema accepts.

    Every parameter that the task's inputs name and that fits is passed; every other required one gets its default, its
    first permitted value, a reference to the result of the step before (a tool), or a value that says nothing. What
    the schema refuses is left out.
    """
    stand_ins = _stand_ins(tool, step_before)
    values: dict[str, Any] = {}
    for parameter in tool.parameters:
        name = parameter.name
        if name in inputs and not check_parameters(tool, {name: inputs[name]}, "lenient"):
            values[name] = inputs[name]
        elif name in stand_ins:
            value = stand_ins[name]
            values[name] = value.copy() if isinstance(value, (dict, list)) else value  # each step has its own
    return values


# Checking a value costs more than all the rest, and these depend on no task.
@lru_cache(maxsize=4096)
def _stand_ins(tool: Tool, step_before: str | None) -> Mapping[str, Any]:
    """Return what is passed for required parameters that the inputs don't give, where the schema takes it."""
    values = {parameter.name: _stand_in(parameter, step_before) for parameter in tool.parameters if parameter.required}
    return {name: value for name, value in values.items() if not check_parameters(tool, {name: value}, "lenient")}


def _stand_in(parameter: Parameter, step_before: str | None) -> Any:
    if parameter.default is not None:
        return parameter.default
    permitted = parameter.constraints.get("enum")
    if permitted:
        return permitted[0]
    if parameter.name in FLOWING_PARAMETERS and step_before is not None and parameter.type in ("string", "object"):
        return reference(step_before, parameter.type == "object")
    return _UNSTATED[parameter.type]


_MOST_CHANGES = 40  # that are looked at; a tool has few parameters, and each a few other values


def accepted_parameters(
    problem: Problem,
    state: EpisodeState,
    name: str,
    parameters: Mapping[str, Any],
    names: Collection[str] | None = None,
) -> dict[str, Any]:
    """Return parameters, one of them changed where the law refuses the call because its input was refused before.

    Only those with the given names are changed; any if None. They come back as they are if that does not help.
    """
    original, tool = dict(parameters), problem.library[name]
    changes = (changed_parameters(tool, original, number) for number in range(_MOST_CHANGES))
    for change in itertools.chain([original], changes):
        is_known = names is None or all(change[key] == original.get(key) for key in change if key not in names)
        if is_known and not is_refused_input(problem, state, name, change):
            return change
    return original


def is_refused_input(problem: Problem, state: EpisodeState, name: str, parameters: Mapping[str, Any]) -> bool:
    """Return whether the law refuses a call because the same input was refused before."""
    dynamics, tool = problem.dynamics, problem.library.index(name)
    if dynamics.rules.at_block < 0:
        return False
    return dynamics.digest(tool, execution(name, parameters)) == state.parts[dynamics.rules.at_block + tool]


# Scores (-1 to 1) of tools for a task, from its description and their names.
SemanticMatch = Callable[[str, Sequence[str]], Sequence[float]]

# Clauses whose similarities to all tools are held at once; bounds memory for texts of any length.
CLAUSES_AT_ONCE = 256


def semantic_match_by_retrieval(retriever: Retriever) -> SemanticMatch:
    """Return a function that scores tools by the clause of a description that is nearest to each.

    The score of a tool is the highest similarity of its text and a clause, rounded to 1e-3 as in every search. A
    description without clauses is taken as a whole. Nothing is loaded until the function is called.
    """

    def semantic_match(description: str, tools: Sequence[str]) -> list[float]:
        columns = [retriever.library.index(name) for name in tools]
        parts = clauses(description) or [description]
        best = np.full(len(tools), -np.inf)
        for first in range(0, len(parts), CLAUSES_AT_ONCE):
            similarities = retriever.similarities(parts[first : first + CLAUSES_AT_ONCE])
            best = np.maximum(best, similarities[:, columns].max(axis=0))
        return [round(float(score), SCORE_DECIMALS) + 0.0 for score in best]

    return semantic_match
