"""Guards against hanging, for work that has to be linear and for waits that have to end.

They are no measurements: what they forbid takes many minutes, what they let through a fraction of a second.
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType

CPU_SECONDS = 60.0  # of this process, so that a busy machine makes no difference
WAITING_SECONDS = 300.0


@contextlib.contextmanager
def no_endless_work(cpu_seconds: float = CPU_SECONDS) -> Iterator[None]:
    """Break off what computes without end, as reading does that grows with the square of a text."""
    yield from _guarded(signal.ITIMER_PROF, signal.SIGPROF, cpu_seconds)


@contextlib.contextmanager
def no_endless_wait(seconds: float = WAITING_SECONDS) -> Iterator[None]:
    """Break off what waits for something that does not come."""
    yield from _guarded(signal.ITIMER_REAL, signal.SIGALRM, seconds)


def _guarded(timer: int, number: signal.Signals, seconds: float) -> Iterator[None]:
    def give_up(received: int, frame: FrameType | None) -> None:
        raise AssertionError(f"no end after {seconds:g} s")

    before = signal.signal(number, give_up)
    signal.setitimer(timer, seconds)
    try:
        yield
    finally:
        signal.setitimer(timer, 0)
        signal.signal(number, before)
