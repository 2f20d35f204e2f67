"""What `resilisim.inject` is asked for, checked before anything is called, and what it raises."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias, cast, get_args

from resilisim.envs.feedback import codes_of
from resilisim.envs.ways_of_failing import ANSWERED, Manner, check_codes, manner_of
from resilisim.errors import InvalidInputError, one_line, shown_value, unknown_name
from resilisim.injection.call import InjectedFailure, Raiser
from resilisim.injection.promises import kind_of
from resilisim.inputs import validated
from resilisim.simulator import EndRules, Law, LostAnswer
from resilisim.simulator.draws import Draws
from resilisim.simulator.goal import Counts
from resilisim.tool_library import ErrorSpec, Tool, ToolLibrary
from resilisim.tool_library.tool import standard_error_specs

PROMPT_TYPE: Final = "own program"

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


@dataclass(frozen=True, slots=True)
class InjectionSettings:
    """What `inject` was asked for."""

    law: Law
    seed: int
    directory: Path | None
    required: tuple[str, ...]
    counts: Counts
    ordered: bool
    turns: int
    check: Callable[[], object] | None
    once: tuple[str, ...]
    raises: Raiser
    dependencies: Mapping[str, Sequence[str]] = field(hash=False)
    name: str
    salt: str
    force: tuple[str, ...] = ()
    wait: bool = False  # whether calls really take the time that the law says
    manners: Mapping[str | None, Manner] = field(default_factory=dict, hash=False)  # of failures, by code
    draws: Draws | None = field(default=None, hash=False)  # where they come from, if not from the key
    sent: tuple[str | None, ...] = ()  # what a program that is explored has to send again, as records hold it

    def with_dependencies(self, tools: Mapping[str, Tool]) -> list[Tool]:
        """Return the tools, each with what it depends on, and with the errors that the law draws if it says which."""
        depended_on = itertools.chain(*self.dependencies.values())
        lost = self.law.lost_answer
        checked = itertools.chain(*(lost.checks.items() if lost is not None else ()))
        for name in (*self.dependencies, *self.required, *self.once, *depended_on, *checked):
            if name not in tools:
                raise unknown_name("function", name, tools)
        known, codes = standard_error_specs(), self.law.errors
        errors = tuple(known.get(code) or ErrorSpec(code, code, f"The call failed with {code}") for code in codes)
        return [
            replace(tool, dependencies=tuple(self.dependencies.get(name, ())), errors=errors or tool.errors)
            for name, tool in tools.items()
        ]

    @property
    def check_decides(self) -> bool:
        """Whether the check of the end state alone says how an episode has come out."""
        return self.check is not None and self.counts == "effects"

    @property
    def rules(self) -> EndRules:
        """What ends an episode."""
        return EndRules(self.turns, max_consecutive_failures=0, loop_length=0)

    @property
    def told(self) -> dict[str, Any]:
        """What records say of the goal."""
        return {
            "required": list(self.required),
            "counts": self.counts,
            "ordered": self.ordered,
            "once": list(self.once),
            "check": self.check is not None,
        }

    def arguments(self, library: ToolLibrary) -> dict[str, Any]:
        """Return what the manifest of a folder says of episodes with these tools."""
        return {
            "inject": {
                "functions": [tool.to_mapping() for tool in library],
                **self.told,
                **({"force": list(self.force)} if self.force else {}),
            },
            "environment": {
                **(self.law.to_mapping() if self.law.is_plain else {"law": self.law.to_mapping()}),
                **self.rules.to_mapping(),
                "salt": self.salt,
            },
            "library": library.content_hash,
            "policies": [self.name],
            "policy_names": [self.name],
            "prompts": [PROMPT_TYPE],
        }  # fmt: skip

    def manner(self, code: str) -> Manner:
        """Return how a failure comes to the caller."""
        return self.manners.get(code) or self.manners.get(None) or ANSWERED

    def exception(self, tool: str, code: str, words: str) -> BaseException:
        """Return the exception that an injected failure is raised as."""
        return self.raises(InjectedFailure(tool, code, words))
