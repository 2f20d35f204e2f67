"""Toolboxes for tests: tools that answer from a script."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from resilisim.policies.llm.tools import ToolResult, ToolSpec

Answer = str | ToolResult | BaseException | Callable[[Mapping[str, Any]], str | ToolResult]


def spec(name: str, *required: str, description: str = "A tool of a test.", **types: str) -> ToolSpec:
    """A tool whose parameters are texts unless `types` says otherwise."""
    properties = {parameter: {"type": "string"} for parameter in required}
    properties |= {parameter: {"type": kind} for parameter, kind in types.items()}
    return ToolSpec(name, description, {"type": "object", "properties": properties, "required": list(required)})


class ScriptedToolbox:
    """Answers calls from a script per tool, and raises when it is asked more.

    Attributes:
        calls: (name, arguments) of every call so far.
    """

    def __init__(self, specs: Sequence[ToolSpec], answers: Mapping[str, Sequence[Answer]]) -> None:
        self.specs = tuple(specs)
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self._answers = {name: list(entries) for name, entries in answers.items()}

    async def call(self, name: str, arguments: Mapping[str, Any]) -> ToolResult:
        self.calls.append((name, dict(arguments)))
        if name not in self._answers:
            return ToolResult("", f"unknown tool {name!r}")
        if not self._answers[name]:
            raise AssertionError(f"the script of {name} has no more answers: {dict(arguments)}")
        answer = self._answers[name].pop(0)
        if isinstance(answer, BaseException):
            raise answer
        if callable(answer):
            answer = answer(arguments)
        return ToolResult(answer) if isinstance(answer, str) else answer
