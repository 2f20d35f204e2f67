"""`resilisim runs compare`: two runs on their common episodes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from resilisim.cli import options, output
from resilisim.errors import count_of
from resilisim.evaluation.table.comparing import RunComparison, compare_runs
from resilisim.evaluation.table.summary import gap_note
from resilisim.evaluation.table.verdict import comparison_sentence
from resilisim.statistics.comparison import METHOD_NAMES, Comparison, Difference
from resilisim.statistics.power import independent_luck_episodes
from resilisim.tables.numbers import NO_NUMBER, p_value, percent, signed_interval, signed_points
from resilisim.tables.table import Column, Table

PolicyAOption = Annotated[str | None, typer.Option("--policy-a", help="Policy of RUN_A.")]
PolicyBOption = Annotated[str | None, typer.Option("--policy-b", help="Policy of RUN_B.")]
PromptOption = Annotated[str | None, typer.Option("--prompt", help="Only this prompt type.")]


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
    output.say(
        *filter(None, [gap_note(result.optimum_gap)]), *_advice(result), f"{comparison_sentence(result.pooled)}."
    )
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


def interval_of(difference: Difference, digits: int) -> str:
    """Return the interval of a difference in points."""
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
    what = "explored rates" if pooled.pairs.is_exact else "episodes on common draws"
    return (
        f"{pooled.episodes:,} {noun} of {what}, {pooled.pairs.num_tasks:,} {tasks}{partners}. "
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
        ("95% interval", lambda row: interval_of(row, digits) or NO_NUMBER),
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
