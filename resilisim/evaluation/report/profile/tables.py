"""The tables of a robustness profile, the same for HTML, Markdown and those who cannot see charts."""

from __future__ import annotations

from collections.abc import Sequence

from resilisim.errors import count_of
from resilisim.evaluation.report.cells import NOTHING, name_cell, percent, plain, with_interval
from resilisim.evaluation.report.content import Cell, CellLike, Table
from resilisim.evaluation.report.profile.texts import (
    AFTER_SEARCH,
    CHANGE_NOTE,
    DROP_NOTE,
    EXACT_NOTE,
    REQUIRED_RETRIED,
    RUNS_NOTE,
)
from resilisim.evaluation.robustness.plan import RELIABILITY
from resilisim.evaluation.robustness.results import SOUND, AxisProfile, Curve, FlawProfile, FlawsProfile, ProfileResult

INTERVALS = "95% intervals clustered by task"


def value_text(axis: str, value: float) -> str:
    """Return a point of an axis as people write it."""
    return f"{value:.2f}" if axis == RELIABILITY and round(value, 2) == value else f"{value:g}"


def curve_cell(curve: Curve, several_prompts: bool) -> Cell:
    """Return the name of a curve: the policy, and the prompt where there are several."""
    name = f"{curve.who.policy}, {plain(curve.who.prompt)}" if several_prompts else curve.who.policy
    return name_cell(name, curve.who.privileged)


def areas_table(result: ProfileResult) -> Table:
    """Return the mean success along each axis as a share of the mean ceiling."""
    several = len(result.arguments["prompts"]) > 1
    first = result.axes[0]
    rows: list[list[CellLike]] = []
    for place, curve in enumerate(first.curves):
        cells: list[CellLike] = [curve_cell(curve, several)]
        for axis in result.axes:
            area = axis.curves[place].area
            cells += [with_interval(area.raw), with_interval(area.adjusted)]
        rows.append(cells)
    spans = [(f"{axis.axis} {_range(axis)}", 2) for axis in result.axes]
    return Table(
        f"Mean success along an axis in percent of the mean ceiling along it, with {INTERVALS}",
        ("policy", *("raw", "luck-adjusted") * len(result.axes)),
        rows,
        groups=(("", 1), *spans),
    )


def axis_table(axis: AxisProfile, several_prompts: bool) -> Table:
    """Return raw success at each point, with the exact references."""
    rows: list[list[CellLike]] = [
        [curve_cell(curve, several_prompts), *(with_interval(point.success) for point in curve.points)]
        for curve in axis.curves
    ]
    rows.append(["optimum V*", *(percent(value) for value in axis.optimum)])
    if axis.searches:
        rows.append([AFTER_SEARCH, *(percent(value) for value in axis.after_search)])
    rows.append([REQUIRED_RETRIED, *(percent(value) for value in axis.plan_following)])
    value = value_text(axis.axis, axis.standard)
    standard = f"a reliability of {value}" if axis.axis == RELIABILITY else f"{value} {axis.axis}"
    return Table(
        f"Success in percent of episodes by {axis.axis}, with {INTERVALS}",
        ("policy", *(value_text(axis.axis, value) for value in axis.values)),
        rows,
        is_stacked=True,
        summary_rows=2 + axis.searches,
        notes=(EXACT_NOTE, f"The standard setting has {standard}; it is always among the points."),
    )


def axis_details_table(axis: AxisProfile, several_prompts: bool) -> Table:
    """Return everything about each point: raw, adjusted, share of the ceiling, change against the standard setting."""
    rows: list[list[CellLike]] = []
    for curve in axis.curves:
        for point, ceiling in zip(curve.points, axis.ceiling_of(curve), strict=True):
            change = point.change
            rows.append(
                [
                    curve_cell(curve, several_prompts),
                    value_text(axis.axis, point.value),
                    percent(ceiling),
                    with_interval(point.success),
                    with_interval(point.adjusted),
                    with_interval(point.share_of_ceiling),
                    "standard" if change is None else with_interval(change.raw, signed=True),
                    "standard" if change is None else with_interval(change.adjusted, signed=True),
                ]
            )
    return Table(
        f"Success by {axis.axis} in percent, change in points, with {INTERVALS}",
        (
            "policy",
            axis.axis,
            "ceiling",
            "success",
            "luck-adjusted",
            "share of ceiling",
            "change",
            "change, luck-adjusted",
        ),
        rows,
        is_stacked=True,
        notes=(CHANGE_NOTE,),
    )


def drops_table(flaws: FlawsProfile) -> Table:
    """Return what flaws cost each policy, and where they cost most."""
    rows: list[list[CellLike]] = []
    for policy in flaws.policies:
        rows.append(
            [
                name_cell(policy.who.policy, policy.who.privileged),
                worst_text(policy),
                with_interval(policy.worst_success),
                with_interval(policy.optimal),
                *(with_interval(policy.drop_by_severity[name].better) for name in flaws.severities if policy.worst),
                with_interval(policy.drop.better),
                with_interval(policy.recovered.better),
            ]
        )
    num_cells = sum(reference.num_tasks > 0 for reference in flaws.references if reference.severity != SOUND)
    return Table(
        f"What flaws in the plan cost: success and recovered in percent, drops in points, with {INTERVALS}",
        (
            "policy",
            "lowest under",
            "success there",
            "sound plan",
            *(f"drop, {name}" for name in flaws.severities),
            "drop, all",
            "recovered",
        ),
        rows,
        text_columns=2,
        is_stacked=True,
        notes=(
            DROP_NOTE,
            f"The lowest of {num_cells} is low by chance, too; its interval allows for that (Bonferroni).",
        ),
    )


def worst_text(policy: FlawProfile) -> str:
    """Name the flaw with the lowest success, and say how many others are as low."""
    if not policy.worst:
        return NOTHING
    first, others = policy.worst[0], len(policy.worst) - 1
    more = f" and {count_of(others, 'other')}" if others else ""
    return f"{plain(first.flaw)}, {first.severity}{more}"


def flaws_table(flaws: FlawsProfile) -> Table:
    """Return raw success under each flaw and severity, with the exact references."""
    rows: list[list[CellLike]] = []
    for reference in flaws.references:
        cells: list[CellLike] = [
            plain(reference.flaw),
            "sound plan" if reference.severity == SOUND else reference.severity,
        ]
        cells += [f"{reference.num_tasks:,}", percent(reference.obey), percent(reference.deviate)]
        for policy in flaws.policies:
            cell = policy.cell(reference.flaw, reference.severity)
            cells.append(NOTHING if cell is None else with_interval(cell.success))
        rows.append(cells)
    return Table(
        f"Success in percent of episodes by flaw and severity, with {INTERVALS}",
        (
            "flaw",
            "severity",
            "tasks",
            "obey",
            "deviate (V*)",
            *(name_cell(policy.who.policy, policy.who.privileged) for policy in flaws.policies),
        ),
        rows,
        text_columns=2,
        is_stacked=True,
        notes=("Obey and deviate are exact for these tasks: solved, not estimated.", *left_out_notes(flaws)),
    )


def flaw_details_table(policy: FlawProfile) -> Table:
    """Return everything about one policy under each flaw and severity."""
    rows: list[list[CellLike]] = [
        [
            plain(cell.reference.flaw),
            "sound plan" if cell.reference.severity == SOUND else cell.reference.severity,
            with_interval(cell.success),
            with_interval(cell.adjusted),
            NOTHING if cell.change is None else with_interval(cell.change.raw, signed=True),
            NOTHING if cell.change is None else with_interval(cell.change.adjusted, signed=True),
            NOTHING if cell.recovered is None else with_interval(cell.recovered.better),
        ]
        for cell in policy.cells
    ]
    return Table(
        f"{policy.who.policy}: success and recovered in percent, change against the sound plan in points, with "
        f"{INTERVALS}",
        ("flaw", "severity", "success", "luck-adjusted", "change", "change, luck-adjusted", "recovered"),
        rows,
        text_columns=2,
    )


def left_out_notes(flaws: FlawsProfile) -> Sequence[str]:
    """Say which flaws some plans cannot carry, in one sentence; nothing if all can."""
    found = [
        f"{plain(reference.flaw)} ({count_of(reference.left_out, 'task')})"
        for reference in flaws.references
        if reference.severity == SOUND and reference.left_out
    ]
    return [f"Left out, because their plans cannot carry the flaw: {', '.join(found)}."] if found else []


def runs_table(result: ProfileResult) -> Table:
    """Return the runs of the profile with links to their own reports, where these were written."""
    rows: list[list[CellLike]] = []
    for run in result.runs:
        report = f"{run.name}/report.html"
        link = report if (result.directory / report).exists() else None
        state = "finished" if run.is_finished else f"{run.num_episodes:,} of {run.num_planned:,} episodes"
        rows.append([Cell(run.name, link=link), run.title, state, f"{run.num_tasks:,}", f"{run.num_episodes:,}"])
    return Table(
        "The runs of this profile, each a folder of its own",
        ("folder", "what it changes", "state", "tasks", "episodes"),
        rows,
        text_columns=3,
        notes=(RUNS_NOTE,),
    )


def _range(axis: AxisProfile) -> str:
    first, last = value_text(axis.axis, axis.values[0]), value_text(axis.axis, axis.values[-1])
    return first if first == last else f"{first} to {last}"
