"""How commands speak: figures and tables on standard output, everything else on standard error."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

# Wide enough that no cell is cut when the output goes to a file or a pipe, where no terminal tells a width.
PIPE_WIDTH = 160


def console() -> Console:
    """Return a console on the present standard output."""
    return Console(width=None if sys.stdout.isatty() else PIPE_WIDTH, highlight=False)


def error_console() -> Console:
    """Return a console on the present standard error."""
    return Console(stderr=True, width=None if sys.stderr.isatty() else PIPE_WIDTH, highlight=False)


def _finite(value: Any) -> Any:
    """Replace numbers that JSON does not know (NaN, infinities) by null, at any depth."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value


def print_json(value: Any) -> None:
    """Print a value as indented JSON; a figure that does not exist (a standard error of one sample) is null."""
    sys.stdout.write(json.dumps(_finite(value), indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def figure(value: Any, digits: int = 4) -> str:
    """Format one figure for a table; None and NaN become a dash."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "-"
    if isinstance(value, float):
        return f"{value:.{digits}f}"
    return str(value)


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[Any]], digits: int = 4) -> Table:
    """Build a table; a column whose first cell is a number is set flush right.

    Args:
        title: Shown above the table.
        columns: Heads of the columns.
        rows: One sequence of cells per row, as long as `columns`; floats are rounded.
        digits: Decimals of floats.
    """
    cells = [list(row) for row in rows]
    result = Table(title=title, title_justify="left", title_style="bold", header_style="bold")
    for place, name in enumerate(columns):
        numeric = bool(cells) and isinstance(cells[0][place], int | float)
        result.add_column(name, justify="right" if numeric else "left", overflow="fold")
    for row in cells:
        result.add_row(*[_escaped(figure(cell, digits)) for cell in row])
    return result


def _escaped(text: str) -> str:
    """Keep square brackets of the data from being read as rich's markup."""
    return text.replace("[", "\\[")


def note(text: str) -> None:
    """Print a line for people on standard error, whole, whatever the width."""
    sys.stderr.write(text + "\n")


def progress_bar() -> Progress:
    """Return a progress bar with counts, time passed and time left; only a terminal sees it."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        console=error_console(),
        transient=True,
        disable=not sys.stderr.isatty(),
    )
