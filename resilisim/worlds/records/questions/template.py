"""What a question is, how templates make some, and the calls that their references are written in.

A template computes the answer from the data as they were generated, and says which calls lead to it. Whether they do is
found out by really making them (`resilisim.worlds.records.question_set`), so each answer is come by in two ways.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

from resilisim.seeding import Draws
from resilisim.worlds.records.contents import GeneratedData
from resilisim.worlds.records.fictional_tables import Table

Difficulty = Literal["easy", "hard"]
AnswerKind = Literal["text", "number", "set"]
Call: TypeAlias = dict[str, Any]

DIFFICULTIES: Final[tuple[Difficulty, ...]] = ("easy", "hard")
DOMAINS: Final = ("flights", "coffee", "airbnb", "yelp", "agenda", "scirex", "graph", "arithmetic")


@dataclass(frozen=True, slots=True)
class Question:
    """A question with its answer and the calls that lead there.

    Attributes:
        text: What is asked, and in which form the answer is wanted.
        answer: A text, a number, or texts of which all belong to the answer.
        calls: The reference, in the form of a task's metadata.
        source: Where the answer then stands: "${name.path}" of what the calls have saved.
        pattern: Regular expression whose groups are the answer within that text; "" takes the text itself.
        digits: Decimals that a number is asked for with.
    """

    text: str
    answer: str | float | Sequence[str]
    calls: tuple[Call, ...]
    source: str
    pattern: str = ""
    digits: int = 0

    @property
    def kind(self) -> AnswerKind:
        """How answers are compared with the right one."""
        if isinstance(self.answer, str):
            return "text"
        return "number" if isinstance(self.answer, (int, float)) else "set"

    @property
    def answer_text(self) -> str:
        """The right answer as an agent would give it; parts of a set stand between semicolons."""
        if isinstance(self.answer, str):
            return self.answer
        if isinstance(self.answer, (int, float)):
            return f"{self.answer:.{self.digits}f}"
        return "; ".join(self.answer)


Template: TypeAlias = Callable[[GeneratedData, Draws], "Question | None"]
"""Makes a question, or None where what was drawn does not do (no single answer, too few rows)."""

QUESTION_TEMPLATES: Final[dict[tuple[str, Difficulty], dict[str, Template]]] = {
    (domain, difficulty): {} for domain in DOMAINS for difficulty in DIFFICULTIES
}


def template(domain: str, difficulty: Difficulty, name: str = "") -> Callable[[Template], Template]:
    """Return a decorator that files a template under its own name or another."""

    def filed(make: Template) -> Template:
        QUESTION_TEMPLATES[domain, difficulty][name or make.__name__] = make
        return make

    return filed


def random_row(table: Table, draws: Draws) -> dict[str, Any]:
    """Return a row of a table."""
    return table.row(draws.below(len(table)))


def look_up(
    domain: str,
    name: str,
    column: str,
    text: str,
    by: Sequence[str],
    *,
    by_filter: bool = False,
    digits: int = 0,
    unless: str = "",
    separator: str = "",
) -> None:
    """File an easy template: what a column says in the one row that others tell, which a filter or a query finds.

    Args:
        domain: Which table.
        name: What the template is filed under.
        column: What is asked for.
        text: The question, with names of columns in braces.
        by: Columns that tell the row; where several rows agree in them there is no question.
        by_filter: Whether the reference filters the table; else it queries it.
        digits: Decimals that a number is asked for with.
        unless: Column that has to be false.
        separator: What stands between the parts of a list.
    """

    def make(data: GeneratedData, draws: Draws) -> Question | None:
        table = data.table(domain)
        row = random_row(table, draws)
        key = {one: row[one] for one in by}
        if (unless and row[unless]) or len(table.where(**key)) != 1:
            return None
        asked, answer = text.format_map(row), row[column].split(separator) if separator else row[column]
        if by_filter:
            calls = filtered(domain, ", ".join(f"{one}={value}" for one, value in key.items()))
            return Question(
                asked, answer, calls, f"${{found.rows.0.{list(table.columns).index(column)}}}", digits=digits
            )
        tests = (f"{one} = '{value}'" if isinstance(value, str) else f"{one} = {value}" for one, value in key.items())
        query = f"SELECT {column} FROM {domain} WHERE {' AND '.join(tests)}"
        return Question(asked, answer, (sql(query),), "${found.rows.0.0}", digits=digits)

    template(domain, "easy", name)(make)


def single(values: Sequence[Any], best: Callable[[Sequence[Any]], Any]) -> int | None:
    """Return the place of the best value (`max`, `min`), or None if several are best."""
    wanted = best(values)
    return None if list(values).count(wanted) > 1 else list(values).index(wanted)


def sql(query: str, save: str = "found") -> Call:
    """Query the tables."""
    return {"tool": "SQLInterpreter", "parameters": {"sql": query}, "save": save}


def filtered(database: str, condition: str, save: str = "found") -> tuple[Call, Call]:
    """Load a database and filter it."""
    return (
        {"tool": "LoadDB", "parameters": {"db_name": database}},
        {"tool": "FilterDB", "parameters": {"condition": condition}, "save": save},
    )


def values_of(column: str, save: str) -> Call:
    """Return a column of what is left of the loaded database."""
    return {"tool": "GetValue", "parameters": {"column_name": column}, "save": save}


def calculated(formula: str, save: str = "answer") -> Call:
    """Calculate a formula."""
    return {"tool": "Calculate", "parameters": {"formula": formula}, "save": save}


def python(code: str, save: str = "answer", **variables: Any) -> Call:
    """Run a program."""
    named = {"variables": variables} if variables else {}
    return {"tool": "PythonInterpreter", "parameters": {"code": code, **named}, "save": save}


def retrieved(collection: str, keyword: str, count: int = 3, save: str = "found") -> Call:
    """Search a collection of texts, Agenda or Scirex."""
    number = {} if count == 3 else {"count": count}
    return {"tool": f"Retrieve{collection}", "parameters": {"keyword": keyword, **number}, "save": save}


def graph(name: str) -> Call:
    """Load a graph."""
    return {"tool": "LoadGraph", "parameters": {"graph_name": name}}


def node(graph_name: str, name: str, save: str = "found") -> Call:
    """Look a node up."""
    return {"tool": "NodeCheck", "parameters": {"graph_name": graph_name, "node": name}, "save": save}


def neighbours(graph_name: str, name: str, save: str = "found") -> Call:
    """List the neighbours of a node."""
    return {"tool": "NeighbourCheck", "parameters": {"graph_name": graph_name, "node": name}, "save": save}


def edge(graph_name: str, first: str, second: str, save: str = "found") -> Call:
    """Look an edge up."""
    return {
        "tool": "EdgeCheck",
        "parameters": {"graph_name": graph_name, "node1": first, "node2": second},
        "save": save,
    }
