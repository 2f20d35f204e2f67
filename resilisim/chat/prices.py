"""What calls of models cost, by a table that the user gives: prices change, and no table that ships could be right.

    {"openai:gpt-4o-mini": {"prompt": 0.15, "completion": 0.60, "cached_prompt": 0.075}}

Prices are US dollars for a million tokens. A reply that was taken from our own cache (`ChatReply.from_cache`) costs
nothing, which `cost_of_reply` knows; `cached_prompt` is what an endpoint takes for parts of prompts that it has kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from resilisim.chat.json_files import json_object, read_text, refuse, refuse_unknown_keys
from resilisim.chat.types import ChatReply, TokenUsage
from resilisim.errors import nearest_name

TOKENS_PER_PRICE = 1_000_000
HIGHEST_PRICE = 1_000_000  # a dollar a token; a larger one is a slip
FREE_KINDS = ("local", "scripted")  # they run here, and nobody sends a bill
_FIELDS = ("prompt", "completion", "cached_prompt")


@dataclass(frozen=True, slots=True)
class Price:
    """US dollars for a million tokens.

    Attributes:
        prompt: Of what the model reads.
        completion: Of what it writes.
        cached_prompt: Of what it reads and its endpoint has kept; None is the price of any other prompt.
    """

    prompt: float
    completion: float
    cached_prompt: float | None = None


class PriceTable:
    """Prices by model name.

    Args:
        prices: By the names that chat models have, such as "openai:gpt-4o-mini".
    """

    def __init__(self, prices: Mapping[str, Price] = MappingProxyType({})) -> None:
        self.prices: Mapping[str, Price] = MappingProxyType(dict(prices))

    @classmethod
    def read(cls, path: Path | str) -> PriceTable:
        """Read a table from a JSON file.

        Raises:
            InvalidInputError: The file cannot be read, or is no table of prices.
        """
        source = f"price table {str(path)!r}"
        values = json_object(read_text(Path(path), "price table"), source)
        return cls({model: _price(value, f"{source}, {model!r}") for model, value in values.items()})

    def cost(self, model_name: str, usage: TokenUsage, cached_prompt_tokens: int = 0) -> float | None:
        """Return what tokens cost in US dollars; None if the table does not know the model.

        Args:
            model_name: The name of the chat model that answered.
            usage: The tokens that were paid for.
            cached_prompt_tokens: How many of the prompt's tokens the endpoint had kept.
        """
        if model_name.partition(":")[0] in FREE_KINDS and model_name not in self.prices:
            return 0.0
        price = self.prices.get(model_name)
        if price is None:
            return None
        cached_price = price.prompt if price.cached_prompt is None else price.cached_prompt
        dollars = (
            (usage.prompt_tokens - cached_prompt_tokens) * price.prompt
            + cached_prompt_tokens * cached_price
            + usage.completion_tokens * price.completion
        )
        return dollars / TOKENS_PER_PRICE

    def cost_of_reply(self, model_name: str, reply: ChatReply) -> float | None:
        """Return what a reply cost in US dollars: nothing if it came from our own cache; None if unknown."""
        return 0.0 if reply.from_cache else self.cost(model_name, reply.usage)

    def gap(self, model_name: str) -> str | None:
        """Say that a model has no price here, and which name resembles its own; None if it has one."""
        if self.cost(model_name, TokenUsage()) is not None:
            return None
        near = nearest_name(model_name, self.prices)
        return f"no price of {model_name!r} is known" + (f": did you mean it by {near!r}?" if near else "")


def _price(value: Any, where: str) -> Price:
    if not isinstance(value, dict):
        refuse(where, value, 'an object such as {"prompt": 0.15, "completion": 0.60}')
    refuse_unknown_keys(value, _FIELDS, where)
    for field in _FIELDS:
        if field not in value and field == "cached_prompt":
            continue
        number = value.get(field)
        if not isinstance(number, int | float) or isinstance(number, bool) or not 0 <= number <= HIGHEST_PRICE:
            expected = f"US dollars for a million tokens, 0 to {HIGHEST_PRICE:,}"
            refuse(f"{where}, field {field!r}", number, expected)
    return Price(**value)
