"""A small source of records with everything that is hard to store: nulls, empty lists, structs, odd texts.

What the tests kill and stop is an export of it: `python -m tests.datasets.toy_source OUT FORMAT WORKERS PIDS`.
"""

import contextlib
import os
import resource
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import ClassVar

from resilisim.datasets import export_dataset
from resilisim.datasets.export import ExportInterrupted
from resilisim.datasets.schema import Column, RecordSchema
from resilisim.tasks.benchmark import benchmark_tasks

TOY_SCHEMA = RecordSchema(
    "toy-1",
    (
        Column("instance_id", "string", "Id of the task."),
        Column("number", "int64", "Which record of the task."),
        Column("on", "float64", "A share; its name is a word of YAML."),
        Column("is_even", "bool", "Whether the number is even."),
        Column("never", "string", "Null in every record."),
        Column("names", ["string"], "Some texts, or none."),
        Column(
            "detail",
            {"method": "string", "edits": [{"what": "string", "before": "string", "places": ["int64"]}]},
            "Null for most tasks.",
        ),
        Column("table", [["float64"]], "Lists of lists."),
    ),
)
TEXTS = ("plain", "é–€ 😀", 'quoted "text"\nand a line', "", "null", "2024-01-01", "\u2028\x00\x7f")


def toy_tasks(count=40):
    """Return tasks of all three splits."""
    return list(benchmark_tasks()[:count])


@dataclass(frozen=True, slots=True)
class ToySpec:
    """Any number of small records for each task."""

    kind: ClassVar[str] = "toys"
    records_per_task: int = 3
    seed: int = 0  # another one makes other records
    pids: str = ""  # a folder in which each process that makes records leaves a file named by its id
    fail_at: str = ""  # id of the task that something happens to
    failure: str = ""  # "raise", "exit", "wrong" (a record that fits no schema)
    only: str = ""  # id of the only task that has records

    def arguments(self):
        return {"records_per_task": self.records_per_task, "seed": self.seed}

    def make(self, library):
        if self.pids:
            (Path(self.pids) / str(os.getpid())).touch()
        return ToySource(self)


class ToySource:
    """Makes the records of `ToySpec`."""

    schema = TOY_SCHEMA

    def __init__(self, spec):
        self._spec = spec

    def records(self, task):
        if task.instance_id == self._spec.fail_at:
            fail(self._spec.failure)
        if self._spec.only not in ("", task.instance_id):
            return
        for number in range(self._spec.records_per_task):
            yield toy_record(task.instance_id, self._spec.seed, number)
        if task.instance_id == self._spec.fail_at and self._spec.failure == "wrong":
            yield {"instance_id": 1}


def fail(failure):
    if failure == "raise":
        raise LookupError("nothing here")
    if failure == "exit":
        os._exit(3)


def toy_record(instance_id, seed, number):
    """Return a record; the detail is null for three tasks of four."""
    random = Random(f"{seed} {instance_id} {number}")
    edits = [
        {"what": random.choice(TEXTS), "before": None, "places": [random.randrange(9) for _ in range(count)]}
        for count in range(random.randrange(3))
    ]
    return {
        "instance_id": instance_id,
        "number": number,
        "on": random.random() if number else 1.0,
        "is_even": number % 2 == 0,
        "never": None,
        "names": [random.choice(TEXTS) for _ in range(random.randrange(3))],
        "detail": {"method": random.choice(TEXTS), "edits": edits} if has_detail(instance_id) else None,
        "table": [[random.random()] for _ in range(random.randrange(2))],
    }


def has_detail(instance_id):
    return Random(instance_id).random() < 0.25


@contextlib.contextmanager
def no_file_above(num_bytes):
    """Let the system refuse every write that would make a file larger, as a full disk would."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


# Shards of four tasks; each takes about a tenth of a second, so that there is time to hit one of them.
ARGUMENTS = {"tasks_per_shard": 4}
RECORDS_PER_TASK = 150

if __name__ == "__main__":
    from tests.datasets.toy_source import ToySpec as Spec  # under the name that travels to workers

    out, file_format, workers, pids = sys.argv[1:]
    signal.signal(signal.SIGINT, signal.default_int_handler)  # also where the parent ignores it (`nohup make test &`)
    spec = Spec(RECORDS_PER_TASK, pids=pids)
    try:
        export_dataset(spec, toy_tasks(), out, format=file_format, workers=int(workers), **ARGUMENTS)
    except ExportInterrupted as error:
        sys.exit(str(error))
