"""The software's own failures, one page of vocabulary.

A simulated tool failure is a value and nonsense from an agent is an observation: neither is ever an exception.
What is left are the classes below; anything else that is raised is a bug.
"""

from __future__ import annotations

import difflib
import errno
import importlib
import math
import operator
import re
import traceback
from collections.abc import Iterable, Iterator
from numbers import Real
from pathlib import PurePath
from typing import Any, Final, Literal, SupportsIndex

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


class UnknownArgumentError(InvalidInputError, TypeError):
    """A keyword argument that does not exist, in the words that Python has for it and as an error of its class.

    Libraries try arguments and leave out those that end in a TypeError ("unexpected keyword argument 'frameskip'").
    """


class MissingExtraError(ResiliSimError, ImportError):
    """An optional dependency is needed and not installed: the text names the extra to install."""


class ExactLimitError(ResiliSimError):
    """A task is too large to be solved exactly within the stated limit on states."""


class StoreError(ResiliSimError):
    """Results cannot be written or do not belong together (full disk, another run's folder, another version)."""


class InfrastructureError(ResiliSimError):
    """Something outside simulator and agent broke (an endpoint is down): recorded, kept apart from the scores."""

    is_from_outside = True


class Interrupted(KeyboardInterrupt):
    """Somebody stopped with Ctrl-C what the same call resumes; its text says what is kept."""


class CheckFailed(AssertionError):
    """A check of our own failed, so this software is wrong: a bug, which stops everything wherever it comes up."""


# Whose fault it is that an episode did not come to its end: of the agent (the episode is lost), of something outside
# simulator and agent (kept apart from scores), nobody can tell (kept apart, and ranks take the worst case), or ours.
Fault = Literal["agent", "infrastructure", "unclear", "bug"]

_LONGEST_CHAIN: Final = 100  # of errors raised from each other; nothing forbids a ring
# Packages that ask endpoints: what they raise may come of the endpoint, or of what the agent asked for.
_ENDPOINT_PACKAGES: Final = frozenset(
    {"openai", "anthropic", "httpx", "httpx2", "httpcore", "requests", "urllib3", "aiohttp", "litellm", "grpc"}
    | {"mistralai", "cohere", "botocore", "google", "groq", "ollama", "websockets", "http"}
)
_STATUSES_OF_ENDPOINTS: Final = frozenset({401, 403, 404, 405, 407, 408, 409, 425, 429})  # and all from 500 on
_MACHINE_IS_FULL: Final = frozenset(
    getattr(errno, name) for name in ("ENOSPC", "EDQUOT", "EMFILE", "ENFILE", "ENOMEM", "EIO") if hasattr(errno, name)
)


_MODELS: Final = "resilisim.chat"


def fault_of(error: BaseException, is_ours: bool = False) -> Fault:
    """Say whose fault an exception is that came out of an agent: the one place where this is decided.

    The agent's, unless it can be told that it is not. A failed check of our own is a bug, whoever has caught it
    meanwhile. `InfrastructureError` (or another that `is_from_outside`) counts as such only where this package raised
    it, as an agent could raise it as well. What looks like an endpoint, a network or a full machine in somebody else's
    code is unclear: it may be one, and an agent may pretend it.

    Args:
        error: What came out.
        is_ours: Whether the agent is one of this package, so that everything else is a bug.
    """
    chain = list(_chain_of(error))
    if any(isinstance(each, CheckFailed) for each in chain):
        return "bug"
    if any(getattr(each, "is_from_outside", False) and _is_raised_here(each) for each in chain):
        return "infrastructure"
    if is_ours or _is_raised_here(error, _MODELS):  # a model that was set up wrongly answers nobody
        return "bug"
    return "unclear" if any(map(_may_be_outside, chain)) else "agent"


def _chain_of(error: BaseException) -> Iterator[BaseException]:
    """Yield an exception, what it was raised from, and what it groups."""
    waiting, seen = [error], 0
    while waiting and seen < _LONGEST_CHAIN:
        each, seen = waiting.pop(), seen + 1
        yield each
        waiting += [other for other in (each.__cause__, each.__context__) if other is not None]
        waiting += each.exceptions if isinstance(each, BaseExceptionGroup) else ()


def _is_raised_here(error: BaseException, package: str = "resilisim") -> bool:
    """Tell whether code of this package, or of one within it, has raised an exception."""
    place = error.__traceback__
    while place is not None and place.tb_next is not None:
        place = place.tb_next
    return place is not None and f"{place.tb_frame.f_globals.get('__name__')}.".startswith(f"{package}.")


def _may_be_outside(error: BaseException) -> bool:
    """Tell whether an exception looks like an endpoint, a network or a machine that failed."""
    if isinstance(error, OSError) and error.errno in _MACHINE_IS_FULL:
        return True
    if isinstance(error, ConnectionError | TimeoutError | MemoryError | InfrastructureError):
        return True
    if type(error).__module__.partition(".")[0] not in (*_ENDPOINT_PACKAGES, "socket", "ssl"):
        return False
    status = getattr(error, "status_code", getattr(getattr(error, "response", None), "status_code", None))
    return not isinstance(status, int) or status >= 500 or status in _STATUSES_OF_ENDPOINTS


def told_error(error: BaseException) -> str:
    """Return an exception on one line, with where it was raised; some are unable to say what they are."""
    try:
        words = f"{type(error).__name__}: {error}".removesuffix(": ")
    except Exception:
        words = type(error).__name__
    frames = traceback.extract_tb(error.__traceback__, limit=-1)
    where = f" ({PurePath(frames[0].filename).name}:{frames[0].lineno})" if frames else ""
    return one_line(words) + where


def nearest_name(value: str, valid: Iterable[str], least: float = 0.5) -> str | None:
    """Return the valid name that resembles `value` most, or the only one that has `value` among its words, or None.

    What resembles it by less than `least`, from 0 to 1 for the same, is no slip of the pen.
    Comparing takes the product of both lengths, so names that are too long resemble nothing.
    """
    names = [name for name in valid if len(name) <= LONGEST_NAME]
    if len(value) > LONGEST_NAME:
        return None
    exact = [name for name in names if name.lower() == value.lower()]
    if exact:
        return exact[0]
    close = difflib.get_close_matches(value, names, n=1, cutoff=least)
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
    place = f" in {where}" if where else ""
    return InvalidInputError(f"unknown {what} {value!r:.{LONGEST_NAME}}{place}: {_hint(value, list(valid))}")


def unknown_argument(called: str, name: str, valid: Iterable[str]) -> UnknownArgumentError:
    """Return the error for a keyword argument that what is `called` does not take, with the nearest one, or some."""
    words = f"{called} got an unexpected keyword argument {name!r:.{LONGEST_NAME}}"
    return UnknownArgumentError(f"{words}: {_hint(name, list(valid))}")


def _hint(value: object, names: list[str]) -> str:
    near = nearest_name(str(value), names)
    if near is not None:
        return f"did you mean {near!r}?"
    if len(names) <= 12:
        return "expected one of " + ", ".join(names)
    return f"expected one of {len(names)} names, such as " + ", ".join(names[:3])


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
        raise MissingExtraError(f"{purpose} {module!r} ({error}): {install_line(extra)}") from error


# Extras that do not go with the versions in constraints.txt, and bring no torch that these would have to pin.
_WITHOUT_CONSTRAINTS = ("inspect", "verifiers", "video")


def install_line(extra: str) -> str:
    """Return the command that installs an extra; ResiliSim is on no package index, so it is for a clone."""
    constraints = "" if extra in _WITHOUT_CONSTRAINTS else "-c constraints.txt "
    return f"pip install {constraints}'.[{extra}]' (in a clone of ResiliSim)"


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


def check_number(
    name: str,
    value: object,
    least: float | None = None,
    most: float | None = None,
    *,
    above: float | None = None,
    below: float | None = None,
) -> float:
    """Return a number of any type (NumPy's, say) as a float; InvalidInputError if it is none or out of range.

    `above` and `below` are bounds that the number itself must not be.
    """
    try:
        number = math.nan if isinstance(value, bool) or not isinstance(value, Real) else float(value)
    except OverflowError:
        number = math.nan
    if math.isnan(number):
        raise InvalidInputError(f"{name} is {shown_value(value)}: expected a number")
    is_low = (least is not None and number < least) or (above is not None and number <= above)
    is_high = (most is not None and number > most) or (below is not None and number >= below)
    if not is_low and not is_high:
        return number
    bounds = (("at least", least), ("above", above), ("at most", most), ("below", below))
    wanted = " and ".join(f"{words} {bound:,g}" for words, bound in bounds if bound is not None)
    raise InvalidInputError(f"{name} is {shown_value(value)}: expected {wanted}")


def check_share(name: str, value: object) -> float:
    """Return a number from 0 to 1 as a float; InvalidInputError for all else."""
    return check_number(name, value, 0.0, 1.0)


def count_of(number: int, singular: str, plural: str | None = None) -> str:
    """Return a number with its noun, as texts for users have it ("1 task", "5,040 tasks")."""
    return f"{number:,} {singular if number == 1 else plural or singular + 's'}"
