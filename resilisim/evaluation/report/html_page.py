"""A report's page as HTML."""

from __future__ import annotations

import base64
import hashlib
import itertools
import string
from collections.abc import Sequence
from importlib import resources

from resilisim.evaluation.report.content import (
    Block,
    Card,
    Cell,
    CellLike,
    Definitions,
    Fold,
    Page,
    Paragraph,
    Section,
    Table,
)
from resilisim.evaluation.report.markup import Child, Markup, element, render

DENSE_COLUMNS = 10  # tables with more get smaller print


def whole_page(page: Page, style: str = "", script: str = "") -> bytes:
    """Return a page as a file that needs nothing else.

    Args:
        page: What it says.
        style: What is to be added to the common style.
        script: The only script that may run in it.
    """
    folder = resources.files(__package__)
    template = string.Template(folder.joinpath("page.html").read_text(encoding="utf-8"))
    text = template.substitute(
        title=render(page.title),
        policy=render(page_policy(script)),
        style=folder.joinpath("style.css").read_text(encoding="utf-8") + style,
        body=page_body(page),
        script=script,
    )
    return text.encode("utf-8")


def page_policy(script: str) -> str:
    """Return a Content-Security-Policy that lets a page run one script and load nothing.

    Whatever a model or a user wrote can then never run, even if it came to stand in the page as markup.

    Args:
        script: The script, exactly as it stands between its tags.
    """
    digest = base64.b64encode(hashlib.sha256(script.encode("utf-8")).digest()).decode("ascii")
    return f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; img-src data:"


def page_body(page: Page) -> Markup:
    """Return everything between <body> and </body>."""
    return element(
        "main",
        element(
            "header",
            element("p", "ResiliSim", class_="brand"),
            element("h1", page.heading),
            element("p", page.lead, class_="lead"),
            [element("p", warning, class_="warning") for warning in page.warnings],
        ),
        _cards(page.cards),
        _contents(page.sections),
        [section_markup(section) for section in page.sections],
        element("footer", page.ending),
    )


def section_markup(section: Section) -> Markup:
    """Return a section under its heading."""
    return element("section", element("h2", section.title), _blocks(section.blocks), id=section.target)


def _blocks(blocks: Sequence[Block]) -> list[Markup]:
    """Return blocks, folds that follow each other as one list of folds."""
    found: list[Markup] = []
    for is_folded, group in itertools.groupby(blocks, lambda block: isinstance(block, Fold)):
        shown = [block_markup(block) for block in group]
        found += [element("div", shown, class_="folds")] if is_folded else shown
    return found


def block_markup(block: Block) -> Markup:
    """Return one block."""
    if isinstance(block, Markup):
        return block
    if isinstance(block, str):
        return element("p", block)
    if isinstance(block, Paragraph):
        return element("p", block.text, class_=block.style)
    if isinstance(block, Table):
        return table_markup(block)
    if isinstance(block, Definitions):
        entries = [[element("dt", name), element("dd", text)] for name, text in block.entries]
        return element("dl", entries, class_="keys")
    return _fold(block)


def table_markup(table: Table) -> Markup:
    """Return a table that scrolls where it is too wide, and its notes."""

    def kind(column: int) -> str | None:
        return "number" if column >= table.text_columns else None

    first_of_group = set()
    head: list[Child] = []
    if table.groups:
        column = 0
        cells = []
        for name, span in table.groups:
            style = "group" if name else None
            cells.append(element("th", name, colspan=span, scope="colgroup" if name else None, class_=style))
            if name:
                first_of_group.add(column)
            column += span
        head.append(element("tr", cells, class_="groups"))

    def style_of(column: int) -> str | None:
        names = [kind(column), "first" if column in first_of_group else None]
        return " ".join(name for name in names if name) or None

    head.append(
        element(
            "tr",
            [
                element("th", cell_content(text), scope="col", class_=style_of(column))
                for column, text in enumerate(table.headings)
            ],
        )
    )
    ordinary = len(table.rows) - table.summary_rows
    names = _column_names(table)
    body = [
        element(
            "tr",
            [
                element("th", cell_content(cell), scope="row")
                if column == 0
                else element("td", cell_content(cell), class_=style_of(column), data_name=names[column])
                for column, cell in enumerate(row)
            ],
            class_="summary-row" if number >= ordinary else None,
        )
        for number, row in enumerate(table.rows)
    ]
    styles = (
        ["stacked"] * table.is_stacked
        + ["listed"] * table.is_listed
        + ["dense"] * (len(table.headings) > DENSE_COLUMNS)
    )
    shown = element(
        "table",
        element("caption", element("span", table.caption)),
        element("thead", head),
        element("tbody", body),
        class_=" ".join(styles) or None,
    )
    notes = [element("p", note, class_="note") for note in table.all_notes]
    # A region that scrolls must be reachable with the keyboard.
    scrolling = element("div", shown, class_="scroll", tabindex=0, role="region", aria_label=table.caption)
    return Markup(scrolling + Markup("".join(notes)))


def _column_names(table: Table) -> list[str]:
    """Return what narrow pages write above each cell, as a record of its own replaces each row there."""
    groups = [name for name, span in table.groups for _ in range(span)] or [""] * len(table.headings)
    names = []
    for group, heading in zip(groups, table.headings, strict=True):
        parts = (heading.text, heading.mark, heading.detail) if isinstance(heading, Cell) else (heading,)
        names.append(" ".join(part for part in (group, *parts) if part))
    return names


def cell_content(cell: CellLike) -> Child:
    """Return what stands in a cell."""
    if not isinstance(cell, Cell):
        return cell
    text: Child = cell.text
    if cell.style is not None:
        text = element("span", cell.text, class_=cell.style, title=cell.explanation)
    elif cell.explanation is not None:
        text = element("span", cell.text, title=cell.explanation)
    if cell.link is not None:
        text = element("a", text, href=cell.link)
    mark = [" ", element("span", cell.mark, class_="badge", title=cell.mark_meaning)] if cell.mark else None
    detail = [" ", element("span", cell.detail, class_="interval-text")] if cell.detail else None
    return [text, mark, detail]


def _fold(fold: Fold) -> Markup:
    style = "published" if fold.is_published else None
    return element("details", element("summary", fold.summary), _blocks(fold.blocks), class_=style)


def _cards(cards: Sequence[Card]) -> Markup | None:
    shown = [
        element(
            "div",
            element("dt", card.name),
            element(
                "dd",
                element("span", card.figure, class_="figure"),
                element("span", card.whose, class_="whose") if card.whose else None,
                element("span", card.detail, class_="detail"),
            ),
            class_="card",
        )
        for card in cards
    ]
    return element("dl", shown, class_="cards") if shown else None


def _contents(sections: Sequence[Section]) -> Markup | None:
    links = [element("a", section.title, href=f"#{section.target}") for section in sections]
    return element("nav", links, aria_label="Sections") if len(links) > 1 else None
