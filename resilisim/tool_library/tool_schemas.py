"""JSON Schemas that come with tools: checked, brought to one dialect, and read into the parameters that people see.

A schema of somebody else's is kept whole (`Tool.input_schema`); what is made of it here says less than it does. Nothing
outside of a schema is ever fetched, and nothing small unfolds into something large.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from resilisim.errors import InvalidInputError, nearest_name, one_line, unknown_name
from resilisim.inputs import shown
from resilisim.tool_library.tool import VALUE_TYPES, Parameter, ReturnValue

MOST_PARTS: Final = 20_000  # schemas within one schema
MOST_EXPANDED: Final = 4_000  # parts of a schema whose references have been replaced by what they refer to
_MOST_LEVELS: Final = 64
OWN_META: Final = "resilisim/tool"  # in `_meta` of an exported definition: what MCP has no place for
RESULT_FIELD: Final = "result"  # under which an answer that is no object stands
ANNOTATIONS: Final = ("title", "description", "default", "examples", "deprecated", "$comment", "readOnly", "writeOnly")
# Keywords that hold one schema, a list of schemas, or schemas by name.
_OF_ONE: Final = (
    *("items", "additionalProperties", "not", "if", "then", "else", "contains", "propertyNames", "additionalItems"),
    *("unevaluatedProperties", "unevaluatedItems"),
)
_OF_LISTS: Final = ("anyOf", "oneOf", "allOf", "prefixItems", "items")
_OF_NAMES: Final = ("properties", "patternProperties", "dependentSchemas", "$defs", "definitions")
_NO_END: Final = ("$dynamicRef", "$recursiveRef", "unevaluatedProperties", "unevaluatedItems")  # look again and again
_VALUES: Final = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "minLength", "maxLength")
_LIMITS: Final = (*_VALUES, "pattern", "format", "minItems", "maxItems", "uniqueItems", "enum", "const", "items")
# What types are called elsewhere: in files of BFCL (Python, Java, JavaScript), and in capitals.
_TYPES_ELSEWHERE: Final[Mapping[str, str | None]] = {
    **{name: name for name in (*VALUE_TYPES, "null")},
    **dict.fromkeys(("dict", "hashmap", "hashtable", "map"), "object"),
    **dict.fromkeys(("float", "double"), "number"),
    **dict.fromkeys(("int", "long", "short", "byte", "bigint"), "integer"),
    **dict.fromkeys(("list", "tuple", "arraylist", "set"), "array"),
    **dict.fromkeys(("str", "char"), "string"),
    **dict.fromkeys(("bool",), "boolean"),
    **dict.fromkeys(("none",), "null"),
    **dict.fromkeys(("any", "type_unspecified", ""), None),
}


def same_reference(reference: str) -> str:
    """Return a reference as it is."""
    return reference


def in_one_dialect(schema: Any, where: str, reference: Callable[[str], str] = same_reference) -> Any:
    """Return a schema in the words of JSON Schema, whatever its types are called and however it says that null will do.

    Args:
        schema: The schema.
        where: What it is called in a refusal.
        reference: What becomes of each reference in it.

    Raises:
        InvalidInputError: It is none, names a type that there is not, or is nested too deeply.
    """
    told = str(schema.get("$schema", "")) if isinstance(schema, Mapping) else ""
    is_older = bool(told) and "2020-12" not in told  # one that says so is checked by its own dialect
    return _Translation(reference, is_older).of(schema, where, _MOST_LEVELS)


@dataclass(frozen=True, slots=True)
class _Translation:
    """What is the same for all parts of a schema that is brought to one dialect."""

    reference: Callable[[str], str]
    is_older: bool

    def of(self, schema: Any, where: str, levels: int) -> Any:
        """Return a part of it; it may go so many levels deep."""
        if isinstance(schema, bool):
            return schema
        if not isinstance(schema, Mapping):
            raise InvalidInputError(f"{where}: got {shown(schema)}; expected a JSON Schema, which is an object")
        if levels == 0:
            raise InvalidInputError(
                f"{where}: nested too deeply; expected at most {_MOST_LEVELS} schemas in each other"
            )
        made: dict[str, Any] = {}
        for word, value in schema.items():
            if word in ("$ref", "$dynamicRef") and isinstance(value, str):
                made[word] = self.reference(value)
            elif word == "type":
                kinds = _types(value, where)
                if kinds is not None:
                    made[word] = kinds
            elif word in _OF_NAMES and isinstance(value, Mapping):
                made[word] = {
                    str(name): self.of(inner, f"{where}, {name!r:.60}", levels - 1) for name, inner in value.items()
                }
            elif word in _OF_LISTS and isinstance(value, list):
                name = "prefixItems" if word == "items" and not self.is_older else word  # of a tuple
                made[name] = [self.of(inner, f"{where}, {word}", levels - 1) for inner in value]
            elif word in _OF_ONE and isinstance(value, Mapping):
                made[word] = self.of(value, f"{where}, {word}", levels - 1)
            elif word == "example" and "examples" not in schema:
                made["examples"] = [value]
            elif word not in ("nullable", "discriminator", "xml", "externalDocs", "example"):
                made[word] = value
        for limit, bound in (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")):
            excludes = made.get(limit)
            if isinstance(excludes, bool):  # as in drafts before 6, and in OpenAPI 3.0
                del made[limit]
                if excludes and bound in made:
                    made[limit] = made.pop(bound)
        return _or_null(made) if schema.get("nullable") is True else made


def _types(value: Any, where: str) -> Any:
    """Return what stands for types in JSON Schema; None for any."""
    if isinstance(value, list):
        kinds = [_types(each, where) for each in value]
        return None if None in kinds else kinds
    if not isinstance(value, str):
        raise InvalidInputError(f"{where}: type is {shown(value)}; expected one of {', '.join(VALUE_TYPES)}")
    if value.lower() not in _TYPES_ELSEWHERE:
        raise unknown_name("type", value, (*VALUE_TYPES, "null"), where)
    return _TYPES_ELSEWHERE[value.lower()]


def _or_null(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a schema that takes null as well."""
    if "$ref" in schema or "allOf" in schema:
        outside: dict[str, Any] = {word: schema.pop(word) for word in ANNOTATIONS if word in schema}
        return {"anyOf": [schema, {"type": "null"}], **outside}
    kinds = schema.get("type")
    if kinds is not None:
        listed = kinds if isinstance(kinds, list) else [kinds]
        schema["type"] = listed if "null" in listed else [*listed, "null"]
    if isinstance(schema.get("enum"), list) and None not in schema["enum"]:
        schema["enum"] = [*schema["enum"], None]
    for word in ("anyOf", "oneOf"):
        if isinstance(schema.get(word), list):
            schema[word] = [*schema[word], {"type": "null"}]
    return schema


def parts_of(schema: Any) -> Iterator[Mapping[str, Any]]:
    """Yield a schema and the schemas within it, without following references."""
    waiting = [schema]
    while waiting:
        part = waiting.pop()
        if not isinstance(part, Mapping):
            continue
        yield part
        for word, value in part.items():
            if word in _OF_NAMES and isinstance(value, Mapping):
                waiting.extend(value.values())
            elif word in _OF_LISTS and isinstance(value, list):
                waiting.extend(value)
            elif word in _OF_ONE:
                waiting.append(value)


def check_schema(schema: Any, where: str) -> None:
    """Refuse what is no JSON Schema of an object, too large, or refers to something outside of itself.

    Raises:
        InvalidInputError: It is; the message says where.
    """
    if not isinstance(schema, Mapping):
        raise InvalidInputError(f"{where}: got {shown(schema)}; expected a JSON Schema, which is an object")
    kinds = schema.get("type", "object")
    if kinds != "object" and not (isinstance(kinds, list) and "object" in kinds):
        raise InvalidInputError(f"{where}: type is {shown(kinds)}; expected 'object', since values have names")
    for number, part in enumerate(parts_of(schema)):
        if number >= MOST_PARTS:
            raise InvalidInputError(f"{where}: holds more than {MOST_PARTS:,} schemas; expected fewer")
        if isinstance(part.get("$ref"), str):
            referred_to(schema, part["$ref"], where)
    dialect = str(schema.get("$schema", ""))
    definitions = {word: schema[word] for word in ("$defs", "definitions") if isinstance(schema.get(word), Mapping)}
    pieces = [("", {word: value for word, value in schema.items() if word not in definitions})]
    pieces += [(f"{word}.{name}.", inner) for word, named in definitions.items() for name, inner in named.items()]
    for place, piece in pieces:  # of a large document many tools have the same definitions, which are looked at once
        found = _form_problem(json.dumps(piece, sort_keys=True, default=str), dialect)
        if found is not None:
            keyword, words = f"{place}{found[0]}".rstrip("."), found[1]
            raise InvalidInputError(
                f"{where}{f', keyword {keyword!r:.100}' if keyword else ''}: {one_line(words, 160)}"
            )


@lru_cache(maxsize=8192)
def _form_problem(text: str, dialect: str) -> tuple[str, str] | None:
    """Return where a schema is none by its dialect, and why; None if it is one."""
    from jsonschema import Draft202012Validator
    from jsonschema.exceptions import SchemaError
    from jsonschema.validators import validator_for

    kind = validator_for({"$schema": dialect}, Draft202012Validator) if dialect else Draft202012Validator
    try:
        kind.check_schema(json.loads(text), format_checker=None)  # Patterns may be JavaScript's.
    except SchemaError as error:
        return ".".join(str(step) for step in error.path), error.message
    except RecursionError:
        return "", "nested too deeply"
    return None


def referred_to(document: Any, reference: str, where: str) -> Any:
    """Return what a reference of a document points to within it.

    Raises:
        InvalidInputError: It points to nothing, or to another document, which is never fetched.
    """
    if reference != "#" and not reference.startswith("#/"):
        raise InvalidInputError(
            f"{where}: $ref {shown(reference, 100)} leads out of the document; expected one within it, such as "
            "'#/$defs/NAME' (bundle the files into one first)"
        )
    here = document
    for step in reference.split("/")[1:]:
        name = step.replace("~1", "/").replace("~0", "~").replace("%7B", "{").replace("%7D", "}")
        if isinstance(here, list) and name.isdecimal() and int(name) < len(here):
            here = here[int(name)]
        elif isinstance(here, Mapping) and name in here:
            here = here[name]
        else:
            near = nearest_name(name, [str(key) for key in here]) if isinstance(here, Mapping) else None
            hint = f"; did you mean {near!r}?" if near else "; expected a place that exists"
            raise InvalidInputError(
                f"{where}: $ref {shown(reference, 100)} leads nowhere: there is no {name!r:.60}{hint}"
            )
    return here


def expanded(schema: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return a schema without references; None if they go round in a circle or unfold into too much."""
    try:
        made = _Expansion(schema).of(schema, ())
    except _EndlessError:
        return None
    return {word: value for word, value in made.items() if word not in ("$defs", "definitions")}


class _EndlessError(Exception):
    """References that go round in a circle, or unfold into too much."""


class _Expansion:
    """The expansion of one schema, of which only so much is made."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        self._document = document
        self._num_parts = 0

    def of(self, part: Any, path: tuple[str, ...]) -> Any:
        """Return a part without references; `path` holds those that led to it."""
        if not isinstance(part, Mapping):
            return part
        self._num_parts += 1
        if self._num_parts > MOST_EXPANDED or len(path) > _MOST_LEVELS or any(word in part for word in _NO_END):
            raise _EndlessError
        made: dict[str, Any] = {}
        for word, value in part.items():
            if word in ("$defs", "definitions", "$ref"):
                continue
            if word in _OF_NAMES and isinstance(value, Mapping):
                made[word] = {name: self.of(inner, path) for name, inner in value.items()}
            elif word in _OF_LISTS and isinstance(value, list):
                made[word] = [self.of(inner, path) for inner in value]
            elif word in _OF_ONE:
                made[word] = self.of(value, path)
            else:
                made[word] = value
        reference = part.get("$ref")
        if not isinstance(reference, str):
            return made
        if reference in path:
            raise _EndlessError
        target = self.of(referred_to(self._document, reference, "a schema"), (*path, reference))
        if not isinstance(target, Mapping) or not all(word in ANNOTATIONS for word in made):
            return {"allOf": [target], **made}
        return {**target, **made}


def _opened(document: Mapping[str, Any], part: Any) -> Mapping[str, Any]:
    """Return a part of a schema as far as it says something itself: references and single `allOf` are followed."""
    seen: set[str] = set()
    while isinstance(part, Mapping):
        reference = part.get("$ref")
        single = part.get("allOf")
        if isinstance(reference, str) and reference not in seen:
            seen.add(reference)
            target = referred_to(document, reference, "a schema")
        elif isinstance(single, list) and len(single) == 1:
            target = single[0]
        else:
            return part
        beside = {word: value for word, value in part.items() if word not in ("$ref", "allOf")}
        part = {**target, **beside} if isinstance(target, Mapping) else beside
    return {}


def properties_of(
    schema: Mapping[str, Any], document: Mapping[str, Any] | None = None
) -> tuple[dict[str, Any], list[str]]:
    """Return the schemas of an object's values by name, and the names of those that it must have.

    References are those of the `document`, or of the schema itself. What `allOf` puts together is put together; of
    alternatives (`anyOf`, `oneOf`) every name counts, and none of them must be there.
    """
    properties: dict[str, Any] = {}
    required: list[str] = []
    waiting, seen = [(schema, True)], 0
    while waiting and seen < MOST_PARTS:
        part, counts = waiting.pop(0)
        seen += 1
        part = _opened(schema if document is None else document, part)
        for name, inner in _mapping(part.get("properties")).items():
            properties.setdefault(str(name), inner)
        if counts and isinstance(part.get("required"), list):
            required += [name for name in part["required"] if isinstance(name, str) and name not in required]
        for word in ("allOf", "anyOf", "oneOf"):
            if isinstance(part.get(word), list) and len(waiting) < MOST_PARTS:
                waiting += [(inner, counts and word == "allOf") for inner in part[word]]
    return properties, [name for name in required if name in properties]


def parameters_of(schema: Mapping[str, Any]) -> tuple[Parameter, ...]:
    """Return the parameters that a schema of a tool's arguments describes, each with what can be said of it alone."""
    properties, required = properties_of(schema)
    return tuple(
        _parameter(name, schema, inner, name in required) for name, inner in properties.items() if name.strip()
    )


def returns_of(schema: Mapping[str, Any]) -> tuple[ReturnValue, ...]:
    """Return the values that a schema of a tool's answers describes."""
    properties, _ = properties_of(schema)
    return tuple(
        ReturnValue(name, kind_of(schema, inner), _text(_opened(schema, inner).get("description")))
        for name, inner in properties.items()
        if name.strip()
    )


def _parameter(name: str, document: Mapping[str, Any], schema: Any, required: bool) -> Parameter:
    part = _opened(document, schema)
    plain = _first_value(document, part)
    kind = kind_of(document, part)
    limits = {word: plain[word] for word in _LIMITS if word in plain}
    if not isinstance(limits.get("items", {}), Mapping) or any(
        "$ref" in inner for inner in parts_of(limits.get("items"))
    ):
        del limits["items"]
    default = part.get("default", plain.get("default"))
    return Parameter(
        name,
        kind,
        _text(part.get("description")) or _text(plain.get("description")),
        required,
        default if _is_of(default, kind) and default in limits.get("enum", [default]) else None,
        limits,
    )


def example_of(document: Mapping[str, Any], schema: Any, levels: int = 8) -> Any:
    """Return a value that fits a schema, as far as its words on types, fields and choices say; no draw is needed."""
    part = _first_value(document, _opened(document, schema))
    listed = part.get("examples", part.get("enum"))
    if "const" in part or "default" in part or (isinstance(listed, list) and listed):
        return part["const"] if "const" in part else part["default"] if "default" in part else listed[0]
    kind = kind_of(document, part)
    if kind == "object":
        properties, required = properties_of(part, document)
        names = required if levels else ()
        return {name: example_of(document, properties[name], levels - 1) for name in names}
    if kind == "array":
        least = part.get("minItems", 1)
        items = part.get("items", {"type": "string"})
        if not levels or not isinstance(items, Mapping):
            return []
        return [example_of(document, items, levels - 1)] * (min(least, 100) if isinstance(least, int) else 1)
    if kind in ("integer", "number"):
        low = part.get("minimum", part.get("maximum", 1))
        return low if _is_of(low, "number") else 1
    short = part.get("minLength", 0)
    text = "text" + "x" * (min(short, 1000) - len("text") if isinstance(short, int) else 0)
    return kind == "boolean" or text[: part["maxLength"] if isinstance(part.get("maxLength"), int) else None]


def kind_of(document: Mapping[str, Any], schema: Any) -> str:
    """Return the type that a value has by a schema, null left aside, of `VALUE_TYPES`; "object" if it may be any."""
    part = _first_value(document, _opened(document, schema))
    kinds = part.get("type")
    named = [kind for kind in (kinds if isinstance(kinds, list) else [kinds]) if kind in VALUE_TYPES]
    if named:
        return str(named[0])
    examples = [part["const"]] if "const" in part else part.get("enum")
    for value in examples if isinstance(examples, list) else ():
        for kind in ("integer", *VALUE_TYPES):
            if _is_of(value, kind):
                return kind
    return "array" if "items" in part and "properties" not in part else "object"


def types_in(schema: object) -> list[str]:
    """Return the types that a schema itself allows, null among them; none at all if it does not say so plainly."""
    if not isinstance(schema, Mapping):
        return []
    options = schema.get("anyOf")
    if isinstance(options, list):
        kinds = [types_in(option) for option in options]
        return [kind for several in kinds for kind in several] if all(kinds) else []
    wanted = schema.get("type")
    listed = [wanted] if isinstance(wanted, str) else wanted if isinstance(wanted, list) else []
    return [kind for kind in listed if isinstance(kind, str)]


def _first_value(document: Mapping[str, Any], part: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the first of several alternatives that is not null; a schema without alternatives is its own."""
    for _ in range(_MOST_LEVELS):
        options = next((part[word] for word in ("anyOf", "oneOf") if isinstance(part.get(word), list)), None)
        if options is None or "type" in part:
            return part
        opened = [_opened(document, option) for option in options]
        part = next((option for option in opened if option.get("type") != "null" and option), {})
    return {}


def _is_of(value: Any, kind: str) -> bool:
    """Tell whether a value that is there is of a type of JSON."""
    if isinstance(value, bool):
        return kind == "boolean"
    types: Mapping[str, Any] = {"string": str, "integer": int, "number": int | float, "object": dict, "array": list}
    return kind in types and isinstance(value, types[kind])


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""
