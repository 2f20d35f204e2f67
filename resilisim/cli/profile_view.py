"""A robustness profile in the terminal: one table for each axis, one for the flaws, and the few numbers that sum up."""

from __future__ import annotations

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from resilisim.cli.output import console, plain
from resilisim.evaluation.report.profile.tables import value_text, worst_text
from resilisim.evaluation.robustness.results import SOUND, AxisProfile, FlawsProfile, ProfileResult
from resilisim.evaluation.statistics import Estimate
from resilisim.evaluation.summary import WIDE_TERMINAL, format_interval, format_percent

NOTE = (
    "Percent, with 95% intervals clustered by task. optimum: V*, the best that any agent can reach; plan following: "
    "the required tools in order, each until it succeeds; obey: doing the flawed plan to the letter; these are exact. "
    "of V*, drop and recovered are luck-adjusted where that is offered. * privileged: sees the state."
)


def print_profile(result: ProfileResult) -> None:
    """Print what a profile says."""
    shown = console()
    several = len(result.arguments["prompts"]) > 1
    for axis in result.axes:
        shown.print(_axis_table(axis, several))
    if result.flaws is not None:
        shown.print(_flaws_table(result.flaws, shown))
        shown.print(_drops_table(result.flaws))
    shown.print(Text(NOTE, style="dim"))


def _axis_table(axis: AxisProfile, several_prompts: bool) -> Table:
    table = _table(f"success by {axis.axis}", ["policy"], [value_text(axis.axis, value) for value in axis.values])
    table.add_column("of V*", justify="right", no_wrap=True)
    for curve in axis.curves:
        name = f"{curve.who.policy}\n{curve.who.prompt}" if several_prompts else curve.who.policy
        cells = [_estimate(point.success, False) for point in curve.points]
        table.add_row(_name(name, curve.who.privileged), *cells, _estimate(curve.area.better, False))
    table.add_section()
    table.add_row("optimum", *(format_percent(value) for value in axis.optimum), "")
    table.add_row("plan following", *(format_percent(value) for value in axis.plan_following), "")
    return table


def _flaws_table(flaws: FlawsProfile, shown: Console) -> Table:
    table = _table("success under flawed plans", ["flaw", "severity"], ["tasks", "obey", "V*"])
    for policy in flaws.policies:
        table.add_column(_name(policy.who.policy, policy.who.privileged), justify="right")
    wide = shown.width >= WIDE_TERMINAL
    for reference in flaws.references:
        sound = reference.severity == SOUND
        cells = [policy.cell(reference.flaw, reference.severity) for policy in flaws.policies]
        table.add_row(
            reference.flaw.replace("_", " ") if sound else "",
            "sound plan" if sound else reference.severity,
            f"{reference.num_tasks:,}",
            format_percent(reference.obey),
            format_percent(reference.deviate),
            *("–" if cell is None else _estimate(cell.success, wide) for cell in cells),
            end_section=reference.severity == flaws.severities[-1],
        )
    return table


def _drops_table(flaws: FlawsProfile) -> Table:
    heads = ["sound plan", *(f"drop, {severity}" for severity in flaws.severities), "drop, all", "recovered"]
    table = _table("what flaws cost, in points", ["policy"], heads)
    table.add_column("lowest under")
    table.add_column("success there", justify="right")
    for policy in flaws.policies:
        drops = [policy.drop_by_severity[severity] for severity in flaws.severities if policy.worst]
        table.add_row(
            _name(policy.who.policy, policy.who.privileged),
            _estimate(policy.optimal, False),
            *(_estimate(drop.better, False) for drop in [*drops, policy.drop, policy.recovered]),
            worst_text(policy),
            _estimate(policy.worst_success, False),
        )
    return table


def _table(title: str, texts: list[str], numbers: list[str]) -> Table:
    table = Table(
        title=plain(title, "bold"),
        title_justify="left",
        box=box.SIMPLE_HEAD,
        header_style="bold",
        pad_edge=False,
        padding=(0, 1, 0, 0),
    )
    for name in texts:
        table.add_column(name, overflow="fold")
    for name in numbers:
        table.add_column(name, justify="right")
    return table


def _name(policy: str, privileged: bool) -> Text:
    return Text.assemble(plain(policy), (" *" if privileged else "", "bold"))


def _estimate(estimate: Estimate, on_one_line: bool) -> Text:
    value = format_percent(estimate.value)
    return Text.assemble(value, " " if on_one_line else "\n", (format_interval(estimate), "dim"))
