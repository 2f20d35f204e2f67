"""What replies of models cost, by the prices that a user names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, ClassVar

from pydantic import Field

from resilisim.chat.types import ChatReply, TokenUsage
from resilisim.errors import nearest_name
from resilisim.inputs import read_json, read_text, validated

TOKENS_PER_PRICE = 1_000_000
FREE_KINDS = ("local", "scripted")  # they run here, and nobody sends a bill
HIGHEST_PRICE = 1_000_000  # a dollar a token; a larger one is a slip
_Dollars = Annotated[float, Field(ge=0, le=HIGHEST_PRICE, description="US dollars for a million tokens")]


@dataclass(frozen=True, slots=True)
class Price:
    """US dollars for a million tokens.

    Attributes:
        prompt: Of what the model reads.
        completion: Of what it writes.
        cached_prompt: Of what it reads and its endpoint has kept; None is the price of any other prompt. What comes
            from our own cache (`ChatReply.from_cache`) costs nothing.
    """

    __pydantic_config__: ClassVar[Mapping[str, str]] = {"extra": "forbid"}

    prompt: _Dollars
    completion: _Dollars
    cached_prompt: _Dollars | None = None


class PriceTable:
    """Prices by model name, as the user gives them: prices change, and no table that ships could be right."""

    def __init__(self, prices: Mapping[str, Price] = MappingProxyType({})) -> None:
        self.prices: Mapping[str, Price] = MappingProxyType(dict(prices))

    @classmethod
    def read(cls, path: Path | str) -> PriceTable:
        """Read a table from a JSON file: {"openai:gpt-4o-mini": {"prompt": 0.15, "completion": 0.60}}."""
        source = f"price table {str(path)!r}"
        values = read_json(read_text(Path(path), "price table"), source)
        return cls(validated(dict[str, Price], values, source))

    def cost(self, model_name: str, usage: TokenUsage, cached_prompt_tokens: int = 0) -> float | None:
        """Return what tokens cost in US dollars; None if the table does not know the model.

        Of the prompt, `cached_prompt_tokens` are those that the endpoint had kept.
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
