"""`resilisim compare`, `leaderboard` and `power`: policies on common luck, and how many episodes it takes."""

from __future__ import annotations

import math
import tempfile
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Column, Table

from resilisim.cli.options import JsonFlag
from resilisim.cli.output import console, error_console, note, plain, print_json, say, simple_table
from resilisim.errors import InvalidInputError
from resilisim.evaluation.results import evaluate
from resilisim.evaluation.table.comparing import RunComparison, compare_runs
from resilisim.evaluation.table.leaderboard import Leaderboard, Row, read_leaderboard
from resilisim.evaluation.table.summary import ceiling_note, format_interval, format_percent, overshoot_note
from resilisim.options import OUTPUT_GROUP
from resilisim.statistics import plan_sample
from resilisim.statistics.comparison import NO_EPISODE_DIFFERS, NO_LUCK, PAIRED_LUCK_ADJUSTED, Comparison, Difference
from resilisim.statistics.power import SEEDS, PowerPlan, independent_luck_episodes

PolicyAOption = Annotated[str | None, typer.Option("--policy-a", help="Policy of RUN_A.")]
PolicyBOption = Annotated[str | None, typer.Option("--policy-b", help="Policy of RUN_B.")]
PromptOption = Annotated[str | None, typer.Option("--prompt", help="Only this prompt type.")]

# What each method is called in a table, in the order in which they are shown.
METHOD_NAMES = {
    "independent": "independent samples",
    "mcnemar": "McNemar, exact",
    "paired": "paired",
    "paired_luck_adjusted": "paired, luck-adjusted",
}


def compare(
    run_a: Annotated[Path, typer.Argument(metavar="RUN_A", help="Folder of a run.")],
    run_b: Annotated[Path, typer.Argument(metavar="RUN_B", help="Folder of another run, or the same.")],
    policy_a: PolicyAOption = None,
    policy_b: PolicyBOption = None,
    prompt: PromptOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Compare two runs on their common episodes: the difference in success with interval and p-value, by each method.

    Runs of one policy each are compared whatever their names are, otherwise policies of one name with each other.
    """
    with error_console().status("reading episodes"):
        result = compare_runs(run_a, run_b, policy_a, policy_b, prompt)
    if as_json:
        print_json({"run_a": str(run_a), "run_b": str(run_b), **result.to_mapping()})
        return
    say(_headline(result))
    several = len(result.comparisons) > 1
    corrected = [result.holm_p_values(method) for method in METHOD_NAMES]
    for number, comparison in enumerate(result.comparisons):
        console().print(comparison_table(comparison, [row[number] for row in corrected] if several else None))
        if not math.isnan(comparison.optimum.value):  # an agent that tries again has no ceiling
            say(_ceilings(comparison), style="dim")
        if several and comparison.best.note is not None:
            say(_sentence(comparison.best.note), style="dim")
    if several:
        console().print(comparison_table(result.pooled, None, "all together"))
    say(*_advice(result))
    for name, missing in zip((run_a, run_b), result.num_unfinished, strict=True):
        if missing and not (result.same_run and name is run_b):
            note(f"{name} is not finished: {missing:,} of its episodes are missing")


def points(value: float, digits: int = 1) -> str:
    """Return a difference of shares in points with its sign ("+3.1"), a dash for NaN; never a negative zero."""
    text = format_percent(value, digits)
    return f"+{text}" if value > 0.0 and float(text) else text


def p_text(value: float) -> str:
    """Return a p-value as it is shown ("0.031", "<0.001"), or a dash for NaN."""
    if math.isnan(value):
        return "–"
    return "<0.001" if value < 0.001 else f"{value:.3f}"


def interval_text(difference: Difference, digits: int) -> str:
    """Return an interval in points, or a dash where there is none."""
    low, high = difference.interval
    return "–" if math.isnan(low) else f"[{points(low, digits)}, {points(high, digits)}]"


def digits_of(difference: Difference) -> int:
    """Return how many digits of a difference in points mean something: two where its interval is below 2 points."""
    low, high = difference.interval
    return 2 if high - low < 0.02 else 1


def _headline(result: RunComparison) -> str:
    pooled = result.pooled
    without = " and ".join(f"{count:,} of {side}" for count, side in zip(pooled.num_without_partner, "AB", strict=True))
    partners = "" if pooled.num_without_partner == (0, 0) else f"; {without} have no partner and do not count"
    noun = "pair" if pooled.episodes == 1 else "pairs"
    tasks = "task" if pooled.pairs.num_tasks == 1 else "tasks"
    return (
        f"{pooled.episodes:,} {noun} of episodes on common luck, {pooled.pairs.num_tasks:,} {tasks}{partners}. "
        "Differences A - B in points, with 95% intervals."
    )


def comparison_table(comparison: Comparison, corrected: list[float] | None, title: str | None = None) -> Table:
    """Return what each method says about a difference, the one to believe in bold.

    Args:
        comparison: Two policies under one prompt, or all of them together.
        corrected: p-value of each method corrected for the number of comparisons; None leaves them out.
        title: In place of the names of the policies.
    """
    a, b = comparison.success_a, comparison.success_b
    heading = title or f"{comparison.label_a} - {comparison.label_b}, prompt {comparison.prompt}"
    numbers = ("difference", "95% interval", "p", *(["p, Holm"] if corrected else []), "pairs")
    table = simple_table(
        f"{heading}: {format_percent(a.value)} % - {format_percent(b.value)} %",
        Column("method"),
        *(Column(name, justify="right", no_wrap=True) for name in numbers),
        padding=(0, 1),
    )
    digits = digits_of(comparison.best)
    for place, (method, shown) in enumerate(METHOD_NAMES.items()):
        found = comparison.differences[method]
        style = "bold" if method == comparison.best.method else ""
        cells = [shown, points(found.difference, digits), interval_text(found, digits), p_text(found.p_value)]
        cells += [p_text(corrected[place])] if corrected else []
        table.add_row(*(plain(cell, style) for cell in [*cells, f"{found.episodes:,}"]))
    return table


def _ceilings(comparison: Comparison) -> str:
    """Say what both could reach with what they were told, and V* where that is another number."""
    best = format_percent(comparison.optimum.value)
    told = dict.fromkeys(format_percent(each.value) for each in (comparison.ceiling_a, comparison.ceiling_b))
    if list(told) == [best]:
        return f"The best that any agent can reach (V*): {best} %."
    searched = f"V*: {best} %, but tools had to be found"
    return f"The best that can be reached with what the prompts tell: {' % and '.join(told)} % ({searched})."


def _advice(result: RunComparison) -> list[str]:
    """Say which method to believe and why, what it saved, and what else there is to know."""
    pooled = result.pooled
    best = pooled.best
    adjusted = pooled.differences["paired_luck_adjusted"]
    if best.method == "paired":
        reason = f"there is no luck-adjusted one: {adjusted.note}"
    else:
        reason = (
            "it estimates the same difference as plain pairing, and the noise that luck explains is taken out of it"
        )
    lines = [f"Believe: {METHOD_NAMES[best.method]}; {reason}."]
    if best.note is not None:
        lines.append(_sentence(best.note))
    if pooled.episodes > pooled.pairs.num_tasks:
        lines.append(
            "McNemar takes episodes as independent, and several of one task are not: its interval and p claim too much."
        )
    needed = independent_luck_episodes(pooled)
    if needed == needed and needed > pooled.episodes:
        lines.append(
            f"On the same tasks but with independent luck, about {_rounded(needed):,} pairs would have been needed for "
            f"an interval as short (an estimate from these {pooled.episodes:,})."
        )
    if len(result.comparisons) > 1:
        lines.append(f"p, Holm: corrected for {len(result.comparisons)} comparisons.")
    if result.tasks_differ:
        lines.append("The tasks of both have the same ids and are not the same to the letter (texts, inputs or order).")
    for name, sees in zip((pooled.label_a, pooled.label_b), pooled.privileged, strict=True):
        if sees:
            lines.append(f"{name} is privileged: it sees the state, or holds a policy that does.")
    return lines


def _sentence(note: str) -> str:
    return f"{note[0].upper()}{note[1:]}."


def _rounded(number: float) -> int:
    """Return a number with two digits that count."""
    digits = max(len(str(int(number))) - 2, 0)
    return int(round(number / 10**digits) * 10**digits)


COLUMNS = (
    "rank",
    "ranks",
    "policy",
    "episodes",
    "success",
    "ceiling",
    "V*",
    "of ceiling",
    "luck-adjusted",
    "to the row above",
    "p, Holm",
)
WIDE = 130  # characters below which intervals go to a second line
NARROW = 100  # and below which these columns are left out
LEFT_OUT = ("rank", "episodes", "ceiling", "V*", "of ceiling")


def leaderboard(
    directories: Annotated[list[Path], typer.Argument(metavar="DIR...", help="Folders of runs.")],
    prompt: Annotated[str | None, typer.Option("--prompt", help="Only this prompt type.")] = None,
    markdown: Annotated[
        bool, typer.Option("--markdown", help="Print Markdown instead of a table.", rich_help_panel=OUTPUT_GROUP)
    ] = False,
    as_json: JsonFlag = False,
) -> None:
    """Rank the policies of runs by luck-adjusted success, and say which ranks the noise leaves open.

    Only runs of one benchmark version, law, end rules, salt and library stand in one table.
    """
    with error_console().status("reading episodes"):
        board = read_leaderboard(directories, prompt)
    if as_json:
        print_json(board.to_mapping())
        return
    if markdown:
        typer.echo(_markdown(board), nl=False)
        return
    for name, rows in board.sections.items():
        console().print(_section_table(name, rows))
    say(*_board_notes(board), style="dim")


def _cells(row: Row, separator: str = " ") -> list[str]:
    summary, against = row.entry.summary, row.behind_above
    first, last = row.rank_range
    above = "–"
    if against is not None:
        digits = digits_of(against)
        above = f"{points(against.difference, digits)}{separator}{interval_text(against, digits)}"
    return [
        str(row.rank),
        str(first) if first == last else f"{first}-{last}",
        row.label + " *" * summary.privileged + " †" * summary.tries_again,
        f"{summary.num_episodes:,}",
        f"{format_percent(summary.success.value)}{separator}{format_interval(summary.success)}",
        format_percent(summary.ceiling.value),
        format_percent(summary.optimum.value),
        format_percent(summary.adjusted_share.value),
        f"{format_percent(summary.luck_adjusted.value)}{separator}{format_interval(summary.luck_adjusted)}",
        above,
        p_text(row.p_value),
    ]


def _section_table(name: str, rows: tuple[Row, ...]) -> Table:
    width = console().width
    is_wide = width >= WIDE
    shown = [column for column in COLUMNS if width >= NARROW or column not in LEFT_OUT]
    table = simple_table(f"prompt {name}")
    for column in shown:
        heading = column if is_wide else column.replace(" row ", " row\n").replace("luck-", "luck-\n")
        if column == "policy":
            table.add_column(heading, overflow="fold", min_width=18)
        else:
            table.add_column(heading, justify="right", overflow="fold")
    for row in rows:
        cells = dict(zip(COLUMNS, _cells(row, " " if is_wide else "\n"), strict=True))
        table.add_row(*(plain(cells[column]) for column in shown))
    return table


def _markdown(board: Leaderboard) -> str:
    lines: list[str] = []
    for name, rows in board.sections.items():
        lines += [f"### Prompt {_escaped(name)}", "", "| " + " | ".join(COLUMNS) + " |"]
        lines.append("|" + "|".join(" --- " if column == "policy" else " ---: " for column in COLUMNS) + "|")
        lines += ["| " + " | ".join(_escaped(cell) for cell in _cells(row)) + " |" for row in rows]
        lines.append("")
    return "\n".join([*lines, *(f"{_escaped(line)}\n" for line in _board_notes(board))])


def _escaped(text: str) -> str:
    """Return text that Markdown shows as it stands."""
    for mark in "\\`*_|<>[]":
        text = text.replace(mark, f"\\{mark}")
    return text


def _board_notes(board: Leaderboard) -> list[str]:
    summaries = [row.entry.summary for rows in board.sections.values() for row in rows]
    differences = [row.behind_above for rows in board.sections.values() for row in rows if row.behind_above is not None]
    legend = (
        "Percent and points, with 95% intervals clustered by task, sorted by luck-adjusted success (raw where there is "
        'none); "of ceiling" is luck-adjusted, too. ranks: the places that the tests leave possible. Differences to '
        "the row above are paired on common luck and luck-adjusted; p is corrected for all pairs of rows under one "
        "prompt (Holm)."
    )
    notes = [legend, ceiling_note(summaries, shown=True)]
    if any(points(found.difference, digits_of(found)).startswith("+") for found in differences):
        notes.append(
            "A row can be ahead of the one above it by the difference: scores take luck off each row alone, "
            "differences off both together, on the episodes that both have. Believe the difference."
        )
    if any(found.note == NO_EPISODE_DIFFERS for found in differences):
        notes.append(
            "Where no episode of two rows came out differently, the interval of their difference is that of "
            "differences too rare to turn up in that many tasks."
        )
    overshoot = overshoot_note(summaries)
    if overshoot is not None:
        notes.append(overshoot)
    if any(summary.privileged for summary in summaries):
        notes.append("* privileged: sees the state.")
    if any(summary.tries_again for summary in summaries):
        notes.append("† tries again in fresh episodes: no ceiling, no luck adjustment, compared by plain pairing.")
    if not board.same_episodes:
        notes.append(
            "Rows are about different episodes: their scores are not about the same tasks, their differences are about "
            "the episodes that both have."
        )
    for run, missing in board.num_unfinished.items():
        notes.append(f"{run} is not finished: {missing:,} of its episodes are missing.")
    return notes


PILOT_POLICIES = ("plan-follower", "repairing-follower")
PILOT_PROMPT = "optimal"
PILOT_TASKS, PILOT_SEEDS = 150, 4
SMALL_DIFFERENCE = 0.5  # points below which somebody may have meant a share

_WAYS = {**METHOD_NAMES, "same_tasks_independent_luck": "same tasks, independent luck"}


def power(
    run_a: Annotated[
        Path | None, typer.Argument(metavar="RUN_A", help="Folder of a pilot run; without one a small pilot is played.")
    ] = None,
    run_b: Annotated[
        Path | None,
        typer.Argument(metavar="RUN_B", help="Folder of the other policy's run, if RUN_A does not hold it."),
    ] = None,
    policy_a: PolicyAOption = None,
    policy_b: PolicyBOption = None,
    prompt: Annotated[str | None, typer.Option("--prompt", help="Prompt type of the pilot.")] = None,
    difference: Annotated[
        float, typer.Option("--difference", help="Points of success that should be seen, between 0 and 100.")
    ] = 3.0,
    chance: Annotated[float, typer.Option("--power", help="Chance to see them, between 0 and 1.")] = 0.8,
    level: Annotated[
        float, typer.Option("--level", help="Chance to see a difference where there is none, between 0 and 1.")
    ] = 0.05,
    as_json: JsonFlag = False,
) -> None:
    """Plan how many episodes a comparison needs, under each method, as tasks x seeds.

    More tasks remove all noise, more seeds only the luck within a task; a pilot with several seeds tells them apart.
    """
    if not 0.0 < difference < 100.0:
        raise InvalidInputError(f"--difference is {difference:g}: expected points above 0 and below 100")
    if difference < SMALL_DIFFERENCE:
        note(f"--difference is in points: {difference:g} points; did you mean {100.0 * difference:g}?")
    played = run_a is None
    if run_a is None:
        if policy_a or policy_b or prompt:
            raise InvalidInputError("--policy-a, --policy-b and --prompt choose from a pilot run: expected RUN_A")
        comparison = _play_pilot()
    else:
        comparison = _read_pilot(run_a, run_b, policy_a, policy_b, prompt)
    plan = plan_sample(comparison, difference / 100.0, chance, level)
    if as_json:
        print_json({"pilot_was_played": played, **plan.to_mapping()})
        return
    console().print(_plan_table(plan))
    say(*_plan_notes(plan, played))


def _play_pilot() -> Comparison:
    """Play two policies that come with the package, in a folder that vanishes."""
    note(
        f"no pilot given: playing {' and '.join(PILOT_POLICIES)} on {PILOT_TASKS} tasks, {PILOT_SEEDS} seeds, "
        f"prompt {PILOT_PROMPT}"
    )
    with tempfile.TemporaryDirectory(prefix="resilisim-pilot-") as folder:
        evaluate(PILOT_POLICIES, PILOT_TASKS, (PILOT_PROMPT,), PILOT_SEEDS, out=folder)
        return compare_runs(folder, folder).pooled


def _read_pilot(
    run_a: Path, run_b: Path | None, policy_a: str | None, policy_b: str | None, prompt: str | None
) -> Comparison:
    with error_console().status("reading episodes"):
        result = compare_runs(run_a, run_b or run_a, policy_a, policy_b, prompt)
    if len(result.comparisons) > 1:
        found = ", ".join(f"{each.label_a} - {each.label_b} under {each.prompt}" for each in result.comparisons[:4])
        raise InvalidInputError(
            f"the pilot holds {len(result.comparisons)} comparisons ({found}): "
            "say which with --policy-a, --policy-b and --prompt"
        )
    return result.comparisons[0]


def _plan_table(plan: PowerPlan) -> Table:
    pilot = plan.pilot
    title = (
        f"Episodes of each policy for {100.0 * plan.difference:g} points, power {plan.power:g}, level {plan.level:g}; "
        f"pilot: {pilot.label_a} - {pilot.label_b}, prompt {pilot.prompt}"
    )
    separator, shown = (" ", SEEDS) if console().width >= WIDE else ("\n", SEEDS[::2])
    heads = [f"{count} seed{'' if count == 1 else 's'}{separator}a task" for count in shown]
    columns = [Column(head, justify="right", no_wrap=True) for head in heads]
    table = simple_table(title, Column("method", overflow="fold", min_width=21), *columns)
    for method in plan.parts:
        sizes = (_size_text(plan, method, count, separator) for count in shown)
        table.add_row(plain(_WAYS[method]), *(plain(size) for size in sizes))
    return table


def _size_text(plan: PowerPlan, method: str, num_seeds: int, separator: str) -> str:
    size = plan.size(method, num_seeds)
    if size.episodes is None:
        return "–"
    interval = "" if size.low is None else f"{separator}[{size.low:,}, {size.high:,}]"
    return f"{size.episodes:,}{interval}"


def _plan_notes(plan: PowerPlan, played: bool) -> list[str]:
    pilot = plan.pilot
    origin = (
        f"From a pilot of {pilot.episodes:,} pairs on {pilot.pairs.num_tasks:,} tasks; in brackets what its own noise "
        "leaves open (95%). Tasks are episodes divided by seeds."
    )
    lines = [origin]
    if any(math.isnan(part.between) for part in plan.parts.values()):
        lines.append(
            "With one episode of each task the pilot cannot tell tasks from luck: only one seed can be planned."
        )
    if any(part.total == 0.0 for part in plan.parts.values()):
        lines.append("–: nothing varied in the pilot, so it cannot say how many are needed.")
    if PAIRED_LUCK_ADJUSTED not in plan.parts:
        lines.append(f"No luck-adjusted row: {NO_LUCK}.")
    if plan.note is not None:
        lines.append(f"{plan.note[0].upper()}{plan.note[1:]}.")
    if played:
        lines.append(
            "Your agents may vary more: play a few hundred episodes of them, then resilisim power RUN_A RUN_B."
        )
    return lines
