"""What a set of tasks is made of."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from resilisim.tasks.split import SPLITS, split_of
from resilisim.tasks.types import COMPLEXITIES, TASK_TYPES, Task


def task_statistics(tasks: Iterable[Task]) -> dict[str, Any]:
    """Count tasks by type, complexity, number of tools, split, domain and tool, in one pass.

    Args:
        tasks: Any number of tasks; memory grows with the number of distinct tool lists only.

    Returns:
        JSON values: `tasks`, `by_type`, `by_complexity`, `by_num_tools` (keys are texts, as JSON has it), `by_split`,
        `by_domain`, `by_tool` (in how many tasks each stands), `distinct_tool_lists`, `distinct_tool_sets`, and
        `tool_sets_by_split`.
    """
    counters: dict[str, Counter[str]] = {
        key: Counter() for key in ("type", "complexity", "num_tools", "split", "domain", "tool")
    }
    total = 0
    lists: set[tuple[str, ...]] = set()
    for task in tasks:
        total += 1
        lists.add(task.required_tools)
        counters["type"][task.task_type] += 1
        counters["complexity"][task.complexity] += 1
        counters["num_tools"][str(len(task.required_tools))] += 1
        counters["split"][split_of(task.required_tools)] += 1
        counters["domain"][str(task.metadata.get("domain", "unknown"))] += 1
        counters["tool"].update(task.required_tools)
    sets = {tuple(sorted(names)) for names in lists}
    return {
        "tasks": total,
        "by_type": _ordered(counters["type"], TASK_TYPES),
        "by_complexity": _ordered(counters["complexity"], COMPLEXITIES),
        "by_num_tools": {key: counters["num_tools"][key] for key in sorted(counters["num_tools"], key=int)},
        "by_split": _ordered(counters["split"], SPLITS),
        "by_domain": dict(sorted(counters["domain"].items())),
        "by_tool": dict(sorted(counters["tool"].items())),
        "distinct_tool_lists": len(lists),
        "distinct_tool_sets": len(sets),
        "tool_sets_by_split": _ordered(Counter(split_of(names) for names in sets), SPLITS),
    }


def _ordered(counter: Counter[str], first: Iterable[str]) -> dict[str, int]:
    """Return the counts, known keys first in their own order, others after them by name; what is absent is left out."""
    known = [key for key in first if counter[key]]
    return {key: counter[key] for key in (*known, *sorted(counter.keys() - set(known))) if counter[key]}
