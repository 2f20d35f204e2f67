"""An executor's tools: its share of the environment's, and Python; long outputs go into variables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from resilisim.chat.types import estimated_tokens
from resilisim.policies.llm.rp_react.variables import Variable, Variables
from resilisim.policies.llm.run import AgentRun
from resilisim.policies.llm.sandbox.tool_values import value_for_code
from resilisim.policies.llm.templates import PromptTexts
from resilisim.policies.llm.tools import ToolResult, ToolSpec

PYTHON: Final = ToolSpec(
    "python",
    "Runs Python code and shows what it prints. It can read, change and analyse the variables that hold long outputs.",
    {
        "type": "object",
        "properties": {"code": {"type": "string"}, "variables": {"type": "array"}},
        "required": ["code"],
    },
)
CALLS_ANY_TOOL: Final = "tool_call"  # who has it may also call a tool of the library by its own name


# What these say is about tools: names, parameters, dependencies. Without its end it is of little use.
LIBRARY_TOOLS: Final = ("tool_search", "tool_info")


@dataclass(frozen=True, slots=True)
class Offloading:
    """Which outputs are stored in variables.

    Attributes:
        threshold: Tokens beyond which an output is.
        preview: Tokens that are shown of it.
        tools: Tools whose outputs are; None is every tool but `LIBRARY_TOOLS`.
    """

    threshold: int
    preview: int
    tools: tuple[str, ...] | None = None

    def concerns(self, tool: str, text: str) -> bool:
        """Tell whether an output is stored."""
        is_meant = tool not in LIBRARY_TOOLS if self.tools is None else tool in self.tools
        return is_meant and estimated_tokens(text) > self.threshold


class ExecutorToolbox:
    """The tools of one executor during one sub-question.

    Args:
        run: The episode.
        specs: The executor's share of the tools.
        variables: The variables of the task.
        offloading: Which outputs are stored.
        prompts: Holds `offloaded`.

    Attributes:
        stored: What was stored during this sub-question.
    """

    def __init__(
        self,
        run: AgentRun,
        specs: Sequence[ToolSpec],
        variables: Variables,
        offloading: Offloading,
        prompts: PromptTexts,
    ) -> None:
        self.specs = (*specs, PYTHON)
        self.stored: list[Variable] = []
        self._run = run
        self._names = {spec.name for spec in specs}
        self._everybodys = {spec.name for spec in run.tools.specs}
        self._variables = variables
        self._offloading = offloading
        self._prompts = prompts

    async def call(self, name: str, arguments: Mapping[str, Any]) -> ToolResult:
        """Call a tool, or run Python; never raises for what a model wrote."""
        if name == PYTHON.name:
            return await self._python(arguments)
        if not self._may_call(name):
            problem = f"this executor has no tool {name[:200]!r}"
            return ToolResult(f"Error: {problem}", problem)
        result = await self._run.tools.call(name, arguments)
        return self._shortened(name, result)

    def _may_call(self, name: str) -> bool:
        """Return whether a tool is the executor's; what is nobody's is one of the library, or the tools refuse it."""
        if name in self._everybodys:
            return name in self._names
        return CALLS_ANY_TOOL in self._names or self._names == self._everybodys

    async def _python(self, arguments: Mapping[str, Any]) -> ToolResult:
        problem = self._wrong(arguments)
        if problem is not None:
            return ToolResult(f"Error: {problem}", problem)
        result = await self._variables.run(arguments["code"])
        reason = None if result.error is None else result.error.rpartition("\n")[2]
        self._run.note("code", "executor", reason or "", restarted=result.restarted)
        self._run.count("python_runs")
        if result.restarted:
            self._run.count("sandbox_restarts")
            self._run.note("warning", "sandbox", f"the sandbox was stopped: {reason}")
        return ToolResult(result.observation, reason)

    def _wrong(self, arguments: Mapping[str, Any]) -> str | None:
        """Return what is wrong with the arguments of `python`; None if nothing is."""
        code, named = arguments.get("code"), arguments.get("variables") or []
        if not isinstance(code, str) or not code.strip():
            return "python needs a text 'code'"
        if set(arguments) - {"code", "variables"}:
            return "python takes 'code' and 'variables' and nothing else"
        named = [named] if isinstance(named, str) else named
        if not isinstance(named, list) or not all(isinstance(name, str) for name in named):
            return "'variables' of python is a list of names"
        missing = [name for name in named if name not in self._variables.names]
        if missing:
            there = ", ".join(self._variables.names) or "none yet"
            return f"there is no variable {missing[0][:100]!r}; stored outputs: {there}"
        return None

    def _shortened(self, name: str, result: ToolResult) -> ToolResult:
        """Store a long output and leave its beginning."""
        offered = name if name in self._names else CALLS_ANY_TOOL
        if not result.ok or not self._offloading.concerns(offered, result.text):
            return result
        value = value_for_code(name, result)
        variable = self._variables.store(name, value, result.text, self._offloading.preview)
        self.stored.append(variable)
        self._run.note("offload", "executor", variable.name, tool=name, tokens=variable.tokens)
        self._run.count("offloads")
        self._run.structure["variables"] = [stored.to_mapping() for stored in self._variables.stored]
        return replace(result, text=describe_variable(variable, self._prompts), value=None)


def describe_variable(variable: Variable, prompts: PromptTexts) -> str:
    """Return what executor and planner are told about a stored output: beginning, name, warning."""
    return prompts.fill(
        "offloaded",
        preview=variable.preview,
        variable=variable.name,
        kind=variable.kind,
        tokens=f"{variable.tokens:,}",
    )
