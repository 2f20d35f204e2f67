"""How a model is reached: when to ask again, how fast, and what was answered before.

Limits and caches are chat models around another one. None of this is left to a library: a wait depends on the
endpoint's own demand and on draws named by the request, tokens are charged by estimate and put right by the reply
(docs/decisions, "Chat models").
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import email.utils
import itertools
import json
import math
import os
import time
import warnings
import weakref
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from annotated_types import Ge, Le

from resilisim.bounds import Count, CountOrNone
from resilisim.chat.types import ChatModel, ChatReply, ChatRequest, estimated_prompt_tokens
from resilisim.errors import InvalidInputError
from resilisim.options import check_options, option
from resilisim.provenance import content_hash, describe_os_error, encode_json
from resilisim.seeding import Draws

MAX_CONCURRENCY = 10_000
_MAX_SECONDS = 1e6  # of waiting for an answer
PASSING_STATUSES = frozenset({408, 409, 425, 429})  # timeouts, conflicts and limits go by; so does any status from 500
# A sleep ends a little late; up to this many seconds are made good by the next start, so that the rate is reached.
LONGEST_CATCH_UP = 0.25
CACHE_SCHEMA = "resilisim-chat-1"

_temporary_numbers = itertools.count()


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often and after which waits to ask again.

    Attributes:
        first_wait: Seconds before the first retry, before jitter; each later wait is twice as long.
        longest_wait: Seconds that a wait of our own choice is at most.
        longest_demand: Seconds that an endpoint may make us wait; one that asks for more has failed.
    """

    retries: CountOrNone = option(4, "How often a failed request is sent again.")
    first_wait: float = 0.5
    longest_wait: float = 30.0
    longest_demand: float = 120.0

    def __post_init__(self) -> None:
        """Refuse a number of retries that is none."""
        check_options(self)

    def wait_before_retry(self, retry: int, demanded: float | None, draws: Draws) -> float | None:
        """Return the seconds to wait before a retry (1 is the first), or None if the endpoint demands too long a wait.

        Less than it demands is never waited; the jitter, half to the whole of our own wait, is added, so that many who
        were told the same do not come back at once.
        """
        own = min(self.longest_wait, self.first_wait * 2.0 ** min(retry - 1, 60)) * (0.5 + 0.5 * draws.uniform())
        if demanded is None:
            return own
        if demanded > self.longest_demand:
            return None
        return demanded + min(own, self.first_wait)


@dataclass(frozen=True, slots=True)
class ChatModelSettings:
    """How a model is reached; a kind of model takes what it can use.

    Attributes:
        api_key: Key of the endpoint; None takes the environment's.
        retry: When to ask again.

    Raises:
        InvalidInputError: A value is none that its option takes.
    """

    base_url: str | None = option(
        None,
        "Address of an OpenAI-compatible endpoint; OPENAI_BASE_URL, else OpenAI's, if left out. The key is taken from "
        "OPENAI_API_KEY.",
    )
    api_key: str | None = field(default=None, repr=False)
    timeout_seconds: Annotated[float, Ge(0.01), Le(_MAX_SECONDS)] = option(
        # As long as the client library's own: a model may think for minutes, and nothing is sent until it is done.
        600.0,
        "Seconds for one request.",
        flag="--timeout",
    )
    max_concurrency: Annotated[int, Ge(1), Le(MAX_CONCURRENCY)] = option(
        8, "Requests under way at once.", flag="--concurrency"
    )
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    requests_per_minute: Annotated[float, Ge(0.01)] | None = option(None, "Maximum number of requests per minute.")
    tokens_per_minute: Annotated[float, Ge(1.0)] | None = option(None, "Maximum number of tokens per minute.")
    local_threads: Count | None = option(None, "Threads of a local model; as many as cores, at most 4, if left out.")
    local_context: Annotated[int, Ge(1)] | None = option(
        None,
        "Tokens that a model that runs here reads and writes in one request at most; what it was trained for, at most "
        "8192, if left out.",
    )
    local_device: str | None = option(
        None,
        "Device of a local model: cpu, cuda, cuda:1, mps; for a GGUF file cpu, or gpu if llama.cpp was "
        "built for one; cpu if left out.",
    )
    local_reuse_prompts: bool = option(
        False,
        "Let a local model keep the prompts it has read: many times faster, but rounding makes answers "
        "depend on what was asked before.",
    )

    def __post_init__(self) -> None:
        """Refuse values that no option takes."""
        check_options(self)


def is_passing(status: int) -> bool:
    """Tell whether the same request may succeed later although it failed with this HTTP status."""
    return status in PASSING_STATUSES or status >= 500


def demanded_wait(headers: Mapping[str, str], now: float | None = None) -> float | None:
    """Return the seconds that an endpoint asks to wait, 0 or more, or None if it does not say so intelligibly."""
    for name, seconds_per_unit in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        with contextlib.suppress(ValueError):
            wait = float(headers.get(name, ""))
            if not math.isnan(wait):
                return max(0.0, wait * seconds_per_unit)
    with contextlib.suppress(ValueError, OverflowError, TypeError):  # no date, or one that no calendar has
        moment = email.utils.parsedate_to_datetime(headers.get("retry-after", "")).timestamp()
        return max(0.0, moment - (time.time() if now is None else now))
    return None


class _AroundModel:
    """A chat model around another one, whose name it has and which it closes."""

    def __init__(self, model: ChatModel) -> None:
        self._model = model

    @property
    def name(self) -> str:
        """The name of the model that is asked."""
        return self._model.name

    async def aclose(self) -> None:
        """Close the model that is asked."""
        await self._model.aclose()


class _Pace:
    """When the next start is due, at a rate of some unit a minute; None sets none."""

    def __init__(self, what: str, per_minute: float | None) -> None:
        if per_minute is not None and not (per_minute > 0 and math.isfinite(per_minute)):
            raise InvalidInputError(f"{per_minute!r} {what} a minute: expected a number above 0, or None for no limit")
        self.seconds_per_unit = 0.0 if per_minute is None else 60.0 / per_minute
        self.free_at = -math.inf

    def charge(self, units: float, now: float, has_waited: bool) -> None:
        began = max(self.free_at, now - LONGEST_CATCH_UP if has_waited else now)
        self.free_at = began + units * self.seconds_per_unit


class RateLimitedChatModel(_AroundModel):
    """A chat model that starts the requests to another one at a limited rate, first come, first served.

    Starts are spaced, not counted by the minute: after a request of cost c the next one may start c/rate later, so no
    window of time ever holds more than the rate and one request. Tokens are charged by the estimate of the prompt when
    a request starts and put right when the reply says what it cost, its own tokens included; over time the rate is
    exact. Repetitions of a failed request within the model that is asked are not counted: they are spaced by their own
    waits.

    Args:
        tokens_per_minute: Prompt and answer together; None limits none.

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
        super().__init__(model)
        self._requests = _Pace("requests", requests_per_minute)
        self._tokens = _Pace("tokens", tokens_per_minute)
        self._clock = clock
        self._sleep = sleep
        self._queue: tuple[asyncio.AbstractEventLoop, asyncio.Lock] | None = None

    async def complete(self, request: ChatRequest) -> ChatReply:
        """Ask when it is this request's turn."""
        counts_tokens = self._tokens.seconds_per_unit > 0.0
        estimate = estimated_prompt_tokens(request) if counts_tokens else 0
        async with self._queue_of_running_loop():  # its waiters are served in the order in which they came
            await self._take_turn(estimate)
        reply = await self._model.complete(request)
        spent = 0 if reply.from_cache else reply.usage.prompt_tokens + reply.usage.completion_tokens
        self._tokens.free_at += (spent - estimate) * self._tokens.seconds_per_unit
        return reply

    async def _take_turn(self, tokens: int) -> None:
        has_waited = False
        # Looked at again after each wait: replies that came meanwhile may have put the tokens right.
        while (wait := max(self._requests.free_at, self._tokens.free_at) - (now := self._clock())) > 0:
            await self._sleep(wait)
            has_waited = True
        self._requests.charge(1, now, has_waited)
        self._tokens.charge(tokens, now, has_waited)

    def _queue_of_running_loop(self) -> asyncio.Lock:
        loop = asyncio.get_running_loop()
        if self._queue is None or self._queue[0] is not loop:
            self._queue = (loop, asyncio.Lock())
        return self._queue[1]


def request_key(identity: str, request: ChatRequest) -> str:
    """Return the hash under which the reply to a request is kept; `identity` says what model answers and where."""
    return content_hash([CACHE_SCHEMA, identity, request.content()])


class ResponseCache:
    """Replies by key, in one folder: an answer that was paid for once is never asked for again.

    One small file for each reply, so a damaged one costs one request. A file gets its name when it is whole, and its
    text carries the hash of the reply, so whatever a kill, a power cut or another process leaves behind is noticed and
    written anew. Nothing is flushed to the platter one by one, which would cost more time than everything else: after a
    power cut some replies may have to be asked for again.

    Args:
        folder: Where they are kept.
        dice: Which of several independent sets of replies this is; sets share the folder and no reply.
    """

    def __init__(self, folder: Path | str, dice: int = 0) -> None:
        self.folder = Path(folder)
        self.dice = dice
        self._told = False

    def __contains__(self, key: str) -> bool:
        """Tell whether there is a usable reply under a key."""
        return self.load(key) is not None

    def load(self, key: str) -> ChatReply | None:
        """Return the reply that is kept under a key; None if there is none, or none that is whole."""
        try:
            entry = json.loads(self._path(key).read_bytes())
            if entry["schema"] != CACHE_SCHEMA or entry["hash"] != content_hash(entry["reply"]):
                return None
            return dataclasses.replace(ChatReply.from_mapping(entry["reply"]), from_cache=True)
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return None

    def store(self, key: str, reply: ChatReply) -> None:
        """Keep a reply; what cannot be kept costs a warning and later another request, never an error."""
        path = self._path(key)
        temporary = path.with_name(f".{key}.{os.getpid()}.{next(_temporary_numbers)}.tmp")
        mapping = reply.to_mapping()
        entry: dict[str, Any] = {"schema": CACHE_SCHEMA, "reply": mapping, "hash": content_hash(mapping)}
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            temporary.write_bytes(encode_json(entry))
            temporary.replace(path)
        except OSError as error:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
            if not self._told:
                self._told = True
                problem = describe_os_error(error)
                warnings.warn(f"replies cannot be kept in {self.folder}: {problem}", UserWarning, stacklevel=2)

    def _path(self, key: str) -> Path:
        return self.folder / key[:2] / f"{key}.json"


class CachingChatModel(_AroundModel):
    """A chat model that asks another one only what it was not asked before.

    Equal requests at the same time are asked once: the others wait for the first, so that all get what is kept.
    `identity` says what model answers and where; replies under another one are not taken.
    """

    def __init__(self, model: ChatModel, cache: ResponseCache, identity: str) -> None:
        super().__init__(model)
        self._cache = cache
        self._identity = identity
        self._locks: weakref.WeakValueDictionary[str, asyncio.Lock] = weakref.WeakValueDictionary()

    async def complete(self, request: ChatRequest) -> ChatReply:
        """Answer from the cache, or ask and keep the reply; failures are not kept."""
        dice = self._cache.dice
        key = request_key(f"{self._identity}, dice {dice}" if dice else self._identity, request)
        lock = self._locks.setdefault(key, asyncio.Lock())
        async with lock:
            kept = self._cache.load(key)
            if kept is not None:
                return kept
            reply = await self._model.complete(request)
            self._cache.store(key, reply)
            return reply
