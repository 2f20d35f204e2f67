"""What a flaw is, and how those who make and check flaws see a workflow.

A flaw has a name and a strength; a flawed workflow lists what was changed, and a refusal says why a workflow cannot
carry it. `PlanView` is the workflow with what is required of it and the tools around it; `ToolSimilarity` says how
alike two tools are in meaning (S) and in function (F).
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from resilisim.errors import unknown_name
from resilisim.simulator.problem import build_problem
from resilisim.tool_library import Tool, ToolLibrary
from resilisim.tool_library.parameters import accepts
from resilisim.workflows.steps import REASON_REQUIRED, expected_outcome, step_parameters
from resilisim.workflows.workflow import Step, Workflow

if TYPE_CHECKING:
    from resilisim.tool_library.retrieval import Retriever

# Flaw type -> its two methods (R C.3).
FLAW_METHODS: Mapping[str, tuple[str, str]] = {
    "sequential_order": ("swap", "dependency_violation"),
    "tool_misuse": ("semantic_similarity", "category_mismatch"),
    "parameter_error": ("missing_parameters", "type_mismatch"),
    "missing_step": ("middle_step_removal", "validation_removal"),
    "redundant_operation": ("duplication", "unnecessary_addition"),
    "logic_discontinuity": ("format_mismatch", "unrelated_insertion"),
    "semantic_drift": ("semantic_mismatch", "progressive_drift"),
}
FLAW_TYPES: tuple[str, ...] = tuple(FLAW_METHODS)
# What stresses a plan: the seven flaws, which are drawn where none is named, and how arguments are passed.
ARGUMENT_PASSING = "argument_passing"
STRESSORS: Mapping[str, tuple[str, ...]] = {
    **FLAW_METHODS,
    ARGUMENT_PASSING: ("malformed_reference", "nested_reference", "missing_reference", "forward_reference"),
}
SEVERITIES = ("light", "moderate", "severe")
DEFAULT_SEVERITY = "moderate"

# What an edit did. "where" counts steps from 1.
EDIT_KINDS = (
    "swapped",  # the step and the one after it changed places
    "moved",  # the step stands before one that it should follow
    "replaced",  # another tool stands there
    "parameter_dropped",
    "parameter_changed",
    "outcome_changed",  # the step is said to give something else
    "reason_changed",  # the reason names another tool, because the one that it named is gone
    "removed",
    "inserted",
    "duplicated",
    "undone",  # the step cannot be done, because of what it refers to
)


@dataclass(frozen=True, slots=True)
class Flaw:
    """The name of a flaw: one of `STRESSORS`, one of its methods, one of `SEVERITIES`."""

    type: str
    method: str
    severity: str

    def __str__(self) -> str:
        """Return type, method and severity with slashes between them."""
        return f"{self.type}/{self.method}/{self.severity}"


@dataclass(frozen=True, slots=True)
class Edit:
    """One change from the original workflow to the flawed one.

    Attributes:
        what: One of `EDIT_KINDS`.
        step: Number of the step in the flawed workflow, from 1; for a removed step, the number of the step that it
            stood before (one more than there are, if it was the last).
        original_step: Number of the step in the original workflow; None for a step that is not there.
        parameter: Name of the parameter, for changes of parameters.
        before: What stood there: a tool, two tools in their order (for a step that was swapped or moved), a parameter's
            value as JSON, or an outcome; None for nothing.
        after: What stands there now, in the same form.
    """

    what: str
    step: int
    original_step: int | None
    parameter: str | None
    before: str | None
    after: str | None

    def to_mapping(self) -> dict[str, Any]:
        """Return the edit as plain JSON values: what, where, before, after."""
        where = {"step": self.step, "original_step": self.original_step, "parameter": self.parameter}
        return {"what": self.what, "where": where, "before": self.before, "after": self.after}


@dataclass(frozen=True, slots=True)
class FlawedWorkflow:
    """A workflow with a flaw in it.

    Attributes:
        original: The workflow that it was made from; where arguments are passed in a wrong way, the same with its
            references to results by number.
        workflow: The flawed one. Its `planner` and `predicted_success_probability` are those of the original: what the
            plan claims, not what it is worth.
        flaw: The flaw's name.
        edits: What was changed, in the order of the steps.

    Example:
        >>> from resilisim import benchmark_tasks
        >>> from resilisim.workflows import ExactPlanner
        >>> from resilisim.workflows.flaws import Perturber
        >>> task = benchmark_tasks()[2]
        >>> flawed = Perturber().perturb(ExactPlanner().plan(task), task.required_tools, "sequential_order")
        >>> [edit.what for edit in flawed.edits]
        ['swapped']
    """

    original: Workflow
    workflow: Workflow
    flaw: Flaw
    edits: tuple[Edit, ...]

    def flaw_mapping(self) -> dict[str, Any]:
        """Return the flaw as it stands in records: type, method, severity, edits."""
        return {**asdict(self.flaw), "edits": [edit.to_mapping() for edit in self.edits]}


@dataclass(frozen=True, slots=True)
class FlawRefusal:
    """Why a workflow cannot carry a flaw; a value, because for many short workflows it is the right answer.

    Attributes:
        instance_id: The workflow's task.
        type: Flaw type.
        method: The method that was asked for; None if either would have done.
        severity: Severity.
        reason: One line.
    """

    instance_id: str
    type: str
    method: str | None
    severity: str
    reason: str

    def __str__(self) -> str:
        """Return the refusal as one line."""
        any_method = "either method" if self.type in FLAW_METHODS else "any method"
        return f"{self.instance_id} cannot carry {self.type} ({self.method or any_method}): {self.reason}"


def check_flaw(flaw_type: str, severity: str, method: str | None = None) -> None:
    """Refuse names that do not exist.

    Raises:
        InvalidInputError: An unknown flaw type, severity or method; the text gives the nearest valid name.
    """
    if flaw_type not in STRESSORS:
        raise unknown_name("flaw", flaw_type, tuple(STRESSORS))
    if severity not in SEVERITIES:
        raise unknown_name("severity", severity, SEVERITIES)
    if method is not None and method not in STRESSORS[flaw_type]:
        raise unknown_name("method", method, STRESSORS[flaw_type], f"flaw {flaw_type!r}")


def num_edits(severity: str, num_sites: int) -> int:
    """Return how many of the places that could carry a flaw get it: one, half of them (rounded up), or all."""
    if severity == "light":
        return min(1, num_sites)
    return num_sites if severity == "severe" else math.ceil(num_sites / 2)


SIMILARITY_DECIMALS = 3  # as in searches: no choice hangs on rounding in the last digits of a float


@dataclass(frozen=True, slots=True, eq=False)
class ToolSimilarity:
    """Similarities between all tools of a library, tools in the library's order.

    Attributes:
        semantic: float64 (num_tools, num_tools), S: similarity of the tools' texts as a search has it (by
            default the cosine of their embeddings), rounded to 1e-3, in [0, 1].
        functional: float64 (num_tools, num_tools), F: functional equivalence in [0, 1], 1 for a tool and itself.
    """

    semantic: NDArray[np.float64]
    functional: NDArray[np.float64]


def tool_similarity(retriever: Retriever) -> ToolSimilarity:
    """Compare all tools of a retriever's library.

    Raises:
        MissingExtraError: The tool texts are not in the cache of embeddings yet and the extra `retrieval` is missing.
    """
    semantic = np.clip(np.round(retriever.tool_similarities(), SIMILARITY_DECIMALS), 0.0, 1.0)
    return ToolSimilarity(semantic, functional_equivalence(retriever.library))


@functools.lru_cache(maxsize=8)
def functional_equivalence(library: ToolLibrary) -> NDArray[np.float64]:
    """Return F(a, b) for all tools: how far one could stand in for the other, whatever their texts say.

    F is the mean of three shares: whether they have the same role (semantic type, or the same operation), the overlap
    of the names of their required parameters, and the overlap of the names of what they return beside `success` and
    `metadata`, which every tool returns (Jaccard; two empty sets overlap fully).

    Returns:
        float64 (num_tools, num_tools), symmetric, 1 on the diagonal.
    """
    tools = list(library)
    result = np.ones((len(tools), len(tools)))
    for row, tool in enumerate(tools):
        for column in range(row):
            result[row, column] = result[column, row] = _equivalence(tool, tools[column])
    result.setflags(write=False)  # the same array is handed to everybody
    return result


def _equivalence(left: Tool, right: Tool) -> float:
    same_operation = left.operation != "" and left.operation == right.operation
    same_type = left.semantic_type is not None and left.semantic_type == right.semantic_type
    inputs = _overlap(
        (parameter.name for parameter in left.parameters if parameter.required),
        (parameter.name for parameter in right.parameters if parameter.required),
    )
    outputs = _overlap(_own_results(left), _own_results(right))
    return (float(same_operation or same_type) + inputs + outputs) / 3.0


def _own_results(tool: Tool) -> list[str]:
    return [value.name for value in tool.returns if value.name not in ("success", "metadata")]


def _overlap(left: Iterable[str], right: Iterable[str]) -> float:
    first, second = set(left), set(right)
    return len(first & second) / len(first | second) if first | second else 1.0


@dataclass(frozen=True, slots=True)
class Change:
    """What a method made of a plan: the new steps and the edits that led to them."""

    steps: tuple[Step, ...]
    edits: tuple[Edit, ...]


@dataclass(frozen=True, eq=False)
class PlanView:
    """A workflow that is about to be perturbed, or was."""

    steps: tuple[Step, ...]
    required: tuple[str, ...]
    library: ToolLibrary
    similarity: Callable[[], ToolSimilarity]  # called by methods that need it
    max_turns: int
    place: dict[str, int] = field(init=False)  # of the required tools in their order
    accepted: tuple[bool, ...] = field(init=False)  # whether each step's call is accepted as it stands, in strict mode

    def __post_init__(self) -> None:
        """Look tools and calls up; what does not exist is refused."""
        required = build_problem(self.library, self.required).required_tools
        accepted = tuple(accepts(self.library[step.tool], step.parameters, "strict") for step in self.steps)
        object.__setattr__(self, "place", {name: place for place, name in enumerate(required)})
        object.__setattr__(self, "accepted", accepted)

    def tool(self, index: int) -> Tool:
        """Return the tool of a step."""
        return self.library[self.steps[index].tool]

    def depends(self, later: int, earlier: int) -> bool:
        """Return whether one step's tool depends directly on another step's."""
        return self.steps[earlier].tool in self.library.dependencies(self.steps[later].tool)

    def order_matters(self, first: int, second: int) -> bool:
        """Return whether running the second step before the first would do harm.

        Between two required steps only the required order is judged, else whether the second depends on the first.
        """
        place, place_after = self.place.get(self.steps[first].tool), self.place.get(self.steps[second].tool)
        if place is not None and place_after is not None:
            return place < place_after
        return self.depends(second, first)

    def is_needed(self, index: int) -> bool:
        """Return whether a step is required, or a later step depends directly on it."""
        return self.steps[index].tool in self.place or any(
            self.depends(later, index) for later in range(index + 1, len(self.steps))
        )

    def required_steps(self) -> list[int]:
        """Return the indices of the steps whose tools are required."""
        return [index for index, step in enumerate(self.steps) if step.tool in self.place]

    def tools_elsewhere(self) -> list[int]:
        """Return the library indices of the tools that are neither steps nor required, in the library's order."""
        taken = {step.tool for step in self.steps} | self.place.keys()
        return [index for index, name in enumerate(self.library.names) if name not in taken]

    @cached_property
    def useless_tools(self) -> tuple[int, ...]:
        """The library indices of the tools that are of no use here, the most similar to the plan (on average) first.

        A tool is of no use if nothing in the plan and nothing required depends on it, directly or not.
        """
        useless = [index for index, name in enumerate(self.library.names) if name not in self.tools_of_use]
        members = [self.library.index(step.tool) for step in self.steps]
        likeness = np.round(self.similarity().semantic[:, members].mean(axis=1), 6)
        return tuple(sorted(useless, key=lambda index: (-likeness[index], index)))

    @cached_property
    def tools_of_use(self) -> frozenset[str]:
        """The tools that the plan holds or that are required, and all that these depend on."""
        return frozenset(self.library.closure([*(step.tool for step in self.steps), *self.required]))

    def step_with_tool(self, index: int, name: str, before: str | None) -> Step:
        """Return a step that claims to be the one at `index` but runs another tool, with parameters that this accepts.

        Reason and confidence stay what the plan claims.
        """
        tool, step = self.library[name], self.steps[index]
        described = {parameter.name: parameter for parameter in self.tool(index).parameters}
        values = step_parameters(tool, {}, before)
        for parameter in tool.parameters:
            same = described.get(parameter.name)
            is_alike = same is not None and (same.type, same.constraints) == (parameter.type, parameter.constraints)
            if is_alike and parameter.name in step.parameters:
                values[parameter.name] = step.parameters[parameter.name]
        return replace(step, parameters=values, **self._following_from(name, step))

    def copy_of(self, index: int) -> Step:
        """Return a step to be done once more, until it succeeds; the step itself where it has no limits."""
        step = self.steps[index]
        return replace(step, max_tries=None, skip_from=None) if step.is_limited else step

    def useless_step(self, name: str, before: str | None) -> Step:
        """Return a step for a tool that is of no use, with the reason that sound plans give for required tools."""
        model = self.steps[0]
        return Step(
            parameters=step_parameters(self.library[name], {}, before),
            reason=REASON_REQUIRED,
            confidence=model.confidence,
            semantic_match=model.semantic_match,
            **self._following_from(name, model),
        )

    def _following_from(self, name: str, step: Step) -> dict[str, Any]:
        """Return what follows from another tool in place of a step's: alternatives like it, without the right one."""
        names, tool = self.library.names, self.library[name]
        ranked: list[str] = []
        if step.alternatives:
            scores = self.similarity().semantic[self.library.index(name)]
            order = sorted(range(len(names)), key=lambda index: (-scores[index], index))
            ranked = [names[index] for index in order if names[index] not in (name, step.tool)]
        return {
            "tool": name,
            "requires": tuple(tool.dependencies),
            "alternatives": tuple(ranked[: len(step.alternatives)]),
            "expected_outcome": expected_outcome(tool),
        }


def set_parameter(steps: list[Step], index: int, original: int, name: str, value: Any) -> Edit:
    """Pass another value in a step that has its place in the original plan."""
    parameters = steps[index].parameters
    steps[index] = replace(steps[index], parameters={**parameters, name: value})
    return Edit("parameter_changed", index + 1, original + 1, name, as_json(parameters[name]), as_json(value))


def as_json(value: Any) -> str:
    """Return a parameter's value as it stands in edits."""
    return json.dumps(value, ensure_ascii=False, sort_keys=True)


def tool_before(steps: Sequence[Step], index: int) -> str | None:
    """Return the tool of the step before a place, None at the start."""
    return steps[index - 1].tool if index else None
