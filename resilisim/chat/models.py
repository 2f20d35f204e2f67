"""Chat models by their spelling, and one for each component of an agent.

A spelling is the kind, a colon, and the kind's name for the model, such as `openai:gpt-4o-mini`. One model may answer
all components, or a small extractor stand beside a large planner.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from resilisim.chat.local import local_identity, make_local_model
from resilisim.chat.middleware import CachingChatModel, ChatModelSettings, RateLimitedChatModel, ResponseCache
from resilisim.chat.openai import OpenAIChatModel, endpoint_url, split_address
from resilisim.chat.request_options import (
    COMPONENT_ROLES,
    DEFAULT_ROLE,
    RequestOptions,
    fields_of,
    merged,
    shown_fields,
    with_fields,
)
from resilisim.chat.scripted_models import FileScriptedChatModel, script_identity
from resilisim.chat.types import ChatModel, ChatRequest
from resilisim.errors import InvalidInputError, unknown_name


@dataclass(frozen=True, slots=True)
class _Kind:
    """A kind of model: how it is spelt, made from what stands behind the colon, and told from others of its name."""

    example: str
    make: Callable[[str, ChatModelSettings], ChatModel]
    # Where such a model answers, as far as that decides what it answers; needs neither key nor network.
    place: Callable[[str, ChatModelSettings], str]
    needs_name: bool = True
    is_kept: bool = True  # whether its replies are worth keeping in a cache


_KINDS: Mapping[str, _Kind] = {
    "openai": _Kind(
        "openai:gpt-4o-mini",
        OpenAIChatModel,
        lambda name, settings: endpoint_url(split_address(name)[1] or settings.base_url),
    ),
    "local": _Kind("local", make_local_model, local_identity, needs_name=False),
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
        spec: `openai:NAME`, NAME being what the endpoint calls its model, or `openai:NAME@URL` for an endpoint of its
            own; `local`, the small model that runs here, or
            `local:PATH`, a GGUF file or a folder of a transformers model; `scripted:FILE`, replies from a file.
        settings: How the model is reached; None takes the defaults.
        cache: Where replies are kept; None keeps none.

    Raises:
        InvalidInputError: The kind is unknown, the name empty, the address no address, the file no model or script,
            or a key is needed and missing.
        MissingExtraError: The kind needs a package that is not installed.

    Example:
        >>> import asyncio
        >>> from resilisim.chat import ChatMessage, ChatRequest, make_chat_model
        >>> from resilisim.chat.middleware import ResponseCache
        >>> model = make_chat_model("openai:gpt-4o-mini", cache=ResponseCache("replies"))  # doctest: +SKIP
        >>> request = ChatRequest((ChatMessage("user", "Hello?"),))
        >>> asyncio.run(model.complete(request)).text  # doctest: +SKIP
    """
    settings = ChatModelSettings() if settings is None else settings
    kind, name = _parsed(spec)
    model = kind.make(name, settings)
    if settings.requests_per_minute is not None or settings.tokens_per_minute is not None:
        model = RateLimitedChatModel(
            model, requests_per_minute=settings.requests_per_minute, tokens_per_minute=settings.tokens_per_minute
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
    shown, _ = split_address(spec)
    return f"{shown} at {kind.place(name, settings or ChatModelSettings())}"


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
        options: Fields of requests, by role and "default", over what agents ask for (`request_options`).

    Raises:
        InvalidInputError: A role is unknown.
    """

    default: ChatModel
    by_role: Mapping[str, ChatModel] = field(default_factory=dict)
    names: Mapping[str, str] | None = None
    options: RequestOptions = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Check the roles and make the mappings read-only."""
        for role in (*self.by_role, *(role for role in self.options if role != DEFAULT_ROLE)):
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
        options: RequestOptions = MappingProxyType({}),
    ) -> RoleModels:
        """Make the models that texts name, with one default model: `["openai:big", "extractor=openai:small"]`.

        Raises:
            InvalidInputError: There is a second default model, or what `parse_several` refuses.
            MissingExtraError: A model needs a package that is not installed.
        """
        made = cls.parse_several(specs, settings, cache, options)
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
        options: RequestOptions = MappingProxyType({}),
    ) -> dict[str, RoleModels]:
        """Make the models that texts name, one for each distinct spelling, so that its limits are shared.

        Args:
            specs: Each either `ROLE=SPEC`, the model of a component, or `SPEC` alone, a default, of which there is at
                least one.
            settings: How the models are reached.
            cache: Where replies are kept; None keeps none.
            options: Fields of requests.

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
                names={role: identities[spec] for role, spec in {DEFAULT_ROLE: default, **by_role}.items()},
                options=options,
            )
            for default in defaults
        }

    def for_role(self, role: str) -> ChatModel:
        """Return who answers a component; one that nobody named is answered by the default."""
        return self.by_role.get(role, self.default)

    def with_options(self, options: RequestOptions) -> RoleModels:
        """Return the same models with options over those that there are."""
        return replace(self, options=merged(self.options, options)) if options else self

    def asked(self, request: ChatRequest) -> ChatRequest:
        """Return a request as the model of its component is asked: with the fields of the options."""
        return with_fields(request, fields_of(self.options, request.role)) if self.options else request

    def identities(self) -> dict[str, str]:
        """Return role, or "default", to what tells the model's answers from those of others, options too; no secret."""
        names = dict(self.names or {})
        names |= {role: names[DEFAULT_ROLE] for role in self.options if role not in names}
        shown = {role: shown_fields(fields_of(self.options, role)) for role in names}
        return {role: f"{name}, {shown[role]}" if shown[role] else name for role, name in names.items()}

    def models(self) -> tuple[ChatModel, ...]:
        """Return every distinct model, the default first."""
        return tuple({id(model): model for model in (self.default, *self.by_role.values())}.values())

    async def aclose(self) -> None:
        """Close every model once."""
        for model in self.models():
            await model.aclose()


def split_specs(specs: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """Split texts into the default models and the models of single components."""
    defaults: list[str] = []
    by_role: dict[str, str] = {}
    for text in specs:
        role, equals, spec = text.partition("=")
        if not equals or ":" in role:  # what stands behind a colon may hold `=` itself
            if text.strip() in defaults:
                raise InvalidInputError(f"model {text.strip()!r} is given twice: expected each once")
            defaults.append(text.strip())
            continue
        role = _known(role.strip(), f"model {text!r}")
        if role in by_role:
            raise InvalidInputError(
                f"model {text!r} is a second model of {role!r}, after {by_role[role]!r}: expected one"
            )
        by_role[role] = spec.strip()
    if not defaults:
        listed = ", ".join(repr(text) for text in specs) or "none at all"
        raise InvalidInputError(f"models {listed}: expected one without a role too, which is the default")
    return defaults, by_role


def _known(role: str, where: str) -> str:
    if role not in COMPONENT_ROLES:
        raise unknown_name("component role", role, COMPONENT_ROLES, where)
    return role
