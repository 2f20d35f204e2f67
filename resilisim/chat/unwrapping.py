"""A call as a model wrote it, and how its arguments are read, whoever reads them: distrustful and in linear time.

Models and servers write arguments in many wrappings: as an object, as the text of one, as the text of such a text, in
parts, or as `null` or nothing where there are none. All mean the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from resilisim.chat.json_answers import LONGEST_READ, NotALiteral, json_value_at, kind_of, object_at

# Where an object may name a tool, and its arguments.
_NAME_KEYS: Final = ("action", "tool", "name", "tool_name", "function")
_ARGUMENT_KEYS: Final = ("action_input", "arguments", "parameters", "args", "input", "tool_input")
_WRAPPERS: Final = ("tool_calls", "tool_call", "function_call")
_PREFIXES: Final = ("functions.", "default_api.", "default_api:", "tools.")
_NO_ARGUMENTS: Final = ("", "null", "None")
_MOST_WRAPPINGS: Final = 6  # texts within texts
_WORDS: Final[Mapping[str, Any]] = {"true": True, "false": False, "none": None}  # as Python writes them


class Words(str):
    """The value of an argument in a form that writes all values as bare text: the schema says what it is."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class WrittenCall:
    """A call in a text.

    Attributes:
        name: The tool's name, as it was written.
        arguments: What was written for its arguments: an object, the text of one, None for nothing at all.
        unnamed: Values without the names of their parameters, in order, each with its own words.
    """

    name: str
    arguments: Any = field(default=None, hash=False)
    unnamed: tuple[tuple[Any, str], ...] = field(default=(), hash=False)

    def arguments_for(self, properties: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments by name, for a tool whose parameters have these schemas; `NotALiteral` says why not."""
        named = arguments_object(self.arguments)
        typed = {name: _typed(value, properties.get(name)) for name, value in named.items()}
        return {**by_position(self.unnamed, properties), **typed} if self.unnamed else typed


def unwrapped(raw: object, decode: Callable[[str], Any]) -> Any:
    """Return what arguments are once every wrapping is taken off: an object, if the model did well.

    None at all (nothing, null, the word for it, an empty list) is the empty object. `decode` reads the text of a JSON
    value, and what it raises is passed on.
    """
    for _ in range(_MOST_WRAPPINGS):
        if isinstance(raw, str):
            if raw.strip() in _NO_ARGUMENTS:
                return {}
            raw = decode(raw)
        elif raw is None or raw == []:
            return {}
        else:
            text = text_of_parts(raw)
            if text is None:
                return raw
            raw = text
    return raw


def text_of_parts(value: object) -> str | None:
    """Return the text of a content in parts, such as `[{"type": "text", "text": "..."}]`; None if it is none."""
    if not isinstance(value, Sequence) or isinstance(value, str | bytes) or not value:
        return None
    texts: list[str] = []
    for part in value:
        text = part.get("text") if isinstance(part, Mapping) else part
        if isinstance(text, Mapping):  # {"type": "text", "text": {"value": "..."}}
            text = text.get("value")
        is_other = isinstance(part, Mapping) and "type" in part and "text" not in part  # a thought, a picture
        if not isinstance(text, str) and not is_other:
            return None
        texts.append(text if isinstance(text, str) else "")
    return "".join(texts)


def arguments_object(raw: object) -> dict[str, Any]:
    """Return arguments as an object, in whatever wrapping they came; `NotALiteral` says what is wrong with them."""
    value = unwrapped(raw, _whole_value)
    if not isinstance(value, Mapping):
        raise NotALiteral(f"expected a JSON object, found {kind_of(value)}")
    return dict(value)


def _whole_value(text: str) -> Any:
    """Return the value that a text is, and nothing else: an object in JSON or in Python's notation, or what holds one.

    Errors are told of objects, since one is wanted.
    """
    if len(text) > LONGEST_READ:
        raise NotALiteral(f"more than {LONGEST_READ:,} characters")
    start = len(text) - len(text.lstrip())
    begun = text[start : start + 1]
    value, end = json_value_at(text, start) if begun in ('"', "[") else object_at(text, start)
    if text[end:].strip():
        raise NotALiteral("there is more than one JSON value")
    return value


def named_call(value: Mapping[str, Any]) -> WrittenCall | None:
    """Return the call that an object in any usual format is; None if it names nothing."""
    inner = value.get("function")
    if isinstance(inner, Mapping):
        value = inner
    name = next((value[key] for key in _NAME_KEYS if isinstance(value.get(key), str) and value[key].strip()), None)
    key = next((key for key in _ARGUMENT_KEYS if key in value), None)
    return None if name is None else WrittenCall(name.strip(), None if key is None else value[key])


def has_arguments(value: Mapping[str, Any]) -> bool:
    """Return whether an object has a place for arguments, whatever stands there."""
    inner = value.get("function")
    return any(key in (inner if isinstance(inner, Mapping) else value) for key in _ARGUMENT_KEYS)


def spellings(name: str) -> tuple[str, ...]:
    """Return a name, and what it may mean: without what some models and servers leave around it.

    Those are a prefix of where the function lives (`functions.`), the number of the call (`:0`) and the rest of a mark.
    """
    bare = name.partition("<|")[0].strip()
    for prefix in _PREFIXES:
        bare = bare.removeprefix(prefix)
    head, colon, number = bare.rpartition(":")
    return (name, *dict.fromkeys((bare, head if colon and number.isdigit() else bare)))


def calls_of_value(value: object) -> list[WrittenCall]:
    """Return the calls that a JSON value is: an object that names a tool, a list of such, or either in a wrapper."""
    if isinstance(value, Mapping):
        for wrapper in _WRAPPERS:
            if isinstance(value.get(wrapper), Mapping | list):
                return calls_of_value(value[wrapper])
        call = named_call(value)
        return [] if call is None else [call]
    if isinstance(value, list):
        calls = [named_call(entry) if isinstance(entry, Mapping) else None for entry in value]
        return [call for call in calls if call is not None] if all(calls) else []
    return []


def by_position(values: Sequence[tuple[Any, str]], properties: Mapping[str, Any]) -> dict[str, Any]:
    """Give values the names of parameters in their order; `NotALiteral` if there are more values than names."""
    if len(values) == 1 and isinstance(values[0][0], dict):
        return dict(values[0][0])
    if len(values) > len(properties):
        raise NotALiteral("there are values without the names of their parameters")
    # A number for a parameter that is a text is a text; the word as it was written, not as it was understood.
    return {
        name: raw if _kinds(schema) == ["string"] and not isinstance(value, str) else value
        for (name, schema), (value, raw) in zip(properties.items(), values, strict=False)
    }


def _typed(value: Any, schema: Any) -> Any:
    """Return a value as its parameter takes it, where it was written as bare text."""
    if not isinstance(value, Words):
        return value
    kinds, text = _kinds(schema), str(value)
    if "string" in kinds and not ("null" in kinds and text.strip() in _NO_ARGUMENTS[1:]):
        return text
    words = text.strip()
    try:
        read, end = object_at(words, 0) if words.startswith("{") else json_value_at(words, 0)
    except NotALiteral:
        return _WORDS.get(words.lower(), text)
    return text if words[end:].strip() else read


def _kinds(schema: Any) -> list[str]:
    """Return the types that a schema allows; none at all if it does not say so plainly."""
    if not isinstance(schema, Mapping):
        return []
    options = schema.get("anyOf", schema.get("oneOf"))
    if isinstance(options, list):
        return [kind for option in options for kind in _kinds(option)]
    wanted = schema.get("type")
    if wanted is None and isinstance(schema.get("enum"), list) and schema["enum"]:
        return ["string"] if all(isinstance(value, str) for value in schema["enum"]) else []
    kinds = [wanted] if isinstance(wanted, str) else wanted if isinstance(wanted, list) else []
    return [kind for kind in kinds if isinstance(kind, str)]
