"""How commands speak: figures and tables on standard output, everything else, progress too, on standard error."""

from __future__ import annotations

import contextlib
import io
import json
import math
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar, cast

from rich import box
from rich.console import Console, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Column, Table
from rich.text import Text

# Wide enough that no cell is cut when the output goes to a file or a pipe, where no terminal tells a width.
PIPE_WIDTH = 160
LONGEST_UNBROKEN = 18  # characters of a name that no narrow table breaks
INCOMPLETE = 3  # exit code of a run that something outside of it has kept from its end
STOPPED_BY_USER = 130  # exit code after Ctrl-C, as shells have it

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")  # all but tabs and line ends: a terminal would obey them
_NOT_ASCII = re.compile(r"[^\x00-\x7f]")


class _Unheard(io.FileIO):
    """Where standard error goes: what nobody hears is no reason to stop a run, so it never fails."""

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OSError:
            return len(data)


def prepare_streams() -> None:
    """Make the three streams fit for any text, any bytes, and for being closed.

    A character that the encoding of an output lacks, or half a surrogate pair, is written as an escape; bytes of the
    input that are no text are read as U+FFFD. A stream that was closed from the start gets a place of its own, which
    the next opened file would have been given; writing to standard output fails then.
    """
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:
            file = io.FileIO(os.open(os.devnull, os.O_RDONLY), "r" if name == "stdin" else "w")
            closed = io.TextIOWrapper(cast("Any", file), "utf-8", write_through=True)
            setattr(sys, name, closed)
            setattr(sys, f"__{name}__", closed)  # which keeps it open
    heard = sys.stderr
    is_given = heard is sys.__stderr__  # and not something that takes its place, as tests do
    if is_given:
        unheard = io.BufferedWriter(_Unheard(heard.fileno(), "w", closefd=False))
        sys.stderr = io.TextIOWrapper(unheard, heard.encoding, line_buffering=True)
    for stream, errors in ((sys.stdin, "replace"), (sys.stdout, "backslashreplace"), (sys.stderr, "backslashreplace")):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=errors)


def give_up_output() -> None:
    """Send what standard output still holds nowhere: it cannot be written, and Python would try again at its end."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def console() -> Console:
    """Return a console on the present standard output."""
    return Console(width=None if sys.stdout.isatty() else PIPE_WIDTH, highlight=False)


def error_console() -> Console:
    """Return a console on the present standard error."""
    return Console(stderr=True, width=None if sys.stderr.isatty() else PIPE_WIDTH, highlight=False)


def print_json(value: Any) -> None:
    """Print a value as indented JSON; a figure that does not exist (a standard error of one sample) is null."""
    from resilisim.statistics.estimates import to_json  # with NumPy, which the list of commands is shown without

    write_json(json.dumps(to_json(value), indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def answer(as_json: bool, value: Any, *shown: RenderableType, notes: Iterable[str] = ()) -> None:
    """Print a value as JSON, or else what people see of it on standard output, and notes on standard error."""
    if as_json:
        print_json(value)
        return
    out = console()
    for part in shown:
        out.print(part)
    for text in notes:
        note(text)


def say(*lines: str, style: str = "") -> None:
    """Print lines for people on standard output, whole, whatever the width."""
    out = console()
    for line in lines:
        out.print(plain(line, style), soft_wrap=True)


def write_json(text: str) -> None:
    """Write JSON text to standard output; what its encoding lacks becomes an escape of JSON, so that it stays JSON."""
    try:
        text.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:
        text = _NOT_ASCII.sub(lambda found: json.dumps(found.group())[1:-1], text)
    sys.stdout.write(text)


def plain(text: str, style: str = "") -> Text:
    """Return text to be shown as it stands: no markup, no emoji codes, control characters as escapes."""
    return Text(_CONTROL.sub(lambda found: repr(found.group())[1:-1], text), style)


def figure(value: Any, digits: int = 4) -> str:
    """Format one figure for a table; None and NaN become a dash."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "-"
    if isinstance(value, float):
        return f"{value:.{digits}f}"
    return str(value)


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[Any]], digits: int = 4) -> Table:
    """Build a table; a column whose first cell is a number is set flush right, and floats are rounded to `digits`."""
    cells = [list(row) for row in rows]
    result = Table(title=plain(title, "bold"), title_justify="left", header_style="bold")
    for place, name in enumerate(columns):
        numeric = bool(cells) and isinstance(cells[0][place], int | float)
        result.add_column(plain(name), justify="right" if numeric else "left", overflow="fold")
    for row in cells:
        result.add_row(*[plain(figure(cell, digits)) for cell in row])
    return result


def tables_that_fit(found: ReportTable, shown: Console) -> Iterator[Table]:
    """Yield a table of the report for a terminal: in one piece, or its columns of numbers in as many as they need."""
    cells = [[_cell(cell, found.is_stacked) for cell in column] for column in zip(*found.rows, strict=True)]
    longest = max(LONGEST_UNBROKEN, shown.width // 6)
    columns, widths = [], []
    for place, name in enumerate(found.column_names):
        is_text = place < found.text_columns
        heading = plain(name if is_text else name.replace(" ", "\n").replace("-", "-\n"))
        widest = max(line.cell_len for text in [heading, *cells[place]] for line in text.split())
        # Texts are folded where they are long; no number is ever broken or cut.
        widths.append(min(widest, longest) if is_text else widest)
        columns.append(Column(heading, justify="left" if is_text else "right", width=widths[-1], overflow="fold"))
    texts, numbers = list(range(found.text_columns)), list(range(found.text_columns, len(columns)))
    while numbers:
        count = len(numbers)
        while count > 1 and sum(widths[place] + 2 for place in [*texts, *numbers[:count]]) > shown.width:
            count -= 1
        part = simple_table(found.caption, *(columns[place].copy() for place in [*texts, *numbers[:count]]))
        for row in range(len(found.rows)):
            if row == len(found.rows) - found.summary_rows:
                part.add_section()
            part.add_row(*(cells[place][row] for place in [*texts, *numbers[:count]]))
        yield part
        numbers = numbers[count:]


@dataclass(frozen=True, slots=True)
class Shown:
    """A column of a table that is shown in a terminal of any width, and as Markdown: its heading, and a row's cell.

    A line end in either stands for a space (for nothing behind a hyphen) where there is room for it.
    """

    heading: str
    cell: Callable[[Any], str]
    is_text: bool = False
    min_width: int | None = None


def shown_table(
    title: str,
    columns: Sequence[Shown],
    rows: Iterable[Any],
    is_wide: bool,
    bold: Any = None,
    padding: tuple[int, ...] = (0, 1, 0, 0),
    **numbers: Any,
) -> Table:
    """Build a table of rows, that of the row `bold` in bold; `numbers` is what rich is told of columns of numbers."""
    written = _joined if is_wide else str
    result = simple_table(title)
    result.padding = cast("Any", padding)
    for column in columns:
        how = {"overflow": "fold", "min_width": column.min_width} if column.is_text else {"justify": "right", **numbers}
        result.add_column(written(column.heading), **how)
    for row in rows:
        style = "bold" if row is bold else ""
        result.add_row(*(plain(written(column.cell(row)), style) for column in columns))
    return result


def markdown_table(columns: Sequence[Shown], rows: Iterable[Any]) -> list[str]:
    """Return the lines of a Markdown table of rows."""
    lines = ["| " + " | ".join(_joined(column.heading) for column in columns) + " |"]
    lines.append("|" + "|".join(" --- " if column.is_text else " ---: " for column in columns) + "|")
    cells = ([escaped(_joined(column.cell(row))) for column in columns] for row in rows)
    return [*lines, *("| " + " | ".join(row) + " |" for row in cells)]


def escaped(text: str) -> str:
    """Return text that Markdown shows as it stands."""
    for mark in "\\`*_|<>[]":
        text = text.replace(mark, f"\\{mark}")
    return text


def _joined(text: str) -> str:
    return text.replace("-\n", "-").replace("\n", " ")


def simple_table(title: str, *columns: Column) -> Table:
    """Return an empty table with a line below its head only, and room around its cells as rich counts it."""
    return Table(
        *columns,
        title=plain(title, "bold"),
        title_justify="left",
        box=box.SIMPLE_HEAD,
        header_style="bold",
        pad_edge=False,
        padding=(0, 1, 0, 0),
    )


def _cell(cell: CellLike, is_stacked: bool) -> Text:
    if isinstance(cell, str):
        return plain(cell)
    detail = (("\n" if is_stacked else " ") + cell.detail, "dim") if cell.detail else ""
    return Text.assemble(plain(cell.text), (" " + cell.mark if cell.mark else "", "bold"), detail)


def note(text: str) -> None:
    """Print a line for people on standard error, whole, whatever the width."""
    sys.stderr.write(text + "\n")


if TYPE_CHECKING:
    from resilisim.evaluation.report.page import CellLike
    from resilisim.evaluation.report.page import Table as ReportTable

T = TypeVar("T")

QUIET_SECONDS = 2.0  # a command that takes no longer says nothing
LINE_SECONDS = 10.0  # between two lines where there is no terminal
BAR_SECONDS = 0.1  # between two looks at the count


class Progressing:
    """Counts what is done ("solving"); after QUIET_SECONDS a bar in a terminal shows it, elsewhere a line at times."""

    def __init__(self, what: str, total: int, quiet_seconds: float = QUIET_SECONDS) -> None:
        self._what = what
        self._total = total
        self._quiet_seconds = quiet_seconds
        self._count = 0
        self._began = time.monotonic()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._tell, daemon=True)

    def __enter__(self) -> Progressing:
        """Begin to watch the time."""
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Take the bar away."""
        self._ended.set()
        self._thread.join()

    def track(self, items: Iterable[T]) -> Iterator[T]:
        """Yield the items, each counted when the next one is asked for."""
        for item in items:
            yield item
            self._count += 1

    def advance(self, number: int) -> None:
        """Count that many more as done."""
        self._count += number

    def _tell(self) -> None:
        if self._ended.wait(self._quiet_seconds):
            return
        if sys.stderr.isatty():
            self._show_bar()
            return
        with contextlib.suppress(OSError):  # nobody listens any more, which is no reason to stop the command
            while not self._ended.is_set():
                note(f"{self._what}: {self._count} of {self._total} after {time.monotonic() - self._began:.0f} s")
                self._ended.wait(LINE_SECONDS)

    def _show_bar(self) -> None:
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
        )
        with Progress(*columns, console=error_console(), transient=True) as progress:
            task = progress.add_task(self._what, total=self._total)
            while not self._ended.wait(BAR_SECONDS):
                progress.update(task, completed=self._count)
