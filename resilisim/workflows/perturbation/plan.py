"""A workflow as the methods see it: its steps, what is required of it, and the tools around it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from resilisim.simulator.problem import build_problem
from resilisim.tool_library import Tool, ToolLibrary
from resilisim.tool_library.parameters import accepts
from resilisim.workflows.parameters import step_parameters
from resilisim.workflows.perturbation.similarity import ToolSimilarity
from resilisim.workflows.perturbation.types import Edit
from resilisim.workflows.reasons import REASON_REQUIRED, expected_outcome
from resilisim.workflows.types import Step, Workflow


@dataclass(frozen=True, slots=True)
class Change:
    """What a method made of a plan: the new steps and the edits that led to them."""

    steps: tuple[Step, ...]
    edits: tuple[Edit, ...]


@dataclass(frozen=True, slots=True)
class Unfit:
    """Why a method can do nothing with a plan."""

    reason: str


@dataclass(frozen=True, slots=True, eq=False)
class Workshop:
    """What does not change from plan to plan, and what was worked out about it.

    Attributes:
        library: The tools.
        similarity: Gives the similarities of its tools; called by the methods that need them.
        max_turns: Turns of an episode.
        stand_ins: (tool, tool of the step before) -> parameters that fit the tool when nothing is known.
    """

    library: ToolLibrary
    similarity: Callable[[], ToolSimilarity]
    max_turns: int
    stand_ins: dict[tuple[str, str | None], dict[str, Any]] = field(default_factory=dict)

    def default_parameters(self, name: str, before: str | None) -> dict[str, Any]:
        """Return parameters that a tool accepts when the task says nothing about them."""
        found = self.stand_ins.get((name, before))
        if found is None:
            found = self.stand_ins[name, before] = step_parameters(self.library[name], {}, before)
        # Copies, as in plans: whoever changes a value in one workflow must not change it in all later ones.
        return {parameter: copy(value) for parameter, value in found.items()}


@dataclass(frozen=True, eq=False)
class Plan:
    """A workflow that is about to be perturbed.

    Attributes:
        steps: Its steps.
        required: The task's required tools in their order.
        place: Tool -> place in `required`.
        accepted: Whether each step's call is accepted as it stands, in strict mode.
        shop: Library and similarities.
    """

    steps: tuple[Step, ...]
    required: tuple[str, ...]
    place: dict[str, int]
    accepted: tuple[bool, ...]
    shop: Workshop

    @classmethod
    def of(cls, workflow: Workflow, required_tools: Sequence[str], shop: Workshop) -> Plan:
        """Look at a workflow for a task.

        Raises:
            InvalidInputError: An unknown tool; a required list that is empty or names a tool twice.
        """
        required = build_problem(shop.library, required_tools).required_tools
        accepted = [accepts(shop.library[step.tool], step.parameters, "strict") for step in workflow.steps]
        place = {name: place for place, name in enumerate(required)}
        return cls(workflow.steps, required, place, tuple(accepted), shop)

    def tool(self, index: int) -> Tool:
        """Return the tool of a step."""
        return self.shop.library[self.steps[index].tool]

    def depends(self, later: int, earlier: int) -> bool:
        """Return whether one step's tool depends directly on another step's."""
        return self.steps[earlier].tool in self.shop.library.dependencies(self.steps[later].tool)

    def order_matters(self, first: int, second: int) -> bool:
        """Return whether running the second step before the first would do harm.

        Between two required steps only the required order is judged: it would if they stand in it. Otherwise it would
        if the second depends on the first.
        """
        place, place_after = self.place.get(self.steps[first].tool), self.place.get(self.steps[second].tool)
        if place is not None and place_after is not None:
            return place < place_after
        return self.depends(second, first)

    def repeated_tool(self) -> str | None:
        """Return the first tool that stands in more than one step, or None."""
        seen: set[str] = set()
        for step in self.steps:
            if step.tool in seen:
                return step.tool
            seen.add(step.tool)
        return None

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
        return [index for index, name in enumerate(self.shop.library.names) if name not in taken]

    @cached_property
    def useless_tools(self) -> tuple[int, ...]:
        """Return the library indices of the tools that are of no use here, the most similar to the plan first.

        A tool is of no use if nothing in the plan and nothing required depends on it, directly or not. Its likeness to
        the plan is its mean similarity to the tools of the steps.
        """
        library = self.shop.library
        of_use = set(library.closure([*(step.tool for step in self.steps), *self.required]))
        useless = [index for index, name in enumerate(library.names) if name not in of_use]
        members = [library.index(step.tool) for step in self.steps]
        likeness = np.round(self.shop.similarity().semantic[:, members].mean(axis=1), 6)
        return tuple(sorted(useless, key=lambda index: (-likeness[index], index)))

    def step_with_tool(self, index: int, name: str, before: str | None) -> Step:
        """Return a step that claims to be the one at `index` but runs another tool, with parameters that this accepts.

        Reason and confidence stay what the plan claims; what follows from the tool (requirements, outcome) is the new
        tool's. Alternatives are the tools most similar to the new one, without the right one.
        """
        old, tool, step = self.tool(index), self.shop.library[name], self.steps[index]
        described = {parameter.name: parameter for parameter in old.parameters}
        values = dict(self.shop.default_parameters(name, before))
        for parameter in tool.parameters:
            same = described.get(parameter.name)
            if same is None or (same.type, same.constraints) != (parameter.type, parameter.constraints):
                continue
            if parameter.name in step.parameters:
                values[parameter.name] = step.parameters[parameter.name]
        return replace(
            step,
            tool=name,
            parameters=values,
            requires=tuple(tool.dependencies),
            alternatives=self._alternatives(name, step) if step.alternatives else (),
            expected_outcome=expected_outcome(tool),
        )

    def copy_of(self, index: int) -> Step:
        """Return a step to be done once more, until it succeeds; the step itself where it has no limits."""
        step = self.steps[index]
        return replace(step, max_tries=None, skip_from=None) if step.is_limited else step

    def useless_step(self, name: str, before: str | None) -> Step:
        """Return a step for a tool that is of no use, with the reason that sound plans give for required tools."""
        tool = self.shop.library[name]
        model = self.steps[0]
        return Step(
            tool=name,
            parameters=self.shop.default_parameters(name, before),
            reason=REASON_REQUIRED,
            requires=tuple(tool.dependencies),
            alternatives=self._alternatives(name, model) if model.alternatives else (),
            expected_outcome=expected_outcome(tool),
            confidence=model.confidence,
            semantic_match=model.semantic_match,
        )

    def _alternatives(self, name: str, step: Step) -> tuple[str, ...]:
        names = self.shop.library.names
        scores = self.shop.similarity().semantic[self.shop.library.index(name)]
        order = sorted(range(len(names)), key=lambda index: (-scores[index], index))
        ranked = [names[index] for index in order if names[index] not in (name, step.tool)]
        return tuple(ranked[: len(step.alternatives)])


def tool_before(steps: Sequence[Step], index: int) -> str | None:
    """Return the tool of the step before a place, None at the start."""
    return steps[index - 1].tool if index else None
