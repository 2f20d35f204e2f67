"""How a task says which tools it needs: clauses of a description, and phrasings of each tool's work.

Every required tool has a clause of its own (one sentence, line or item between semicolons, without commas), so that a
reader who looks for tools clause by clause finds them in the required order. Phrasings of the default library's tools
are data; for other tools they are made from name and description, and kept only where retrieval finds the tool.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from importlib import resources
from typing import Protocol

from resilisim.seeding import hash_words
from resilisim.tool_library.retrieval import ToolHit
from resilisim.tool_library.tool import Tool

SEARCH_SIZE = 5  # how many tools one search shows; a clause must have its tool among them (SPEC, section 2)
DECISIVE_MARGIN = 0.002  # least lead over the sixth tool, above the 0.001 to which scores are rounded
GENERAL_ITEMS = "entries"  # what a text calls its artefact where it does not repeat the name
PHRASES_PER_ARTEFACT = 2  # each artefact is spoken of in some of a tool's phrasings, which bounds what must be checked
TOOLS_AT_ONCE = 100  # whose phrasings are checked together; bounds memory in large libraries

_CLAUSE_END = re.compile(r"\n+|;|(?<=[.!?])(?:\s+|$)|, then\b")
_LIST_MARK = re.compile(r"^(?:[-*\u2022]|\(?\d{1,2}[.)])\s+")
_BARE_MARK = re.compile(r"^\(?\d{1,2}[.)]$")


class Searcher(Protocol):
    """What this module needs of a retriever."""

    def search_many(self, queries: Sequence[str], k: int = SEARCH_SIZE) -> list[list[ToolHit]]:
        """Return for each query the k tools nearest to it, best first."""
        ...


@lru_cache(maxsize=1)
def vocabulary() -> Mapping[str, tuple[str, ...]]:
    """Return the phrasings of each tool of the default library; `{items}` is the place of what is worked on."""
    text = resources.files("resilisim.tasks").joinpath("data/phrases.json").read_text(encoding="utf-8")
    return {name: tuple(phrases) for name, phrases in json.loads(text).items()}


def vocabulary_clauses(tool_name: str, items: str) -> tuple[str, ...]:
    """Return the clauses that the vocabulary has for a tool and certain items; empty for a tool that it lacks."""
    phrases = vocabulary().get(tool_name, ())
    if items != GENERAL_ITEMS and len(phrases) > PHRASES_PER_ARTEFACT:
        first = hash_words(items)[0]
        phrases = tuple(phrases[(first + place) % len(phrases)] for place in range(PHRASES_PER_ARTEFACT))
    return tuple(phrase.replace("{items}", items) for phrase in phrases)


def clauses(description: str) -> list[str]:
    """Split a description into clauses: at the ends of lines and sentences, semicolons and ", then", without marks."""
    texts: list[str] = []
    for piece in _CLAUSE_END.split(description):
        clause = _LIST_MARK.sub("", piece.strip()).strip()
        if clause and not _BARE_MARK.match(clause):
            texts.append(clause.rstrip(".!?").rstrip())
    return [clause for clause in texts if clause]


def solving_clauses(description: str, required_tools: Sequence[str], searcher: Searcher) -> list[int] | None:
    """Return for each required tool the first clause that has it among its best hits, strictly rising, or None."""
    places: list[int] = []
    hits_of_clause = searcher.search_many(clauses(description), SEARCH_SIZE)
    index = 0
    for tool in required_tools:
        while index < len(hits_of_clause) and tool not in [hit.name for hit in hits_of_clause[index]]:
            index += 1
        if index == len(hits_of_clause):
            return None
        places.append(index)
        index += 1
    return places


class PhraseBook:
    """Phrasings of tools' work, checked against retrieval where they were not `checked` in advance.

    The vocabulary was, for the default library and model. Others speak of `GENERAL_ITEMS` only, which are few.
    """

    def __init__(self, searcher: Searcher, checked: bool) -> None:
        self._searcher = searcher
        self._checked = checked
        self._found: dict[str, tuple[str, ...]] = {}

    def phrases(self, tool: Tool, items: str) -> tuple[str, ...]:
        """Return the phrasings that lead to a tool when its work is done on items; none if retrieval never finds it."""
        if self._checked:
            return vocabulary_clauses(tool.name, items)
        if tool.name not in self._found:
            self._look_up((tool,))
        return self._found[tool.name]

    def usable_tools(self, tools: Iterable[Tool]) -> set[str]:
        """Return the names of the tools that some phrasing leads to, embedded together, ten times as fast."""
        every = tuple(tools)
        if not self._checked:
            for first in range(0, len(every), TOOLS_AT_ONCE):
                self._look_up(every[first : first + TOOLS_AT_ONCE])
        return {tool.name for tool in every if self.phrases(tool, GENERAL_ITEMS)}

    def _look_up(self, tools: Sequence[Tool]) -> None:
        """Find the phrasings of some tools; plain ones where no other leads to the tool."""
        leading = self._leading(
            {
                tool.name: (*vocabulary_clauses(tool.name, GENERAL_ITEMS), *made_phrases(tool, GENERAL_ITEMS))
                for tool in tools
            }
        )
        leading |= self._leading({tool.name: plain_phrases(tool) for tool in tools if not leading[tool.name]})
        self._found |= leading

    def _leading(self, phrases_of: Mapping[str, Sequence[str]]) -> dict[str, tuple[str, ...]]:
        """Return the phrasings that have their tool among the first hits, ahead of the sixth by more than rounding."""
        pairs = [(name, phrase) for name, phrases in phrases_of.items() for phrase in phrases]
        hits_of_phrase = self._searcher.search_many([phrase for _, phrase in pairs], SEARCH_SIZE + 1)
        leading: dict[str, tuple[str, ...]] = dict.fromkeys(phrases_of, ())
        for (name, phrase), hits in zip(pairs, hits_of_phrase, strict=True):
            if _leads(name, hits):
                leading[name] += (phrase,)
        return leading


def _leads(tool_name: str, hits: Sequence[ToolHit]) -> bool:
    scores = {hit.name: hit.score for hit in hits}
    if tool_name not in scores:
        return False
    return len(hits) <= SEARCH_SIZE or scores[tool_name] - hits[-1].score >= DECISIVE_MARGIN


def made_phrases(tool: Tool, items: str) -> tuple[str, ...]:
    """Make phrasings for a tool without vocabulary from its name and description, with the items named."""
    words, purpose = _words(tool), _purpose(tool)
    return (
        f"Use the {words} on the {items}",
        f"Run the {words} with the {items}",
        f"For the {items} use the {words} as it {purpose}",
        f"Use the {words} on the {items} as it {purpose}",
    )


def plain_phrases(tool: Tool) -> tuple[str, ...]:
    """Make phrasings for a tool from its name and description alone, the shortest first."""
    words, purpose = _words(tool), _purpose(tool)
    return (f"Use the {words}", f"Use the {words} as it {purpose}", f"{words[:1].upper()}{words[1:]}: {purpose}")


def _words(tool: Tool) -> str:
    return re.sub(r"[_.\-]+", " ", tool.name).strip()


def _purpose(tool: Tool) -> str:
    """Return the first sentence of a tool's description as one clause: no commas, nothing that ends a clause."""
    first = (clauses(tool.original_description or tool.description) or [_words(tool)])[0]
    plain = re.sub(r"\s*[,:]\s*", " ", first).strip()
    return plain[:1].lower() + plain[1:]
