"""What the tools of the records world work on; each part is made when it is first needed."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from resilisim.errors import check_integer
from resilisim.provenance import content_hash
from resilisim.seeding import MAX_SEED
from resilisim.tool_library import TextIndex
from resilisim.worlds.records import texts
from resilisim.worlds.records.database import Database, QueryLimits, create_table
from resilisim.worlds.records.graphs import MOST_PAPERS, Graphs, graphs
from resilisim.worlds.records.tables import MOST_ROWS, TABLES, Table

# Part of the name of cached tables: to be changed whenever tables of the same seed and sizes change.
_TABLES_REVISION: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """How large the parts of a generated world are: rows, texts and papers.

    Raises:
        InvalidInputError: A size is not in its range.

    Example:
        >>> from resilisim.worlds.records import Sizes
        >>> Sizes(flights=20_000).coffee
        6000
    """

    flights: int = 100_000
    coffee: int = 6_000
    airbnb: int = 50_000
    yelp: int = 50_000
    agenda: int = 10_000
    scirex: int = 1_500
    papers: int = 4_000

    def __post_init__(self) -> None:
        """Refuse what is too small for its questions, or too large."""
        ranges = {
            "flights": (9_000, MOST_ROWS),
            "coffee": (1_000, MOST_ROWS),
            "airbnb": (2_000, MOST_ROWS),
            "yelp": (2_000, MOST_ROWS),
            "agenda": (2_000, texts.MOST_EVENTS),
            "scirex": (300, texts.MOST_PARAGRAPHS),
            "papers": (400, MOST_PAPERS),
        }
        for name, (least, most) in ranges.items():
            check_integer(f"size of {name}", getattr(self, name), least, most)


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

    def find_passages(self, collection: str, query: str, count: int) -> list[str]:
        """Return the texts of a collection that are nearest to a query, best first."""
        if collection not in self._indexes:
            found = self._passages[collection]()
            self._indexes[collection] = found, TextIndex(found, self._search)
        passages, index = self._indexes[collection]
        return [passages[hit.index] for hit in index.search(query, count)]

    @functools.cached_property
    def graphs(self) -> Graphs:
        """Both graphs."""
        return self._make_graphs()


class GeneratedData:
    """All facts of a generated world, from which questions are made, as plain values.

    Args:
        seed: Any other gives another world.
        sizes: How large its parts are.
    """

    def __init__(self, seed: int = 0, sizes: Sizes | None = None) -> None:
        self.seed = check_integer("seed", seed, 0, MAX_SEED)
        self.sizes = sizes or Sizes()
        self._tables: dict[str, Table] = {}

    def table(self, name: str) -> Table:
        """Return a table."""
        if name not in self._tables:
            self._tables[name] = TABLES[name](self.seed, getattr(self.sizes, name))
        return self._tables[name]

    @functools.cached_property
    def agenda(self) -> tuple[list[str], list[texts.Event]]:
        """Texts of the agenda, and the event that each tells of."""
        return texts.agenda(self.seed, self.sizes.agenda)

    @functools.cached_property
    def scirex(self) -> tuple[list[str], list[texts.Result]]:
        """Paragraphs of papers, and the results that they report."""
        return texts.papers(self.seed, self.sizes.scirex)

    @functools.cached_property
    def graphs(self) -> Graphs:
        """Both graphs."""
        return graphs(self.seed, self.sizes.papers)

    def hashes(self) -> dict[str, str]:
        """Return the SHA-256 of each part, which is made for it."""
        papers = sorted(self.graphs.papers.nodes(data=True)), sorted(self.graphs.papers.edges(data=True))
        authors = sorted(self.graphs.authors.nodes(data=True)), sorted(self.graphs.authors.edges(data=True))
        return {
            **{name: self.table(name).content_hash() for name in TABLES},
            "agenda": content_hash(self.agenda[0]),
            "scirex": content_hash(self.scirex[0]),
            "graphs": content_hash([papers, authors]),
        }

    def records(self, search: str = "lexical", limits: QueryLimits | None = None) -> Records:
        """Return the data as tools work on it; the tables are kept in the user's cache folder."""
        name = content_hash([_TABLES_REVISION, self.seed, dataclasses.asdict(self.sizes)])[:16]

        def fill(connection: Any) -> None:
            for table in TABLES:
                create_table(connection, self.table(table))

        passages = {"agenda": lambda: self.agenda[0], "scirex": lambda: self.scirex[0]}
        return Records(Database(f"records-{name}", fill, limits), tuple(TABLES), passages, lambda: self.graphs, search)
