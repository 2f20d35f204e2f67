"""Tasks: what an agent is asked to do, where it comes from, and which part of the data it belongs to."""

from resilisim.tasks.benchmark import benchmark_tasks, find_task
from resilisim.tasks.generation import generate_tasks, write_tasks
from resilisim.tasks.sources import read_tasks, sample_tasks
from resilisim.tasks.split import split_of
from resilisim.tasks.task import Task

__all__ = [
    "Task",
    "benchmark_tasks",
    "find_task",
    "generate_tasks",
    "read_tasks",
    "sample_tasks",
    "split_of",
    "write_tasks",
]
