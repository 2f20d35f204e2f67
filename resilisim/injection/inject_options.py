"""What `resilisim.inject` is asked for, checked before anything is called, and what it raises."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias, cast, get_args

from resilisim.envs.feedback import codes_of
from resilisim.envs.manners import Manner, check_codes, manner_of
from resilisim.errors import InvalidInputError, one_line, shown_value, unknown_name
from resilisim.injection.call import InjectedFailure, Raiser
from resilisim.injection.promises import kind_of
from resilisim.inputs import validated
from resilisim.simulator import Law, LostAnswer
from resilisim.simulator.goal import Counts

# When failures come, in short: before the function has run, or after it, when its answer alone is lost.
Fail = Literal["before", "after"]


def with_lost_answers(law: Law, fail: object = None, checks: object = None) -> Law:
    """Return a law under which no answer is lost (fail="before"), or that of every failure ("after").

    Args:
        law: The law; without `fail` it says what is lost.
        fail: One of the two, which stand for the shares 0 and 1 of `LostAnswer`.
        checks: For functions the one that tells how often they have run, as there; None leaves that to the law.

    Raises:
        InvalidInputError: One of them is none.
    """
    if fail is not None and fail not in get_args(Fail):
        raise unknown_name("fail", fail, get_args(Fail))
    if not isinstance(checks or {}, Mapping):
        raise InvalidInputError(
            f"checks is {shown_value(checks)}: expected a mapping such as {{'charge_card': 'list_charges'}}"
        )
    part = law.lost_answer or LostAnswer(0.0)
    if fail is not None:
        part = replace(part, share=float(fail == "after"), tools=None)
    if checks:
        part = validated(LostAnswer, {**asdict(part), "checks": checks}, "checks")
    return replace(law, lost_answer=part if part.share > 0.0 else None)


def checked_goal(goal: object, check: object, ordered: object) -> tuple[Counts, bool]:
    """Return what counts, and whether it has to come in order: of effects an end state does not tell that.

    Raises:
        InvalidInputError: There is no such goal, or an order is asked for that it has not.
    """
    counts: object = goal
    if goal is None:
        counts = "answers" if check is None else "effects"
    if counts not in get_args(Counts):
        raise unknown_name("goal", counts, get_args(Counts))
    if ordered is not None and not isinstance(ordered, bool):
        raise InvalidInputError(f"ordered is {shown_value(ordered)}: expected True or False")
    if ordered and counts == "effects":
        why = "" if goal is not None else ", which is the goal where there is a check"
        raise InvalidInputError(f"ordered=True: effects have no order{why}: expected goal='answers'")
    return cast("Counts", counts), counts == "answers" if ordered is None else ordered


def checked_options(check: object, record: object, dependencies: object) -> dict[str, tuple[str, ...]]:
    """Refuse options of `inject` that are not of their kind, and return the dependencies.

    Raises:
        InvalidInputError: One of them is not.
    """
    if check is not None and (not callable(check) or kind_of(check) != "plain"):
        raise InvalidInputError(f"check is {shown_value(check)}: expected a function that answers at once")
    if record is not None and (not isinstance(record, str | Path) or not str(record).strip() or record == Path()):
        raise InvalidInputError(f"record is {shown_value(record)}: expected the path of a folder")
    if not isinstance(dependencies or {}, Mapping):
        raise InvalidInputError(f"dependencies is {shown_value(dependencies)}: expected a mapping of lists of names")
    needs = cast("Mapping[str, object]", dependencies or {})
    return {name: checked_names(f"dependencies of {name}", needed) for name, needed in needs.items()}


def check_functions(functions: object) -> None:
    """Refuse what can hold no functions, and is none."""
    if isinstance(functions, str | bytes) or not (callable(functions) or isinstance(functions, Iterable)):
        raise InvalidInputError(f"functions is {shown_value(functions)}: expected functions")


def checked_text(option: str, value: object, least: int = 0) -> str:
    """Return a text of at least so many characters, which files can hold; InvalidInputError if it is none."""
    if isinstance(value, str) and len(value) >= least:
        with contextlib.suppress(UnicodeEncodeError):
            value.encode()
            return str.__str__(value)  # of a member of an enumeration its value
    raise InvalidInputError(f"{option} is {shown_value(value)}: expected {'a' if least else 'any'} text")


def checked_names(option: str, value: object) -> tuple[str, ...]:
    """Return names as they were given, in a list or the like; InvalidInputError if they are none."""
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
        raise InvalidInputError(f"{option} is {shown_value(value)}: expected a list of names")
    names = tuple(value)
    for place, name in enumerate(names):
        if not isinstance(name, str):
            raise InvalidInputError(f"{option} holds {shown_value(name)}: expected names of functions")
        if name in names[:place]:
            raise InvalidInputError(f"{option} holds {name!r} twice: expected each name once")
    return names


# What an injected failure is raised as: a class that takes its text, what makes an exception of it, one for each code.
# "hang" and "hang:SECONDS" do not answer for so long, and then raise it; "cut" is a connection that is cut.
Raise: TypeAlias = type[Exception] | Callable[[InjectedFailure], Exception] | str
Raises: TypeAlias = Raise | Mapping[str, Raise]


_SAMPLE: Final = InjectedFailure("function", "TIMEOUT", "Operation timed out")


def raiser_of(raises: Raises, law: Law) -> Raiser:
    """Return what makes the exception that a failure is raised as; each way is tried once, before a call needs it.

    Raises:
        InvalidInputError: It makes none, or a code is none that the law can draw.
    """
    if not isinstance(raises, Mapping):
        return _tried(raises, "raises")
    check_codes(raises, codes_of(law), "raises")
    by_code = {code: _tried(each, _place_of(code)) for code, each in raises.items()}
    return lambda failure: by_code[failure.code](failure) if failure.code in by_code else failure


def manners_of(raises: Raises) -> Mapping[str | None, Manner]:
    """Return by code how failures come that hang or are cut; None stands for every other code.

    Raises:
        InvalidInputError: A text says neither.
    """
    said = raises if isinstance(raises, Mapping) else {None: raises}
    return {code: _manner(each, _place_of(code)) for code, each in said.items() if isinstance(each, str)}


def _place_of(code: str | None) -> str:
    return "raises" if code is None else f"raises[{code!r}]"


def _manner(text: str, where: str) -> Manner:
    return manner_of(text, where, "a class of exceptions, ")


def _tried(raises: Any, where: str) -> Raiser:
    make: Raiser
    if isinstance(raises, str):
        is_cut = _manner(raises, where).is_cut
        return lambda failure: ConnectionResetError(str(failure)) if is_cut else failure
    if isinstance(raises, type) and issubclass(raises, InjectedFailure):
        make = lambda failure: raises(failure.tool, failure.code, failure.message)  # noqa: E731
    elif isinstance(raises, type) and issubclass(raises, Exception):
        make = lambda failure: raises(str(failure))  # noqa: E731
    elif not callable(raises) or isinstance(raises, type):
        raise InvalidInputError(f"{where} is {shown_value(raises)}: expected a class of exceptions")
    else:
        make = raises
    name = getattr(raises, "__name__", type(raises).__name__)
    try:
        made = make(_SAMPLE)
        str(made)
    except Exception as error:
        raise InvalidInputError(
            f"{where} is {name}, which makes no exception of a text ({type(error).__name__}: "
            f"{one_line(words_of(error))}): expected a function that makes one of an InjectedFailure, such as "
            "lambda failure: json.JSONDecodeError(str(failure), '', 0)"
        ) from None
    if not isinstance(made, Exception):
        raise InvalidInputError(f"{where} is {name}, which made {shown_value(made)}: expected an exception")
    return make


def errors_within(error: BaseException) -> Iterator[BaseException]:
    """Yield an exception, what it was raised from, and what it groups."""
    waiting, seen = [error], set[int]()
    while waiting:
        each = waiting.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        yield each
        waiting += [other for other in (each.__cause__, each.__context__) if other is not None]
        waiting += each.exceptions if isinstance(each, BaseExceptionGroup) else ()


def words_of(error: BaseException) -> str:
    """Return what an exception says; one of somebody else's may be unable to."""
    try:
        return str(error).encode("utf-8", "replace").decode("utf-8")
    except Exception as broken:
        return f"(its words cannot be read: {type(broken).__name__})"
