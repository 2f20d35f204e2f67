"""Reading a dataset's folder back: its records, and whether it is what the export wrote."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from resilisim.datasets.extras import require
from resilisim.datasets.folder import DATA_NAME, read_facts, read_manifest
from resilisim.datasets.schema import DataType, Record, convert_json
from resilisim.datasets.shards import ShardFacts, is_shard_name
from resilisim.errors import StoreError, unknown_name
from resilisim.provenance import describe_os_error, read_json_lines
from resilisim.tasks.model import SPLITS

BLOCK_BYTES = 1 << 20
ROWS_PER_BATCH = 100


@dataclass(frozen=True, slots=True)
class Verification:
    """What came out of a look at every byte of a dataset.

    Attributes:
        num_shards: Files of records that the dataset has.
        num_records: Records that it has.
        problems: What is wrong, one line each; empty if nothing is.
    """

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
    """
    folder = Path(directory)
    read_manifest(folder)
    expected = read_facts(folder)
    problems: list[str] = []
    for facts in expected:
        path = folder / DATA_NAME / facts.file
        if not path.is_file():
            problems.append(f"{path} is missing: the same command makes it again")
            continue
        try:
            found = facts_of_file(path)
        except StoreError as error:
            problems.append(str(error))
            continue
        if found != facts:
            problems.append(f"{path} was changed: remove it, and the same command makes it again")
    known = {facts.file for facts in expected}
    for path in sorted((folder / DATA_NAME).glob("*")):
        if is_shard_name(path.name) and path.name not in known:
            problems.append(f"{path} belongs to no dataset in this folder")
    return Verification(len(expected), sum(facts.num_records for facts in expected), tuple(problems))


def read_records(directory: Path | str, split: str | None = None) -> Iterator[Record]:
    """Yield the records of a dataset one by one, in the order of its shards; of an unfinished one, those there are.

    Args:
        directory: The dataset's folder.
        split: "train", "validation" or "test" for that part only.

    Raises:
        InvalidInputError: The split does not exist.
        StoreError: The folder holds no dataset, or a shard cannot be read.
        MissingExtraError: It is Parquet, and pyarrow is not installed.
    """
    if split is not None and split not in SPLITS:
        raise unknown_name("split", split, SPLITS)
    folder = Path(directory)
    types = {column["name"]: column["type"] for column in read_manifest(folder)["records"]["columns"]}
    names = [path.name for path in (folder / DATA_NAME).glob("*") if is_shard_name(path.name)]
    for part in SPLITS if split is None else (split,):
        for name in sorted(name for name in names if name.startswith(f"{part}-")):
            yield from _records_of_file(folder / DATA_NAME / name, types)


def facts_of_file(path: Path) -> ShardFacts:
    """Read what is in the file of a shard.

    Raises:
        StoreError: It cannot be read, or is not whole.
        MissingExtraError: It is Parquet, and pyarrow is not installed.
    """
    digest = hashlib.sha256()
    num_bytes = num_lines = 0
    block = b"\n"
    try:
        with path.open("rb") as stream:
            while True:
                last, block = block, stream.read(BLOCK_BYTES)
                if not block:
                    break
                digest.update(block)
                num_bytes += len(block)
                num_lines += block.count(b"\n")
    except OSError as error:
        raise StoreError(f"cannot read {path}: {describe_os_error(error)}") from error
    if path.suffix == ".parquet":
        num_records = _open_parquet(path).metadata.num_rows
    else:
        if not last.endswith(b"\n"):
            raise StoreError(f"{path} is not whole: remove it, and the same command makes it again")
        num_records = num_lines
    return ShardFacts(path.name, num_records, num_bytes, digest.hexdigest())


def _records_of_file(path: Path, types: DataType) -> Iterator[Record]:
    if path.suffix == ".jsonl":
        yield from read_json_lines(path)
        return
    for batch in _open_parquet(path).iter_batches(batch_size=ROWS_PER_BATCH):
        for record in batch.to_pylist():
            yield cast("Record", convert_json(record, types, json.loads))


def _open_parquet(path: Path) -> Any:
    parquet, pyarrow = require("pyarrow.parquet"), require("pyarrow")
    try:
        return parquet.ParquetFile(path)
    except (OSError, pyarrow.ArrowException) as error:
        raise StoreError(f"{path} is not whole: remove it, and the same command makes it again") from error
