"""Agents that are functions of one session, sync or async: the shortest way in for whoever has an agent already."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import inspect
import threading
from collections.abc import Awaitable, Callable
from typing import Any, ClassVar, Final, TypeAlias, cast

from resilisim.envs.session import Session
from resilisim.errors import InvalidInputError
from resilisim.policies.agent_record import AgentRecord, Journal
from resilisim.policies.agent_threads import run_beside
from resilisim.policies.base import AgentFailed
from resilisim.policies.usage import agent_part

# What it returns, unless None, is its answer and says that the task is complete.
AgentFunction: TypeAlias = "Callable[[Session], object | Awaitable[object]]"

AGENT_PREFIX: Final = "agent:"  # of a policy that is a function of a session, agent:module:function


class FunctionAgent:
    """An agent that is a function of one session.

    A sync function runs in a thread of its own, so that many can wait for their models at once; async ones in an event
    loop of their own (`agent_threads`), so that one that blocks it, or cannot be cancelled, holds up nobody else.

    Args:
        function: Takes a `Session`. What it returns, unless None, is its answer and says that the task is done.
        name: Under which its results are shown; that of the function if omitted.
    """

    runs_code_of_others: ClassVar[bool] = True

    def __init__(self, function: AgentFunction, name: str | None = None) -> None:
        if not callable(function):
            raise InvalidInputError(f"agent {function!r:.60}: expected a function of a session")
        if _is(inspect.isgeneratorfunction, function) or _is(inspect.isasyncgenfunction, function):
            raise InvalidInputError(
                f"agent {function!r:.60} is a generator, which nobody would run: expected a function that returns"
            )
        self.function = function
        self.name = name or str(getattr(function, "__name__", type(function).__name__))

    async def play_session(
        self, session: Session, *, identity: str = "", journal: Journal | None = None
    ) -> AgentRecord:
        """Let the function play a session to its end, and return what it did.

        Raises:
            AgentFailed: The function raised something.
        """
        session.check_functions()
        try:
            with session:
                answer = await self._answer(session)
                if answer is not None:
                    session.finish(answer)
        except BaseException as error:
            if _gives_up(error):
                raise
            raise AgentFailed.of(self.name, error, agent_part(session, self.name)) from error
        finally:
            session.close()  # a thread that was given up must not play on
        return agent_part(session, self.name)

    async def _answer(self, session: Session) -> object:
        """Return what the function returns; one that is not `async` gets a thread."""
        if _is(inspect.iscoroutinefunction, self.function):
            return await run_beside(self.function, lambda: _awaited(cast("Awaitable[object]", self.function(session))))
        answer = await _in_thread(self.function, session)
        if not inspect.isawaitable(answer):
            return answer
        awaitable: Awaitable[object] = answer
        return await run_beside(self.function, lambda: _awaited(awaitable))


async def _awaited(answer: Awaitable[object]) -> object:
    return await answer


def _is(kind: Callable[[object], bool], function: AgentFunction) -> bool:
    call = type(function).__call__ if not inspect.isroutine(function) else function  # an object may be called, too
    return kind(function) or kind(call)


def _gives_up(error: BaseException) -> bool:
    """Return whether the episode is being given up, and what was raised is not the agent's own."""
    if isinstance(error, asyncio.CancelledError):
        task = asyncio.current_task()
        return task is not None and task.cancelling() > 0
    return isinstance(error, KeyboardInterrupt)


async def _in_thread(function: Callable[[Session], Any], session: Session) -> Any:
    """Return what a function returns in a thread of its own, which nobody has to wait for when it is given up."""
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[tuple[Any, BaseException | None]] = loop.create_future()
    context = contextvars.copy_context()

    def tell(outcome: tuple[Any, BaseException | None]) -> None:
        if not ended.done():
            ended.set_result(outcome)

    def work() -> None:
        try:
            value, raised = context.run(function, session), None
        except BaseException as error:  # EpisodeEnded among them: it is raised again where it is waited for
            value, raised = None, error
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(tell, (value, raised))

    threading.Thread(target=work, name=f"agent {function!r:.40}", daemon=True).start()
    value, error = await ended
    if error is not None:
        raise error
    return value
