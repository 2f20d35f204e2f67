"""Figures that the authors of ResiliBench published, as reference rows beside a run's own.

Their scorer, tool texts, prompts and random numbers are others than here, and so are their systems; a figure below is
no result of this run and says little about a difference of a few points. They are kept as printed, in percent of runs,
in `templates/published.json`.

Source: Ao, Min, Zhu, Yin and Wang, "ResiliBench: Evaluating Agentic Workflow Adaptation in Stochastic Environments",
tables 2, 3, 4 and 13.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from resilisim.evaluation.report.page import Fold, Table, packaged_file, say

CITATION = "Ao et al., ResiliBench"
BY_PROMPT, FLAWED_PLANS, BY_MODEL_SIZE, BY_TASK_TYPE = 2, 3, 4, 13  # numbers of tables in the paper


@lru_cache(maxsize=1)
def published_tables() -> Mapping[str, Mapping[str, Any]]:
    """Return the tables by their numbers in the paper: what they show, columns, and rows of a name and its figures.

    The figures of a row stand in groups, one for each prompt; table 3 has a column for the drop from its first to its
    second, which the paper does not print.
    """
    tables: dict[str, dict[str, Any]] = json.loads(packaged_file("published.json"))
    return tables


def published_reference(number: int) -> Fold:
    """Return a table of the paper, folded away."""
    found = published_tables()[str(number)]
    has_drop = number == FLAWED_PLANS
    rows = []
    for name, levels in found["rows"].items():
        figures = [figure for level in levels for figure in level]
        if has_drop:
            figures.append(levels[0][0] - levels[1][0])
        rows.append([name, *(f"{figure:.1f}".replace("-", "−") for figure in figures)])
    source = f"{CITATION}, table {number}"
    groups = (("", 1), *((prompt, 3) for prompt in found["groups"]), *[("", 1)] * has_drop)
    table = Table(
        f"Published, not of this run: {found['what']}, in percent ({source})",
        found["columns"],
        rows,
        groups=groups if found["groups"] else (),
        notes=[*([say(found["note"])] if found["note"] else []), say("not_ours")],
        summary_rows=1 if found["groups"] else 0,
    )
    return Fold(f"Published figures of other systems ({source})", (table,), is_published=True)
