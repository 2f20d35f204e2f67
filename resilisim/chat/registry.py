"""Chat models by their spelling, such as `openai:gpt-4o-mini`: the kind, a colon, and the kind's name for the model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from resilisim.chat.cache import CachingChatModel, ResponseCache
from resilisim.chat.openai_endpoint import endpoint_url
from resilisim.chat.openai_model import DEFAULT_TIMEOUT_SECONDS, OpenAIChatModel
from resilisim.chat.retrying import RetryPolicy
from resilisim.chat.types import ChatModel
from resilisim.errors import InvalidInputError, unknown_name

DEFAULT_CONCURRENCY = 8


@dataclass(frozen=True, slots=True)
class ChatModelSettings:
    """How a model is reached; a kind of model takes what it can use.

    Attributes:
        base_url: Address of an endpoint; None takes the environment's, or the kind's own.
        api_key: Key of the endpoint; None takes the environment's.
        timeout_seconds: Seconds that one attempt may take.
        max_concurrency: Requests under way at once.
        retry: When to ask again.
    """

    base_url: str | None = None
    api_key: str | None = field(default=None, repr=False)
    timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS
    max_concurrency: int = DEFAULT_CONCURRENCY
    retry: RetryPolicy = field(default_factory=RetryPolicy)


@dataclass(frozen=True, slots=True)
class _Kind:
    """A kind of model.

    Attributes:
        example: How such a model is spelt.
        make: Makes a model from what stands behind the colon.
        place: Says where such a model answers, as far as that decides what it answers; needs neither key nor network.
    """

    example: str
    make: Callable[[str, ChatModelSettings], ChatModel]
    place: Callable[[ChatModelSettings], str]


def _make_openai(name: str, settings: ChatModelSettings) -> ChatModel:
    return OpenAIChatModel(
        name,
        base_url=settings.base_url,
        api_key=settings.api_key,
        timeout_seconds=settings.timeout_seconds,
        max_concurrency=settings.max_concurrency,
        retry=settings.retry,
    )


_KINDS: Mapping[str, _Kind] = {
    "openai": _Kind("openai:gpt-4o-mini", _make_openai, lambda settings: endpoint_url(settings.base_url)),
}


def make_chat_model(
    spec: str, settings: ChatModelSettings | None = None, cache: ResponseCache | None = None
) -> ChatModel:
    """Make the chat model that a text names.

    Args:
        spec: `openai:NAME`, NAME being what the endpoint calls its model.
        settings: How the model is reached; None takes the defaults.
        cache: Where replies are kept; None keeps none.

    Raises:
        InvalidInputError: The kind is unknown, the name empty, the address no address, or a key is needed and missing.
        MissingExtraError: The kind needs a package that is not installed.
    """
    settings = ChatModelSettings() if settings is None else settings
    kind, name = _parsed(spec)
    model = kind.make(name, settings)
    return model if cache is None else CachingChatModel(model, cache, model_identity(spec, settings))


def model_identity(spec: str, settings: ChatModelSettings | None = None) -> str:
    """Return what tells a model's answers from those of others: its spelling and where it answers; no secret.

    Two endpoints may call different models by the same name, so the address belongs to it.

    Raises:
        InvalidInputError: The kind is unknown, the name empty, or the address no address.
    """
    kind, _ = _parsed(spec)
    return f"{spec.strip()} at {kind.place(settings or ChatModelSettings())}"


def _parsed(spec: str) -> tuple[_Kind, str]:
    name, colon, rest = spec.strip().partition(":")
    if name not in _KINDS:
        raise unknown_name("kind of chat model", name, _KINDS, f"{spec!r} (expected KIND:NAME)")
    if not colon or not rest.strip():
        raise InvalidInputError(f"chat model {spec!r} names no model: expected one such as {_KINDS[name].example!r}")
    return _KINDS[name], rest.strip()
