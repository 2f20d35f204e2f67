"""The tools of an episode as functions of model-written code."""

from __future__ import annotations

import json
import re
from typing import Any, Final

from resilisim.policies.llm.sandbox import HostCallError, HostFunction, JsonValue
from resilisim.policies.llm.sandbox.tool_values import value_for_code
from resilisim.policies.llm.tools import Toolbox, ToolSpec

PRELUDE: Final = "ToolError = RuntimeError"  # what a failed tool raises, by a name that says so

_NOT_IN_NAMES = re.compile(r"\W")


class Finished(Exception):
    """The code called finish; it goes no further.

    Attributes:
        answer: The answer.
    """

    def __init__(self, answer: str) -> None:
        super().__init__(answer)
        self.answer = answer


class ToolFunctions:
    """Tools as functions, each call of which is a call of the tool.

    Attributes:
        by_name: The functions, `finish` among them.
        progress: What the environment said last about turns; empty where it says nothing.
    """

    def __init__(self, tools: Toolbox) -> None:
        self.by_name: dict[str, HostFunction] = {python_name(spec): self._function(tools, spec) for spec in tools.specs}
        self.by_name["finish"] = _finish
        self.progress = ""

    def _function(self, tools: Toolbox, spec: ToolSpec) -> HostFunction:
        async def call(positional: list[JsonValue], named: dict[str, JsonValue]) -> Any:
            result = await tools.call(spec.name, bound(spec, positional, named))
            self.progress = result.progress or self.progress
            if result.error is not None:
                raise HostCallError(result.error)
            return value_for_code(spec.name, result)

        return call


def python_name(spec: ToolSpec) -> str:
    """Return the name of a tool's function."""
    return _NOT_IN_NAMES.sub("_", spec.name)


def bound(spec: ToolSpec, positional: list[JsonValue], named: dict[str, JsonValue]) -> dict[str, Any]:
    """Return the arguments of a call by the names of the tool's parameters.

    Named values that the tool does not have go into its parameter that is an object, if it has one such:
    `tool_call("reader", source="x")` is `tool_call("reader", {"source": "x"})`.

    Raises:
        HostCallError: There are too many values, one is given twice, or one has an unknown name.
    """
    names = spec.parameter_names
    if len(positional) > len(names):
        raise HostCallError(f"{len(positional)} values without a name are too many: {spec.signature()}")
    arguments: dict[str, Any] = dict(zip(names, positional, strict=False))
    twice = [name for name in named if name in arguments]
    if twice:
        raise HostCallError(f"{twice[0]!r} is given twice: {spec.signature()}")
    arguments.update({name: value for name, value in named.items() if name in names})
    others = {name: value for name, value in named.items() if name not in names}
    return _with_others(spec, arguments, others) if others else arguments


def _with_others(spec: ToolSpec, arguments: dict[str, Any], others: dict[str, Any]) -> dict[str, Any]:
    properties = spec.parameters.get("properties", {})
    objects = [name for name, schema in properties.items() if schema.get("type") == "object"]
    given = arguments.get(objects[0]) if len(objects) == 1 else None
    if len(objects) != 1 or not (given is None or isinstance(given, dict)):
        raise HostCallError(f"there is no parameter {next(iter(others))!r}: {spec.signature()}")
    return {**arguments, objects[0]: {**(given or {}), **others}}


async def _finish(positional: list[JsonValue], named: dict[str, JsonValue]) -> Any:
    values = [*positional, *named.values()]
    answer = "" if not values else values[0] if len(values) == 1 else values
    raise Finished(answer if isinstance(answer, str) else json.dumps(answer, ensure_ascii=False))


def describe_functions(tools: Toolbox) -> str:
    """Return the list of functions for a prompt."""
    lines = [f"- {_python_signature(spec)}: {spec.description}" for spec in tools.specs]
    return "\n".join([*lines, "- finish(answer): Ends the work and gives the answer."])


def _python_signature(spec: ToolSpec) -> str:
    properties = spec.parameters.get("properties", {})
    needed = [f"{name}: {_kind(schema)}" for name, schema in properties.items() if name in spec.required]
    optional = [f"{name}: {_kind(schema)} = None" for name, schema in properties.items() if name not in spec.required]
    return f"{python_name(spec)}({', '.join([*needed, *optional])})"


_KINDS = {
    "string": "str",
    "integer": "int",
    "number": "float",
    "boolean": "bool",
    "object": "dict",
    "array": "list",
}


def _kind(schema: Any) -> str:
    return _KINDS.get(str(schema.get("type")), "object") if isinstance(schema, dict) else "object"
