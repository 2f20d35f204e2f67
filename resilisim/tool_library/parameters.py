"""Parameters: their JSON Schemas, which a library is checked by, and calls against these schemas.

A call that does not fit is rejected, never executed. jsonschema costs about a tenth of a second to import, so it is
imported when the first schema is looked at.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal, get_args

from resilisim.errors import nearest_name, unknown_name
from resilisim.schema_check import TooSlowError, found_in, schema_problem
from resilisim.tool_library.tool import Parameter, Tool
from resilisim.tool_library.tool_schemas import expanded

if TYPE_CHECKING:
    from jsonschema.exceptions import ValidationError

ParameterMode = Literal["lenient", "strict", "ignore"]
PARAMETER_MODES: tuple[str, ...] = get_args(ParameterMode)

_MOST_HINTS = 20  # unknown names of a call for which the nearest known ones are looked for

_TYPE_OF: Mapping[type, str] = {
    str: "string",
    bool: "boolean",
    int: "integer",
    float: "number",
    list: "array",
    dict: "object",
    type(None): "null",
}
_ANNOTATIONS = ("title", "description", "examples", "deprecated", "$comment", "contentEncoding", "contentMediaType")
# References would need a document to point into, and a parameter is not a document of its own.
_REFERENCES = frozenset({"$ref", "$dynamicRef", "$id", "$anchor", "$dynamicAnchor"})


def value_schema(parameter: Parameter) -> dict[str, Any]:
    """Return the JSON Schema of a parameter's values, description and default included."""
    schema: dict[str, Any] = {"type": parameter.type}
    if parameter.description:
        schema["description"] = parameter.description
    if parameter.default is not None:
        schema["default"] = parameter.default
    return {**schema, **parameter.constraints}


def parameter_problem(parameter: Parameter) -> str | None:
    """Say on one line why a parameter's constraints are no JSON Schema, or its default no value of it; None if fine."""
    if parameter.constraints:
        schema = json.dumps({"type": parameter.type, **parameter.constraints})
        if problem := _schema_problem(schema, parameter.type):
            return f"field 'constraints': {problem}"
    if parameter.default is None or (parameter.default == {} and parameter.type == "object"):
        return None
    for error in _validator_class()(value_schema(parameter)).iter_errors(parameter.default):
        return f"field 'default': {_one_line(error.message)}; expected a value that fits type and constraints, or null"
    return None


@lru_cache(maxsize=1024)
def _schema_problem(schema_text: str, expected_type: str) -> str | None:
    from jsonschema import Draft202012Validator
    from jsonschema.exceptions import SchemaError

    schema = json.loads(schema_text)
    if schema["type"] != expected_type:
        return f"keyword 'type' contradicts the parameter's type; expected {expected_type!r} or no such keyword"
    keywords = sorted((set(Draft202012Validator.VALIDATORS) - _REFERENCES) | set(_ANNOTATIONS))
    for key in _keys(schema):
        if key in _REFERENCES:
            return f"keyword {key!r} is not supported; expected a schema without references"
    for key in schema:
        if key not in keywords:
            return str(unknown_name("JSON Schema keyword", key, keywords))
    try:
        Draft202012Validator.check_schema(schema)
    except SchemaError as error:
        place = ".".join(str(part) for part in error.path)
        return f"keyword {place!r}: {_one_line(error.message)}; expected a JSON Schema (draft 2020-12)"
    return None


def _keys(value: Any) -> Iterator[str]:
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield key
            yield from _keys(item)
    elif isinstance(value, list):
        for item in value:
            yield from _keys(item)


def _one_line(message: str, length: int = 160) -> str:
    text = " ".join(message.split())
    return text if len(text) <= length else text[: length - 3] + "..."


def parameter_schema(tool: Tool, strict: bool) -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of a call's parameters; `strict` says which ones must be given.

    A tool's own schema stands as it is, but that names which it does not have are refused unless it says something of
    them, and that without `strict` any may be left out.
    """
    if tool.input_schema is not None:
        return _own_schema(tool, tool.input_schema, strict)
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {parameter.name: value_schema(parameter) for parameter in tool.parameters},
        "additionalProperties": False,
    }
    required = [parameter.name for parameter in tool.parameters if parameter.required]
    if strict and required:
        schema["required"] = required
    return schema


def _own_schema(tool: Tool, own: Mapping[str, Any], strict: bool) -> dict[str, Any]:
    schema = {"type": "object", **own}
    known: dict[str, Any] = {
        parameter.name: {} for parameter in tool.parameters
    }  # those that stand within `allOf` and the like, too
    schema["properties"] = {**known, **(own["properties"] if isinstance(own.get("properties"), Mapping) else {})}
    if "patternProperties" not in own and "unevaluatedProperties" not in own:
        schema.setdefault("additionalProperties", False)
    if not strict:
        schema.pop("required", None)
    return schema


def check_parameters(tool: Tool, parameters: Mapping[str, Any], mode: str = "lenient") -> list[str]:
    """Say what is wrong with the parameters of a call.

    Args:
        tool: The tool that is called.
        parameters: JSON values by name.
        mode: "lenient": what is given must fit the schema, unknown names are refused, anything may be left out.
            "strict": required parameters must be given as well. "ignore": everything is accepted.

    Returns:
        Problems, one line each, sorted by parameter; an empty list accepts the call.

    Raises:
        InvalidInputError: The mode does not exist.
    """
    if _accepts_anyway(parameters, mode):
        return []
    try:
        validator = _validator(_Key(tool), mode == "strict")
        if validator is None:
            return _problems_apart(tool, parameters, mode == "strict")
        problems = [
            problem for error in validator.iter_errors(parameters) for problem in _problems(tool, parameters, error)
        ]
    except RecursionError:
        return [f"parameters of tool {tool.name!r} are nested too deeply; expected plain JSON values"]
    return sorted(set(problems))


def accepts(tool: Tool, parameters: Mapping[str, Any], mode: str = "lenient") -> bool:
    """Return whether `check_parameters` would find nothing wrong; much faster where the same values come again.

    Raises:
        InvalidInputError: The mode does not exist.
    """
    if _accepts_anyway(parameters, mode):
        return True
    try:
        return _accepts_known(_Call(tool, mode == "strict", parameters))
    except RecursionError:  # nested too deeply, here or for the schema
        return not check_parameters(tool, parameters, mode)


def _accepts_anyway(parameters: Mapping[str, Any], mode: str) -> bool:
    if mode not in PARAMETER_MODES:
        raise unknown_name("parameter mode", mode, PARAMETER_MODES)
    return mode == "ignore" or (mode == "lenient" and not parameters)


class _Call:
    """A call as a cache key: calls of one tool whose parameters are written the same in Python are the same here.

    As JSON some would be that are not: a tuple and a list, or 1 and "1" as a key.
    """

    __slots__ = ("parameters", "strict", "text", "tool")

    def __init__(self, tool: Tool, strict: bool, parameters: Mapping[str, Any]) -> None:
        self.tool = tool
        self.strict = strict
        self.parameters = parameters
        self.text = repr(parameters)

    def __hash__(self) -> int:
        return hash((self.tool.name, self.strict, self.text))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Call):
            return NotImplemented
        same_call = self.text == other.text and self.strict == other.strict
        return same_call and (self.tool is other.tool or _Key(self.tool) == _Key(other.tool))


@lru_cache(maxsize=16384)
def _accepts_known(call: _Call) -> bool:
    validator = _validator(_Key(call.tool), call.strict)
    if validator is None:
        return not _problems_apart(call.tool, call.parameters, call.strict)
    return bool(validator.is_valid(call.parameters))


def _problems_apart(tool: Tool, parameters: Mapping[str, Any], strict: bool) -> list[str]:
    """Say what a schema says first against parameters where that may take long; what takes too long to check fits."""
    where, schema = f" of tool {tool.name!r}", parameter_schema(tool, strict)
    names = list(schema["properties"])
    unknown = [str(name) for name in parameters if name not in names and schema.get("additionalProperties") is False]
    if unknown:
        return sorted(_unknown(name, names, where, with_hint=len(unknown) <= _MOST_HINTS) for name in unknown)
    try:
        problem = schema_problem(schema, dict(parameters))
    except TooSlowError:
        return []
    return [] if problem is None else [f"parameters{where}: {_one_line(problem)}"]


def defaults(tool: Tool) -> dict[str, Any]:
    """Return the default of each parameter that has one."""
    return {parameter.name: parameter.default for parameter in tool.parameters if parameter.default is not None}


class _Key:
    """A tool as a cache key: two tools with the same parameters are the same here.

    A tool's own hash leaves the constraints out, and comparing whole tools would cost more than a validation.
    """

    __slots__ = ("tool",)

    def __init__(self, tool: Tool) -> None:
        self.tool = tool

    def __hash__(self) -> int:
        return hash(self.tool.name)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Key):
            return NotImplemented
        return self.tool is other.tool or (
            self.tool.parameters == other.tool.parameters and self.tool.input_schema == other.tool.input_schema
        )


@lru_cache(maxsize=2048)
def _validator(key: _Key, strict: bool) -> Any:
    """Return what checks the parameters of a tool; None if that has to be done where it can be interrupted."""
    schema: dict[str, Any] | None = parameter_schema(key.tool, strict)
    if key.tool.input_schema is not None:
        schema = expanded(schema or {})
    return None if schema is None else _validator_class(str(schema.get("$schema", "")))(schema)


@lru_cache(maxsize=16)
def _validator_class(dialect: str = "") -> Any:
    """Return the class of the validators, whose patterns are looked for within a limit of time."""
    from jsonschema import Draft202012Validator
    from jsonschema.exceptions import ValidationError
    from jsonschema.validators import extend, validator_for

    def pattern(validator: Any, wanted: str, instance: Any, schema: Any) -> Iterator[ValidationError]:
        if validator.is_type(instance, "string") and not _is_found(wanted, instance):
            yield ValidationError(f"{instance!r} does not match {wanted!r}")

    def pattern_properties(validator: Any, wanted: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
        if not validator.is_type(instance, "object"):
            return
        for each, inner in wanted.items():
            for name, value in instance.items():
                if _is_found(each, name):
                    yield from validator.descend(value, inner, path=name, schema_path=each)

    kind = validator_for({"$schema": dialect}, Draft202012Validator) if dialect else Draft202012Validator
    return extend(kind, {"pattern": pattern, "patternProperties": pattern_properties})


def _is_found(pattern: str, text: str) -> bool:
    """Return whether a pattern occurs in a text; one that takes too long does not, one that Python has not does."""
    try:
        return found_in(pattern, text)
    except TooSlowError:
        return False
    except re.error:
        return True


def _problems(tool: Tool, parameters: Mapping[str, Any], error: ValidationError) -> list[str]:
    where = f" of tool {tool.name!r}"
    if not error.absolute_path:
        names = [parameter.name for parameter in tool.parameters]
        if error.validator == "required":
            missing = [name for name in error.validator_value if name not in parameters]
            return [f"required parameter {name!r}{where} is missing" for name in missing]
        if error.validator == "additionalProperties":
            unknown = [str(name) for name in parameters if name not in names]
            return [_unknown(name, names, where, with_hint=len(unknown) <= _MOST_HINTS) for name in unknown]
        if error.validator != "type":
            return [f"parameters{where}: {_one_line(error.message)}"]
        return [f"parameters{where}: expected an object, got {_shown(parameters)}"]
    place = ".".join(str(part) for part in error.absolute_path)
    value = _shown(error.instance)
    if error.validator == "type":
        expected = error.validator_value
        expected = expected if isinstance(expected, str) else " or ".join(map(str, expected))
        kind = _TYPE_OF.get(type(error.instance), type(error.instance).__name__)
        return [f"parameter {place!r}{where}: expected {expected}, got {kind} {value}"]
    rule = f"{error.validator} {_shown(error.validator_value)}"
    return [f"parameter {place!r}{where}: value {value} does not meet {rule}"]


def _unknown(name: str, names: list[str], where: str, with_hint: bool) -> str:
    near = nearest_name(name, names) if with_hint else None
    if near is not None:
        hint = f"did you mean {near!r}?"
    elif names:
        hint = "expected some of " + ", ".join(names)
    else:
        hint = "the tool takes none"
    return f"unknown parameter {name[:60]!r}{where}: {hint}"


def _shown(value: object, length: int = 60) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= length else text[: length - 3] + "..."


def changed_parameters(tool: Tool, parameters: Mapping[str, Any], number: int = 0) -> dict[str, Any]:
    """Return parameters of which one has another valid value; as they are if no valid change is found.

    Args:
        tool: The tool.
        parameters: Valid parameters.
        number: Which change: each number changes another parameter, or gives it yet another value.
    """
    changes = []
    for parameter in tool.parameters:
        now = parameters.get(parameter.name, parameter.default)
        for value in _other_values(parameter, now):
            changed = {**parameters, parameter.name: value}
            if value != now and accepts(tool, changed):
                changes.append(changed)
    return changes[number % len(changes)] if changes else dict(parameters)


def _other_values(parameter: Parameter, value: Any) -> list[Any]:
    allowed = parameter.constraints.get("enum")
    if allowed is not None:
        return list(allowed)
    low = parameter.constraints.get("minimum", 1)
    if parameter.type in ("integer", "number"):
        near = [value + 1, value - 1] if isinstance(value, int | float) and not isinstance(value, bool) else []
        return [*near, low, low + 1]
    if parameter.type == "boolean":
        return [value is not True]
    if parameter.type == "string":
        return [f"{value}-2" if isinstance(value, str) and value else "alternative", "another"]
    if parameter.type == "array":
        return [[*value, *value] if value else ["alternative"], []]
    return [{**(value or {}), "attempt": 2}] if isinstance(value, Mapping) or value is None else []
