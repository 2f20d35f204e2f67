"""What a process is doing that may take long, such as loading and solving, for whoever tells of it."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Final

LONG_SECONDS: Final = 0.5  # what has lasted for less is not told
_MOST_TOLD: Final = 2

_about: ContextVar[str] = ContextVar("about", default="")


class AtWork:
    """The phases that a process and its workers are in; any thread may look.

    Args:
        clock: Gives seconds.

    Attributes:
        hear: Told of the phase that this process is in whenever that changes, in the thread that does the work; what a
            worker process hands on. Nobody listens if None.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._phases: dict[object, tuple[str, float]] = {}  # of this process, each with when it began
        self._workers: dict[object, tuple[str, float]] = {}
        self.hear: Callable[[str], None] | None = None

    @contextlib.contextmanager
    def on(self, what: str, *, in_general: bool = False) -> Iterator[None]:
        """Be in a phase, on what `about` says, unless it has nothing to do with that."""
        about = "" if in_general else _about.get()
        text, key = f"{what} {about}" if about else what, object()
        with self._lock:
            self._phases[key] = text, self._clock()
        self._hand_on()
        try:
            yield
        finally:
            with self._lock:
                del self._phases[key]
            self._hand_on()

    @contextlib.contextmanager
    def about(self, subject: str) -> Iterator[None]:
        """Say what phases are about that are met inside, in this thread or task."""
        token = _about.set(subject)
        try:
            yield
        finally:
            _about.reset(token)

    def enter(self, worker: object, phase: str) -> None:
        """Note the phase that a worker process is in; an empty text if it is in none."""
        with self._lock:
            self._workers.pop(worker, None)
            if phase:
                self._workers[worker] = phase, self._clock()

    def told(self) -> str:
        """Return what has been going on for a while, the innermost phase of each process; empty if nothing is."""
        with self._lock:
            own, workers = list(self._phases.values()), list(self._workers.values())
        now = self._clock() if own or workers else 0.0
        innermost = [text for text, begun in own if now - begun >= LONG_SECONDS][-1:]
        texts = list(dict.fromkeys([*innermost, *(text for text, begun in workers if now - begun >= LONG_SECONDS)]))
        more = len(texts) - _MOST_TOLD
        return "; ".join([*texts[:_MOST_TOLD], *([f"{more} more"] if more > 0 else [])])

    def _hand_on(self) -> None:
        if self.hear is not None:
            with self._lock:
                phase = next(reversed(self._phases.values()), ("", 0.0))[0]
            self.hear(phase)


AT_WORK: Final = AtWork()
