"""How a policy learned: its success on what it does not train on, with V* as the line above, as a page."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from resilisim.errors import StoreError
from resilisim.reporting.charts import legend, series_entries
from resilisim.reporting.charts.lines import Level, LinePanel, Series, line_charts
from resilisim.reporting.page import Block, Page, Section, beside_a_chart, whole_page
from resilisim.run_folder import write_file_atomically
from resilisim.statistics import Estimate
from resilisim.tables.table import Table

CURVE_FILE = "learning_curve.html"
OVERALL = "all"  # beside the groups of what a training is measured on
MOST_NAMED = 8  # numbers below the axis
# What is counted on the axis: the first that evaluations have; a language model reads tokens.
_AXES = {"num_tokens": "tokens", "imitated": "updates", "steps": "steps"}


def write_learning_curve(folder: Path, progress_file: str) -> None:
    """Write how the training in a folder has gone so far, if it was measured at all.

    Args:
        folder: Folder of the training.
        progress_file: Name of the file in it that has a JSON object for each evaluation.
    """
    lines = (folder / progress_file).read_text(encoding="utf-8").splitlines()
    try:
        evaluations = [json.loads(line) for line in lines]
    except ValueError as error:
        raise StoreError(f"{folder / progress_file} is broken: {error}") from error
    if evaluations:
        write_file_atomically(folder / CURVE_FILE, whole_page(learning_page(folder.name, evaluations)))


def learning_page(name: str, evaluations: Sequence[Mapping[str, Any]]) -> Page:
    """Return the page of a training from its evaluations, in their order."""
    groups = [OVERALL, *evaluations[0].get("shares", {})]
    axis, key = next((axis, key) for key, axis in _AXES.items() if any(key in one for one in evaluations))
    numbers = [float(one.get(key) or one["steps"]) for one in evaluations]
    step = -(-len(evaluations) // MOST_NAMED)
    places = [f"{number:,.0f}" if place % step == 0 else "" for place, number in enumerate(numbers)]
    success = Series("success", "series-0", [Estimate.nothing(value=one["success"]) for one in evaluations])
    shares = [
        Series(
            f"share of V*, {group}",
            f"series-{place + 1}",
            [Estimate.nothing(value=_share(one, group)) for one in evaluations],
        )
        for place, group in enumerate(groups)
    ]
    optimum = Level([one["optimum"] for one in evaluations], "optimum", "V*, the most that anybody can reach")
    whole = Level([1.0] * len(evaluations), "optimum", "V*")
    charts = [
        LinePanel("Success and V*", "Success, V* above", places, [success], axis_name=axis, levels=[optimum]),
        LinePanel("Share of V*", "Share of V*", places, shares, axis_name=axis, levels=[whole]),
    ]
    columns = [
        (axis, lambda one: f"{one.get(key) or one['steps']:,}"),
        ("minutes", lambda one: f"{one['minutes']:.1f}"),
        ("success", lambda one: f"{one['success']:.4f}"),
        ("V*", lambda one: f"{one['optimum']:.4f}"),
        *((group, lambda one, group=group: f"{_share(one, group):.4f}") for group in groups),
    ]
    table = Table.of("Evaluations", evaluations, columns)
    names = ["success", *(series.name for series in shares)]
    blocks: list[Block] = [legend(*series_entries("dot", names)), line_charts(charts), beside_a_chart(table)]
    return Page(
        f"ResiliSim: how {name} learned",
        "How it learned",
        "Measured on libraries, laws and tasks that it never trains on. The line above is the exact optimum V*.",
        [],
        [],
        [Section("learning", "Evaluations", blocks)],
        "Made by ResiliSim. This file needs no network.",
        name=name,
    )


def _share(evaluation: Mapping[str, Any], group: str) -> float:
    return float(evaluation["share"] if group == OVERALL else evaluation["shares"][group])
