"""The prompt that an episode begins with: planned, flawed if that is wanted, and rendered."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from resilisim.errors import InvalidInputError
from resilisim.simulator.law import EndRules
from resilisim.tasks import Task
from resilisim.tool_library import ToolLibrary
from resilisim.tool_library.parameters import ParameterMode
from resilisim.workflows.flaws import FlawRefusal, Perturber
from resilisim.workflows.planner import Planner
from resilisim.workflows.prompt_choice import FLAWED, parse_prompt_choice
from resilisim.workflows.prompts import PLANNED_PROMPT_TYPES, Prompt, PromptStyle, Protocol, render_prompt

KEPT_PROMPTS = 256  # episodes of a task follow each other


class PromptMaker:
    """Makes the prompts of an environment's episodes.

    Args:
        planner: Makes the plans.
        library: The tools.
        rules: End rules that the prompts state.
        protocol: How tools are called.
        tools_listed: Whether the names of the library stand in the prompts.
        style: Whether the prompts are full or compact.
        parameters: How the parameters of calls are checked.
    """

    def __init__(
        self,
        planner: Planner,
        library: ToolLibrary,
        rules: EndRules,
        protocol: Protocol,
        tools_listed: bool,
        style: PromptStyle,
        parameters: ParameterMode,
    ) -> None:
        self._planner = planner
        self._library = library
        self._rules = rules
        self._protocol: Protocol = protocol
        self._tools_listed = tools_listed
        self._style: PromptStyle = style
        self._parameters: ParameterMode = parameters
        self._perturber = Perturber(library, rules)
        self.prompt = functools.lru_cache(maxsize=KEPT_PROMPTS)(self._make)

    def _make(self, task: Task, prompt: str) -> Prompt:
        """Return the prompt of a task.

        Raises:
            InvalidInputError: There is no such prompt, or the task's plan cannot carry the flaw that it names.
        """
        choice = parse_prompt_choice(prompt)
        workflow = self._planner.plan(task) if choice.type in PLANNED_PROMPT_TYPES else None
        flaw: Mapping[str, Any] | None = None
        if workflow is not None and choice.type == FLAWED:
            flawed = choice.flawed(self._perturber, workflow, task)
            if isinstance(flawed, FlawRefusal):
                raise InvalidInputError(f"prompt {prompt!r}: {flawed}")
            workflow, flaw = flawed.workflow, flawed.flaw_mapping()
        rendered = render_prompt(
            task,
            choice.type,
            workflow,
            self._library,
            tools_listed=self._tools_listed,
            rules=self._rules,
            protocol=self._protocol,
            style=self._style,
            parameters=self._parameters,
        )
        return replace(rendered, type=prompt, flaw=flaw)
