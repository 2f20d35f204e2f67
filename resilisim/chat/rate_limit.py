"""A chat model that asks another one no faster than its endpoint allows: requests and tokens a minute.

Starts are spaced, not counted by the minute: after a request of cost c the next one may start c/rate later, so no
window of time ever holds more than the rate and one request. Tokens are charged by the estimate of the prompt when a
request starts and put right when the reply says what it cost, its own tokens included; over time the rate is exact.
Repetitions of a failed request within the model that is asked are not counted: they are spaced by their own waits.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable

from resilisim.chat.estimates import estimated_prompt_tokens
from resilisim.chat.types import ChatModel, ChatReply, ChatRequest
from resilisim.errors import InvalidInputError

# A sleep ends a little late; up to this many seconds are made good by the next start, so that the rate is reached.
LONGEST_CATCH_UP = 0.25


class _Pace:
    """When the next start is due, at a rate of some unit a minute."""

    def __init__(self, per_minute: float) -> None:
        self._seconds_per_unit = 60.0 / per_minute
        self.free_at = -math.inf

    def charge(self, units: float, now: float, has_waited: bool) -> None:
        began = max(self.free_at, now - LONGEST_CATCH_UP if has_waited else now)
        self.free_at = began + units * self._seconds_per_unit

    def correct(self, units: float) -> None:
        self.free_at += units * self._seconds_per_unit


class RateLimitedChatModel:
    """A chat model that starts the requests to another one at a limited rate, first come, first served.

    Args:
        model: Who is asked.
        requests_per_minute: None limits none.
        tokens_per_minute: Prompt and answer together; None limits none.
        clock: Seconds that only grow.
        sleep: How to wait.

    Raises:
        InvalidInputError: A rate is not a number above 0.
    """

    def __init__(
        self,
        model: ChatModel,
        *,
        requests_per_minute: float | None = None,
        tokens_per_minute: float | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self._model = model
        self._requests = _pace("requests", requests_per_minute)
        self._tokens = _pace("tokens", tokens_per_minute)
        self._paces = [pace for pace in (self._requests, self._tokens) if pace is not None]
        self._clock = clock
        self._sleep = sleep
        self._queue: tuple[asyncio.AbstractEventLoop, asyncio.Lock] | None = None

    @property
    def name(self) -> str:
        """The name of the model that is asked."""
        return self._model.name

    async def complete(self, request: ChatRequest) -> ChatReply:
        """Ask when it is this request's turn."""
        estimate = estimated_prompt_tokens(request) if self._tokens is not None else 0
        async with self._queue_of_running_loop():  # its waiters are served in the order in which they came
            await self._take_turn(estimate)
        reply = await self._model.complete(request)
        if self._tokens is not None:
            spent = 0 if reply.from_cache else reply.usage.prompt_tokens + reply.usage.completion_tokens
            self._tokens.correct(spent - estimate)
        return reply

    async def aclose(self) -> None:
        """Close the model that is asked."""
        await self._model.aclose()

    async def _take_turn(self, tokens: int) -> None:
        has_waited = False
        # Looked at again after each wait: replies that came meanwhile may have put the tokens right.
        while (wait := max((pace.free_at for pace in self._paces), default=-math.inf) - (now := self._clock())) > 0:
            await self._sleep(wait)
            has_waited = True
        if self._requests is not None:
            self._requests.charge(1, now, has_waited)
        if self._tokens is not None:
            self._tokens.charge(tokens, now, has_waited)

    def _queue_of_running_loop(self) -> asyncio.Lock:
        loop = asyncio.get_running_loop()
        if self._queue is None or self._queue[0] is not loop:
            self._queue = (loop, asyncio.Lock())
        return self._queue[1]


def _pace(what: str, per_minute: float | None) -> _Pace | None:
    if per_minute is None:
        return None
    if not (per_minute > 0 and math.isfinite(per_minute)):
        raise InvalidInputError(f"{per_minute!r} {what} a minute: expected a number above 0, or None for no limit")
    return _Pace(per_minute)
