"""Tasks: what an agent is asked to do, where it comes from, and which part of the data it belongs to."""

from resilisim.tasks.benchmark import BENCHMARK_VERSION, benchmark_tasks, find_task
from resilisim.tasks.composition import task_statistics
from resilisim.tasks.generation import generate_tasks, write_tasks
from resilisim.tasks.model import (
    COMPLEXITIES,
    MINIMUM_FOR_PARTIAL,
    SPLITS,
    TASK_TYPES,
    Task,
    minimum_for_partial,
    split_of,
    split_of_task,
)
from resilisim.tasks.sources import read_tasks, sample_tasks

__all__ = [
    "BENCHMARK_VERSION",
    "COMPLEXITIES",
    "MINIMUM_FOR_PARTIAL",
    "SPLITS",
    "TASK_TYPES",
    "Task",
    "benchmark_tasks",
    "find_task",
    "generate_tasks",
    "minimum_for_partial",
    "read_tasks",
    "sample_tasks",
    "split_of",
    "split_of_task",
    "task_statistics",
    "write_tasks",
]
