"""What a report says, as values: a page of sections with paragraphs and tables, and its forms, HTML and Markdown.

Both forms are written from the same `Page`, so their numbers cannot drift apart. Charts are markup and stand in the
HTML only; below each a table with the same numbers is folded away, which Markdown shows unfolded. Whatever is no markup
is escaped, so nothing from a record can become any. Texts without numbers of their own stand in `templates/texts.txt`.
"""

from __future__ import annotations

import base64
import hashlib
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from operator import attrgetter
from typing import Any, ClassVar, TypeAlias, TypeVar

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from resilisim.evaluation.table.summary import GroupSummary, format_interval, format_percent
from resilisim.redaction import STEERING, without_secrets
from resilisim.statistics import Estimate

Row = TypeVar("Row")

NOTHING = "–"
NO_INTERVAL = "–"  # what a cell has in place of an interval
SIGNED = "+"  # form of a column of differences

# What would start something in Markdown or HTML wherever it stands; in front of each goes a backslash.
_ESCAPED = re.compile(r"([\\`*_\[\]<>|#~&$])")
# Characters that some readers take for the end of a line, which would end a row of a table.
_LINE_END = re.compile("[\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029]")
# What no page should hold: control characters but line ends and tabs, and halves of characters.
_UNPRINTABLE = re.compile(f"[{STEERING}\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class Cell:
    """What stands in one cell of a table, where it is more than a short text."""

    text: str
    detail: str = ""  # smaller print behind it: an interval
    mark: str = ""  # behind the text: the star of privileged policies
    link: str | None = None  # where the text leads within the page ("#episode-7"); only in HTML
    style: str | None = None  # CSS class of the text ("id", "tools", "message")
    explanation: str | None = None  # a tooltip

    def __str__(self) -> str:
        return " ".join(part for part in (self.text, self.mark, self.detail) if part)


CellLike: TypeAlias = "str | Cell"
# A column: its heading; what it shows of a row, a function or the name of an attribute ("ceiling.value"); and, where
# `cell_of` does not decide it, the form of its numbers (`in_form`).
Column: TypeAlias = "tuple[CellLike, str | Callable[[Row], Any]] | tuple[CellLike, str | Callable[[Row], Any], str]"


@dataclass(frozen=True, slots=True)
class Table:
    """A table; its first columns are texts, all others numbers."""

    kind: ClassVar = "table"

    caption: str  # what it shows, with the unit of its numbers and the kind of its intervals
    headings: Sequence[CellLike]  # one per column
    rows: Sequence[Sequence[Any]]  # row by row; what is given becomes cells (`cell_of`)
    text_columns: int = 1  # how many columns are texts
    groups: Sequence[tuple[str, int]] = ()  # headings above the headings, each with the number of columns it spans
    notes: Sequence[str] = ()  # what a reader must know, below the table
    is_stacked: bool = False  # whether intervals stand below their numbers and not behind them
    is_listed: bool = False  # whether on narrow pages each cell has a line of its own, beside its heading
    summary_rows: int = 0  # how many of the last rows are set apart, because they sum up the others

    def __post_init__(self) -> None:
        """Make cells of values."""
        object.__setattr__(self, "rows", [list(map(cell_of, row)) for row in self.rows])

    @classmethod
    def of(cls, caption: str, rows: Iterable[Row], columns: Sequence[Column[Row]], **more: Any) -> Table:
        """Return a table from its columns; `more` are other fields."""
        headings = [heading for heading, *_ in columns]
        getters = [_getter(*column[1:]) for column in columns]
        return cls(caption, headings, [[get(row) for get in getters] for row in rows], **more)

    @property
    def column_names(self) -> list[str]:
        """What each cell is, in words: narrow pages write it above, as a record of its own replaces a row there."""
        groups = [name for name, span in self.groups for _ in range(span)] or [""] * len(self.headings)
        return [f"{group} {heading}".strip() for group, heading in zip(groups, self.headings, strict=True)]

    @property
    def column_styles(self) -> list[str]:
        """CSS classes of the columns: numbers are set apart from texts, and the first of a group from what precedes."""
        styles = ["" if column < self.text_columns else "number" for column in range(len(self.headings))]
        column = 0
        for name, span in self.groups:
            if name:
                styles[column] = f"{styles[column]} first".strip()
            column += span
        return styles

    @property
    def all_notes(self) -> Sequence[str]:
        """The notes, with a last one where a cell has a dash in place of its interval."""
        cells = (cell for row in self.rows for cell in row)
        has_dash = any(isinstance(cell, Cell) and cell.detail == NO_INTERVAL for cell in cells)
        return [*self.notes, say("no_interval")] if has_dash else self.notes


def _getter(value: str | Callable[[Any], Any], form: str | None = None) -> Callable[[Any], Any]:
    get = attrgetter(value) if isinstance(value, str) else value
    return get if form is None else lambda row: in_form(get(row), form)


def in_form(value: Any, form: str) -> CellLike:
    """Return a number in a form of Python's (".1f"), a difference `SIGNED`; a dash for None and NaN."""
    if form == SIGNED:
        return with_interval(value, signed=True) if isinstance(value, Estimate) else signed_points(value)
    return NOTHING if value is None or math.isnan(value) else format(value, form)


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


def whole_page(page: Page, style: str = "", script: str = "") -> bytes:
    """Return a page as a file that needs nothing else: with more style, and the only script that may run in it."""
    values = {"style": Markup(packaged_file("style.css") + style), "script": Markup(script)}
    return render("page.html", page=page, policy=page_policy(script), **values).encode("utf-8")


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


def printable(text: str) -> str:
    """Return a text without secrets, with a mark in place of whatever cannot be printed."""
    text = without_secrets(text)
    if text.isprintable():  # as nearly all texts are
        return text
    return _UNPRINTABLE.sub("\N{REPLACEMENT CHARACTER}", text)


def escape_markdown(text: str) -> str:
    """Return a text that Markdown shows as it is, on one line."""
    return _ESCAPED.sub(r"\\\1", printable(_LINE_END.sub(" ", text))).strip()


def _environment(finish: Callable[[str], str]) -> Environment:
    """Return an environment that makes each plain text that a template writes fit for its file."""

    def finalize(value: Any) -> Any:
        if isinstance(value, float):  # a place in a chart
            return f"{round(value, 2) + 0.0:.2f}".rstrip("0").rstrip(".")
        return finish(value) if isinstance(value, str) and not isinstance(value, Markup) else value

    return Environment(
        loader=PackageLoader("resilisim.reporting"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=finalize,
        trim_blocks=True,
        lstrip_blocks=True,
    )


_HTML = _environment(printable)
_MARKDOWN = _environment(lambda text: Markup(escape_markdown(text)))
_HTML.filters["plain"] = lambda name: plain(name)
_MARKDOWN.filters["cells"] = lambda row: Markup(" | ").join(Markup(escape_markdown(str(cell))) for cell in row)
_MARKDOWN.filters["as_html"] = lambda text: Markup(escape(printable(text)))


def cell_of(value: Any) -> CellLike:
    """Return a value as it stands in a table: a share in percent, an estimate with its interval, None as a dash."""
    if isinstance(value, (str, Cell)):
        return value
    if isinstance(value, Estimate):
        return with_interval(value)
    if isinstance(value, float):
        return percent(value)
    return NOTHING if value is None else f"{value:,}"


def name_cell(policy: str, privileged: bool) -> Cell:
    """Return a policy's name, with the mark of privileged ones."""
    return Cell(policy, mark="*" if privileged else "")


def policy_cell(row: GroupSummary) -> Cell:
    """Return the name of the policy that a summary is of, with the mark of privileged ones."""
    return name_cell(row.policy, row.privileged)


def percent(value: float, digits: int = 1) -> str:
    """Return a share in percent, with the minus sign of print."""
    return format_percent(value, digits).replace("-", "−")


def interval_text(estimate: Estimate) -> str:
    """Return an interval in percent, with the minus sign of print."""
    return format_interval(estimate).replace("-", "−")


def signed_points(value: float) -> str:
    """Return a share in points with its sign ("+3.1", "−0.4", "0.0"), or a dash for NaN."""
    if math.isnan(value):
        return NOTHING
    text = format_percent(abs(value))
    return text if float(text) == 0.0 else f"{'+' if value > 0 else '−'}{text}"


def signed_interval(low: float, high: float) -> str:
    """Return an interval of points with their signs; nothing if it has no ends."""
    return "" if math.isnan(low) else f"[{signed_points(low)}, {signed_points(high)}]"


def with_interval(estimate: Estimate, signed: bool = False) -> Cell:
    """Return an estimate in percent with its interval; what is no number has none to show."""
    if math.isnan(estimate.value):
        return Cell(NOTHING)
    value = signed_points(estimate.value) if signed else percent(estimate.value)
    return Cell(value, detail=interval_text(estimate))


def plain(name: str) -> str:
    """Return a name from a record as words ("wrong_order" as "wrong order")."""
    return name.replace("_", " ")


def on_one_line(text: str, most: int) -> str:
    """Return a text on one line, cut if it is longer than `most` characters."""
    line = " ".join(text.split())
    return line if len(line) <= most else line[: most - 1] + "…"


def shares_text(counts: Mapping[str, int]) -> str:
    """Return counts as shares, the largest first ("turns 60%, loop 40%")."""
    total = sum(counts.values())
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return ", ".join(f"{plain(name)} {count / total:.0%}" for name, count in ordered)
