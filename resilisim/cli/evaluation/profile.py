"""`resilisim profile`: how policies do as tools, turns and plans get worse."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.table import Table
from rich.text import Text

from resilisim.cli.evaluation.evaluate import MODEL_OPTIONS, WORDING, asked_at_once
from resilisim.cli.options import (
    RULES,
    JsonFlag,
    LibraryOption,
    OptionGroup,
    RecordTextsOption,
    SeedsOption,
    SplitOption,
    TasksOption,
    WorkersOption,
    chosen_tasks,
    load,
    make_retriever,
    takes,
)
from resilisim.cli.output import (
    INCOMPLETE,
    QUIET_SECONDS,
    STOPPED_BY_USER,
    Progressing,
    console,
    note,
    plain,
    print_json,
)
from resilisim.envs.settings import EnvironmentSettings
from resilisim.errors import InvalidInputError, count_of
from resilisim.evaluation import ModelSettings
from resilisim.evaluation.report.profile import value_text, worst_text, write_profile_markdown, write_profile_page
from resilisim.evaluation.robustness.points import (
    AXES,
    DEFAULT_RELIABILITIES,
    DEFAULT_TURNS,
    FLAWS,
    RELIABILITY,
    TURNS,
    ProfileRun,
    check_points,
)
from resilisim.evaluation.robustness.profile_result import (
    SOUND,
    AxisProfile,
    FlawProfile,
    FlawsProfile,
    ProfiledPolicy,
    ProfileResult,
)
from resilisim.evaluation.robustness.profiling import ProfileInterrupted, plan_profile
from resilisim.evaluation.table.summary import WIDE_TERMINAL, format_interval, format_percent
from resilisim.options import OUTPUT_GROUP
from resilisim.statistics import Estimate
from resilisim.workflows.flaws import FLAW_TYPES, SEVERITIES

AXES_PANEL = "What is varied"


@takes(environment=OptionGroup(EnvironmentSettings, [*RULES[1:], *WORDING]), models=MODEL_OPTIONS)
def profile(
    *,
    policy: Annotated[
        list[str],
        typer.Option("--policy", help="As in 'resilisim evaluate'; again for more."),
    ],
    out: Annotated[
        Path,
        typer.Option(
            "--out",
            help="Folder of the profile, with a folder for each run; the same command goes on in it, and one with "
            "other points adds them.",
            rich_help_panel=OUTPUT_GROUP,
        ),
    ],
    tasks: TasksOption = "benchmark-v1",
    split: SplitOption = None,
    prompt: Annotated[
        list[str] | None,
        typer.Option(
            "--prompt",
            help="Prompts along reliability and turns; again for more. Flaws are compared with the optimal prompt.",
            show_default="optimal",
        ),
    ] = None,
    seeds: SeedsOption = 1,
    workers: WorkersOption = 1,
    axis: Annotated[
        list[str] | None,
        typer.Option(
            "--axis",
            help="reliability, turns or flaws; again for more.",
            show_default="all",
            rich_help_panel=AXES_PANEL,
        ),
    ] = None,
    reliability: Annotated[
        list[float] | None,
        typer.Option(
            "--reliability",
            help="Success probability of a tool; again for more.",
            show_default="0.5, 0.6, 0.7, 0.8, 0.9, 1",
            rich_help_panel=AXES_PANEL,
        ),
    ] = None,
    turns: Annotated[
        list[int] | None,
        typer.Option(
            "--turns",
            help="Turns of an episode; again for more.",
            show_default="4, 6, 8, 10, 12, 15",
            rich_help_panel=AXES_PANEL,
        ),
    ] = None,
    flaw: Annotated[
        list[str] | None,
        typer.Option("--flaw", help="Flaw type; again for more.", show_default="all", rich_help_panel=AXES_PANEL),
    ] = None,
    severity: Annotated[
        list[str] | None,
        typer.Option(
            "--severity",
            help="light, moderate or severe; again for more.",
            show_default="all",
            rich_help_panel=AXES_PANEL,
        ),
    ] = None,
    environment: EnvironmentSettings,
    models: ModelSettings,
    library: LibraryOption = None,
    record_texts: RecordTextsOption = None,
    markdown: Annotated[
        Path | None,
        typer.Option("--markdown", help="Markdown file for the tables.", dir_okay=False, rich_help_panel=OUTPUT_GROUP),
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Show how policies do as tools fail more often, turns run short and plans are flawed, beside the optimum."""
    for option, given, belongs in (
        ("--reliability", reliability, RELIABILITY),
        ("--turns", turns, TURNS),
        ("--flaw", flaw, FLAWS),
        ("--severity", severity, FLAWS),
    ):
        if given and belongs not in (axis or AXES):
            raise InvalidInputError(f"{option} changes nothing without the axis {belongs}: add --axis {belongs}")
    points = check_points(
        axis or AXES,
        reliability or DEFAULT_RELIABILITIES,
        turns or DEFAULT_TURNS,
        flaw or FLAW_TYPES,
        severity or SEVERITIES,
    )
    chosen = load(library)
    make_retriever(chosen, environment.embedding_model)  # refuses a model that does not exist before all else
    job = plan_profile(
        policy,
        chosen_tasks(tasks, split, chosen),
        seeds,
        points,
        out=out,
        prompts=tuple(prompt or ["optimal"]),
        standard=environment,
        library=None if library is None else chosen,
        workers=workers,
        model=asked_at_once(models),
        record_texts=record_texts,
    )
    began = time.monotonic()
    with Progressing("solving tasks in all settings", job.num_to_solve) as progress:
        references = job.solve(progress.advance)

    def tell(number: int, total: int, run: ProfileRun) -> None:
        if time.monotonic() - began >= QUIET_SECONDS:
            note(f"run {number} of {total}: {run.title}")

    try:
        result = job.play(references, tell)
    except ProfileInterrupted as interrupted:
        note(f"{interrupted}; the same command goes on")
        raise typer.Exit(STOPPED_BY_USER) from None
    path = write_profile_page(result)
    if markdown is not None:
        write_profile_markdown(result, markdown)
    if as_json:
        print_json({**result.to_mapping(), "page": str(path)})
    else:
        print_profile(result)
        console().print(plain(f"page: {path}"), soft_wrap=True)
    if not result.is_finished:
        missing = sum(run.num_planned - run.num_episodes for run in result.runs)
        reason = f", the last because {result.last_error}" if result.last_error else ""
        note(f"{count_of(missing, 'episode')} broke and no score counts them{reason}; the same command tries again")
        raise typer.Exit(INCOMPLETE)


NOTE = (
    "Percent, with 95% intervals clustered by task (of several, not of one). optimum: V*, the best that any agent can "
    "reach; after search: the same with the turns left after the fewest searches that show the tools, where a prompt "
    "does not name them; it is the ceiling under such prompts, V* under all others. required tools, retried: in their "
    "order, each until it succeeds, nothing else (no policy); obey: doing the plan in the prompt to the letter, tools "
    "that others depend on included; these are exact. recovered: the share of what obeying gives away that an agent "
    "gets back. of ceiling, drop and recovered are luck-adjusted where that is "
    "offered. standard: the setting with which the others are compared, so it is always there. * privileged: sees the "
    "state."
)
DROPS_TITLE = "what flaws cost: success and recovered in percent, drops in points"
POLICIES_AT_ONCE = 3  # in a table of flaws on narrow terminals
LONGEST_UNBROKEN = 20  # characters of a policy's name that no narrow table breaks


def print_profile(result: ProfileResult) -> None:
    """Print what a profile says."""
    shown = console()
    several = len(result.arguments["prompts"]) > 1
    for axis in result.axes:
        shown.print(_axis_table(axis, several))
    if result.flaws is not None:
        wide = shown.width >= WIDE_TERMINAL
        for table in _flaws_tables(result.flaws, wide):
            shown.print(table)
        shown.print((_drops_table if wide else _narrow_drops_table)(result.flaws))
    shown.print(Text(NOTE, style="dim"))


def _axis_table(axis: AxisProfile, several_prompts: bool) -> Table:
    heads = [value_text(axis.axis, value) + ("\nstandard" if value == axis.standard else "") for value in axis.values]
    table = _table(f"success by {axis.axis}", ["policy"], heads, _room([curve.who for curve in axis.curves]))
    table.add_column("of ceiling" if axis.searches else "of V*", justify="right", no_wrap=True)
    for curve in axis.curves:
        name = f"{curve.who.policy}\n{curve.who.prompt}" if several_prompts else curve.who.policy
        cells = [_estimate(point.success, False) for point in curve.points]
        table.add_row(_name(name, curve.who.privileged), *cells, _estimate(curve.area.better, False))
    table.add_section()
    table.add_row("optimum", *(format_percent(value) for value in axis.optimum), "")
    if axis.searches:
        table.add_row("after search", *(format_percent(value) for value in axis.after_search), "")
    table.add_row("required tools,\nretried", *(format_percent(value) for value in axis.plan_following), "")
    return table


def _flaws_tables(flaws: FlawsProfile, wide: bool) -> Iterator[Table]:
    """Yield the table of flaws: one on wide terminals, else one for every few policies, so that no number is cut."""
    at_once = len(flaws.policies) if wide else POLICIES_AT_ONCE
    for start in range(0, len(flaws.policies), at_once):
        yield _flaws_table(flaws, flaws.policies[start : start + at_once], wide)


def _flaws_table(flaws: FlawsProfile, policies: Sequence[FlawProfile], wide: bool) -> Table:
    table = _table("success under flawed plans", ["flaw", "severity"], [*(["tasks"] if wide else []), "obey", "V*"])
    for policy in policies:
        name = policy.who.policy if wide else policy.who.policy.replace("-", "-\n")
        table.add_column(_name(name, policy.who.privileged), justify="right")
    for reference in flaws.references:
        sound = reference.severity == SOUND
        name = reference.flaw.replace("_", " ")
        if not wide:
            name = f"{name}\n({count_of(reference.num_tasks, 'task')})"
        cells = [policy.cell(reference.flaw, reference.severity) for policy in policies]
        table.add_row(
            name if sound else "",
            ("sound plan" if wide else "sound") if sound else reference.severity,
            *([f"{reference.num_tasks:,}"] if wide else []),
            format_percent(reference.obey),
            format_percent(reference.deviate),
            *("–" if cell is None else _estimate(cell.success, wide) for cell in cells),
            end_section=reference.severity == flaws.severities[-1],
        )
    return table


def _drops_table(flaws: FlawsProfile) -> Table:
    heads = ["sound plan", *(f"drop, {severity}" for severity in flaws.severities), "drop, all", "recovered, %"]
    table = _table(DROPS_TITLE, ["policy"], heads, _room([policy.who for policy in flaws.policies]))
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


def _narrow_drops_table(flaws: FlawsProfile) -> Table:
    """Return what `_drops_table` does, line by line, for terminals in which its columns would be cut."""
    table = _table(DROPS_TITLE, ["policy", ""], [""], _room([policy.who for policy in flaws.policies]))
    for policy in flaws.policies:
        drops = [(f"drop, {name}", policy.drop_by_severity[name]) for name in flaws.severities if policy.worst]
        lines = [(name, drop.better) for name, drop in [*drops, ("drop, all", policy.drop)]]
        lines = [("sound plan", policy.optimal), *lines, ("recovered, %", policy.recovered.better)]
        lines.append((f"lowest, under {worst_text(policy)}", policy.worst_success))
        for number, (what, estimate) in enumerate(lines):
            name = _name(policy.who.policy, policy.who.privileged) if number == 0 else ""
            table.add_row(name, plain(what), _estimate(estimate, True), end_section=number == len(lines) - 1)
    return table


def _room(contestants: Sequence[ProfiledPolicy]) -> int:
    longest = max((len(who.policy) + 2 * who.privileged for who in contestants), default=0)
    return min(longest, LONGEST_UNBROKEN)


def _table(title: str, texts: list[str], numbers: list[str], room: int = 0) -> Table:
    table = Table(
        title=plain(title, "bold"),
        title_justify="left",
        box=box.SIMPLE_HEAD,
        header_style="bold",
        pad_edge=False,
        padding=(0, 1, 0, 0),
    )
    for name in texts:
        table.add_column(name, overflow="fold", min_width=(room or None) if name == texts[0] else None)
    for name in numbers:
        table.add_column(name, justify="right")
    return table


def _name(policy: str, privileged: bool) -> Text:
    return Text.assemble(plain(policy), (" *" if privileged else "", "bold"))


def _estimate(estimate: Estimate, on_one_line: bool) -> Text:
    value = format_percent(estimate.value)
    return Text.assemble(value, " " if on_one_line else "\n", (format_interval(estimate), "dim"))
