"""Reading the arguments of a call as models write them: an object, a fence, a call in Python's manner, a bare text."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from resilisim.policies.llm.literals import NotALiteral, listed_values, object_at
from resilisim.policies.llm.tools import ToolSpec

FENCE: Final = re.compile(r"\s*```((?:json|python|text|yaml|tool|action|sql)\b|)[^\S\n]*\n?", re.IGNORECASE)
_BEFORE_BRACKET: Final = re.compile(r"\s*(?:[*`]{1,5}\s*)?(?=[{(\[])")


def arguments_at(text: str, start: int, words: str, spec: ToolSpec | None, attached: bool) -> dict[str, Any]:
    """Read the arguments of a call, however they were written.

    Args:
        text: The reply.
        start: Where the arguments begin in it.
        words: The reply from there to its next label.
        spec: The tool, if it is known.
        attached: Whether the arguments follow the tool's name without a gap.

    Raises:
        NotALiteral: They cannot be read.
    """
    fence = FENCE.match(text, start)
    if fence is not None:
        return _fenced(text, fence.end(), fence.group(1).lower(), spec)
    bracket = _BEFORE_BRACKET.match(text, start)
    if bracket is None:
        return bare_argument(words, spec)
    if text[bracket.end()] == "{":
        return object_at(text, bracket.end())[0]
    return _listed(text, bracket.end(), words, spec, attached)


def _fenced(text: str, start: int, language: str, spec: ToolSpec | None) -> dict[str, Any]:
    """Read what stands in a fence: an object, or a text such as code for a tool that takes nothing else."""
    closing = text.find("```", start)
    inside = text[start:] if closing < 0 else text[start:closing]
    if inside.lstrip().startswith("{"):
        try:
            value, end = object_at(text, text.index("{", start))
        except NotALiteral:
            if language in ("json", ""):
                raise
        else:
            if language in ("json", "") or not text[end : start + len(inside)].strip():
                return value
    return bare_argument(inside, spec)


def _listed(text: str, start: int, words: str, spec: ToolSpec | None, attached: bool) -> dict[str, Any]:
    """Read `(...)` or `[...]`: names with values, values in the order of the parameters, or a bare text."""
    opening = text[start]
    closing = {"(": ")", "[": "]"}[opening]
    try:
        positional, named = listed_values(text, start + 1, closing)
        if len(positional) == 1 and isinstance(positional[0][0], dict) and not named:
            return dict(positional[0][0])
        return {**_by_position(positional, spec), **named}
    except NotALiteral:
        if spec is None or _bare_parameter(spec, "x") is None:
            raise
    if not attached:
        return bare_argument(words, spec)
    inside = words.lstrip()[1:]
    first_line = inside.partition("\n")[0]
    within = first_line if closing in first_line else inside
    end = within.rfind(closing)
    if end < 0:
        raise NotALiteral(f"the opening {opening!r} is never closed")
    return bare_argument(within[:end], spec)


def _by_position(values: Sequence[tuple[Any, str]], spec: ToolSpec | None) -> dict[str, Any]:
    if not values:
        return {}
    names = spec.parameter_names if spec is not None else ()
    if spec is None or len(values) > len(names):
        raise NotALiteral("there are values without the names of their parameters")
    wanted = spec.parameters["properties"]
    # A number for a parameter that is a text is a text; the word as it was written, not as it was understood.
    return {
        name: raw if _is_text(wanted[name]) and not isinstance(value, str) else value
        for name, (value, raw) in zip(names, values, strict=False)
    }


def bare_argument(text: str, spec: ToolSpec | None) -> dict[str, Any]:
    """Take a text without a name for the tool's parameter, if it is clear which one is meant."""
    words = text.strip()
    if len(words) > 1 and words[0] == words[-1] and words[0] in "\"'":
        words = words[1:-1]
    parameter = _bare_parameter(spec, words) if spec is not None else None
    if parameter is None:
        raise NotALiteral("expected a JSON object")
    return {parameter: words}


def _bare_parameter(spec: ToolSpec, words: str) -> str | None:
    """Return the parameter that a bare text is for: the only one, or the only needed one if it is a single word."""
    properties = spec.parameters.get("properties", {})
    names = spec.parameter_names
    if len(names) != 1:
        names = spec.required if words and not any(map(str.isspace, words)) else ()
    return names[0] if len(names) == 1 and _is_text(properties.get(names[0], {})) else None


def _is_text(schema: Mapping[str, Any]) -> bool:
    return schema.get("type") == "string"
