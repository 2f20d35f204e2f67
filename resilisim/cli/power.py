"""`resilisim power`: how many episodes it takes to see a difference, from a pilot."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from resilisim.cli.compare import METHOD_NAMES, PolicyAOption, PolicyBOption
from resilisim.cli.options import JsonFlag
from resilisim.cli.output import console, error_console, note, plain, print_json

if TYPE_CHECKING:
    from rich.table import Table

    from resilisim.evaluation.comparing.comparison import Comparison
    from resilisim.evaluation.comparing.power import PowerPlan

PILOT_POLICIES = ("plan-follower", "repairing-follower")
PILOT_PROMPT = "optimal"
PILOT_TASKS, PILOT_SEEDS = 150, 4
SMALL_DIFFERENCE = 0.5  # points below which somebody may have meant a share
WIDE = 130  # characters below which intervals go to a second line, and every other column is left out

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
    from resilisim.errors import InvalidInputError
    from resilisim.evaluation.comparing.power import plan_sample

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
    show = console()
    show.print(_table(plan))
    for line in _notes(plan, played):
        show.print(plain(line), soft_wrap=True)


def _play_pilot() -> Comparison:
    """Play two policies that come with the package, in a folder that vanishes."""
    import tempfile

    from resilisim.evaluation.comparing.run_comparison import compare_runs
    from resilisim.evaluation.run.runner import evaluate

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
    from resilisim.errors import InvalidInputError
    from resilisim.evaluation.comparing.run_comparison import compare_runs

    with error_console().status("reading episodes"):
        result = compare_runs(run_a, run_b or run_a, policy_a, policy_b, prompt)
    if len(result.comparisons) > 1:
        found = ", ".join(f"{each.label_a} - {each.label_b} under {each.prompt}" for each in result.comparisons[:4])
        raise InvalidInputError(
            f"the pilot holds {len(result.comparisons)} comparisons ({found}): "
            "say which with --policy-a, --policy-b and --prompt"
        )
    return result.comparisons[0]


def _table(plan: PowerPlan) -> Table:
    from rich import box
    from rich.table import Table

    from resilisim.evaluation.comparing.power import SEEDS

    pilot = plan.pilot
    title = (
        f"Episodes of each policy for {100.0 * plan.difference:g} points, power {plan.power:g}, level {plan.level:g}; "
        f"pilot: {pilot.label_a} - {pilot.label_b}, prompt {pilot.prompt}"
    )
    table = Table(
        title=plain(title, "bold"),
        title_justify="left",
        header_style="bold",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        padding=(0, 1, 0, 0),
    )
    is_wide = console().width >= WIDE
    separator, shown = (" ", SEEDS) if is_wide else ("\n", SEEDS[::2])
    table.add_column("method", overflow="fold", min_width=21)
    for count in shown:
        table.add_column(f"{count} seed{'' if count == 1 else 's'}{separator}a task", justify="right", no_wrap=True)
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


def _notes(plan: PowerPlan, played: bool) -> list[str]:
    from resilisim.evaluation.comparing.differences import PAIRED_LUCK_ADJUSTED
    from resilisim.evaluation.comparing.pairing import NO_LUCK

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
