"""What a gate says, for terminals, for pull requests (Markdown) and for test reporters (JUnit's XML)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final
from xml.etree import ElementTree

from resilisim.evaluation.table.first_difference import Parted
from resilisim.evaluation.table.gate import Gate, GateRow
from resilisim.evaluation.table.gate_plan import PlannedGate
from resilisim.redaction import without_secrets
from resilisim.tables.markdown import escape_markdown, markdown_lines
from resilisim.tables.numbers import percent, signed_interval, signed_points
from resilisim.tables.table import Cell, Column, Table

MOST_SHOWN: Final = 10  # episodes in a table
_WORDS: Final = {"better": "better", "not worse": "not worse", "worse": "WORSE", "undecided": "undecided"}
# What XML 1.0 cannot hold, whatever it is escaped as.
_NOT_IN_XML: Final = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def gate_table(gate: Gate) -> Table:
    """Return the verdicts as a table."""
    columns: list[Column[GateRow]] = [
        (
            "agent",
            lambda row: row.candidate if row.candidate == row.baseline else f"{row.candidate} against {row.baseline}",
        ),
        ("prompt", "prompt"),
        ("baseline", lambda row: percent(row.success_baseline)),
        ("candidate", lambda row: percent(row.success_candidate)),
        (
            "difference",
            lambda row: Cell(signed_points(row.difference), detail=signed_interval(row.low, row.high)),
        ),
        ("pairs", "pairs"),
        ("lost", "num_lost"),
        ("won", "num_won"),
        ("verdict", lambda row: _WORDS[row.verdict]),
    ]
    if any(row.num_missing for row in gate.rows):
        columns.insert(6, ("missing", "num_missing"))
    sampled = [row for row in gate.rows if not row.is_exact]
    notes = ["Percent and points, luck removed. lost, won: episodes that only one of both succeeded in."]
    if sampled:
        notes.append(f"Bounds hold with {100.0 * (1.0 - gate.alpha):g}%, however often one looks.")
    if len(sampled) < len(gate.rows):
        notes.append("Explored on both sides: exact, no chance is left; pairs, lost and won count tasks.")
    if any(row.num_missing for row in gate.rows):
        notes.append("missing: pairs that one side has not finished; the bounds assume the worst of them, either way.")
    texts = (0, 1, len(columns) - 1)
    # Nothing but the prompt can go: a verdict without the episodes that were lost says too little.
    return Table.of("", gate.rows, columns, text_columns=texts, notes=notes, optional=("prompt",))


def parted_tables(gate: Gate, most: int = MOST_SHOWN) -> Iterator[Table]:
    """Yield for each row the episodes that came out differently, and where they part; or the tasks, where exact."""
    for row in gate.rows:
        if row.moved:
            caption = f"Tasks whose rates differ: {row.name}" if len(gate.rows) > 1 else "Tasks whose rates differ"
            moved = [[task, *rates, signed_points(rates[1] - rates[0])] for task, *rates in row.moved[:most]]
            left = len(row.moved) - len(moved)
            notes = [f"{left:,} more of them are not shown."] if left > 0 else []
            yield Table(caption, ("task", "baseline", "candidate", "difference"), moved, notes=notes)
        if not row.parted:
            continue
        cells = [
            [each.task, each.seed, _outcome(each.baseline), _outcome(each.candidate), each.where]
            for each in row.parted[:most]
        ]
        caption = f"Episodes that came out differently: {row.name}" if len(gate.rows) > 1 else "Where they part"
        left = row.num_lost + row.num_won - len(cells)
        notes = [f"{left:,} more of them are not shown."] if left > 0 else []
        headings = ("task", "seed", "baseline", "candidate", "they part at")
        yield Table(caption, headings, cells, text_columns=(0, 2, 3, 4), notes=notes)


def _outcome(outcome: int | None) -> str:
    return "broke" if outcome is None else "won" if outcome else "lost"


def plan_table(plans: Sequence[PlannedGate], margin: float, alpha: float) -> Table:
    """Return how many pairs of episodes a gate will take."""
    columns: list[Column[PlannedGate]] = [
        ("if the candidate is", _planned),
        ("the verdict is", "verdict"),
        ("pairs, every second time", lambda plan: _pairs(plan.half)),
        ("pairs, four times in five", lambda plan: _pairs(plan.mostly)),
    ]
    notes = [f"Margin {100.0 * margin:g} points; a verdict is wrong with at most {100.0 * alpha:g}%."]
    return Table.of("", plans, columns, text_columns=2, notes=notes)


def _planned(plan: PlannedGate) -> str:
    return f"worse by {100.0 * plan.difference:g} points" if plan.difference else "as good"


def _pairs(number: int | None) -> str:
    return "too many" if number is None else f"{number:,}"


def gate_markdown(gate: Gate) -> str:
    """Return what a gate says as Markdown for a pull request, with the episodes that differ and where they part."""
    sign = {"worse": "❌", "undecided": "⚠️"}.get(gate.verdict, "✅")
    lines = [f"### {sign} ResiliSim gate: {gate.verdict}", "", escape_markdown(gate.sentence), ""]
    lines += [*markdown_lines(gate_table(gate)), ""]
    for table in parted_tables(gate, most=50):
        lines += [
            f"<details><summary>{_html(table.caption)} ({len(table.rows)})</summary>",
            "",
            *markdown_lines(Table("", table.headings, table.rows, table.text_columns, notes=table.notes)),
            "",
            "</details>",
            "",
        ]
    lines += [f"{escape_markdown(note)}\n" for note in gate.notes]
    return "\n".join(lines)


def _html(text: str) -> str:
    return without_secrets(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def gate_junit(gate: Gate) -> str:
    """Return what a gate says as JUnit's XML: a test case for each agent and prompt."""
    failures = sum(row.verdict == "worse" for row in gate.rows)
    errors = sum(row.verdict == "undecided" for row in gate.rows)
    numbers = {"tests": str(len(gate.rows)), "failures": str(failures), "errors": str(errors)}
    root = ElementTree.Element("testsuites", numbers)
    suite = ElementTree.SubElement(root, "testsuite", {"name": "resilisim gate", **numbers})
    for row in gate.rows:
        name = {"classname": "resilisim.gate", "name": _xml(row.name)}
        case = ElementTree.SubElement(suite, "testcase", name)
        told = _xml(row.sentence(gate.margin))
        lines = [*map(_line, row.parted), *(f"{task}: {percent(a)} -> {percent(b)}" for task, a, b in row.moved)]
        parted = "\n".join(lines)
        if row.verdict in ("worse", "undecided"):
            kind = "failure" if row.verdict == "worse" else "error"
            what = ElementTree.SubElement(case, kind, {"type": row.verdict, "message": told})
            what.text = _xml(parted)
        out = ElementTree.SubElement(case, "system-out")
        out.text = _xml("\n".join([told, parted, *gate.notes]).strip())
    ElementTree.indent(root)
    return f'<?xml version="1.0" encoding="utf-8"?>\n{ElementTree.tostring(root, encoding="unicode")}\n'


def _line(parted: Parted) -> str:
    outcomes = f"baseline {_outcome(parted.baseline)}, candidate {_outcome(parted.candidate)}"
    return f"{parted.task}, seed {parted.seed}: {outcomes}; {parted.where}"


def _xml(text: str) -> str:
    return _NOT_IN_XML.sub("\N{REPLACEMENT CHARACTER}", without_secrets(text))
