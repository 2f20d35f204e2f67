"""The software's own failures, one page of vocabulary.

A simulated tool failure is a value and nonsense from an agent is an observation: neither is ever an exception.
What is left are the classes below; anything else that is raised is a bug.
"""

from __future__ import annotations

import difflib
import importlib
import math
import operator
import re
from collections.abc import Iterable
from numbers import Real
from typing import Any, SupportsIndex

from resilisim.redaction import without_steering

LONGEST_NAME = 300  # characters of a value that may be a misspelt name, and of a value that an error repeats

# Largest numbers that are taken; nobody means a larger one, and much would run out of memory or time before it ended.
MAX_COUNT = 1_000_000  # seeds, episodes, tasks, records
MAX_TURNS = 10_000  # and of the other rules that count messages
MAX_WORKERS = 1024


class ResiliSimError(Exception):
    """Base of every error that ResiliSim raises on purpose; its text is one line fit to be shown to a user.

    Example:
        >>> import resilisim
        >>> try:
        ...     resilisim.EnvironmentSettings(base=2.0)
        ... except resilisim.ResiliSimError as error:
        ...     print(error)
        base is 2.0: expected at least 0 and at most 1
    """


class InvalidInputError(ResiliSimError, ValueError):
    """The caller gave something unusable: the text names the value, what was expected, and the nearest valid name."""


class MissingExtraError(ResiliSimError, ImportError):
    """An optional dependency is needed and not installed: the text names the extra to install."""


class ExactLimitError(ResiliSimError):
    """A task is too large to be solved exactly within the stated limit on states."""


class StoreError(ResiliSimError):
    """Results cannot be written or do not belong together (full disk, another run's folder, another version)."""


class InfrastructureError(ResiliSimError):
    """Something outside simulator and agent broke (an endpoint is down): recorded, kept apart from the scores."""


def nearest_name(value: str, valid: Iterable[str]) -> str | None:
    """Return the valid name that resembles `value` most, or the only one that has `value` among its words, or None.

    Comparing takes the product of both lengths, so names that are too long resemble nothing.
    """
    names = [name for name in valid if len(name) <= LONGEST_NAME]
    if len(value) > LONGEST_NAME:
        return None
    exact = [name for name in names if name.lower() == value.lower()]
    if exact:
        return exact[0]
    close = difflib.get_close_matches(value, names, n=1, cutoff=0.5)
    if close:
        return close[0]
    words = _words(value)
    holding = [name for name in names if words and f"_{words}_" in f"_{_words(name)}_"]
    return holding[0] if len(holding) == 1 else None


def _words(name: str) -> str:
    """Return the words of a name in lower case, with one underscore between them."""
    return "_".join(re.findall(r"[^\W_]+", name.lower()))


def unknown_name(what: str, value: object, valid: Iterable[str], where: str = "") -> InvalidInputError:
    """Return the error for the name of a `what` ("tool") that does not exist, with the nearest valid one, or some."""
    names = list(valid)
    place = f" in {where}" if where else ""
    near = nearest_name(str(value), names)
    if near is not None:
        hint = f"did you mean {near!r}?"
    elif len(names) <= 12:
        hint = "expected one of " + ", ".join(names)
    else:
        hint = f"expected one of {len(names)} names, such as " + ", ".join(names[:3])
    return InvalidInputError(f"unknown {what} {value!r:.{LONGEST_NAME}}{place}: {hint}")


def shown_value(value: object, length: int = 60) -> str:
    """Return a value as an error repeats it: cut, and without the digits of a number that Python refuses to write."""
    if isinstance(value, int) and value.bit_length() > 1000:
        return f"a number of {value.bit_length():,} bits"
    return without_steering(f"{value!r:.{length}}")


def one_line(text: object, length: int = 200) -> str:
    """Return a text (or an error's) as an error repeats it: on one line, and cut with three dots if it is long."""
    line = without_steering(" ".join(str(text).split()))
    return line if len(line) <= length else line[: length - 3] + "..."


def import_extra(module: str, purpose: str, extra: str) -> Any:
    """Import a module of an extra, or say what needs it; `purpose` has a subject and a verb ("a plot needs")."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingExtraError(f"{purpose} {module!r} ({error}): pip install 'resilisim[{extra}]'") from error


def check_integer(name: str, value: object, least: int, most: int | None = None) -> int:
    """Return a whole number of any type (NumPy's, say) as an int; InvalidInputError if it is none or out of range."""
    if type(value) is int:  # what a protocol is asked takes as long as a tenth of an episode's start
        number = value
    elif isinstance(value, bool) or not isinstance(value, SupportsIndex):
        raise InvalidInputError(f"{name} is {shown_value(value)}: expected a whole number")
    else:
        number = operator.index(value)
    if number >= least and (most is None or number <= most):
        return number
    wanted = f"at least {least}" if most is None else f"at least {least} and at most {most:,}"
    raise InvalidInputError(f"{name} is {shown_value(number)}: expected {wanted}")


def check_number(name: str, value: object, least: float | None = None, most: float | None = None) -> float:
    """Return a number of any type (NumPy's, say) as a float; InvalidInputError if it is none or out of range."""
    try:
        number = math.nan if isinstance(value, bool) or not isinstance(value, Real) else float(value)
    except OverflowError:
        number = math.nan
    if math.isnan(number):
        raise InvalidInputError(f"{name} is {shown_value(value)}: expected a number")
    if (least is None or number >= least) and (most is None or number <= most):
        return number
    bounds = [f"at {word} {bound:,g}" for word, bound in (("least", least), ("most", most)) if bound is not None]
    raise InvalidInputError(f"{name} is {shown_value(value)}: expected {' and '.join(bounds)}")


def count_of(number: int, singular: str, plural: str | None = None) -> str:
    """Return a number with its noun, as texts for users have it ("1 task", "5,040 tasks")."""
    return f"{number:,} {singular if number == 1 else plural or singular + 's'}"
