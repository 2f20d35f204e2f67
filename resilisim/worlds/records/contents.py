"""What the tools of the records world work on; each part is made when it is first needed."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from resilisim.errors import InvalidInputError, check_integer, import_extra
from resilisim.provenance import content_hash
from resilisim.seeding import MAX_SEED, Draws
from resilisim.tool_library.retrieval import TextIndex
from resilisim.worlds.records import text_collections
from resilisim.worlds.records.database import Database, QueryLimits, create_table, quoted
from resilisim.worlds.records.fictional_tables import (
    MOST_ROWS,
    TABLES,
    ColumnDraws,
    Table,
    fictional_people,
    fictional_words,
    words_of,
)

MOST_PAPERS: Final = 20_000
GRAPHS: Final = ("PaperNet", "AuthorNet")
FIRST_YEAR, LAST_YEAR = 2040, 2059
_SECTIONS = ("introduction", "related work", "method", "experiments", "discussion")
_FORMS = ("{} of {} {}", "{} with {} {}", "{} beyond {} {}", "{} for {} {}", "{} under {} {}")
_SUBJECTS = words_of("""Alignment Approximation Auditing Calibration Clustering Compression Estimation Forecasting
Inference Learning Matching Optimisation Planning Pruning Ranking Retrieval Sampling Scheduling Search Verification""")
_KEYWORDS = words_of("""adaptive agents attention bandits bounds caching causality consensus convexity diffusion entropy
federated graphs hashing heuristics kernels latency memory networks online parsing privacy queues robustness routing
sketching sparsity streams transfer wavelets""")
_INSTITUTIONS = ("Institute", "University", "Laboratory", "College", "Polytechnic")


@dataclass(frozen=True, slots=True)
class Graphs:
    """Both graphs, as networkx has them: a directed one of papers (from the citing to the cited) and one of authors."""

    papers: Any
    authors: Any

    def named(self, name: str) -> Any:
        """Return PaperNet or AuthorNet."""
        return self.papers if name == "PaperNet" else self.authors

    def content_hash(self) -> str:
        """Return the SHA-256 of all nodes and edges with their attributes."""
        return content_hash(
            [[list(graph.nodes(data=True)), list(graph.edges(data=True))] for graph in (self.papers, self.authors)]
        )


def graphs(seed: int, count: int) -> Graphs:
    """Return the graphs of so many papers; authors are about half as many."""
    networkx = import_extra("networkx", "graphs of worlds need", "worlds")
    names, draws = Draws("records", seed, "graph", "names"), ColumnDraws("records", seed, "graph")
    people = fictional_people(names, max(12, count // 2))
    places = [f"{word} {names.choice(_INSTITUTIONS)}" for word in fictional_words(names, 80)]
    venues = [f"{word} {kind}" for word in fictional_words(names, 30) for kind in ("Letters", "Conference")]
    keywords = [tuple(dict.fromkeys(names.choice(_KEYWORDS) for _ in range(4))) for _ in range(300)]

    def below(column: str, rows: int, size: int) -> list[int]:
        values: list[int] = draws.below(column, rows, size).tolist()
        return values

    papers, authors = networkx.DiGraph(), networkx.Graph()
    place_of, interest_of = below("organisation", len(people), len(places)), below("interests", len(people), 300)
    for person, place, interest in zip(people, place_of, interest_of, strict=True):
        authors.add_node(person, organisation=places[place], interests=list(keywords[interest]), papers=[])
    lead, team_size = below("lead", count, len(people)), below("team", count, 4)
    venue, pages = below("venue", count, len(venues)), below("pages", count, 45)
    keyword, citations = below("keywords", count, 300), below("cites", count, 9)
    other, cited = below("others", 3 * count, 6), below("cited", 9 * count, 2**31 - 1)
    section, mentions = below("section", 9 * count, len(_SECTIONS)), below("mentions", 9 * count, 12)
    titles = _titles(names, count)
    for number, title in enumerate(titles):
        # Neighbours in the list of people write together again and again.
        others = other[3 * number : 3 * number + team_size[number]]
        team = sorted({lead[number], *((lead[number] + step) % len(people) for step in others)})
        writers = [people[place] for place in team]
        papers.add_node(
            title,
            title=title,
            authors=writers,
            year=FIRST_YEAR + number * (LAST_YEAR - FIRST_YEAR + 1) // count,
            venue=venues[venue[number]],
            pages=4 + pages[number],
            keywords=list(keywords[keyword[number]]),
        )
        for place in range(9 * number, 9 * number + min(number, 1 + citations[number])):
            target = titles[cited[place] % number]
            papers.add_edge(title, target, section=_SECTIONS[section[place]], mentions=1 + mentions[place])
        for place, writer in enumerate(writers):
            authors.nodes[writer]["papers"].append(title)
            for earlier in writers[:place]:
                shared = authors.edges[writer, earlier]["papers"] if authors.has_edge(writer, earlier) else []
                authors.add_edge(writer, earlier, papers=[*shared, title])
    return Graphs(papers, authors)


def _titles(draws: Draws, count: int) -> list[str]:
    words = fictional_words(draws, 400)
    titles: dict[str, None] = {}
    while len(titles) < count:
        titles[draws.choice(_FORMS).format(draws.choice(_SUBJECTS), draws.choice(words), draws.choice(_SUBJECTS))] = (
            None
        )
    return list(titles)


# Part of the name of cached tables: to be changed whenever tables of the same seed and sizes change.
_TABLES_REVISION: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """What a world of records is made from.

    Attributes:
        seed: Another seed gives other data and other questions.
        questions: Number for each of the eight domains and each of the two difficulties.
        flights: Rows of this table, and so on: rows of tables, texts of collections, papers of the graphs.

    Raises:
        InvalidInputError: A number is out of range.
    """

    __pydantic_config__: ClassVar[Mapping[str, str]] = {"extra": "forbid"}

    seed: int = 0
    questions: int = 100
    flights: int = 100_000
    coffee: int = 6_000
    airbnb: int = 50_000
    yelp: int = 50_000
    agenda: int = 10_000
    scirex: int = 1_500
    papers: int = 4_000

    def __post_init__(self) -> None:
        """Refuse what is too small for questions, or too large."""
        for name, (least, most) in _RANGES.items():
            check_integer(name, getattr(self, name), least, most)

    def to_mapping(self) -> dict[str, int]:
        """Return all fields by name."""
        return dataclasses.asdict(self)


_RANGES: Final[Mapping[str, tuple[int, int]]] = {
    "seed": (0, MAX_SEED),
    "questions": (1, 10_000),
    "flights": (9_000, MOST_ROWS),
    "coffee": (1_000, MOST_ROWS),
    "airbnb": (2_000, MOST_ROWS),
    "yelp": (2_000, MOST_ROWS),
    "agenda": (2_000, text_collections.MOST_AGENDA_EVENTS),
    "scirex": (300, text_collections.MOST_PARAGRAPHS),
    "papers": (400, MOST_PAPERS),
}


class Records:
    """Tables in a database, collections of texts that are searched, and graphs.

    Args:
        database: Holds the tables, which are named by `tables`.
        tables: Names of the tables.
        passages: What makes each collection, "agenda" and "scirex".
        make_graphs: What makes the graphs.
        search: How texts are searched: "lexical" or "semantic".
    """

    def __init__(
        self,
        database: Database,
        tables: Sequence[str],
        passages: Mapping[str, Callable[[], Sequence[str]]],
        make_graphs: Callable[[], Graphs],
        search: str = "lexical",
    ) -> None:
        self.database = database
        self.tables = tuple(tables)
        self._passages = passages
        self._make_graphs = make_graphs
        self._search = search
        self._indexes: dict[str, tuple[Sequence[str], TextIndex]] = {}
        self._about: dict[str, dict[str, Any]] = {}

    def about(self, name: str) -> dict[str, Any]:
        """Return what loading a table or a graph tells of it; the same object at every call."""
        if name not in self._about:
            self._about[name] = self._about_table(name) if name in self.tables else self._about_graph(name)
        return self._about[name]

    def _about_table(self, name: str) -> dict[str, Any]:
        [[count]] = self.database.query(f"SELECT count(*) FROM {quoted(name)}").rows
        first = self.database.query(f"SELECT * FROM {quoted(name)} LIMIT 1")
        example = dict(zip(first.columns, first.rows[0], strict=True)) if first.rows else {}
        return {"row_count": count, "columns": dict(self.database.columns(name)), "example": example}

    def _about_graph(self, name: str) -> dict[str, Any]:
        graph = self.graphs.named(name)
        nodes, edges = graph.nodes(data=True), graph.edges(data=True)
        return {
            "node_count": len(nodes),
            "edge_count": len(edges),
            "node_attributes": sorted(next(iter(nodes), ({},))[-1]),
            "edge_attributes": sorted(next(iter(edges), ({},))[-1]),
        }

    def find_passages(self, collection: str, query: str, count: int) -> list[str]:
        """Return the texts of a collection that are nearest to a query, best first."""
        if collection not in self._indexes:
            search = self._passages[collection]()
            self._indexes[collection] = search, TextIndex(search, self._search)
        passages, index = self._indexes[collection]
        return [passages[hit.index] for hit in index.search(query, count)]

    @functools.cached_property
    def graphs(self) -> Graphs:
        """Both graphs."""
        return self._make_graphs()


class GeneratedData:
    """All facts of a generated world, from which questions are made, as plain values.

    Args:
        recipe: Seed and sizes.
        expected: SHA-256 that parts are known to have, by name; each is compared when it is made.

    Raises:
        InvalidInputError: A part is another than the expected one: a later version makes it differently.
    """

    def __init__(self, recipe: Recipe, expected: Mapping[str, str] | None = None) -> None:
        self.recipe = recipe
        self.seed = recipe.seed
        self._expected = dict(expected or {})
        self._tables: dict[str, Table] = {}

    def table(self, name: str) -> Table:
        """Return a table."""
        if name not in self._tables:
            table = TABLES[name](self.seed, getattr(self.recipe, name))
            self._compare(name, table.content_hash)
            self._tables[name] = table
        return self._tables[name]

    @functools.cached_property
    def agenda(self) -> tuple[list[str], list[text_collections.Event]]:
        """Texts of the agenda, and the event that each tells of."""
        made = text_collections.agenda(self.seed, self.recipe.agenda)
        self._compare("agenda", lambda: content_hash(made[0]))
        return made

    @functools.cached_property
    def scirex(self) -> tuple[list[str], list[text_collections.Result]]:
        """Paragraphs of papers, and the results that they report."""
        made = text_collections.papers(self.seed, self.recipe.scirex)
        self._compare("scirex", lambda: content_hash(made[0]))
        return made

    @functools.cached_property
    def graphs(self) -> Graphs:
        """Both graphs."""
        made = graphs(self.seed, self.recipe.papers)
        self._compare("graphs", made.content_hash)
        return made

    def hashes(self) -> dict[str, str]:
        """Return the SHA-256 of each part, which is made for it."""
        return {
            **{name: self.table(name).content_hash() for name in TABLES},
            "agenda": content_hash(self.agenda[0]),
            "scirex": content_hash(self.scirex[0]),
            "graphs": self.graphs.content_hash(),
        }

    def _compare(self, part: str, digest: Callable[[], str]) -> None:
        if part in self._expected and (made := digest()) != self._expected[part]:
            problem = f"{part} of seed {self.seed} has SHA-256 {made[:12]}...; expected {self._expected[part][:12]}..."
            raise InvalidInputError(f"{problem}: this set was made by another version of the package")

    def records(self, search: str = "lexical", limits: QueryLimits | None = None) -> Records:
        """Return the data as tools work on it; the tables are kept in the user's cache folder."""
        name = content_hash([_TABLES_REVISION, self.seed, [getattr(self.recipe, table) for table in TABLES]])[:16]

        def fill(connection: Any) -> None:
            for table in TABLES:
                create_table(connection, self.table(table))

        passages = {"agenda": lambda: self.agenda[0], "scirex": lambda: self.scirex[0]}
        return Records(Database(f"records-{name}", fill, limits), tuple(TABLES), passages, lambda: self.graphs, search)
