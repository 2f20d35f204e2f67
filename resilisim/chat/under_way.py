"""What agents of this process are waiting for: requests that a model has not answered yet."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from resilisim.chat.types import ChatReply


class RequestsUnderWay:
    """Counts requests from being sent to being answered, and the tokens of the answers; any thread may look.

    Args:
        clock: Gives seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._begun: dict[object, float] = {}
        self._tokens = 0

    @contextmanager
    def one(self) -> Iterator[Callable[[ChatReply], None]]:
        """Count a request; what is yielded takes its reply."""
        key = object()
        with self._lock:
            self._begun[key] = self._clock()
        try:
            yield self._answered
        finally:
            with self._lock:
                del self._begun[key]

    def _answered(self, reply: ChatReply) -> None:
        with self._lock:
            self._tokens += reply.usage.completion_tokens

    def told(self) -> str:
        """Return how many requests are under way, for how long, and the tokens of earlier replies; empty if none is."""
        with self._lock:
            begun, tokens = list(self._begun.values()), self._tokens
        if not begun:
            return ""
        seconds = f"{self._clock() - min(begun):,.0f} s"
        waiting = f"1 request under way for {seconds}"
        if len(begun) > 1:
            waiting = f"{len(begun)} requests under way, the oldest for {seconds}"
        return f"{waiting}, {tokens:,} tokens written before" if tokens else waiting


REQUESTS_UNDER_WAY = RequestsUnderWay()  # of the agents of this process
