"""`resilisim runs compare`, `leaderboard` and `power`: policies on common draws, and how many episodes it takes."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer

from resilisim.cli import options, output
from resilisim.errors import InvalidInputError, count_of
from resilisim.evaluation.results import evaluate
from resilisim.evaluation.table.agents import mixture_note
from resilisim.evaluation.table.comparing import RunComparison, compare_runs
from resilisim.evaluation.table.leaderboard import Leaderboard, Row, read_leaderboard
from resilisim.evaluation.table.summary import adjustment_notes, ceiling_note, overshoot_note
from resilisim.evaluation.table.verdict import comparison_sentence
from resilisim.statistics.comparison import NO_EPISODE_DIFFERS, NO_LUCK, PAIRED_LUCK_ADJUSTED, Comparison, Difference
from resilisim.statistics.power import SEEDS, PowerPlan, independent_luck_episodes, plan_sample
from resilisim.tables.markdown import escape_markdown, markdown_lines
from resilisim.tables.numbers import NOTHING, p_value, percent, signed_interval, signed_points
from resilisim.tables.table import Cell, Column, Table

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
    as_json: options.JsonFlag = False,
) -> None:
    """Compare two runs on their common episodes: the difference in success with interval and p-value, by each method.

    Runs of one policy each are compared whatever their names are, otherwise policies of one name with each other.
    """
    with output.error_console().status("reading episodes"):
        result = compare_runs(run_a, run_b, policy_a, policy_b, prompt)
    if as_json:
        output.print_json({"run_a": str(run_a), "run_b": str(run_b), **result.to_mapping()})
        return
    output.say(_headline(result))
    several = len(result.comparisons) > 1
    corrected = {method: result.holm_p_values(method) for method in METHOD_NAMES}
    for number, comparison in enumerate(result.comparisons):
        p_values = {method: values[number] for method, values in corrected.items()}
        output.console().print(comparison_table(comparison, p_values if several else None))
        if not math.isnan(comparison.optimum.value):  # an agent that tries again has no ceiling
            output.say(_ceilings(comparison), style="dim")
        if several and comparison.best.note is not None:
            output.say(_sentence(comparison.best.note), style="dim")
    if several:
        output.console().print(comparison_table(result.pooled, title="all together"))
    output.say(*_advice(result), f"{comparison_sentence(result.pooled)}.")
    for name, missing in zip((run_a, run_b), result.num_unfinished, strict=True):
        if missing and not (result.same_run and name is run_b):
            output.note(f"{name} is not finished: {missing:,} of its episodes are missing")
    for name, lost in zip((run_a, run_b), result.num_counted_as_lost, strict=True):
        if lost and not (result.same_run and name is run_b):
            output.note(f"{name}: {counted_as_lost(lost)}")


def counted_as_lost(number: int) -> str:
    """Say of how many episodes that broke, nobody can tell why, the worst case was taken."""
    broke = "broke and is not finished: it counts" if number == 1 else "broke and are not finished: they count"
    return f"{count_of(number, 'episode')} {broke} as lost, since the agent may have caused that"


def _interval(difference: Difference, digits: int) -> str:
    low, high = difference.interval
    return signed_interval(low, high, digits)


def digits_of(difference: Difference) -> int:
    """Return how many digits of a difference in points mean something: two where its interval is below 2 points."""
    low, high = difference.interval
    return 2 if high - low < 0.02 else 1


def _headline(result: RunComparison) -> str:
    pooled = result.pooled
    without = " and ".join(f"{count:,} of {side}" for count, side in zip(pooled.num_without_partner, "AB", strict=True))
    partners = "" if pooled.num_without_partner == (0, 0) else f"; {without} have no counterpart and do not count"
    noun = "pair" if pooled.episodes == 1 else "pairs"
    tasks = "task" if pooled.pairs.num_tasks == 1 else "tasks"
    return (
        f"{pooled.episodes:,} {noun} of episodes on common draws, {pooled.pairs.num_tasks:,} {tasks}{partners}. "
        "Differences A - B in points, with 95% intervals."
    )


def comparison_table(
    comparison: Comparison, corrected: Mapping[str, float] | None = None, title: str | None = None
) -> Table:
    """Return what each method says about a difference, the one to believe in bold.

    `corrected` are the p-values of the methods corrected for the number of comparisons; `title` stands in place of the
    names of the policies.
    """
    heading = title or f"{comparison.label_a} - {comparison.label_b}, prompt {comparison.prompt}"
    rates = " - ".join(f"{percent(rate.value)}%" for rate in (comparison.success_a, comparison.success_b))
    digits, differences = digits_of(comparison.best), comparison.differences
    columns: list[Column[Difference]] = [
        ("method", lambda row: METHOD_NAMES[row.method]),
        ("difference", lambda row: signed_points(row.difference, digits)),
        ("95% interval", lambda row: _interval(row, digits) or NOTHING),
        ("p", lambda row: p_value(row.p_value)),
        ("pairs", "episodes"),
    ]
    if corrected is not None:
        columns.insert(4, ("p, Holm", lambda row: p_value(corrected[row.method])))
    rows = [differences[method] for method in METHOD_NAMES]
    return Table.of(f"{heading}: {rates}", rows, columns, strong_row=list(METHOD_NAMES).index(comparison.best.method))


def _ceilings(comparison: Comparison) -> str:
    """Say what both could reach with what they were told, and V* where that is another number."""
    best = percent(comparison.optimum.value)
    texts = dict.fromkeys(percent(each.value) for each in (comparison.ceiling_a, comparison.ceiling_b))
    if list(texts) == [best]:
        return f"The best that any agent can reach (V*): {best}%."
    searched = f"V*: {best}%, but tools had to be found"
    return f"The best that can be reached with what the prompts tell: {'% and '.join(texts)}% ({searched})."


def _advice(result: RunComparison) -> list[str]:
    """Say which method to believe and why, what it saved, and what else there is to know."""
    pooled = result.pooled
    best = pooled.best
    adjusted = pooled.differences["paired_luck_adjusted"]
    if best.method == "paired":
        reason = f"there is no luck-adjusted one: {adjusted.note}"
    else:
        reason = "it estimates the same difference as plain pairing, without the noise that luck explains"
    lines = [f"Rely on: {METHOD_NAMES[best.method]}; {reason}."]
    if best.note is not None:
        lines.append(_sentence(best.note))
    if pooled.episodes > pooled.pairs.num_tasks:
        lines.append(
            "McNemar treats episodes as independent, which several of one task are not: its interval and p are too "
            "optimistic."
        )
    needed = independent_luck_episodes(pooled)
    if needed == needed and needed > pooled.episodes:
        lines.append(
            f"On the same tasks but with independent draws, about {_rounded(needed):,} pairs would be needed for "
            f"an interval as short (an estimate from these {pooled.episodes:,})."
        )
    if len(result.comparisons) > 1:
        lines.append(f"p, Holm: corrected for {len(result.comparisons)} comparisons.")
    if result.sampled_differently is not None:
        lines.append(result.sampled_differently)
    if result.tasks_differ:
        lines.append("The tasks of both runs have the same ids, but differ in their texts, inputs or order.")
    for name, sees in zip((pooled.label_a, pooled.label_b), pooled.privileged, strict=True):
        if sees:
            lines.append(f"{name} is privileged: it sees the state, or has a policy that does.")
    return lines


def _sentence(note: str) -> str:
    return f"{note[0].upper()}{note[1:]}."


def _rounded(number: float) -> int:
    """Return a number with two digits that count."""
    digits = max(len(str(int(number))) - 2, 0)
    return int(round(number / 10**digits) * 10**digits)


def _ranks(row: Row) -> str:
    first, last = row.rank_range
    return str(first) if first == last else f"{first}-{last}"


def _behind_above(row: Row) -> Cell:
    difference = row.behind_above
    if difference is None:
        return Cell(NOTHING)
    digits = digits_of(difference)
    return Cell(signed_points(difference.difference, digits), detail=_interval(difference, digits))


def _label(row: Row) -> Cell:
    summary = row.entry.summary
    return Cell(row.label, mark=" ".join(["*"] * summary.privileged + ["†"] * summary.tries_again))


LEADERBOARD: Sequence[Column[Row]] = (
    ("rank", "rank"),
    ("ranks", _ranks),
    ("policy", _label),
    ("episodes", "entry.summary.num_episodes"),
    ("success", "entry.summary.success"),
    ("reference", "entry.summary.ceiling.value"),
    ("V*", "entry.summary.optimum.value"),
    ("of reference", "entry.summary.adjusted_share.value"),
    ("luck-adjusted", "entry.summary.luck_adjusted"),
    ("to the row above", _behind_above),
    ("p, Holm", lambda row: p_value(row.p_value)),
)
OPTIONAL = ("rank", "V*", "reference", "episodes", "of reference")  # where a terminal is narrow


def leaderboard(
    directories: Annotated[list[Path], typer.Argument(metavar="DIR...", help="Folders of runs.")],
    prompt: Annotated[str | None, typer.Option(help="Only this prompt type.")] = None,
    markdown: Annotated[bool, options.output_option("--markdown", help="Print Markdown instead of a table.")] = False,
    as_json: options.JsonFlag = False,
) -> None:
    """Rank the policies of runs by luck-adjusted success, and say which ranks the noise leaves open.

    Only runs of one benchmark version, law, end rules, salt and library stand in one table.
    """
    with output.error_console().status("reading episodes"):
        board = read_leaderboard(directories, prompt)
    if as_json:
        output.print_json(board.to_mapping())
        return
    for name, rows in board.sections.items():
        section = Table.of(
            "" if markdown else f"prompt {name}", rows, LEADERBOARD, text_columns=(2,), optional=OPTIONAL
        )
        if markdown:
            typer.echo("\n".join([f"### Prompt {escape_markdown(name)}", "", *markdown_lines(section), ""]))
        else:
            output.console().print(section)
    if markdown:
        typer.echo("\n".join(f"{escape_markdown(line)}\n" for line in _board_notes(board)), nl=False)
    else:
        output.say(*_board_notes(board), style="dim")


def _board_notes(board: Leaderboard) -> list[str]:
    summaries = [row.entry.summary for rows in board.sections.values() for row in rows]
    differences = [row.behind_above for rows in board.sections.values() for row in rows if row.behind_above is not None]
    legend = (
        "Percent and points, with 95% intervals clustered by task, sorted by luck-adjusted success (raw where there is "
        'none); "of reference" is luck-adjusted, too. ranks: the places that the tests leave possible. Differences to '
        "the row above are paired on common draws and luck-adjusted; p is corrected for all pairs of rows under one "
        "prompt (Holm)."
    )
    notes = [legend, ceiling_note(summaries, shown=True), *adjustment_notes(summaries)]
    if any(signed_points(difference.difference, digits_of(difference)).startswith("+") for difference in differences):
        notes.append(
            "A row can be ahead of the one above it by the difference: scores have the luck of their own row "
            "removed, differences that of both together, on the episodes that both have. Trust the difference."
        )
    if any(difference.note == NO_EPISODE_DIFFERS for difference in differences):
        notes.append(
            "Where no episode of two rows came out differently, the interval of their difference is that of "
            "differences too rare to turn up in that many tasks."
        )
    overshoot = overshoot_note(summaries)
    if overshoot is not None:
        notes.append(overshoot)
    mixture = mixture_note({row.label: row.entry.sampling for rows in board.sections.values() for row in rows})
    if mixture is not None:
        notes.append(mixture)
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
    for row in (row for rows in board.sections.values() for row in rows if row.entry.num_counted_as_lost):
        notes_of_row = counted_as_lost(row.entry.num_counted_as_lost)
        notes.append(f"{row.label} under {row.entry.summary.prompt_type}: {notes_of_row}.")
    return notes


PILOT_POLICIES = ("plan-follower", "repairing-follower")
PILOT_PROMPT = "optimal"
PILOT_TASKS, PILOT_SEEDS = 150, 4
SMALL_DIFFERENCE = 0.5  # points below which somebody may have meant a share

_WAYS = {**METHOD_NAMES, "same_tasks_independent_luck": "same tasks, independent draws"}


def power(
    run_a: Annotated[
        Path | None,
        typer.Argument(metavar="RUN_A", help="Folder of a pilot run; without one, a small pilot is played."),
    ] = None,
    run_b: Annotated[
        Path | None,
        typer.Argument(metavar="RUN_B", help="Folder of the other policy's run, if RUN_A does not hold it."),
    ] = None,
    policy_a: PolicyAOption = None,
    policy_b: PolicyBOption = None,
    prompt: Annotated[str | None, typer.Option(help="Prompt type of the pilot.")] = None,
    difference: Annotated[
        float, typer.Option(help="Difference to detect, in points of success, between 0 and 100.")
    ] = 3.0,
    chance: Annotated[float, typer.Option("--power", help="Chance of detecting it, between 0 and 1.")] = 0.8,
    level: Annotated[
        float, typer.Option(help="Chance of seeing a difference where there is none, between 0 and 1.")
    ] = 0.05,
    as_json: options.JsonFlag = False,
) -> None:
    """Work out how many episodes (tasks x seeds) a comparison needs, by each method.

    More tasks remove all noise, more seeds only the luck within a task; a pilot with several seeds tells them apart.
    """
    if not 0.0 < difference < 100.0:
        raise InvalidInputError(f"--difference is {difference:g}: expected points above 0 and below 100")
    if difference < SMALL_DIFFERENCE:
        output.note(f"--difference is in points: {difference:g} points; did you mean {100.0 * difference:g}?")
    played = run_a is None
    if run_a is None:
        if policy_a or policy_b or prompt:
            raise InvalidInputError("--policy-a, --policy-b and --prompt choose from a pilot run: expected RUN_A")
        comparison = _play_pilot()
    else:
        comparison = _read_pilot(run_a, run_b, policy_a, policy_b, prompt)
    plan = plan_sample(comparison, difference / 100.0, chance, level)
    if as_json:
        output.print_json({"pilot_was_played": played, **plan.to_mapping()})
        return
    output.console().print(_plan_table(plan))
    output.say(*_plan_notes(plan, played))


def _play_pilot() -> Comparison:
    """Play two policies that come with the package, in a folder that vanishes."""
    output.note(
        f"no pilot given: playing {' and '.join(PILOT_POLICIES)} on {PILOT_TASKS} tasks, {PILOT_SEEDS} seeds, "
        f"prompt {PILOT_PROMPT}"
    )
    with tempfile.TemporaryDirectory(prefix="resilisim-pilot-") as folder:
        evaluate(PILOT_POLICIES, PILOT_TASKS, (PILOT_PROMPT,), PILOT_SEEDS, out=folder)
        return compare_runs(folder, folder).pooled


def _read_pilot(
    run_a: Path, run_b: Path | None, policy_a: str | None, policy_b: str | None, prompt: str | None
) -> Comparison:
    with output.error_console().status("reading episodes"):
        result = compare_runs(run_a, run_b or run_a, policy_a, policy_b, prompt)
    if len(result.comparisons) > 1:
        listed = ", ".join(f"{each.label_a} - {each.label_b} under {each.prompt}" for each in result.comparisons[:4])
        raise InvalidInputError(
            f"the pilot holds {len(result.comparisons)} comparisons ({listed}): "
            "say which with --policy-a, --policy-b and --prompt"
        )
    return result.comparisons[0]


def _plan_table(plan: PowerPlan) -> Table:
    pilot = plan.pilot
    title = (
        f"Episodes of each policy for {100.0 * plan.difference:g} points, power {plan.power:g}, level {plan.level:g}; "
        f"pilot: {pilot.label_a} - {pilot.label_b}, prompt {pilot.prompt}"
    )
    columns: list[Column[str]] = [("method", _WAYS.__getitem__), *(_size_column(plan, count) for count in SEEDS)]
    return Table.of(title, plan.parts, columns, optional=[_seeds_a_task(count) for count in SEEDS[1::2]])


def _seeds_a_task(num_seeds: int) -> str:
    return f"{count_of(num_seeds, 'seed')} a task"


def _size_column(plan: PowerPlan, num_seeds: int) -> Column[str]:
    def cell(method: str) -> Cell:
        size = plan.size(method, num_seeds)
        if size.episodes is None:
            return Cell(NOTHING)
        return Cell(f"{size.episodes:,}", detail="" if size.low is None else f"[{size.low:,}, {size.high:,}]")

    return _seeds_a_task(num_seeds), cell


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
            "Your agents may vary more: play a few hundred episodes of them, then resilisim runs power RUN_A RUN_B."
        )
    return lines
