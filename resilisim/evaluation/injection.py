"""`resilisim.inject`: anybody's functions under a law, so that their real calls fail in a reproducible way.

A call is drawn first; one that passes really runs. Three things can go wrong, and the record keeps them apart: an
injected failure, an exception of the function itself ("real"), and arguments that the function cannot take ("misuse").
Nothing is ever called again behind the user's back.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, ParamSpec, Self, TypeVar, cast, get_args, overload

from resilisim.envs.session import EpisodeEnded
from resilisim.errors import MAX_TURNS, InvalidInputError, ResiliSimError, check_integer, unknown_name
from resilisim.evaluation.call_arguments import CallArguments
from resilisim.evaluation.episode.record import EpisodeRecord
from resilisim.evaluation.injected_episode import (
    InjectedCall,
    InjectedEpisode,
    InjectedFailure,
    InjectionSettings,
    Outcome,
    Raises,
)
from resilisim.seeding import EVALUATION_SALT, MAX_SEED
from resilisim.simulator import FINISH, STOP, BenchmarkLaw, Message, load_law
from resilisim.simulator.exact.goal import Fail
from resilisim.simulator.failure_model import Law
from resilisim.tool_library import Parameter, Tool, ToolLibrary

PARTS_CALLS: Final = 1000  # for which a law with parts is tabulated
P = ParamSpec("P")
R = TypeVar("R")
_TYPES: Final = {str: "string", int: "integer", float: "number", bool: "boolean", list: "array", dict: "object"}


class Injected(Sequence[Callable[..., Any]]):
    """Functions under a law (`resilisim.inject`); the functions in order, by place or by name.

    Calls may come from any thread or task. With a goal they are made one after the other, because everything about it
    depends on their order; without one they overlap as the program makes them.

    Attributes:
        calls: The calls so far, in the order in which they ended.
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
        'ABC'
        >>> tools.score["level"], round(tools.record()["optimum"], 3)
        ('full_success', 1.0)
    """

    def __init__(self, settings: InjectionSettings, functions: Iterable[Callable[..., Any]] = ()) -> None:
        self.calls: list[InjectedCall] = []
        self.settings = settings
        self._wrapped: dict[str, Callable[..., Any]] = {}
        self._described: dict[str, Tool] = {}
        self._one_at_a_time = threading.Lock()
        self._lock = threading.RLock()
        self._episode: InjectedEpisode | None = None
        for function in functions:
            self._add(function)

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        """Put a function under the law, as a decorator; all must be there before the first call."""
        return cast("Callable[P, R]", self._add(function))

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

    def __enter__(self) -> Self:
        """Begin the episode."""
        self._begun()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        """End the episode, as stopped if something is raised; that goes on, but for the news that calls are used up."""
        self._end(STOP if error is not None else FINISH)
        return isinstance(error, EpisodeEnded)

    def finish(self) -> None:
        """End the episode; changes nothing if it is over."""
        self._end(FINISH)

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
        if record is None:
            raise ResiliSimError("there is no record: expected a goal (required=[...]) and the end of the `with` block")
        return record

    def summary(self) -> dict[str, Any]:
        """Return how often each function was called, and what became of it, with the luck of the draws.

        `luck` is how many calls more were let through than the law's probabilities say; `luck_spread` is its standard
        deviation.
        """
        with self._lock:
            calls = list(self.calls)
        return summary_of(calls, self._wrapped)

    def close(self) -> None:
        """Release the folder; an episode that has not ended has no score."""
        if self._episode is not None:
            self._episode.close()

    def _add(self, function: Callable[..., Any]) -> Callable[..., Any]:
        if not callable(function):
            raise InvalidInputError(f"{function!r:.80} is no function: expected callables")
        if self._episode is not None:
            raise InvalidInputError("functions were called already: expected all of them before the first call")
        tool = _described(function)
        if tool.name in self._wrapped:
            raise InvalidInputError(f"function {tool.name!r} was given twice: expected each name once")
        signature = _signature(function)

        if inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__):

            @functools.wraps(function)
            async def wrapped(*args: Any, **kwargs: Any) -> Any:
                return await self._acall(tool.name, function, signature, args, kwargs)

        else:

            @functools.wraps(function)
            def wrapped(*args: Any, **kwargs: Any) -> Any:
                return self._call(tool.name, function, signature, args, kwargs)

        self._described[tool.name] = tool
        self._wrapped[tool.name] = wrapped
        return wrapped

    def _call(self, name: str, function: Any, signature: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        episode = self._begun()
        with self._one_at_a_time if episode.goal is not None else contextlib.nullcontext():
            with self._making(episode, name, signature, args, kwargs) as making:
                if making.runs:
                    making.answer(function(*args, **kwargs))
            return making.result

    async def _acall(
        self, name: str, function: Any, signature: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        episode = self._begun()
        while episode.goal is not None and not self._one_at_a_time.acquire(blocking=False):
            await asyncio.sleep(0.001)  # a lock that threads share; waiting for it must not hold up the loop
        try:
            with self._making(episode, name, signature, args, kwargs) as making:
                if making.runs:
                    making.answer(await function(*args, **kwargs))
            return making.result
        finally:
            if episode.goal is not None:
                self._one_at_a_time.release()

    @contextlib.contextmanager
    def _making(
        self, episode: InjectedEpisode, name: str, signature: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Iterator[_Making]:
        """Draw a call, let it be made, and write down what became of it; raises what the caller has to see."""
        shown = CallArguments.of(args, kwargs, signature)
        try:
            if signature is not None:
                signature.bind(*args, **kwargs)
        except TypeError as error:
            with self._lock:
                self._note(episode.misused(name, shown, type(error).__name__, str(error)))
            raise
        with self._lock:
            drawn = episode.draw(name, shown)
        making = _Making(drawn.failure is None or self.settings.fail == "after")
        began = time.perf_counter()
        raised: BaseException | None = None
        try:
            yield making
        except BaseException as error:
            raised = error
        seconds = time.perf_counter() - began if making.runs else 0.0
        failure = None if raised is None else (type(raised).__name__, str(raised))
        with self._lock:
            self._note(episode.settle(name, shown, drawn, failure, making.runs, seconds))
        if raised is not None:
            raise raised
        if drawn.failure is not None:
            raise self.settings.exception(name, *drawn.failure)

    def _note(self, call: InjectedCall) -> None:
        self.calls.append(call)

    def _begun(self) -> InjectedEpisode:
        with self._lock:
            if self._episode is None:
                if not self._wrapped:
                    raise InvalidInputError("there is no function under the law: expected at least one")
                tools = self.settings.with_dependencies(self._described)
                self._episode = InjectedEpisode(self.settings, ToolLibrary(tools))
            return self._episode

    def _end(self, message: Message) -> None:
        with self._lock:
            if self._episode is not None:
                self._episode.end(message)


@dataclass(slots=True)
class _Making:
    """A call that is being made."""

    runs: bool
    result: Any = None

    def answer(self, result: Any) -> None:
        """Keep what the function returned."""
        self.result = result


def inject(
    functions: Iterable[Callable[..., Any]] | Callable[..., Any] = (),
    *,
    law: str | Path | Law | Mapping[str, Any] | None = None,
    seed: int = 0,
    record: str | Path | None = None,
    required: Sequence[str] = (),
    ordered: bool = True,
    turns: int | None = None,
    check: Callable[[], object] | None = None,
    fail: Fail = "before",
    once: Sequence[str] = (),
    raises: Raises = InjectedFailure,
    dependencies: Mapping[str, Sequence[str]] | None = None,
    name: str = "program",
    salt: str = EVALUATION_SALT,
) -> Injected:
    """Put functions under a law: each call is drawn first, and really made if it passes.

    Sync and async functions keep their signature, and their exceptions. The same seed gives the same draws: call number
    k of a function passes or fails alike in every program that has made the same calls before.

    Args:
        functions: The functions; more can be added by using what is returned as a decorator.
        law: What `load_law` takes; the benchmark's law if omitted. Without a goal it may have parts, other than corrupt
            and latency: each call is then a message, and after 1,000 calls the law begins anew.
        seed: Episode seed, 0 to 2^63 - 1.
        record: Folder of the record: each call goes to `calls.jsonl` at once, each episode that ended to
            `episodes.jsonl`; the same arguments add to it. None keeps nothing.
        required: Names of the functions whose answers are the goal. With a goal there are V*, regret, luck and a score.
        ordered: Whether their first answers have to come in that order.
        turns: Calls that there are for the goal, 10 if omitted; one more raises `EpisodeEnded`. Without a goal there is
            no limit.
        check: Called at the end of the episode: whether the state of things is as it should be.
        fail: Whether an injected failure comes "before" the function runs, or "after" it ran, when its answer is lost.
        once: Names of functions that must not run twice, such as one that charges a card.
        raises: Exception that an injected failure is raised as, or one for each code ({"TIMEOUT": TimeoutError}).
        dependencies: For each function the names of those that it depends on; unmet ones lower its chance.
        name: Who calls, for the record.
        salt: Any text; another one gives other draws.

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
    if fail not in get_args(Fail):
        raise unknown_name("fail", fail, get_args(Fail))
    if isinstance(required, str) or isinstance(once, str):
        raise InvalidInputError(f"required is {required!r:.60}, once is {once!r:.60}: expected lists of names")
    if check is not None and not required:
        raise InvalidInputError("a check of the end state needs a goal: expected required=[...]")
    if turns is not None and not required:
        raise InvalidInputError("turns limit the calls towards a goal: expected required=[...]")
    chosen = BenchmarkLaw() if law is None else load_law(law)
    if isinstance(chosen, Law):
        _check_parts(chosen, bool(required))
    allowed = 10 if required else MAX_TURNS if isinstance(chosen, BenchmarkLaw) or not chosen.parts else PARTS_CALLS
    settings = InjectionSettings(
        law=chosen,
        seed=check_integer("seed", seed, 0, MAX_SEED),
        directory=None if record is None else Path(record),
        required=tuple(required),
        ordered=ordered,
        turns=allowed if turns is None else check_integer("turns", turns, 1, MAX_TURNS),
        check=check,
        fail=fail,
        once=tuple(once),
        raises=raises,
        dependencies=dict(dependencies or {}),
        name=name,
        salt=salt,
    )
    return Injected(settings, [functions] if callable(functions) else functions)


def _check_parts(law: Law, has_goal: bool) -> None:
    """Refuse what a law says of a program that can be neither done to it nor judged."""
    for part in ("corrupt", "latency"):
        if part in law.parts:
            what = "what functions return" if part == "corrupt" else "how long functions take"
            raise InvalidInputError(f"law {law.name!r} has the part {part}, but {what} is theirs: expected one without")
    if has_goal and (law.parts or law.equivalents):
        parts = ", ".join(law.parts) or "equivalents"
        raise InvalidInputError(
            f"law {law.name!r} has parts ({parts}), and V* of a goal (required=[...]) is known without them alone: "
            "expected no goal, or a law without parts"
        )


def summary_of(calls: Sequence[InjectedCall], names: Iterable[str]) -> dict[str, Any]:
    """Return what became of calls of functions with these names (`Injected.summary`)."""
    drawn = [call.probability for call in calls if call.probability is not None]
    by_tool = {name: Counter(call.outcome for call in calls if call.tool == name) for name in names}
    return {
        "calls": len(calls),
        "functions": {
            name: {outcome: found[outcome] for outcome in get_args(Outcome)} for name, found in by_tool.items()
        },
        "luck": sum(call.passed for call in calls) - sum(drawn),
        "luck_spread": math.sqrt(sum(chance * (1 - chance) for chance in drawn)),
    }


def _signature(function: Callable[..., Any]) -> inspect.Signature | None:
    try:
        return inspect.signature(function)
    except (ValueError, TypeError):  # some callables written in C have none
        return None


def _described(function: Callable[..., Any]) -> Tool:
    """Return a function as a tool: its name, the first line of its docstring, its parameters."""
    name = getattr(function, "__name__", type(function).__name__)
    doc = (inspect.getdoc(function) or "").strip().splitlines()
    signature = _signature(function)
    parameters = []
    for each in () if signature is None else signature.parameters.values():
        if each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD):
            kind = _TYPES.get(each.annotation, "object")
            parameters.append(Parameter(each.name, kind, required=each.default is each.empty))
    return Tool(name, doc[0] if doc else f"The function {name}.", tuple(parameters))
