"""`export_dataset`: the records of many tasks as a folder of shards that others load and train on.

A shard is streamed into a hidden file that gets its name when it is whole, and hashed on the way; shards are written in
this process or in several.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import pickle
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

from resilisim.datasets.card import describe_lengths, measure_lengths, render_card, token_counter
from resilisim.datasets.folder import (
    FORMATS,
    DatasetFolder,
    Format,
    Shard,
    ShardFacts,
    facts_of_file,
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
    require,
    to_arrow,
)
from resilisim.errors import (
    MAX_COUNT,
    MAX_WORKERS,
    InvalidInputError,
    ResiliSimError,
    StoreError,
    check_integer,
    unknown_name,
)
from resilisim.evaluation.run.plan import check_tasks
from resilisim.processes import answers_of_processes, one_by_one
from resilisim.provenance import describe_os_error
from resilisim.run_folder import temporary_path
from resilisim.tool_library.library import ToolLibrary, default_library

ROWS_PER_GROUP = 1_000  # of a Parquet file: what is held in memory at a time
BUFFER_BYTES = 1 << 20

_LINE_ENCODER = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False, allow_nan=False)


class ShardWriter:
    """Writes one shard; used as a context, which leaves nothing behind unless `commit` was called.

    Args:
        path: The file; it appears when it is whole.
        file_format: "jsonl" or "parquet".
        schema: What each record has to look like.
        metadata: Names and texts that a Parquet file keeps with its schema; JSON Lines have no place for them.
        advice: What a refusal says of what was written before.

    Raises:
        StoreError: The file cannot be written.
        MissingExtraError: Parquet was asked for, and pyarrow is not installed.
    """

    def __init__(
        self,
        path: Path,
        file_format: Format,
        schema: RecordSchema,
        *,
        metadata: Mapping[str, str] | None = None,
        advice: str = "shards that were finished are kept, and the same command goes on from there",
    ) -> None:
        self.path = path
        self.num_records = 0
        self._advice = advice
        self._schema = schema
        self._temporary = temporary_path(path)
        try:
            self._sink = _HashedFile(self._temporary)
        except OSError as error:
            raise self._refusal(error) from error
        try:
            self._encoder: _Encoder = ENCODERS[file_format](self._sink, schema, metadata or {})
        except BaseException as error:
            self._sink.abandon()
            self._temporary.unlink(missing_ok=True)
            if isinstance(error, OSError):
                raise self._refusal(error) from error
            raise

    def write(self, record: Record) -> None:
        """Append one record.

        Raises:
            InvalidInputError: It does not fit the schema.
            StoreError: The disk is full, or the like.
        """
        problem = check_record(self._schema, record)
        if problem is not None:
            raise InvalidInputError(f"no record of the schema {self._schema.name!r}: {problem}")
        try:
            self._encoder.write(record)
        except OSError as error:
            raise self._refusal(error) from error
        self.num_records += 1

    def commit(self) -> ShardFacts:
        """Finish the file and give it its name.

        Raises:
            StoreError: The disk is full, or the like.
        """
        try:
            self._encoder.finish()
            self._sink.hand_to_disk()
            self._temporary.replace(self.path)
        except OSError as error:
            raise self._refusal(error) from error
        return ShardFacts(self.path.name, self.num_records, self._sink.num_bytes, self._sink.digest.hexdigest())

    def __enter__(self) -> ShardWriter:
        """Return the writer itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Take away what is not whole."""
        self._sink.abandon()
        self._encoder.close()
        self._temporary.unlink(missing_ok=True)

    def _refusal(self, error: OSError) -> StoreError:
        return StoreError(f"cannot write {self.path}: {describe_os_error(error)}; {self._advice}")


def encode_record(record: Record) -> bytes:
    """Return a record as one JSON line, as it stands in shards and files."""
    try:
        return _LINE_ENCODER.encode(record).encode() + b"\n"
    except UnicodeEncodeError:
        return _LINE_ENCODER.encode(_without_surrogates(record)).encode() + b"\n"


class _HashedFile:
    """A file that counts and hashes what is written to it; pyarrow can write to it too."""

    closed = False

    def __init__(self, path: Path) -> None:
        self._stream = path.open("wb", buffering=BUFFER_BYTES)
        self._is_abandoned = False
        self.digest = hashlib.sha256()
        self.num_bytes = 0

    def write(self, data: Any) -> int:
        view = memoryview(data)
        if not self._is_abandoned:
            self._stream.write(view)
            self.digest.update(view)
            self.num_bytes += view.nbytes
        return view.nbytes

    def tell(self) -> int:
        return self.num_bytes

    def flush(self) -> None:
        """Do nothing: only whole files matter."""

    def close(self) -> None:
        """Do nothing: whoever made the file closes it."""

    def hand_to_disk(self) -> None:
        self._stream.flush()
        os.fsync(self._stream.fileno())
        self._stream.close()

    def abandon(self) -> None:
        """Close the file, whole or not; what is written from now on goes nowhere."""
        self._is_abandoned = True
        with contextlib.suppress(OSError):  # what is still in the buffer may not fit on a full disk
            self._stream.close()


class _Encoder(Protocol):
    def write(self, record: Record) -> None: ...

    def finish(self) -> None: ...

    def close(self) -> None: ...


class _JsonLines:
    def __init__(self, sink: _HashedFile, schema: RecordSchema, metadata: Mapping[str, str]) -> None:
        self._sink = sink

    def write(self, record: Record) -> None:
        self._sink.write(encode_record(record))

    def finish(self) -> None:
        pass

    def close(self) -> None:
        pass


class _Parquet:
    def __init__(self, sink: _HashedFile, schema: RecordSchema, metadata: Mapping[str, str]) -> None:
        self._pyarrow = require("pyarrow")
        self._types = schema.struct
        self._schema = to_arrow(schema).with_metadata(dict(metadata) or None)
        self._stored = to_arrow(schema, "string")  # tables are made of texts: pyarrow makes no JSON inside of lists
        self._rows: list[Record] = []
        self._writer = require("pyarrow.parquet").ParquetWriter(sink, self._schema, compression="zstd")

    def write(self, record: Record) -> None:
        self._rows.append(convert_json(record, self._types, _LINE_ENCODER.encode))
        if len(self._rows) == ROWS_PER_GROUP:
            self._write_group()

    def finish(self) -> None:
        if self._rows:
            self._write_group()
        self._writer.close()

    def close(self) -> None:
        # A writer that was never closed writes its footer when it is collected: into a file that takes it no more.
        self._writer.close()

    def _write_group(self) -> None:
        table_of = self._pyarrow.Table.from_pylist
        try:
            table = table_of(self._rows, self._stored)
        except UnicodeEncodeError:
            table = table_of(_without_surrogates(self._rows), self._stored)
        self._writer.write_table(table.cast(self._schema))
        self._rows = []


ENCODERS: Mapping[Format, Callable[[_HashedFile, RecordSchema, Mapping[str, str]], _Encoder]] = {
    "jsonl": _JsonLines,
    "parquet": _Parquet,
}


def _without_surrogates(value: Any) -> Any:
    """Return JSON values with each half of a character, which UTF-8 and Parquet cannot hold, replaced by U+FFFD."""
    if isinstance(value, str):
        return value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    if isinstance(value, dict):
        return {name: _without_surrogates(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_without_surrogates(item) for item in value]
    return value


@dataclass(frozen=True, slots=True)
class ShardSettings:
    """What a process needs to know to write any shard of a dataset.

    Attributes:
        spec: Where the records come from.
        library: The tool library as JSON, or None for the default one.
        data: The folder of the shards.
        file_format: "jsonl" or "parquet".
    """

    spec: SourceSpec
    library: str | None
    data: Path
    file_format: Format

    def make_source(self) -> RecordSource:
        """Return the source of the records."""
        library = default_library() if self.library is None else ToolLibrary.from_json(self.library, source="library")
        return self.spec.make(library)


class ShardMaker:
    """Writes shards one after the other.

    Args:
        settings: What the dataset is.
        source: Where the records come from; made if it is not given.
    """

    def __init__(self, settings: ShardSettings, source: RecordSource | None = None) -> None:
        self._settings = settings
        self._source = source or settings.make_source()

    def __call__(self, shard: Shard) -> Iterator[int | ShardFacts]:
        """Write a shard; yield 1 after each task, and at the end what the file holds.

        Raises:
            StoreError: The disk is full, or the like.
            ResiliSimError: The source refused the task, or a record does not fit; the text names the task.
            Exception: Whatever else the source raises, with a note that names the task.
        """
        settings = self._settings
        path = settings.data / shard.file_name(settings.file_format)
        with ShardWriter(path, settings.file_format, self._source.schema) as writer:
            for task in shard.tasks:
                try:
                    for record in self._source.records(task):
                        writer.write(record)
                except StoreError:
                    raise
                except ResiliSimError as error:
                    raise type(error)(f"task {task.instance_id}: {error}") from error
                except Exception as error:
                    error.add_note(f"ResiliSim: this was raised for task {task.instance_id}")
                    raise
                yield 1
            yield writer.commit()


def write_shards(
    settings: ShardSettings, source: RecordSource, shards: Sequence[Shard], workers: int
) -> Generator[int | ShardFacts, None, None]:
    """Write shards and yield numbers of tasks as they are done, and the facts of each shard that is whole.

    Args:
        settings: What the dataset is.
        source: Where the records come from, as far as this process writes.
        shards: What to write.
        workers: Number of processes; 1 is this one.

    Raises:
        InvalidInputError: The source cannot travel to other processes.
        InfrastructureError: A worker process died.
        Exception: Whatever a shard raises; the others are stopped.
    """
    workers = min(workers, len(shards))
    if workers <= 1:
        maker = ShardMaker(settings, source)
        for shard in shards:
            yield from maker(shard)
        return
    try:
        pickle.dumps(settings)
    except Exception as error:
        raise InvalidInputError(
            f"the source of the records cannot be handed to other processes ({error}): use one worker"
        ) from error
    yield from answers_of_processes(ShardMaker, settings, one_by_one(shards), workers)


TASKS_PER_SHARD = 50
DEFAULT_LICENSE = "apache-2.0"


class ExportInterrupted(KeyboardInterrupt):
    """Somebody stopped an export with Ctrl-C.

    Attributes:
        num_kept: Shards that are on disk.
        num_shards: Shards of the whole dataset.
    """

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
        totals: dict[str, int] = {}
        for facts in self.shards:
            totals[facts.split] = totals.get(facts.split, 0) + facts.num_records
        return totals

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
        tasks: Tasks, in any form that `evaluate` takes: "benchmark-v1", a number, a file, or a list.
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
    """
    if format not in FORMATS:
        raise unknown_name("format", format, FORMATS)
    tasks_per_shard = check_integer("tasks_per_shard", tasks_per_shard, 1, MAX_COUNT)
    workers = check_integer("workers", workers, 1, MAX_WORKERS)
    chosen_library = default_library() if library is None else library
    shards = plan_shards(check_tasks(tasks, chosen_library), tasks_per_shard)
    if format == "parquet":
        require("pyarrow.parquet")
    counter = token_counter(tokenizer)
    source = spec.make(chosen_library)
    all_tasks = [task for shard in shards for task in shard.tasks]
    manifest = make_manifest(
        spec,
        all_tasks,
        source.schema,
        chosen_library,
        format,
        license=license,
        tasks_per_shard=tasks_per_shard,
        tokenizer=None if counter is None else counter.name,
    )
    with DatasetFolder(Path(out), manifest, overwrite=overwrite) as folder:
        kept = [shard for shard in shards if folder.holds(shard.file_name(format))]
        missing = [shard for shard in shards if not folder.holds(shard.file_name(format))]
        report = progress or _say_nothing
        report(sum(len(shard.tasks) for shard in kept))
        if not missing and folder.is_finished():
            return ExportResult(folder.directory, manifest, tuple(read_facts(folder.directory)), len(kept))
        library_text = None if chosen_library == default_library() else chosen_library.to_json()
        settings = ShardSettings(spec, library_text, folder.data, format)
        facts = {shard.file_name(format): facts_of_file(folder.data / shard.file_name(format)) for shard in kept}
        try:
            with contextlib.closing(write_shards(settings, source, missing, workers)) as written:
                for done in written:
                    if isinstance(done, ShardFacts):
                        facts[done.file] = done
                    else:
                        report(done)
            lengths = {} if counter is None else measure_lengths(read_records(out), all_tasks, counter)
        except KeyboardInterrupt:
            # Asked of the disk: a worker may have finished a shard that it could not tell of any more.
            num_kept = sum(folder.holds(shard.file_name(format)) for shard in shards)
            raise ExportInterrupted(num_kept, len(shards)) from None
        in_order = tuple(facts[shard.file_name(format)] for shard in shards)
        said = describe_lengths(lengths, counter)
        folder.finish(in_order, render_card(manifest, source.schema, in_order, license, command, said))
    return ExportResult(folder.directory, manifest, in_order, len(kept))


def _say_nothing(number: int) -> None:
    pass
