"""Conversations as tokens, and which of them are learned: what the assistant says where it says what is best.

A sample is what one loss is of: a conversation alone, or the better and the worse message of a pair, each behind the
conversation so far.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import jinja2
import numpy as np
import torch
from jinja2.sandbox import ImmutableSandboxedEnvironment
from numpy.typing import NDArray

from resilisim.chat.local.gguf import gguf_chat_tokenizer
from resilisim.datasets import Record
from resilisim.evaluation.episode.record import REGRET_TOLERANCE
from resilisim.finetuning.decoder import Span

LEAST_SHARED = 32  # tokens of a common beginning that it pays to read once


@dataclass(frozen=True, slots=True, eq=False)
class Example:
    """A conversation as a model reads it."""

    tokens: NDArray[np.int64]  # (num_tokens,)
    is_learned: NDArray[np.bool_]  # (num_tokens,)
    credit: NDArray[np.float32] | None = None  # (num_tokens,), by which what is learned counts; 1 each if None

    @property
    def learned_credit(self) -> NDArray[np.float32]:
        """The credit of the learned tokens, in their order; a model cannot say the first token of all."""
        if self.credit is None:
            return np.ones(int(self.is_learned[1:].sum()), dtype=np.float32)
        return self.credit[1:][self.is_learned[1:]]


Sample: TypeAlias = tuple[Example, ...]


class Encoder:
    """Turns conversations into tokens by the tokenizer and the chat template of a GGUF file."""

    def __init__(self, path: Path, most_regret: float = 0.0) -> None:
        self._most_regret = max(most_regret, REGRET_TOLERANCE)
        self._tokenizer, template = gguf_chat_tokenizer(path)
        try:
            self._template = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True).from_string(template)
        except jinja2.TemplateError as error:
            raise ValueError(f"the chat template of {path.name} cannot be read: {error}") from error

    def text(self, messages: Sequence[Record], asks: bool = False) -> str:
        """Return messages as the template writes them; with `asks` up to where the assistant begins to speak."""
        return self._template.render(messages=list(messages), add_generation_prompt=asks)

    def tokens(self, text: str) -> list[int]:
        """Return a text as tokens; marks of the template are one each."""
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def words(self, tokens: Sequence[int]) -> str:
        """Return tokens as a text, without marks."""
        return str(self._tokenizer.decode(list(tokens), skip_special_tokens=True))

    @functools.cached_property
    def end(self) -> int:
        """The token that ends a message."""
        return self.tokens(self.text([{"role": "assistant", "content": "a"}]).rstrip("\n"))[-1]

    def samples(self, records: Iterable[Record]) -> list[Sample]:
        """Return records of conversations or of preference pairs, without those in which there is nothing to learn."""
        made = (self._pair(record) if "chosen" in record else (self._conversation(record),) for record in records)
        return [sample for sample in made if all(example.is_learned.any() for example in sample)]

    def _conversation(self, record: Record) -> Example:
        """Return an episode up to the last message that is learned: no mistake, and something could still be won."""
        indices = (turn["message_index"] for turn in record["turns"] if self.is_good(turn))
        places = [index for index in indices if index is not None]
        # What comes after it changes nothing that is learned: a token is read by those behind it alone.
        return self._example(record["messages"][: max(places, default=0) + 1], places)

    def is_good(self, turn: Mapping[str, Any]) -> bool:
        """Return whether a message is to be imitated, by what it was worth."""
        # A search costs the turn that it takes: that is a price, as its label says, and no mistake; one that leaves no
        # hope is.
        is_best = turn["regret"] <= self._most_regret or turn["label"] == "information"
        return bool(turn["action_value"] > 0.0 and is_best)

    def _pair(self, record: Record) -> tuple[Example, Example]:
        """Return the better and the worse message of one state."""
        before = record["prompt"]
        return (
            self._example([*before, *record["chosen"]], [len(before)]),
            self._example([*before, *record["rejected"]], [len(before)]),
        )

    def _example(self, messages: Sequence[Record], places: Sequence[int]) -> Example:
        """Return messages of which those at some places are learned."""
        encoding = self._tokenizer.encode(self.text(messages), add_special_tokens=False)
        starts = np.array([start for start, _ in encoding.offsets])
        is_learned = np.zeros(len(starts), dtype=np.bool_)
        for place in places:
            # The mark that ends a message is learned; the line end behind it nobody has to say.
            first, end = len(self.text(messages[:place], asks=True)), len(self.text(messages[: place + 1]).rstrip("\n"))
            is_learned |= (first <= starts) & (starts < end)
        return Example(np.array(encoding.ids, dtype=np.int64), is_learned)


class Packed(NamedTuple):
    """Examples one behind the other, as they are read.

    What several say alike up to the first word that is learned, such as the prompt of two episodes or of both messages
    of a pair, is read once.

    Attributes:
        tokens: (num_tokens,).
        spans: Which of them attend to each other, one span for each example.
        places: Behind which of them something is learned, (num_learned,).
        labels: The token that comes next there, (num_learned,).
        rows: Which example it belongs to, (num_learned,).
    """

    tokens: torch.Tensor
    spans: tuple[Span, ...]
    places: torch.Tensor
    labels: torch.Tensor
    rows: torch.Tensor


def packed(examples: Sequence[Example], device: Any = None) -> Packed:
    """Return examples one behind the other, without what an example shares with the last one that was read whole."""
    tokens: list[NDArray[np.int64]] = []
    places, labels, rows, spans = [], [], [], []
    end, whole, begin_of_whole = 0, examples[0], 0
    for row, example in enumerate(examples):
        begin, shared = end, _shared(whole, example) if row else 0
        if not shared:
            whole, begin_of_whole = example, begin
        end = begin + len(example.tokens) - shared
        spans.append(Span(begin, end, begin_of_whole if shared else begin, shared))
        tokens.append(example.tokens[shared:])
        learned = np.flatnonzero(example.is_learned[1:])
        places.append(learned - shared + begin)
        labels.append(example.tokens[1:][learned])
        rows.append(np.full(len(learned), row))
    joined = (torch.from_numpy(np.concatenate(parts)).to(device) for parts in (tokens, places, labels, rows))
    first, *others = joined
    return Packed(first, tuple(spans), *others)


def _shared(whole: Example, example: Example) -> int:
    """Return how many tokens two examples begin with alike, as far as nothing is learned; 0 if they are few."""
    most = min(int(each.is_learned[1:].argmax()) for each in (whole, example))
    differs = whole.tokens[:most] != example.tokens[:most]
    shared = int(differs.argmax()) if differs.any() else most
    return shared if shared >= LEAST_SHARED else 0
