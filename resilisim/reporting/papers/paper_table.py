"""A table or figure of a paper made again from runs, its published rows marked as such."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from resilisim.statistics import Estimate
from resilisim.statistics.estimates import to_json
from resilisim.tables.table import SIGNED, Cell, Table, in_form

PUBLISHED_MARK: Final = "†"
IN_PERCENT, COUNTS = "", ",.1f"  # forms of numbers: in percent, or as they are

KPI_CHAIN: Final = "KPI-Chain"
RP_REACT: Final = "RP-ReAct"

_SOURCES: Final[Mapping[str, str]] = {
    KPI_CHAIN: "KPI-Chain (anonymous, under review 2025), table 1 and sections 5.2 to 5.4 on pages 8 and 9, Qwen3-32B. "
    "Figures 3 and 4 are drawings: what their text says of them is here, in percent. Of the first version of the paper "
    "are calls per question and latency (5.2), thresholds (C.1), components (D.1) and hops (D.2).",
    RP_REACT: "Molinari and Ciravegna (2026), tables 1 to 3. A dash in them is a domain that the paper leaves out, or "
    "one of nine cells of which the text of the paper that was at hand does not tell the column. Table 3 is over "
    "gpt-oss 120b and 20b, and Qwen3 32b and 14b.",
}

Value = float | int | str | Estimate | None


@dataclass(frozen=True, slots=True)
class PaperRow:
    """A row: who it is about, and its figures; published ones are not of the runs."""

    names: tuple[str, ...]
    values: tuple[Value, ...]
    is_published: bool = False


@dataclass(frozen=True, slots=True)
class PaperTable:
    """A table or figure of a paper, made again from runs.

    Attributes:
        paper: "KPI-Chain" or "RP-ReAct".
        name: What it is called there ("Table 1", "Figure 3a").
        caption: What it shows.
        name_columns: Headings of the names.
        columns: Headings of the figures.
        rows: Ours first, then published ones. Shares are from 0 to 1.
        form: "" for shares, which are shown in percent, else the form of the numbers (".1f"); one for all columns, or
            one for each.
        notes: What a reader must know.
    """

    paper: str
    name: str
    caption: str
    name_columns: tuple[str, ...]
    columns: tuple[str, ...]
    rows: tuple[PaperRow, ...]
    form: str | tuple[str, ...] = IN_PERCENT
    notes: tuple[str, ...] = ()

    def table(self) -> Table:
        """Return the table as reports and the terminal show it."""
        rows = [
            [
                *(
                    Cell(name, mark=PUBLISHED_MARK) if row.is_published and column == "agent" else name
                    for name, column in zip(row.names, self.name_columns, strict=True)
                ),
                *(_cell(value, form) for value, form in zip(row.values, self.forms, strict=True)),
            ]
            for row in self.rows
        ]
        return Table(
            f"{self.paper}, {self.name[0].lower()}{self.name[1:]}. {self.caption}",
            (*self.name_columns, *self.columns),
            rows,
            text_columns=len(self.name_columns),
            is_stacked=True,
            notes=self.notes,
        )

    @property
    def forms(self) -> tuple[str, ...]:
        """The form of each column."""
        return (self.form,) * len(self.columns) if isinstance(self.form, str) else self.form

    def to_mapping(self) -> dict[str, Any]:
        """Return everything as JSON values."""
        rows = [
            {
                **dict(zip(self.name_columns, row.names, strict=True)),
                **dict(zip(self.columns, map(to_json, row.values), strict=True)),
                "published": row.is_published,
            }
            for row in self.rows
        ]
        return {"paper": self.paper, "name": self.name, "caption": self.caption, "rows": rows, "notes": self.notes}


def _cell(value: Value, form: str) -> Any:
    if isinstance(value, Estimate):
        return in_form(value, form) if form == SIGNED else value
    return value if value is None or form == IN_PERCENT or isinstance(value, str) else in_form(value, form)


def notes_of(paper: str) -> tuple[str, ...]:
    """Return what a reader must know of the published figures of a paper."""
    return (f"{PUBLISHED_MARK} Published: {_SOURCES[paper]} Other questions and real models, so no comparison.",)
