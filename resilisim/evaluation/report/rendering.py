"""A page as HTML and as Markdown. Jinja escapes whatever is no markup, so nothing from a record can become any."""

from __future__ import annotations

import base64
import hashlib
import itertools
from collections.abc import Callable, Mapping, Sequence
from importlib import resources

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from resilisim.evaluation.report.content import (
    REGRET_ADDS_UP,
    Block,
    Cell,
    CellLike,
    Definitions,
    Fold,
    Page,
    Paragraph,
    Table,
    printable,
)

# What would start something in Markdown or HTML wherever it stands; in front of each goes a backslash.
_ESCAPED = frozenset("\\`*_[]<>|#~&$")
# Characters that some readers take for the end of a line, which would end a row of a table.
_LINE_ENDS = "\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029"


def whole_page(page: Page, style: str = "", script: str = "") -> bytes:
    """Return a page as a file that needs nothing else: with more style, and the only script that may run in it."""
    text = render(
        "page.html",
        page=page,
        policy=page_policy(script),
        style=Markup(packaged_text("style.css") + style),
        script=Markup(script),
    )
    return text.encode("utf-8")


def page_policy(script: str) -> str:
    """Return a Content-Security-Policy that lets a page run one script, given to the letter, and load nothing.

    Whatever a model or a user wrote can then never run, even if it came to stand in the page as markup.
    """
    digest = base64.b64encode(hashlib.sha256(script.encode("utf-8")).digest()).decode("ascii")
    return f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; img-src data:"


def render(template: str, **values: object) -> Markup:
    """Return what a template of the package makes of values."""
    return Markup(_ENVIRONMENT.get_template(template).render(**values))


def packaged_text(name: str) -> str:
    """Return a file of the package's templates as it is."""
    return resources.files(__package__).joinpath("templates", name).read_text(encoding="utf-8")


def meanings(name: str) -> list[tuple[str, str]]:
    """Return the words of a packaged text with their meanings, which follow each word on lines of their own."""
    entries = render(name, regret_adds_up=REGRET_ADDS_UP).strip().split("\n\n")
    parts = [str(entry).split("\n") for entry in entries]
    return [(word, " ".join(line.strip() for line in lines)) for word, *lines in parts]


def blocks_markup(blocks: Sequence[Block]) -> Markup:
    """Return blocks as HTML, folds that follow each other as one list of folds."""
    found: list[Markup] = []
    macros: Mapping[str, Callable[..., Markup]] = vars(_ENVIRONMENT.get_template("blocks.html").module)
    for is_folded, group in itertools.groupby(blocks, lambda block: isinstance(block, Fold)):
        if is_folded:
            found.append(macros["folds"](list(group)))
            continue
        for block in group:
            if isinstance(block, Markup):
                found.append(block)
                continue
            shown = Paragraph(block) if isinstance(block, str) else block
            found.append(macros[type(shown).__name__.lower()](shown))
    return Markup("").join(found)


def _printed(value: object) -> object:
    """Replace what no file may hold in everything that a template writes."""
    return value if not isinstance(value, str) or isinstance(value, Markup) else printable(value)


_ENVIRONMENT = Environment(
    loader=PackageLoader("resilisim.evaluation.report"),
    autoescape=True,
    undefined=StrictUndefined,
    finalize=_printed,
    trim_blocks=True,
    lstrip_blocks=True,
)
_ENVIRONMENT.filters["blocks"] = blocks_markup


def page_markdown(page: Page) -> str:
    """Return a page as Markdown (tables as GitHub writes them); charts stand in the HTML only."""
    parts = [f"# {escape_markdown(page.heading)}", escape_markdown(page.lead)]
    parts += [f"> **{escape_markdown(warning)}**" for warning in page.warnings]
    if page.cards:
        rows = [(card.name, card.figure, card.whose, card.detail) for card in page.cards]
        parts.append(table_markdown(Table("Key figures", ("figure", "value", "whose", ""), rows, 4)))
    for section in page.sections:
        blocks = _blocks_markdown(section.blocks)
        if blocks:
            parts += [f"## {escape_markdown(section.title)}", *blocks]
    parts.append(f"*{escape_markdown(page.ending)}*")
    return "\n\n".join(parts) + "\n"


def table_markdown(table: Table) -> str:
    """Return a table with its caption above and its notes below."""
    spans = [name for name, span in table.groups for _ in range(span)] or [""] * len(table.headings)
    headings = [
        " ".join(part for part in (escape_markdown(group), _cell_markdown(heading)) if part)
        for group, heading in zip(spans, table.headings, strict=True)
    ]
    rule = ["---" if column < table.text_columns else "---:" for column in range(len(headings))]
    lines = [headings, rule]
    ordinary = len(table.rows) - table.summary_rows
    for number, row in enumerate(table.rows):
        cells = [_cell_markdown(cell) for cell in row]
        if number >= ordinary and cells[0]:
            cells[0] = f"**{cells[0]}**"
        lines.append(cells)
    shown = "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
    notes = [f"*{escape_markdown(note)}*" for note in table.all_notes]
    return "\n\n".join([f"**{escape_markdown(table.caption)}**", shown, *notes])


def escape_markdown(text: str) -> str:
    """Return a text that Markdown shows as it is, on one line."""
    text = "".join(" " if character in _LINE_ENDS else character for character in printable(text))
    return "".join(f"\\{character}" if character in _ESCAPED else character for character in text).strip()


def _blocks_markdown(blocks: Sequence[Block]) -> list[str]:
    found: list[str] = []
    for block in blocks:
        if isinstance(block, Markup):
            continue
        if isinstance(block, str):
            found.append(escape_markdown(block))
        elif isinstance(block, Paragraph):
            found.append("> " * (block.style == "warning") + escape_markdown(block.text))
        elif isinstance(block, Table):
            found.append(table_markdown(block))
        elif isinstance(block, Definitions):
            entries = [f"- **{escape_markdown(name)}**: {escape_markdown(text)}" for name, text in block.entries]
            found.append("\n".join(entries))
        else:
            found += _fold_markdown(block)
    return found


def _fold_markdown(fold: Fold) -> list[str]:
    inside = _blocks_markdown(fold.blocks)
    if not inside or fold.stands_for_chart:
        return inside
    summary = printable(fold.summary).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return ["<details>", f"<summary>{summary}</summary>", *inside, "</details>"]


def _cell_markdown(cell: CellLike) -> str:
    parts = (cell.text, cell.mark, cell.detail) if isinstance(cell, Cell) else (cell,)
    return " ".join(escape_markdown(part) for part in parts if part)
