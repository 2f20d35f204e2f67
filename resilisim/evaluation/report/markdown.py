"""A report's page as Markdown: the same sections and tables, without the charts."""

from __future__ import annotations

from collections.abc import Sequence

from resilisim.evaluation.report.content import (
    Block,
    Cell,
    CellLike,
    Definitions,
    Fold,
    Page,
    Paragraph,
    Table,
)
from resilisim.evaluation.report.markup import Markup, printable

# What would start something in Markdown or HTML wherever it stands; in front of each goes a backslash.
_ESCAPED = frozenset("\\`*_[]<>|#~&$")
# Characters that some readers take for the end of a line, which would end a row of a table.
_LINE_ENDS = "\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029"


def page_markdown(page: Page) -> str:
    """Return a page as Markdown (tables as GitHub writes them)."""
    parts = [f"# {escape(page.heading)}", escape(page.lead)]
    parts += [f"> **{escape(warning)}**" for warning in page.warnings]
    if page.cards:
        rows = [(card.name, card.figure, card.whose, card.detail) for card in page.cards]
        cards = Table("Key figures", ("figure", "value", "whose", ""), rows, 4)
        parts.append(table_markdown(cards))
    for section in page.sections:
        blocks = _blocks(section.blocks)
        if blocks:
            parts += [f"## {escape(section.title)}", *blocks]
    parts.append(f"*{escape(page.ending)}*")
    return "\n\n".join(parts) + "\n"


def table_markdown(table: Table) -> str:
    """Return a table with its caption above and its notes below."""
    columns = len(table.headings)
    spans = [name for name, span in table.groups for _ in range(span)] or [""] * columns
    headings = [
        " ".join(part for part in (escape(group), _cell(heading)) if part)
        for group, heading in zip(spans, table.headings, strict=True)
    ]
    rule = ["---" if column < table.text_columns else "---:" for column in range(columns)]
    lines = [_row(headings), _row(rule)]
    ordinary = len(table.rows) - table.summary_rows
    for number, row in enumerate(table.rows):
        cells = [_cell(cell) for cell in row]
        if number >= ordinary:
            cells[0] = f"**{cells[0]}**" if cells[0] else ""
        lines.append(_row(cells))
    notes = [f"*{escape(note)}*" for note in table.all_notes]
    return "\n\n".join([f"**{escape(table.caption)}**", "\n".join(lines), *notes])


def escape(text: str) -> str:
    """Return a text that Markdown shows as it is, on one line."""
    text = "".join(" " if character in _LINE_ENDS else character for character in printable(text))
    return "".join(f"\\{character}" if character in _ESCAPED else character for character in text).strip()


def _blocks(blocks: Sequence[Block]) -> list[str]:
    found: list[str] = []
    for block in blocks:
        if isinstance(block, Markup):
            continue
        if isinstance(block, str):
            found.append(escape(block))
        elif isinstance(block, Paragraph):
            found.append(f"> {escape(block.text)}" if block.style == "warning" else escape(block.text))
        elif isinstance(block, Table):
            found.append(table_markdown(block))
        elif isinstance(block, Definitions):
            found.append("\n".join(f"- **{escape(name)}**: {escape(text)}" for name, text in block.entries))
        else:
            found += _fold(block)
    return found


def _fold(fold: Fold) -> list[str]:
    inside = _blocks(fold.blocks)
    if not inside or fold.stands_for_chart:
        return inside
    return ["<details>", f"<summary>{escape_html(fold.summary)}</summary>", *inside, "</details>"]


def escape_html(text: str) -> str:
    """Return a text that stands for itself inside an HTML element."""
    return printable(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _cell(cell: CellLike) -> str:
    if not isinstance(cell, Cell):
        return escape(cell)
    parts = (cell.text, cell.mark, cell.detail)
    return " ".join(escape(part) for part in parts if part)


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
