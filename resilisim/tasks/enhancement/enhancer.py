"""One task at a time: ask, check the answer, say what is wrong with it and ask again, give up and keep the original."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from resilisim.chat import ChatMessage, ChatModel, ChatReply, ChatRequest, RequestRefusedError
from resilisim.errors import MAX_COUNT, InfrastructureError, InvalidInputError
from resilisim.options import option
from resilisim.seeding import MAX_SEED
from resilisim.tasks.enhancement.outcomes import CallCount, Enhancement, Refusal, enhanced, failed, refused
from resilisim.tasks.enhancement.prompting import correction
from resilisim.tasks.types import Task

R = TypeVar("R")

ROLE = "task_writer"  # the component that asks, in counts of calls
DEFAULT_MAX_TOKENS = 1500


class EnhancementMode(Protocol):
    """What is asked about a task, and what an answer is worth; it needs no network and keeps no state of its own."""

    @property
    def name(self) -> str:
        """The mode's name in commands and metadata."""
        ...

    def ask(self, task: Task) -> tuple[ChatMessage, ...]:
        """Return the question for a task."""
        ...

    def read(self, task: Task, answer: str) -> Task | Refusal:
        """Return what an answer makes of the task, or why it cannot be used; never raises for what a model wrote."""
        ...


@dataclass(frozen=True, slots=True)
class EnhancementOptions:
    """How a model is asked."""

    temperature: float | None = option(None, "The model's own if left out.", least=0.0, most=2.0)
    max_tokens: int = option(DEFAULT_MAX_TOKENS, "Longest answer in tokens.", least=1, most=MAX_COUNT)
    seed: int | None = option(
        None, "Sent to the model; another one asks anew instead of taking cached answers.", least=0, most=MAX_SEED
    )
    re_asks: int = option(1, "How often an unusable answer is sent back with the reason.", least=0, most=MAX_COUNT)

    def __post_init__(self) -> None:
        """Refuse numbers that no model takes."""
        if self.temperature is not None and not 0 <= self.temperature <= 2:
            raise InvalidInputError(f"temperature {self.temperature!r}: expected a number from 0 to 2")
        if self.max_tokens < 1:
            raise InvalidInputError(f"max_tokens {self.max_tokens!r}: expected 1 or more")
        if self.re_asks < 0:
            raise InvalidInputError(f"re_asks {self.re_asks!r}: expected 0 or more")

    def request(self, messages: tuple[ChatMessage, ...]) -> ChatRequest:
        """Return the request with these messages."""
        return ChatRequest(
            messages, role=ROLE, temperature=self.temperature, max_tokens=self.max_tokens, seed=self.seed
        )


class TaskEnhancer:
    """Enhances tasks one by one; several may be under way at once in one event loop.

    Questions are written and answers checked in one thread of its own: checking embeds texts, and a loop that waits for
    that would take answers for late.

    Args:
        mode: What is asked.
        model: Who is asked.
        options: How.
    """

    def __init__(self, mode: EnhancementMode, model: ChatModel, options: EnhancementOptions | None = None) -> None:
        self._mode = mode
        self._model = model
        self._options = EnhancementOptions() if options is None else options
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="enhancement")

    async def enhance(self, task: Task) -> Enhancement:
        """Enhance a task.

        Returns:
            The better task; or the original, if no answer could be used or the endpoint gave none.

        Raises:
            InvalidInputError: The endpoint would refuse every other request as well (key, model, address).
        """
        made_by = {"mode": self._mode.name, "model": self._model.name, "made_from": task.instance_id}
        messages = await self._in_thread(self._mode.ask, task)
        count = CallCount()
        refusal = Refusal("not_json", "nothing was asked")
        for _ in range(1 + self._options.re_asks):
            try:
                reply = await self._model.complete(self._options.request(messages))
            except RequestRefusedError as error:
                if error.concerns_all_requests:
                    raise
                return failed(task, error, made_by, count)
            except InfrastructureError as error:
                return failed(task, error, made_by, count)
            count = count + CallCount.of(reply)
            result = await self._in_thread(self._read, task, reply)
            if isinstance(result, Task):
                return enhanced(result, task, made_by, count)
            refusal = result
            messages = (*messages, *correction(reply.text, refusal.detail))
        return refused(task, refusal, made_by, count)

    async def aclose(self) -> None:
        """Let go of the model's connections and of the thread."""
        self._thread.shutdown(wait=False, cancel_futures=True)
        await self._model.aclose()

    def _read(self, task: Task, reply: ChatReply) -> Task | Refusal:
        result = self._mode.read(task, reply.text)
        if isinstance(result, Refusal) and reply.finish_reason == "length":
            limit = self._options.max_tokens
            return Refusal("cut_off", f"the answer was cut off after {limit} tokens; expected a shorter one")
        return result

    async def _in_thread(self, function: Callable[..., R], *arguments: Any) -> R:
        return await asyncio.get_running_loop().run_in_executor(self._thread, function, *arguments)
