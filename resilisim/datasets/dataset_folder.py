"""The folder of a dataset: its manifest and shards, what in it is whole, who may write to it, and its reader."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, TypeAlias, cast

from resilisim.datasets.schema import DataType, Record, RecordSchema, SourceSpec, convert_json, import_parquet
from resilisim.errors import StoreError, unknown_name
from resilisim.evaluation.run.plan import hash_tasks
from resilisim.inputs import inside
from resilisim.provenance import canonical_json, content_hash, describe_os_error, encode_json, package_versions
from resilisim.run_folder import (
    MANIFEST_NAME,
    Closing,
    claim,
    is_temporary,
    load_manifest,
    lock,
    make_folder,
    read_json_lines,
    remove_temporaries,
    write_file_atomically,
)
from resilisim.tasks.benchmark import benchmark_identity
from resilisim.tasks.split import SPLITS, Split, split_of_task
from resilisim.tasks.task import Task
from resilisim.tool_library.library import ToolLibrary

Format: TypeAlias = Literal["jsonl", "parquet"]
DATASET_FORMATS: tuple[Format, ...] = ("jsonl", "parquet")  # also the endings of the files' names

_FILE_NAME = re.compile(rf"({'|'.join(SPLITS)})-(\d{{5,}})-of-(\d{{5,}})\.({'|'.join(DATASET_FORMATS)})")


@dataclass(frozen=True, slots=True)
class Shard:
    """One file of a dataset: the number-th, from 0, of the `count` files of its split, for these tasks."""

    split: Split
    number: int
    count: int
    tasks: tuple[Task, ...] = field(repr=False)

    def file_name(self, file_format: Format) -> str:
        """Return the name of its file, such as "train-00000-of-00012.jsonl"."""
        return f"{self.split}-{self.number:05d}-of-{self.count:05d}.{file_format}"


@dataclass(frozen=True, slots=True)
class ShardFacts:
    """What is in a file of records; the hash is that of its bytes, in hex."""

    file: str
    num_records: int
    num_bytes: int
    sha256: str

    @property
    def split(self) -> Split:
        """The part of the data that a shard belongs to."""
        return cast("Split", self.file.partition("-")[0])

    def to_mapping(self) -> dict[str, Any]:
        """Return the facts as JSON values."""
        return {"file": self.file, "records": self.num_records, "bytes": self.num_bytes, "sha256": self.sha256}

    @classmethod
    def from_mapping(cls, mapping: dict[str, Any]) -> ShardFacts:
        """Build the facts from what `to_mapping` returned."""
        return cls(mapping["file"], mapping["records"], mapping["bytes"], mapping["sha256"])


def plan_shards(tasks: Sequence[Task], tasks_per_shard: int) -> list[Shard]:
    """Divide tasks into shards, splits in the order train, validation, test, tasks in theirs."""
    tasks_of: dict[Split, list[Task]] = {split: [] for split in SPLITS}
    for task in tasks:
        tasks_of[split_of_task(task)].append(task)
    shards: list[Shard] = []
    for split, split_tasks in tasks_of.items():
        starts = range(0, len(split_tasks), tasks_per_shard)
        shards += [
            Shard(split, number, len(starts), tuple(split_tasks[start : start + tasks_per_shard]))
            for number, start in enumerate(starts)
        ]
    return shards


def is_shard_name(name: str) -> bool:
    """Tell whether a file name is one that a shard can have."""
    return _FILE_NAME.fullmatch(name) is not None


DATASET_SCHEMA = "resilisim-dataset-1"


def make_manifest(
    spec: SourceSpec,
    tasks: Sequence[Task],
    schema: RecordSchema,
    library: ToolLibrary,
    file_format: Format,
    **layout: Any,
) -> dict[str, Any]:
    """Return the manifest of the records of tasks, in their order; `layout` are further arguments that decide bytes."""
    description = {
        "benchmark": benchmark_identity(tasks),
        "format": file_format,
        "kind": spec.kind,
        "library": library.content_hash,
        "source": spec.arguments(),
        "tasks": {"count": len(tasks), "sha256": hash_tasks(tasks)},
        **layout,
    }
    arguments = json.loads(canonical_json(description))  # tuples become lists, as they come back from a file
    splits = [split_of_task(task) for task in tasks]
    return {
        "schema": DATASET_SCHEMA,
        "hash": content_hash(arguments),
        "arguments": arguments,
        "versions": package_versions(("resilisim", "pyarrow") if file_format == "parquet" else ("resilisim",)),
        "records": schema.to_mapping(),
        "tasks_per_split": {split: splits.count(split) for split in SPLITS},
    }


def identity(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parts of a manifest that decide the bytes."""
    return {"arguments": manifest["arguments"], "versions": manifest.get("versions")}


CARD_NAME = "README.md"
SHARDS_NAME = "shards.json"
DATA_NAME = "data"
OUR_NAMES = (MANIFEST_NAME, CARD_NAME, SHARDS_NAME, DATA_NAME)


class DatasetFolder(Closing):
    """A dataset's folder, made if needed and open for writing by one process; used as a context.

    To overwrite is to remove another dataset that is there, and to permit foreign files beside; all else that is in the
    way, and a second writer, is refused (`StoreError`).
    """

    def __init__(self, directory: Path, manifest: Mapping[str, Any], *, overwrite: bool) -> None:
        self.directory = directory
        self.data = directory / DATA_NAME
        self._made = make_folder(directory)  # what was not there before, in the order of its making
        self._lock = _lock(directory)
        try:
            self._prepare(manifest, overwrite)
        except BaseException as error:
            self._release()
            if isinstance(error, OSError):
                raise StoreError(f"cannot write to {directory}: {describe_os_error(error)}") from error
            raise

    def holds(self, file_name: str) -> bool:
        """Tell whether a shard is there, and so whole: it got its name when it was."""
        return (self.data / file_name).is_file()

    def is_finished(self) -> bool:
        """Tell whether the card and the list of shards are there: they are written when all shards are."""
        return (self.directory / SHARDS_NAME).is_file() and (self.directory / CARD_NAME).is_file()

    def finish(self, facts: Sequence[ShardFacts], card: str) -> None:
        """Write the list of shards and, last of all, the card."""
        listed = encode_json([fact.to_mapping() for fact in facts], indent=2, sort_keys=True)
        write_file_atomically(self.directory / SHARDS_NAME, listed + b"\n")
        write_file_atomically(self.directory / CARD_NAME, card.encode(errors="backslashreplace"))

    def close(self) -> None:
        """Take away what was not finished, and let others write to the folder."""
        self._remove_temporaries()
        self._release()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close the folder; if an error ended the export before anything was written, leave nothing behind."""
        self._remove_temporaries()
        if error is not None and not _names_in(self.data):
            for path in reversed(self._made):
                with contextlib.suppress(OSError):  # a folder into which somebody else has put something stays
                    path.rmdir() if path.is_dir() else path.unlink()
        self.close()

    def _release(self) -> None:
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def _prepare(self, manifest: Mapping[str, Any], overwrite: bool) -> None:
        path = self.directory / MANIFEST_NAME
        try:
            is_new = load_manifest(path, DATASET_SCHEMA) is None
        except StoreError as error:
            raise StoreError(f"{error}: use another folder") from error
        if is_new:
            self._refuse_foreign_files(overwrite)
        claim(
            path,
            manifest,
            self.directory,
            holds="another dataset",
            advice="use another folder, or allow overwriting",
            identity=identity,
            replace=self._remove_dataset if overwrite and not is_new else None,
        )
        self._remove_temporaries()
        if is_new:
            self._made += [path] if self.data.exists() else [path, self.data]
        self.data.mkdir(exist_ok=True)

    def _refuse_foreign_files(self, overwrite: bool) -> None:
        names = sorted(name for name in os.listdir(self.directory) if not is_temporary(name, MANIFEST_NAME.__eq__))
        taken = [name for name in names if name in OUR_NAMES]
        if taken:
            # Not even to be overwritten: it was somebody else who wrote it.
            raise StoreError(f"{self.directory} holds a {taken[0]} that no dataset export wrote: use another folder")
        if names and not overwrite:
            listed = names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"
            raise StoreError(
                f"{self.directory} holds {listed} that no dataset export wrote: "
                "use another folder, or allow overwriting to write beside what is there"
            )

    def _remove_dataset(self) -> None:
        for name in (CARD_NAME, SHARDS_NAME):
            (self.directory / name).unlink(missing_ok=True)
        for name in _names_in(self.data):
            if is_shard_name(name):
                (self.data / name).unlink()

    def _remove_temporaries(self) -> None:
        """Remove what a process that was killed left behind; nobody else writes here."""
        remove_temporaries(self.directory, (MANIFEST_NAME, SHARDS_NAME, CARD_NAME).__contains__)
        remove_temporaries(self.data, is_shard_name)


def read_manifest(directory: Path) -> dict[str, Any]:
    """Return the manifest of a dataset; a folder without one, or with one that was changed, is refused."""
    manifest = load_manifest(directory / MANIFEST_NAME, DATASET_SCHEMA)
    if manifest is None:
        reason = f"it has no {MANIFEST_NAME}" if directory.exists() else "it does not exist"
        raise StoreError(f"{directory} is not a folder of a dataset: {reason}")
    return manifest


def read_facts(directory: Path) -> list[ShardFacts]:
    """Return what a finished dataset says of its shards; a list that is missing or was changed is refused."""
    path = directory / SHARDS_NAME
    try:
        entries = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(entries, list):
            raise ValueError("no list")
        return [ShardFacts.from_mapping(entry) for entry in entries]
    except FileNotFoundError as error:
        raise StoreError(f"{directory} is not finished: the same command resumes it") from error
    except OSError as error:
        raise StoreError(f"cannot read {path}: {describe_os_error(error)}") from error
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise StoreError(f"{path} was changed: it is not a list of shards") from error


def _lock(directory: Path) -> int:
    """Take the folder for this process; where the system cannot lock a folder, two writers write the same bytes."""
    if sys.platform == "win32":
        return -1
    try:
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise StoreError(f"cannot read {directory}: {describe_os_error(error)}") from error
    try:
        lock(descriptor, directory)
    except (StoreError, OSError) as error:
        os.close(descriptor)
        if isinstance(error, StoreError):
            raise
        return -1
    return descriptor


def _names_in(folder: Path) -> list[str]:
    return sorted(os.listdir(folder)) if folder.is_dir() else []


ROWS_PER_BATCH = 100


@dataclass(frozen=True, slots=True)
class Verification:
    """What came out of a look at every byte of a dataset: files, records, and one line for each thing that is wrong."""

    num_shards: int
    num_records: int
    problems: tuple[str, ...]

    def to_mapping(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return {"shards": self.num_shards, "records": self.num_records, "problems": list(self.problems)}


def verify_dataset(directory: Path | str) -> Verification:
    """Compare every shard of a dataset with the list that the export wrote.

    Raises:
        StoreError: The folder holds no dataset, or one that is not finished.
        MissingExtraError: It is Parquet, and pyarrow is not installed.

    Example:
        >>> from resilisim.datasets import verify_dataset
        >>> verify_dataset("data/prompts").problems  # doctest: +SKIP
        ()
    """
    folder = Path(directory)
    read_manifest(folder)
    expected = read_facts(folder)
    problems = [problem for facts in expected if (problem := _shard_problem(folder / DATA_NAME, facts)) is not None]
    known = {facts.file for facts in expected}
    for path in sorted((folder / DATA_NAME).glob("*")):
        if is_shard_name(path.name) and path.name not in known:
            problems.append(f"{path} belongs to no dataset in this folder")
    return Verification(len(expected), sum(facts.num_records for facts in expected), tuple(problems))


def _shard_problem(folder: Path, facts: ShardFacts) -> str | None:
    path = inside(folder.parent, folder / facts.file, "shard", StoreError)
    if not path.is_file():
        return f"{path} is missing: the same command makes it again"
    try:
        actual = facts_of_file(path)
    except StoreError as error:
        return str(error)
    return None if actual == facts else f"{path} was changed: remove it, and the same command makes it again"


def read_records(directory: Path | str, split: str | None = None) -> Iterator[Record]:
    """Yield the records of a dataset one by one, in the order of its shards; of an unfinished one, those there are.

    Args:
        directory: The dataset's folder.
        split: "train", "validation" or "test" for that part only.

    Raises:
        InvalidInputError: The split does not exist.
        StoreError: The folder holds no dataset, or a shard cannot be read.
        MissingExtraError: It is Parquet, and pyarrow is not installed.

    Example:
        >>> from resilisim.datasets import read_records
        >>> for record in read_records("data/prompts", "train"):  # doctest: +SKIP
        ...     print(record["prompt_type"], record["costs"]["obey"])
    """
    if split is not None and split not in SPLITS:
        raise unknown_name("split", split, SPLITS)
    folder = Path(directory)
    types = {column["name"]: column["type"] for column in read_manifest(folder)["records"]["columns"]}
    names = [path.name for path in (folder / DATA_NAME).glob("*") if is_shard_name(path.name)]
    for part in SPLITS if split is None else (split,):
        for name in sorted(name for name in names if name.startswith(f"{part}-")):
            yield from _records_of_file(inside(folder, folder / DATA_NAME / name, "shard", StoreError), types)


def facts_of_file(path: Path) -> ShardFacts:
    """Read what is in a file of records; one that cannot be read, or is not whole, is refused."""
    num_lines, last = 0, b"\n"
    try:
        with path.open("rb") as stream:
            digest = hashlib.file_digest(stream, "sha256").hexdigest()
            num_bytes = stream.tell()
            if path.suffix != ".parquet":
                stream.seek(0)
                for line in stream:
                    num_lines += 1
                    last = line
    except OSError as error:
        raise StoreError(f"cannot read {path}: {describe_os_error(error)}") from error
    if not last.endswith(b"\n"):
        raise _not_whole(path)
    num_records = _open_parquet(path).metadata.num_rows if path.suffix == ".parquet" else num_lines
    return ShardFacts(path.name, num_records, num_bytes, digest)


def _records_of_file(path: Path, types: DataType) -> Iterator[Record]:
    if path.suffix == ".jsonl":
        yield from read_json_lines(path)
        return
    for batch in _open_parquet(path).iter_batches(batch_size=ROWS_PER_BATCH):
        yield from (cast("Record", convert_json(record, types, json.loads)) for record in batch.to_pylist())


def _open_parquet(path: Path) -> Any:
    parquet, pyarrow = import_parquet(), import_parquet("pyarrow")
    try:
        return parquet.ParquetFile(path)
    except (OSError, pyarrow.ArrowException) as error:
        raise _not_whole(path) from error


def _not_whole(path: Path) -> StoreError:
    return StoreError(f"{path} is not whole: remove it, and the same command makes it again")
