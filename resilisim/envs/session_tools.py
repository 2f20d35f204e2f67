"""Functions of the environment as functions of Python: for any framework, or none."""

from __future__ import annotations

import inspect
import json
import keyword
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, Protocol

from resilisim.envs.reply import CallResult
from resilisim.tool_library.tool_schemas import types_in

# Python's name for each type of a JSON Schema.
_TYPES: Final[Mapping[str, Any]] = {
    "string": str,
    "integer": int,
    "number": float,
    "boolean": bool,
    "array": list,
    "object": dict,
}
_WITH_ANSWER: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {"answer": {"type": "string", "description": "The answer, or what was done, in words."}},
    "additionalProperties": False,
}


class SessionTool(Protocol):
    """A tool of a session: a function with a signature, as frameworks turn into a tool of their own.

    Attributes:
        name: Its name.
        description: What it does.
        parameters: JSON Schema of its arguments.

    Example:
        >>> from resilisim import open_session
        >>> session = open_session("task_c64444cae27fab46", parameters="strict")
        >>> session.tools[5].name, session.tools[5].parameters["required"]
        ('file_operations_reader', ['source'])
    """

    name: str
    description: str
    parameters: dict[str, Any]

    def __call__(self, *args: Any, **arguments: Any) -> CallResult:
        """Call it; EpisodeEnded if the episode is over."""
        ...

    async def acall(self, *args: Any, **arguments: Any) -> CallResult:
        """Call it where other agents run in the same event loop."""
        ...


def as_tool(
    function: Mapping[str, Any],
    call: Callable[[str, Mapping[str, Any]], CallResult],
    call_beside: Callable[[str, Mapping[str, Any]], Awaitable[CallResult]],
) -> SessionTool:
    """Return a function of the environment as one of Python: frameworks look at its name, text and signature."""
    name = function["name"]
    schema = _WITH_ANSWER if name == "finish" else dict(function["parameters"])
    signature = _signature(schema)

    def tool(*args: Any, **arguments: Any) -> CallResult:
        return call(name, _bound(signature, args, arguments))

    async def acall(*args: Any, **arguments: Any) -> CallResult:
        return await call_beside(name, _bound(signature, args, arguments))

    for function_of_tool in (tool, acall):
        made: Any = function_of_tool
        made.__name__ = made.__qualname__ = made.name = name
        made.__doc__ = _docstring(function["description"], schema)
        made.__signature__ = signature
        made.__annotations__ = {each.name: each.annotation for each in signature.parameters.values()}
        made.__annotations__["return"] = str
        made.description = function["description"]
        made.parameters = schema
    finished: Any = tool
    finished.acall = acall
    shown: SessionTool = finished
    return shown


def given_arguments(arguments: object) -> dict[str, Any] | str:
    """Return arguments without those that are None; a text that is no JSON object stays as it is."""
    if isinstance(arguments, str):
        try:
            read = json.loads(arguments or "{}")
        except (ValueError, RecursionError):
            return arguments
        if not isinstance(read, dict):
            return arguments
        arguments = read
    if arguments is None:
        return {}
    if not isinstance(arguments, Mapping):
        return f"no JSON: arguments of type {type(arguments).__name__}"
    return {key: value for key, value in arguments.items() if value is not None}


def _signature(schema: Mapping[str, Any]) -> inspect.Signature:
    """Return the signature of a function that takes what a JSON Schema says; what may be left out is None then.

    What Python has no name for, such as "from", is among `**others`.
    """
    required = schema.get("required", ())
    names = sorted(schema["properties"], key=lambda name: name not in required)  # stable: those without a default first
    parameters = []
    for name in names:
        if not name.isidentifier() or keyword.iskeyword(name):
            continue
        kind = _kind(schema["properties"][name])
        default = inspect.Parameter.empty if name in required else None
        annotation = kind if name in required or kind is Any else kind | None
        parameters.append(
            inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=default, annotation=annotation)
        )
    if len(parameters) < len(names):
        parameters.append(inspect.Parameter("others", inspect.Parameter.VAR_KEYWORD, annotation=Any))
    return inspect.Signature(parameters, return_annotation=str)


def _kind(schema: object) -> Any:
    """Return Python's type for a schema that allows one, and null perhaps; Any for all others."""
    kinds = [kind for kind in types_in(schema) if kind != "null"]
    return _TYPES.get(kinds[0], Any) if len(kinds) == 1 else Any


def _docstring(description: str, schema: Mapping[str, Any]) -> str:
    """Return a docstring in the form that frameworks read descriptions of parameters from."""
    described = {
        name: each.get("description", "") if isinstance(each, Mapping) else ""
        for name, each in schema["properties"].items()
    }
    if not described:
        return description
    return "\n".join([description, "", "Args:", *(f"    {name}: {text}" for name, text in described.items())])


def _bound(signature: inspect.Signature, args: tuple[Any, ...], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments by name; names that no parameter has are passed on, for the environment to refuse."""
    if len(args) > len(signature.parameters):
        raise TypeError(f"expected at most {len(signature.parameters)} arguments, got {len(args)}")
    return {**dict(zip(signature.parameters, args, strict=False)), **arguments}
