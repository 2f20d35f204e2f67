"""The ends of the wires: a server that is a process, one that listens, and the client on the standard streams.

Each is a pair of what is read (messages, and what is none) and what is written to. None of them can be blocked for
ever by the other side, and none drops what it cannot read.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import threading
from collections.abc import AsyncIterator, Sequence
from queue import SimpleQueue
from typing import Any, Final, TypeAlias

import anyio
from mcp.shared.message import SessionMessage
from mcp_types import INVALID_REQUEST, PARSE_ERROR, ErrorData, JSONRPCError

from resilisim.errors import InfrastructureError
from resilisim.integrations.mcp.wire import MOST_MESSAGE_BYTES, Read, Unreadable, encoded, read_messages
from resilisim.process_tree import end_tree, supervised

_BLOCK: Final = 65536  # bytes that are read at a time
_READ_AHEAD: Final = 64  # messages that are read before they are taken
_EXIT_SECONDS: Final = 2.0  # for a server whose input has ended, as the protocol has it
_MOST_UNSENT: Final = 64 * 1024 * 1024  # bytes for somebody who does not read

Item: TypeAlias = "SessionMessage | Unreadable"


class Lines:
    """Bytes cut into lines, and read as messages; a line that is too long is told and left out."""

    def __init__(self) -> None:
        self._rest = bytearray()
        self._head: bytes | None = None  # of a line that is too long

    def take(self, data: bytes) -> list[Item]:
        """Return what has come to its end with more bytes."""
        messages: list[Read] = []
        *whole, last = data.split(b"\n")
        for part in whole:
            messages += self._line(part)
        self._rest += last
        if len(self._rest) > MOST_MESSAGE_BYTES:
            self._head = self._head or bytes(self._rest[:_BLOCK])
            self._rest.clear()
        return [SessionMessage(each) if not isinstance(each, Unreadable) else each for each in messages]

    def end(self) -> list[Item]:
        """Return what is left when there are no more bytes."""
        return self.take(b"\n") if self._rest or self._head else []

    def _line(self, part: bytes) -> list[Read]:
        line, head = bytes(self._rest) + part, self._head
        self._rest.clear()
        self._head = None
        if head is None and len(line) <= MOST_MESSAGE_BYTES:
            return read_messages(line)
        head = head or line[:_BLOCK]
        said = next((each for each in read_messages(head) if isinstance(each, Unreadable)), Unreadable(""))
        words = f"a line of more than {MOST_MESSAGE_BYTES // 2**20} MiB: {said.words.rpartition(': ')[2]}"
        return [Unreadable(words, said.id, said.method, said.tool)]


class Writer:
    """Where messages are written, in a thread of its own, so that nobody waits for somebody who does not read."""

    def __init__(self, descriptor: int) -> None:
        self.has_failed = asyncio.Event()
        self._descriptor = descriptor
        self._loop = asyncio.get_running_loop()
        self._queue: SimpleQueue[bytes | None] = SimpleQueue()
        self._queued = self._sent = 0  # bytes; each is counted by one thread only
        self._done = asyncio.Event()
        threading.Thread(target=self._work, daemon=True).start()

    async def send(self, item: SessionMessage) -> None:
        """Write a message, sooner or later.

        Raises:
            InfrastructureError: Nobody reads what is written.
        """
        line = encoded(item.message)
        self._queued += len(line)
        if self._queued - self._sent > _MOST_UNSENT:
            raise InfrastructureError(f"{_MOST_UNSENT // 2**20} MiB of messages were written that nobody reads")
        self._queue.put(line)

    async def aclose(self, seconds: float = 0.5) -> None:
        """Write what is left, as far as somebody reads it within a time, and close the stream."""
        self._queue.put(None)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._done.wait(), seconds)

    def _work(self) -> None:
        try:
            while (line := self._queue.get()) is not None:
                rest = memoryview(line)
                while rest:
                    rest = rest[os.write(self._descriptor, rest) :]
                self._sent += len(line)
        except OSError:
            self._tell(self.has_failed)
        with contextlib.suppress(OSError):
            os.close(self._descriptor)
        self._tell(self._done)

    def _tell(self, event: asyncio.Event) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            self._loop.call_soon_threadsafe(event.set)


@contextlib.asynccontextmanager
async def process_streams(command: Sequence[str]) -> AsyncIterator[tuple[AsyncIterator[Item], Writer]]:
    """Run a server, and yield what it says and where it is spoken to; whatever comes of it ends with the block.

    Raises:
        OSError: It cannot be started.
    """
    incoming, outgoing = os.pipe()
    try:
        process = await asyncio.create_subprocess_exec(
            *supervised(command), stdin=incoming, stdout=asyncio.subprocess.PIPE, start_new_session=True
        )
    except BaseException:
        os.close(outgoing)
        raise
    finally:
        os.close(incoming)
    writer = Writer(outgoing)
    try:
        yield _of_process(process), writer
    finally:
        await asyncio.shield(_end(process, writer))


async def _of_process(process: asyncio.subprocess.Process) -> AsyncIterator[Item]:
    lines = Lines()
    while process.stdout is not None and (data := await process.stdout.read(_BLOCK)):
        for item in lines.take(data):
            yield item
    for item in lines.end():
        yield item


async def _end(process: asyncio.subprocess.Process, writer: Writer) -> None:
    await writer.aclose()
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(_drained(process), _EXIT_SECONDS)
    await end_tree(process, gently=True)


async def _drained(process: asyncio.subprocess.Process) -> None:
    """Read what a server says at its end, so that it does not wait for that, until it has ended."""
    while process.stdout is not None and await process.stdout.read(_BLOCK):
        pass
    await process.wait()


@contextlib.asynccontextmanager
async def standard_streams() -> AsyncIterator[tuple[AsyncIterator[Item], Writer]]:
    """Yield the client on the standard streams: what it says, and where it is spoken to.

    Meanwhile whatever else writes to the standard output reaches the standard error output.
    """
    incoming, outgoing = os.dup(0), os.dup(1)
    own_input = os.open(os.devnull, os.O_RDONLY)
    sys.stdout.flush()
    os.dup2(own_input, 0)
    os.close(own_input)
    os.dup2(2, 1)
    writer = Writer(os.dup(outgoing))
    try:
        yield _of_descriptor(incoming), writer
    finally:
        await asyncio.shield(writer.aclose())
        os.dup2(incoming, 0)
        os.dup2(outgoing, 1)
        os.close(outgoing)  # that of the input stays: a thread that cannot be woken may be reading it


async def _of_descriptor(descriptor: int) -> AsyncIterator[Item]:
    """Yield what is read in a thread, which nobody has to wait for."""
    loop = asyncio.get_running_loop()
    queue: asyncio.Queue[Item | None] = asyncio.Queue()
    room = threading.Semaphore(_READ_AHEAD)

    def hand_over(items: Sequence[Item | None]) -> None:
        for item in items:
            room.acquire()
            loop.call_soon_threadsafe(queue.put_nowait, item)

    def work() -> None:
        lines = Lines()
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody reads any more
            while data := _read(descriptor):
                hand_over(lines.take(data))
            hand_over([*lines.end(), None])

    threading.Thread(target=work, daemon=True).start()
    while (item := await queue.get()) is not None:
        room.release()
        yield item


@contextlib.asynccontextmanager
async def sessions(said: AsyncIterator[Item], outgoing: Writer) -> AsyncIterator[tuple[Any, Any]]:
    """Yield streams as a server of the library `mcp` takes them; what cannot be read is answered here."""
    to_server, read = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    write, from_server = anyio.create_memory_object_stream[SessionMessage](0)

    async def hear() -> None:
        async with to_server:
            async for item in said:
                if not isinstance(item, Unreadable):
                    await to_server.send(item)
                elif item.id is not None or item.method is None:
                    words = f"the client's message cannot be read: {item.words}"
                    error = ErrorData(code=PARSE_ERROR if item.id is None else INVALID_REQUEST, message=words)
                    await outgoing.send(SessionMessage(JSONRPCError(jsonrpc="2.0", id=item.id, error=error)))

    async def say() -> None:
        async with from_server:
            async for item in from_server:
                await outgoing.send(item)

    tasks = [asyncio.ensure_future(work()) for work in (hear, say)]
    try:
        yield read, write
    finally:
        for stream in (read, write):
            await stream.aclose()
        await asyncio.wait(tasks, timeout=_EXIT_SECONDS)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, _BLOCK)
    except OSError:
        return b""
