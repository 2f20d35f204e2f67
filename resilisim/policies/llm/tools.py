"""Tools as agents see them: what they are, how they are called, what is made of what comes back (`CallResult`)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from resilisim.envs.reply import CallResult
from resilisim.errors import nearest_name
from resilisim.sandbox import JsonValue, NotJsonError, json_value
from resilisim.tool_library.tool_schemas import types_in

# What these tools say in words is more than what they give as values: descriptions, parameters, possible errors.
READ_AS_TEXT: Final = frozenset({"tool_search", "tool_info"})
_LONGEST_NAME: Final = 100  # characters of a name that are looked at and repeated
_TYPES: Final[Mapping[str, Any]] = {
    "string": str,
    "boolean": bool,
    "null": type(None),
    "array": list | tuple,
    "object": Mapping,
}
_MAX_BODY: Final = 100_000  # characters; a longer body is no error message


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A tool that an agent can call.

    Attributes:
        name: Its name.
        description: What it does, in a sentence.
        parameters: JSON Schema of an object: `properties` and `required`.
        returns: JSON Schema of what it answers; None if it does not say.
    """

    name: str
    description: str
    parameters: Mapping[str, Any] = field(default_factory=dict, hash=False)
    returns: Mapping[str, Any] | None = field(default=None, hash=False)

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
            f"{name}{'' if name in needed else '?'}: {' or '.join(types_in(schema)) or 'any'}"
            for name, schema in self.parameters.get("properties", {}).items()
        ]
        return f"{self.name}({', '.join(parts)})"

    def checked(self, arguments: Mapping[str, Any]) -> dict[str, Any] | str:
        """Return arguments as the tool takes them, or what is wrong with their names and types, on one line.

        An object or a list that was written as a text of JSON is one. Of schemas, the types of parameters are looked
        at; what else they say is left to the tool.
        """
        schemas = self.parameters.get("properties", {})
        for name in arguments:
            if name not in schemas and not self.parameters.get("additionalProperties"):
                cut = name[:_LONGEST_NAME]
                near = nearest_name(cut, schemas)
                hint = f"did you mean {near!r}? Its" if near else "its"
                return f"{self.name} has no parameter {cut!r}: {hint} signature is {self.signature()}"
        for name in self.required:
            if name not in arguments:
                return f"{self.name} needs the parameter {name!r}: its signature is {self.signature()}"
        checked: dict[str, Any] = {}
        for name, raw in arguments.items():
            kinds = types_in(schemas.get(name))
            value = _from_text(raw, kinds)
            if kinds and not any(_is_of(value, kind) for kind in kinds):
                return f"{self.name}: {name!r} is {_kind_of(value)}, expected {' or '.join(map(str, kinds))}"
            checked[name] = value
        return checked

    def to_function(self) -> dict[str, Any]:
        """Return the tool as an OpenAI-compatible endpoint expects it."""
        schema = dict(self.parameters) or {"type": "object", "properties": {}}
        return {
            "type": "function",
            "function": {"name": self.name, "description": self.description, "parameters": schema},
        }


def _is_of(value: Any, kind: str) -> bool:
    """Tell whether a value is of a type of JSON Schema; types that are none of it are left to the tool."""
    if kind in ("integer", "number"):
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return is_number and (kind == "number" or isinstance(value, int) or value.is_integer())
    return kind not in _TYPES or isinstance(value, _TYPES[kind])


def _kind_of(value: Any) -> str:
    return "a number" if _is_of(value, "number") else next(k for k in _TYPES if _is_of(value, k))


def _from_text(value: Any, kinds: Sequence[str]) -> Any:
    """Return the object or list that a text is, if one is wanted and no text."""
    if not isinstance(value, str) or "string" in kinds or not {"object", "array"} & set(kinds):
        return value
    try:
        read = json.loads(value)
    except (ValueError, RecursionError):
        return value
    return read if isinstance(read, Mapping | list) else value


class Toolbox(Protocol):
    """Tools that can be called."""

    @property
    def specs(self) -> tuple[ToolSpec, ...]:
        """The tools."""
        ...

    async def call(self, name: str, arguments: Mapping[str, Any]) -> CallResult:
        """Call a tool with JSON values by parameter name; what a model wrote never raises, but is an error's result."""
        ...


def describe_tools(specs: Iterable[ToolSpec]) -> str:
    """Return the list of tools for a prompt: signature and description of each."""
    return "\n".join(f"- {spec.signature()}: {spec.description}" for spec in specs)


def error_of(result: CallResult) -> str | None:
    """Return what went wrong in a call, in the tool's words, or None if it succeeded.

    An error is also a JSON body that says so: `error` with something in it, `isError`, or the status "error".
    """
    if result.error is not None:
        return result.error
    body = result.data if isinstance(result.data, Mapping) else _json_object(result.text)
    error = body.get("error")
    if error:
        return error if isinstance(error, str) else json.dumps(error, ensure_ascii=False, default=str)
    if body.get("isError") is True or body.get("is_error") is True or body.get("status") == "error":
        return str(body.get("message") or result.text)
    return None


def _json_object(text: str) -> Mapping[str, Any]:
    """Return the object that a text is; an empty one if it is none, or too long for an error message."""
    body = _from_text(text, ["object"]) if len(text.strip()) <= _MAX_BODY else None
    return body if isinstance(body, Mapping) else {}


def value_for_code(tool: str, result: CallResult) -> JsonValue:
    """Return what a successful call brought, as code works on it.

    It is the call's words where there is no value, the words say more, or no sandbox takes the value.
    """
    if result.data is None or tool in READ_AS_TEXT:
        return result.text
    try:
        return json_value(result.data)
    except NotJsonError:  # very many items, an integer of hundreds of digits: the call has succeeded all the same
        return result.text
