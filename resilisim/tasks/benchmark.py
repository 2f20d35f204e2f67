"""The benchmark: the 5,040 tasks that results are compared on, shipped as bytes with their hash.

`python -m benchmarks.shipped_data benchmark` generates the bytes anew; any change of them is a new version. The version
before stays readable by its name; results of different versions are not compared.
"""

from __future__ import annotations

import gzip
import hashlib
import json
from collections.abc import Iterable, Mapping
from functools import cache
from importlib import resources
from typing import Any

from resilisim.errors import InvalidInputError, unknown_name
from resilisim.tasks.task import ID_PREFIX, Task

BENCHMARK_VERSION = "benchmark-v2"
BENCHMARK_SEED = 0
# Versions, and the hash of each: of the uncompressed JSON Lines.
BENCHMARKS: Mapping[str, str] = {
    "benchmark-v2": "67e8cc8a9ef747525a19773281570f32bf11ac2cf25d66d3216e2230b357a2ae",
    "benchmark-v1": "d883b0581f65a939f2ccb92bb13b1db3879c7bafceeb04ce2c46a9759e4b6568",
}
_PRESENT_FIRST = tuple(sorted(BENCHMARKS, key=lambda version: version != BENCHMARK_VERSION))
# The wording of what agents read: prompts, plans, replies of the environment, templates of the agents. Results of
# different revisions are not compared. 1: the first release, whose manifests do not name it. 2: plans have limits.
TEXTS_REVISION = 2


def benchmark_file(version: str) -> str:
    """Return the place of a version's tasks in this package."""
    return f"data/{version}.jsonl.gz"


def benchmark_identity(tasks: Iterable[Task] = ()) -> dict[str, Any]:
    """Return what manifests say of the benchmark: version, hash of the tasks, revision of the texts.

    The version is the one that the tasks belong to, else the present one.

    Raises:
        InvalidInputError: The tasks belong to several versions.
    """
    versions = {version for task in tasks if (version := version_of(task.instance_id)) is not None}
    if len(versions) > 1:
        raise InvalidInputError(f"tasks of {' and '.join(sorted(versions))} in one run: expected those of one version")
    return {**benchmark_of(versions.pop() if versions else BENCHMARK_VERSION), "texts": TEXTS_REVISION}


def benchmark_of(tasks: str) -> dict[str, str]:
    """Return version and hash of the benchmark that a training's tasks are of: the one named, else the present one."""
    version = tasks if tasks in BENCHMARKS else BENCHMARK_VERSION
    return {"version": version, "sha256": BENCHMARKS[version]}


def texts_revision(arguments: Mapping[str, Any]) -> int:
    """Return the revision of the texts that a manifest's arguments name; 1 if they name none."""
    revision: int = arguments.get("benchmark", {}).get("texts", 1)
    return revision


def benchmark_bytes(version: str = BENCHMARK_VERSION) -> bytes:
    """Return the shipped JSON Lines, uncompressed; AssertionError if they are not those of the version."""
    place = benchmark_file(version)
    data = gzip.decompress(resources.files("resilisim.tasks").joinpath(place).read_bytes())
    digest = hashlib.sha256(data).hexdigest()
    if digest != BENCHMARKS[version]:
        raise AssertionError(f"{place} has SHA-256 {digest}, expected {BENCHMARKS[version]}: reinstall the package")
    return data


def benchmark_tasks(version: str = BENCHMARK_VERSION) -> tuple[Task, ...]:
    """Return the tasks of the benchmark in their order, types interleaved; the same objects at every call.

    Args:
        version: The name of a version.

    Raises:
        InvalidInputError: There is no such version.

    Example:
        >>> from resilisim import benchmark_tasks
        >>> len(benchmark_tasks())
        5040
    """
    if version not in BENCHMARKS:
        raise unknown_name("benchmark", version, BENCHMARKS)
    return _tasks_of(version)


@cache
def _tasks_of(version: str) -> tuple[Task, ...]:
    lines = benchmark_bytes(version).decode("utf-8").split("\n")
    return tuple(Task.from_trusted_mapping(json.loads(line)) for line in lines if line)


@cache
def _tasks_by_id(version: str) -> Mapping[str, Task]:
    return {task.instance_id: task for task in _tasks_of(version)}


def version_of(instance_id: str) -> str | None:
    """Return the version of the benchmark that has a task of this id, the present one first; None if none has."""
    if not instance_id.startswith(ID_PREFIX):
        return None
    return next((version for version in _PRESENT_FIRST if instance_id in _tasks_by_id(version)), None)


def find_task(instance_id: str) -> Task:
    """Return the task that has this id in some version of the benchmark.

    Raises:
        InvalidInputError: There is none; the message gives the nearest id of the present version.

    Example:
        >>> from resilisim.tasks import find_task
        >>> find_task("task_c64444cae27fab46").complexity
        'medium'
    """
    version = version_of(instance_id)
    if version is None:
        raise unknown_name("task", instance_id, _tasks_by_id(BENCHMARK_VERSION), BENCHMARK_VERSION)
    return _tasks_by_id(version)[instance_id]
