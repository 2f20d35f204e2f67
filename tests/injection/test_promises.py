"""Calls of `resilisim.inject` answer when what they promised is there: awaitables, futures, generators, contexts."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import functools
import gc
import inspect
import types
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import pytest

from resilisim import InjectedFailure, inject
from resilisim.evaluation.episode.attribution import identity_error
from resilisim.injection.promises import MOST_LOST_ITEMS, kind_of
from tests.guards import WAITING_SECONDS

RAN: list[object] = []


async def fetch(number: int) -> int:
    await asyncio.sleep(0)
    RAN.append(number)
    if number < 0:
        raise ValueError(f"no {number}")
    return number


def decorated(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return wrapper


class Client:
    async def get(self, number: int) -> int:
        return await fetch(number)

    @staticmethod
    async def fixed(number: int) -> int:
        return await fetch(number)

    async def __call__(self, number: int) -> int:
        return await fetch(number)


class Inherited(Client):
    pass


class Request:
    """Can be awaited, and is no coroutine; can also begin a block, as requests of HTTP libraries can."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __await__(self) -> Any:
        return fetch(self.number).__await__()

    async def __aenter__(self) -> int:
        return await fetch(self.number)

    async def __aexit__(self, *raised: object) -> None:
        RAN.append("left")


def requested(number: int) -> Request:
    return Request(number)


def in_a_task(number: int) -> Awaitable[int]:
    return asyncio.get_running_loop().create_task(fetch(number))


def in_a_thread(number: int) -> Awaitable[int]:
    return asyncio.to_thread(asyncio.run, fetch(number))


def as_a_future(number: int) -> Awaitable[int]:
    return asyncio.get_running_loop().run_in_executor(None, asyncio.run, fetch(number))


@types.coroutine
def old_style(number: int) -> Any:
    return (yield from fetch(number).__await__())


async def twice_promised(number: int) -> Awaitable[int]:
    return fetch(number)


AWAITED = {
    "coroutine": fetch,
    "decorated": decorated(fetch),
    "partial": functools.partial(fetch),
    "partial of a decorated one": functools.partial(decorated(fetch)),
    "method": Client().get,
    "decorated method": decorated(Client().get),
    "static": Client.fixed,
    "staticmethod": staticmethod(fetch),
    "callable": Client(),
    "callable by inheritance": Inherited(),
    "partial of a callable": functools.partial(Client()),
    "lambda": lambda number: fetch(number),
    "task": in_a_task,
    "thread": in_a_thread,
    "future": as_a_future,
    "awaitable": requested,
    "generator-based": old_style,
    "promise of a promise": twice_promised,
}


async def awaited(function: Any, *args: Any) -> Any:
    result = await function(*args)
    return await result if inspect.isawaitable(result) else result


@pytest.fixture(autouse=True)
def _nothing_ran() -> None:
    RAN.clear()


@pytest.mark.parametrize("name", AWAITED)
def test_what_is_awaited_has_answered_when_it_has(name: str) -> None:
    async def play() -> None:
        good = inject({"f": AWAITED[name]}, law={"base": 1.0}, required=["f"])
        with good:
            assert await awaited(good["f"], 7) == 7
        assert [(call.outcome, call.ran) for call in good.calls] == [("ok", True)]
        assert good.record()["outcome"] == 1
        bad = inject({"f": AWAITED[name]}, law={"base": 1.0}, required=["f"])
        with bad, pytest.raises(ValueError, match="no -1"):
            await awaited(bad["f"], -1)
        assert [(call.outcome, call.error, call.message) for call in bad.calls] == [("real", "ValueError", "no -1")]
        assert bad.record()["outcome"] == 0
        assert set(bad.record()["losses"]) == {"refused_call", "gave_up_early"}

    asyncio.run(play())


@pytest.mark.parametrize("fail", ["before", "after"])
@pytest.mark.parametrize("name", AWAITED)
def test_a_lost_answer_is_one_of_something_that_ran(name: str, fail: str) -> None:
    async def play() -> None:
        lost = inject({"f": AWAITED[name]}, law=1e-9, fail=fail)
        with pytest.raises(InjectedFailure):
            await awaited(lost["f"], 7)
        assert [(call.outcome, call.ran) for call in lost.calls] == [("injected", fail == "after")]
        assert ([7] if fail == "after" else []) == RAN

    asyncio.run(play())


def test_a_promise_that_nobody_waits_for_is_no_answer() -> None:
    async def play() -> None:
        with inject({"f": decorated(fetch)}, law={"base": 1.0}, required=["f"]) as tools:
            promise = tools["f"](1)
        assert [(call.outcome, call.error) for call in tools.calls] == [("real", "gone")]
        assert tools.record()["outcome"] == 0
        assert identity_error(tools.record()) < 1e-12
        assert await promise == 1  # late, but it is what the function returned
        assert len(tools.calls) == 1

    asyncio.run(play())


def test_a_task_has_answered_even_if_nobody_awaits_it_and_can_be_cancelled() -> None:
    async def play() -> None:
        for lost, told in ((False, ("ok", None)), (True, ("injected", "TIMEOUT"))):
            law = {"base": 1e-9 if lost else 1.0, "errors": {"TIMEOUT": 1}}
            tools = inject({"f": in_a_task}, law=law, fail="after")
            tools["f"](1)
            task = tools["f"](2)
            assert isinstance(task, asyncio.Future)
            task.cancel()
            await asyncio.wait([task])
            assert task.cancelled()
            while len(tools.calls) < 2:
                await asyncio.sleep(0)
            assert sorted((call.outcome, call.error) for call in tools.calls) == [told, ("real", "CancelledError")]
        assert RAN == [1, 1]

    asyncio.run(asyncio.wait_for(play(), WAITING_SECONDS))


def test_a_future_that_is_done_has_answered_before_its_loop_says_so() -> None:
    async def play(number: int) -> tuple[str, str | None]:
        with inject({"f": in_a_task}, law={"base": 1.0}) as tools:
            task = tools["f"](number)
            while not task.done():
                await asyncio.sleep(0)
        task.exception()
        (call,) = tools.calls
        return call.outcome, call.error

    assert asyncio.run(play(1)) == ("ok", None)
    assert asyncio.run(play(-1)) == ("real", "ValueError")


def test_requests_that_begin_a_block_have_answered_inside_it() -> None:
    async def play() -> None:
        tools = inject({"f": requested}, law={"base": 1.0})
        async with tools["f"](3) as number:
            assert number == 3
            assert [call.outcome for call in tools.calls] == ["ok"]
        lost = inject({"f": requested}, law=1e-9, fail="after")
        RAN.clear()
        with pytest.raises(InjectedFailure):
            async with lost["f"](4):
                raise AssertionError("unreachable")
        assert RAN == [4, "left"]
        assert lost["f"](5).number == 5

    asyncio.run(play())


def test_futures_of_pools_answer_when_they_are_done() -> None:
    with concurrent.futures.ThreadPoolExecutor(2) as pool:

        def submit(number: int) -> concurrent.futures.Future[int]:
            return pool.submit(asyncio.run, fetch(number))

        tools = inject([submit], law={"base": 1.0})
        assert [future.result(20) for future in [tools[0](number) for number in range(5)]] == list(range(5))
        failing = tools[0](-1)
        assert isinstance(failing.exception(20), ValueError)
        assert [call.outcome for call in tools.calls] == ["ok"] * 5 + ["real"]
        lost = inject([submit], law=1e-9, fail="after")
        assert isinstance(lost[0](9).exception(20), InjectedFailure)
        assert [(call.outcome, call.ran) for call in lost.calls] == [("injected", True)]
        assert 9 in RAN
        cancelled = inject({"f": lambda: concurrent.futures.Future()}, law={"base": 1.0})
        future = cancelled[0]()
        assert future.cancel()
        assert future.cancelled()
        assert [(call.outcome, call.error) for call in cancelled.calls] == [("real", "CancelledError")]


def counted(number: int) -> Iterator[int]:
    for place in range(number):
        RAN.append(place)
        yield place
    if number == 3:
        raise ValueError("torn")
    RAN.append("end")
    return number


async def counted_later(number: int) -> AsyncIterator[int]:
    for place in range(number):
        RAN.append(place)
        yield place
    if number == 3:
        raise ValueError("torn")
    RAN.append("end")


def listed(items: Any, most: int | None = None) -> list[int]:
    """Read a generator of either kind, to its end or for some items."""

    async def read() -> list[int]:
        found = []
        async for item in items:
            found.append(item)
            if len(found) == most:
                break
        await items.aclose()
        return found

    if inspect.isasyncgen(items):
        return asyncio.run(read())
    found = []
    for item in items:
        found.append(item)
        if len(found) == most:
            break
    items.close()
    return found


GENERATORS = {
    "generator": counted,
    "decorated generator": decorated(counted),
    "generator method": types.MethodType(lambda self, number: counted(number), object()),
    "async generator": counted_later,
    "decorated async generator": decorated(counted_later),
    "partial async generator": functools.partial(counted_later),
}


@pytest.mark.parametrize("name", GENERATORS)
def test_a_generator_has_answered_at_its_end_or_where_its_reader_stops(name: str) -> None:
    tools = inject({"f": GENERATORS[name]}, law={"base": 1.0}, required=["f"])
    with tools:
        assert listed(tools["f"](4)) == [0, 1, 2, 3]
        assert listed(tools["f"](4), most=2) == [0, 1]
        with pytest.raises(ValueError, match="torn"):
            listed(tools["f"](3))
    assert [(call.outcome, call.ran) for call in tools.calls] == [("ok", True), ("ok", True), ("real", True)]
    assert tools.record()["outcome"] == 1
    assert RAN == [0, 1, 2, 3, "end", 0, 1, 0, 1, 2]
    torn = inject({"f": GENERATORS[name]}, law={"base": 1.0}, required=["f"])
    with torn, contextlib.suppress(ValueError):
        listed(torn["f"](3))
    assert torn.record()["outcome"] == 0


@pytest.mark.parametrize("fail", ["before", "after"])
@pytest.mark.parametrize("name", GENERATORS)
def test_a_lost_generator_has_run_and_yields_nothing(name: str, fail: str) -> None:
    tools = inject({"f": GENERATORS[name]}, law=1e-9, fail=fail)
    got: list[int] = []
    with pytest.raises(InjectedFailure):
        got += listed(tools["f"](4))
    assert got == []
    assert ([0, 1, 2, 3, "end"] if fail == "after" else []) == RAN
    assert [(call.outcome, call.ran) for call in tools.calls] == [("injected", fail == "after")]


def test_generators_without_end_lose_a_part() -> None:
    def forever() -> Iterator[int]:
        number = 0
        while True:
            RAN.append(number)
            yield number
            number += 1

    tools = inject([forever], law=1e-9, fail="after")
    with pytest.raises(InjectedFailure):
        next(tools[0]())
    assert len(RAN) == MOST_LOST_ITEMS


def test_generators_take_what_is_sent_and_thrown_and_return_what_they_return() -> None:
    def echo() -> Any:
        received = []
        while len(received) < 3:
            try:
                received.append((yield received))
            except KeyError:
                received.append("thrown")
        return received

    tools = inject([echo], law={"base": 1.0})
    items = tools[0]()
    next(items)
    items.send("a")
    items.throw(KeyError("b"))
    with pytest.raises(StopIteration) as ended:
        items.send("c")
    assert ended.value.value == ["a", "thrown", "c"]
    assert [call.outcome for call in tools.calls] == ["ok"]

    async def echo_later() -> Any:
        received: list[object] = []
        while len(received) < 3:
            try:
                received.append((yield received))
            except KeyError:
                received.append("thrown")

    async def play() -> None:
        tools = inject([echo_later], law={"base": 1.0})
        items = tools[0]()
        await anext(items)
        await items.asend("a")
        assert await items.athrow(KeyError("b")) == ["a", "thrown"]
        with pytest.raises(StopAsyncIteration):
            await items.asend("c")
        assert [call.outcome for call in tools.calls] == ["ok"]

    asyncio.run(play())


def test_generators_that_are_never_read_are_no_calls_or_no_answers() -> None:
    with inject({"f": counted, "g": decorated(counted)}, law={"base": 1.0}, required=["f"]) as tools:
        tools["f"](2)  # as a coroutine that is never awaited
        tools["g"](2)
        gc.collect()
    assert [(call.tool, call.outcome, call.error) for call in tools.calls] == [("g", "real", "gone")]
    assert RAN == []


@contextlib.contextmanager
def opened(number: int) -> Iterator[int]:
    RAN.append("open")
    if number < 0:
        raise ValueError("shut")
    try:
        yield number
    finally:
        RAN.append("closed")


@contextlib.asynccontextmanager
async def opened_later(number: int) -> AsyncIterator[int]:
    with opened(number) as inner:
        yield inner


async def used(manager: Any, raises: bool = False) -> Any:
    if isinstance(manager, contextlib.AbstractAsyncContextManager):
        async with manager as inner:
            if raises:
                raise KeyError(inner)
            return inner
    with manager as inner:
        if raises:
            raise KeyError(inner)
        return inner


@pytest.mark.parametrize("function", [opened, opened_later])
def test_contexts_have_answered_when_their_block_begins(function: Any) -> None:
    async def play() -> None:
        tools = inject([function], law={"base": 1.0})
        assert await used(tools[0](5)) == 5
        with pytest.raises(KeyError):  # what goes wrong in the block is not the function's doing
            await used(tools[0](6), raises=True)
        with pytest.raises(ValueError, match="shut"):
            await used(tools[0](-1))
        assert [call.outcome for call in tools.calls] == ["ok", "ok", "real"]
        assert RAN == ["open", "closed", "open", "closed", "open"]
        RAN.clear()
        for fail in ("before", "after"):
            lost = inject([function], law=1e-9, fail=fail)
            with pytest.raises(InjectedFailure):
                await used(lost[0](7))
            assert [(call.outcome, call.ran) for call in lost.calls] == [("injected", fail == "after")]
        assert RAN == ["open", "closed"]

    asyncio.run(play())


def test_values_that_only_look_like_promises_are_answers() -> None:
    with inject({"f": lambda value: value, "g": open}, law={"base": 1.0}) as tools:
        for value in (None, 0, [1], map(str, [1]), iter([1]), object, RAN.append, contextlib.nullcontext()):
            assert tools["f"](value) is value
        with tools["g"](__file__, encoding="utf-8") as stream:
            assert stream.readline().startswith('"""')
    assert {call.outcome for call in tools.calls} == {"ok"}


def test_functions_say_of_themselves_what_they_said_before() -> None:
    assert [
        kind_of(function) for function in (fetch, functools.partial(fetch), Client().get, Client(), Inherited())
    ] == ["coroutine"] * 5
    assert [kind_of(function) for function in (counted, counted_later, len, int, Client, lambda: fetch(1))] == [
        "generator",
        "async generator",
        *["plain"] * 4,
    ]
    tools = inject({"c": fetch, "m": Client(), "g": counted, "a": counted_later, "p": len}, law={"base": 1.0})
    assert [inspect.iscoroutinefunction(each) for each in tools] == [True, True, False, False, False]
    assert [inspect.isgeneratorfunction(each) for each in tools] == [False, False, True, False, False]
    assert [inspect.isasyncgenfunction(each) for each in tools] == [False, False, False, True, False]
    assert inspect.signature(tools["c"]) == inspect.signature(fetch)
