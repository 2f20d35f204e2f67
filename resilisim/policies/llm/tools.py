"""Tools as agents see them: what they are, how they are called, what comes back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A tool that an agent can call.

    Attributes:
        name: Its name.
        description: What it does, in a sentence.
        parameters: JSON Schema of an object: `properties` and `required`.
    """

    name: str
    description: str
    parameters: Mapping[str, Any] = field(default_factory=dict, hash=False)

    @property
    def parameter_names(self) -> tuple[str, ...]:
        """Names of all parameters."""
        return tuple(self.parameters.get("properties", {}))

    @property
    def required(self) -> tuple[str, ...]:
        """Names of the parameters that must be given."""
        return tuple(self.parameters.get("required", ()))

    def signature(self) -> str:
        """Return name and parameters, such as `tool_call(name: string, parameters?: object)`; ? is optional."""
        needed = self.required
        parts = [
            f"{name}{'' if name in needed else '?'}: {schema.get('type', 'any')}"
            for name, schema in self.parameters.get("properties", {}).items()
        ]
        return f"{self.name}({', '.join(parts)})"

    def to_function(self) -> dict[str, Any]:
        """Return the tool as an OpenAI-compatible endpoint expects it."""
        schema = dict(self.parameters) or {"type": "object", "properties": {}}
        return {
            "type": "function",
            "function": {"name": self.name, "description": self.description, "parameters": schema},
        }


@dataclass(frozen=True, slots=True)
class ToolResult:
    """What a call brought.

    Attributes:
        text: What the tool said: the result, or the words of the error.
        error: None if the call succeeded, else what went wrong, on one line. A failed call has no result.
        value: The result as a JSON value, where there is one.
        progress: What the environment adds to every reply (turns left, what to do next); empty elsewhere.
    """

    text: str
    error: str | None = None
    value: Any = None
    progress: str = ""

    @property
    def observation(self) -> str:
        """All that an agent in a loop is shown."""
        return f"{self.text}\n\n{self.progress}" if self.progress else self.text

    @property
    def ok(self) -> bool:
        """Whether the call succeeded."""
        return self.error is None


class Toolbox(Protocol):
    """Tools that can be called.

    The least that is one::

        class Clock:
            specs = (ToolSpec("time", "Tells the time."),)

            async def call(self, name, arguments):
                return ToolResult("noon") if name == "time" else ToolResult("", f"unknown tool {name!r}")
    """

    @property
    def specs(self) -> tuple[ToolSpec, ...]:
        """The tools."""
        ...

    async def call(self, name: str, arguments: Mapping[str, Any]) -> ToolResult:
        """Call a tool; never raises for what a model wrote, which is answered with an error.

        Args:
            name: A tool's name.
            arguments: By parameter name, JSON values.
        """
        ...


def describe_tools(specs: Iterable[ToolSpec]) -> str:
    """Return the list of tools for a prompt: signature and description of each."""
    return "\n".join(f"- {spec.signature()}: {spec.description}" for spec in specs)
