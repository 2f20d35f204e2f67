"""benchmark-v1: the 5,040 tasks that results are compared on, shipped as bytes with their hash.

`python -m benchmarks.shipped_data benchmark` generates the bytes anew; any change of them is a new version.
"""

from __future__ import annotations

import gzip
import hashlib
import json
from collections.abc import Mapping
from functools import lru_cache
from importlib import resources
from typing import Any

from resilisim.errors import unknown_name
from resilisim.tasks.task import Task

BENCHMARK_VERSION = "benchmark-v1"
BENCHMARK_SEED = 0
BENCHMARK_SHA256 = "d883b0581f65a939f2ccb92bb13b1db3879c7bafceeb04ce2c46a9759e4b6568"  # of the uncompressed JSON Lines
# The wording of what agents read: prompts, plans, replies of the environment, templates of the agents. Results of
# different revisions are not compared. 1: the first release, whose manifests do not name it. 2: plans have limits.
TEXTS_REVISION = 2
DATA_FILE = f"data/{BENCHMARK_VERSION}.jsonl.gz"


def benchmark_identity() -> dict[str, Any]:
    """Return what manifests say of the benchmark: version, hash of the tasks, revision of the texts."""
    return {"version": BENCHMARK_VERSION, "sha256": BENCHMARK_SHA256, "texts": TEXTS_REVISION}


def texts_revision(arguments: Mapping[str, Any]) -> int:
    """Return the revision of the texts that a manifest's arguments name; 1 if they name none."""
    revision: int = arguments.get("benchmark", {}).get("texts", 1)
    return revision


def benchmark_bytes() -> bytes:
    """Return the shipped JSON Lines, uncompressed; AssertionError if they are not those of the release."""
    data = gzip.decompress(resources.files("resilisim.tasks").joinpath(DATA_FILE).read_bytes())
    digest = hashlib.sha256(data).hexdigest()
    if digest != BENCHMARK_SHA256:
        raise AssertionError(f"{DATA_FILE} has SHA-256 {digest}, expected {BENCHMARK_SHA256}: reinstall the package")
    return data


@lru_cache(maxsize=1)
def benchmark_tasks() -> tuple[Task, ...]:
    """Return the tasks of the benchmark in their order, types interleaved; the same objects at every call.

    Example:
        >>> len(benchmark_tasks())
        5040
    """
    lines = benchmark_bytes().decode("utf-8").split("\n")
    return tuple(Task.from_trusted_mapping(json.loads(line)) for line in lines if line)


@lru_cache(maxsize=1)
def _tasks_by_id() -> Mapping[str, Task]:
    return {task.instance_id: task for task in benchmark_tasks()}


def find_task(instance_id: str) -> Task:
    """Return the task of the benchmark that has this id.

    Raises:
        InvalidInputError: There is none; the message gives the nearest id.

    Example:
        >>> from resilisim.tasks import find_task
        >>> find_task("task_c64444cae27fab46").complexity
        'medium'
    """
    task = _tasks_by_id().get(instance_id)
    if task is None:
        raise unknown_name("task", instance_id, _tasks_by_id(), BENCHMARK_VERSION)
    return task
