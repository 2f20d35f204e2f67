"""`resilisim.inject`: anybody's functions under a law, so that their real calls fail in a reproducible way.

A call is drawn first; one that passes really runs. Three things can go wrong, and the record keeps them apart: an
injected failure, an exception of the function itself ("real"), and arguments that the function cannot take ("misuse").
A function has answered when what it promised is there (`promises`). Nothing is called again behind the user's back.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import math
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, ParamSpec, Self, TypeVar, cast, get_args, overload

from resilisim.bounds import Seed, Turns, checked
from resilisim.envs.session import EpisodeEnded, tells_the_end
from resilisim.errors import (
    MAX_TURNS,
    Fault,
    InvalidInputError,
    ResiliSimError,
    StoreError,
    fault_of,
    shown_value,
    told_error,
    unknown_name,
)
from resilisim.evaluation.episode.record import EpisodeRecord
from resilisim.injection.answering import CallUnderWay, Shared, is_marked
from resilisim.injection.call import InjectedCall, InjectedFailure, Outcome
from resilisim.injection.call_arguments import Binder, CallArguments
from resilisim.injection.folder import InjectionFolder
from resilisim.injection.inject_options import (
    Fail,
    InjectionSettings,
    Raises,
    check_functions,
    checked_goal,
    checked_names,
    checked_options,
    checked_text,
    errors_within,
    manners_of,
    raiser_of,
    with_lost_answers,
)
from resilisim.injection.injected_episode import CallsEnded, InjectedEpisode
from resilisim.injection.promises import async_generating, generated, kept, kind_of
from resilisim.seeding import EVALUATION_SALT
from resilisim.simulator import FINISH, Law, Message, load_law
from resilisim.simulator.draws import Forced
from resilisim.simulator.goal import Counts
from resilisim.simulator.messages import AGENT_ERROR, STOP
from resilisim.tool_library import Parameter, Tool, ToolLibrary

DEFAULT_CHANCE: Final = 0.8  # of every call, if no law is named
PARTS_CALLS: Final = 1000  # for which a law with parts is tabulated
P = ParamSpec("P")
R = TypeVar("R")
_TYPES: Final = {str: "string", int: "integer", float: "number", bool: "boolean", list: "array", dict: "object"}


class NamedFunctions(Sequence[Callable[..., Any]]):
    """Functions in order, by place or by name."""

    _wrapped: dict[str, Callable[..., Any]]

    @overload
    def __getitem__(self, place: int | str) -> Callable[..., Any]: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[Callable[..., Any]]: ...
    def __getitem__(self, place: int | str | slice) -> Any:
        """Return a function by its place or its name."""
        if isinstance(place, str):
            if place not in self._wrapped:
                raise unknown_name("function", place, self._wrapped)
            return self._wrapped[place]
        return list(self._wrapped.values())[place]

    def __len__(self) -> int:
        """Return the number of functions."""
        return len(self._wrapped)

    def __iter__(self) -> Iterator[Callable[..., Any]]:
        """Yield the functions in order."""
        return iter(tuple(self._wrapped.values()))


class Injected(NamedFunctions):
    """Functions under a law (`resilisim.inject`); the functions in order, by place or by name.

    Calls may come from any thread or task, and functions may call each other: each call is one of its own, and they
    count in the order in which they begin. Nothing waits for anything while a function runs.

    Attributes:
        settings: What was asked for.

    Example:
        >>> import resilisim
        >>> with resilisim.inject([len, str.upper], seed=1, required=["len", "upper"]) as tools:
        ...     for tool in tools:
        ...         for _ in range(5):
        ...             try:
        ...                 tool("abc")
        ...                 break
        ...             except resilisim.InjectedFailure:
        ...                 pass
        3
        'ABC'
        >>> tools.score["level"], round(tools.record()["optimum"], 3)
        ('full_success', 1.0)
    """

    def __init__(
        self,
        settings: InjectionSettings,
        functions: Mapping[str, Callable[..., Any]] | Iterable[Callable[..., Any]] = (),
        folder: InjectionFolder | None = None,
    ) -> None:
        self.settings = settings
        self._shared = Shared(settings)
        self._folder = folder  # where other episodes are written, too
        self._wrapped: dict[str, Callable[..., Any]] = {}
        self._described: dict[str, Tool] = {}
        self._episode: InjectedEpisode | None = None
        self._process = 0
        self._is_entered = self._is_over = False
        self._broke: str | None = None  # what ended the episode without a score
        named = functions.items() if isinstance(functions, Mapping) else ((None, each) for each in functions)
        for name, function in named:
            self._add(function, name)

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        """Put a function under the law, as a decorator; all must be there before the first call."""
        wrapped = self._add(function)
        return cast("Callable[P, R]", staticmethod(wrapped) if isinstance(function, staticmethod) else wrapped)

    def __enter__(self) -> Self:
        """Begin the episode; only once, as one object is one episode."""
        if self._is_entered or self._is_over:
            raise InvalidInputError(
                f"this episode {'is over' if self._is_over else 'is under way'}: expected a new resilisim.inject(...) "
                "for another one"
            )
        self._begun()
        self._is_entered = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        """End the episode. What was raised goes on, but for the news that the calls are used up.

        An exception that comes out of the program loses the episode; one that is not its doing, or that a person
        caused (Ctrl-C), leaves it without a score.
        """
        if self._is_forked():
            return False
        if error is None or (isinstance(error, SystemExit) and not error.code):
            self._end(FINISH)
        elif self._is_told_the_end(error):
            self._end(STOP)
            return True
        elif isinstance(error, KeyboardInterrupt | GeneratorExit):
            self.close()
        elif (fault := fault_of_program(error, self._shared.has_hung)) == "agent":
            self._end(AGENT_ERROR, error)
        else:
            self._break_off(error, fault)
        return False

    def finish(self) -> None:
        """End the episode; changes nothing if it is over.

        Raises:
            StoreError: The record cannot be written.
        """
        if not self._is_forked():
            self._end(FINISH)

    @property
    def calls(self) -> list[InjectedCall]:
        """The calls so far, in the order in which they ended."""
        return [] if self._episode is None else self._episode.calls

    @property
    def score(self) -> dict[str, Any] | None:
        """The score of the goal (level, and the criteria that held); None before the end, and without a goal."""
        return None if self._episode is None else self._episode.score

    def record(self) -> EpisodeRecord:
        """Return the record of the episode, of the same shape as those of `evaluate`.

        Raises:
            ResiliSimError: There is no goal, or the episode is not over.
        """
        record = None if self._episode is None else self._episode.record
        if record is None and self._broke is not None:
            raise ResiliSimError(f"there is no record: the episode broke off and has no score ({self._broke})")
        if record is None:
            raise ResiliSimError("there is no record: expected a goal (required=[...]) and the end of the `with` block")
        return record

    def summary(self) -> dict[str, Any]:
        """Return how often each function was called, and what became of it, with the luck of the draws.

        `luck` is how many calls more were let through than the law's probabilities say; `luck_spread` is its standard
        deviation. `unused_force` is what was forced of calls that were not made.
        """
        with self._shared.lock:
            calls = list(self.calls)
        return summary_of(calls, self._wrapped, self.settings.force)

    def close(self) -> None:
        """Release the folder; an episode that has not ended has no score, and there are no more calls."""
        self._is_over = True
        self._shared.ended.set()
        if self._episode is not None and not self._is_forked():
            with self._shared.lock:
                with contextlib.suppress(StoreError):  # what cannot be written any more
                    self._episode.give_up_calls()
                self._episode.close()

    def _add(self, function: Callable[..., Any], name: str | None = None) -> Callable[..., Any]:
        if not callable(function):
            raise InvalidInputError(f"{shown_value(function, 80)} is no function: expected callables")
        if self._episode is not None:
            raise InvalidInputError("functions were called already: expected all of them before the first call")
        tool = _described(function, name)
        if tool.name in self._wrapped:
            raise InvalidInputError(
                f"function {tool.name!r} was given twice: expected each name once; as a mapping of names and functions "
                "they have names of your own, {'other name': function}"
            )
        self._described[tool.name] = tool
        self._shared.schemas[tool.name] = getattr(function, "output_schema", None)
        self._wrapped[tool.name] = self._under_law(tool.name, function, _signature(function))
        return self._wrapped[tool.name]

    def _under_law(self, name: str, function: Callable[..., Any], signature: inspect.Signature | None) -> Any:
        """Return a function that is drawn first; it says of itself what the function says (coroutine, generator)."""
        kind = kind_of(function)
        binder = None if signature is None else Binder(signature)
        wrapped: Any
        if kind == "coroutine":

            async def wrapped(*args: Any, **kwargs: Any) -> Any:
                call = self._drawn(name, binder, args, kwargs)
                if not call.runs:
                    await call.due()
                with call:
                    result = await function(*args, **kwargs)
                    await call.due()
                return kept(result, call)

        elif kind == "generator":

            def wrapped(*args: Any, **kwargs: Any) -> Any:
                with self._drawn(name, binder, args, kwargs) as call:
                    items = function(*args, **kwargs)
                return (yield from generated(items, call))

        elif kind == "async generator":

            def begin(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, CallUnderWay]:
                call = self._drawn(name, binder, args, kwargs)

                def make() -> Any:
                    with call:
                        return function(*args, **kwargs)

                return make, call

            wrapped = async_generating(begin)
        else:

            def wrapped(*args: Any, **kwargs: Any) -> Any:
                with self._drawn(name, binder, args, kwargs) as call:
                    result = function(*args, **kwargs)
                return kept(result, call)

        wrapped = functools.wraps(function)(wrapped)
        wrapped.__name__ = name
        return wrapped

    def _drawn(self, name: str, binder: Binder | None, args: tuple[Any, ...], kwargs: dict[str, Any]) -> CallUnderWay:
        """Draw a call; raises what the caller has to see if it will not be made."""
        episode = self._begun()
        try:
            values: Any = (args, kwargs) if binder is None else binder.bind(args, kwargs)
        except TypeError as error:
            with self._shared.lock:
                self._check_open(episode)
                episode.misused(name, CallArguments.of(args, kwargs), type(error).__name__, str(error))
            raise
        arguments = CallArguments(args, kwargs, values)
        with self._shared.lock:
            self._check_open(episode)
            call = CallUnderWay(self._shared, episode, name, arguments, episode.draw(name, arguments))
            if call.runs:
                episode.open_call(name, arguments, call.drawn)
            return call

    def _check_open(self, episode: InjectedEpisode) -> None:
        if self._is_over:
            raise CallsEnded(episode, "the episode is over: expected a new resilisim.inject(...) for further calls")

    def _begun(self) -> InjectedEpisode:
        if self._episode is not None and self._process == os.getpid():
            return self._episode
        if self._is_forked():
            raise InvalidInputError(
                "this process was forked off while an episode was under way: expected each process to call "
                "resilisim.inject itself, with a seed and a folder of its own"
            )
        with self._shared.lock:
            if self._episode is None:
                if not self._wrapped:
                    raise InvalidInputError("there is no function under the law: expected at least one")
                self._process = os.getpid()  # first, as other threads look at it where there is an episode
                self._episode = InjectedEpisode(self.settings, self.library, self._folder)
            return self._episode

    @property
    def library(self) -> ToolLibrary:
        """The functions as tools, each with what it depends on."""
        return ToolLibrary(self.settings.with_dependencies(self._described))

    def _is_forked(self) -> bool:
        """Whether another process began the episode, which alone goes on with it."""
        return self._episode is not None and self._process != os.getpid()

    def _is_told_the_end(self, error: BaseException) -> bool:
        """Return whether what was raised comes of nothing but the end of this episode."""
        if not tells_the_end(error):
            return False
        return any(isinstance(each, CallsEnded) and each.episode is self._episode for each in errors_within(error))

    def _end(self, message: Message, error: BaseException | None = None) -> None:
        """End the episode; what the program has raised is put down to it, and the check is asked if it has not."""
        with self._shared.lock:
            if self._episode is None or self._is_over:
                return
            self._is_over = True  # from now on there are no calls, so the check may take its time
            self._shared.ended.set()
            episode, check = self._episode, self.settings.check
            with contextlib.suppress(StoreError):  # `end` says it again
                for call in list(self._shared.promised):
                    call.look()
                episode.give_up_calls()
        veto, words, raised = None, None, None
        if error is not None:
            veto, words = "agent_error", told_error(error)
        elif check is not None:
            try:
                veto = None if _answered(check) else "wrong_end_state"
            except (Exception, EpisodeEnded) as refusal:
                veto, words = "wrong_end_state", told_error(refusal)
                raised = None if isinstance(refusal, AssertionError) else refusal
            except BaseException:
                episode.close()
                raise
        with self._shared.lock:
            episode.end(message, veto, words)
        if raised is not None:
            raise raised

    def _break_off(self, error: BaseException, fault: Fault) -> None:
        """Leave the episode without a score, since something other than the program broke, or may have."""
        with self._shared.lock:
            if self._episode is None or self._is_over:
                return
            self._is_over = True
            self._shared.ended.set()
            self._broke = told_error(error)
            self._episode.break_off(type(error).__name__, self._broke, fault)


def fault_of_program(error: BaseException, has_hung: bool = False) -> Fault:
    """Say whose fault an exception is that came out of a program, as `fault_of` does, but for what calls have raised.

    That a program has to cope with: an injected failure that looks like a network, or what a function raised by itself.
    So is running out of patience, if a call was made to hang (`has_hung`). A server of tools that is gone is not there
    to cope with.
    """
    fault = fault_of(error)
    is_of_call = fault != "infrastructure" and any(
        is_marked(each) or (has_hung and isinstance(each, TimeoutError)) for each in errors_within(error)
    )
    return "agent" if is_of_call else fault


def _answered(check: Callable[[], object]) -> bool:
    answer = check()
    if inspect.isawaitable(answer):
        if inspect.iscoroutine(answer):
            answer.close()
        raise InvalidInputError("check has returned something to be awaited: expected a function that answers at once")
    return bool(answer)


def inject(
    functions: Iterable[Callable[..., Any]] | Mapping[str, Callable[..., Any]] | Callable[..., Any] = (),
    *,
    law: str | float | Path | Law | Mapping[str, Any] | None = None,
    seed: int = 0,
    record: str | Path | None = None,
    required: Sequence[str] = (),
    goal: Counts | None = None,
    ordered: bool | None = None,
    turns: int | None = None,
    check: Callable[[], object] | None = None,
    fail: Fail | None = None,
    checks: Mapping[str, str] | None = None,
    once: Sequence[str] = (),
    raises: Raises = InjectedFailure,
    dependencies: Mapping[str, Sequence[str]] | None = None,
    name: str = "program",
    salt: str = EVALUATION_SALT,
    force: Sequence[str] = (),
    wait: bool = False,
) -> Injected:
    """Put functions under a law: each call is drawn first, and really made if it passes.

    Sync and async functions keep their signature, and their exceptions. The same seed gives the same draws: call number
    k of a function passes or fails alike in every program that has made the same calls before.

    Args:
        functions: The functions, or a mapping that names them; more can be added by using what is returned as a
            decorator. Their names are those that they have in the law, the goal and the record.
        law: What `load_law` takes, among it a number: the chance of every call, whatever came before; 0.8 if omitted.
            It may have parts: each call is then a message.
            Without a goal calls do not end: after 10,000, or 1,000 under a law with parts, the law begins anew.
        seed: Episode seed, 0 to 2^63 - 1.
        record: Folder of the record: each call goes to `calls.jsonl` before it is made, and again when it has ended,
            each episode that ended to `episodes.jsonl`. The same arguments add to it; a seed whose episode has ended
            there is refused. None keeps nothing.
        required: Names of the functions of which the goal is. With a goal there are V*, regret, luck and a score.
        goal: Whether their "answers" are the goal, or their "effects": that each has run with success, whether or not
            its answer came through. Effects if there is a `check`, which then alone decides the outcome.
        ordered: Whether their first answers have to come in that order: they have if omitted. Effects have none.
        turns: Calls that there are for the goal, 10 if omitted; one more raises `EpisodeEnded`. Without a goal there is
            no limit.
        check: Called at the end of the episode: whether the state of things is as it should be. AssertionError says no;
            what else it raises says no, too, and goes on. It is not asked if the program has raised something.
        fail: Whether an injected failure comes "before" the function runs, or "after" it ran, when its answer is lost:
            short for a law whose part `lost_answer` has share 0 or 1. If omitted the law says it. What refuses a call,
            such as a rate limit or an outage, comes before it in any case.
        checks: For functions the one that tells how often they have run, {"charge_card": "list_charges"}: where answers
            are lost, V* is that of a program that may look there first.
        once: Names of functions that must not run twice, such as one that charges a card.
        raises: What an injected failure is raised as: an exception class that takes a text, a function that makes an
            exception from an `InjectedFailure`, or one of both for each code ({"TIMEOUT": TimeoutError}). "hang" does
            not answer until the caller gives up, but for a minute at most ("hang:SECONDS"); "cut" is a connection that
            is cut (`ConnectionResetError`).
        dependencies: For each function the names of those that it depends on; unmet ones lower its chance.
        name: Who calls, for the record.
        salt: Any text; a different one gives different draws.
        force: What calls bring whatever is drawn, such as "charge#2=TIMEOUT" or "charge#1=ok"; the record marks them.
        wait: Whether calls really take the time that a law with latency says; else it is only counted.

    Raises:
        InvalidInputError: An argument is unusable.
        StoreError: The folder holds another program's calls.

    Example:
        >>> import resilisim
        >>> def charge(amount: int) -> str:
        ...     return f"charged {amount}"
        >>> tools = resilisim.inject([charge], law="benchmark", seed=1)
        >>> for _ in range(4):
        ...     try:
        ...         print(tools["charge"](5))
        ...     except resilisim.InjectedFailure as failure:
        ...         print(failure.code)
        charged 5
        charged 5
        charged 5
        OPERATION_FAILED
    """
    needed, only_once = checked_names("required", required), checked_names("once", once)
    if check is not None and not needed:
        raise InvalidInputError("a check of the end state needs a goal: expected required=[...]")
    if turns is not None and not needed:
        raise InvalidInputError("turns limit the calls towards a goal: expected required=[...]")
    if only_once and not needed:
        raise InvalidInputError("once says what spoils a goal: expected required=[...]")
    check_functions(functions)
    needs = checked_options(check, record, dependencies)
    counts, in_order = checked_goal(goal, check, ordered)
    failure_model = with_lost_answers(load_law(DEFAULT_CHANCE if law is None else law), fail, checks)
    if failure_model.latency is not None and failure_model.latency.budget is not None and not needed:
        raise InvalidInputError("a budget of time ends an episode, which needs a goal: expected required=[...]")
    allowed = 10 if needed else PARTS_CALLS if failure_model.parts else MAX_TURNS
    settings = InjectionSettings(
        law=failure_model,
        seed=checked(Seed, "seed", seed),
        directory=None if record is None else Path(record),
        required=needed,
        counts=counts,
        ordered=in_order,
        turns=allowed if turns is None else checked(Turns, "turns", turns),
        check=check,
        once=only_once,
        raises=raiser_of(raises, failure_model),
        dependencies=needs,
        name=checked_text("name", name, 1),
        salt=checked_text("salt", salt),
        force=checked_names("force", force),
        wait=wait,
        manners=manners_of(raises),
    )
    return Injected(settings, [functions] if callable(functions) else functions)


def unused_force(calls: Iterable[InjectedCall], force: Iterable[str]) -> list[str]:
    """Return what was forced of other calls than some."""
    return Forced.of(force).unused({(call.tool, call.attempt) for call in calls if call.attempt is not None})


def summary_of(calls: Sequence[InjectedCall], names: Iterable[str], force: Iterable[str]) -> dict[str, Any]:
    """Return what became of calls of functions with these names (`Injected.summary`)."""
    drawn = [call.probability for call in calls if call.probability is not None and not call.forced]
    by_tool = {name: Counter(call.outcome for call in calls if call.tool == name) for name in names}
    return {
        "calls": len(calls),
        "functions": {
            name: {outcome: outcomes[outcome] for outcome in get_args(Outcome)} for name, outcomes in by_tool.items()
        },
        "luck": sum(call.passed for call in calls if not call.forced) - sum(drawn),
        "luck_spread": math.sqrt(sum(chance * (1 - chance) for chance in drawn)),
        "unused_force": unused_force(calls, force),
    }


def _signature(function: Callable[..., Any]) -> inspect.Signature | None:
    try:
        return inspect.signature(function)
    except (ValueError, TypeError):  # some callables written in C have none
        return None


def _described(function: Callable[..., Any], own_name: object = None) -> Tool:
    """Return a function as a tool: its name, the first line of its docstring, its parameters."""
    if own_name is not None and not (isinstance(own_name, str) and own_name):
        raise InvalidInputError(f"{shown_value(own_name)} names a function: expected a text")
    inner: Any = function
    while isinstance(inner, functools.partial):
        inner = inner.func
    name = str(own_name or getattr(inner, "__name__", type(inner).__name__))
    doc = (inspect.getdoc(inner) or "").strip().splitlines()
    signature = _signature(function)
    parameters = []
    for each in () if signature is None else signature.parameters.values():
        if each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD):
            annotation = each.annotation if isinstance(each.annotation, type) else None
            kind = "object" if annotation is None else _TYPES.get(annotation, "object")
            parameters.append(Parameter(each.name, kind, required=each.default is each.empty))
    return Tool(name, doc[0] if doc else f"The function {name}.", tuple(parameters))
