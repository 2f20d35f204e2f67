"""A workflow as the methods see it: its steps, what is required of it, and the tools around it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from resilisim.tool_library import Tool, ToolLibrary
from resilisim.workflows.parameters import step_parameters
from resilisim.workflows.perturbation.similarity import ToolSimilarity
from resilisim.workflows.perturbation.types import Edit
from resilisim.workflows.types import Step


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
        """Return parameters that a tool accepts when the task says nothing about them; not to be changed."""
        found = self.stand_ins.get((name, before))
        if found is None:
            found = self.stand_ins[name, before] = step_parameters(self.library[name], {}, before)
        return found


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """A workflow that is about to be perturbed.

    Attributes:
        steps: Its steps.
        required: The task's required tools in their order.
        place: Tool -> place in `required`.
        shop: Library and similarities.
    """

    steps: tuple[Step, ...]
    required: tuple[str, ...]
    place: dict[str, int]
    shop: Workshop

    def tool(self, index: int) -> Tool:
        """Return the tool of a step."""
        return self.shop.library[self.steps[index].tool]

    def depends(self, later: int, earlier: int) -> bool:
        """Return whether one step's tool depends directly on another step's."""
        return self.steps[earlier].tool in self.shop.library.dependencies(self.steps[later].tool)

    def order_matters(self, first: int, second: int) -> bool:
        """Return whether running the second step before the first would do harm.

        It does if both are required (their order is judged), or if the second depends on the first.
        """
        both_required = self.steps[first].tool in self.place and self.steps[second].tool in self.place
        return both_required or self.depends(second, first)

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

    def useless_tools(self) -> list[int]:
        """Return the library indices of the tools that are of no use here, the most similar to the plan first.

        A tool is of no use if nothing in the plan and nothing required depends on it, directly or not. Its likeness to
        the plan is its mean similarity to the tools of the steps.
        """
        library = self.shop.library
        of_use = set(library.closure([*(step.tool for step in self.steps), *self.required]))
        useless = [index for index, name in enumerate(library.names) if name not in of_use]
        members = [library.index(step.tool) for step in self.steps]
        likeness = np.round(self.shop.similarity().semantic[:, members].mean(axis=1), 6)
        return sorted(useless, key=lambda index: (-likeness[index], index))

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

    def useless_step(self, name: str, before: str | None, supported: str) -> Step:
        """Return a step for a tool that is of no use, with a reason that sounds as if it were."""
        tool = self.shop.library[name]
        model = self.steps[0]
        return Step(
            tool=name,
            parameters=self.shop.default_parameters(name, before),
            reason=f"prepares what {supported} needs",
            requires=tuple(tool.dependencies),
            alternatives=self._alternatives(name, model) if model.alternatives else (),
            expected_outcome=expected_outcome(tool),
            confidence=model.confidence,
            semantic_match=model.semantic_match,
            chosen_by=model.chosen_by,
        )

    def _alternatives(self, name: str, step: Step) -> tuple[str, ...]:
        names = self.shop.library.names
        scores = self.shop.similarity().semantic[self.shop.library.index(name)]
        order = sorted(range(len(names)), key=lambda index: (-scores[index], index))
        ranked = [names[index] for index in order if names[index] not in (name, step.tool)]
        return tuple(ranked[: len(step.alternatives)])


def expected_outcome(tool: Tool) -> str:
    """Return one line on what a tool gives when it succeeds."""
    names = [value.name for value in tool.returns if value.name != "success"]
    return f"success, with {', '.join(names)}" if names else "success"


def tool_before(steps: Sequence[Step], index: int) -> str | None:
    """Return the tool of the step before a place, None at the start."""
    return steps[index - 1].tool if index else None
