"""A knowledge graph of people, places, organisations, works and events that nobody knows, drawn from a seed.

Every relation gives its subject one value at most, a title or a year, so that what is asked by following relations has
one answer; the other direction gives the lists. Names are made of syllables, many of them close to others.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from importlib import resources
from typing import Any, Final, Literal, TypeAlias

from resilisim.bounds import Seed, checked
from resilisim.errors import InvalidInputError, check_integer
from resilisim.seeding import Draws

Kind = Literal["person", "city", "region", "river", "institution", "society", "company", "work", "event"]
Value: TypeAlias = str | int

LEAST_SIZE: Final = 60  # people; below, too few of them share a teacher, a society or a publisher
MOST_SIZE: Final = 20_000
FIRST_BIRTH, LAST_BIRTH = 1780, 1925

# What makes which works, and who issues them.
WORK_OF: Mapping[str, str] = {"novelist": "novel", "painter": "painting", "composer": "opera", "film director": "film"}
ISSUER_OF: Mapping[str, str] = {
    "novel": "publishing house",
    "painting": "gallery",
    "opera": "opera house",
    "film": "film studio",
}
_OTHER_OCCUPATIONS = ("architect", "botanist", "explorer", "engraver")
_COMPANY_WORD = {"publishing house": "Press", "gallery": "Gallery", "opera house": "Opera", "film studio": "Studios"}
_INSTITUTIONS = {"academy": "Academy", "conservatory": "Conservatory", "institute": "Institute", "college": "College"}
_SOCIETIES = {"society": "Society", "circle": "Circle", "guild": "Guild", "fellowship": "Fellowship"}
_EVENTS = {"expedition": "Expedition", "exhibition": "Exhibition", "congress": "Congress", "festival": "Festival"}


@lru_cache(maxsize=8)
def texts(name: str) -> Mapping[str, Any]:
    """Return a file of the words that encyclopedias are made of, from the package's data."""
    text = resources.files("resilisim.worlds.pages").joinpath(f"data/{name}.json").read_text(encoding="utf-8")
    loaded: Mapping[str, Any] = json.loads(text)
    return loaded


@dataclass(frozen=True, slots=True)
class Entity:
    """What a page is about.

    Attributes:
        title: Its name, unlike any other.
        kind: What it is, roughly.
        noun: What it is called ("novelist", "opera", "gallery").
        pronoun: "she", "he" or "it".
    """

    title: str
    kind: Kind
    noun: str
    pronoun: str = "it"

    @property
    def short(self) -> str:
        """How a text calls it after the first time: a person by the last name."""
        return self.title.rsplit(" ", 1)[-1] if self.kind == "person" else self.title


@dataclass(frozen=True, slots=True)
class Fact:
    """One edge of the graph: a subject, a relation, and the title or year that it leads to."""

    subject: str
    relation: str
    value: Value


class Graph:
    """Entities and facts, to be read forwards (one value) and backwards (a list, in the order of the facts)."""

    def __init__(self, entities: Iterable[Entity], facts: Iterable[Fact]) -> None:
        self.entities: Mapping[str, Entity] = {entity.title: entity for entity in entities}
        self.facts = tuple(facts)
        self._values = {(fact.subject, fact.relation): fact.value for fact in self.facts}
        assert len(self._values) == len(self.facts), "a relation with two values"
        self._subjects: dict[tuple[str, Value], list[str]] = defaultdict(list)
        for fact in self.facts:
            self._subjects[fact.relation, fact.value].append(fact.subject)

    def value(self, subject: str, relation: str) -> Value | None:
        """Return what a relation gives for a subject, or None."""
        return self._values.get((subject, relation))

    def subjects(self, relation: str, value: Value) -> tuple[str, ...]:
        """Return all subjects for which a relation gives this value."""
        return tuple(self._subjects.get((relation, value), ()))

    def of_kind(self, kind: str) -> tuple[Entity, ...]:
        """Return the entities of a kind, in their order."""
        return self._of_kind.get(kind, ())

    @cached_property
    def _of_kind(self) -> Mapping[str, tuple[Entity, ...]]:
        by_kind: dict[str, list[Entity]] = defaultdict(list)
        for entity in self.entities.values():
            by_kind[entity.kind].append(entity)
        return {kind: tuple(entities) for kind, entities in by_kind.items()}

    @cached_property
    def facts_of(self) -> Mapping[str, tuple[Fact, ...]]:
        """The facts of each subject, in their order."""
        by_title: dict[str, list[Fact]] = defaultdict(list)
        for fact in self.facts:
            by_title[fact.subject].append(fact)
        return {subject: tuple(facts) for subject, facts in by_title.items()}


def generate_graph(size: int = 240, seed: int = 0) -> Graph:
    """Draw a graph: about three and a half times as many entities as people, the same for the same size and seed.

    Args:
        size: Number of people, 60 to 20,000.
        seed: Another seed gives other names and other facts.

    Raises:
        InvalidInputError: Size or seed is out of range.
    """
    check_integer("the size of an encyclopedia", size, LEAST_SIZE, MOST_SIZE)
    checked(Seed, "the seed of an encyclopedia", seed)
    return _Generator(size, seed).graph()


class _Generator:
    """Draws entities kind by kind, each from what is there already."""

    def __init__(self, size: int, seed: int) -> None:
        self.size = size
        self.draws = Draws("resilisim/pages/graph", seed, size)
        self.entities: dict[str, Entity] = {}
        self.values: dict[tuple[str, str], Value] = {}
        self.years: dict[str, tuple[int, int]] = {}  # of people: birth and death
        self.words: set[str] = set()  # invented so far
        self.stems: list[str] = []
        self.surnames: list[str] = []
        self.cities: list[str] = []

    def graph(self) -> Graph:
        self._places()
        people = [self._person() for _ in range(self.size)]
        institutions = self._organisations("institution", _INSTITUTIONS, self.size // 8, latest=1870)
        societies = self._organisations("society", _SOCIETIES, self.size // 12, latest=1935)
        companies = self._organisations("company", _COMPANY_WORD, self.size // 8, latest=1890)
        for person in people:
            self._ties(person, people, institutions, societies)
        for person in people:
            self._works(person, people, companies)
        self._gatherings(people)
        facts = (Fact(subject, relation, value) for (subject, relation), value in self.values.items())
        return Graph(self.entities.values(), facts)

    def _places(self) -> None:
        draws = self.draws
        regions = [
            self._add(self._word(2, 2, texts("names")["region_endings"]), "region", "region")
            for _ in range(self.size // 14)
        ]
        rivers = [self._add(f"River {self._word(1, 2)}", "river", "river") for _ in range(self.size // 14)]
        for number in range(self.size // 4):
            city = self._add(self._word(1, 2, texts("names")["city_endings"]), "city", "city")
            self.cities.append(city)
            # Each region and each river has a city at least.
            self._say(city, "in_region", regions[number] if number < len(regions) else draws.choice(regions))
            self._say(city, "on_river", rivers[number] if number < len(rivers) else draws.choice(rivers))
            self._say(city, "chartered", draws.between(1090, 1690))
        for river in rivers:
            self._say(river, "rises_in", draws.choice(regions))
        for region in regions:
            inside = [city for city in self.cities if self.values[city, "in_region"] == region]
            self._say(region, "capital", draws.choice(inside))

    def _person(self) -> str:
        draws = self.draws
        pronoun = draws.choice(("she", "he"))
        noun = draws.choice(tuple(WORK_OF) * 2 + _OTHER_OCCUPATIONS)
        first = 1885 if noun == "film director" else FIRST_BIRTH
        born = draws.between(first, LAST_BIRTH)
        for _ in range(100):
            first_name = self._syllables(draws.between(1, 2)) + draws.choice(
                ("a", "is", "e") if pronoun == "she" else ("o", "an", "us")
            )
            name = f"{first_name.capitalize()} {self._surname()}"
            if name not in self.entities:
                break
        person = self._add(name, "person", noun, pronoun)
        died = born + draws.between(41, 88)
        self.years[person] = (born, died)
        self._say(person, "born", born)
        self._say(person, "died", died)
        self._say(person, "born_in", draws.choice(self.cities))
        self._say(person, "died_in", draws.choice(self.cities))
        return person

    def _surname(self) -> str:
        """Return a new last name, one of a relative, or one that differs from another in its last letters."""
        draws = self.draws
        share = draws.uniform()
        if self.surnames and share < 0.15:
            return draws.choice(self.surnames)
        if self.surnames and share < 0.40:
            return draws.choice(self.surnames)[:-2] + draws.choice(("el", "en", "or", "is", "ai", "ul", "eth", "an"))
        name = self._word(2, 2)
        self.surnames.append(name)
        return name

    def _organisations(self, kind: Kind, words: Mapping[str, str], count: int, latest: int) -> list[str]:
        draws = self.draws
        made: list[str] = []
        nouns = tuple(words)
        able = [person for person, (born, _) in self.years.items() if born + 24 <= latest]
        for number in range(count):
            noun = nouns[number % len(nouns)]
            founder = draws.choice(able)
            born, died = self.years[founder]
            title = self._add(f"{self._word(1, 2)} {words[noun]}", kind, noun)
            self._say(title, "seat", draws.choice(self.cities))
            self._say(title, "founded_by", founder)
            self._say(title, "founded", draws.between(born + 24, min(died, latest, born + 60)))
            made.append(title)
        return made

    def _ties(self, person: str, people: Sequence[str], institutions: Sequence[str], societies: Sequence[str]) -> None:
        draws = self.draws
        born, died = self.years[person]
        noun = self.entities[person].noun
        self._maybe(person, "studied_at", institutions, lambda title: self._year(title, "founded") <= born + 20)
        elder = [
            title
            for title in people
            if 18 <= born - self.years[title][0] <= 50
            and self.years[title][1] > born + 15
            and self.entities[title].noun == noun
        ]
        # Few teachers with several pupils each: the eldest of those who fit.
        self._maybe(person, "taught_by", sorted(elder, key=lambda title: self.years[title][0])[:3], chance=0.75)
        joined = [
            title
            for title in societies
            if born + 18 <= self._year(title, "founded") + 45 and self._year(title, "founded") < died - 3
        ]
        self._maybe(person, "member_of", joined, chance=0.7)
        if (person, "married_to") not in self.values and draws.uniform() < 0.45:
            partners = [
                title
                for title in people
                if title != person
                and (title, "married_to") not in self.values
                and abs(self.years[title][0] - born) <= 12
                and self.entities[title].pronoun != self.entities[person].pronoun
            ]
            if partners:
                partner = draws.choice(partners)
                self._say(person, "married_to", partner)
                self._say(partner, "married_to", person)

    def _works(self, person: str, people: Sequence[str], companies: Sequence[str]) -> None:
        draws = self.draws
        noun = WORK_OF.get(self.entities[person].noun)
        if noun is None:
            return
        born, died = self.years[person]
        for _ in range(draws.between(1, 4)):
            work = self._add(self._title(), "work", noun)
            year = draws.between(born + 21, min(died, born + 66))
            self._say(work, "made_by", person)
            self._say(work, "year", year)
            self._say(work, "set_in", draws.choice(self.cities))
            self._say(work, "first_shown_in", draws.choice(self.cities))
            issuer = ISSUER_OF[noun]
            able = [
                title
                for title in companies
                if self.entities[title].noun == issuer and self._year(title, "founded") <= year
            ]
            self._maybe(work, "issued_by", able, chance=0.9)
            living = [
                title for title in people if title != person and self.years[title][0] + 15 < year < self.years[title][1]
            ]
            self._maybe(work, "dedicated_to", living, chance=0.6)

    def _gatherings(self, people: Sequence[str]) -> None:
        draws = self.draws
        nouns = tuple(_EVENTS)
        for number in range(self.size // 6):
            noun = nouns[number % len(nouns)]
            wanted = (
                ("explorer", "botanist") if noun == "expedition" else ("painter", "engraver", "composer", "architect")
            )
            leader = draws.choice([person for person in people if self.entities[person].noun in wanted] or people)
            born, died = self.years[leader]
            event = self._add(f"{self._word(1, 2)} {_EVENTS[noun]}", "event", noun)
            self._say(event, "led_by", leader)
            self._say(event, "held_in", draws.choice(self.cities))
            self._say(event, "held", draws.between(born + 23, min(died, born + 60)))

    def _maybe(
        self,
        subject: str,
        relation: str,
        options: Sequence[str],
        fits: Callable[[str], bool] = lambda _: True,
        chance: float = 0.85,
    ) -> None:
        fitting = [title for title in options if fits(title)]
        if fitting and self.draws.uniform() < chance:
            self._say(subject, relation, self.draws.choice(fitting))

    def _year(self, title: str, relation: str) -> int:
        return int(self.values[title, relation])

    def _say(self, subject: str, relation: str, value: Value) -> None:
        self.values[subject, relation] = value

    def _add(self, title: str, kind: Kind, noun: str, pronoun: str = "it") -> str:
        if title in self.entities:
            raise InvalidInputError(f"no name is left for another {noun}: expected a smaller encyclopedia")
        self.entities[title] = Entity(title, kind, noun, pronoun)
        return title

    def _title(self) -> str:
        """Return the title of a work that no other one has."""
        draws = self.draws
        for _ in range(1000):
            adjective = draws.choice(texts("names")["adjectives"]).capitalize()
            noun = draws.choice(texts("names")["nouns"]).capitalize()
            share = draws.uniform()
            if share < 0.55:
                title = f"The {adjective} {noun}"
            elif share < 0.75:
                title = f"{adjective} {noun}"
            else:
                title = f"The {noun} of {draws.choice(self.cities)}"
            # An article is no difference, neither for a reader nor for a score.
            if not {title, f"The {title}", title.removeprefix("The ")} & self.entities.keys():
                return title
        return f"{title} {self._word(2, 2)}"

    def _word(self, least: int, most: int, endings: Sequence[str] = ()) -> str:
        """Return a new name of so many syllables and an ending; a stem comes with several endings at times."""
        for attempt in range(200):
            if self.stems and attempt == 0 and self.draws.uniform() < 0.15:
                stem = self.draws.choice(self.stems)
            else:
                stem = self._syllables(self.draws.between(least, most) + attempt // 50)
            word = stem + (str(self.draws.choice(endings or texts("names")["organisation_endings"])))
            if len(word) >= 5 and word not in self.words:
                self.words.add(word)
                self.stems.append(stem)
                return word.capitalize()
        raise InvalidInputError("no names are left: expected a smaller encyclopedia")

    def _syllables(self, count: int) -> str:
        draws = self.draws
        parts = [draws.choice(texts("names")["onsets"]) + draws.choice(texts("names")["vowels"]) for _ in range(count)]
        return "".join([*parts, draws.choice(texts("names")["codas"])])
