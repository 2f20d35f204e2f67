"""Replies on disk, by content hash: an answer that was paid for once is never asked for again.

One small file for each reply, so a damaged one costs one request. A file gets its name when it is whole, and its text
carries the hash of the reply, so whatever a kill, a power cut or another process leaves behind is noticed and
written anew. Nothing is flushed to the platter one by one, which would cost more time than everything else: after a
power cut some replies may have to be asked for again.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import itertools
import json
import os
import warnings
import weakref
from pathlib import Path
from typing import Any

from resilisim.chat.types import ChatModel, ChatReply, ChatRequest
from resilisim.provenance import content_hash, describe_os_error, encode_json

CACHE_SCHEMA = "resilisim-chat-1"

_temporary_numbers = itertools.count()


def request_key(identity: str, request: ChatRequest) -> str:
    """Return the hash under which the reply to a request is kept.

    Args:
        identity: What model answers and where (`model_identity`); holds no secret.
        request: The request; the component that asks makes no difference.
    """
    return content_hash([CACHE_SCHEMA, identity, request.content()])


class ResponseCache:
    """Replies by key, in one folder.

    Args:
        folder: Made when the first reply is kept.
    """

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder)
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
            self._tell(error)

    def _path(self, key: str) -> Path:
        return self.folder / key[:2] / f"{key}.json"

    def _tell(self, error: OSError) -> None:
        if not self._told:
            self._told = True
            problem = describe_os_error(error)
            warnings.warn(f"replies cannot be kept in {self.folder}: {problem}", UserWarning, stacklevel=3)


class CachingChatModel:
    """A chat model that asks another one only what it was not asked before.

    Equal requests at the same time are asked once: the others wait for the first, so that all get what is kept.

    Args:
        model: Who is asked.
        cache: Where replies are kept.
        identity: What model answers and where; replies under another identity are not taken.
    """

    def __init__(self, model: ChatModel, cache: ResponseCache, identity: str) -> None:
        self._model = model
        self._cache = cache
        self._identity = identity
        self._locks: weakref.WeakValueDictionary[str, asyncio.Lock] = weakref.WeakValueDictionary()

    @property
    def name(self) -> str:
        """The name of the model that is asked."""
        return self._model.name

    async def complete(self, request: ChatRequest) -> ChatReply:
        """Answer from the cache, or ask and keep the reply; failures are not kept."""
        key = request_key(self._identity, request)
        lock = self._locks.setdefault(key, asyncio.Lock())
        async with lock:
            kept = self._cache.load(key)
            if kept is not None:
                return kept
            reply = await self._model.complete(request)
            self._cache.store(key, reply)
            return reply

    async def aclose(self) -> None:
        """Close the model that is asked."""
        await self._model.aclose()
