"""A table as Markdown, in the form that GitHub and the Hugging Face hub show."""

from __future__ import annotations

import re
from collections.abc import Sequence

from markupsafe import Markup

from resilisim.tables.html import printable
from resilisim.tables.table import CellLike, Table

# What would start something in Markdown or HTML wherever it stands; in front of each goes a backslash.
_ESCAPED = re.compile(r"([\\`*_\[\]<>|#~&$])")
# Characters that some readers take for the end of a line, which would end a row of a table.
_LINE_END = re.compile("[\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029]")


def escape_markdown(text: str) -> str:
    """Return a text that Markdown shows as it is, on one line; what is `Markup` is Markdown already."""
    if isinstance(text, Markup):
        return _LINE_END.sub(" ", str(text)).replace("|", "\\|").strip()
    return _ESCAPED.sub(r"\\\1", printable(_LINE_END.sub(" ", text))).strip()


def markdown_lines(table: Table) -> list[str]:
    """Return the lines of a table: its caption, if it has one, rows, and notes."""
    ordinary = len(table.rows) - table.summary_rows
    lines = [f"**{escape_markdown(table.caption)}**", ""] if table.caption else []
    lines += [
        _line(list(map(escape_markdown, table.column_names))),
        f"|{'|'.join(' ---: ' if 'number' in style else ' --- ' for style in table.column_styles)}|",
    ]
    for number, row in enumerate(table.rows):
        cells = list(map(_written, row))
        if (number >= ordinary or number == table.strong_row) and cells and cells[0]:
            cells[0] = f"**{cells[0]}**"
        lines.append(_line(cells))
    for note in table.all_notes:
        lines += ["", f"*{escape_markdown(note)}*"]
    return lines


def _written(cell: CellLike) -> str:
    if not isinstance(cell, str) and cell.style == "code":
        return f"`{printable(cell.text)}`"
    return escape_markdown(cell if isinstance(cell, str) else str(cell))


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
