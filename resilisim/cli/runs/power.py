"""`resilisim runs power`: how many episodes a comparison takes."""

from __future__ import annotations

import math
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from resilisim.cli import options, output
from resilisim.cli.runs.compare import PolicyAOption, PolicyBOption
from resilisim.errors import InvalidInputError, count_of
from resilisim.evaluation.run_results import evaluate
from resilisim.evaluation.table.comparing import compare_runs
from resilisim.statistics.comparison import METHOD_NAMES, NO_LUCK, PAIRED_LUCK_ADJUSTED, Comparison
from resilisim.statistics.power import SEEDS, PowerPlan, plan_sample
from resilisim.tables.numbers import NO_NUMBER
from resilisim.tables.table import Cell, Column, Table

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

    More tasks reduce all of the noise, more seeds only the luck within a task; a pilot with several seeds tells which
    is which.
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
            return Cell(NO_NUMBER)
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
