"""Records in one file: JSON Lines that grow task by task, or Parquet made of them; stopped at any time, it goes on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from resilisim.datasets.export import ShardWriter, encode_record
from resilisim.datasets.folder import identity, make_manifest
from resilisim.datasets.schema import RecordSource, SourceSpec, check_record, require
from resilisim.errors import InvalidInputError, StoreError
from resilisim.processes import answers_in_order
from resilisim.run_folder import (
    JsonLinesWriter,
    claim,
    is_stream,
    read_json_lines,
)
from resilisim.tasks import Task
from resilisim.tool_library import ToolLibrary, default_library

MANIFEST_SUFFIX = ".manifest.json"
PARQUET_SUFFIX = ".parquet"
# What the file would not be; any other name is taken for JSON Lines.
OTHER_FORMATS = frozenset({".csv", ".tsv", ".xlsx", ".xml", ".yaml", ".gz", ".zip", ".zst"})
PART_SUFFIX = ".part.jsonl"
TASKS_PER_JOB = 16


@dataclass(frozen=True, slots=True)
class FileResult:
    """A finished file of records.

    Attributes:
        path: The file.
        num_records: Records in it.
        num_already_there: Those of them that an earlier call had written.
        num_tasks: Tasks that they were made for.
    """

    path: Path
    num_records: int
    num_already_there: int
    num_tasks: int


def write_record_file(
    spec: SourceSpec,
    tasks: Sequence[Task],
    out: Path | str,
    *,
    library: ToolLibrary | None = None,
    workers: int = 1,
    overwrite: bool = False,
    progress: Callable[[int], None] | None = None,
) -> FileResult:
    """Write the records of tasks, in the order of the tasks, and beside the file its manifest.

    The same arguments write the same bytes, whatever the number of workers, and go on where an earlier call was
    stopped. A file whose name ends in `.parquet` is made from JSON Lines beside it once these are complete.

    Args:
        spec: What the records are.
        tasks: The tasks, each once.
        out: The file; a pipe or a device is written to as it is, without a manifest.
        library: Tool library of the tasks; None is the default one.
        workers: Number of processes.
        overwrite: Replace a file that is there and holds something else.
        progress: Called with the number of tasks done since the last call.

    Raises:
        InvalidInputError: The arguments make no sense.
        StoreError: The file holds something else, or cannot be written; whole records are kept.
        InfrastructureError: A worker process died; whole records are kept.
        MissingExtraError: A package is not installed.
    """
    path = Path(out)
    if path.is_dir():
        raise InvalidInputError(f"{str(out)!r} is a folder: expected the name of a file, such as prompts.jsonl")
    if path.suffix.lower() in OTHER_FORMATS:
        raise InvalidInputError(f"{str(out)!r}: expected a name that ends in .jsonl or {PARQUET_SUFFIX}")
    if workers < 1:
        raise InvalidInputError(f"workers is {workers}: expected at least 1")
    report = progress or _say_nothing
    chosen_library = default_library() if library is None else library
    source = spec.make(chosen_library)
    if is_stream(path):
        with JsonLinesWriter(path) as writer:
            count = _append(writer, spec, source, tasks, 0, chosen_library, workers, report)
        return FileResult(path, count, 0, len(tasks))
    is_parquet = path.suffix == PARQUET_SUFFIX
    if is_parquet:
        require("pyarrow.parquet")
    lines = path.with_name(path.name + PART_SUFFIX) if is_parquet else path
    manifest = make_manifest(spec, tasks, source.schema, chosen_library, "parquet" if is_parquet else "jsonl")
    is_same = _claim(path, lines, manifest, overwrite)
    if is_parquet and is_same and path.exists():
        report(len(tasks))
        count = require("pyarrow.parquet").read_metadata(path).num_rows
        return FileResult(path, count, count, len(tasks))
    with JsonLinesWriter(lines) as writer:
        num_there, first, skipped = _written_so_far(lines, tasks)
        report(first)
        rest = tasks[first:]
        num_new = _append(writer, spec, source, rest, skipped, chosen_library, workers, report)
    if is_parquet:
        with ShardWriter(path, "parquet", source.schema) as parquet:
            for record in read_json_lines(lines):
                parquet.write(record)
            parquet.commit()
        lines.unlink()
    return FileResult(path, num_there + num_new, num_there, len(tasks))


def _claim(path: Path, lines: Path, manifest: dict[str, Any], overwrite: bool) -> bool:
    """Make sure that the file is ours to write; return whether it is the one that these arguments began."""

    def replace() -> None:
        for old in (path, lines):
            old.unlink(missing_ok=True)

    place = path.with_name(path.name + MANIFEST_SUFFIX)
    is_taken = path.exists() and path.stat().st_size > 0
    _, is_same = claim(
        place,
        manifest,
        path,
        found="something" if is_taken else None,
        holds="other records",
        advice="use another file, or allow overwriting",
        identity=identity,
        replace=replace if overwrite or not (is_taken or place.exists()) else None,
    )
    return is_same


def _written_so_far(path: Path, tasks: Sequence[Task]) -> tuple[int, int, int]:
    """Return how many records are there, which task comes next, and how many of that task's records are there."""
    place = {task.instance_id: index for index, task in enumerate(tasks)}
    number, last, of_last = 0, -1, 0
    for record in read_json_lines(path):
        index = place.get(str(record.get("instance_id"))) if isinstance(record, dict) else None
        if index is None or index < last:
            raise StoreError(f"line {number + 1} of {path} is not of this run: allow overwriting to write it anew")
        of_last = of_last + 1 if index == last else 1
        number, last = number + 1, index
    return number, max(last, 0), of_last


def _append(
    writer: JsonLinesWriter,
    spec: SourceSpec,
    source: RecordSource,
    tasks: Sequence[Task],
    skipped: int,
    library: ToolLibrary,
    workers: int,
    report: Callable[[int], None],
) -> int:
    """Append the records of tasks, without the first `skipped` ones; return how many were appended."""
    count = 0
    for lines in _encoded_by_task(spec, source, tasks, library, workers):
        new, skipped = lines[skipped:], max(skipped - len(lines), 0)
        if new:
            writer.write_encoded(b"".join(new))
        count += len(new)
        report(1)
    return count


def _encoded_by_task(
    spec: SourceSpec, source: RecordSource, tasks: Sequence[Task], library: ToolLibrary, workers: int
) -> Iterator[list[bytes]]:
    """Yield the encoded records of each task, in the order of the tasks."""
    blocks = [tuple(tasks[start : start + TASKS_PER_JOB]) for start in range(0, len(tasks), TASKS_PER_JOB)]
    workers = min(workers, len(blocks))
    if workers <= 1:  # task by task, so that a kill loses next to nothing
        for task in tasks:
            yield _encode(source, task)
        return
    text = None if library == default_library() else library.to_json()
    for made in answers_in_order(_Maker, (spec, text), blocks, workers):
        yield from made


class _Maker:
    """Makes the records of some tasks in another process."""

    def __init__(self, setup: tuple[SourceSpec, str | None]) -> None:
        spec, library = setup
        self._source = spec.make(
            default_library() if library is None else ToolLibrary.from_json(library, source="library")
        )

    def __call__(self, job: tuple[int, tuple[Task, ...]]) -> Iterator[tuple[int, list[list[bytes]]]]:
        number, tasks = job
        yield number, [_encode(self._source, task) for task in tasks]


def _encode(source: RecordSource, task: Task) -> list[bytes]:
    lines = []
    for record in source.records(task):
        problem = check_record(source.schema, record)
        if problem is not None:
            raise InvalidInputError(
                f"task {task.instance_id}: no record of the schema {source.schema.name!r}: {problem}"
            )
        lines.append(encode_record(record))
    return lines


def _say_nothing(number: int) -> None:
    pass
