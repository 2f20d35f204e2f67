"""A table as values: what it shows, its columns and its cells; and how a terminal of any width shows it.

Three renderers write it: the terminal (printing it, with rich or `print`), Markdown (`markdown.markdown_lines`), and
HTML (the macro `table` of the reports' `blocks.html`). Each escapes whatever is no markup, so nothing from a record can
become any.

What does not fit a terminal is stacked, then left out, then put into a table of its own, as far as the width asks for
it: intervals go below their numbers and headings are broken at spaces; numbers that are optional are left out; with
them back in place, texts at the beginning of a row go below the first of them; columns that are optional are left out;
the columns of numbers are spread over several tables. No number is ever broken or cut. Texts are folded where they are
long, and names where they can be read best: behind `_`, `:` and the like.
"""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, ClassVar, Literal, TypeAlias, TypeVar

from rich import box
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table as RichTable
from rich.text import Text

from resilisim.statistics import Estimate
from resilisim.tables.html import table_html
from resilisim.tables.numbers import NO_NUMBER, figure, interval_text, percent, signed_points
from resilisim.terminal import SafeConsole, plain

Row = TypeVar("Row")

SIGNED = "+"  # form of a column of differences
LONGEST_UNBROKEN = 20  # characters of a name that no narrow table breaks
FEWEST_CHARACTERS = 6  # of a text in a line, where many texts share a narrow table
NAME_BREAKS = re.compile(r"[_:/.,;=-]")  # behind these a name is folded that is longer than its column
AROUND = 2  # characters that a column takes beside its own
TEXT_WIDTH = 120  # of a table as text, for `print`
NO_INTERVAL = (
    "– behind a number: there is no interval, as it is of one episode, or exact on the one task that was explored."
)


@dataclass(frozen=True, slots=True)
class Cell:
    """What stands in one cell of a table, where it is more than a short text."""

    text: str
    detail: str = ""  # smaller print behind it: an interval
    mark: str = ""  # behind the text: the star of privileged policies
    link: str | None = None  # where the text leads within the page ("#episode-7"); only in HTML
    style: str | None = None  # CSS class of the text ("id", "tools", "message"); "code" is code in Markdown, too
    explanation: str | None = None  # a tooltip

    def __str__(self) -> str:
        return " ".join(part for part in (self.text, self.mark, self.detail) if part)


CellLike: TypeAlias = "str | Cell"
# A column: its heading; what it shows of a row, a function or the name of an attribute ("ceiling.value"); and, where
# `cell_of` does not decide it, the form of its numbers (`in_form`).
Column: TypeAlias = "tuple[CellLike, str | Callable[[Row], Any]] | tuple[CellLike, str | Callable[[Row], Any], str]"


@dataclass(frozen=True, slots=True)
class Table:
    """A table; texts are set flush left and may be folded, numbers flush right and are never broken.

    Attributes:
        caption: What it shows, with the unit of its numbers and the kind of its intervals.
        headings: One per column.
        rows: Row by row; what is given becomes cells (`cell_of`).
        text_columns: How many of the first columns are texts, or which columns are.
        groups: Headings above the headings, each with the number of columns it spans.
        notes: What a reader must know, below the table.
        is_stacked: Whether on pages intervals stand below their numbers and not behind them.
        is_listed: Whether on narrow pages each cell has a line of its own, beside its heading.
        summary_rows: How many of the last rows are set apart, because they sum up the others.
        strong_row: The row that counts, in bold.
        optional: Headings of columns that a narrow terminal does without, the first of them first.

    Example:
        >>> from resilisim.tables.table import Table
        >>> print(Table("Success", ("policy", "percent"), [("careful", 0.815), ("random", None)]))
        Success
        <BLANKLINE>
         policy   percent
         ────────────────
         careful     81.5
         random         –
        <BLANKLINE>
    """

    kind: ClassVar = "table"

    caption: str
    headings: Sequence[CellLike]
    rows: Sequence[Sequence[Any]]
    text_columns: int | Sequence[int] = 1
    groups: Sequence[tuple[str, int]] = ()
    notes: Sequence[str] = ()
    is_stacked: bool = False
    is_listed: bool = False
    summary_rows: int = 0
    strong_row: int | None = None
    optional: Sequence[str] = ()

    def __post_init__(self) -> None:
        """Make cells of values."""
        object.__setattr__(self, "rows", [list(map(cell_of, row)) for row in self.rows])

    @classmethod
    def of(cls, caption: str, rows: Iterable[Row], columns: Sequence[Column[Row]], **more: Any) -> Table:
        """Return a table from its columns; `more` are other fields."""
        headings = [heading for heading, *_ in columns]
        getters = [_getter(*column[1:]) for column in columns]
        return cls(caption, headings, [[get(row) for get in getters] for row in rows], **more)

    @classmethod
    def of_values(
        cls, caption: str, headings: Sequence[str], rows: Iterable[Sequence[Any]], digits: int = 4, **more: Any
    ) -> Table:
        """Return a table of values as they are (`figure`); columns whose first value is a number are numbers."""
        values = [list(row) for row in rows]
        first = [next((row[place] for row in values if row[place] is not None), "") for place in range(len(headings))]
        texts = [place for place, value in enumerate(first) if not _is_number(value)]
        cells = [[cell if isinstance(cell, Cell) else figure(cell, digits) for cell in row] for row in values]
        return cls(caption, headings, cells, text_columns=texts, **more)

    def is_text(self, column: int) -> bool:
        """Tell whether a column holds texts."""
        texts = self.text_columns
        return column < texts if isinstance(texts, int) else column in texts

    @property
    def column_names(self) -> list[str]:
        """What each cell is, in words: narrow pages write it above, as a record of its own replaces a row there."""
        groups = [name for name, span in self.groups for _ in range(span)] or [""] * len(self.headings)
        return [f"{group} {heading}".strip() for group, heading in zip(groups, self.headings, strict=True)]

    @property
    def column_styles(self) -> list[str]:
        """CSS classes of the columns: numbers are set apart from texts, and the first of a group from what precedes."""
        styles = ["" if self.is_text(column) else "number" for column in range(len(self.headings))]
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
        has_dash = any(isinstance(cell, Cell) and cell.detail == NO_NUMBER for cell in cells)
        return [*self.notes, NO_INTERVAL] if has_dash else self.notes

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the table for the width at hand, and its notes."""
        yield from fitted(self, options.max_width)
        if self.notes:
            yield plain(_shown(" ".join(self.notes)), "dim")

    def _repr_html_(self) -> str:
        """Return it as notebooks show it."""
        return str(table_html(self))

    def __str__(self) -> str:
        """Return the table as text, for `print`."""
        console = SafeConsole(width=TEXT_WIDTH, no_color=True)
        with console.capture() as captured:
            console.print(self)
        return "\n".join(line.rstrip() for line in captured.get().splitlines())


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _getter(value: str | Callable[[Any], Any], form: str | None = None) -> Callable[[Any], Any]:
    get = attrgetter(value) if isinstance(value, str) else value
    return get if form is None else lambda row: in_form(get(row), form)


def in_form(value: Any, form: str) -> CellLike:
    """Return a number in a form of Python's (".1f"), a difference `SIGNED`; a dash for None and NaN."""
    if form == SIGNED:
        return with_interval(value, signed=True) if isinstance(value, Estimate) else signed_points(value)
    return NO_NUMBER if value is None or math.isnan(value) else format(value, form)


def cell_of(value: Any) -> CellLike:
    """Return a value as it stands in a table: a share in percent, an estimate with its interval, None as a dash."""
    if isinstance(value, (str, Cell)):
        return value
    if isinstance(value, Estimate):
        return with_interval(value)
    return percent(value) if isinstance(value, float) else figure(value)


def with_interval(estimate: Estimate, signed: bool = False) -> Cell:
    """Return an estimate in percent with its interval; what is not a number has none to show."""
    if math.isnan(estimate.value):
        return Cell(NO_NUMBER)
    value = signed_points(estimate.value) if signed else percent(estimate.value)
    return Cell(value, detail=interval_text(estimate))


@dataclass(frozen=True, slots=True)
class _Column:
    heading: Text
    cells: Sequence[Text]
    is_text: bool
    is_tight: bool  # whether a text may have no more room than its longest word

    @property
    def widest(self) -> int:
        return max((line.cell_len for text in (self.heading, *self.cells) for line in text.split("\n")), default=0)

    def least(self, width: int) -> int:
        if not self.is_text:
            return self.widest
        longest = max((len(word) for text in (self.heading, *self.cells) for word in text.plain.split()), default=0)
        return min(longest if self.is_tight else self.widest, max(LONGEST_UNBROKEN, width // 6))


def fitted(table: Table, width: int) -> Iterator[RichTable | Text]:
    """Yield a table for a terminal of that width, in one part or in several, below its caption."""
    if table.caption:  # as wide as the terminal, however narrow the table is
        yield plain(_shown(table.caption), "bold")
    columns: list[_Column] = []
    for columns in _layouts(table):
        if sum(column.least(width) + AROUND for column in columns) <= width:
            break
    else:
        yield from _in_parts(table, columns, width)
        return
    yield _drawn(table, columns, width)


def _layouts(table: Table) -> Iterator[list[_Column]]:
    """Yield the columns, each time in a form that is narrower."""
    places = list(range(len(table.headings)))
    yield [_column(table, place, is_stacked=False) for place in places]
    optional = [next(place for place in places if str(table.headings[place]) == name) for name in table.optional]
    numbers = [place for place in optional if not table.is_text(place)]
    for count in range(len(numbers) + 1):
        yield [_column(table, place, is_stacked=True) for place in places if place not in numbers[:count]]
    for count in range(len(optional) + 1):
        yield _texts_stacked(table, [place for place in places if place not in optional[:count]])


def _column(table: Table, place: int, is_stacked: bool) -> _Column:
    is_text, heading = table.is_text(place), table.column_names[place]
    cells = [_written(row[place], is_stacked) for row in table.rows]
    if is_stacked and not is_text:  # the heading is broken to what the column needs anyway
        words = [len(word) for word in re.findall(r"[^\s-]+-*|-+", heading)]
        needed = max([*words, *(line.cell_len for cell in cells for line in cell.split("\n"))], default=1)
        heading = "\n".join(textwrap.wrap(heading, needed, break_long_words=False))
    is_tight = is_stacked and not all(table.is_text(before) for before in range(place))
    return _Column(plain(heading), cells, is_text, is_tight)


def _texts_stacked(table: Table, places: Sequence[int]) -> list[_Column]:
    """Return columns of which the texts at the beginning are one."""
    columns = [_column(table, place, is_stacked=True) for place in places]
    count = next((number for number, column in enumerate(columns) if not column.is_text), 0)
    if count < 2:
        return columns
    first, *below = columns[:count]
    heading = Text("\n").join([first.heading, *(column.heading for column in below)])
    cells = []
    for row, cell in enumerate(first.cells):
        under = [column.cells[row] for column in below if column.cells[row].plain]
        dim = [Text.assemble((text.plain, "dim")) for text in under]
        cells.append(Text("\n").join([cell, *dim]))
    return [_Column(heading, cells, is_text=True, is_tight=False), *columns[count:]]


def _written(cell: CellLike, is_stacked: bool) -> Text:
    if isinstance(cell, str):
        return plain(_shown(cell))
    detail = (("\n" if is_stacked else " ") + plain(_shown(cell.detail)).plain, "dim") if cell.detail else ""
    return Text.assemble(plain(_shown(cell.text)), (" " + cell.mark if cell.mark else "", "bold"), detail)


def _shown(text: str) -> str:
    return text.replace("−", "-")


def _in_parts(table: Table, columns: Sequence[_Column], width: int) -> Iterator[RichTable]:
    """Yield tables with all texts, and as many columns of numbers as fit into each."""
    texts, numbers = ([column for column in columns if column.is_text is is_text] for is_text in (True, False))
    if not numbers:
        yield _drawn(table, texts, width)
    while numbers:
        count = len(numbers)
        while count > 1 and sum(column.least(width) + AROUND for column in [*texts, *numbers[:count]]) > width:
            count -= 1
        yield _drawn(table, [*texts, *numbers[:count]], width)
        numbers = numbers[count:]


def _drawn(table: Table, columns: Sequence[_Column], width: int) -> RichTable:
    drawn = RichTable(
        box=box.SIMPLE_HEAD,
        header_style="bold",
        pad_edge=False,
        padding=(0, 1, 0, 0),
    )
    # Columns of a fixed width: rich would take from them all, down to less than they need, and cut the last one.
    widths = _widths(columns, width)
    for column, characters in zip(columns, widths, strict=True):
        justify: Literal["left", "right"] = "left" if column.is_text else "right"
        drawn.add_column(column.heading, justify=justify, width=characters, overflow="fold")
    for number in range(len(table.rows)):
        if table.summary_rows and number == len(table.rows) - table.summary_rows:
            drawn.add_section()
        style = "bold" if number == table.strong_row else ""
        cells = (
            _names_folded(column.cells[number], characters) if column.is_text else column.cells[number]
            for column, characters in zip(columns, widths, strict=True)
        )
        drawn.add_row(*cells, style=style)
    return drawn


def _names_folded(text: Text, width: int) -> Text:
    """Return a text whose names fit a column of that width; rich would cut them anywhere."""
    places = []
    for name in re.finditer(r"\S+", text.plain):
        start, end = name.span()
        while end - start > width and (marks := list(NAME_BREAKS.finditer(text.plain, start, start + width))):
            start = marks[-1].end()
            places.append(start)
    return Text("\n").join(text.divide(places)) if places else text


def _widths(columns: Sequence[_Column], width: int) -> list[int]:
    """Return how wide each column is: numbers as they need, texts share what is left."""
    widths = [column.least(width) for column in columns]
    texts = [place for place, column in enumerate(columns) if column.is_text]
    left = width - sum(characters + AROUND for characters in widths)
    while left < 0:
        longest = max(texts, key=widths.__getitem__, default=None)
        if longest is None or widths[longest] <= FEWEST_CHARACTERS:
            break
        widths[longest] -= 1
        left += 1
    while left > 0:
        folded = [place for place in texts if widths[place] < columns[place].widest]
        if not folded:
            break
        shortest = min(folded, key=widths.__getitem__)
        widths[shortest] += 1
        left -= 1
    return [max(characters, 1) for characters in widths]
