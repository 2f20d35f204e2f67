"""Which model answers which component of an agent: one for all, or a small extractor beside a large planner."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from resilisim.chat.cache import ResponseCache
from resilisim.chat.registry import ChatModelSettings, make_chat_model, model_identity
from resilisim.chat.types import ChatModel
from resilisim.errors import InvalidInputError, unknown_name

# The components that ask models; each request names its own in `ChatRequest.role`.
COMPONENT_ROLES = ("planner", "replanner", "extractor", "reasoner", "executor", "reflector", "evaluator", "agent")
DEFAULT_ROLE = "default"


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
        """Make the models that texts name, one for each distinct spelling, so that its limits are shared.

        Args:
            specs: Each either `ROLE=SPEC`, the model of a component, or `SPEC` alone, the default, of which there is
                exactly one: `["openai:big", "extractor=openai:small"]`.
            settings: How the models are reached.
            cache: Where replies are kept; None keeps none.

        Raises:
            InvalidInputError: A role is unknown or named twice, there is no default or a second one, or a spelling
                is wrong.
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
        """Make what `parse` makes once for each default model, all with the same models of components.

        Args:
            specs: As for `parse`, with one default model or several different ones.
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
