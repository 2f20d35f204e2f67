"""The citation graph of the records world: PaperNet (who cites whom) and AuthorNet (who writes with whom)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from resilisim.errors import import_extra
from resilisim.provenance import content_hash
from resilisim.seeding import Draws
from resilisim.worlds.records.tables import ColumnDraws, fictional_people, fictional_words, words_of

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
            [[list(one.nodes(data=True)), list(one.edges(data=True))] for one in (self.papers, self.authors)]
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
    found: dict[str, None] = {}
    while len(found) < count:
        found[draws.choice(_FORMS).format(draws.choice(_SUBJECTS), draws.choice(words), draws.choice(_SUBJECTS))] = None
    return list(found)
