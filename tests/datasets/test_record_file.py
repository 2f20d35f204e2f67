"""One file of records: the same bytes however it came about, and nothing lost on the way."""

import json
import os
from pathlib import Path

import pyarrow.parquet
import pytest

from resilisim.datasets.export import MANIFEST_SUFFIX, PART_SUFFIX, write_record_file
from resilisim.errors import InvalidInputError, StoreError
from tests.datasets.toy_source import ToySpec, toy_tasks

TASKS = toy_tasks(40)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "mine.jsonl"


@pytest.fixture
def whole(path):
    """The bytes of an unbroken run, which stands in `path`."""
    result = write_record_file(ToySpec(), TASKS, path)
    assert (result.num_tasks, result.num_already_there) == (40, 0)
    data = path.read_bytes()
    assert data.count(b"\n") == result.num_records > 40
    return data


@pytest.mark.long
def test_several_processes_write_the_same_bytes_and_the_same_manifest(tmp_path, path, whole):
    pids = tmp_path / "pids"
    pids.mkdir()
    other = tmp_path / "two.jsonl"
    write_record_file(ToySpec(pids=str(pids)), TASKS, other, workers=2)
    assert other.read_bytes() == whole
    assert len({name for name in os.listdir(pids) if name != str(os.getpid())}) == 2
    first, second = (Path(f"{one}{MANIFEST_SUFFIX}").read_bytes() for one in (path, other))
    assert first == second
    manifest = json.loads(first)
    assert manifest["arguments"]["kind"] == "toys"
    assert manifest["records"]["columns"][0]["name"] == "instance_id"


@pytest.mark.parametrize("share", [0.0, 0.001, 0.3, 0.77, 0.999, 1.0])
def test_a_file_cut_anywhere_is_gone_on_with(path, whole, share):
    left = whole[: int(len(whole) * share)]
    path.write_bytes(left)
    done = []
    result = write_record_file(ToySpec(), TASKS, path, progress=done.append)
    assert path.read_bytes() == whole
    assert (result.num_already_there, result.num_records) == (left.count(b"\n"), whole.count(b"\n"))
    assert sum(done) == len(TASKS)


def test_what_is_not_of_this_run_is_refused_unless_overwriting_is_asked_for(tmp_path, path, whole):
    with pytest.raises(StoreError, match=r"source\.seed is 0 there and 1 here"):
        write_record_file(ToySpec(seed=1), TASKS, path)
    with pytest.raises(StoreError, match=r"tasks\.count is 40 there and 39 here"):
        write_record_file(ToySpec(), TASKS[:39], path)
    assert path.read_bytes() == whole
    write_record_file(ToySpec(seed=1), TASKS, path, overwrite=True)
    assert path.read_bytes() != whole
    write_record_file(ToySpec(), TASKS, path, overwrite=True)
    assert path.read_bytes() == whole
    lines = whole.splitlines(keepends=True)
    path.write_bytes(b"".join([lines[-1], *lines[:3]]))
    with pytest.raises(StoreError, match="line 2"):
        write_record_file(ToySpec(), TASKS, path)
    notes = tmp_path / "notes.jsonl"
    notes.write_text("mine\n", encoding="utf-8")
    with pytest.raises(StoreError, match="allow overwriting"):
        write_record_file(ToySpec(), TASKS, notes)
    assert notes.read_text(encoding="utf-8") == "mine\n"


def test_parquet_holds_the_same_records(tmp_path, whole):
    path = tmp_path / "records.parquet"
    result = write_record_file(ToySpec(), TASKS, path)
    rows = pyarrow.parquet.read_table(path).to_pylist()
    assert rows == [json.loads(line) for line in whole.splitlines()]
    assert not path.with_name(path.name + PART_SUFFIX).exists()
    again = write_record_file(ToySpec(), TASKS, path)
    assert again.num_already_there == again.num_records == result.num_records == len(rows)
    data = path.read_bytes()
    path.unlink()
    write_record_file(ToySpec(), TASKS, path)
    assert path.read_bytes() == data


@pytest.mark.parametrize(
    ("name", "options", "error", "expected"),
    [
        ("", {}, InvalidInputError, "is a folder"),
        ("x.csv", {}, InvalidInputError, r"\.jsonl or \.parquet"),
        ("x.jsonl", {"workers": 0}, InvalidInputError, "workers is 0"),
        ("no/such/x.jsonl", {}, StoreError, "no/such"),
        ("/dev/full", {}, StoreError, "the disk is full"),
        (
            "y.jsonl",
            {"spec": ToySpec(fail_at=TASKS[5].instance_id, failure="wrong")},
            InvalidInputError,
            f"^task {TASKS[5].instance_id}: no record of the schema 'toy-1'",
        ),
    ],
)
def test_what_cannot_be_written_is_refused(tmp_path, name, options, error, expected):
    with pytest.raises(error, match=expected):
        write_record_file(**{"spec": ToySpec(), "tasks": TASKS, "out": tmp_path / name, **options})
