"""The sections of a robustness profile's page: each with its charts, its table, and the details folded away."""

from __future__ import annotations

from resilisim.errors import count_of
from resilisim.evaluation.report.cells import PRIVILEGED_NOTE, interval_text, percent, plain
from resilisim.evaluation.report.content import Block, Fold, Paragraph, Section
from resilisim.evaluation.report.drawing import series_style
from resilisim.evaluation.report.markup import Markup
from resilisim.evaluation.report.profile.curves import (
    Level,
    Series,
    curve_panel,
    dot_symbol,
    group_panel,
    key,
    line_symbol,
    panels,
    raw_symbol,
)
from resilisim.evaluation.report.profile.tables import (
    areas_table,
    axis_details_table,
    axis_table,
    drops_table,
    flaw_details_table,
    flaws_table,
    value_text,
)
from resilisim.evaluation.report.profile.texts import (
    AFTER_SEARCH,
    AXIS_TEXTS,
    AXIS_TITLES,
    FLAWS_TEXT,
    FLAWS_TITLE,
    REQUIRED_RETRIED,
)
from resilisim.evaluation.robustness.results import SOUND, AxisProfile, Curve, FlawsProfile, ProfileResult


def summary_section(result: ProfileResult) -> Section:
    """Return the few numbers that sum up the axes and the flaws."""
    blocks: list[Block] = []
    if result.axes:
        blocks.append(areas_table(result))
    if result.flaws is not None:
        blocks.append(drops_table(result.flaws))
    if any(curve.who.privileged for axis in result.axes for curve in axis.curves):
        blocks.append(Paragraph(PRIVILEGED_NOTE, "note"))
    return Section("summary", "In short", blocks)


def axis_section(axis: AxisProfile, result: ProfileResult) -> Section:
    """Return a policy's success along an axis: a small chart each, the table, every point in detail."""
    several = len(result.arguments["prompts"]) > 1
    levels = [
        Level(axis.optimum, "optimum", "optimum V*"),
        *([Level(axis.after_search, "after-search", f"{AFTER_SEARCH}, where tools must be found")] * axis.searches),
        Level(axis.plan_following, "required-retried", f"{REQUIRED_RETRIED}, in their order"),
    ]
    series = [_series(curve, number, several) for number, curve in enumerate(axis.curves)]

    def label(value: float) -> str:
        return value_text(axis.axis, value)

    charts = [
        curve_panel(
            one.name,
            axis.values,
            axis.axis,
            label,
            levels,
            [other for other in series if other is not one],
            one,
            axis.standard,
        )
        for one in series
    ]
    entries = [
        (line_symbol("optimum"), "optimum V*"),
        *([(line_symbol("after-search"), f"{AFTER_SEARCH}, where tools must be found")] * axis.searches),
        (line_symbol("required-retried"), f"{REQUIRED_RETRIED}, in their order"),
    ]
    entries += [
        (dot_symbol(series_style(0)), "the policy, luck-adjusted, with its 95% interval"),
        (raw_symbol(), "raw success"),
        (line_symbol("other"), "the other policies"),
    ]
    details = Fold("Every point with its change against the standard setting", [axis_details_table(axis, several)])
    return Section(
        axis.axis,
        AXIS_TITLES[axis.axis],
        [AXIS_TEXTS[axis.axis], key(entries), panels(charts), axis_table(axis, several), details],
    )


def flaws_section(flaws: FlawsProfile) -> Section:
    """Return what the flaws do: a small chart for each flaw, the table, every policy in detail."""
    carried = [flaw for flaw in flaws.flaws if flaws.reference(flaw, SOUND).num_tasks]
    entries = [(line_symbol("optimum"), "deviate: V*"), (line_symbol("obey"), "obey")]
    for number, policy in enumerate(flaws.policies):
        name = f"{policy.who.policy} *" if policy.who.privileged else policy.who.policy
        entries.append((dot_symbol(series_style(number), policy.who.privileged), name))
    entries.append((raw_symbol(), "raw success"))
    return Section(
        "flaws",
        FLAWS_TITLE,
        [
            FLAWS_TEXT,
            key(entries),
            panels([_flaw_chart(flaws, flaw) for flaw in carried]),
            flaws_table(flaws),
            Fold("Every policy in detail", [flaw_details_table(policy) for policy in flaws.policies]),
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
        again = policy.who.tries_again
        series.append(
            Series(
                policy.who.policy,
                series_style(number),
                raw if again else adjusted,
                () if again else raw,
                policy.who.privileged,
            )
        )
    levels = [
        Level([reference.deviate for reference in references], "optimum", "deviate (V*)"),
        Level([reference.obey for reference in references], "obey", "obey"),
    ]
    heading = f"{plain(flaw)}, {count_of(references[0].num_tasks, 'task')}"
    return group_panel(heading, shown, levels, series, _described(shown, series))


def _series(curve: Curve, number: int, several_prompts: bool) -> Series:
    who = curve.who
    name = f"{who.policy}, {plain(who.prompt)}" if several_prompts else who.policy
    raw = [point.success for point in curve.points]
    adjusted = [point.adjusted for point in curve.points]
    return Series(
        f"{name} *" if who.privileged else name,
        series_style(number),
        raw if who.tries_again else adjusted,
        () if who.tries_again else raw,
        who.privileged,
    )


def _described(groups: list[str], series: list[Series]) -> str:
    parts = []
    for one in series:
        shares = ", ".join(
            f"{group} {percent(estimate.value)}% {interval_text(estimate)}"
            for group, estimate in zip(groups, one.estimates, strict=True)
        )
        parts.append(f"{one.name}: {shares}")
    return "; ".join(parts)
