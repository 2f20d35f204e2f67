"""What a report says, as values: a page of sections with paragraphs and tables, and its forms, HTML and Markdown.

Both forms are written from the same `Page`, so their numbers cannot drift apart. Charts are markup and stand in the
HTML only; below each a table with the same numbers is folded away, which Markdown shows unfolded. Whatever is no markup
is escaped, so nothing from a record can become any. Texts without numbers of their own stand in `templates/texts.txt`.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from typing import ClassVar, TypeAlias

from jinja2 import ChoiceLoader, PackageLoader
from markupsafe import Markup, escape

from resilisim.evaluation.table.summary import GroupSummary
from resilisim.tables.html import escaping_environment, printable
from resilisim.tables.markdown import escape_markdown, markdown_lines
from resilisim.tables.table import Cell, Table


class Note(str):
    """A paragraph in smaller print."""

    __slots__ = ()
    kind: ClassVar = "note"


@dataclass(frozen=True, slots=True)
class Definitions:
    """Words with their meanings, or names with their values."""

    kind: ClassVar = "definitions"

    entries: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Fold:
    """Blocks that are folded away until somebody opens them."""

    kind: ClassVar = "fold"

    summary: str  # what is in there
    blocks: Sequence[Block]
    stands_for_chart: bool = False  # whether it holds the numbers of a chart, so that Markdown shows it unfolded
    is_published: bool = False  # whether its figures are not of this run; such are not printed


def beside_a_chart(table: Table, summary: str = "The same as a table") -> Fold:
    """Return a table that repeats a chart's numbers, folded away."""
    return Fold(summary, (table,), stands_for_chart=True)


# Markup (a chart, a legend, the viewer) is shown in HTML only; a plain text is a paragraph.
Block: TypeAlias = "str | Note | Table | Definitions | Fold | Markup"


@dataclass(frozen=True, slots=True)
class Section:
    """A section: its name in links, its heading, and what stands in it."""

    target: str
    title: str
    blocks: Sequence[Block]


@dataclass(frozen=True, slots=True)
class Card:
    """A key figure: its name, the figure, what there is to add, and whose it is."""

    name: str
    figure: str
    detail: str
    whose: str = ""


@dataclass(frozen=True, slots=True)
class Page:
    """A report; its warnings are what keeps a reader from taking the numbers as final."""

    title: str
    heading: str
    lead: str
    warnings: Sequence[str]
    cards: Sequence[Card]
    sections: Sequence[Section]
    ending: str
    name: str = ""  # of the run that it is about
    facts: str = ""  # when, who and under which law, in a line


@lru_cache(maxsize=4)
def packaged_texts(name: str) -> Mapping[str, str]:
    """Return the texts of a packaged file by their names: each follows its name, on lines of their own."""
    entries = (entry.split("\n") for entry in packaged_file(name).strip().split("\n\n"))
    return {key: " ".join(line.strip() for line in lines) for key, *lines in entries}


def packaged_file(name: str) -> str:
    """Return a file of the package's templates as it is."""
    return resources.files(__package__).joinpath("templates", name).read_text(encoding="utf-8")


def say(name: str, /, **values: object) -> str:
    """Return a text of the pages by its name in `templates/texts.txt`, with values in their places."""
    return packaged_texts("texts.txt")[name].format(**values)


def whole_page(page: Page, style: str = "", script: str = "", bar: Markup | None = None) -> bytes:
    """Return a page as a file that needs nothing else: with more style, and the only script that may run in it.

    A `bar` above it leads elsewhere, where there is something else.
    """
    values = {"style": Markup(packaged_file("style.css") + style), "script": Markup(script)}
    return render("page.html", page=page, bar=bar, policy=page_policy(script), **values).encode("utf-8")


def page_markdown(page: Page) -> str:
    """Return a page as Markdown (tables as GitHub writes them); charts stand in the HTML only."""
    columns = [("figure", "name"), ("value", "figure"), ("whose", "whose"), ("", "detail")]
    figures = [Table.of("Key figures", page.cards, columns, text_columns=4)] if page.cards else []
    return _MARKDOWN.get_template("page.md").render(page=page, figures=figures).strip() + "\n"


def page_policy(script: str) -> str:
    """Return a Content-Security-Policy that lets a page run one script, given to the letter, and load nothing.

    Whatever a model or a user wrote can then never run, even if it came to stand in the page as markup.
    """
    digest = base64.b64encode(hashlib.sha256(script.encode("utf-8")).digest()).decode("ascii")
    return f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; img-src data:"


def render(template: str, **values: object) -> Markup:
    """Return what a template of the package makes of values."""
    return Markup(_HTML.get_template(template).render(**values))


def draw(macro: str, *values: object) -> Markup:
    """Return what a macro of `templates/charts.html` makes of values."""
    return Markup(getattr(_HTML.get_template("charts.html").module, macro)(*values))


_LOADER = ChoiceLoader([PackageLoader("resilisim.reporting"), PackageLoader("resilisim.tables")])
_HTML = escaping_environment(printable, _LOADER)
_MARKDOWN = escaping_environment(lambda text: Markup(escape_markdown(text)), _LOADER)
_HTML.filters["plain"] = lambda name: plain(name)
_MARKDOWN.filters["lines"] = lambda table: Markup("\n".join(markdown_lines(table)))
_MARKDOWN.filters["as_html"] = lambda text: Markup(escape(printable(text)))


def name_cell(policy: str, privileged: bool) -> Cell:
    """Return a policy's name, with the mark of privileged ones."""
    return Cell(policy, mark="*" if privileged else "")


def policy_cell(row: GroupSummary) -> Cell:
    """Return the name of the policy that a summary is of, with the mark of privileged ones."""
    return name_cell(row.policy, row.privileged)


def plain(name: str) -> str:
    """Return a name from a record as words ("wrong_order" as "wrong order")."""
    return name.replace("_", " ")


def on_one_line(text: str, most: int) -> str:
    """Return a text on one line, cut if it is longer than `most` characters."""
    line = " ".join(text.split())
    return line if len(line) <= most else line[: most - 1] + "…"


def shares_text(counts: Mapping[str, float]) -> str:
    """Return counts as shares, the largest first ("turns 60%, loop 40%")."""
    total = sum(counts.values())
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return ", ".join(f"{plain(name)} {count / total:.0%}" for name, count in ordered)
