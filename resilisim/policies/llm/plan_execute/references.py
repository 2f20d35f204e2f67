"""References to earlier results, `{step_N}` and what models write instead, at any depth of a step's arguments."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

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


@dataclass(frozen=True, slots=True)
class Data:
    """Texts in which what looks like a reference is none.

    Attributes:
        plan: Those that whoever wrote the plan had: the task.
        values: Those that values come from: the task and results of steps.
    """

    plan: tuple[str, ...] = ()
    values: tuple[str, ...] = ()


NO_DATA: Final = Data()


def _stands_in(words: str, data: Sequence[str]) -> bool:
    if not any(words in known for known in data):
        return False
    whole = re.compile(rf"(?<!\w){re.escape(words)}(?!\w)")  # result_1 does not stand in result_10
    return any(whole.search(known) for known in data)


def references_in(value: Any, data: Sequence[str] = ()) -> References:
    """Return the references in a value, in texts and names at any depth.

    Args:
        value: JSON value.
        data: Texts of the user and of tools: what stands in them and only looks like a reference is none.
    """
    numbers, unclear, words = set(), [], []
    for text in _texts(value):
        for found in _REFERENCE.finditer(text):
            if _stands_in(found.group(), data):
                continue
            words.append(found.group())
            number = _NUMBER.match(found.group())
            if number is None:
                unclear.append(found.group())
            else:
                numbers.add(int(number.group(1)))
    return References(frozenset(numbers), tuple(unclear), tuple(words))


def fill_in(given: Any, resolved: Any, data: Data = NO_DATA, path: str = "") -> tuple[Any, list[str]]:
    """Return arguments with values in place of references; the rest stays as the plan has it.

    Args:
        given: The arguments of the plan.
        resolved: The same with values, as a model wrote it.
        data: What is no reference.
        path: Where they stand, for the problems.

    Returns:
        The arguments, and what is wrong with them: the value at the path named is "missing", "empty" or "unresolved".
    """
    if isinstance(given, Mapping):
        if not isinstance(resolved, Mapping):
            return None, [f"{path or 'arguments'}: missing"] if references_in(given, data.plan) else []
        filled, problems = {}, []
        for name, entry in given.items():
            place = f"{path}.{name}" if path else str(name)
            filled[name], wrong = _entry(entry, resolved.get(name, _ABSENT), data, place)
            problems += wrong
        return filled, problems
    entries, problems = [], []
    same_length = isinstance(resolved, list) and len(resolved) == len(given)
    for number, entry in enumerate(given):
        value, wrong = _entry(entry, resolved[number] if same_length else _ABSENT, data, f"{path}[{number}]")
        entries.append(value)
        problems += wrong
    return entries, problems


_ABSENT: Any = object()


def _entry(given: Any, resolved: Any, data: Data, path: str) -> tuple[Any, list[str]]:
    if not references_in(given, data.plan):
        return given, []
    if resolved is _ABSENT:
        return None, [f"{path}: missing"]
    if isinstance(given, Mapping | list):
        return fill_in(given, resolved, data, path)
    if resolved is None or (isinstance(resolved, str) and not resolved.strip()):
        return None, [f"{path}: empty"]
    if references_in(resolved, data.values):
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
