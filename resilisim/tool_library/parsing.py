"""Tools from JSON: everything left out is filled in, everything wrong is refused in one line that says where."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn, TypeVar

from resilisim.errors import InvalidInputError, nearest_name, unknown_name
from resilisim.tool_library.constraints import constraint_problem, default_problem
from resilisim.tool_library.standard_errors import STANDARD_ERRORS, standard_errors
from resilisim.tool_library.types import (
    DEPENDENCY_ERROR,
    VALUE_TYPES,
    DependencyMetadata,
    Differentiation,
    ErrorSpec,
    Parameter,
    ReturnValue,
    Tool,
)

T = TypeVar("T")

LIBRARY_SCHEMA = "resilisim-tools-1"
DEFAULT_VERSION = "1.0.0"
CREATED_AT = "2025-01-01T00:00:00+00:00"  # a constant, so that a library has the same bytes wherever it is built
DEFAULT_CATEGORY = "general"

# A name must survive inside a tag of the text protocol, a shell argument, and an MCP definition.
_NAME_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")
_SLOT_PATTERN = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)\}")
_JSON_KINDS: Mapping[type, str] = {
    dict: "an object",
    list: "an array",
    str: "a string",
    bool: "a boolean",
    int: "a number",
    float: "a number",
    type(None): "null",
}

DEFAULT_RETURNS = (
    ReturnValue("success", "boolean", "Whether the operation succeeded."),
    ReturnValue("metadata", "object", "Facts about the execution, such as its duration."),
)

_TOOL_FIELDS = (
    "name",
    "description",
    "parameters",
    "returns",
    "errors",
    "dependencies",
    "dependency_metadata",
    "metadata",
    "canonical_name",
    "aliases",
    "differentiation",
    "original_description",
    "differentiation_enhanced",
    "success_probability",
)
_PARAMETER_FIELDS = ("name", "type", "description", "required", "default", "constraints")
_RETURN_FIELDS = ("name", "type", "description")
_ERROR_FIELDS = ("code", "description", "template", "slots")
_DIFFERENTIATION_FIELDS = ("unique_purpose", "key_differentiators", "usage_keywords")


def shown(value: Any, length: int = 60) -> str:
    """Return a value as short JSON on one line, for messages."""
    try:
        text = json.dumps(value, ensure_ascii=False, default=repr)
    except (RecursionError, ValueError):
        text = f"<{type(value).__name__}>"
    return text if len(text) <= length else text[: length - 3] + "..."


def name_parts(name: str) -> tuple[str, str]:
    """Return the category and the operation that a tool's name suggests: all but its last word, and its last word."""
    stem = name.rstrip("_.-")
    cut = max(stem.rfind(separator) for separator in "_.-")
    return stem[: max(cut, 0)].rstrip("_.-") or DEFAULT_CATEGORY, stem[cut + 1 :]


def read_json(text: str, source: str) -> Any:
    """Parse JSON, refusing doubled keys and numbers that JSON does not have.

    Raises:
        InvalidInputError: The text is not JSON; the message gives source, line and column.
    """

    def without_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        result = dict(pairs)
        if len(result) < len(pairs):
            keys = [key for key, _ in pairs]
            doubled = next(key for place, key in enumerate(keys) if key in keys[:place])
            raise InvalidInputError(f"{source}: key {doubled!r} stands twice in one JSON object; names must be unique")
        return result

    def no_constant(constant: str) -> NoReturn:
        raise InvalidInputError(f"{source}: {constant} is not a JSON number; expected a finite number")

    try:
        return json.loads(text, object_pairs_hook=without_doubles, parse_constant=no_constant)
    except json.JSONDecodeError as error:
        message = f"{source}: not valid JSON at line {error.lineno}, column {error.colno}: {error.msg}"
        raise InvalidInputError(message) from None
    except RecursionError:
        raise InvalidInputError(f"{source}: JSON is nested too deeply") from None


def tools_from_json(text: str, source: str) -> tuple[Tool, ...]:
    """Parse the tools of a library.

    Args:
        text: JSON: `{"tools": [tool, ...]}`, a bare array of tools, or a mapping of names to tools.
        source: What the text is called in messages, such as its path.

    Raises:
        InvalidInputError: Something is wrong; the message names source, tool, field and the nearest valid value.
    """
    value = read_json(text, source)
    if isinstance(value, dict) and isinstance(value.get("tools"), (list, dict)):
        for key in value:
            if key not in ("schema", "tools"):
                raise unknown_name("key", key, ("schema", "tools"), f"{source}, top level")
        if value.get("schema", LIBRARY_SCHEMA) != LIBRARY_SCHEMA:
            message = f"{source}: schema {shown(value['schema'])} is not supported; expected {LIBRARY_SCHEMA!r}"
            raise InvalidInputError(message)
        value = value["tools"]
    if isinstance(value, list):
        return tuple(tool_from_mapping(item, f"{source}: tool number {place + 1}") for place, item in enumerate(value))
    if isinstance(value, dict):
        return tuple(_named_tool(name, item, source) for name, item in value.items())
    kind = _JSON_KINDS[type(value)]
    raise InvalidInputError(f"{source}: expected an object with key 'tools' or an array of tools, got {kind}")


def _named_tool(name: str, value: Any, source: str) -> Tool:
    where = f"{source}: tool {name!r}"
    if not isinstance(value, dict):
        raise InvalidInputError(f"{where}: expected an object with the tool's fields, got {shown(value)}")
    if value.get("name", name) != name:
        given = shown(value["name"])
        raise InvalidInputError(f"{where}, field 'name': {given} differs from its key; expected {name!r}")
    return tool_from_mapping({"name": name, **value}, where)


def tool_from_mapping(value: Any, where: str) -> Tool:
    """Build one tool from JSON values; only `name` and `description` are required.

    Args:
        value: The tool as a mapping of Table 11's fields.
        where: What the tool is called in messages until its name is known.

    Raises:
        InvalidInputError: A field is missing, unknown, or of the wrong form.
    """
    if not isinstance(value, Mapping):
        raise InvalidInputError(f"{where}: expected an object with the tool's fields, got {shown(value)}")
    fields = _Fields(value, where, _TOOL_FIELDS)
    name = fields.name("name")
    if where.endswith(f"tool {name!r}"):
        fields.where = where
    else:
        fields.where = f"{where.rpartition(': ')[0]}: tool {name!r}".removeprefix(": ")
    fields.refuse_unknown()
    description = fields.text("description", required=True)
    metadata = _metadata(fields, name)
    if fields.text("canonical_name", default=name) != name:
        fields.fail("canonical_name", f"{shown(value['canonical_name'])} is not the tool's own name", repr(name))
    fields.mapping("dependency_metadata")  # its values follow from the dependencies: checked for form, then computed
    return Tool(
        name=name,
        description=description,
        parameters=_unique(fields, "parameters", fields.items("parameters", _parameter), lambda item: item.name),
        returns=_unique(fields, "returns", fields.items("returns", _return_value), lambda item: item.name)
        or DEFAULT_RETURNS,
        errors=_errors(fields, str(metadata["category"])),
        dependencies=_unique(fields, "dependencies", fields.texts("dependencies"), str),
        dependency_metadata=DependencyMetadata(category=str(metadata["category"])),
        metadata=metadata,
        canonical_name=name,
        aliases=tuple(fields.check_name("aliases", alias) for alias in fields.texts("aliases")),
        differentiation=_differentiation(fields),
        original_description=fields.text("original_description", default=description),
        differentiation_enhanced=fields.boolean("differentiation_enhanced", default=False),
        success_probability=_probability(fields),
    )


class _Fields:
    """The fields of one JSON object, read by kind; every refusal says where the object stands.

    Args:
        values: The object.
        where: Its place, as messages should give it.
        known: Names of the fields that it may have.
    """

    def __init__(self, values: Mapping[str, Any], where: str, known: Sequence[str]) -> None:
        self.values = values
        self.where = where
        self.known = known

    def fail(self, field: str, problem: str, expected: str) -> NoReturn:
        raise InvalidInputError(f"{self.where}, field {field!r}: {problem}; expected {expected}")

    def refuse_unknown(self) -> None:
        for field in self.values:
            if field not in self.known:
                near = nearest_name(str(field), self.known)
                hint = f"did you mean {near!r}?" if near else "expected one of " + ", ".join(self.known)
                raise InvalidInputError(f"{self.where}: unknown field {field!r}: {hint}")

    def text(self, field: str, *, default: str = "", required: bool = False) -> str:
        if field not in self.values:
            if required:
                self.fail(field, "is missing", "a string")
            return default
        value = self.values[field]
        if not isinstance(value, str):
            self.fail(field, f"got {shown(value)}", "a string")
        if required and not value.strip():
            self.fail(field, "is empty", "a text that says something")
        return value

    def name(self, field: str) -> str:
        return self.check_name(field, self.text(field, required=True))

    def check_name(self, field: str, value: str) -> str:
        if not _NAME_PATTERN.fullmatch(value):
            self.fail(field, f"{shown(value)} is not a name", "1 to 128 letters, digits, '_', '-' or '.'")
        return value

    def boolean(self, field: str, *, default: bool) -> bool:
        value = self.values.get(field, default)
        if not isinstance(value, bool):
            self.fail(field, f"got {shown(value)}", "true or false")
        return value

    def mapping(self, field: str) -> Mapping[str, Any]:
        value = self.values.get(field, {})
        if not isinstance(value, Mapping):
            self.fail(field, f"got {shown(value)}", "an object")
        return value

    def array(self, field: str) -> Sequence[Any]:
        value = self.values.get(field, ())
        if not isinstance(value, (list, tuple)):
            self.fail(field, f"got {shown(value)}", "an array")
        return value

    def texts(self, field: str) -> tuple[str, ...]:
        values = self.array(field)
        for value in values:
            if not isinstance(value, str):
                self.fail(field, f"got {shown(value)} among its items", "an array of strings")
        return tuple(values)

    def items(self, field: str, read: Callable[[Any, str], T]) -> tuple[T, ...]:
        return tuple(
            read(value, f"{self.where}, field '{field}', item {place + 1}")
            for place, value in enumerate(self.array(field))
        )


def _unique(fields: _Fields, field: str, values: tuple[T, ...], key: Callable[[T], str]) -> tuple[T, ...]:
    seen: set[str] = set()
    for value in values:
        if key(value) in seen:
            fields.fail(field, f"{key(value)!r} stands there twice", "each name once")
        seen.add(key(value))
    return values


def _object_fields(value: Any, where: str, known: Sequence[str]) -> _Fields:
    if not isinstance(value, Mapping):
        raise InvalidInputError(f"{where}: expected an object with {', '.join(known)}, got {shown(value)}")
    fields = _Fields(value, where, known)
    fields.refuse_unknown()
    return fields


def _value_type(fields: _Fields, default: str) -> str:
    value = fields.text("type", default=default)
    if value not in VALUE_TYPES:
        raise unknown_name("type", value, VALUE_TYPES, f"{fields.where}, field 'type'")
    return value


def _parameter(value: Any, where: str) -> Parameter:
    fields = _object_fields(value, where, _PARAMETER_FIELDS)
    name = fields.text("name", required=True)
    default = value.get("default")
    parameter = Parameter(
        name=name,
        type=_value_type(fields, "string"),
        description=fields.text("description"),
        required=fields.boolean("required", default=default is None),
        default=default,
        constraints=dict(fields.mapping("constraints")),
    )
    if problem := constraint_problem(parameter):
        raise InvalidInputError(f"{where} ({name!r}), field 'constraints': {problem}")
    if problem := default_problem(parameter):
        raise InvalidInputError(f"{where} ({name!r}), field 'default': {problem}")
    return parameter


def _return_value(value: Any, where: str) -> ReturnValue:
    fields = _object_fields(value, where, _RETURN_FIELDS)
    return ReturnValue(fields.text("name", required=True), _value_type(fields, "object"), fields.text("description"))


def _errors(fields: _Fields, category: str) -> tuple[ErrorSpec, ...]:
    """Read the documented errors; DEPENDENCY_ERROR, the simulator's own, is always the last resort and always there."""
    if "errors" not in fields.values:
        return standard_errors(category)
    errors = _unique(fields, "errors", fields.items("errors", _error), lambda item: item.code)
    if all(error.code == DEPENDENCY_ERROR for error in errors):
        fields.fail("errors", f"has no error besides {DEPENDENCY_ERROR}", "at least one, such as OPERATION_FAILED")
    if all(error.code != DEPENDENCY_ERROR for error in errors):
        errors = (*errors, STANDARD_ERRORS[DEPENDENCY_ERROR])
    return errors


def _error(value: Any, where: str) -> ErrorSpec:
    fields = _object_fields(value, where, _ERROR_FIELDS)
    code = fields.name("code")
    standard = STANDARD_ERRORS.get(code, ErrorSpec(code))
    description = fields.text("description", default=standard.description)
    if "template" not in value and "slots" not in value:
        return ErrorSpec(code, description, standard.template or description or code, standard.slots)
    template = fields.text("template", default=standard.template or description or code)
    slots = {slot: _slot(fields, slot, options) for slot, options in fields.mapping("slots").items()}
    for place in dict.fromkeys(_SLOT_PATTERN.findall(template)):
        if place not in slots:
            near = nearest_name(place, slots)
            fields.fail("template", f"slot {place!r} has no values", f"field 'slots' to give it{_meant(near)}")
    for slot in slots:
        if "{" + slot + "}" not in template:
            fields.fail("slots", f"{slot!r} does not occur in the template {shown(template)}", f"'{{{slot}}}' in it")
    return ErrorSpec(code, description, template, slots)


def _meant(near: str | None) -> str:
    return f" (did you mean {near!r}?)" if near else ""


def _slot(fields: _Fields, slot: str, options: Any) -> tuple[str, ...]:
    valid = isinstance(options, (list, tuple)) and options and all(isinstance(option, str) for option in options)
    if not valid or not _SLOT_PATTERN.fullmatch("{" + slot + "}"):
        fields.fail("slots", f"{slot!r} has {shown(options)}", "names with non-empty arrays of strings")
    return tuple(options)


def _differentiation(fields: _Fields) -> Differentiation:
    value = fields.mapping("differentiation")
    inner = _object_fields(value, f"{fields.where}, field 'differentiation'", _DIFFERENTIATION_FIELDS)
    return Differentiation(
        inner.text("unique_purpose"), inner.texts("key_differentiators"), inner.texts("usage_keywords")
    )


def _metadata(fields: _Fields, name: str) -> dict[str, Any]:
    """Read the general metadata; category and operation are taken from the name where they are missing."""
    category, operation = name_parts(name)
    values = {"category": category, "operation": operation, **fields.mapping("metadata")}
    for field in ("category", "operation"):
        if not isinstance(values[field], str) or not values[field]:
            fields.fail(f"metadata.{field}", f"got {shown(values[field])}", "a non-empty string")
    return values


def _probability(fields: _Fields) -> float | None:
    value = fields.values.get("success_probability")
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0.0 < value <= 1.0:
        fields.fail("success_probability", f"got {shown(value)}", "a number above 0 and at most 1")
    return float(value)
