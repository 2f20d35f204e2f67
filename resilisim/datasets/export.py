"""The records of many tasks written: as a folder of shards that others load and train on, or as one file.

A shard is streamed into a hidden file that gets its name when it is whole. A single file of JSON Lines grows task by
task, and Parquet is made of it at the end. Either goes on where it was stopped, and records are made in this process
or in several.
"""

from __future__ import annotations

import contextlib
import functools
import io
import json
import os
import pickle
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, TypeAlias

from resilisim.bounds import Count, Workers, checked
from resilisim.datasets.card import describe_lengths, measure_lengths, render_card, token_counter
from resilisim.datasets.dataset_folder import (
    DATASET_FORMATS,
    DatasetFolder,
    Format,
    Shard,
    ShardFacts,
    facts_of_file,
    identity,
    make_manifest,
    plan_shards,
    read_facts,
    read_records,
)
from resilisim.datasets.schema import (
    Record,
    RecordSchema,
    RecordSource,
    SourceSpec,
    check_record,
    convert_json,
    import_parquet,
    to_arrow,
)
from resilisim.envs.settings import RULE_NAMES, EnvironmentSettings
from resilisim.errors import (
    Interrupted,
    InvalidInputError,
    ResiliSimError,
    StoreError,
    unknown_name,
)
from resilisim.evaluation.run.arguments import check_tasks, in_world, library_in
from resilisim.processes import answers_in_order, answers_of_processes, one_by_one
from resilisim.provenance import describe_os_error
from resilisim.run_folder import JsonLinesWriter, claim, is_stream, read_json_lines, temporary_path
from resilisim.tasks import Task
from resilisim.tool_library.library import ToolLibrary, default_library

ROWS_PER_GROUP = 1_000  # of a Parquet file: what is held in memory at a time
BUFFER_BYTES = 1 << 20

_LINE_ENCODER = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False, allow_nan=False)


class ShardWriter:
    """Writes one file of records; used as a context, which leaves nothing behind unless `commit` was called.

    A Parquet file keeps metadata, names and texts, with its schema. Whatever the system refuses is a `StoreError`, with
    the advice on what was written before.
    """

    def __init__(
        self,
        path: Path,
        file_format: Format,
        schema: RecordSchema,
        *,
        metadata: Mapping[str, str] | None = None,
        advice: str = "shards that were finished are kept, and the same command resumes it",
    ) -> None:
        self.path = path
        self._advice = advice
        self._schema = schema
        self._temporary = temporary_path(path)
        self._parquet: _ParquetWriter | None = None
        with self._refusing():
            self._file = _File(self._temporary, "wb")
        self._stream = io.BufferedWriter(self._file, BUFFER_BYTES)
        try:
            with self._refusing():
                if file_format == "parquet":
                    self._parquet = _ParquetWriter(self._stream, schema, metadata or {})
        except BaseException:
            self._give_up()
            raise

    def write(self, record: Record) -> None:
        """Append one record; one that does not fit the schema is refused."""
        fitting = _checked(record, self._schema)
        with self._refusing():
            if self._parquet is None:
                self._stream.write(encode_record(fitting))
            else:
                self._parquet.write(fitting)

    def commit(self) -> ShardFacts:
        """Finish the file and give it its name."""
        with self._refusing():
            if self._parquet is not None:
                self._parquet.finish()
            self._stream.flush()
            os.fsync(self._stream.fileno())
            self._stream.close()
            self._temporary.replace(self.path)
        return facts_of_file(self.path)

    def __enter__(self) -> ShardWriter:
        """Return the writer itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Take away what is not whole."""
        self._give_up()

    def _give_up(self) -> None:
        self._file.is_given_up = True
        if self._parquet is not None:
            self._parquet.close()
        self._stream.close()
        self._temporary.unlink(missing_ok=True)

    @contextlib.contextmanager
    def _refusing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise StoreError(f"cannot write {self.path}: {describe_os_error(error)}; {self._advice}") from error


def encode_record(record: Record) -> bytes:
    """Return a record as one JSON line, as it stands in shards and files."""
    try:
        return _LINE_ENCODER.encode(record).encode() + b"\n"
    except UnicodeEncodeError:
        return _LINE_ENCODER.encode(_without_surrogates(record)).encode() + b"\n"


def _checked(record: Record, schema: RecordSchema) -> Record:
    problem = check_record(schema, record)
    if problem is not None:
        raise InvalidInputError(f"no record of the schema {schema.name!r}: {problem}")
    return record


class _File(io.FileIO):
    """A file that takes nothing any more once it was given up.

    What is left in buffers may not fit on a full disk, and pyarrow writes a footer whenever a writer is let go of.
    """

    is_given_up = False

    def write(self, data: Any, /) -> int:
        return memoryview(data).nbytes if self.is_given_up else super().write(data)


class _ParquetWriter:
    def __init__(self, stream: io.BufferedIOBase, schema: RecordSchema, metadata: Mapping[str, str]) -> None:
        parquet, self._pyarrow = import_parquet(), import_parquet("pyarrow")
        self._types = schema.struct
        self._schema = to_arrow(schema).with_metadata(dict(metadata) or None)
        self._stored = to_arrow(schema, "string")  # tables are made of texts: pyarrow makes no JSON inside of lists
        self._rows: list[Record] = []
        self._writer = parquet.ParquetWriter(stream, self._schema, compression="zstd")

    def write(self, record: Record) -> None:
        self._rows.append(convert_json(record, self._types, _LINE_ENCODER.encode))
        if len(self._rows) == ROWS_PER_GROUP:
            self._write_group()

    def finish(self) -> None:
        if self._rows:
            self._write_group()
        self.close()

    def close(self) -> None:
        self._writer.close()

    def _write_group(self) -> None:
        table_of = self._pyarrow.Table.from_pylist
        try:
            table = table_of(self._rows, self._stored)
        except UnicodeEncodeError:
            table = table_of(_without_surrogates(self._rows), self._stored)
        self._writer.write_table(table.cast(self._schema))
        self._rows.clear()


def _without_surrogates(value: Any) -> Any:
    """Return JSON values with each half of a character, which UTF-8 and Parquet cannot hold, replaced by U+FFFD."""
    if isinstance(value, str):
        return value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    if isinstance(value, dict):
        return {name: _without_surrogates(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_without_surrogates(item) for item in value]
    return value


# Makes what makes records, once in each process.
MakeSource: TypeAlias = "Callable[[], RecordSource]"


def _played_where(spec: Any, tasks: object, library: ToolLibrary | None) -> tuple[Any, object, ToolLibrary]:
    """Return spec, tasks and library: tasks of a world are played in it, with its own library."""
    environment = getattr(spec, "environment", None)
    if not isinstance(environment, EnvironmentSettings):
        return spec, tasks, default_library() if library is None else library
    there, tasks = in_world(environment, tasks, chosen_in_worlds(spec.kind))
    changed = spec if there is environment else replace(spec, environment=there)
    return changed, tasks, library_in(there, library)


def chosen_in_worlds(kind: str) -> tuple[str, ...]:
    """Return the options that a kind does not leave to worlds.

    Where nothing fails, or turns are never scarce, a wasted turn costs nothing.
    """
    return ("law", *RULE_NAMES) if kind == "preferences" else ()


def _source_maker(spec: SourceSpec, library: ToolLibrary, source: RecordSource, workers: int) -> MakeSource:
    """Return what can travel to other processes, where the source is made anew; for this one, the source as it is."""
    return functools.partial(spec.make, library) if workers > 1 else lambda: source


@contextlib.contextmanager
def _naming(task: Task) -> Iterator[None]:
    """Name the task in whatever its source raises, or in the refusal of a record."""
    try:
        yield
    except StoreError:
        raise
    except ResiliSimError as error:
        raise type(error)(f"task {task.instance_id}: {error}") from error
    except Exception as error:
        error.add_note(f"ResiliSim: this was raised for task {task.instance_id}")
        raise


class _ShardMaker:
    """Writes shards into a folder; yields 1 after each task, and at the end what the file holds."""

    def __init__(self, setup: tuple[MakeSource, Path, Format]) -> None:
        make, self._folder, self._format = setup
        self._source = make()

    def __call__(self, shard: Shard) -> Iterator[int | ShardFacts]:
        path = self._folder / shard.file_name(self._format)
        with ShardWriter(path, self._format, self._source.schema) as writer:
            for task in shard.tasks:
                with _naming(task):
                    for record in self._source.records(task):
                        writer.write(record)
                yield 1
            yield writer.commit()


def _write_shards(
    make: MakeSource, folder: Path, file_format: Format, shards: Sequence[Shard], workers: int
) -> Generator[int | ShardFacts, None, None]:
    """Write shards and yield numbers of tasks as they are done, and the facts of each shard that is whole."""
    setup = (make, folder, file_format)
    if workers <= 1:
        for answers in map(_ShardMaker(setup), shards):
            yield from answers
        return
    try:
        pickle.dumps(setup)
    except Exception as error:
        raise InvalidInputError(
            f"the source of the records cannot be handed to other processes ({error}): use one worker"
        ) from error
    yield from answers_of_processes(_ShardMaker, setup, one_by_one(shards), workers)


TASKS_PER_SHARD = 50
DEFAULT_LICENSE = "apache-2.0"


class ExportInterrupted(Interrupted):
    """Somebody stopped an export with Ctrl-C; `num_kept` of its `num_shards` shards are on disk."""

    def __init__(self, num_kept: int, num_shards: int) -> None:
        super().__init__(f"interrupted: {num_kept:,} of {num_shards:,} shards kept")
        self.num_kept = num_kept
        self.num_shards = num_shards


@dataclass(frozen=True, slots=True)
class ExportResult:
    """A finished dataset.

    Attributes:
        directory: Its folder.
        manifest: What it is: arguments, versions, schema.
        shards: What is in each of its files.
        num_already_there: Shards that an earlier call had left in the folder; they were not written again.
    """

    directory: Path
    manifest: dict[str, Any]
    shards: tuple[ShardFacts, ...]
    num_already_there: int

    @property
    def num_records(self) -> int:
        """Records of all shards."""
        return sum(facts.num_records for facts in self.shards)

    def records_per_split(self) -> dict[str, int]:
        """Return the number of records of each split that has files."""
        totals: Counter[str] = Counter()
        for facts in self.shards:
            totals[facts.split] += facts.num_records
        return dict(totals)

    def to_mapping(self) -> dict[str, Any]:
        """Return the result as JSON values."""
        return {
            "directory": str(self.directory),
            "manifest": self.manifest,
            "records": self.records_per_split(),
            "shards": [facts.to_mapping() for facts in self.shards],
            "shards_already_there": self.num_already_there,
        }


def export_dataset(
    spec: SourceSpec,
    tasks: object,
    out: Path | str,
    *,
    library: ToolLibrary | None = None,
    format: Format = "jsonl",
    tasks_per_shard: int = TASKS_PER_SHARD,
    workers: int = 1,
    overwrite: bool = False,
    license: str = DEFAULT_LICENSE,
    tokenizer: str | Path | None = None,
    command: str = "",
    progress: Callable[[int], None] | None = None,
) -> ExportResult:
    """Write a dataset; the same arguments write the same bytes, and go on where an earlier call was stopped.

    The folder holds `README.md` (the dataset card), `manifest.json`, `shards.json` and `data/` with the shards of the
    splits train, validation and test. Records of one task are held in memory at a time, of Parquet 1,000 records. A
    call that fails before the first shard is whole leaves nothing behind.

    Args:
        spec: What the records are: `PromptSpec`, `ConversationSpec`, `PreferenceSpec`, or one of your own.
        tasks: Tasks, in any form that `evaluate` takes: "benchmark-v2", a number, a file, a list, or a world, of which
            there are conversations only.
        out: The folder.
        library: Tool library of the tasks; None is the default one.
        format: "jsonl" or "parquet" (needs the extra `datasets`).
        tasks_per_shard: Tasks of each shard; a shard is what is lost when a process is killed.
        workers: Number of processes.
        overwrite: Remove another dataset that is in the folder, and permit files there that no export wrote, which
            stay. The same dataset is not removed: it is gone on with.
        license: License of the records, as the card names it.
        tokenizer: What counts the lengths in tokens that the card states: a `tokenizer.json`, a folder that holds one,
            a GGUF file, or "none"; None takes the tokenizer of the SmolLM2 that ships, where it is installed.
        command: The command that made the dataset, for the card.
        progress: Called now and then with the number of tasks done since the last call.

    Raises:
        InvalidInputError: An argument makes no sense, or a record does not fit its schema.
        StoreError: The folder holds something else, or cannot be written; whole shards are kept.
        MissingExtraError: A package is not installed.
        InfrastructureError: A worker process died; whole shards are kept.
        ExportInterrupted: On Ctrl-C; whole shards are kept.

    Example:
        >>> from resilisim.datasets import export_dataset
        >>> from resilisim.datasets.prompt_records import PromptSpec
        >>> export_dataset(PromptSpec(types=("optimal",)), 10, "data/prompts").num_records  # doctest: +SKIP
        10
    """
    if format not in DATASET_FORMATS:
        raise unknown_name("format", format, DATASET_FORMATS)
    tasks_per_shard = checked(Count, "tasks_per_shard", tasks_per_shard)
    workers = checked(Workers, "workers", workers)
    spec, tasks, chosen_library = _played_where(spec, tasks, library)
    shards = plan_shards(check_tasks(tasks, chosen_library), tasks_per_shard)
    if format == "parquet":
        import_parquet()
    counter = token_counter(tokenizer)
    source = spec.make(chosen_library)
    all_tasks = [task for shard in shards for task in shard.tasks]
    name = None if counter is None else counter.name
    layout = {"license": license, "tasks_per_shard": tasks_per_shard, "tokenizer": name}
    manifest = make_manifest(spec, all_tasks, source.schema, chosen_library, format, **layout)
    report = progress or _say_nothing
    with DatasetFolder(Path(out), manifest, overwrite=overwrite) as folder:
        names = [shard.file_name(format) for shard in shards]
        missing = [shard for shard, name in zip(shards, names, strict=True) if not folder.holds(name)]
        num_kept = len(shards) - len(missing)
        report(len(all_tasks) - sum(len(shard.tasks) for shard in missing))
        if not missing and folder.is_finished():
            return ExportResult(folder.directory, manifest, tuple(read_facts(folder.directory)), num_kept)
        facts = {name: facts_of_file(folder.data / name) for name in names if folder.holds(name)}
        workers = min(workers, len(missing))
        make = _source_maker(spec, chosen_library, source, workers)
        try:
            with contextlib.closing(_write_shards(make, folder.data, format, missing, workers)) as written:
                for done in written:
                    if isinstance(done, ShardFacts):
                        facts[done.file] = done
                    else:
                        report(done)
            lengths = {} if counter is None else measure_lengths(read_records(out), all_tasks, counter)
        except KeyboardInterrupt:
            # Asked of the disk: a worker may have finished a shard that it could not tell of any more.
            raise ExportInterrupted(sum(map(folder.holds, names)), len(shards)) from None
        in_order = tuple(facts[name] for name in names)
        said = describe_lengths(lengths, counter)
        folder.finish(in_order, render_card(manifest, source.schema, in_order, license, command, said))
    return ExportResult(folder.directory, manifest, in_order, num_kept)


def _say_nothing(number: int) -> None:
    pass


MANIFEST_SUFFIX = ".manifest.json"
PARQUET_SUFFIX = ".parquet"
# What the file would not be; any other name is taken for JSON Lines.
OTHER_FORMATS = frozenset({".csv", ".tsv", ".xlsx", ".xml", ".yaml", ".gz", ".zip", ".zst"})
PART_SUFFIX = ".part.jsonl"
_TASKS_PER_JOB = 16


@dataclass(frozen=True, slots=True)
class FileResult:
    """A finished file of records, those of them that an earlier call had written, and the tasks that they are of."""

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
    stopped. A file whose name ends in `.parquet` is made from JSON Lines beside it once these are complete; a pipe or a
    device is written to as it is, without a manifest. Arguments are those of `export_dataset`; each task stands once.

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
    workers = checked(Workers, "workers", workers)
    report = progress or _say_nothing
    chosen_library = default_library() if library is None else library
    source = spec.make(chosen_library)
    make = _source_maker(spec, chosen_library, source, workers)
    if is_stream(path):
        with JsonLinesWriter(path) as writer:
            count = _append(writer, make, tasks, 0, workers, report)
        return FileResult(path, count, 0, len(tasks))
    is_parquet = path.suffix == PARQUET_SUFFIX
    if is_parquet:
        import_parquet()
    lines = path.with_name(path.name + PART_SUFFIX) if is_parquet else path
    manifest = make_manifest(spec, tasks, source.schema, chosen_library, "parquet" if is_parquet else "jsonl")
    is_same = _claim(path, lines, manifest, overwrite)
    if is_parquet and is_same and path.exists():
        report(len(tasks))
        count = facts_of_file(path).num_records
        return FileResult(path, count, count, len(tasks))
    with JsonLinesWriter(lines) as writer:
        num_there, first, skipped = _written_so_far(lines, tasks)
        report(first)
        num_new = _append(writer, make, tasks[first:], skipped, workers, report)
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
    make: MakeSource,
    tasks: Sequence[Task],
    skipped: int,
    workers: int,
    report: Callable[[int], None],
) -> int:
    """Append the records of tasks, without the first `skipped` ones; return how many were appended."""
    size = _TASKS_PER_JOB if workers > 1 else 1  # task by task in this process, so that a kill loses next to nothing
    jobs = [tuple(tasks[start : start + size]) for start in range(0, len(tasks), size)]
    count = 0
    for made in answers_in_order(_LineMaker, make, jobs, min(workers, len(jobs))):
        for lines in made:
            new, skipped = lines[skipped:], max(skipped - len(lines), 0)
            if new:
                writer.write_encoded(b"".join(new))
            count += len(new)
            report(1)
    return count


class _LineMaker:
    """Makes the encoded records of each of some tasks."""

    def __init__(self, make: MakeSource) -> None:
        self._source = make()

    def __call__(self, job: tuple[int, tuple[Task, ...]]) -> Iterator[tuple[int, list[list[bytes]]]]:
        number, tasks = job
        yield number, [self._lines(task) for task in tasks]

    def _lines(self, task: Task) -> list[bytes]:
        with _naming(task):
            return [encode_record(_checked(record, self._source.schema)) for record in self._source.records(task)]
