"""The language models of a run: which they are, how they are reached, how many episodes ask at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeAlias

from resilisim.chat import ChatModelSettings, ResponseCache, RoleModels
from resilisim.chat.middleware import PriceTable
from resilisim.chat.models import MAX_CONCURRENCY, split_specs
from resilisim.errors import MAX_COUNT, InvalidInputError
from resilisim.options import option

DEFAULT_CONCURRENCY = 8
DEFAULT_GIVE_UP_AFTER = 20


@dataclass(frozen=True, slots=True)
class ModelSettings:
    """Who answers the LLM agents of a run.

    Attributes:
        chat: How models are reached.
    """

    models: tuple[str, ...] = option(
        (),
        "Who answers LLM agents: openai:NAME, local, local:PATH, scripted:FILE; again for more, each agent plays with "
        "each; ROLE=... for the model of one component (extractor=openai:small).",
        flag="--model",
    )
    chat: ChatModelSettings = field(default_factory=ChatModelSettings)
    concurrency: int = option(DEFAULT_CONCURRENCY, "Episodes of LLM agents at once.", least=1, most=MAX_CONCURRENCY)
    cache: str | None = option(None, "Folder in which replies are kept from one run to the next.", path="any")
    prices: str | None = option(
        None,
        'JSON file with prices in dollars per million tokens: {"openai:NAME": {"prompt": 1, "completion": 4}}.',
        path="file",
    )
    give_up_after: int = option(
        DEFAULT_GIVE_UP_AFTER,
        "Episodes in a row that break for want of an answer, after which the run stops.",
        least=1,
        most=MAX_COUNT,
    )

    def __post_init__(self) -> None:
        """Refuse numbers that are none."""
        if self.concurrency < 1:
            raise InvalidInputError(f"concurrency {self.concurrency!r}: expected 1 or more")
        if self.give_up_after < 1:
            raise InvalidInputError(f"give_up_after {self.give_up_after!r}: expected 1 or more")

    def share(self, workers: int) -> ModelSettings:
        """Return the settings of one of several processes: its part of what all together may ask."""
        if workers == 1:
            return self

        def part(limit: float | None) -> float | None:
            return None if limit is None else limit / workers

        chat = replace(
            self.chat,
            max_concurrency=max(1, self.chat.max_concurrency // workers),
            requests_per_minute=part(self.chat.requests_per_minute),
            tokens_per_minute=part(self.chat.tokens_per_minute),
        )
        return replace(self, chat=chat, concurrency=max(1, self.concurrency // workers))

    @property
    def defaults(self) -> tuple[str, ...]:
        """The models of all components, as they were spelt; none if no model was named.

        Raises:
            InvalidInputError: A role is unknown or named twice, a model is named twice, or there is no default.
        """
        return tuple(split_specs(self.models)[0]) if self.models else ()

    def make(self) -> dict[str, RoleModels]:
        """Return the models by the spelling of the default one; nothing if none was named.

        Raises:
            InvalidInputError: A spelling is wrong, or a key is needed and missing.
            MissingExtraError: A model needs a package that is not installed.
        """
        if not self.models:
            return {}
        cache = None if self.cache is None else ResponseCache(Path(self.cache))
        return RoleModels.parse_several(self.models, self.chat, cache)

    def load_prices(self) -> PriceTable:
        """Return the prices.

        Raises:
            InvalidInputError: The file cannot be read, or is no table of prices.
        """
        return PriceTable() if self.prices is None else PriceTable.read(Path(self.prices))


# What `evaluate` takes for its models: one spelling, several with their roles, or everything.
ModelSpec: TypeAlias = "str | Sequence[str] | ModelSettings | None"


def check_models(model: object) -> ModelSettings:
    """Return the settings that the argument `model` of `evaluate` means.

    Raises:
        InvalidInputError: It means none.
    """
    if model is None:
        return ModelSettings()
    if isinstance(model, ModelSettings):
        return model
    if isinstance(model, str):
        return ModelSettings(models=(model,))
    if isinstance(model, Sequence) and all(isinstance(spec, str) for spec in model):
        return ModelSettings(models=tuple(model))
    raise InvalidInputError(
        f"model is {model!r:.60}: expected a text such as 'openai:gpt-4o-mini', a list of them, or ModelSettings"
    )
