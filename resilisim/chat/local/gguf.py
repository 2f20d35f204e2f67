"""GGUF files: what their heads say, models that run through llama.cpp, and tokens counted without loading a model.

The format: magic, version, number of tensors, number of facts, then each fact as key, type and value
(https://github.com/ggml-org/ggml/blob/master/docs/gguf.md). The server of llama.cpp is called directly: no HTTP lies
between (package xllamacpp).
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import hashlib
import importlib
import os
import secrets
import struct
import threading
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

from resilisim.chat.completions import UnreadableAnswerError, error_message, read_completion, request_body
from resilisim.chat.types import ChatReply, ChatRequest, ContextOverflowError, EndpointError, RequestRefusedError
from resilisim.errors import InvalidInputError, import_extra, one_line
from resilisim.provenance import describe_os_error, without_surrogates

_MAGIC = b"GGUF"
_OF_TOKENIZER = "tokenizer.ggml."
_STRING, _ARRAY = 8, 9
# Types of facts by their number in the format, as `struct` spells them.
_NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_MOST_FACTS = 10_000  # real files have some dozens
_LONGEST_STRING = 1 << 24  # bytes; chat templates have thousands
_LONGEST_ARRAY = 1 << 24  # entries; vocabularies have a hundred thousand
_SAMPLE = 1 << 20  # bytes at each end of a file that go into its fingerprint
_SILENT = 0  # llama.cpp's log then tells nothing, errors included: those come back as answers
TOKENIZER_FILE = "tokenizer.json"  # what a model's folder has beside its weights
KEPT_COUNTS = 65_536  # texts whose number of tokens is remembered: prompts and replies come again
ALL_LAYERS = 999  # more than any model has
_CONTROL = 3  # type of a token that is a mark, such as the end of a message


def gguf_facts(path: Path, *, lists: bool = False) -> tuple[int | None, dict[str, Any]]:
    """Return the tokens that a GGUF file's model was trained for, and facts of its tokenizer, long lists if wanted."""
    try:
        with path.open("rb") as stream:
            facts = _read_facts(stream, lists)
    except OSError as error:
        raise _unreadable(path, error) from None
    except (struct.error, ValueError):
        raise InvalidInputError(f"local model {str(path)!r} is no GGUF file, or its beginning is damaged") from None
    length = facts.get(f"{facts.get('general.architecture', '')}.context_length")
    tokenizer = {key.removeprefix(_OF_TOKENIZER): facts[key] for key in facts if key.startswith(_OF_TOKENIZER)}
    return length if isinstance(length, int) else None, tokenizer


def fingerprint(paths: Iterable[Path]) -> str:
    """Return a short hash of files by their sizes and both ends, which hold what tells one model from another."""
    digest = hashlib.sha256()
    for path in paths:
        try:
            with path.open("rb") as stream:
                size = stream.seek(0, 2)
                stream.seek(0)
                digest.update(f"{size} ".encode() + stream.read(_SAMPLE))
                stream.seek(max(0, size - _SAMPLE))
                digest.update(stream.read(_SAMPLE))
        except OSError as error:
            raise _unreadable(path, error) from None
    return digest.hexdigest()[:16]


def _unreadable(path: Path, error: OSError) -> InvalidInputError:
    return InvalidInputError(f"local model {str(path)!r} cannot be read: {describe_os_error(error)}")


def _read_facts(stream: BinaryIO, lists: bool) -> dict[str, Any]:
    if stream.read(4) != _MAGIC:
        raise ValueError("another magic")
    version, _, count = _unpack(stream, "IQQ")
    if version < 2 or count > _MOST_FACTS:
        raise ValueError("a version or number of facts that cannot be")
    facts: dict[str, Any] = {}
    for _ in range(count):
        key = _string(stream)
        (kind,) = _unpack(stream, "I")
        keep = lists and key.startswith(_OF_TOKENIZER)
        facts[key] = _array(stream, keep) if kind == _ARRAY else _value(stream, kind)
    return facts


def _value(stream: BinaryIO, kind: int) -> Any:
    if kind == _STRING:
        return _string(stream)
    if kind not in _NUMBERS:
        raise ValueError("an unknown type")
    return _unpack(stream, _NUMBERS[kind])[0]


def _array(stream: BinaryIO, keep: bool) -> list[Any] | None:
    """Return the entries of an array, or step over it and return None."""
    kind, count = _unpack(stream, "IQ")
    if count > _LONGEST_ARRAY:
        raise ValueError("an array that cannot be")
    if kind in _NUMBERS and not keep:
        stream.seek(count * struct.calcsize("<" + _NUMBERS[kind]), 1)
        return None
    entries = [_value(stream, kind) for _ in range(count)]
    return entries if keep else None


def _string(stream: BinaryIO) -> str:
    (length,) = _unpack(stream, "Q")
    if length > _LONGEST_STRING:
        raise ValueError("a string that cannot be")
    text = stream.read(length)
    if len(text) < length:
        raise ValueError("the file ends within a string")
    return text.decode("utf-8", "replace")


def _unpack(stream: BinaryIO, form: str) -> tuple[Any, ...]:
    layout = "<" + form
    return struct.unpack(layout, stream.read(struct.calcsize(layout)))


@dataclass(frozen=True, slots=True)
class Loading:
    """What decides how a model lies in memory; models of one process that agree in it are one."""

    path: Path
    context: int
    threads: int
    slots: int
    adapter: Path | None = None  # a GGUF file of LoRA matrices on top of the model
    on_gpu: bool = False
    adapter_hash: str = ""  # its content's, as a file of the same name may hold others later


# A server in memory, and as many workers as it has slots: further requests wait for one of them.
_Engine = tuple[Any, ThreadPoolExecutor]
# By process, too: a forked one cannot use the threads of its parent, and loads its own.
_engines: dict[tuple[Loading, int], _Engine] = {}
_engines_lock = threading.Lock()


class GgufChatModel:
    """A GGUF model in this process, loaded at the first request and shared by all who ask for the same."""

    def __init__(self, name: str, loading: Loading, *, reuse_prompts: bool = False) -> None:
        self.name = name
        self._loading = loading
        self._reuse_prompts = reuse_prompts

    async def complete(self, request: ChatRequest) -> ChatReply:
        """Answer a request in a thread of its own; `InvalidInputError` if the file cannot be loaded."""
        loop = asyncio.get_running_loop()
        engine = _engines.get((self._loading, os.getpid()))
        if engine is None:
            engine = await loop.run_in_executor(None, _engine, self._loading)
        server, workers = engine
        return await loop.run_in_executor(workers, self._answer, server, request)

    async def aclose(self) -> None:
        """Do nothing: the model stays in memory for whoever asks next."""

    def _answer(self, server: Any, request: ChatRequest) -> ChatReply:
        body = request_body(request, self.name)
        body["cache_prompt"] = self._reuse_prompts
        began = time.perf_counter()
        try:
            value = server.handle_chat_completions(body)
        except (RuntimeError, ValueError) as error:  # what C++ throws
            raise EndpointError(f"{self.name} failed: {one_line(error)}") from error
        if isinstance(value, Mapping) and isinstance(value.get("error"), Mapping):
            self._refuse(value["error"])
        try:
            reply = read_completion(value, request, time.perf_counter() - began)
        except UnreadableAnswerError as error:
            raise EndpointError(f"{self.name} answers with {error}") from error
        file = self._loading.adapter or self._loading.path
        return dataclasses.replace(reply, model=file.name)  # llama.cpp says the whole path

    def _refuse(self, error: Mapping[str, Any]) -> NoReturn:
        code = error.get("code")
        status = code if isinstance(code, int) else 500
        text = f"{self.name} refuses the request: {one_line(error_message(error))}"
        if error.get("type") == "exceed_context_size_error":
            raise ContextOverflowError(text, status)
        if 400 <= status < 500:
            raise RequestRefusedError(text, status)
        raise EndpointError(text, status)


def _engine(loading: Loading) -> _Engine:
    """Return the model of this process, loading it if nobody has yet."""
    key = (loading, os.getpid())
    with _engines_lock:
        if key not in _engines:
            workers = ThreadPoolExecutor(loading.slots, thread_name_prefix="resilisim-local")
            _engines[key] = _load(loading), workers
        return _engines[key]


def release(adapter_hash: str) -> None:
    """Let go of the models of this process that lie in memory under an adapter, as one that is trained on changes."""
    with _engines_lock:
        for key in [key for key in _engines if key[0].adapter_hash == adapter_hash]:
            _, workers = _engines.pop(key)
            workers.shutdown()


def _load(loading: Loading) -> Any:
    xllamacpp = importlib.import_module("xllamacpp")
    parameters = xllamacpp.CommonParams()
    parameters.model.path = str(loading.path)
    if loading.adapter is not None:
        parameters.lora_adapters = [xllamacpp.CommonAdapterLoraInfo(str(loading.adapter), 1.0)]
    parameters.n_ctx = loading.context * loading.slots  # llama.cpp divides it among the slots
    parameters.n_parallel = loading.slots
    if loading.on_gpu:
        parameters.n_gpu_layers = ALL_LAYERS
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
        file = loading.adapter or loading.path
        raise InvalidInputError(f"local model {str(file)!r} cannot be loaded by llama.cpp") from error


BASE_KEY = "resilisim.base"  # fact of an adapter: name and fingerprint of the model that it was trained on


def base_of_adapter(path: Path) -> str:
    """Return which model an adapter was trained on, by name and fingerprint."""
    try:
        with path.open("rb") as stream:
            facts = _read_facts(stream, lists=False)
    except OSError as error:
        raise _unreadable(path, error) from None
    except (struct.error, ValueError):
        raise InvalidInputError(f"adapter {str(path)!r} is no GGUF file, or its beginning is damaged") from None
    if facts.get("general.type") != "adapter" or not isinstance(facts.get(BASE_KEY), str):
        raise InvalidInputError(f"{str(path)!r} is no adapter of 'resilisim train lm': it names no {BASE_KEY}")
    return str(facts[BASE_KEY])


def model_fingerprint(path: Path) -> str:
    """Return name and fingerprint of a model, as adapters name it."""
    return f"{path.name} {fingerprint([path])}"


def gguf_chat_tokenizer(path: Path) -> tuple[Any, str]:
    """Return a GGUF file's tokenizer, as the package tokenizers has it, and its chat template."""
    tokenizers = import_extra("tokenizers", "a model's tokens need", "datasets")
    try:
        with path.open("rb") as stream:
            template = _read_facts(stream, lists=False).get("tokenizer.chat_template")
    except OSError as error:
        raise _unreadable(path, error) from None
    if not isinstance(template, str):
        raise InvalidInputError(f"local model {str(path)!r} has no chat template: expected one for conversations")
    return _of_gguf(path, tokenizers), template


class TokenCounter:
    """Counts tokens by a GGUF file, a `tokenizer.json`, or a folder that holds one; `name` tells file and hash."""

    def __init__(self, path: Path) -> None:
        path = path / TOKENIZER_FILE if path.is_dir() else path
        if not path.is_file():
            raise InvalidInputError(f"tokenizer {str(path)!r} does not exist: expected a GGUF file or a tokenizer.json")
        tokenizers = import_extra("tokenizers", "counting tokens needs", "datasets")
        self._tokenizer = _of_gguf(path, tokenizers) if path.suffix == ".gguf" else _of_json(path, tokenizers)
        # Returns the number of tokens of a text, without marks that a model puts around it.
        self.count = functools.lru_cache(maxsize=KEPT_COUNTS)(self._encoded_length)
        self.name = f"{path.name} {fingerprint([path])}"

    def _encoded_length(self, text: str) -> int:
        return len(self._tokenizer.encode(without_surrogates(text), add_special_tokens=False).ids)


def _of_json(path: Path, tokenizers: Any) -> Any:
    try:
        return tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the package raises nothing narrower
        raise InvalidInputError(f"tokenizer {str(path)!r} cannot be read: {one_line(error)}") from None


def _of_gguf(path: Path, tokenizers: Any) -> Any:
    """Return the tokenizer of a file, built once: that takes a quarter of a second."""
    try:
        found = path.stat()
    except OSError as error:
        raise _unreadable(path, error) from None
    return _built(path, tokenizers, found.st_mtime_ns, found.st_size)


@functools.lru_cache(maxsize=4)
def _built(path: Path, tokenizers: Any, changed: int, size: int) -> Any:
    """Build the byte-level tokenizer of SmolLM2: each digit a token, then the merges of the file."""
    _, facts = gguf_facts(path, lists=True)
    if (facts.get("model"), facts.get("pre")) != ("gpt2", "smollm"):
        raise InvalidInputError(
            f"tokenizer {str(path)!r} is of the kind {facts.get('pre')!r}: expected 'smollm', or the model's "
            f"{TOKENIZER_FILE} in its place"
        )
    tokens, kinds, merges = facts["tokens"], facts["token_type"], facts["merges"]
    vocabulary = {token: number for number, token in enumerate(tokens)}
    tokenizer = tokenizers.Tokenizer(
        tokenizers.models.BPE(vocabulary, [tuple(merge.split(" ", 1)) for merge in merges])
    )
    before = tokenizers.pre_tokenizers
    tokenizer.pre_tokenizer = before.Sequence(
        [before.Digits(individual_digits=True), before.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    tokenizer.add_special_tokens([token for token, kind in zip(tokens, kinds, strict=True) if kind == _CONTROL])
    return tokenizer
