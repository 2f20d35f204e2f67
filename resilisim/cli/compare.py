"""`resilisim compare`: two runs, or two policies of one, on the luck that they share."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from resilisim.cli.options import JsonFlag
from resilisim.cli.output import console, error_console, note, plain, print_json

if TYPE_CHECKING:
    from rich.table import Table

    from resilisim.evaluation.table.comparing import RunComparison
    from resilisim.statistics import Comparison, Difference

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
    from resilisim.evaluation.table.comparing import compare_runs

    with error_console().status("reading episodes"):
        result = compare_runs(run_a, run_b, policy_a, policy_b, prompt)
    if as_json:
        print_json({"run_a": str(run_a), "run_b": str(run_b), **result.to_mapping()})
        return
    show = console()
    show.print(plain(_headline(result)), soft_wrap=True)
    for number, comparison in enumerate(result.comparisons):
        show.print(_comparison_table(comparison, [row[number] for row in _corrected(result)], len(result.comparisons)))
        if comparison.optimum.value == comparison.optimum.value:  # an agent that tries again has no ceiling
            show.print(plain(_ceilings(comparison), "dim"), soft_wrap=True)
        if len(result.comparisons) > 1 and comparison.best.note is not None:
            show.print(plain(_sentence(comparison.best.note), "dim"), soft_wrap=True)
    if len(result.comparisons) > 1:
        show.print(_comparison_table(result.pooled, None, 1, "all together"))
    for line in _advice(result):
        show.print(plain(line), soft_wrap=True)
    for name, missing in zip((run_a, run_b), result.num_unfinished, strict=True):
        if missing and not (result.same_run and name is run_b):
            note(f"{name} is not finished: {missing:,} of its episodes are missing")


def points(value: float, digits: int = 1) -> str:
    """Return a difference of shares in points with its sign ("+3.1"), a dash for NaN; never a negative zero."""
    if value != value:
        return "–"
    text = f"{100.0 * value:+.{digits}f}"
    return text[1:] if float(text) == 0.0 else text


def p_text(value: float) -> str:
    """Return a p-value as it is shown ("0.031", "<0.001"), or a dash for NaN."""
    if value != value:
        return "–"
    return "<0.001" if value < 0.001 else f"{value:.3f}"


def interval_text(difference: Difference, digits: int) -> str:
    """Return an interval in points, or a dash where there is none."""
    low, high = difference.interval
    if low != low:
        return "–"
    return f"[{points(low, digits)}, {points(high, digits)}]"


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


def _corrected(result: RunComparison) -> list[list[float]]:
    return [result.holm_p_values(method) for method in METHOD_NAMES]


def _comparison_table(
    comparison: Comparison, corrected: list[float] | None, num_comparisons: int, title: str | None = None
) -> Table:
    from rich import box
    from rich.table import Table

    from resilisim.evaluation.table.summary import format_percent

    a, b = comparison.success_a, comparison.success_b
    heading = title or f"{comparison.label_a} - {comparison.label_b}, prompt {comparison.prompt}"
    table = Table(
        title=plain(f"{heading}: {format_percent(a.value)} % - {format_percent(b.value)} %", "bold"),
        title_justify="left",
        header_style="bold",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
    )
    shows_correction = corrected is not None and num_comparisons > 1
    table.add_column("method")
    for name in ("difference", "95% interval", "p", *(["p, Holm"] if shows_correction else []), "pairs"):
        table.add_column(name, justify="right", no_wrap=True)
    digits = digits_of(comparison.best)
    for place, (method, shown) in enumerate(METHOD_NAMES.items()):
        found = comparison.differences[method]
        style = "bold" if method == comparison.best.method else ""
        cells = [shown, points(found.difference, digits), interval_text(found, digits), p_text(found.p_value)]
        if corrected is not None and num_comparisons > 1:
            cells.append(p_text(corrected[place]))
        table.add_row(*(plain(cell, style) for cell in [*cells, f"{found.episodes:,}"]))
    return table


def _ceilings(comparison: Comparison) -> str:
    """Say what both could reach with what they were told, and V* where that is another number."""
    from resilisim.evaluation.table.summary import format_percent

    best = format_percent(comparison.optimum.value)
    told = dict.fromkeys(format_percent(each.value) for each in (comparison.ceiling_a, comparison.ceiling_b))
    if list(told) == [best]:
        return f"The best that any agent can reach (V*): {best} %."
    searched = f"V*: {best} %, but tools had to be found"
    return f"The best that can be reached with what the prompts tell: {' % and '.join(told)} % ({searched})."


def _advice(result: RunComparison) -> list[str]:
    """Say which method to believe and why, what it saved, and what else there is to know."""
    from resilisim.statistics import independent_luck_episodes

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
