"""References to earlier results, `{step_N}` and what models write instead, at any depth of a step's arguments."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

# For instance: result_1, output of step 1.
_RESULT = r"(?:results?|outputs?)(?:[\s_.-]{1,2}(?:of|from))?(?:[\s_.-]{1,2}steps?)?[\s_.#-]{1,3}"
_STEP = r"steps?[\s_.#-]{0,3}"
# Everything that begins like a reference is one, so that a misspelt one is noticed and never reaches a tool.
_REFERENCE = re.compile(
    r"\{\s*step(?![a-z])[^{}]{0,100}\}"
    rf"|\{{\s*(?:{_RESULT}|{_STEP})[\[(]?\d[^{{}}]{{0,100}}\}}"
    r"|\{\{[^{}]{0,100}(?<![a-z])steps?(?![a-z])[^{}]{0,100}\}\}"
    rf"|<\s*(?:{_RESULT}|{_STEP})\d[^<>]{{0,40}}>"
    rf"|\$(?:{_RESULT}|{_STEP})\d{{1,4}}(?!\d)",
    re.IGNORECASE,
)
# What stands in brackets may count from 0 or from 1, so it names no step.
_NUMBER = re.compile(rf"\A[{{<$]{{1,2}}\s*(?:{_RESULT}|{_STEP})(\d{{1,4}})(?!\d)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class References:
    """The references in some arguments.

    Attributes:
        numbers: Steps that are referred to.
        unclear: What looks like a reference and names no step.
        words: All of them, as they are written.
    """

    numbers: frozenset[int]
    unclear: tuple[str, ...] = ()
    words: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.numbers or self.unclear)


def references_in(value: Any) -> References:
    """Return the references in a value, in texts and names at any depth."""
    numbers, unclear, words = set(), [], []
    for text in _texts(value):
        for found in _REFERENCE.finditer(text):
            words.append(found.group())
            number = _NUMBER.match(found.group())
            if number is None:
                unclear.append(found.group())
            else:
                numbers.add(int(number.group(1)))
    return References(frozenset(numbers), tuple(unclear), tuple(words))


def fill_in(given: Any, resolved: Any, path: str = "") -> tuple[Any, list[str]]:
    """Return arguments with values in place of references; the rest stays as the plan has it.

    Args:
        given: The arguments of the plan.
        resolved: The same with values, as a model wrote it.
        path: Where they stand, for the problems.

    Returns:
        The arguments, and what is wrong with them: the value at the path named is "missing", "empty" or "unresolved".
    """
    if isinstance(given, Mapping):
        if not isinstance(resolved, Mapping):
            return None, [f"{path or 'arguments'}: missing"] if references_in(given) else []
        filled, problems = {}, []
        for name, entry in given.items():
            filled[name], wrong = _entry(entry, resolved.get(name, _ABSENT), f"{path}.{name}" if path else str(name))
            problems += wrong
        return filled, problems
    entries, problems = [], []
    same_length = isinstance(resolved, list) and len(resolved) == len(given)
    for place, entry in enumerate(given):
        value, wrong = _entry(entry, resolved[place] if same_length else _ABSENT, f"{path}[{place}]")
        entries.append(value)
        problems += wrong
    return entries, problems


_ABSENT: Any = object()


def _entry(given: Any, resolved: Any, path: str) -> tuple[Any, list[str]]:
    if not references_in(given):
        return given, []
    if resolved is _ABSENT:
        return None, [f"{path}: missing"]
    if isinstance(given, Mapping | list):
        return fill_in(given, resolved, path)
    if resolved is None or (isinstance(resolved, str) and not resolved.strip()):
        return None, [f"{path}: empty"]
    if references_in(resolved):
        return None, [f"{path}: unresolved"]
    return resolved, []


def _texts(value: Any) -> Iterator[str]:
    level = [value]
    while level:
        entry = level.pop()
        if isinstance(entry, str):
            yield entry
        elif isinstance(entry, Mapping):
            level += [*entry.keys(), *entry.values()]
        elif isinstance(entry, list | tuple):
            level += entry
