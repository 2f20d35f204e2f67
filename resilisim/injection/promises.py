"""What a function returns before it has answered, and when its answer is there.

A coroutine, a future, or a generator that a call returns is a promise. The call has answered when what was promised is
there, and has failed when that raises:

- What is awaited, and a future, has answered with its result (which may be another promise).
- A generator has answered when it ends, or when its reader stops reading it: then the reader has what it wanted.
- What `contextlib.contextmanager` makes has answered when its block begins.

Where the answer is lost, what was promised still happens, and the caller gets none of it: a generator is read to its
end first, or for `MOST_LOST_ITEMS` items.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import functools
import inspect
import threading
import types
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from typing import Any, Final, Literal, Protocol

MOST_LOST_ITEMS: Final = 1000  # of a generator whose answer is lost; some never end
_NO_PROMISES: Final = frozenset({dict, list, tuple, str, int, float, bool, bytes, type(None)})
_LONGEST_CHAIN: Final = 100  # of what wraps a function

# How a function says that it will answer later; one that says nothing may return a promise all the same.
Kind = Literal["plain", "coroutine", "generator", "async generator"]


class Answering(Protocol):
    """A call that is under way; what it is told a second time changes nothing."""

    is_lost: bool  # whether its answer will not reach the caller
    is_altered: bool  # whether its answer may come later than the function has it, or be another one

    def answer(self, result: Any) -> Any:
        """Take note of an answer, and return what the caller gets; raises that if the answer is lost."""

    def altered(self, part: Any) -> Any:
        """Return what the caller gets of an answer that comes in parts, for the first one; takes note of nothing."""

    def remaining(self) -> float:
        """Return for how many seconds the caller has to wait yet."""

    def pause(self) -> None:
        """Wait for so long."""

    async def due(self) -> None:
        """Wait for so long, while other tasks go on."""

    def answered(self) -> None:
        """Take note that the answer is there; raises what the caller gets instead if it is lost."""

    def failed(self, error: BaseException) -> None:
        """Take note that the function has raised something."""

    def promises(self, promise: asyncio.Future[Any]) -> None:
        """Take note that the function has returned a future, which may be done before its loop says so."""


def kind_of(function: Callable[..., Any]) -> Kind:
    """Return how a function says that it answers, seen through methods, `functools.partial` and callable objects."""
    target: Any = function
    for _ in range(_LONGEST_CHAIN):
        if inspect.iscoroutinefunction(target):
            return "coroutine"
        if inspect.isasyncgenfunction(target):
            return "async generator"
        if inspect.isgeneratorfunction(target) and not target.__code__.co_flags & inspect.CO_ITERABLE_COROUTINE:
            return "generator"
        if isinstance(target, functools.partial):
            target = target.func
        elif isinstance(target, types.MethodType | staticmethod | classmethod):
            target = target.__func__
        elif not isinstance(target, type | types.FunctionType | types.WrapperDescriptorType):
            target = inspect.getattr_static(type(target), "__call__", None)
        else:
            break
    return "plain"


def kept(result: Any, call: Answering) -> Any:
    """Return what a function returned, so that the call is noted when its answer is there; at once if it is one."""
    if type(result) in _NO_PROMISES:
        call.pause()
        return call.answer(result)
    if asyncio.isfuture(result):
        return _future(result, call)
    if isinstance(result, concurrent.futures.Future):
        return _Later(result, call)
    if inspect.iscoroutine(result):
        return _awaited(result, call)
    if inspect.isawaitable(result):
        return (_AwaitedContext if hasattr(type(result), "__aenter__") else _Awaited)(result, call)
    if inspect.isgenerator(result):
        return generated(result, call)
    if inspect.isasyncgen(result):
        return async_generated(result, call)
    if isinstance(result, contextlib.AbstractContextManager | contextlib.AbstractAsyncContextManager):
        manager: Any = result
        within = getattr(manager, "gen", None)
        if inspect.isgenerator(within) or inspect.isasyncgen(within):
            manager.gen = _Entered(within, call)
            return manager
    call.pause()
    return call.answer(result)


def _future(promise: asyncio.Future[Any], call: Answering) -> asyncio.Future[Any]:
    """Return the future itself, or one whose result is lost, or comes later, or is another one."""
    if call.is_altered:
        return promise.get_loop().create_task(_awaited(promise, call))
    if not call.is_lost:
        call.promises(promise)
        _when_done(promise, lambda: note(promise, call))
        return promise
    lost: asyncio.Future[Any] = promise.get_loop().create_future()

    def lose() -> None:
        try:
            note(promise, call)
            promise.result()
        except asyncio.CancelledError:
            lost.cancel()
        except BaseException as error:
            if not lost.done():
                lost.set_exception(error)

    _when_done(promise, lose)
    lost.add_done_callback(lambda _: promise.cancel() if lost.cancelled() else None)
    return lost


def _when_done(promise: asyncio.Future[Any], act: Callable[[], None]) -> None:
    if promise.done():
        act()
    else:
        promise.add_done_callback(lambda _: act())


def note(promise: asyncio.Future[Any], call: Answering) -> None:
    """Take note of what a future that is done has brought."""
    error = asyncio.CancelledError() if promise.cancelled() else promise.exception()
    if error is None:
        call.answered()
    else:
        call.failed(error)


async def _awaited(promise: Awaitable[Any], call: Answering) -> Any:
    try:
        result = await promise
        await call.due()
    except BaseException as error:
        call.failed(error)
        raise
    return kept(result, call)


def generated(items: Generator[Any, Any, Any], call: Answering) -> Generator[Any, Any, Any]:
    """Yield what a generator yields, and note its end."""
    try:
        call.pause()
        if call.is_lost:
            for _, _ in zip(range(MOST_LOST_ITEMS), items, strict=False):
                pass
            items.close()
            result = None
        else:
            if call.is_altered:
                try:
                    first = next(items)
                except StopIteration as end:
                    call.answered()
                    return end.value
                yield call.altered(first)
            result = yield from items
    except GeneratorExit:  # nobody reads on
        call.answered()
        raise
    except BaseException as error:
        call.failed(error)
        raise
    call.answered()
    return result


def async_generated(items: AsyncGenerator[Any, Any], call: Answering) -> AsyncGenerator[Any, Any]:
    """Yield what an asynchronous generator yields, and note its end."""
    return async_generating(lambda args, kwargs: (lambda: items, call))()


def async_generating(
    begin: Callable[[tuple[Any, ...], dict[str, Any]], tuple[Callable[[], AsyncGenerator[Any, Any]], Answering]],
) -> Callable[..., AsyncGenerator[Any, Any]]:
    """Return an asynchronous generator function that yields what another yields, and notes its end.

    `begin` is asked for the call, and what makes the generator, when the first item is, with the arguments.
    """

    async def generating(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, Any]:
        make, call = begin(args, kwargs)
        try:
            await call.due()
        except BaseException as error:
            call.failed(error)
            raise
        items = make()
        try:
            if call.is_lost:
                number = 0
                async for _ in items:
                    number += 1
                    if number == MOST_LOST_ITEMS:
                        break
                await items.aclose()
            else:
                item = call.altered(await anext(items))
                while True:
                    try:
                        sent = yield item
                    except GeneratorExit:
                        await items.aclose()
                        raise
                    except BaseException as error:
                        item = await items.athrow(error)
                    else:
                        item = await items.asend(sent)
        except GeneratorExit:
            call.answered()
            raise
        except StopAsyncIteration:
            pass
        except BaseException as error:
            call.failed(error)
            raise
        call.answered()

    return generating


class _Awaited:
    """Something that can be awaited, and is noted when it has been."""

    def __init__(self, promise: Any, call: Answering) -> None:
        self._promise = promise
        self._call = call

    def __await__(self) -> Generator[Any, Any, Any]:
        return _awaited(self._promise, self._call).__await__()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._promise, name)


class _AwaitedContext(_Awaited):
    """The same for what can also begin a block, such as the requests of HTTP libraries."""

    async def __aenter__(self) -> Any:
        try:
            entered = await self._promise.__aenter__()
            await self._call.due()
        except BaseException as error:
            self._call.failed(error)
            raise
        if self._call.is_lost:
            await self._promise.__aexit__(None, None, None)
        return self._call.answer(entered)

    async def __aexit__(self, *raised: Any) -> Any:
        return await self._promise.__aexit__(*raised)


class _Later(concurrent.futures.Future[Any]):
    """The future of a thread or process pool, with what the caller gets of it."""

    def __init__(self, promise: concurrent.futures.Future[Any], call: Answering) -> None:
        super().__init__()
        self._promise = promise
        self._call = call
        promise.add_done_callback(self._take)

    def _take(self, promise: concurrent.futures.Future[Any]) -> None:
        seconds = self._call.remaining()
        if seconds > 0.0:  # who works for others must not wait
            timer = threading.Timer(seconds, self._take, [promise])
            timer.daemon = True
            timer.start()
            return
        try:
            result = kept(promise.result(), self._call)
        except BaseException as error:
            with contextlib.suppress(BaseException):
                self._call.failed(error)
            if isinstance(error, concurrent.futures.CancelledError):
                super().cancel()
                self.set_running_or_notify_cancel()
                return
            self.set_exception(error)
        else:
            self.set_result(result)

    def cancel(self) -> bool:
        """Cancel the work itself, if it has not begun."""
        return self._promise.cancel()

    def running(self) -> bool:
        """Return whether the work is being done."""
        return self._promise.running()


class _Entered:
    """The generator of a context manager, noted when its block begins."""

    def __init__(self, items: Any, call: Answering) -> None:
        self._items = items
        self._call: Answering | None = call

    def __next__(self) -> Any:
        call, self._call = self._call, None
        try:
            item = next(self._items)
        except BaseException as error:
            if call is not None:
                call.failed(error)
            raise
        if call is not None:
            if call.is_lost:
                self._items.close()
            call.pause()
            item = call.answer(item)
        return item

    async def __anext__(self) -> Any:
        call, self._call = self._call, None
        try:
            item = await anext(self._items)
            if call is not None:
                await call.due()
        except BaseException as error:
            if call is not None:
                call.failed(error)
            raise
        if call is not None:
            if call.is_lost:
                await self._items.aclose()
            item = call.answer(item)
        return item

    def __getattr__(self, name: str) -> Any:
        return getattr(self._items, name)
