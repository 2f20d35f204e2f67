"""Tools from JSON: everything left out is filled in, everything wrong is refused in one line that says where."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from resilisim.errors import InvalidInputError, nearest_name, unknown_name
from resilisim.tool_library.constraints import constraint_problem, default_problem
from resilisim.tool_library.json_fields import Fields, object_fields, read_json, shown, unique
from resilisim.tool_library.names import name_parts
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

LIBRARY_SCHEMA = "resilisim-tools-1"
DEFAULT_VERSION = "1.0.0"
CREATED_AT = "2025-01-01T00:00:00+00:00"  # a constant, so that a library has the same bytes wherever it is built

_SLOT_PATTERN = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)\}")

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


def tools_from_json(text: str, source: str) -> tuple[Tool, ...]:
    """Parse the tools of a library.

    Args:
        text: JSON: `{"tools": [tool, ...]}`, a bare array of tools, or a mapping of names to tools.
        source: What the text is called in messages, such as its path.

    Raises:
        InvalidInputError: Something is wrong; the message names source, tool, field and the nearest valid value.
    """
    value = read_json(text, source)
    if isinstance(value, dict) and _is_wrapper(value):
        for key in value:
            if key not in ("schema", "tools"):
                raise unknown_name("key", key, ("schema", "tools"), f"{source}, top level")
        if value.get("schema", LIBRARY_SCHEMA) != LIBRARY_SCHEMA:
            message = f"{source}: schema {shown(value['schema'])} is not supported; expected {LIBRARY_SCHEMA!r}"
            raise InvalidInputError(message)
        value = value["tools"]
    if isinstance(value, list):
        return tuple(tool_from_mapping(item, source, f"item {place + 1}") for place, item in enumerate(value))
    if isinstance(value, dict):
        return tuple(_named_tool(name, item, source) for name, item in value.items())
    raise InvalidInputError(f"{source}: expected an array of tools or an object with key 'tools', got {shown(value)}")


def _is_wrapper(value: Mapping[str, Any]) -> bool:
    """Tell `{"tools": ...}` from a mapping of names to tools in which one tool is called "tools"."""
    tools = value.get("tools")
    return "tools" in value and not (isinstance(tools, dict) and isinstance(tools.get("description"), str))


def _named_tool(name: str, value: Any, source: str) -> Tool:
    if isinstance(value, dict):
        if value.get("name", name) != name:
            given = shown(value["name"])
            message = f"{source}: tool {name!r}, field 'name': {given} differs from its key; expected {name!r}"
            raise InvalidInputError(message)
        value = {"name": name, **value}
    return tool_from_mapping(value, source, f"tool {name!r}")


def tool_from_mapping(value: Any, source: str = "tool library", place: str = "tool") -> Tool:
    """Build one tool from JSON values; only `name` and `description` are required.

    Args:
        value: The tool as a mapping of Table 11's fields.
        source: What the tool comes from, for messages.
        place: What messages call the tool until its name is known.

    Raises:
        InvalidInputError: A field is missing, unknown, or of the wrong form.
    """
    if not isinstance(value, Mapping):
        raise InvalidInputError(f"{source}: {place}: expected an object with a tool's fields, got {shown(value)}")
    fields = Fields(value, f"{source}: {place}", _TOOL_FIELDS)
    name = fields.name("name")
    fields.where = f"{source}: tool {name!r}"
    fields.refuse_unknown()
    description = fields.text("description", required=True)
    metadata = _metadata(fields, name)
    category = str(metadata["category"])
    if fields.text("canonical_name", default=name) != name:
        fields.fail("canonical_name", f"{shown(value['canonical_name'])} is not the tool's own name", repr(name))
    fields.mapping("dependency_metadata")  # its values follow from the dependencies: checked for form, then computed
    returns = unique(fields, "returns", fields.items("returns", _return_value), lambda item: item.name)
    return Tool(
        name=name,
        description=description,
        parameters=unique(fields, "parameters", fields.items("parameters", _parameter), lambda item: item.name),
        returns=returns or DEFAULT_RETURNS,
        errors=_errors(fields, category),
        dependencies=fields.texts("dependencies"),
        dependency_metadata=DependencyMetadata(category=category),
        metadata=metadata,
        canonical_name=name,
        aliases=tuple(fields.check_name("aliases", alias) for alias in fields.texts("aliases")),
        differentiation=_differentiation(fields),
        original_description=fields.text("original_description", default=description),
        differentiation_enhanced=fields.boolean("differentiation_enhanced", default=False),
        success_probability=_probability(fields),
    )


def _value_type(fields: Fields, default: str) -> str:
    value = fields.text("type", default=default)
    if value not in VALUE_TYPES:
        raise unknown_name("type", value, VALUE_TYPES, f"{fields.where}, field 'type'")
    return value


def _parameter(value: Any, where: str) -> Parameter:
    fields = object_fields(value, where, _PARAMETER_FIELDS)
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
    fields = object_fields(value, where, _RETURN_FIELDS)
    return ReturnValue(fields.text("name", required=True), _value_type(fields, "object"), fields.text("description"))


def _errors(fields: Fields, category: str) -> tuple[ErrorSpec, ...]:
    """Read the documented errors; DEPENDENCY_ERROR, the simulator's own, is always the last resort and always there."""
    if "errors" not in fields.values:
        return standard_errors(category)
    errors = unique(fields, "errors", fields.items("errors", _error), lambda item: item.code)
    if all(error.code == DEPENDENCY_ERROR for error in errors):
        fields.fail("errors", f"has no error besides {DEPENDENCY_ERROR}", "at least one, such as OPERATION_FAILED")
    if all(error.code != DEPENDENCY_ERROR for error in errors):
        errors = (*errors, STANDARD_ERRORS[DEPENDENCY_ERROR])
    return errors


def _error(value: Any, where: str) -> ErrorSpec:
    fields = object_fields(value, where, _ERROR_FIELDS)
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


def _slot(fields: Fields, slot: str, options: Any) -> tuple[str, ...]:
    valid = isinstance(options, (list, tuple)) and options and all(isinstance(option, str) for option in options)
    if not valid or not _SLOT_PATTERN.fullmatch("{" + slot + "}"):
        fields.fail("slots", f"{slot!r} has {shown(options)}", "names with non-empty arrays of strings")
    return tuple(options)


def _differentiation(fields: Fields) -> Differentiation:
    value = fields.mapping("differentiation")
    inner = object_fields(value, f"{fields.where}, field 'differentiation'", _DIFFERENTIATION_FIELDS)
    return Differentiation(
        inner.text("unique_purpose"), inner.texts("key_differentiators"), inner.texts("usage_keywords")
    )


def _metadata(fields: Fields, name: str) -> dict[str, Any]:
    """Read the general metadata; category and operation are taken from the name where they are missing."""
    category, operation = name_parts(name)
    values = {"category": category, "operation": operation, **fields.mapping("metadata")}
    for field in ("category", "operation"):
        if not isinstance(values[field], str) or not values[field]:
            fields.fail(f"metadata.{field}", f"got {shown(values[field])}", "a non-empty string")
    return values


def _probability(fields: Fields) -> float | None:
    value = fields.values.get("success_probability")
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0.0 < value <= 1.0:
        fields.fail("success_probability", f"got {shown(value)}", "a number above 0 and at most 1")
    return float(value)
