"""A shard appears when it is whole, with the bytes that its records have; anything else leaves nothing."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pyarrow.parquet
import pytest

from resilisim.datasets import export
from resilisim.datasets.export import ROWS_PER_GROUP, ShardWriter
from resilisim.datasets.folder import FORMATS, Format, facts_of_file
from resilisim.errors import InvalidInputError, StoreError
from tests.datasets.accidents import no_file_above
from tests.datasets.toy_source import TOY_SCHEMA, toy_record

RECORDS = [toy_record(f"task_{number % 7}", 0, number) for number in range(50)]


def write(path: Path, file_format: Format, records: Iterable[dict[str, Any]]) -> Any:
    with ShardWriter(path, file_format, TOY_SCHEMA) as writer:
        for record in records:
            writer.write(record)
        return writer.commit()


def read(path: Path) -> list[dict[str, Any]]:
    if path.suffix == ".parquet":
        return pyarrow.parquet.read_table(path).to_pylist()
    return [json.loads(line) for line in path.read_bytes().split(b"\n")[:-1]]


@pytest.mark.parametrize("file_format", FORMATS)
@pytest.mark.parametrize("count", [0, 1, 50])
def test_records_come_back_and_the_facts_are_those_of_the_file(tmp_path: Path, file_format: Format, count: int) -> None:
    path = tmp_path / f"train-00000-of-00001.{file_format}"
    facts = write(path, file_format, RECORDS[:count])
    assert read(path) == RECORDS[:count]
    data = path.read_bytes()
    assert (facts.file, facts.num_records, facts.num_bytes) == (path.name, count, len(data))
    assert facts.sha256 == hashlib.sha256(data).hexdigest()
    assert facts_of_file(path) == facts
    assert facts.split == "train"


@pytest.mark.parametrize("file_format", FORMATS)
def test_the_file_appears_when_it_is_whole(tmp_path: Path, file_format: Format) -> None:
    path = tmp_path / f"shard.{file_format}"
    with ShardWriter(path, file_format, TOY_SCHEMA) as writer:
        for record in RECORDS:
            writer.write(record)
        assert [entry.name[0] for entry in tmp_path.iterdir()] == ["."]
        writer.commit()
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("file_format", FORMATS)
def test_what_is_not_finished_leaves_nothing(tmp_path: Path, file_format: Format) -> None:
    def stopped() -> Iterator[dict[str, Any]]:
        yield from RECORDS * 30
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write(tmp_path / "shard", file_format, stopped())
    assert list(tmp_path.iterdir()) == []


def test_a_record_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    with (
        pytest.raises(InvalidInputError, match="no record of the schema 'toy-1': on: got 1"),
        ShardWriter(tmp_path / "shard", "jsonl", TOY_SCHEMA) as writer,
    ):
        writer.write({**RECORDS[0], "on": 1})


def test_parquet_has_groups_of_a_fixed_size(tmp_path: Path) -> None:
    count = 2 * ROWS_PER_GROUP + 5
    write(tmp_path / "shard.parquet", "parquet", (RECORDS * (count // len(RECORDS) + 1))[:count])
    found = pyarrow.parquet.ParquetFile(tmp_path / "shard.parquet").metadata
    groups = [found.row_group(place).num_rows for place in range(found.num_row_groups)]
    assert groups == [ROWS_PER_GROUP, ROWS_PER_GROUP, 5]
    assert found.row_group(0).column(0).compression == "ZSTD"


@pytest.mark.parametrize("file_format", FORMATS)
def test_half_a_character_is_replaced_and_two_halves_become_one(tmp_path: Path, file_format: Format) -> None:
    record = {**RECORDS[0], "instance_id": "a\ud800é", "names": ["\ud83d\ude00", "\udfff"], "never": "\ufffd"}
    write(tmp_path / f"shard.{file_format}", file_format, [record])
    assert read(tmp_path / f"shard.{file_format}") == [
        {**record, "instance_id": "a\ufffdé", "names": ["😀", "\ufffd"], "never": "\ufffd"}
    ]


@pytest.mark.parametrize("file_format", FORMATS)
def test_a_folder_that_is_not_there_is_named(tmp_path: Path, file_format: Format) -> None:
    with pytest.raises(StoreError, match=r"cannot write .*absent/shard: no such file or directory"):
        ShardWriter(tmp_path / "absent" / "shard", file_format, TOY_SCHEMA)


@pytest.mark.parametrize("file_format", FORMATS)
@pytest.mark.parametrize("limit", [0, 2, 3_000, 1_200_000])
def test_a_disk_that_fills_up_is_told_in_one_line_and_leaves_nothing(
    tmp_path: Path, file_format: Format, limit: int
) -> None:
    """The system refuses the first byte, in the header, in the first buffer, in the second one."""
    random = Random(0)
    with no_file_above(limit), pytest.raises(StoreError) as failure:
        write(
            tmp_path / "shard",
            file_format,
            ({**RECORDS[0], "never": random.randbytes(10_000).hex()} for _ in range(200)),
        )
    expected = f"cannot write {tmp_path / 'shard'}: file too large; shards that were finished are kept"
    assert str(failure.value).startswith(expected)
    assert list(tmp_path.iterdir()) == []


def test_the_real_full_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export, "temporary_path", lambda path: path)
    monkeypatch.setattr(Path, "unlink", lambda path, missing_ok: None)
    for file_format in FORMATS:
        with pytest.raises(StoreError, match="cannot write /dev/full: the disk is full"):
            write(Path("/dev/full"), file_format, RECORDS)
