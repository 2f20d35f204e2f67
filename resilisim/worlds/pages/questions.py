"""Questions over a graph: what is asked in a small formal language, how it is said, and what solves it.

A query is a nested tuple, kept with each question so that anybody can evaluate it on the graph:

    ("is", title)              one entity
    ("of", relation, query)    the values of a relation for what the query means
    ("with", relation, query)  all subjects of a relation whose value is what the query means
    ("and" | "or" | "but", query, query)       what is in both, in either, in the first alone
    ("least" | "most", relation, query, ...)   the one among them with the earliest or latest year
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

from resilisim.seeding import Draws
from resilisim.worlds.answers import normalized
from resilisim.worlds.pages.graph import ISSUER_OF, Entity, Graph, Value, texts
from resilisim.worlds.pages.prose import mention, of_noun, words_of

QuestionKind = Literal["bridge", "comparison", "hops", "list", "sets", "conversation"]
Query: TypeAlias = tuple[Any, ...]

YEARS: Final = ("born", "died", "year", "founded", "chartered", "held")
# What leads from an entity of each kind to another one.
LINKS: Mapping[str, tuple[str, ...]] = {
    "person": ("born_in", "died_in", "studied_at", "taught_by", "married_to", "member_of"),
    "work": ("made_by", "issued_by", "dedicated_to", "set_in", "first_shown_in"),
    "institution": ("seat", "founded_by"),
    "society": ("seat", "founded_by"),
    "company": ("seat", "founded_by"),
    "event": ("led_by", "held_in"),
    "city": ("in_region", "on_river"),
    "river": ("rises_in",),
    "region": ("capital",),
}
# What leads to an entity of each kind.
_LINKS_INTO: Mapping[str, tuple[str, ...]] = {
    "person": ("taught_by", "married_to", "made_by", "dedicated_to", "founded_by", "led_by"),
    "city": ("born_in", "died_in", "set_in", "first_shown_in", "seat", "held_in", "capital"),
    "institution": ("studied_at",),
    "society": ("member_of",),
    "company": ("issued_by",),
}
_YEARS_OF: Mapping[str, tuple[str, ...]] = {
    "person": ("born", "died"),
    "work": ("year",),
    "institution": ("founded",),
    "society": ("founded",),
    "company": ("founded",),
    "event": ("held",),
    "city": ("chartered",),
}
_AGES: Mapping[str, tuple[str, str]] = {  # of the earlier and the later of two
    "born": ("elder", "younger"),
    "year": ("earlier", "later"),
    "founded": ("older", "younger"),
    "held": ("earlier", "later"),
}
# Relations whose other direction stands as a list on the page of their value.
_LISTED: Mapping[str, tuple[str, ...]] = {
    "people": ("taught_by", "member_of", "studied_at", "born_in"),
    "works": ("made_by", "issued_by"),
}
_MOST_PAGES = 7  # that a solution has to read
_SAME_ANSWER = 3  # questions of one kind, at most, with the same answer
_TRIES = 400  # for each question


@dataclass(frozen=True, slots=True)
class Step:
    """One search of a solution.

    Attributes:
        query: What is searched for.
        evidence: Keys of the sentences that are needed from the page with that title (`Page.evidence`).
    """

    query: str
    evidence: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Question:
    """One question, or a conversation of several.

    Attributes:
        kind: What kind of question it is.
        turns: The questions; more than one in conversations only.
        queries: What each means.
        answers: The right answers: of a conversation one for each turn, else all of them.
        steps: Searches that find everything that is needed, in their order.
    """

    kind: QuestionKind
    turns: tuple[str, ...]
    queries: tuple[Query, ...]
    answers: tuple[str, ...]
    steps: tuple[Step, ...]


def solve(graph: Graph, query: Query) -> tuple[Value, ...]:
    """Return what a query means on a graph, each once, in the order in which the graph gives it.

    Example:
        >>> from resilisim.worlds.pages.graph import Entity, Fact, Graph
        >>> person, city = Entity("Ena Vosk", "person", "painter", "she"), Entity("Ostrel", "city", "city")
        >>> graph = Graph([person, city], [Fact("Ena Vosk", "born_in", "Ostrel")])
        >>> solve(graph, ("of", "born_in", ("with", "born_in", ("is", "Ostrel"))))
        ('Ostrel',)
    """
    operator, *rest = query
    if operator == "is":
        return (rest[0],)
    if operator == "of":
        found = (graph.value(str(one), rest[0]) for one in solve(graph, rest[1]))
        return tuple(dict.fromkeys(value for value in found if value is not None))
    if operator == "with":
        return tuple(one for value in solve(graph, rest[1]) for one in graph.subjects(rest[0], value))
    if operator in ("least", "most"):
        candidates = [one for part in rest[1:] for one in solve(graph, part)]
        years = [int(graph.value(str(one), rest[0]) or 0) for one in candidates]
        return (candidates[years.index(min(years) if operator == "least" else max(years))],)
    first, second = (solve(graph, part) for part in rest)
    if operator == "or":
        return tuple(dict.fromkeys([*first, *second]))
    return tuple(one for one in first if (one in second) == (operator == "and"))


def make_questions(
    graph: Graph, kind: QuestionKind, count: int, seed: int, passes: Callable[[Question], bool]
) -> tuple[Question, ...]:
    """Draw questions of a kind that all differ and that pass a check, at most `count` of them.

    No question holds an answer, and no answer is that of more than three questions of the kind.

    Args:
        graph: What they are about.
        kind: What kind of questions.
        count: How many are wanted; a small graph may have fewer.
        seed: Another seed gives other questions.
        passes: Whether a question can be solved on the pages.
    """
    maker = _Maker(graph, Draws("resilisim/pages/questions", seed, kind))
    make: Mapping[QuestionKind, Callable[[int], Question | None]] = {
        "bridge": lambda _: maker.chain("bridge", 2),
        "comparison": lambda _: maker.comparison(),
        "hops": lambda number: maker.meeting() if number % 6 == 5 else maker.chain("hops", 2 + number % 3),
        "list": lambda number: maker.each() if number % 2 else maker.members(),
        "sets": lambda number: maker.sets(("and", "but", "or")[number % 3]),
        "conversation": lambda number: maker.conversation(4 + number % 4),
    }
    kept: dict[tuple[str, ...], Question] = {}
    times: dict[tuple[str, ...], int] = {}
    for _ in range(count * _TRIES):
        if len(kept) == count:
            break
        question = make[kind](len(kept))
        if question is None or question.turns in kept or times.get(question.answers, 0) == _SAME_ANSWER:
            continue
        if _tells(question) or not passes(question):
            continue
        times[question.answers] = times.get(question.answers, 0) + 1
        kept[question.turns] = question
    return tuple(kept.values())


def _tells(question: Question) -> bool:
    """Return whether the words of a question hold one of its answers."""
    text = f" {normalized(' '.join(question.turns))} "
    return any(f" {normalized(answer)} " in text for answer in question.answers)


class _Maker:
    """Draws one question at a time; None where what was drawn makes no good one."""

    def __init__(self, graph: Graph, draws: Draws) -> None:
        self.graph, self.draws = graph, draws

    # What is asked.

    def chain(self, kind: QuestionKind, hops: int) -> Question | None:
        """Ask for what several relations lead to, one after the other."""
        query, titles, relations = self._walk(hops)
        if len(relations) < hops:
            return None
        steps = [Step(title, (relation,)) for title, relation in zip(titles, relations, strict=False)]
        return self._question(kind, [self._asked(query)], [query], steps)

    def comparison(self) -> Question | None:
        """Ask for something about the earlier or the later of two of the same kind."""
        draws, graph = self.draws, self.graph
        relation = draws.choice(tuple(_AGES))
        kinds = [kind for kind, years in _YEARS_OF.items() if relation in years]
        one = draws.choice(graph.of_kind(draws.choice(kinds)))
        other = draws.choice([entity for entity in graph.of_kind(one.kind) if entity.noun == one.noun])
        years = [int(graph.value(entity.title, relation) or 0) for entity in (one, other)]
        asked = draws.choice(LINKS[one.kind])
        if (
            abs(years[0] - years[1]) < 2
            or len({graph.value(entity.title, asked) for entity in (one, other)} - {None}) < 2
        ):
            return None
        which = draws.below(2)
        query = ("of", asked, (("least", "most")[which], relation, ("is", one.title), ("is", other.title)))
        words = f"the {_AGES[relation][which]} of the two {_plural(one.noun)} {one.title} and {other.title}"
        steps = [Step(entity.title, (relation, asked)) for entity in (one, other)]
        return self._question("comparison", [self._ask(asked, words, one)], [query], steps)

    def meeting(self) -> Question | None:
        """Ask for the work that two chains lead to: by somebody, and set somewhere, neither of whom is named."""
        draws, graph = self.draws, self.graph
        work = draws.choice(graph.of_kind("work"))
        maker, city = str(graph.value(work.title, "made_by")), str(graph.value(work.title, "set_in"))
        by_way, where_way = self._way_to(maker), self._way_to(city)
        if by_way is None or where_way is None:
            return None
        (by, by_start, by_relation), (where, where_start, where_relation) = by_way, where_way
        query = ("and", ("with", "made_by", by), ("with", "set_in", where))
        verb = "shows" if work.noun == "painting" else "is set in"
        text = f"Which {work.noun} by {self._named(by)} {verb} {self._named(where)}?"
        steps = [
            Step(by_start, (by_relation,)),
            Step(maker, ("list:made_by",)),
            Step(where_start, (where_relation,)),
            Step(work.title, ("made_by", "set_in")),
        ]
        return self._question("hops", [text], [query], steps) if work.title not in (by_start, where_start) else None

    def members(self) -> Question | None:
        """Ask for all that a page lists, the page being named by its relation to another one."""
        relation = self.draws.choice(_LISTED[self.draws.choice(tuple(_LISTED))])
        value = self.draws.choice(self.graph.facts)
        if value.relation != relation:
            return None
        way = self._way_to(str(value.value))
        if way is None:
            return None
        inner, start, link = way
        query = ("with", relation, inner)
        people = relation in _LISTED["people"]
        text = f"Which {'people' if people else 'works'} {self._class_words(relation, 'verb', inner)}?"
        steps = [Step(start, (link,)), Step(str(value.value), (f"list:{relation}",))]
        return self._question("list", [text], [query], steps)

    def each(self) -> Question | None:
        """Ask for what a relation gives for each of those that a page lists."""
        draws, graph = self.draws, self.graph
        fact = draws.choice(graph.facts)
        if fact.relation not in (*_LISTED["people"], *_LISTED["works"]):
            return None
        listed = graph.subjects(fact.relation, fact.value)
        asked = draws.choice(LINKS[graph.entities[fact.subject].kind])
        if not 2 <= len(listed) < _MOST_PAGES or asked == fact.relation:
            return None
        if any(graph.value(title, asked) is None for title in listed):
            return None
        inner = ("with", fact.relation, ("is", str(fact.value)))
        words = f"the {self._class_words(fact.relation, 'all', inner[2])}"
        text = self._of_each(asked, words, graph.entities[fact.subject])
        steps = [Step(str(fact.value), (f"list:{fact.relation}",)), *(Step(title, (asked,)) for title in listed)]
        return self._question("list", [text], [("of", asked, inner)], steps)

    def sets(self, operator: str) -> Question | None:
        """Ask for what is in both of two lists, in the first alone, or in either, without naming the operation."""
        draws, graph = self.draws, self.graph
        what = draws.choice(tuple(_LISTED))
        joined = {"and": "verb", "but": "not"}
        # The second list is one that somebody in the first belongs to, so that they share something.
        first = draws.choice(graph.facts)
        if first.relation not in _LISTED[what]:
            return None
        second = draws.choice(graph.facts_of[first.subject])
        third = draws.choice(graph.facts_of[draws.choice(graph.subjects(first.relation, first.value))])
        lists = list(dict.fromkeys((fact.relation, fact.value) for fact in (first, second, third)))
        if any(relation not in _LISTED[what] for relation, _ in lists) or len(lists) < 2:
            return None
        query: Query
        parts: list[Query] = [("with", relation, ("is", str(value))) for relation, value in lists]
        named = self._class_words(lists[0][0], "all", parts[0][2])
        if operator == "or":
            parts = parts[:2]
            query = ("or", *parts)
            text = f"Name the {named}, as well as the {self._class_words(lists[1][0], 'all', parts[1][2])}."
        else:
            who = "who" if what == "people" else "that"
            query = (operator, *parts[:2])
            text = f"Name the {named} {who} {self._class_words(lists[1][0], joined[operator], parts[1][2])}"
            if len(parts) == 3 and lists[2][0] != lists[1][0]:
                query = ("but", query, parts[2])
                text += f" and {self._class_words(lists[2][0], 'not', parts[2][2])}"
            else:
                parts = parts[:2]
            text += "."
        # Each list has to count: what is left over must not be one of them, nor the same without the last.
        without = query[1] if len(parts) == 3 else ()
        members = set(solve(graph, query))
        if members in [set(solve(graph, part)) for part in (*parts, without) if part]:
            return None
        steps = [Step(str(value), (f"list:{relation}",)) for relation, value in lists[: len(parts)]]
        return self._question("sets", [text], [query], steps)

    def conversation(self, length: int) -> Question | None:
        """Ask one thing after the other about a topic, which gives way to an answer several times."""
        draws, graph = self.draws, self.graph
        topic = draws.choice(draws.choice([graph.of_kind(kind) for kind in ("person", "work", "event")]))
        name, query = mention(topic), ("is", topic.title)
        turns: list[str] = []
        queries: list[Query] = []
        asked: dict[str, list[str]] = {topic.title: []}
        while len(turns) < length:
            left = [
                candidate
                for candidate in (*LINKS[topic.kind], *_YEARS_OF.get(topic.kind, ()))
                if candidate not in asked[topic.title]
            ]
            left = [candidate for candidate in left if graph.value(topic.title, candidate) is not None]
            if not left:
                return None
            relation = draws.choice(left)
            asked[topic.title].append(relation)
            turns.append(self._ask(relation, name, topic))
            queries.append(("of", relation, query))
            answer = graph.entities.get(str(graph.value(topic.title, relation)))
            # An answer of the topic's own kind becomes the topic: "she" and "the city" would be ambiguous otherwise.
            if answer is not None and (answer.kind == topic.kind or draws.uniform() < 0.5):
                if answer.title in asked:
                    return None
                noun = of_noun(texts("relations")["questions"], relation, topic.noun)["noun"].format_map(
                    words_of(topic)
                )
                topic, name, query = answer, f"that {noun}", queries[-1]
                asked[topic.title] = []
            else:
                name = topic.pronoun if topic.kind == "person" else f"the {topic.noun}"
        asked = {title: relations for title, relations in asked.items() if relations}
        if len(asked) < 3:
            return None
        steps = [Step(title, tuple(relations)) for title, relations in asked.items()]
        return self._question("conversation", turns, queries, steps)

    def _question(
        self, kind: QuestionKind, turns: Sequence[str], queries: Sequence[Query], steps: Sequence[Step]
    ) -> Question | None:
        solutions = [solve(self.graph, query) for query in queries]
        if kind in ("list", "sets"):
            answers = solutions[0]
            if not 2 <= len(answers) <= 12:
                return None
        else:
            if any(len(values) != 1 for values in solutions):
                return None
            answers = tuple(values[0] for values in solutions)
        return Question(kind, tuple(turns), tuple(queries), tuple(map(str, answers)), tuple(steps))

    # How it is walked.

    def _walk(self, hops: int) -> tuple[Query, list[str], list[str]]:
        """Follow relations from an entity, never back to one that was passed; shorter where none leads on."""
        draws, graph = self.draws, self.graph
        kinds = ("work", "work", "event", "institution", "society", "company", "person")
        start = draws.choice(graph.of_kind(draws.choice(kinds)))
        query: Query = ("is", start.title)
        titles, relations = [start.title], []
        for hop in range(hops):
            here = graph.entities[titles[-1]]
            options = list(LINKS[here.kind])
            if hop == hops - 1:
                options += _YEARS_OF.get(here.kind, ())
            options = [candidate for candidate in options if graph.value(here.title, candidate) not in (None, *titles)]
            if not options:
                break
            relation = draws.choice(options)
            query = ("of", relation, query)
            relations.append(relation)
            titles.append(str(graph.value(here.title, relation)))
        return query, titles, relations

    def _way_to(self, title: str) -> tuple[Query, str, str] | None:
        """Return a query of one relation that means an entity, the entity it begins at, and the relation."""
        kind = self.graph.entities[title].kind
        ways = [(subject, fact) for fact in _LINKS_INTO[kind] for subject in self.graph.subjects(fact, title)]
        if not ways:
            return None
        start, relation = self.draws.choice(ways)
        return ("of", relation, ("is", start)), start, relation

    # How it is said.

    def _asked(self, query: Query) -> str:
        _, relation, inner = query
        return self._ask(relation, self._named(inner), self._entity(inner), ends=inner[0] != "is")

    def _named(self, query: Query) -> str:
        """Return a query of one result as a noun phrase."""
        if query[0] == "is":
            return mention(self._entity(query))
        _, relation, inner = query
        entity = self._entity(inner)
        phrases = of_noun(texts("relations")["questions"], relation, entity.noun)["np"]
        phrase = phrases[0] if self.draws.uniform() < 0.7 else phrases[1]
        return str(phrase.format(x=self._named(inner), **words_of(entity)))

    def _ask(self, relation: str, name: str, entity: Entity, *, ends: bool = False) -> str:
        """Return the question for a relation of an entity; `ends` puts the entity's name last, where it is long."""
        forms: list[str] = of_noun(texts("relations")["questions"], relation, entity.noun)["ask"]
        if ends:
            forms = [form for form in forms if form.endswith("{x}?")] or forms
        if name == entity.pronoun:
            forms = [form for form in forms if "did {x}" in form or "was {x}" in form]
        return self.draws.choice(forms).format(x=name, **words_of(entity))

    def _of_each(self, relation: str, words: str, entity: Entity) -> str:
        question: Mapping[str, Any] = of_noun(texts("relations")["questions"], relation, entity.noun)
        return str(question["each"].format(x=words, **words_of(entity)))

    def _class_words(self, relation: str, form: str, value: Query) -> str:
        entity = self._entity(value)
        phrases = texts("relations")["classes"][relation][form]
        phrase = phrases if isinstance(phrases, str) else self.draws.choice(phrases)
        return str(phrase.format(v=self._named(value), issued=_issued(entity.noun)))

    def _entity(self, query: Query) -> Entity:
        return self.graph.entities[str(solve(self.graph, query)[0])]


def _issued(company: str) -> str:
    """Return what a company of that sort does with works, as a participle."""
    verbs = texts("relations")["verbs"]
    return next((str(verbs[noun]["issued"]) for noun, issuer in ISSUER_OF.items() if issuer == company), "")


def _plural(noun: str) -> str:
    if noun.endswith("y"):
        return noun[:-1] + "ies"
    return noun + ("es" if noun.endswith("s") else "s")
