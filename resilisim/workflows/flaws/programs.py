"""Flaws in programs: plans that call a tool several times, as reference solutions of worlds do.

A flaw is a matter of steps, and plans of the benchmark run no tool twice, so tool and step are one there. Here each
later call of a tool gets a name of its own while the flaw is made, and loses it afterwards.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from resilisim.tool_library import ToolLibrary
from resilisim.workflows.flaws.model import FlawedWorkflow
from resilisim.workflows.model import Step, Workflow


@dataclass(frozen=True, slots=True)
class Program:
    """A workflow whose steps all have tools of their own.

    Attributes:
        original: The workflow as it is.
        workflow: The same, each later call of a tool under the tool's name with a number.
        library: A library in which these are tools.

    Example:
        >>> from resilisim import default_library
        >>> from resilisim.workflows import Step, Workflow
        >>> from resilisim.workflows.flaws.programs import Program
        >>> steps = (Step("network_fetcher"), Step("network_fetcher"))
        >>> Program.of(Workflow("task_1", steps, "mine", 1.0), default_library()).workflow.tools
        ('network_fetcher', 'network_fetcher.2')
    """

    original: Workflow
    workflow: Workflow
    library: ToolLibrary

    @classmethod
    def of(cls, workflow: Workflow, library: ToolLibrary) -> Program:
        """Return the program of a workflow."""
        calls = Counter[str]()
        steps, clones = [], []
        for step in workflow.steps:
            calls[step.tool] += 1
            name = step.tool if calls[step.tool] == 1 else f"{step.tool}.{calls[step.tool]}"
            if name != step.tool:
                clones.append((name, step.tool))
            steps.append(replace(step, tool=name))
        return cls(workflow, replace(workflow, steps=tuple(steps)), with_clones(library, tuple(clones)))

    def with_flaw(self, flawed: FlawedWorkflow) -> FlawedWorkflow:
        """Return a flawed form of `workflow` as one of the original."""
        names = {new.tool: old.tool for new, old in zip(self.workflow.steps, self.original.steps, strict=True)}
        names = {new: old for new, old in names.items() if new != old}
        steps = tuple(Step.from_mapping(_renamed(step.to_mapping(), names)) for step in flawed.workflow.steps)
        edits = tuple(
            replace(edit, before=_renamed(edit.before, names), after=_renamed(edit.after, names))
            for edit in flawed.edits
        )
        return FlawedWorkflow(self.original, replace(flawed.workflow, steps=steps), flawed.flaw, edits)


@lru_cache(maxsize=256)
def with_clones(library: ToolLibrary, clones: tuple[tuple[str, str], ...]) -> ToolLibrary:
    """Return a library with copies of tools under other names, given as (name, tool)."""
    copies = [replace(library[tool], name=name, canonical_name=name, aliases=()) for name, tool in clones]
    return ToolLibrary([*library, *copies]) if copies else library


def _renamed(value: Any, names: Mapping[str, str]) -> Any:
    """Return JSON values with other names of tools, wherever these stand."""
    text = json.dumps(value)
    for new in sorted(names, key=len, reverse=True):  # the name with number 12 before that with number 1
        text = text.replace(new, names[new])
    return json.loads(text)
