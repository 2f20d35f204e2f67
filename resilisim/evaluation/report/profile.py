"""The page of a robustness profile: how policies do as tools, turns and plans get worse, in one file."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from markupsafe import Markup

from resilisim.errors import count_of
from resilisim.evaluation.report.body import names_of
from resilisim.evaluation.report.charts import dot_symbol, element, legend, line_symbol, raw_symbol, series_style
from resilisim.evaluation.report.charts.lines import Level, Series, curve_panel, group_panel
from resilisim.evaluation.report.page import (
    NOTHING,
    Block,
    Card,
    Cell,
    Definitions,
    Fold,
    Note,
    Page,
    Section,
    Table,
    interval_text,
    name_cell,
    packaged_file,
    packaged_texts,
    page_markdown,
    percent,
    plain,
    say,
    whole_page,
    with_interval,
)
from resilisim.evaluation.robustness.points import RELIABILITY, TURNS
from resilisim.evaluation.robustness.profile_result import (
    SOUND,
    AxisProfile,
    Curve,
    CurvePoint,
    FlawCell,
    FlawProfile,
    FlawReference,
    FlawsProfile,
    ProfiledPolicy,
    ProfileResult,
    RunState,
)
from resilisim.run_folder import write_file_atomically
from resilisim.statistics import Estimate

PAGE_NAME = "profile.html"
AXIS_TITLES: Mapping[str, str] = {RELIABILITY: "When tools fail more often", TURNS: "When turns are few"}

AFTER_SEARCH = "after search"  # the ceiling where tools must be found
REQUIRED_RETRIED = "required tools, retried"  # the reference of which no policy bears the name
CHANGES = ("change", "change, luck-adjusted")


def write_profile_page(result: ProfileResult, path: Path | str | None = None) -> Path:
    """Write the page of a profile, `profile.html` in its folder if no path is given, and return its path.

    Raises:
        StoreError: It cannot be written.
    """
    target = Path(path) if path is not None else result.directory / PAGE_NAME
    write_file_atomically(target, whole_page(profile_page(result), packaged_file("profile.css")))
    return target


def write_profile_markdown(result: ProfileResult, path: Path | str) -> Path:
    """Write the tables of a profile as Markdown, and return the path.

    Raises:
        StoreError: It cannot be written.
    """
    write_file_atomically(Path(path), page_markdown(profile_page(result)).encode("utf-8"))
    return Path(path)


def profile_page(result: ProfileResult) -> Page:
    """Return what the page says."""
    who = [curve.who for axis in result.axes for curve in axis.curves]
    who += [policy.who for policy in result.flaws.policies] if result.flaws is not None else []
    policies = list(dict.fromkeys(one.policy for one in who))
    unfinished = [run for run in result.runs if not run.is_finished]
    warnings = []
    if unfinished:
        missing = count_of(sum(run.num_planned - run.num_episodes for run in unfinished), "episode")
        warnings.append(say("profile_unfinished", episodes=missing, runs=count_of(len(unfinished), "run")))
    if result.optimum_gap > 0.0:
        warnings.append(say("profile_bounds", points=percent(result.optimum_gap, 2)))
    summary = _summary_section(result)
    arguments = [(name, json.dumps(value, ensure_ascii=False)) for name, value in sorted(result.arguments.items())]
    return Page(
        f"ResiliSim robustness profile: {names_of(policies)}",
        "How does it do as things get worse?",
        say(
            "profile_lead",
            policies=count_of(len(policies), "policy", "policies"),
            tasks=count_of(result.num_tasks, "task"),
            seeds=count_of(result.num_seeds, "seed"),
            settings=count_of(len(result.runs), "setting"),
            episodes=count_of(result.num_episodes, "episode"),
        ),
        warnings,
        _cards(result, any(one.privileged for one in who)),
        [
            *([summary] if summary.blocks else []),
            *(_axis_section(axis, result) for axis in result.axes),
            *([_flaws_section(result.flaws)] if result.flaws is not None else []),
            Section("runs", "Runs", [_runs_table(result)]),
            Section("reading", "How to read this", [Definitions(list(packaged_texts("profile-words.txt").items()))]),
            Section("provenance", "Provenance", [Definitions(arguments)]),
        ],
        say("profile_ending"),
    )


def profile_tables(result: ProfileResult) -> list[Table]:
    """Return the tables that sum a profile up, as a terminal shows them."""
    several = len(result.arguments["prompts"]) > 1
    tables = [_axis_table(axis, several) for axis in result.axes]
    if result.axes:
        tables.append(_areas_table(result))
    if result.flaws is not None:
        tables += [_flaws_table(result.flaws), _drops_table(result.flaws)]
    return tables


def _cards(result: ProfileResult, any_privileged: bool) -> list[Card]:
    cards = []
    most_of = "the most of any that does not see the state" if any_privileged else "the most of any"
    for axis in result.axes:
        ordinary = [curve for curve in axis.curves if not curve.who.privileged and curve.area.better.value >= 0.0]
        if ordinary:
            best = max(ordinary, key=lambda curve: curve.area.better.value)
            area = best.area.better
            detail = f"{interval_text(area)}, {most_of}: {best.who.policy} under {plain(best.who.prompt)}"
            cards.append(Card(f"Of V* along {axis.axis}", f"{percent(area.value)}%", detail))
    policies = result.flaws.policies if result.flaws is not None else ()
    flawed = [policy for policy in policies if not policy.who.privileged and not math.isnan(policy.drop.better.value)]
    if flawed:
        least = min(flawed, key=lambda policy: policy.drop.better.value)
        drop = least.drop.better
        detail = f"{interval_text(drop)}, {most_of.replace('most', 'least')}: {least.who.policy}"
        cards.append(Card("Drop under flawed plans", f"{percent(drop.value)} points", detail))
        most = max(flawed, key=lambda policy: policy.recovered.better.value)
        back = most.recovered.better
        detail = f"{interval_text(back)} of what obeying gives away, {most_of}: {most.who.policy}"
        cards.append(Card("Won back from flaws", f"{percent(back.value)}%", detail))
    return cards


def value_text(axis: str, value: float) -> str:
    """Return a point of an axis as people write it."""
    return f"{value:.2f}" if axis == RELIABILITY and round(value, 2) == value else f"{value:g}"


def worst_text(policy: FlawProfile) -> str:
    """Name the flaw with the lowest success, and say how many others are as low."""
    if not policy.worst:
        return NOTHING
    first, others = policy.worst[0], len(policy.worst) - 1
    more = f" and {count_of(others, 'other')}" if others else ""
    return f"{plain(first.flaw)}, {first.severity}{more}"


def _summary_section(result: ProfileResult) -> Section:
    """Return the few numbers that sum up the axes and the flaws."""
    blocks: list[Block] = []
    if result.axes:
        blocks.append(_areas_table(result))
    if result.flaws is not None:
        blocks.append(_drops_table(result.flaws))
    if any(curve.who.privileged for axis in result.axes for curve in axis.curves):
        blocks.append(Note(say("privileged")))
    return Section("summary", "In short", blocks)


def _axis_section(axis: AxisProfile, result: ProfileResult) -> Section:
    """Return a policy's success along an axis: a small chart each, the table, every point in detail."""
    several = len(result.arguments["prompts"]) > 1
    levels = [
        Level(axis.optimum, "optimum", "optimum V*"),
        *[Level(axis.after_search, "after-search", f"{AFTER_SEARCH}, where tools must be found")] * axis.searches,
        Level(axis.plan_following, "required-retried", f"{REQUIRED_RETRIED}, in their order"),
    ]
    series = [
        _series(
            curve.who,
            _curve_cell(curve, several),
            number,
            [point.success for point in curve.points],
            [point.adjusted for point in curve.points],
        )
        for number, curve in enumerate(axis.curves)
    ]
    charts = []
    for one in series:
        others = [other for other in series if other is not one]
        label = partial(value_text, axis.axis)
        charts.append(curve_panel(one.name, axis.values, axis.axis, label, levels, others, one, axis.standard))
    symbols = legend(
        *((line_symbol(f"curve {level.style}"), level.name) for level in levels),
        (dot_symbol(series_style(0)), "the policy, luck-adjusted, with its 95% interval"),
        (raw_symbol(), "raw success"),
        (line_symbol("curve other"), "the other policies"),
    )
    details = Fold("Every point with its change against the standard setting", [_axis_details_table(axis, several)])
    panels = element("div", charts, class_="panels")
    blocks: list[Block] = [say(f"profile_{axis.axis}"), symbols, panels, _axis_table(axis, several), details]
    return Section(axis.axis, AXIS_TITLES[axis.axis], blocks)


def _series(
    who: ProfiledPolicy, name: Cell, number: int, raw: Sequence[Estimate], adjusted: Sequence[Estimate]
) -> Series:
    """Return what a chart draws of a policy: raw success alone where its luck cannot be taken out."""
    estimates, beside = (raw, ()) if who.tries_again else (adjusted, raw)
    shown = f"{name.text} {name.mark}".rstrip()
    return Series(shown, series_style(number), estimates, beside, who.privileged)


def _flaws_section(flaws: FlawsProfile) -> Section:
    """Return what the flaws do: a small chart for each flaw, the table, every policy in detail."""
    carried = [flaw for flaw in flaws.flaws if flaws.reference(flaw, SOUND).num_tasks]
    entries = [(line_symbol("curve optimum"), "deviate: V*"), (line_symbol("curve obey"), "obey")]
    for number, policy in enumerate(flaws.policies):
        name = f"{policy.who.policy} *" if policy.who.privileged else policy.who.policy
        entries.append((dot_symbol(series_style(number) + " hollow" * policy.who.privileged), name))
    return Section(
        "flaws",
        "When the plan is wrong",
        [
            say("profile_flaws"),
            legend(*entries, (raw_symbol(), "raw success")),
            element("div", [_flaw_chart(flaws, flaw) for flaw in carried], class_="panels"),
            _flaws_table(flaws),
            Fold("Every policy in detail", [_flaw_details_table(policy) for policy in flaws.policies]),
        ],
    )


def _flaw_chart(flaws: FlawsProfile, flaw: str) -> Markup:
    groups = [SOUND, *flaws.severities]
    shown = ["sound", *flaws.severities]
    references = [flaws.reference(flaw, severity) for severity in groups]
    series = []
    for number, policy in enumerate(flaws.policies):
        cells = [cell for cell in (policy.cell(flaw, severity) for severity in groups) if cell is not None]
        raw, adjusted = [cell.success for cell in cells], [cell.adjusted for cell in cells]
        series.append(_series(policy.who, Cell(policy.who.policy), number, raw, adjusted))
    levels = [
        Level([reference.deviate for reference in references], "optimum", "deviate (V*)"),
        Level([reference.obey for reference in references], "obey", "obey"),
    ]
    described = []
    for one in series:
        shares = (
            f"{group} {percent(estimate.value)}% {interval_text(estimate)}"
            for group, estimate in zip(shown, one.estimates, strict=True)
        )
        described.append(f"{one.name}: {', '.join(shares)}")
    heading = f"{plain(flaw)}, {count_of(references[0].num_tasks, 'task')}"
    return group_panel(heading, shown, levels, series, "; ".join(described))


def _curve_cell(curve: Curve, several_prompts: bool) -> Cell:
    """Return the name of a curve: the policy, and the prompt where there are several."""
    name = f"{curve.who.policy}, {plain(curve.who.prompt)}" if several_prompts else curve.who.policy
    return name_cell(name, curve.who.privileged)


def _areas_table(result: ProfileResult) -> Table:
    """Return the mean success along each axis as a share of the mean ceiling."""
    several = len(result.arguments["prompts"]) > 1
    rows: list[list[object]] = []
    for curves in zip(*(axis.curves for axis in result.axes), strict=True):
        areas = [estimate for curve in curves for estimate in (curve.area.raw, curve.area.adjusted)]
        rows.append([_curve_cell(curves[0], several), *areas])
    spans = []
    for axis in result.axes:
        first, last = value_text(axis.axis, axis.values[0]), value_text(axis.axis, axis.values[-1])
        spans.append((f"{axis.axis} {first}" + f" to {last}" * (first != last), 2))
    return Table(
        say("profile_areas_table"),
        ("policy", *("raw", "luck-adjusted") * len(result.axes)),
        rows,
        groups=(("", 1), *spans),
    )


def _axis_table(axis: AxisProfile, several_prompts: bool) -> Table:
    """Return raw success at each point, with the exact references."""
    rows: list[list[object]] = [
        [_curve_cell(curve, several_prompts), *(point.success for point in curve.points)] for curve in axis.curves
    ]
    rows.append(["optimum V*", *axis.optimum])
    if axis.searches:
        rows.append([AFTER_SEARCH, *axis.after_search])
    rows.append([REQUIRED_RETRIED, *axis.plan_following])
    value = value_text(axis.axis, axis.standard)
    standard = f"a reliability of {value}" if axis.axis == RELIABILITY else f"{value} {axis.axis}"
    return Table(
        say("profile_axis_table", axis=axis.axis),
        ("policy", *(value_text(axis.axis, value) for value in axis.values)),
        rows,
        is_stacked=True,
        summary_rows=2 + axis.searches,
        notes=(say("profile_exact"), say("profile_standard", setting=standard)),
    )


def _axis_details_table(axis: AxisProfile, several_prompts: bool) -> Table:
    """Return everything about each point: raw, adjusted, share of the ceiling, change against the standard setting."""
    rows: list[list[object]] = []
    for curve in axis.curves:
        for point, ceiling in zip(curve.points, axis.ceiling_of(curve), strict=True):
            name, place = _curve_cell(curve, several_prompts), value_text(axis.axis, point.value)
            rates = (point.success, point.adjusted, point.share_of_ceiling)
            rows.append([name, place, ceiling, *rates, *_change_cells(point, "standard")])
    return Table(
        say("profile_axis_details_table", axis=axis.axis),
        ("policy", axis.axis, "ceiling", "success", "luck-adjusted", "share of ceiling", *CHANGES),
        rows,
        is_stacked=True,
        notes=(say("profile_change"),),
    )


def _change_cells(result: CurvePoint | FlawCell, without: str) -> list[Cell | str]:
    change = result.change
    if change is None:
        return [without, without]
    return [with_interval(change.raw, signed=True), with_interval(change.adjusted, signed=True)]


def _severity_text(reference: FlawReference) -> str:
    return "sound plan" if reference.severity == SOUND else reference.severity


def _drops_table(flaws: FlawsProfile) -> Table:
    """Return what flaws cost each policy, and where they cost most."""
    rows: list[list[object]] = []
    for policy in flaws.policies:
        drops = [policy.drop_by_severity[name].better for name in flaws.severities if policy.worst]
        estimates = (policy.worst_success, policy.optimal, *drops, policy.drop.better, policy.recovered.better)
        name = name_cell(policy.who.policy, policy.who.privileged)
        rows.append([name, worst_text(policy), *estimates])
    num_cells = sum(reference.num_tasks > 0 for reference in flaws.references if reference.severity != SOUND)
    severities = [f"drop, {name}" for name in flaws.severities]
    return Table(
        say("profile_drops_table"),
        ("policy", "lowest under", "success there", "sound plan", *severities, "drop, all", "recovered"),
        rows,
        text_columns=2,
        is_stacked=True,
        notes=(say("profile_drop"), say("profile_lowest", cells=num_cells)),
    )


def _flaws_table(flaws: FlawsProfile) -> Table:
    """Return raw success under each flaw and severity, with the exact references."""
    rows: list[list[object]] = []
    for reference in flaws.references:
        exact = (reference.num_tasks, reference.obey, reference.deviate)
        found = [policy.cell(reference.flaw, reference.severity) for policy in flaws.policies]
        cells = [None if cell is None else cell.success for cell in found]
        rows.append([plain(reference.flaw), _severity_text(reference), *exact, *cells])
    left_out = [
        f"{plain(reference.flaw)} ({count_of(reference.left_out, 'task')})"
        for reference in flaws.references
        if reference.severity == SOUND and reference.left_out
    ]
    notes = [say("profile_exact_flaws")]
    if left_out:
        notes.append(say("profile_left_out", flaws=", ".join(left_out)))
    names = [name_cell(policy.who.policy, policy.who.privileged) for policy in flaws.policies]
    return Table(
        say("profile_flaws_table"),
        ("flaw", "severity", "tasks", "obey", "deviate (V*)", *names),
        rows,
        text_columns=2,
        is_stacked=True,
        notes=notes,
    )


def _flaw_details_table(policy: FlawProfile) -> Table:
    """Return everything about one policy under each flaw and severity."""
    rows: list[list[object]] = []
    for cell in policy.cells:
        recovered = None if cell.recovered is None else cell.recovered.better
        rates = (cell.success, cell.adjusted)
        names = (plain(cell.reference.flaw), _severity_text(cell.reference))
        rows.append([*names, *rates, *_change_cells(cell, NOTHING), recovered])
    return Table(
        say("profile_flaw_details_table", policy=policy.who.policy),
        ("flaw", "severity", "success", "luck-adjusted", *CHANGES, "recovered"),
        rows,
        text_columns=2,
    )


def _runs_table(result: ProfileResult) -> Table:
    """Return the runs of the profile with links to their own reports, where these were written."""

    def name(run: RunState) -> Cell:
        report = f"{run.name}/report.html"
        return Cell(run.name, link=report if (result.directory / report).exists() else None)

    def state(run: RunState) -> str:
        return "finished" if run.is_finished else f"{run.num_episodes:,} of {run.num_planned:,} episodes"

    return Table.of(
        "The runs of this profile, each a folder of its own",
        result.runs,
        [
            ("folder", name),
            ("what it changes", "title"),
            ("state", state),
            ("tasks", "num_tasks"),
            ("episodes", "num_episodes"),
        ],
        text_columns=3,
        notes=(say("profile_runs"),),
    )
