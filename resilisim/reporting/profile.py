"""The page of a robustness profile: how policies do as tools, turns and plans get worse, in one file."""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from resilisim.errors import count_of
from resilisim.evaluation.robustness.points import RELIABILITY, TURN_LIMIT
from resilisim.evaluation.robustness.profile_result import (
    NO_SEVERITY,
    WAYS,
    AxisProfile,
    Curve,
    CurvePoint,
    FlawCell,
    FlawProfile,
    FlawReference,
    FlawsProfile,
    ProfiledPolicy,
    ProfileResult,
    Recovery,
    RunState,
)
from resilisim.reporting.charts import Entry, legend, series_style
from resilisim.reporting.charts.lines import Level, LinePanel, Series, panels
from resilisim.reporting.page import (
    Block,
    Card,
    Definitions,
    Fold,
    Note,
    Page,
    Section,
    name_cell,
    packaged_file,
    packaged_texts,
    page_markdown,
    plain,
    say,
    whole_page,
)
from resilisim.reporting.run_words import names_of
from resilisim.run_folder import write_file_atomically
from resilisim.statistics import Estimate
from resilisim.tables.numbers import NO_NUMBER, interval_text, percent
from resilisim.tables.table import SIGNED, Cell, Table, in_form

PAGE_NAME = "profile.html"
AXIS_TITLES: Mapping[str, str] = {
    RELIABILITY: "When tools fail more often",
    TURN_LIMIT: "When turns are few",
    "rate_limit": "When calls are limited",
    "outage": "When tools go down together",
    "broken": "When tools are broken",
    "corrupt": "When data is wrong",
    "drift": "When tools get worse with time",
    "error_kinds": "When errors mean what they say",
    "latency": "When calls are slow",
}
WAY_TITLES = {"waiting": "waiting", "equivalents": "equivalents", "checking": "checking results"}
_AFTER_SEARCH = "after search"  # the ceiling where tools must be found
REQUIRED_RETRIED = "required tools, retried"  # the reference of which no policy bears the name
CHANGES = ("change", "change, luck-adjusted")


def write_profile_page(
    result: ProfileResult, path: Path | str | None = None, *, markdown: Path | str | None = None
) -> Path:
    """Write the page of a profile, `profile.html` in its folder if no path is given, and return its path.

    Its tables can be written as Markdown, too.

    Raises:
        StoreError: It cannot be written.
    """
    target, page = Path(path or result.directory / PAGE_NAME), profile_page(result)
    write_file_atomically(target, whole_page(page, packaged_file("profile.css")))
    if markdown is not None:
        write_file_atomically(Path(markdown), page_markdown(page).encode("utf-8"))
    return target


def profile_page(result: ProfileResult) -> Page:
    """Return what the page says."""
    who = [curve.who for axis in result.axes for curve in axis.curves]
    who += [policy.who for policy in result.flaws.policies] if result.flaws is not None else []
    any_privileged = any(who_played.privileged for who_played in who)
    policies = list(dict.fromkeys(who_played.policy for who_played in who))
    summary: list[Block] = [_areas_table(result.axes)] if result.axes else []
    sections = [_axis_section(axis) for axis in result.axes]
    if result.flaws is not None:
        summary.append(_drops_table(result.flaws))
        sections.append(_flaws_section(result.flaws))
    if any(curve.who.privileged for axis in result.axes for curve in axis.curves):
        summary.append(Note(say("privileged")))
    arguments = {name: json.dumps(value, ensure_ascii=False) for name, value in sorted(result.arguments.items())}
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
        _warnings(result),
        list(_cards(result, "the most of any" + " that does not see the state" * any_privileged)),
        [
            *([Section("summary", "In short", summary)] if summary else []),
            *sections,
            Section("runs", "Runs", [_runs_table(result)]),
            Section("reading", "How to read this", [Definitions(packaged_texts("profile-words.txt"))]),
            Section("provenance", "Provenance", [Definitions(arguments)]),
        ],
        say("profile_ending"),
    )


def profile_tables(result: ProfileResult) -> list[Table]:
    """Return the tables that sum a profile up, as a terminal shows them."""
    recovery = [table for axis in result.axes for table in _recovery_tables(axis)]
    tables = [*map(_axis_table, result.axes), *recovery, *([_areas_table(result.axes)] if result.axes else [])]
    return tables if result.flaws is None else [*tables, _flaws_table(result.flaws), _drops_table(result.flaws)]


def _warnings(result: ProfileResult) -> list[str]:
    warnings = []
    unfinished = [run for run in result.runs if not run.is_finished]
    if unfinished:
        missing = count_of(sum(run.num_planned - run.num_episodes for run in unfinished), "episode")
        warnings.append(say("profile_unfinished", episodes=missing, runs=count_of(len(unfinished), "run")))
    if result.optimum_gap > 0.0:
        warnings.append(say("profile_bounds", points=percent(result.optimum_gap, 2)))
    return warnings


def _cards(result: ProfileResult, most_of: str) -> Iterator[Card]:
    for axis in result.axes:
        ordinary = [curve for curve in axis.curves if not curve.who.privileged and curve.area.better.value >= 0.0]
        if ordinary:
            best = max(ordinary, key=lambda curve: curve.area.better.value)
            area = best.area.better
            detail = f"{interval_text(area)}, {most_of}: {best.who.policy} under {plain(best.who.prompt)}"
            yield Card(f"Of V* along {axis.axis}", f"{percent(area.value)}%", detail)
    policies = result.flaws.policies if result.flaws is not None else ()
    flawed = [policy for policy in policies if not policy.who.privileged and not math.isnan(policy.drop.better.value)]
    if flawed:
        least = min(flawed, key=lambda policy: policy.drop.better.value)
        drop = least.drop.better
        detail = f"{interval_text(drop)}, {most_of.replace('most', 'least')}: {least.who.policy}"
        yield Card("Drop under flawed plans", f"{percent(drop.value)} points", detail)
        most = max(flawed, key=lambda policy: policy.recovered.better.value)
        back = most.recovered.better
        detail = f"{interval_text(back)} of what obeying gives away, {most_of}: {most.who.policy}"
        yield Card("Won back from flaws", f"{percent(back.value)}%", detail)


def value_text(axis: str, value: float) -> str:
    """Return a point of an axis as people write it."""
    return f"{value:.2f}" if axis == RELIABILITY and round(value, 2) == value else f"{value:g}"


def worst_text(policy: FlawProfile) -> str:
    """Name the flaw with the lowest success, and say how many others are as low."""
    if not policy.worst:
        return NO_NUMBER
    first, others = policy.worst[0], len(policy.worst) - 1
    more = f" and {count_of(others, 'other')}" if others else ""
    return f"{plain(first.flaw)}, {first.severity}{more}"


def _axis_section(axis: AxisProfile) -> Section:
    search = Level(axis.after_search, "after-search", f"{_AFTER_SEARCH}, where tools must be found")
    levels = [
        Level(axis.optimum, "optimum", "optimum V*"),
        *[search] * axis.searches,
        Level(axis.plan_following, "required-retried", f"{REQUIRED_RETRIED}, in their order"),
    ]
    series = [
        _series(curve.who, _curve_cell(axis, curve).text, number, curve.points)
        for number, curve in enumerate(axis.curves)
    ]
    charts = [
        LinePanel(
            f"{one.name}: success by {axis.axis}",
            one.name,
            [value_text(axis.axis, value) for value in axis.values],
            [one],
            axis_name=axis.axis,
            levels=levels,
            behind=[other for other in series if other is not one],
            numbers=axis.values,
            standard=axis.standard,
        )
        for one in series
    ]
    symbols = legend(
        *(Entry("line", f"curve {level.style}", level.name) for level in levels),
        Entry("dot", series_style(0), "the policy, luck-adjusted, with its 95% interval"),
        Entry("raw", "raw-dot", "raw success"),
        Entry("line", "curve other", "the other policies"),
    )
    details = Fold("Every point with its change against the standard setting", [_axis_details_table(axis)])
    text = say(f"profile_{axis.axis}" if axis.axis in (RELIABILITY, TURN_LIMIT) else "profile_part")
    blocks: list[Block] = [text, symbols, panels(charts), _axis_table(axis), details, *_recovery_blocks(axis)]
    return Section(axis.axis, AXIS_TITLES[axis.axis], blocks)


def _recovery_blocks(axis: AxisProfile) -> list[Block]:
    """Return what a section says of recoveries, nothing where there was nothing to recover from."""
    ways = _ways_of(axis)
    if not ways:
        return []
    nothing = Estimate.nothing()
    charts = []
    for way in ways:
        series = [
            Series(
                _curve_cell(axis, curve).text,
                series_style(number),
                [nothing if point.recovery is None else getattr(point.recovery, way) for point in curve.points],
                hollow=curve.who.privileged,
            )
            for number, curve in enumerate(axis.curves)
        ]
        places = [value_text(axis.axis, value) for value in axis.values]
        title = f"Setbacks mended by {WAY_TITLES[way]}"
        charts.append(LinePanel(title, title, places, series, axis_name=axis.axis, numbers=axis.values))
    symbols = legend(
        *(
            Entry("dot", shown_series.style + " hollow" * shown_series.hollow, shown_series.name)
            for shown_series in charts[0].series
        )
    )
    return [say("profile_recovery"), symbols, panels(charts), *_recovery_tables(axis)]


def _ways_of(axis: AxisProfile) -> list[str]:
    """Return the ways out that anybody could have taken."""
    recoveries = [point.recovery for curve in axis.curves for point in curve.points if point.recovery is not None]
    return [way for way in WAYS if any(not math.isnan(getattr(recovery, way).value) for recovery in recoveries)]


def _recovery_tables(axis: AxisProfile) -> list[Table]:
    ways = _ways_of(axis)
    points = [(curve, point, point.recovery) for curve in axis.curves for point in curve.points if point.recovery]
    if not ways:
        return []
    return [
        Table.of(
            say("profile_recovery_table", axis=plain(axis.axis)),
            points,
            [
                ("policy", lambda row: _curve_cell(axis, row[0])),
                (axis.axis, lambda row: value_text(axis.axis, row[1].value)),
                *((f"by {WAY_TITLES[way]}", functools.partial(_recovered, way)) for way in ways),
            ],
            text_columns=2,
            is_stacked=True,
        )
    ]


def _recovered(way: str, row: tuple[Curve, CurvePoint, Recovery]) -> Estimate:
    share: Estimate = getattr(row[2], way)
    return share


def _series(who: ProfiledPolicy, name: str, number: int, points: Sequence[CurvePoint] | Sequence[FlawCell]) -> Series:
    """Return what a chart draws of a policy: raw success alone where its luck cannot be taken out."""
    raw = [point.success for point in points]
    estimates, beside = (raw, []) if who.tries_again else ([point.adjusted for point in points], raw)
    return Series(f"{name} *" if who.privileged else name, series_style(number), estimates, beside, who.privileged)


def _flaws_section(flaws: FlawsProfile) -> Section:
    carried = [flaw for flaw in flaws.flaws if flaws.reference(flaw, NO_SEVERITY).num_tasks]
    entries = [Entry("line", "curve optimum", "deviate: V*"), Entry("line", "curve obey", "obey")]
    for number, policy in enumerate(flaws.policies):
        series = _series(policy.who, policy.who.policy, number, ())
        entries.append(Entry("dot", series.style + " hollow" * series.hollow, series.name))
    return Section(
        "flaws",
        "When the plan is wrong",
        [
            say("profile_flaws"),
            legend(*entries, Entry("raw", "raw-dot", "raw success")),
            panels([_flaw_chart(flaws, flaw) for flaw in carried]),
            _flaws_table(flaws),
            Fold("Every policy in detail", [_flaw_details_table(policy) for policy in flaws.policies]),
        ],
    )


def _flaw_chart(flaws: FlawsProfile, flaw: str) -> LinePanel:
    groups = [NO_SEVERITY, *flaws.severities]
    references = [flaws.reference(flaw, severity) for severity in groups]
    series = []
    for number, policy in enumerate(flaws.policies):
        cells = [cell for cell in (policy.cell(flaw, severity) for severity in groups) if cell is not None]
        series.append(_series(policy.who, policy.who.policy, number, cells))
    levels = [
        Level([reference.deviate for reference in references], "optimum", "deviate (V*)"),
        Level([reference.obey for reference in references], "obey", "obey"),
    ]
    heading = f"{plain(flaw)}, {count_of(references[0].num_tasks, 'task')}"
    return LinePanel(heading, heading, ["sound", *flaws.severities], series, is_joined=False, levels=levels)


def _curve_cell(axis: AxisProfile, curve: Curve) -> Cell:
    """Return the policy of a curve, and the prompt where there are several."""
    several = len({other.who.prompt for other in axis.curves}) > 1
    return name_cell(curve.who.policy + f", {plain(curve.who.prompt)}" * several, curve.who.privileged)


def _areas_table(axes: Sequence[AxisProfile]) -> Table:
    spans = []
    for axis in axes:
        first, last = value_text(axis.axis, axis.values[0]), value_text(axis.axis, axis.values[-1])
        spans.append((f"{axis.axis} {first}" + f" to {last}" * (first != last), 2))
    return Table(
        say("profile_areas_table"),
        ("policy", *("raw", "luck-adjusted") * len(axes)),
        [
            [
                _curve_cell(axes[0], curves[0]),
                *(rate for curve in curves for rate in (curve.area.raw, curve.area.adjusted)),
            ]
            for curves in zip(*(axis.curves for axis in axes), strict=True)
        ],
        groups=(("", 1), *spans),
    )


def _axis_table(axis: AxisProfile) -> Table:
    value = value_text(axis.axis, axis.standard)
    informed = ", ".join(value_text(axis.axis, each) for each in axis.informed)
    notes = [say("profile_exact"), *([say("profile_informed", values=informed)] if informed else [])]
    named = {RELIABILITY: f"a reliability of {value}", TURN_LIMIT: f"{value} {axis.axis}"}
    standard = named.get(axis.axis, "the law without this part")
    return Table(
        say("profile_axis_table", axis=axis.axis),
        ("policy", *(value_text(axis.axis, value) for value in axis.values)),
        [
            *([_curve_cell(axis, curve), *(point.success for point in curve.points)] for curve in axis.curves),
            ["optimum V*", *axis.optimum],
            *[[_AFTER_SEARCH, *axis.after_search]] * axis.searches,
            [REQUIRED_RETRIED, *axis.plan_following],
        ],
        is_stacked=True,
        summary_rows=2 + axis.searches,
        notes=(*notes, say("profile_standard", setting=standard)),
    )


def _axis_details_table(axis: AxisProfile) -> Table:
    points = [
        (curve, point, ceiling)
        for curve in axis.curves
        for point, ceiling in zip(curve.points, axis.ceiling_of(curve), strict=True)
    ]
    return Table.of(
        say("profile_axis_details_table", axis=axis.axis),
        points,
        [
            ("policy", lambda row: _curve_cell(axis, row[0])),
            (axis.axis, lambda row: value_text(axis.axis, row[1].value)),
            ("ceiling", lambda row: row[2]),
            ("success", lambda row: row[1].success),
            ("luck-adjusted", lambda row: row[1].adjusted),
            ("share of ceiling", lambda row: row[1].share_of_ceiling),
            (CHANGES[0], lambda row: _change(row[1], "raw", "standard")),
            (CHANGES[1], lambda row: _change(row[1], "adjusted", "standard")),
        ],
        is_stacked=True,
        notes=(say("profile_change"),),
    )


def _change(result: CurvePoint | FlawCell, which: str, without: str) -> Cell | str:
    return without if result.change is None else in_form(getattr(result.change, which), SIGNED)


def _severity_text(reference: FlawReference) -> str:
    return "sound plan" if reference.severity == NO_SEVERITY else reference.severity


def _policy_name(policy: FlawProfile) -> Cell:
    return name_cell(policy.who.policy, policy.who.privileged)


def _drops_table(flaws: FlawsProfile) -> Table:
    def drop(severity: str) -> tuple[str, Callable[[FlawProfile], Estimate]]:
        return f"drop, {severity}", lambda policy: policy.drop_by_severity[severity].better

    num_cells = sum(reference.num_tasks > 0 for reference in flaws.references if reference.severity != NO_SEVERITY)
    return Table.of(
        say("profile_drops_table"),
        flaws.policies,
        [
            ("policy", _policy_name),
            ("lowest under", worst_text),
            ("success there", "worst_success"),
            ("sound plan", "optimal"),
            *map(drop, flaws.severities),
            ("drop, all", "drop.better"),
            ("recovered", "recovered.better"),
        ],
        text_columns=2,
        is_stacked=True,
        notes=(say("profile_drop"), say("profile_lowest", cells=num_cells)),
    )


def _flaws_table(flaws: FlawsProfile) -> Table:
    def success(policy: FlawProfile) -> tuple[Cell, Callable[[FlawReference], Estimate | None]]:
        def of_policy(reference: FlawReference) -> Estimate | None:
            cell = policy.cell(reference.flaw, reference.severity)
            return None if cell is None else cell.success

        return _policy_name(policy), of_policy

    left_out = [
        f"{plain(reference.flaw)} ({count_of(reference.left_out, 'task')})"
        for reference in flaws.references
        if reference.severity == NO_SEVERITY and reference.left_out
    ]
    notes = [say("profile_left_out", flaws=", ".join(left_out))] if left_out else []
    return Table.of(
        say("profile_flaws_table"),
        flaws.references,
        [
            ("flaw", lambda reference: plain(reference.flaw)),
            ("severity", _severity_text),
            ("tasks", "num_tasks"),
            ("obey", "obey"),
            ("deviate (V*)", "deviate"),
            *map(success, flaws.policies),
        ],
        text_columns=2,
        is_stacked=True,
        notes=[say("profile_exact_flaws"), *notes],
    )


def _flaw_details_table(policy: FlawProfile) -> Table:
    return Table.of(
        say("profile_flaw_details_table", policy=policy.who.policy),
        policy.cells,
        [
            ("flaw", lambda cell: plain(cell.reference.flaw)),
            ("severity", lambda cell: _severity_text(cell.reference)),
            ("success", "success"),
            ("luck-adjusted", "adjusted"),
            (CHANGES[0], lambda cell: _change(cell, "raw", NO_NUMBER)),
            (CHANGES[1], lambda cell: _change(cell, "adjusted", NO_NUMBER)),
            ("recovered", lambda cell: cell.recovered and cell.recovered.better),
        ],
        text_columns=2,
    )


def _runs_table(result: ProfileResult) -> Table:
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
