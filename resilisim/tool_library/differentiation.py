"""Texts of tools worded anew by a language model, so that a search tells them apart (seed 004, Table 11).

Only descriptions and the field `differentiation` change. What a tool takes, returns, fails with and depends on stays as
it is, and the original texts stay in its metadata (`enhancement`). An answer is refused where it may change what the
tool means, so that a tool that the model does not get right stays as it was, with the reason.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import re
import string
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Any, Final

from resilisim.chat.checked_answers import Refusal, RefusedAnswer, ask_until_usable, check_plain_text
from resilisim.chat.json_answers import json_object_in
from resilisim.chat.types import ChatMessage, ChatReply
from resilisim.errors import one_line
from resilisim.provenance import without_surrogates
from resilisim.tool_library.library import ToolLibrary
from resilisim.tool_library.retrieval import Retriever
from resilisim.tool_library.tool import Differentiation, Tool

# Why a tool stays as it was; results count them by these words.
TOOL_REFUSALS: Final = (
    "cut_off",  # the model reached its limit of tokens
    "not_json",  # no answer, no JSON object, or one without the fields that were asked for
    "wrong_fields",  # a field of the wrong type, or of too many or too few phrases
    "too_long",
    "not_text",  # control characters, halves of characters
    "markup",  # tags, which could pass for the protocol's
    "names_tool",  # a tool's name stands in the texts: searching for that one would find this one
    "unchanged",
    "new_promise",  # a figure, a path or the like of which the tool's own texts say nothing
    "negation",  # it says that the tool does not do something, where the original does not
    "other_meaning",  # among the original texts, another tool is nearer to the new ones
    "crowds_out",  # with the new texts, a search for what a tool is for finds it later than before
)
NUM_NEIGHBOURS: Final = 4
_NUM_HITS: Final = 5  # as many as a search shows
_SHORTEST_LIMIT: Final = 400  # characters that any description may have
LENGTH_FACTOR: Final = 2  # times the original's length
LONGEST_PHRASE: Final = 120
MAX_DETAIL_LENGTH: Final = 300
FIELDS: Final = ("description", "unique_purpose", "key_differentiators", "usage_keywords")
NUM_PHRASES: Final[Mapping[str, tuple[int, int]]] = {"key_differentiators": (1, 4), "usage_keywords": (3, 6)}

_FIGURE = re.compile(r"[^\s,;()]*[\d/@_\\][^\s,;()]*")  # figures, paths, addresses, identifiers
_NEGATION = re.compile(r"\b(?:not|no|never|without|cannot|nothing|none|n't|neither|nor)\b|n't\b", re.IGNORECASE)
_PLAIN_WORD = re.compile(r"[^\W\d_]+")

Ask = Callable[[tuple[ChatMessage, ...]], Awaitable[ChatReply]]


@dataclass(frozen=True, slots=True)
class Differentiated:
    """A library with new texts, and what became of its tools.

    Attributes:
        library: The tools in their order; metadata say under `enhancement` what became of each.
        refusals: Tools that stayed as they were, by reason.
        first_before: How many tools a search for their original purpose found first, before.
        first_after: The same, with the new texts.
        margin_before: Mean lead in similarity of a tool over the nearest other one in these searches, before.
        margin_after: The same, with the new texts.
    """

    library: ToolLibrary
    refusals: Mapping[str, int]
    first_before: int
    first_after: int
    margin_before: float
    margin_after: float

    def to_mapping(self) -> dict[str, Any]:
        """Return the counts as JSON values."""
        counts = {entry.name: getattr(self, entry.name) for entry in dataclasses.fields(self)[1:]}
        enhanced = sum(tool.differentiation_enhanced for tool in self.library)
        return {"tools": len(self.library), "enhanced": enhanced, **counts, "refusals": dict(self.refusals)}


def _template() -> str:
    return resources.files("resilisim.tool_library").joinpath("data/differentiate.md").read_text(encoding="utf-8")


class ToolWriter:
    """Asks about one tool of a library after the other, and says what an answer is worth; keeps no state."""

    def __init__(self, library: ToolLibrary, retriever: Retriever) -> None:
        self._library = library
        self._retriever = retriever

    def question(self, tool: Tool) -> tuple[ChatMessage, ...]:
        """Return the question for a tool."""
        hits = self._retriever.search(_purpose(tool), NUM_NEIGHBOURS + 1)
        neighbours = [hit.name for hit in hits if hit.name != tool.name][:NUM_NEIGHBOURS]
        others = "\n".join(f"- {_purpose(self._library[name])}" for name in neighbours) or "- (none)"
        told = f"The tool:\n{json.dumps(_card(tool), ensure_ascii=False, indent=1)}\n\nIts neighbours:\n{others}"
        rules = string.Template(_template()).substitute({"limit": longest_description(tool)}).strip()
        return ChatMessage("system", rules), ChatMessage("user", told)

    def read(self, tool: Tool, answer: str) -> Tool:
        """Return the tool with the texts of an answer.

        Raises:
            RefusedAnswer: It cannot be used; its arguments are those of a `Refusal`.
        """
        fields = _fields_in(answer, tool)
        texts = [fields["description"], fields["unique_purpose"]]
        phrases = [*fields["key_differentiators"], *fields["usage_keywords"]]
        _check_claims(tool, texts, phrases, self._library)
        self._check_meaning(tool, texts, fields["usage_keywords"])
        written = Differentiation(
            fields["unique_purpose"], tuple(fields["key_differentiators"]), tuple(fields["usage_keywords"])
        )
        return dataclasses.replace(
            tool, description=fields["description"], differentiation=written, differentiation_enhanced=True
        )

    def _check_meaning(self, tool: Tool, texts: list[str], keywords: list[str]) -> None:
        """Refuse texts that are nearer to another tool's original ones than to this one's."""
        for text, hits in zip(texts, self._retriever.search_many(texts, 1), strict=True):
            if hits[0].name != tool.name:
                other = _purpose(self._library[hits[0].name])
                detail = f"{one_line(text, 60)!r} says rather what another tool does: {other}"
                raise RefusedAnswer("other_meaning", detail)
        for keyword, hits in zip(keywords, self._retriever.search_many(keywords, _NUM_HITS), strict=True):
            if tool.name not in [hit.name for hit in hits]:
                raise RefusedAnswer("other_meaning", f"a search for {keyword!r} does not lead to this tool")


def _fields_in(answer: str, tool: Tool) -> dict[str, Any]:
    """Return the fields of an answer's JSON object, each of its type and plain text."""
    fields = json_object_in(answer, FIELDS)
    if isinstance(fields, str):
        raise RefusedAnswer("not_json", fields)
    for name in FIELDS:
        value = fields[name]
        if name in NUM_PHRASES:
            fewest, most = NUM_PHRASES[name]
            if not (isinstance(value, list) and all(isinstance(item, str) for item in value)):
                raise RefusedAnswer("wrong_fields", f"{name!r} is not a list of phrases")
            if not fewest <= len(value) <= most:
                raise RefusedAnswer("wrong_fields", f"{name!r} has {len(value)} phrases; expected {fewest} to {most}")
            for item in value:
                check_plain_text(item, f"a phrase of {name!r}", LONGEST_PHRASE)
        elif not isinstance(value, str):
            raise RefusedAnswer("wrong_fields", f"{name!r} is not a text")
        else:
            check_plain_text(value, repr(name), longest_description(tool))
    texts = {name: " ".join(fields[name].split()) for name in FIELDS if name not in NUM_PHRASES}
    return texts | {name: [" ".join(item.split()) for item in fields[name]] for name in NUM_PHRASES}


def _check_claims(tool: Tool, texts: list[str], phrases: list[str], library: ToolLibrary) -> None:
    """Refuse texts that say nothing new, name a tool, or claim what the original texts do not say."""
    if texts[0] == " ".join(tool.description.split()):
        raise RefusedAnswer("unchanged", "the description is the same as before")
    own = set(_figures(json.dumps([_card(tool), *tool.differentiation.usage_keywords], ensure_ascii=False)))
    for text in (*texts, *phrases):
        if (name := next(tools_named_in(text, library), None)) is not None:
            raise RefusedAnswer("names_tool", f"{one_line(text, 60)!r} names the tool {name!r}; say what is done")
        for figure in _figures(text):
            if figure not in own:
                raise RefusedAnswer("new_promise", f"{figure!r} stands nowhere in what is known of the tool")
    before = len(_NEGATION.findall(tool.description))
    for text in texts:
        if len(_NEGATION.findall(text)) > before:
            raise RefusedAnswer("negation", f"{one_line(text, 60)!r} says what the tool does not do; say what it does")


def tools_named_in(text: str, library: ToolLibrary) -> Iterator[str]:
    """Yield the names in a text that mean a tool: nobody writes one by chance that is more than a plain word."""
    for name in (name for tool in library for name in (tool.name, *tool.aliases)):
        if not _PLAIN_WORD.fullmatch(name) and re.search(rf"(?<!\w){re.escape(name)}(?!\w)", text, re.IGNORECASE):
            yield name


def _figures(text: str) -> list[str]:
    """Return the figures, paths, addresses and identifiers in a text."""
    return [figure.strip(".:!?'\"{}[]").lower() for figure in _FIGURE.findall(text)]


def _card(tool: Tool) -> dict[str, Any]:
    """Return what a model is told about a tool."""
    return {
        "purpose": _purpose(tool),
        "description": tool.description,
        "inputs": {parameter.name: parameter.description for parameter in tool.parameters},
        "outputs": {value.name: value.description for value in tool.returns},
        "errors": {error.code: error.description for error in tool.errors},
    }


def longest_description(tool: Tool) -> int:
    """Return how many characters a description may have that stands for a tool's."""
    return max(_SHORTEST_LIMIT, LENGTH_FACTOR * len(tool.description))


def _purpose(tool: Tool) -> str:
    return " ".join((tool.original_description or tool.description).split())


async def differentiate_library(
    library: ToolLibrary,
    ask: Ask,
    retriever_of: Callable[[ToolLibrary], Retriever],
    *,
    model: str,
    re_asks: int = 1,
    concurrency: int = 8,
    on_tool: Callable[[], object] = lambda: None,
) -> Differentiated:
    """Let a model word the texts of all tools anew, and keep what does not change what they mean.

    Args:
        library: The tools.
        ask: Sends messages to the model; what it raises ends the run.
        retriever_of: Search over a library.
        model: What the model is called in metadata.
        re_asks: How often an unusable answer is sent back with the reason.
        concurrency: Tools asked about at once.
        on_tool: Called when one is done.
    """
    retriever = retriever_of(library)
    writer = ToolWriter(library, retriever)
    slots = asyncio.Semaphore(concurrency)

    async def written(tool: Tool) -> Tool | Refusal:
        async def read(answer: str) -> Tool:
            return writer.read(tool, answer)

        async with slots:
            result = await ask_until_usable(ask, writer.question(tool), read, re_asks)
        on_tool()
        return result

    results = dict(zip(library.names, await asyncio.gather(*map(written, library)), strict=True))
    before = retriever.search_many([_purpose(tool) for tool in library], len(library))
    while True:
        made = ToolLibrary(_noted(library[name], result, model) for name, result in results.items())
        after = retriever_of(made).search_many([_purpose(tool) for tool in library], len(library))
        kept = {name for name, result in results.items() if isinstance(result, Tool)}
        crowding = _crowding(library, [_names(hits) for hits in before], [_names(hits) for hits in after], kept)
        if not crowding:
            break
        for name, later in crowding.items():
            results[name] = Refusal("crowds_out", f"a search for what {later!r} is for finds it later than before")
    reasons = Counter(result.kind for result in results.values() if isinstance(result, Refusal))
    (first_before, margin_before), (first_after, margin_after) = (
        _told_apart(library, each) for each in (before, after)
    )
    refusals = {kind: reasons[kind] for kind in TOOL_REFUSALS if reasons[kind]}
    return Differentiated(made, refusals, first_before, first_after, margin_before, margin_after)


def _noted(tool: Tool, result: Tool | Refusal, model: str) -> Tool:
    """Return a tool with what became of it in its metadata, and with its original texts where they were replaced."""
    if isinstance(result, Refusal):
        detail = one_line(without_surrogates(result.detail), MAX_DETAIL_LENGTH)  # it may repeat what a model wrote
        why = {"outcome": "refused", "model": model, "reason": result.kind, "detail": detail}
        return dataclasses.replace(tool, metadata={**tool.metadata, "enhancement": why})
    original = {"description": tool.description, "differentiation": tool.to_mapping()["differentiation"]}
    facts: dict[str, Any] = {"outcome": "enhanced", "model": model, "original": original}
    return dataclasses.replace(result, metadata={**tool.metadata, "enhancement": facts})


def _names(hits: Any) -> list[str]:
    return [hit.name for hit in hits]


def _crowding(library: ToolLibrary, before: list[list[str]], after: list[list[str]], kept: set[str]) -> dict[str, str]:
    """Return tools whose new texts a search is worse with, each with the tool that is found later than before.

    That is the tool itself if it has new texts, else those that have moved before it.
    """
    crowding: dict[str, str] = {}
    for name, old, new in zip(library.names, before, after, strict=True):
        if new.index(name) > old.index(name):
            ahead = set(new[: new.index(name)]) - set(old[: old.index(name)])
            crowding |= dict.fromkeys([name] if name in kept else sorted(ahead & kept), name)
    return crowding


def _told_apart(library: ToolLibrary, hits_of_tool: Any) -> tuple[int, float]:
    """Return how many tools are found first by their purpose, and the mean lead over the nearest other tool."""
    first, leads = 0, []
    for name, hits in zip(library.names, hits_of_tool, strict=True):
        scores = {hit.name: hit.score for hit in hits}
        others = [score for other, score in scores.items() if other != name]
        first += hits[0].name == name
        leads.append(scores[name] - max(others, default=0.0))
    return first, sum(leads) / len(leads)
