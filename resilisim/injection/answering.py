"""A call of a function that is under way: what it has waited for, what it answers, and when that is noted."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Final, Self

from resilisim.injection.call import DrawnCall
from resilisim.injection.call_arguments import CallArguments
from resilisim.injection.inject_options import InjectionSettings, words_of
from resilisim.injection.injected_episode import InjectedEpisode
from resilisim.injection.promises import note
from resilisim.injection.wrong_answers import WrongAnswers


@dataclass(slots=True)
class Shared:
    """What the calls of an episode have in common.

    Attributes:
        settings: What was asked for.
        answers: What makes answers wrong; None under a law by which they are right.
        schemas: By name of a function the JSON Schema of what it answers, if it has one.
        lock: Held while something is drawn or written; never while a function runs.
        ended: Set when the episode is over: whoever hangs need not hang on.
        promised: Calls that have returned a future and not answered yet.
        has_hung: Whether a call was made to hang.
    """

    settings: InjectionSettings
    answers: WrongAnswers | None = field(init=False)
    schemas: dict[str, Any] = field(default_factory=dict)
    lock: threading.RLock = field(default_factory=threading.RLock)
    ended: threading.Event = field(default_factory=threading.Event)
    promised: set[CallUnderWay] = field(default_factory=set)
    has_hung: bool = False

    def __post_init__(self) -> None:
        """Make what the law needs."""
        corrupt = self.settings.law.corrupt
        self.answers = None if corrupt is None else WrongAnswers(corrupt.kinds)


class CallUnderWay:
    """A call that was drawn; its `with` block is the function's run, up to what it returns."""

    def __init__(
        self,
        shared: Shared,
        episode: InjectedEpisode,
        name: str,
        arguments: CallArguments,
        drawn: DrawnCall,
    ) -> None:
        self.is_lost = drawn.failure is not None
        settings = shared.settings
        self._hangs = 0.0 if drawn.failure is None else settings.manner(drawn.failure[0]).hang_seconds
        shared.has_hung |= self._hangs > 0.0
        self._seconds = self._hangs or ((drawn.duration or 0.0) if settings.wait else 0.0)
        self.is_altered = shared.answers is not None or self._seconds > 0.0
        self._corruption: str | None = None
        self._shared = shared
        self._episode = episode
        self._name = name
        self._arguments = arguments
        self.drawn = drawn
        self.runs = drawn.runs
        self._since = time.perf_counter()
        self._is_settled = False
        self._promise: asyncio.Future[Any] | None = None

    def __enter__(self) -> Self:
        """Begin to run, or raise the failure that comes before that."""
        if not self.runs:
            self.pause()
            self.answered()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Take note of what the function has raised."""
        if error is not None:
            self.failed(error)

    def remaining(self) -> float:
        """Return for how many seconds the caller has to wait yet, by the law or because the call hangs."""
        return max(self._since + self._seconds - time.perf_counter(), 0.0) if self._seconds else 0.0

    def pause(self) -> None:
        """Wait for so long; who hangs is released when the episode is over."""
        if not self._seconds:
            return
        seconds = self.remaining()
        if seconds and self._hangs:
            self._shared.ended.wait(seconds)
        elif seconds:
            time.sleep(seconds)

    async def due(self) -> None:
        """Wait for so long, while other tasks go on; a caller that gives up a drawn failure has met it."""
        seconds = self.remaining()
        if not seconds:
            return
        try:
            await asyncio.sleep(seconds)
        except BaseException as error:
            if self.is_lost:
                marked(error)
                self._settle(None)
            raise

    def answer(self, result: Any) -> Any:
        """Take note of an answer, and return what the caller gets; raises that if the answer is lost."""
        if self._shared.answers is not None and not self.is_lost:
            result = self.altered(result)
        self.answered()
        return result

    def altered(self, part: Any) -> Any:
        """Return what the caller gets of an answer, or of the first part of one."""
        answers = self._shared.answers
        if answers is None or self.is_lost:
            return part
        if not self.drawn.is_corrupt:
            answers.keep(self._name, part)
            return part
        schema = self._shared.schemas[self._name]
        wrong, kind = answers.wrong(self._name, part, self.drawn.bits, schema, self.drawn.corruption)
        self._corruption = kind or "none"
        return wrong

    def answered(self) -> None:
        """Take note that the answer is there, or would be; raises the injected failure if there is one."""
        self._settle(None)
        if self.drawn.failure is not None:
            raise marked(self._shared.settings.exception(self._name, *self.drawn.failure))

    def promises(self, promise: asyncio.Future[Any]) -> None:
        """Take note that the function has returned a future, which may be done before its loop says so."""
        self._promise = promise
        self._shared.promised.add(self)

    def look(self) -> None:
        """Take note of what was promised, if that is done."""
        if self._promise is not None and self._promise.done():
            note(self._promise, self)

    def failed(self, error: BaseException) -> None:
        """Take note that the function has raised something."""
        if not self._is_settled:
            marked(error)
        self._settle((type(error).__name__, words_of(error)))

    def _settle(self, failure: tuple[str, str] | None) -> None:
        seconds = time.perf_counter() - self._since if self.runs else 0.0
        with self._shared.lock:
            if not self._is_settled:
                self._is_settled = True
                self._shared.promised.discard(self)
                self._episode.settle(
                    self._name, self._arguments, self.drawn, failure, self.runs, seconds, corruption=self._corruption
                )


_MARK: Final = "_resilisim_call"  # of exceptions that were a call's answer: a program has to cope with them


def marked(error: BaseException) -> BaseException:
    """Return an exception, marked as one that a call has answered with."""
    with contextlib.suppress(Exception):  # some take no attributes
        setattr(error, _MARK, True)
    return error


def is_marked(error: BaseException) -> bool:
    """Tell whether an exception was a call's answer."""
    return hasattr(error, _MARK)
