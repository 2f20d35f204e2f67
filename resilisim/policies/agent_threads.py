"""Coroutines of agents that are somebody else's, in a thread and an event loop of their own.

Whoever plays episodes waits for them without being in their hands: one that blocks its loop, or takes no notice of
being cancelled, is left behind, and the next one gets a new loop. Those of one agent share a loop, because what they
share otherwise (a client with its connections) belongs to one.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import threading
import weakref
from collections.abc import Callable, Coroutine
from typing import Any, Final

_ANSWER_SECONDS: Final = 0.25  # within which a loop says that it is not blocked


class AgentLoop:
    """An event loop in a thread of its own."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.loop.set_exception_handler(_tell)
        threading.Thread(target=self._run, name="agent loop", daemon=True).start()

    async def run(self, work: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        """Return what a coroutine of this loop returns; if it is given up it is cancelled, and nobody waits for it."""
        here = asyncio.get_running_loop()
        ended: asyncio.Future[tuple[Any, BaseException | None]] = here.create_future()
        context = contextvars.copy_context()
        tasks: list[asyncio.Task[None]] = []

        def tell(outcome: tuple[Any, BaseException | None]) -> None:
            if not ended.done():
                ended.set_result(outcome)

        async def watched() -> None:
            try:
                value, raised = await work(), None
            except BaseException as error:  # it is raised again where it is waited for
                value, raised = None, error
            with contextlib.suppress(RuntimeError):  # that loop is closed: nobody waits any more
                here.call_soon_threadsafe(tell, (value, raised))

        self.loop.call_soon_threadsafe(lambda: tasks.append(self.loop.create_task(watched(), context=context)))
        try:
            value, raised = await ended
        except BaseException:
            self.loop.call_soon_threadsafe(lambda: [task.cancel() for task in tasks])
            raise
        if raised is not None:
            raise raised
        return value

    async def is_alive(self) -> bool:
        """Return whether the loop goes on: whether nothing in it blocks it."""
        here = asyncio.get_running_loop()
        answered = asyncio.Event()
        self.loop.call_soon_threadsafe(lambda: here.call_soon_threadsafe(answered.set))
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(answered.wait(), _ANSWER_SECONDS)
        return answered.is_set()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()


def _tell(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Tell what nobody has caught in a loop; tasks that were left behind on purpose are no news."""
    if "was destroyed but it is pending" not in str(context.get("message")):
        loop.default_exception_handler(context)


_loops: dict[int, AgentLoop] = {}  # by the identity of an agent's function
_choosing: Final = threading.Lock()


async def run_beside(agent: object, work: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    """Return what a coroutine of an agent returns, which runs in the agent's own event loop.

    Args:
        agent: Whose it is; coroutines of one agent share a loop.
        work: Makes the coroutine; called in that loop.
    """
    loop = _loop_of(agent)
    try:
        return await loop.run(work)
    except BaseException as error:
        if isinstance(error, asyncio.CancelledError) and not await loop.is_alive():
            with _choosing:
                if _loops.get(id(agent)) is loop:  # it is left to itself
                    del _loops[id(agent)]
        raise


def _loop_of(agent: object) -> AgentLoop:
    with _choosing:
        if id(agent) not in _loops:
            _loops[id(agent)] = AgentLoop()
            with contextlib.suppress(TypeError):  # of what cannot be watched a loop stays
                weakref.finalize(agent, _forget, id(agent))
        return _loops[id(agent)]


def _forget(agent: int) -> None:
    loop = _loops.pop(agent, None)
    if loop is not None:
        with contextlib.suppress(RuntimeError):
            loop.loop.call_soon_threadsafe(loop.loop.stop)
