"""Questions on the citation graph."""

from __future__ import annotations

from typing import Any

from resilisim.seeding import Draws
from resilisim.worlds.records.contents import GeneratedData
from resilisim.worlds.records.questions.template import (
    Call,
    Question,
    calculated,
    edge,
    graph,
    neighbours,
    node,
    python,
    single,
    template,
)


def _paper(data: GeneratedData, draws: Draws) -> tuple[str, dict[str, Any]]:
    title = draws.choice(list(data.graphs.papers))
    return title, data.graphs.papers.nodes[title]


def _author(data: GeneratedData, draws: Draws) -> tuple[str, dict[str, Any]]:
    name = draws.choice(list(data.graphs.authors))
    return name, data.graphs.authors.nodes[name]


def _look_up(attribute: str, name: str, text: str) -> None:
    """File an easy template: what a paper's node says."""

    def make(data: GeneratedData, draws: Draws) -> Question | None:
        title, about = _paper(data, draws)
        calls = (graph("PaperNet"), node("PaperNet", title))
        return Question(text.format(title), about[attribute], calls, f"${{found.attributes.{attribute}}}")

    template("graph", "easy", name)(make)


_look_up("pages", "pages", "How many pages has the paper '{}'?")
_look_up("venue", "venue", "Where was the paper '{}' published?")
_look_up("authors", "authors_of_a_paper", "Who wrote the paper '{}'? Name all authors.")
_look_up("keywords", "keywords", "Which keywords has the paper '{}'? Name all.")


@template("graph", "easy")
def organisation(data: GeneratedData, draws: Draws) -> Question | None:
    """Look up where an author works."""
    name, about = _author(data, draws)
    calls = (graph("AuthorNet"), node("AuthorNet", name))
    text = f"Which organisation does {name} belong to?"
    return Question(text, about["organisation"], calls, "${found.attributes.organisation}")


@template("graph", "easy")
def joint_papers(data: GeneratedData, draws: Draws) -> Question | None:
    """Look up an edge."""
    name, _ = _author(data, draws)
    near = list(data.graphs.authors.neighbors(name))
    if not near:
        return None
    other = draws.choice(near)
    calls = (graph("AuthorNet"), edge("AuthorNet", name, other))
    text = f"Which papers did {name} and {other} write together? Name all titles."
    return Question(text, list(data.graphs.authors.edges[name, other]["papers"]), calls, "${found.attributes.papers}")


@template("graph", "hard")
def most_cited_paper(data: GeneratedData, draws: Draws) -> Question | None:
    """Compare what several nodes have around them."""
    name, about = _author(data, draws)
    papers = about["papers"]
    counts = [data.graphs.papers.in_degree(title) for title in papers]
    best = single(counts, max) if 2 <= len(papers) <= 5 else None
    if best is None:
        return None
    calls: list[Call] = [graph("AuthorNet"), node("AuthorNet", name, "author"), graph("PaperNet")]
    calls += [neighbours("PaperNet", f"${{author.attributes.papers.{k}}}", f"paper{k}") for k in range(len(papers))]
    program = (
        "counts = [sum(1 for one in near if one['relation'] == 'cited by') for near in around]\n"
        "print(papers[counts.index(max(counts))])"
    )
    around = [f"${{paper{k}.neighbours}}" for k in range(len(papers))]
    calls.append(python(program, papers="${author.attributes.papers}", around=around))
    text = f"Which paper by {name} is cited by the most papers of PaperNet?"
    return Question(text, papers[best], tuple(calls), "${answer.output}")


@template("graph", "hard")
def pages_of_citing_papers(data: GeneratedData, draws: Draws) -> Question | None:
    """Follow edges, and add up what is found."""
    title, _ = _paper(data, draws)
    papers = data.graphs.papers
    near = [*papers.successors(title), *papers.predecessors(title)]
    first = papers.out_degree(title)
    if not 2 <= papers.in_degree(title) <= 5:
        return None
    calls: list[Call] = [graph("PaperNet"), neighbours("PaperNet", title, "near")]
    places = range(first, len(near))
    calls += [node("PaperNet", f"${{near.neighbours.{k}.node}}", f"paper{k}") for k in places]
    calls.append(calculated("sum(" + ", ".join(f"${{paper{k}.attributes.pages}}" for k in places) + ")"))
    text = f"How many pages have all papers that cite '{title}', added up?"
    answer = sum(papers.nodes[other]["pages"] for other in papers.predecessors(title))
    return Question(text, answer, tuple(calls), "${answer.result}")


@template("graph", "hard")
def common_collaborators(data: GeneratedData, draws: Draws) -> Question | None:
    """Compare what two nodes have around them."""
    authors = data.graphs.authors
    name, _ = _author(data, draws)
    second = sorted({other for near in authors.neighbors(name) for other in authors.neighbors(near)} - {name})
    if not second:
        return None
    other = draws.choice(second)
    common = sorted(set(authors.neighbors(name)) & set(authors.neighbors(other)))
    calls = (
        graph("AuthorNet"),
        neighbours("AuthorNet", name, "first"),
        neighbours("AuthorNet", other, "second"),
        python(
            "names = {one['node'] for one in first} & {one['node'] for one in second}\nprint('; '.join(sorted(names)))",
            first="${first.neighbours}",
            second="${second.neighbours}",
        ),
    )
    text = f"Who has written papers with {name} and also papers with {other}? Name all of them."
    return Question(text, common, calls, "${answer.output}") if len(common) < 6 else None


@template("graph", "hard")
def closest_collaborator(data: GeneratedData, draws: Draws) -> Question | None:
    """Compare the edges of a node."""
    authors = data.graphs.authors
    name, _ = _author(data, draws)
    near = list(authors.neighbors(name))
    best = single([len(authors.edges[name, other]["papers"]) for other in near], max) if 2 <= len(near) <= 6 else None
    if best is None:
        return None
    calls: list[Call] = [graph("AuthorNet"), neighbours("AuthorNet", name, "near")]
    calls += [edge("AuthorNet", name, f"${{near.neighbours.{k}.node}}", f"edge{k}") for k in range(len(near))]
    program = "counts = [len(papers) for papers in edges]\nprint(near[counts.index(max(counts))]['node'])"
    edges = [f"${{edge{k}.attributes.papers}}" for k in range(len(near))]
    calls.append(python(program, near="${near.neighbours}", edges=edges))
    text = f"With whom has {name} written the most papers?"
    return Question(text, near[best], tuple(calls), "${answer.output}")


@template("graph", "hard")
def most_mentions(data: GeneratedData, draws: Draws) -> Question | None:
    """Compare edges, and look up the node behind one."""
    papers = data.graphs.papers
    title, _ = _paper(data, draws)
    cited = list(papers.successors(title))
    best = single([papers.edges[title, other]["mentions"] for other in cited], max) if 2 <= len(cited) <= 5 else None
    if best is None:
        return None
    calls: list[Call] = [graph("PaperNet"), neighbours("PaperNet", title, "near")]
    calls += [edge("PaperNet", title, f"${{near.neighbours.{k}.node}}", f"edge{k}") for k in range(len(cited))]
    program = "counts = list(mentions)\nprint(near[counts.index(max(counts))]['node'], end='')"
    mentions = [f"${{edge{k}.attributes.mentions}}" for k in range(len(cited))]
    calls += [python(program, "most", near="${near.neighbours}", mentions=mentions), node("PaperNet", "${most.output}")]
    text = f"Take the paper that is mentioned most often by '{title}', which cites it. Where was it published?"
    return Question(text, papers.nodes[cited[best]]["venue"], tuple(calls), "${found.attributes.venue}")


@template("graph", "hard")
def organisation_of_the_other_author(data: GeneratedData, draws: Draws) -> Question | None:
    """Follow a paper to its other author, and look this one up in the other graph."""
    title, about = _paper(data, draws)
    if len(about["authors"]) != 2:
        return None
    place = draws.below(2)
    name, other = about["authors"][1 - place], about["authors"][place]
    calls = (
        graph("PaperNet"),
        node("PaperNet", title, "paper"),
        graph("AuthorNet"),
        node("AuthorNet", f"${{paper.attributes.authors.{place}}}"),
    )
    text = (
        f"{name} wrote the paper '{title}' with one other author. Which organisation does this other author belong to?"
    )
    answer = data.graphs.authors.nodes[other]["organisation"]
    return Question(text, answer, calls, "${found.attributes.organisation}")
