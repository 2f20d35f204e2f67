"""The tasks on which calls cost most."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from resilisim.evaluation.accumulate import GroupSums, RunSums, TaskVector
from resilisim.evaluation.report.cells import REGRET_ADDS_UP, percent, plain
from resilisim.evaluation.report.content import Block, Cell, CellLike, Fold, Table
from resilisim.evaluation.report.facts import RunFacts
from resilisim.statistics import FloatArray

WORST_TASKS = 10
SHOWN_REGRET = 0.0005  # less than this prints as 0.0 points


def worst_tasks(facts: RunFacts) -> list[Block]:
    """Return the tasks with the most points lost by calls; nothing where no call cost anything."""
    sums = facts.sums
    comparable = [group for group in sums.groups.values() if not group.tries_again]
    ordinary = [group for group in comparable if not group.privileged]
    groups = ordinary or comparable
    count = _total(sums, [group.count for group in groups])
    outcome = _total(sums, [group.outcome for group in groups])
    optimum = _total(sums, [group.optimum for group in groups])
    luck = _total(sums, [group.luck for group in groups])
    regret = np.divide(optimum - outcome + luck, count, out=np.zeros_like(count), where=count > 0)  # (num_tasks,)
    worst = sorted(range(len(regret)), key=lambda task: (-round(float(regret[task]), 9), sums.tasks[task].instance_id))
    rows: list[list[CellLike]] = []
    for task in worst[:WORST_TASKS]:
        if regret[task] < SHOWN_REGRET:
            break
        traits = sums.tasks[task]
        rows.append(
            [
                Cell(traits.instance_id, style="id"),
                plain(traits.task_type),
                Cell(" → ".join(traits.required_tools), style="tools"),
                plain(_costliest_cause(groups, task)),
                f"{count[task]:,.0f}",
                percent(float(optimum[task] / count[task])),
                percent(float(outcome[task] / count[task])),
                percent(float(regret[task])),
            ]
        )
    whose = "the policies that are not privileged" if ordinary else "all policies"
    caption = f"The tasks on which calls cost most, over {whose} and all prompts"
    return [Fold("The costliest tasks", [_table(f"{caption}, in percent of their episodes", rows)])] if rows else []


def _table(caption: str, rows: Sequence[Sequence[CellLike]]) -> Table:
    return Table(
        caption,
        (
            "task",
            "type",
            "required tools, in order",
            "costliest cause",
            "episodes",
            "ceiling V*",
            "success",
            "lost by calls",
        ),
        rows,
        text_columns=4,
        notes=(
            "No intervals: they count tasks, and each line is a single one, picked because it is extreme.",
            REGRET_ADDS_UP,
        ),
    )


def _total(sums: RunSums, vectors: Sequence[TaskVector]) -> FloatArray:
    """Return the sum of vectors over groups, shape (num_tasks,)."""
    total = np.zeros(len(sums.tasks), dtype=np.float64)
    for vector in vectors:
        total += vector.to_array(len(sums.tasks))
    return total


def _costliest_cause(groups: Sequence[GroupSums], task: int) -> str:
    costs: dict[str, float] = {}
    for group in groups:
        for label, vector in group.losses.items():
            costs[label] = costs.get(label, 0.0) + vector.get(task)
    return max(costs, key=lambda label: costs[label])
