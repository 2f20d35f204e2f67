"""How commands speak: figures and tables on standard output, everything else on standard error."""

from __future__ import annotations

import io
import json
import math
import re
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

# Wide enough that no cell is cut when the output goes to a file or a pipe, where no terminal tells a width.
PIPE_WIDTH = 160
INCOMPLETE = 3  # exit code of a run that something outside of it has kept from its end
STOPPED_BY_USER = 130  # exit code after Ctrl-C, as shells have it

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")  # all but tabs and line ends: a terminal would obey them
_NOT_ASCII = re.compile(r"[^\x00-\x7f]")


def write_what_cannot_be_encoded_as_escapes() -> None:
    """Let both streams write a character that their encoding lacks, or half a surrogate pair, as an escape."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


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
    write_json(json.dumps(_finite(value), indent=2, ensure_ascii=False, allow_nan=False) + "\n")


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
    """Build a table; a column whose first cell is a number is set flush right.

    Args:
        title: Shown above the table.
        columns: Heads of the columns.
        rows: One sequence of cells per row, as long as `columns`; floats are rounded.
        digits: Decimals of floats.
    """
    cells = [list(row) for row in rows]
    result = Table(title=plain(title, "bold"), title_justify="left", header_style="bold")
    for place, name in enumerate(columns):
        numeric = bool(cells) and isinstance(cells[0][place], int | float)
        result.add_column(plain(name), justify="right" if numeric else "left", overflow="fold")
    for row in cells:
        result.add_row(*[plain(figure(cell, digits)) for cell in row])
    return result


def note(text: str) -> None:
    """Print a line for people on standard error, whole, whatever the width."""
    sys.stderr.write(text + "\n")
