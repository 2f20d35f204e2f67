"""GGUF models through the server of llama.cpp, which is called directly: no HTTP lies between (package xllamacpp)."""

from __future__ import annotations

import asyncio
import dataclasses
import importlib
import os
import secrets
import threading
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from resilisim.chat.errors import ContextOverflowError, EndpointError, RequestRefusedError
from resilisim.chat.openai_wire import UnreadableAnswerError, error_message, read_completion, request_body
from resilisim.chat.types import ChatReply, ChatRequest
from resilisim.errors import InvalidInputError

_SILENT = 0  # llama.cpp's log then tells nothing, errors included: those come back as answers
_OVERFLOW_TYPE = "exceed_context_size_error"


@dataclass(frozen=True, slots=True)
class _Loading:
    """What decides how a model lies in memory; models of one process that agree in it are one.

    Attributes:
        path: The GGUF file.
        context: Tokens of a request.
        threads: Threads of the computation.
        slots: Requests that are answered at once.
        process: A forked process cannot use the threads of its parent, and loads its own.
    """

    path: Path
    context: int
    threads: int
    slots: int
    process: int


@dataclass(frozen=True, slots=True)
class _Engine:
    """A model in memory, and as many workers as it has slots: further requests wait for one of them."""

    server: Any
    workers: ThreadPoolExecutor


_engines: dict[_Loading, _Engine] = {}
_engines_lock = threading.Lock()


class GgufChatModel:
    """A GGUF model in this process, loaded at the first request and shared by all who ask for the same.

    Args:
        name: What records call it.
        path: The GGUF file.
        context: Tokens of prompt and answer together.
        threads: Threads of the computation.
        slots: Requests that are answered at once.
        reuse_prompts: Whether beginnings of prompts that were read before are kept. If not, an answer at
            temperature 0 or with a seed depends on its request alone.
    """

    def __init__(
        self, name: str, path: Path, *, context: int, threads: int, slots: int, reuse_prompts: bool = False
    ) -> None:
        self.name = name
        self._file_name = path.name
        self._loading = partial(_Loading, path.resolve(), context, threads, slots)
        self._reuse_prompts = reuse_prompts

    async def complete(self, request: ChatRequest) -> ChatReply:
        """Answer a request in a thread of its own.

        Raises:
            ContextOverflowError: The prompt is longer than the context.
            RequestRefusedError: llama.cpp refuses the request.
            EndpointError: It fails.
            InvalidInputError: The file cannot be loaded.
        """
        loading = self._loading(os.getpid())
        loop = asyncio.get_running_loop()
        engine = _engines.get(loading)
        if engine is None:
            engine = await loop.run_in_executor(None, _engine, loading)
        return await loop.run_in_executor(engine.workers, self._answer, engine.server, request)

    async def aclose(self) -> None:
        """Do nothing: the model stays in memory for whoever asks next."""

    def _answer(self, server: Any, request: ChatRequest) -> ChatReply:
        body = request_body(request, self.name)
        body["cache_prompt"] = self._reuse_prompts
        began = time.perf_counter()
        try:
            value = server.handle_chat_completions(body)
        except (RuntimeError, ValueError) as error:  # what C++ throws
            raise EndpointError(f"{self.name} failed: {' '.join(str(error).split())}") from error
        if isinstance(value, Mapping) and isinstance(value.get("error"), Mapping):
            self._refuse(value["error"])
        try:
            reply = read_completion(value, request, time.perf_counter() - began)
        except UnreadableAnswerError as error:
            raise EndpointError(f"{self.name} answers with {error}") from error
        return dataclasses.replace(reply, model=self._file_name)  # llama.cpp says the whole path

    def _refuse(self, error: Mapping[str, Any]) -> NoReturn:
        code = error.get("code")
        status = code if isinstance(code, int) else 500
        text = f"{self.name} refuses the request: {' '.join(error_message(error).split())[:200]}"
        if error.get("type") == _OVERFLOW_TYPE:
            raise ContextOverflowError(text, status)
        if 400 <= status < 500:
            raise RequestRefusedError(text, status)
        raise EndpointError(text, status)


def _engine(loading: _Loading) -> _Engine:
    """Return the model of this process, loading it if nobody has yet."""
    with _engines_lock:
        if loading not in _engines:
            workers = ThreadPoolExecutor(loading.slots, thread_name_prefix="resilisim-local")
            _engines[loading] = _Engine(_load(loading), workers)
        return _engines[loading]


def _load(loading: _Loading) -> Any:
    xllamacpp = importlib.import_module("xllamacpp")
    parameters = xllamacpp.CommonParams()
    parameters.model.path = str(loading.path)
    parameters.n_ctx = loading.context * loading.slots  # llama.cpp divides it among the slots
    parameters.n_parallel = loading.slots
    parameters.cpuparams.n_threads = loading.threads
    parameters.cpuparams_batch.n_threads = loading.threads
    parameters.fit_params = False  # otherwise the context may become another one where memory is short
    parameters.verbosity = _SILENT
    # The server also listens on loopback, which cannot be switched off; nobody is told the key.
    parameters.api_keys = [secrets.token_hex(16)]
    parameters.ui = False
    parameters.endpoint_slots = False
    try:
        return xllamacpp.Server(parameters)
    except (RuntimeError, ValueError) as error:
        raise InvalidInputError(f"local model {str(loading.path)!r} cannot be loaded by llama.cpp") from error
