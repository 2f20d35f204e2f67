"""Chat models by their spelling, and one for each component of an agent.

A spelling is the kind, a colon, and the kind's name for the model, such as `openai:gpt-4o-mini`. One model may answer
all components, or a small extractor stand beside a large planner.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from resilisim.chat.local import local_identity, make_local_model
from resilisim.chat.middleware import CachingChatModel, RateLimitedChatModel, ResponseCache, RetryPolicy
from resilisim.chat.openai import DEFAULT_TIMEOUT_SECONDS, OpenAIChatModel, endpoint_url
from resilisim.chat.scripted import FileScriptedChatModel, script_identity
from resilisim.chat.types import ChatModel
from resilisim.errors import MAX_COUNT, InvalidInputError, unknown_name
from resilisim.options import option

DEFAULT_CONCURRENCY = 8
MAX_CONCURRENCY = 10_000
MAX_SECONDS = 1e6  # of waiting for an answer
# The components that ask models; each request names its own in `ChatRequest.role`.
COMPONENT_ROLES = ("planner", "replanner", "extractor", "reasoner", "executor", "reflector", "evaluator", "agent")
DEFAULT_ROLE = "default"


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

    Example:
        >>> model = make_chat_model("openai:gpt-4o-mini", cache=ResponseCache("replies"))
        >>> reply = asyncio.run(model.complete(ChatRequest((ChatMessage("user", "Hello?"),))))
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


@dataclass(frozen=True, slots=True)
class RoleModels:
    """A model for each component: its own, or the default.

    Attributes:
        default: Who answers the components that have no model of their own.
        by_role: Models of single components.
        names: What tells each model's answers from those of others, by role and "default"; None takes their names.

    Raises:
        InvalidInputError: A role is unknown.
    """

    default: ChatModel
    by_role: Mapping[str, ChatModel] = field(default_factory=dict)
    names: Mapping[str, str] | None = None

    def __post_init__(self) -> None:
        """Check the roles and make the mappings read-only."""
        for role in self.by_role:
            _known(role, "models by role")
        names = {DEFAULT_ROLE: self.default.name, **{role: model.name for role, model in self.by_role.items()}}
        object.__setattr__(self, "by_role", MappingProxyType(dict(self.by_role)))
        object.__setattr__(self, "names", MappingProxyType(names if self.names is None else dict(self.names)))

    @classmethod
    def parse(
        cls,
        specs: Sequence[str],
        settings: ChatModelSettings | None = None,
        cache: ResponseCache | None = None,
    ) -> RoleModels:
        """Make the models that texts name, with one default model: `["openai:big", "extractor=openai:small"]`.

        Raises:
            InvalidInputError: There is a second default model, or what `parse_several` refuses.
            MissingExtraError: A model needs a package that is not installed.
        """
        made = cls.parse_several(specs, settings, cache)
        if len(made) > 1:
            first, second, *_ = made
            raise InvalidInputError(f"model {second!r} is a second default model, after {first!r}: expected one")
        return next(iter(made.values()))

    @classmethod
    def parse_several(
        cls,
        specs: Sequence[str],
        settings: ChatModelSettings | None = None,
        cache: ResponseCache | None = None,
    ) -> dict[str, RoleModels]:
        """Make the models that texts name, one for each distinct spelling, so that its limits are shared.

        Args:
            specs: Each either `ROLE=SPEC`, the model of a component, or `SPEC` alone, a default, of which there is at
                least one.
            settings: How the models are reached.
            cache: Where replies are kept; None keeps none.

        Returns:
            The spelling of each default model, and the models of the components with it.

        Raises:
            InvalidInputError: A role is unknown or named twice, a default is named twice or there is none, or a
                spelling is wrong.
            MissingExtraError: A model needs a package that is not installed.
        """
        defaults, by_role = split_specs(specs)
        # Every spelling is checked before the first model is made, which may load something.
        identities = {spec: model_identity(spec, settings) for spec in (*defaults, *by_role.values())}
        models = {spec: make_chat_model(spec, settings, cache) for spec in identities}
        return {
            default: cls(
                default=models[default],
                by_role={role: models[spec] for role, spec in by_role.items()},
                names={
                    DEFAULT_ROLE: identities[default],
                    **{role: identities[spec] for role, spec in by_role.items()},
                },
            )
            for default in defaults
        }

    def for_role(self, role: str) -> ChatModel:
        """Return who answers a component; one that nobody named is answered by the default."""
        return self.by_role.get(role, self.default)

    def identities(self) -> dict[str, str]:
        """Return role, or "default", to what tells the model's answers from those of others; no secret."""
        return dict(self.names or {})

    def models(self) -> tuple[ChatModel, ...]:
        """Return every distinct model, the default first."""
        distinct = {id(model): model for model in (self.default, *self.by_role.values())}
        return tuple(distinct.values())

    async def aclose(self) -> None:
        """Close every model once."""
        for model in self.models():
            await model.aclose()


def split_specs(specs: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """Split texts into the default models and the models of single components.

    Raises:
        InvalidInputError: A role is unknown or named twice, a default is named twice, or there is none.
    """
    defaults: list[str] = []
    by_role: dict[str, str] = {}
    for text in specs:
        role, spec = _split(text)
        if role != DEFAULT_ROLE:
            if role in by_role:
                raise InvalidInputError(
                    f"model {text!r} is a second model of {role!r}, after {by_role[role]!r}: expected one"
                )
            by_role[role] = spec
        elif spec in defaults:
            raise InvalidInputError(f"model {spec!r} is given twice: expected each once")
        else:
            defaults.append(spec)
    if not defaults:
        given = ", ".join(repr(text) for text in specs) or "none at all"
        raise InvalidInputError(f"models {given}: expected one without a role too, which is the default")
    return defaults, by_role


def _split(text: str) -> tuple[str, str]:
    """Return role and spelling; what stands behind a colon may hold `=` itself."""
    role, equals, spec = text.partition("=")
    if not equals or ":" in role:
        return DEFAULT_ROLE, text.strip()
    return _known(role.strip(), f"model {text!r}"), spec.strip()


def _known(role: str, where: str) -> str:
    if role not in COMPONENT_ROLES:
        raise unknown_name("component role", role, COMPONENT_ROLES, where)
    return role
