"""Many tasks: several under way at once, results in the order of the tasks, memory bounded by a window."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Iterable, Iterator
from typing import TypeVar

from resilisim.errors import InfrastructureError, InvalidInputError, ResiliSimError
from resilisim.tasks.enhancement.enhancer import TaskEnhancer
from resilisim.tasks.enhancement.outcomes import Enhancement, Refusal, refused
from resilisim.tasks.types import Task

T = TypeVar("T")
R = TypeVar("R")

DEFAULT_CONCURRENCY = 8
DEFAULT_GIVE_UP_AFTER = 50
WINDOW_PER_SLOT = 4  # tasks begun or finished but not yet handed on, for each that may be under way


def enhance_tasks(
    tasks: Iterable[Task],
    enhancer: TaskEnhancer,
    *,
    concurrency: int = DEFAULT_CONCURRENCY,
    give_up_after: int = DEFAULT_GIVE_UP_AFTER,
    taken_ids: Iterable[str] = (),
) -> Generator[Enhancement, None, None]:
    """Enhance tasks and yield what became of them, in their order; runs an event loop of its own.

    A task whose call failed is held back until another one is answered: only then is it known that the endpoint works
    and that the original is all that can be had. If it fails for `give_up_after` tasks in a row, nothing that was held
    back is yielded, so that a later run can do better; fewer tasks than that are yielded as they were.

    Args:
        tasks: Read as they are needed.
        enhancer: Who does it; it is closed at the end.
        concurrency: Tasks under way at once, 1 or more.
        give_up_after: Failures in a row that mean that the endpoint is down; 0 never gives up and keeps originals.
        taken_ids: Ids that no designed task may have.

    Yields:
        One enhancement for each task.

    Raises:
        InvalidInputError: An argument is out of range, or the endpoint refuses key, model or address.
        InfrastructureError: The endpoint is down.
    """
    if concurrency < 1:
        raise InvalidInputError(f"concurrency {concurrency!r}: expected 1 or more")
    if give_up_after < 0:
        raise InvalidInputError(f"give_up_after {give_up_after!r}: expected 0 or more")
    stream = in_order(enhancer.enhance, tasks, concurrency, WINDOW_PER_SLOT * concurrency)
    results = driven(stream, enhancer.aclose)
    try:
        yield from without_duplicates(holding_failures_back(results, give_up_after), set(taken_ids))
    finally:
        results.close()


async def in_order(
    work: Callable[[T], Awaitable[R]], items: Iterable[T], concurrency: int, window: int
) -> AsyncGenerator[R, None]:
    """Do some work on items, `concurrency` at once, and yield the results in the order of the items.

    Args:
        work: What to do with one item.
        items: Read as they are needed.
        concurrency: How many may be under way.
        window: How many may be begun and not yet yielded; bounds what is kept when one takes long.
    """
    slots = asyncio.Semaphore(concurrency)

    async def one(item: T) -> R:
        async with slots:
            return await work(item)

    begun: deque[asyncio.Task[R]] = deque()
    try:
        for item in items:
            begun.append(asyncio.create_task(one(item)))
            if len(begun) >= window:
                yield await begun[0]
                begun.popleft()
        while begun:
            yield await begun[0]
            begun.popleft()
    finally:
        for task in begun:
            task.cancel()
        await asyncio.gather(*begun, return_exceptions=True)


def driven(stream: AsyncGenerator[R, None], close: Callable[[], Awaitable[None]]) -> Generator[R, None, None]:
    """Yield what an asynchronous stream yields, in an event loop that stands still while the caller has the turn.

    Args:
        stream: The stream; it is closed at the end, also when the caller asks for no more.
        close: Awaited after that.
    """

    async def following() -> tuple[R] | None:
        async for item in stream:
            return (item,)
        return None

    async def ended() -> None:
        try:
            await stream.aclose()
        finally:
            await close()

    with asyncio.Runner() as runner:
        try:
            while (item := runner.run(following())) is not None:
                yield item[0]
        finally:
            runner.run(ended())


def holding_failures_back(enhancements: Iterable[Enhancement], give_up_after: int) -> Iterator[Enhancement]:
    """Yield enhancements in order, failed ones only after a later one that did not fail.

    Raises:
        ResiliSimError: The last failure, after `give_up_after` (not 0) in a row.
    """
    held_back: list[Enhancement] = []
    for enhancement in enhancements:
        if enhancement.outcome == "failed" and give_up_after:
            held_back.append(enhancement)
            if len(held_back) == give_up_after:
                raise _down(enhancement, len(held_back))
            continue
        yield from held_back
        held_back.clear()
        yield enhancement
    yield from held_back


def without_duplicates(enhancements: Iterable[Enhancement], taken_ids: set[str]) -> Iterator[Enhancement]:
    """Yield enhancements; one whose task was there before is refused, since ids in a file must differ."""
    for enhancement in enhancements:
        result = enhancement
        if enhancement.task.instance_id in taken_ids and enhancement.outcome == "enhanced":
            facts = enhancement.task.metadata["enhancement"]
            made_by = {key: facts[key] for key in ("mode", "model", "made_from")}
            refusal = Refusal("duplicate", f"{enhancement.task.instance_id} was designed before")
            result = refused(enhancement.original, refusal, made_by, enhancement.count)
        taken_ids.add(result.task.instance_id)
        yield result


def _down(last: Enhancement, failures: int) -> ResiliSimError:
    """Return the error that ends a run: the endpoint's own, and what it means for the run."""
    error = last.error or InfrastructureError("the endpoint does not answer")
    tasks = "1 task" if failures == 1 else f"{failures} tasks in a row"
    text = f"{error}; stopped after {tasks}, what was finished is kept and the same command goes on"
    return InvalidInputError(text) if isinstance(error, InvalidInputError) else InfrastructureError(text)
