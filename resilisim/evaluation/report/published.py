"""Figures that the authors of ResiliBench published, as reference rows beside a run's own.

Their scorer, tool texts, prompts and random numbers are others than here, and so are their systems; a figure below is
no result of this run and says little about a difference of a few points. They are kept as printed, in percent of runs,
in `templates/published.json`.

Source: Ao, Min, Zhu, Yin and Wang, "ResiliBench: Evaluating Agentic Workflow Adaptation in Stochastic Environments",
tables 2, 3, 4 and 13.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from resilisim.evaluation.report.groups import LEVEL_NAMES
from resilisim.evaluation.report.page import Fold, Table, packaged_file, say

CITATION = "Ao et al., ResiliBench"


@lru_cache(maxsize=1)
def published_tables() -> Mapping[str, Mapping[str, Any]]:
    """Return the tables by their numbers in the paper: `rows` of a name and its figures, with what heads them."""
    tables: dict[str, dict[str, Any]] = json.loads(packaged_file("published.json"))
    return tables


def prompts_reference() -> Fold:
    """Return table 2 of the paper."""
    return _levels_reference(2, "full, partial and failed runs by prompt")


def flawed_reference() -> Fold:
    """Return table 3 of the paper, with the drop from optimal to flawed."""
    return _levels_reference(3, "full, partial and failed runs under optimal and flawed plans", drop=True)


def scaling_reference() -> Fold:
    """Return table 4 of the paper."""
    rows = [[name, *_figures(values)] for name, values in published_tables()["4"]["rows"].items()]
    return _reference(4, "full, partial and failed runs by size of the model", ("model", *LEVEL_NAMES), rows)


def task_types_reference() -> Fold:
    """Return table 13 of the paper under its own labels."""
    found = published_tables()["13"]
    rows = [[name, *_figures(values)] for name, values in found["rows"].items()]
    headings = ("kind of task (the paper's label)", *found["models"])
    return _reference(13, "success by kind of task", headings, rows, notes=[say("other_labels")])


def _levels_reference(number: int, what: str, drop: bool = False) -> Fold:
    found = published_tables()[str(number)]
    rows = []
    for name, levels in found["rows"].items():
        rows.append([name, *(figure for level in levels for figure in _figures(level))])
        rows[-1] += _figures([levels[0][0] - levels[1][0]] * drop)
    headings = ("model", *LEVEL_NAMES * len(found["prompts"]), *["drop in points"] * drop)
    groups = (("", 1), *((prompt, len(LEVEL_NAMES)) for prompt in found["prompts"]), *[("", 1)] * drop)
    return _reference(number, what, headings, rows, groups=groups, summary_rows=1)


def _figures(values: Sequence[float]) -> list[str]:
    return [f"{value:.1f}".replace("-", "−") for value in values]


def _reference(
    number: int, what: str, headings: Sequence[str], rows: list[list[str]], notes: Sequence[str] = (), **more: Any
) -> Fold:
    source = f"{CITATION}, table {number}"
    caption = f"Published, not of this run: {what}, in percent ({source})"
    table = Table(caption, headings, rows, notes=(*notes, say("not_ours")), **more)
    return Fold(f"Published figures of other systems ({source})", (table,), is_published=True)
