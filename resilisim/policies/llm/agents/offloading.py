"""RP-ReAct's executors' tools: their share of the environment's, and Python; long outputs go into variables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from resilisim.chat.types import BYTES_PER_TOKEN, estimated_tokens
from resilisim.policies.llm.run import AgentRun
from resilisim.policies.llm.sandbox import READ_AS_TEXT, CodeResult, JsonValue, Sandbox, value_for_code
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
PREFIX: Final = "output_"


@dataclass(frozen=True, slots=True)
class Offloading:
    """Which outputs are stored in variables: those beyond the threshold in tokens; so many are shown as a preview.

    `tools` are those whose outputs are stored. None is every tool but those that speak about the library, whose words
    are of little use without their end.
    """

    threshold: int
    preview: int
    tools: tuple[str, ...] | None = None

    def concerns(self, tool: str, text: str) -> bool:
        """Tell whether an output is stored."""
        is_meant = tool not in READ_AS_TEXT if self.tools is None else tool in self.tools
        return is_meant and estimated_tokens(text) > self.threshold


@dataclass(frozen=True, slots=True)
class Variable:
    """A stored output: its name, the tool it comes from, its length in tokens, its type in Python, its beginning."""

    name: str
    tool: str
    tokens: int
    kind: str
    preview: str

    def described(self, prompts: PromptTexts) -> str:
        """Return what executor and planner are told about it: beginning, name, warning."""
        return prompts.fill(
            "offloaded", preview=self.preview, variable=self.name, kind=self.kind, tokens=f"{self.tokens:,}"
        )


class Variables:
    """The variables of one task. The sandbox is given them when code is run for the first time."""

    def __init__(self, box: Sandbox) -> None:
        self.stored: list[Variable] = []
        self._box = box
        self._waiting: dict[str, JsonValue] = {}

    def store(self, tool: str, result: ToolResult, preview: int) -> Variable:
        """Store what a tool brought under a new name, with a preview of so many tokens."""
        value = value_for_code(tool, result)
        variable = Variable(
            name=f"{PREFIX}{len(self.stored) + 1}",
            tool=tool,
            tokens=estimated_tokens(result.text),
            kind=type(value).__name__,
            preview=first_tokens(result.text, preview),
        )
        self.stored.append(variable)
        self._waiting[variable.name] = value
        return variable

    async def run(self, code: str) -> CodeResult:
        """Run code that can read the variables."""
        for name in tuple(self._waiting):
            put = await self._box.assign(name, self._waiting.pop(name))
            if put.error is not None:
                return CodeResult("", f"{name} does not fit into the sandbox: {put.error}", put.restarted, 0, put.kept)
        return await self._box.run(code)


def first_tokens(text: str, tokens: int) -> str:
    """Return the beginning of a text that has about so many tokens."""
    return text.encode("utf-8", "replace")[: tokens * BYTES_PER_TOKEN].decode("utf-8", "ignore")


class ExecutorToolbox:
    """The tools of one executor during one sub-question: its share of all, and Python on the task's variables."""

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
        offered = name if name in self._names else CALLS_ANY_TOOL
        return (
            self._offloaded(name, result) if result.ok and self._offloading.concerns(offered, result.text) else result
        )

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
        self._run.note("code", "executor", result.reason or "", restarted=result.restarted)
        self._run.count("python_runs")
        if result.restarted:
            self._run.count("sandbox_restarts")
            self._run.note("warning", "sandbox", f"the sandbox was stopped: {result.reason}")
        return ToolResult(result.observation, result.reason)

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
        there = [variable.name for variable in self._variables.stored]
        missing = [name for name in named if name not in there]
        if missing:
            return f"there is no variable {missing[0][:100]!r}; stored outputs: {', '.join(there) or 'none yet'}"
        return None

    def _offloaded(self, name: str, result: ToolResult) -> ToolResult:
        """Store a long output and leave its beginning."""
        variable = self._variables.store(name, result, self._offloading.preview)
        self.stored.append(variable)
        self._run.note("offload", "executor", variable.name, tool=name, tokens=variable.tokens)
        self._run.count("offloads")
        self._run.structure["variables"] = [asdict(stored) for stored in self._variables.stored]
        return replace(result, text=variable.described(self._prompts), value=None)
