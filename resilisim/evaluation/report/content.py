"""What a report says, as values: a page of sections with paragraphs and tables, of which HTML and Markdown are made.

Both forms are written from the same `Page`, so their numbers cannot drift apart. Charts are markup and stand in the
HTML only; below each a table with the same numbers is folded away, which Markdown shows unfolded.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

from markupsafe import Markup

from resilisim.evaluation.table.summary import GroupSummary, format_interval, format_percent
from resilisim.statistics import Estimate

Row = TypeVar("Row")

PRIVILEGED_NOTE = "* privileged: it is shown the state and the required tools; no fair comparison."
NOTHING = "–"
REGRET_ADDS_UP = (
    "Luck can give back what a call gave away, and a later call can lose it again, so the calls of one episode can "
    "cost more than 100 points in all."
)
NO_INTERVAL = "–"  # what a cell has in place of an interval
NO_INTERVAL_NOTE = (
    "– behind a number: one task, so no interval (only where all of its episodes end alike is there one, a wide one)."
)


@dataclass(frozen=True, slots=True)
class Cell:
    """What stands in one cell of a table, where it is more than a short text.

    Attributes:
        text: The text.
        detail: Smaller print behind it: an interval.
        mark: A mark behind the text, such as the star of privileged policies.
        mark_meaning: What the mark means, for tooltips.
        link: Where the text leads within the page ("#episode-7"); only in HTML.
        style: CSS class of the text ("id", "tools", "message").
        explanation: A tooltip.
    """

    text: str
    detail: str = ""
    mark: str = ""
    mark_meaning: str = ""
    link: str | None = None
    style: str | None = None
    explanation: str | None = None


CellLike: TypeAlias = "str | Cell"


@dataclass(frozen=True, slots=True)
class Table:
    """A table; its first columns are texts, all others numbers.

    Attributes:
        caption: What it shows, with the unit of its numbers and the kind of its intervals.
        headings: One per column.
        rows: The cells, row by row.
        text_columns: How many columns are texts.
        groups: Headings above the headings: each with the number of columns that it spans; none if empty.
        notes: What a reader must know, below the table.
        is_stacked: Whether intervals stand below their numbers and not behind them.
        is_listed: Whether on narrow pages each cell has a line of its own, beside its heading.
        summary_rows: How many of the last rows are set apart, because they sum up the others.
    """

    caption: str
    headings: Sequence[CellLike]
    rows: Sequence[Sequence[CellLike]]
    text_columns: int = 1
    groups: Sequence[tuple[str, int]] = ()
    notes: Sequence[str] = ()
    is_stacked: bool = False
    is_listed: bool = False
    summary_rows: int = 0

    @classmethod
    def of(
        cls,
        caption: str,
        rows: Iterable[Row],
        columns: Sequence[tuple[CellLike, Callable[[Row], CellLike]]],
        **more: Any,
    ) -> Table:
        """Return a table from its columns, each a heading with what makes a row's cell; `more` are other fields."""
        headings = [heading for heading, _ in columns]
        return cls(caption, headings, [[cell(row) for _, cell in columns] for row in rows], **more)

    @property
    def column_names(self) -> list[str]:
        """What each cell is, in words: narrow pages write it above, as a record of its own replaces a row there."""
        groups = [name for name, span in self.groups for _ in range(span)] or [""] * len(self.headings)
        names = []
        for group, heading in zip(groups, self.headings, strict=True):
            parts = (heading.text, heading.mark, heading.detail) if isinstance(heading, Cell) else (heading,)
            names.append(" ".join(part for part in (group, *parts) if part))
        return names

    @property
    def column_styles(self) -> list[str]:
        """CSS classes of the columns: numbers are set apart from texts, and the first of a group from what precedes."""
        first_of_group = set()
        column = 0
        for name, span in self.groups:
            first_of_group |= {column} if name else set()
            column += span
        return [
            " ".join(["number"] * (column >= self.text_columns) + ["first"] * (column in first_of_group))
            for column in range(len(self.headings))
        ]

    @property
    def all_notes(self) -> Sequence[str]:
        """The notes, with a last one where a cell has a dash in place of its interval."""
        cells = (cell for row in self.rows for cell in row)
        has_dash = any(isinstance(cell, Cell) and cell.detail == NO_INTERVAL for cell in cells)
        return [*self.notes, NO_INTERVAL_NOTE] if has_dash else self.notes


@dataclass(frozen=True, slots=True)
class Paragraph:
    """A paragraph; its style is a CSS class ("note", "warning") or None."""

    text: str
    style: str | None = None


@dataclass(frozen=True, slots=True)
class Definitions:
    """Words with their meanings, or names with their values."""

    entries: Sequence[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Fold:
    """Blocks that are folded away until somebody opens them; figures that are not of this run always are.

    Attributes:
        summary: What is in there.
        blocks: The blocks.
        stands_for_chart: Whether it holds the numbers of a chart; Markdown has no charts, and shows it unfolded.
        is_published: Whether its figures are not of this run; such are not printed.
    """

    summary: str
    blocks: Sequence[Block]
    stands_for_chart: bool = False
    is_published: bool = False


def beside_a_chart(table: Table, summary: str = "The same as a table") -> Fold:
    """Return a table that repeats a chart's numbers, folded away."""
    return Fold(summary, (table,), stands_for_chart=True)


# Markup (a chart, a legend, the viewer) is shown in HTML only; a plain text is a paragraph.
Block: TypeAlias = "str | Paragraph | Table | Definitions | Fold | Markup"


@dataclass(frozen=True, slots=True)
class Section:
    """A section under its heading.

    Attributes:
        target: Its name in links.
        title: Its heading, and its name in the list of sections.
        blocks: What stands in it.
    """

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
    """A report.

    Attributes:
        title: Of the window.
        heading: The largest heading.
        lead: What was run.
        warnings: What keeps a reader from taking the numbers as final.
        cards: Key figures.
        sections: The sections.
        ending: The last line.
    """

    title: str
    heading: str
    lead: str
    warnings: Sequence[str]
    cards: Sequence[Card]
    sections: Sequence[Section]
    ending: str


# What no page should hold: control characters but line ends and tabs, and halves of characters.
_UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")


def printable(text: str) -> str:
    """Return a text with a mark in place of whatever cannot be printed."""
    if text.isprintable():  # as nearly all texts are
        return text
    return _UNPRINTABLE.sub("\N{REPLACEMENT CHARACTER}", text)


def name_cell(policy: str, privileged: bool) -> Cell:
    """Return a policy's name, with the mark of privileged ones."""
    return Cell(policy, mark="*", mark_meaning="privileged: sees the state") if privileged else Cell(policy)


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
