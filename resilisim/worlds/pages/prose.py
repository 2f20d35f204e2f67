"""Pages of the encyclopedia: each fact of the graph said in one of several ways, among digressions and near misses.

What a page asserts is true in the graph. A wrong value is only named where the same sentence denies it, and facts of
other subjects stand under their full names.
"""

from __future__ import annotations

import string
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from resilisim.seeding import Draws
from resilisim.worlds.pages.graph import ISSUER_OF, Entity, Fact, Graph, Value, texts

LEAST_PAGE_TOKENS, MOST_PAGE_TOKENS = 300, 6000
_SKEW = 2.2  # of page lengths: half of the pages have less than about 600 tokens
_CHARACTERS_PER_TOKEN = 4
_IN_THE_LEAD = ("born", "died", "year", "founded", "chartered", "held")
# Of each kind, the place among its headings of what is said there; "list:" is the other direction of a relation.
_SECTIONS: Mapping[str, Mapping[str, int]] = {
    "person": {
        "born_in": 0, "studied_at": 0, "list:made_by": 1, "taught_by": 2, "married_to": 2, "member_of": 2,
        "list:taught_by": 2, "died_in": 3,
    },
    "city": {"in_region": 0, "on_river": 0, "list:born_in": 2},
    "region": {"capital": 1, "list:in_region": 1},
    "river": {"rises_in": 0, "list:on_river": 1},
    "institution": {"founded_by": 0, "seat": 0, "list:studied_at": 1},
    "society": {"founded_by": 0, "seat": 0, "list:member_of": 1},
    "company": {"founded_by": 0, "seat": 0, "list:issued_by": 1},
    "work": {"made_by": 0, "dedicated_to": 0, "set_in": 1, "first_shown_in": 2, "issued_by": 2},
    "event": {"held_in": 1, "led_by": 2},
}  # fmt: skip
_WITH_ARTICLE: Final = ("event", "river", "institution", "society")
_POSSESSIVE = {"she": "her", "he": "his", "it": "its"}
_OBJECT = {"she": "her", "he": "him", "it": "it"}
_NAMING = ("{S}", "{P}", "{s}", "{obj}")  # slots that can hold the subject's name


@dataclass(frozen=True, slots=True)
class Page:
    """One page.

    Attributes:
        title: What it is about.
        text: The whole page, beginning with its title.
        evidence: For each relation of its subject the sentence that states its value; under "list:RELATION" the one
            that lists the subjects of a relation whose value this page's subject is.
    """

    title: str
    text: str
    evidence: Mapping[str, str]


def mention(entity: Entity) -> str:
    """Return how a sentence names an entity for the first time."""
    return f"the {entity.title}" if entity.kind in _WITH_ARTICLE else entity.title


def words_of(entity: Entity) -> dict[str, str]:
    """Return the words that depend on what a work or an event is: written, author, published and the like."""
    verbs: Mapping[str, str] = texts("relations")["verbs"].get(entity.noun, {})
    return {**verbs, "issuer": ISSUER_OF.get(entity.noun, ""), "noun": entity.noun, "article": _article(entity.noun)}


def in_words(names: Sequence[str]) -> str:
    """Return names as a sentence lists them."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def write_pages(graph: Graph, seed: int = 0) -> tuple[Page, ...]:
    """Write a page of 300 to 6,000 tokens for every entity of a graph, in its order (a token taken as four letters)."""
    peers: dict[tuple[str, str], list[Entity]] = defaultdict(list)
    near: dict[tuple[str, str], list[Entity]] = defaultdict(list)
    for entity in graph.entities.values():
        peers[entity.kind, entity.noun].append(entity)
        near[entity.kind, _stem(entity)].append(entity)
    return tuple(
        _Writer(graph, entity, peers[entity.kind, entity.noun], near[entity.kind, _stem(entity)], seed).page()
        for entity in graph.entities.values()
    )


def _stem(entity: Entity) -> str:
    """Return the part of a name by which it may be taken for another."""
    last = entity.title.rsplit(" ", 1)[-1]
    return last if entity.kind == "work" else last[:5] if entity.kind in ("person", "river") else entity.title[:5]


class _Writer:
    """Writes one page."""

    def __init__(
        self, graph: Graph, entity: Entity, peers: Sequence[Entity], near: Sequence[Entity], seed: int
    ) -> None:
        self.graph, self.entity = graph, entity
        self.peers = [other for other in peers if other is not entity]
        self.near = [other for other in near if other is not entity]
        self.draws = Draws("resilisim/pages/prose", seed, entity.title)
        self.evidence: dict[str, str] = {}
        self.unused: dict[str, list[str]] = {}  # of each theme: sentences not used on this page

    def page(self) -> Page:
        share = self.draws.uniform() ** _SKEW
        length = _CHARACTERS_PER_TOKEN * LEAST_PAGE_TOKENS * (MOST_PAGE_TOKENS / LEAST_PAGE_TOKENS) ** share
        headings = texts("digressions")["headings"][self.entity.kind]
        sections: list[list[str]] = [[] for _ in headings]
        for place, said in sorted(self._said(), key=lambda pair: pair[0]):
            sections[place].append(said)
        lead = self._lead()
        written = len(lead) + sum(len(text) for section in sections for text in section)
        most = _CHARACTERS_PER_TOKEN * MOST_PAGE_TOKENS
        while written < length:
            section = self.draws.choice(sections)
            text = self._comparison() if self.peers and self.draws.uniform() < 0.25 else self._digression()
            if written + len(text) + 400 > most:
                break
            section.insert(self.draws.between(0, len(section)), text)
            written += len(text) + 2
        parts = [f"{heading}\n" + "\n\n".join(said) for heading, said in zip(headings, sections, strict=True) if said]
        return Page(self.entity.title, "\n\n".join([self.entity.title, lead, *parts]), self.evidence)

    def _lead(self) -> str:
        entity = self.entity
        facts = {fact.relation: str(fact.value) for fact in self.graph.facts_of.get(entity.title, ())}
        slots = {**words_of(entity), **facts, "T": _capitalised(mention(entity)), "t": mention(entity)}
        sentence = self.draws.choice(texts("relations")["leads"][entity.kind]).format_map(slots)
        self.evidence |= dict.fromkeys((name for name in _IN_THE_LEAD if name in facts), sentence)
        parts = [sentence]
        if self.near:
            other = self.draws.choice(self.near)
            parts.append(f"Not to be confused with {mention(other)}, {_article(other.noun)} {other.noun}.")
        parts += self._fillers(self._own_theme(), self.draws.between(1, 2))
        return " ".join(parts)

    def _said(self) -> list[tuple[int, str]]:
        """Return paragraphs that hold all facts of this page, each with the place of its section."""
        sections = _SECTIONS[self.entity.kind]
        facts = {fact.relation: fact for fact in self.graph.facts_of.get(self.entity.title, ())}
        by_place: dict[int, list[str]] = defaultdict(list)
        for key, place in sections.items():
            by_place[place].append(key)
        result = []
        for place, keys in by_place.items():
            sentences: list[str] = []
            is_about_subject = False  # whether the sentence before is about the subject
            for key in self.draws.shuffled(keys):
                said = (
                    self._list(key, not is_about_subject)
                    if key.startswith("list:")
                    else self._fact(facts.get(key), not is_about_subject)
                )
                if said is None:
                    continue
                self.evidence[key] = said
                sentences.append(said)
                is_about_subject = True
                if self.draws.uniform() < 0.4 and key in facts and (denied := self._denial(facts[key])) is not None:
                    sentences.append(denied)
                if self.draws.uniform() < 0.5:
                    sentences += self._fillers(self._own_theme(), 1)
                    is_about_subject = False
            if sentences:
                result.append((place, " ".join(sentences)))
        return result

    def _fact(self, fact: Fact | None, naming: bool) -> str | None:
        if fact is None:
            return None
        entity = self.graph.entities[fact.subject]
        return self._sentence(
            of_noun(texts("relations")["facts"], fact.relation, entity.noun), entity, naming, o=fact.value
        )

    def _list(self, key: str, naming: bool) -> str | None:
        relation = key.removeprefix("list:")
        names = self.graph.subjects(relation, self.entity.title)
        if not names:
            return None
        templates = texts("relations")["lists"][relation if len(names) > 1 else f"{relation}:one"]
        return self._sentence(templates, self.entity, naming, list=in_words(names))

    def _denial(self, fact: Fact) -> str | None:
        """Return a sentence that names a wrong value and says that it is wrong."""
        templates = texts("relations")["denials"].get(fact.relation)
        right = self.graph.entities[str(fact.value)]
        wrong = [
            candidate
            for candidate in self.graph.of_kind(right.kind)
            if candidate.title != right.title and candidate.noun == right.noun
        ]
        if templates is None or not wrong:
            return None
        return self._sentence(templates, self.entity, True, o=self.draws.choice(wrong).title)

    def _comparison(self) -> str:
        """Return a paragraph about another entity of the same kind: near misses, under its own name."""
        other = self.draws.choice(self.peers)
        opening = texts("digressions")["opening"]["person" if self.entity.kind == "person" else "other"]
        sentences = [self._sentence(opening, self.entity, True)]
        keys = [key for key in _SECTIONS[other.kind] if not key.startswith("list:")]
        facts = {fact.relation: fact for fact in self.graph.facts_of[other.title]}
        compared = [facts[key] for key in self.draws.shuffled(keys) if key in facts][:3]
        for fact in compared:
            templates = of_noun(texts("relations")["facts"], fact.relation, other.noun)
            sentences.append(self._sentence(templates, other, naming=True, full=True, o=fact.value))
        return " ".join(sentences)

    def _own_theme(self) -> str:
        themes: Sequence[str] = texts("digressions")["own_themes"][self.entity.kind]
        return self.draws.choice(themes)

    def _digression(self) -> str:
        theme = self.draws.choice(tuple(texts("digressions")["themes"]))
        away = theme not in texts("digressions")["own_themes"][self.entity.kind]
        opening = [self._filled(self.draws.choice(texts("digressions")["elsewhere"]))] if away else []
        return " ".join([*opening, *self._fillers(theme, self.draws.between(3, 6))])

    def _fillers(self, theme: str, count: int) -> list[str]:
        """Return sentences of a theme, those first that the page does not have yet."""
        themes = texts("digressions")["themes"]
        if len(self.unused.get(theme, ())) < count:
            self.unused[theme] = self.draws.shuffled(themes[theme])
        return [self._filled(self.unused[theme].pop()) for _ in range(count)]

    def _filled(self, template: str) -> str:
        """Fill each slot of a template on its own, so that two of the same name differ."""
        slots = texts("digressions")["slots"]
        parts = []
        for literal, name in _parsed(template):
            parts.append(literal)
            if name == "year":
                parts.append(str(self.draws.between(1640, 1950)))
            elif name == "city":
                parts.append(self.draws.choice(self.graph.of_kind("city")).title)
            elif name is not None:
                parts.append(self.draws.choice([word for word in slots[name] if word not in parts]))
        return _capitalised("".join(parts))

    def _sentence(
        self, templates: Sequence[str], entity: Entity, naming: bool, *, full: bool = False, **values: Value
    ) -> str:
        """Fill one of the templates about an entity.

        Args:
            templates: Sentences with slots.
            entity: Their subject.
            naming: Whether the subject has to be named, because the sentence before is about something else.
            full: Whether a person's whole name is used.
            **values: What the other slots hold; "o" is a title or a year.
        """
        if naming:
            templates = [
                candidate for candidate in templates if any(slot in candidate for slot in _NAMING)
            ] or templates
        template = self.draws.choice(templates)
        name = mention(entity) if full or entity.kind != "person" else entity.short
        if not naming and self.draws.uniform() < 0.75:
            name = entity.pronoun if self.draws.uniform() < 0.7 else f"the {entity.noun}"
        is_pronoun = name == entity.pronoun
        possessive = _POSSESSIVE[entity.pronoun]
        value = values.pop("o", "")
        shown = mention(self.graph.entities[str(value)]) if value in self.graph.entities else str(value)
        has_name = any(slot in template for slot in ("{S}", "{s}", "{P}"))
        return template.format_map(
            {
                **words_of(entity),
                **values,
                "S": _capitalised(name),
                "s": name,
                "P": _capitalised(possessive if is_pronoun else f"{name}'s"),
                "p": possessive,
                "obj": _OBJECT[entity.pronoun] if is_pronoun or has_name else name,
                "o": shown,
                "O": _capitalised(shown),
            }
        )


@lru_cache(maxsize=1024)
def _parsed(template: str) -> tuple[tuple[str, str | None], ...]:
    return tuple((literal, name) for literal, name, _, _ in string.Formatter().parse(template))


def of_noun(texts: Mapping[str, Any], relation: str, noun: str) -> Any:
    """Return what is said of a relation, for this noun in particular where there is that."""
    return texts.get(f"{relation}:{noun}", texts[relation])


def _capitalised(text: str) -> str:
    return text[:1].upper() + text[1:]


def _article(noun: str) -> str:
    return "an" if noun[0] in "aeiou" else "a"
