"""APIs of the tests' own on loopback servers that behave as told."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from resilisim.worlds.apis import find_api
from resilisim.worlds.apis.api import PublicApi

Behaviour = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let calls of loopback servers reach them."""
    monkeypatch.setenv("NO_PROXY", "*")


def api_at(url: str, **changes: Any) -> PublicApi:
    """Return an API with one value at an address of the test's own."""
    return dataclasses.replace(find_api("ip_address_fetcher"), url=url, **changes)


@asynccontextmanager
async def server(behave: Behaviour, **settings: Any) -> AsyncIterator[int]:
    """Serve each connection by a coroutine, and give the port."""
    tasks: set[asyncio.Task[Any]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            await behave(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    listening = await asyncio.start_server(serve, "127.0.0.1", 0, **settings)
    try:
        yield listening.sockets[0].getsockname()[1]
    finally:
        listening.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
