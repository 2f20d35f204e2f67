"""Which lessons a training has: data sets of conversations or pairs, each of one kind and with tools of one library.

They are written once and read when a run goes on, and so are the tasks of random libraries, which take a while to make.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

from resilisim.datasets import Record, export_dataset, read_records
from resilisim.errors import InvalidInputError
from resilisim.finetuning.config import FinetuningConfig
from resilisim.tasks import Task, sample_tasks, write_tasks
from resilisim.tasks.generation import generate_tasks
from resilisim.tasks.sources import read_tasks, read_tasks_file
from resilisim.tasks.split import split_of_task
from resilisim.tool_library import ToolLibrary, default_library
from resilisim.tool_library.generator import generate_library

DATA_FOLDER, RANDOM_TASKS = "data", "random-tasks-{}.jsonl"
WORTH_PROCESSES = 200  # tasks of a data set that pay for the start of processes
TASKS_OF_LIBRARY = 64  # of a random library; finding words for its tools takes longer than playing them


def drawn_tasks(config: FinetuningConfig, split: str, most: int) -> list[Task]:
    """Return tasks of a split, drawn anew by the seed for each split."""
    tasks = [task for task in read_tasks(config.tasks, default_library()) if split_of_task(task) == split]
    if not tasks:
        raise InvalidInputError(f"tasks {config.tasks!r} hold none of the {split} split: expected at least one")
    return sample_tasks(tasks, min(most, len(tasks)), seed=config.seed)


def lessons(
    config: FinetuningConfig, folder: Path, progress: Callable[[int], None] | None = None
) -> Iterator[list[Record]]:
    """Yield the records of one task after the other.

    Args:
        config: The settings.
        folder: That of the run: data sets lie in `data`, `data-2` and so on in it, the first alone if all are alike.
        progress: Is told how many tasks there are lessons of.
    """
    numbers, num_done = itertools.count(1), 0

    def count(newly_done: int) -> None:
        nonlocal num_done
        num_done += newly_done
        if progress is not None:
            progress(num_done)

    for library, tasks in _libraries(config, folder):
        for kind, share in config.dealt(tasks):
            number = next(numbers)
            where = folder / (DATA_FOLDER if number == 1 else f"{DATA_FOLDER}-{number}")

            export_dataset(
                *(config.dataset(kind), share, where),
                library=library,
                tokenizer="none",
                workers=config.num_threads if len(share) >= WORTH_PROCESSES else 1,
                command="resilisim train lm",
                progress=count,
            )
            for _, records in itertools.groupby(read_records(where, "train"), key=lambda record: record["instance_id"]):
                yield list(records)


def _libraries(config: FinetuningConfig, folder: Path) -> Iterator[tuple[ToolLibrary, list[Task]]]:
    """Yield libraries with their tasks: the shipped one, and random ones for their share."""
    tasks = drawn_tasks(config, "train", config.train_tasks)
    num_random = round(config.random_libraries * len(tasks))
    yield default_library(), tasks[: len(tasks) - num_random]
    for number, first in enumerate(range(0, num_random, TASKS_OF_LIBRARY)):
        library = generate_library(config.library_tools, seed=config.seed * 1_000 + number)
        path = folder / RANDOM_TASKS.format(number + 1)
        if not path.exists():
            drawn = generate_tasks(config.seed, 2 * TASKS_OF_LIBRARY, library)
            of_split = (task for task in drawn if split_of_task(task) == "train")
            write_tasks(path, itertools.islice(of_split, min(TASKS_OF_LIBRARY, num_random - first)))
        yield library, read_tasks_file(path, library)
