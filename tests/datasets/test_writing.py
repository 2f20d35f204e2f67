"""A file of records appears when it is whole, with the bytes that its records have; anything else leaves nothing."""

import hashlib
import json
from random import Random

import pyarrow.parquet
import pytest

from resilisim.datasets.dataset_folder import DATASET_FORMATS, ShardFacts, facts_of_file
from resilisim.datasets.export import ROWS_PER_GROUP, ShardWriter
from resilisim.errors import InvalidInputError, StoreError
from tests.datasets.toy_source import TOY_SCHEMA, no_file_above, toy_record

RECORDS = [toy_record(f"task_{number % 7}", 0, number) for number in range(50)]
pytestmark = pytest.mark.parametrize("file_format", DATASET_FORMATS)


def write(path, records):
    with ShardWriter(path, path.suffix[1:], TOY_SCHEMA) as writer:
        for record in records:
            writer.write(record)
            assert not path.exists()
        return writer.commit()


def read(path):
    if path.suffix == ".parquet":
        return pyarrow.parquet.read_table(path).to_pylist()
    return [json.loads(line) for line in path.read_bytes().split(b"\n")[:-1]]


@pytest.mark.parametrize("count", [0, 1, 2 * ROWS_PER_GROUP + 5])
def test_records_come_back_and_the_facts_are_those_of_the_file(tmp_path, file_format, count):
    path = tmp_path / f"train-00000-of-00001.{file_format}"
    records = [RECORDS[number % 50] for number in range(count)]
    facts = write(path, records)
    assert list(tmp_path.iterdir()) == [path]
    assert read(path) == records
    data = path.read_bytes()
    assert facts == ShardFacts(path.name, count, len(data), hashlib.sha256(data).hexdigest()) == facts_of_file(path)
    assert facts.split == "train"
    if file_format == "parquet" and count > 1:
        found = pyarrow.parquet.ParquetFile(path).metadata
        groups = [found.row_group(place).num_rows for place in range(found.num_row_groups)]
        assert groups == [ROWS_PER_GROUP, ROWS_PER_GROUP, 5]
        assert found.row_group(0).column(0).compression == "ZSTD"


def test_half_a_character_is_replaced_and_two_halves_become_one(tmp_path, file_format):
    path = tmp_path / f"shard.{file_format}"
    record = {**RECORDS[0], "instance_id": "a\ud800é", "names": ["\ud83d\ude00", "\udfff"], "never": "\ufffd"}
    write(path, [record])
    assert read(path) == [{**record, "instance_id": "a\ufffdé", "names": ["😀", "\ufffd"], "never": "\ufffd"}]


def test_what_is_stopped_or_does_not_fit_leaves_nothing(tmp_path, file_format):
    path = tmp_path / f"shard.{file_format}"
    with pytest.raises(InvalidInputError, match="no record of the schema 'toy-1': on: got 1"):
        write(path, [*RECORDS * 30, {**RECORDS[0], "on": 1}])
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(StoreError, match=rf"cannot write .*absent/shard\.{file_format}: no such file or directory"):
        write(tmp_path / "absent" / path.name, [])


@pytest.mark.parametrize("limit", [0, 2, 3_000, 1_200_000])
def test_a_disk_that_fills_up_is_told_in_one_line_and_leaves_nothing(tmp_path, file_format, limit):
    """The system refuses the first byte, in the header, in the first buffer, in the second one."""
    path, random = tmp_path / f"shard.{file_format}", Random(0)
    with no_file_above(limit), pytest.raises(StoreError) as failure:
        write(path, ({**RECORDS[0], "never": random.randbytes(10_000).hex()} for _ in range(200)))
    expected = f"cannot write {path}: file too large; shards that were finished are kept"
    assert str(failure.value).startswith(expected)
    assert list(tmp_path.iterdir()) == []
