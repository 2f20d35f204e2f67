"""The JSON Schema of one parameter: what its values must look like, and whether its constraints are a schema at all.

jsonschema costs about a tenth of a second to import, so it is imported when the first schema is looked at.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

from resilisim.errors import unknown_name
from resilisim.tool_library.types import Parameter

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


def constraint_problem(parameter: Parameter) -> str | None:
    """Say on one line why a parameter's constraints are not JSON Schema keywords, or return None if they are."""
    if not parameter.constraints:
        return None
    return _schema_problem(json.dumps({"type": parameter.type, **parameter.constraints}), parameter.type)


def default_problem(parameter: Parameter) -> str | None:
    """Say on one line why a parameter's default is not one of its values, or return None if it is."""
    if parameter.default is None or (parameter.default == {} and parameter.type == "object"):
        return None
    from jsonschema import Draft202012Validator

    for error in Draft202012Validator(value_schema(parameter)).iter_errors(parameter.default):
        return f"{_one_line(error.message)}; expected a value that fits type and constraints, or null"
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
