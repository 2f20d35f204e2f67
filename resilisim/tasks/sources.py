"""Where tasks are taken from: the benchmark, a sample of it, a file, or one id."""

from __future__ import annotations

import json
import os
import warnings
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from resilisim.errors import InvalidInputError, shown_value, unknown_name
from resilisim.inputs import read_json, read_json_lines, read_text, shown
from resilisim.seeding import Draws
from resilisim.tasks.benchmark import BENCHMARK_VERSION, BENCHMARKS, benchmark_tasks, find_task
from resilisim.tasks.split import SPLITS, split_of
from resilisim.tasks.task import Task, quotas
from resilisim.tool_library.library import ToolLibrary

_EXPECTED = f"{BENCHMARK_VERSION!r}, a number, the id of a task, the name of a world, or the path of a JSON Lines file"
LONGEST_COUNT = 18  # digits; more of them are no number of tasks, and Python refuses to read some thousand


def read_tasks(ref: str | int | Path, library: ToolLibrary) -> list[Task]:
    """Return the tasks that a reference means.

    Args:
        ref: The name of a version of the benchmark; a number N (or its digits): the first N of the present version,
            which has its types interleaved in proportion; NAME:N, the first N of a version; the id of a task of any
            version; or the path of a JSON Lines file.
        library: The library that the tasks' tools must belong to.

    Raises:
        InvalidInputError: Nothing is called that, or a task does not fit the library.

    Example:
        >>> from resilisim.tasks import read_tasks
        >>> from resilisim.tool_library import default_library
        >>> len(read_tasks("100", default_library()))
        100
    """
    if isinstance(ref, Path):
        return read_tasks_file(ref, library)
    part = benchmark_part(ref) if isinstance(ref, str) else (BENCHMARK_VERSION, ref)
    if part is not None:
        return _fitting(_first_of_benchmark(*part), library)
    name = str(ref)
    if not name.strip():
        raise InvalidInputError(f"no tasks were named (got {name!r}): expected {_EXPECTED}")
    if name.startswith("task_") and not os.path.exists(name):
        return _fitting([find_task(name)], library)
    return read_tasks_file(Path(name), library)


def task_count(ref: str) -> int | None:
    """Return the number of tasks that a reference asks for, or None if it is not a number."""
    return int(ref) if ref.isdecimal() and len(ref) <= LONGEST_COUNT else None


def benchmark_part(ref: str) -> tuple[str, int | None] | None:
    """Return the version of the benchmark, and how many of its tasks, that N, NAME or NAME:N means; None if no such."""
    name, colon, number = ref.rpartition(":")
    version, count = (name, task_count(number)) if colon else (BENCHMARK_VERSION, task_count(ref))
    if version in BENCHMARKS and count is not None:
        return version, count
    return (ref, None) if ref in BENCHMARKS else None


def read_tasks_file(path: Path, library: ToolLibrary) -> list[Task]:
    """Read a JSON Lines file of tasks, or a tasks.json of tau2-bench, checking each; refusals name the line or item."""
    text = read_text(path, "tasks file", _EXPECTED)
    is_list = text.lstrip().startswith("[")
    given = _of_tau2(read_json(text, str(path)), str(path)) if is_list else read_json_lines(text, str(path))
    tasks: list[Task] = []
    place_of_id: dict[str, str] = {}
    for value, where in given:
        task = Task.from_mapping(value, library, where)
        if task.instance_id in place_of_id:
            first = place_of_id[task.instance_id]
            raise InvalidInputError(f"{where}: {task.instance_id!r} stands in {first} already; ids must differ")
        place_of_id[task.instance_id] = where.rpartition(", ")[2]
        tasks.append(task)
    if not tasks:
        raise InvalidInputError(f"tasks file {str(path)!r} holds no tasks; expected one JSON object a line")
    return tasks


def _of_tau2(listed: Any, path: str) -> Iterator[tuple[dict[str, Any], str]]:
    """Yield tasks of tau2-bench as tasks: what the agent has to call, in order, is what is required, each tool once.

    Tasks that require no call of a tool, since they are judged by words or by a state of things alone, are left out,
    with a warning.

    Raises:
        InvalidInputError: It is another list.
    """
    left_out: list[str] = []
    for number, item in enumerate(listed, start=1):
        where = f"{path}, item {number}"
        criteria = item.get("evaluation_criteria") if isinstance(item, dict) else None
        if not isinstance(item, dict) or "evaluation_criteria" not in item:
            raise InvalidInputError(
                f"{where}: got {shown(item)}; expected JSON Lines, one task a line, or a tasks.json of tau2-bench"
            )
        actions = criteria.get("actions") if isinstance(criteria, dict) else None
        calls = [
            action
            for action in (actions if isinstance(actions, list) else [])
            if isinstance(action, dict) and action.get("requestor", "assistant") == "assistant"
        ]
        if not calls:
            left_out.append(str(item.get("id")))
            continue
        scenario = item.get("user_scenario")
        told = item.get("ticket") or (scenario.get("instructions") if isinstance(scenario, dict) else None)
        yield (
            {
                "instance_id": f"tau2_{item.get('id')}",
                "description": told if isinstance(told, str) else json.dumps(told, ensure_ascii=False),
                "required_tools": list(dict.fromkeys(action.get("name") for action in calls)),
                "inputs": calls[0].get("arguments") or {},
            },
            where,
        )
    if left_out:
        names = ", ".join(left_out)[:200]
        warnings.warn(
            f"{path}: {len(left_out)} of {len(listed)} tasks require no tool and are left out: {names}",
            UserWarning,
            stacklevel=2,
        )


def sample_tasks(tasks: Sequence[Task], n: int, seed: int = 0, split: str | None = None) -> list[Task]:
    """Draw n different tasks in their order, types in the proportions that they have among the given ones.

    `split` is "train", "validation" or "test" to draw from that part only.

    Raises:
        InvalidInputError: n is out of range, or the split does not exist.

    Example:
        >>> from resilisim.tasks import benchmark_tasks, sample_tasks
        >>> sample = sample_tasks(benchmark_tasks(), 30, seed=1, split="test")
        >>> len({task.task_type for task in sample})
        5
    """
    if split is not None and split not in SPLITS:
        raise unknown_name("split", split, SPLITS)
    places = [place for place, task in enumerate(tasks) if split is None or split_of(task.required_tools) == split]
    if not 1 <= n <= len(places):
        part = "" if split is None else f" of the {split} split"
        raise InvalidInputError(
            f"sample of {n} tasks: expected a number from 1 to {len(places)}, the tasks{part} given"
        )
    places_of_type: dict[str, list[int]] = defaultdict(list)
    for place in places:
        places_of_type[tasks[place].task_type].append(place)
    sizes = quotas(n, tuple(len(group) for group in places_of_type.values()))
    drawn: list[int] = []
    for (task_type, group), size in zip(places_of_type.items(), sizes, strict=True):
        drawn += Draws("resilisim/tasks/sample", seed, task_type).shuffled(group)[:size]
    return [tasks[place] for place in sorted(drawn)]


def _first_of_benchmark(version: str, n: int | None) -> list[Task]:
    tasks = benchmark_tasks(version)
    if n is not None and not 1 <= n <= len(tasks):
        raise InvalidInputError(
            f"{shown_value(n)} tasks: expected a number from 1 to {len(tasks)}, the size of {version}"
        )
    return list(tasks[:n])


def _fitting(tasks: list[Task], library: ToolLibrary) -> list[Task]:
    """Return the tasks if the library has all their tools; benchmark tasks are checked for nothing else."""
    for name in dict.fromkeys(name for task in tasks for name in task.required_tools):
        if name not in library:
            raise unknown_name("tool", name, library.names, f"{BENCHMARK_VERSION}, which needs another tool library")
    return tasks


def resolve_task(task: object, library: ToolLibrary) -> Task:
    """Return the task that an id of the benchmark, a mapping with its fields, or a `Task` stands for."""
    if isinstance(task, Task):
        return task
    if isinstance(task, str):
        return find_task(task)
    if isinstance(task, Mapping):
        return Task.from_mapping(task, library)
    raise InvalidInputError(f"a task of type {type(task).__name__}: expected an id, a mapping or a Task")
