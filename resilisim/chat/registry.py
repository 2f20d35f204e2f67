"""Chat models by their spelling, such as `openai:gpt-4o-mini`: the kind, a colon, and the kind's name for the model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from resilisim.chat.cache import CachingChatModel, ResponseCache
from resilisim.chat.local import local_identity, make_local_model
from resilisim.chat.openai_endpoint import endpoint_url
from resilisim.chat.openai_model import DEFAULT_TIMEOUT_SECONDS, OpenAIChatModel
from resilisim.chat.rate_limit import RateLimitedChatModel
from resilisim.chat.retrying import RetryPolicy
from resilisim.chat.script_file import FileScriptedChatModel, script_identity
from resilisim.chat.types import ChatModel
from resilisim.errors import MAX_COUNT, InvalidInputError, unknown_name
from resilisim.options import option

DEFAULT_CONCURRENCY = 8
MAX_CONCURRENCY = 10_000
MAX_SECONDS = 1e6  # of waiting for an answer


@dataclass(frozen=True, slots=True)
class ChatModelSettings:
    """How a model is reached; a kind of model takes what it can use.

    Attributes:
        api_key: Key of the endpoint; None takes the environment's.
        retry: When to ask again.
        local_context: Tokens that a model that runs here reads and writes in one request at most; None takes what it
            was trained for, at most 8192.
    """

    base_url: str | None = option(
        None,
        "Address of an OpenAI-compatible endpoint; OPENAI_BASE_URL, else OpenAI's, if left out. The key is taken from "
        "OPENAI_API_KEY.",
    )
    api_key: str | None = field(default=None, repr=False)
    timeout_seconds: float = option(
        DEFAULT_TIMEOUT_SECONDS, "Seconds for one request.", least=0.01, most=MAX_SECONDS, flag="--timeout"
    )
    max_concurrency: int = option(
        DEFAULT_CONCURRENCY, "Requests under way at once.", least=1, most=MAX_CONCURRENCY, flag="--concurrency"
    )
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    requests_per_minute: float | None = option(None, "Most requests a minute.", least=0.01)
    tokens_per_minute: float | None = option(None, "Most tokens a minute.", least=1.0)
    local_threads: int | None = option(
        None, "Threads of a model that runs here; the processors, at most 4, if left out.", least=1, most=MAX_COUNT
    )
    local_context: int | None = None
    local_reuse_prompts: bool = option(
        False,
        "Let a model that runs here keep what it has read: many times faster, and answers depend, by rounding, on what "
        "was asked before.",
    )


@dataclass(frozen=True, slots=True)
class _Kind:
    """A kind of model.

    Attributes:
        example: How such a model is spelt.
        make: Makes a model from what stands behind the colon.
        place: Says where such a model answers, as far as that decides what it answers; needs neither key nor network.
        needs_name: Whether something has to stand behind the colon.
        is_kept: Whether its replies are worth keeping in a cache.
    """

    example: str
    make: Callable[[str, ChatModelSettings], ChatModel]
    place: Callable[[str, ChatModelSettings], str]
    needs_name: bool = True
    is_kept: bool = True


def _make_openai(name: str, settings: ChatModelSettings) -> ChatModel:
    return OpenAIChatModel(
        name,
        base_url=settings.base_url,
        api_key=settings.api_key,
        timeout_seconds=settings.timeout_seconds,
        max_concurrency=settings.max_concurrency,
        retry=settings.retry,
    )


def _make_local(name: str, settings: ChatModelSettings) -> ChatModel:
    return make_local_model(
        name,
        threads=settings.local_threads,
        context=settings.local_context,
        reuse_prompts=settings.local_reuse_prompts,
        max_concurrency=settings.max_concurrency,
    )


def _local_place(name: str, settings: ChatModelSettings) -> str:
    return local_identity(name, context=settings.local_context, reuse_prompts=settings.local_reuse_prompts)


_KINDS: Mapping[str, _Kind] = {
    "openai": _Kind("openai:gpt-4o-mini", _make_openai, lambda _, settings: endpoint_url(settings.base_url)),
    "local": _Kind("local", _make_local, _local_place, needs_name=False),
    "scripted": _Kind(
        "scripted:replies.jsonl",
        lambda name, _: FileScriptedChatModel(name),
        lambda name, _: script_identity(name),
        # Nothing is saved by it, and replies that are given in order would come out of order.
        is_kept=False,
    ),
}


def make_chat_model(
    spec: str, settings: ChatModelSettings | None = None, cache: ResponseCache | None = None
) -> ChatModel:
    """Make the chat model that a text names.

    Args:
        spec: `openai:NAME`, NAME being what the endpoint calls its model; `local`, the small model that runs here, or
            `local:PATH`, a GGUF file or a folder of a transformers model; `scripted:FILE`, replies from a file.
        settings: How the model is reached; None takes the defaults.
        cache: Where replies are kept; None keeps none.

    Raises:
        InvalidInputError: The kind is unknown, the name empty, the address no address, the file no model or script,
            or a key is needed and missing.
        MissingExtraError: The kind needs a package that is not installed.
    """
    settings = ChatModelSettings() if settings is None else settings
    kind, name = _parsed(spec)
    model = kind.make(name, settings)
    if settings.requests_per_minute is not None or settings.tokens_per_minute is not None:
        model = RateLimitedChatModel(
            model,
            requests_per_minute=settings.requests_per_minute,
            tokens_per_minute=settings.tokens_per_minute,
        )
    if cache is None or not kind.is_kept:
        return model
    return CachingChatModel(model, cache, model_identity(spec, settings))


def model_identity(spec: str, settings: ChatModelSettings | None = None) -> str:
    """Return what tells a model's answers from those of others: its spelling and where it answers; no secret.

    Two endpoints may call different models by the same name, so the address belongs to it; a model or script in a
    file is told by its content.

    Raises:
        InvalidInputError: The kind is unknown, the name empty, the address no address, or the file cannot be read.
        MissingExtraError: `local` alone is meant, and the package with its file is not installed.
    """
    kind, name = _parsed(spec)
    return f"{spec.strip()} at {kind.place(name, settings or ChatModelSettings())}"


def _parsed(spec: str) -> tuple[_Kind, str]:
    name, colon, rest = spec.strip().partition(":")
    if name not in _KINDS:
        raise unknown_name("kind of chat model", name, _KINDS, f"{spec!r} (expected KIND:NAME)")
    kind = _KINDS[name]
    is_complete = bool(rest.strip()) or not (colon or kind.needs_name)
    if not is_complete:
        raise InvalidInputError(f"chat model {spec!r} names no model: expected one such as {kind.example!r}")
    return kind, rest.strip()
