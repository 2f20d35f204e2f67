"""One file of records: the same bytes however it came about, and nothing lost on the way."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet
import pytest

from resilisim.datasets.export import MANIFEST_SUFFIX, PART_SUFFIX, write_record_file
from resilisim.errors import InvalidInputError, StoreError
from tests.datasets.toy_source import ToySpec, toy_tasks

TASKS = toy_tasks(40)


@pytest.fixture
def whole(tmp_path: Path) -> bytes:
    """The bytes of an unbroken run."""
    result = write_record_file(ToySpec(), TASKS, tmp_path / "whole.jsonl")
    assert (result.num_tasks, result.num_already_there) == (40, 0)
    data = (tmp_path / "whole.jsonl").read_bytes()
    assert data.count(b"\n") == result.num_records > 40
    return data


def test_several_processes_write_the_same_bytes(tmp_path, whole):
    pids = tmp_path / "pids"
    pids.mkdir()
    write_record_file(ToySpec(pids=str(pids)), TASKS, tmp_path / "two.jsonl", workers=2)
    assert (tmp_path / "two.jsonl").read_bytes() == whole
    assert len({name for name in os.listdir(pids) if name != str(os.getpid())}) == 2


@pytest.mark.parametrize("share", [0.0, 0.001, 0.3, 0.5, 0.77, 0.999, 1.0])
def test_a_file_cut_anywhere_is_gone_on_with(tmp_path, whole, share):
    path = tmp_path / "cut.jsonl"
    write_record_file(ToySpec(), TASKS, path)
    left = whole[: int(len(whole) * share)]
    path.write_bytes(left)
    done: list[int] = []
    result = write_record_file(ToySpec(), TASKS, path, progress=done.append)
    assert path.read_bytes() == whole
    assert result.num_already_there == left.count(b"\n")
    assert result.num_records == whole.count(b"\n")
    assert sum(done) == len(TASKS)


def test_another_spec_or_other_tasks_are_refused_unless_overwriting_is_asked_for(tmp_path, whole):
    path = tmp_path / "mine.jsonl"
    write_record_file(ToySpec(), TASKS, path)
    with pytest.raises(StoreError, match=r"source\.seed is 0 there and 1 here"):
        write_record_file(ToySpec(seed=1), TASKS, path)
    with pytest.raises(StoreError, match=r"tasks\.count is 40 there and 39 here"):
        write_record_file(ToySpec(), TASKS[:39], path)
    assert path.read_bytes() == whole
    write_record_file(ToySpec(seed=1), TASKS, path, overwrite=True)
    assert path.read_bytes() != whole
    write_record_file(ToySpec(), TASKS, path, overwrite=True)
    assert path.read_bytes() == whole


def test_a_file_of_somebody_else_is_refused_and_kept(tmp_path):
    path = tmp_path / "notes.jsonl"
    path.write_text("mine\n", encoding="utf-8")
    with pytest.raises(StoreError, match="allow overwriting"):
        write_record_file(ToySpec(), TASKS, path)
    assert path.read_text(encoding="utf-8") == "mine\n"


def test_records_that_are_not_of_this_run_are_noticed(tmp_path):
    path = tmp_path / "mine.jsonl"
    write_record_file(ToySpec(), TASKS, path)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([lines[-1], *lines[:3]]))
    with pytest.raises(StoreError, match="line 2"):
        write_record_file(ToySpec(), TASKS, path)


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


def test_a_full_disk_is_told_in_one_line():
    if not Path("/dev/full").exists():
        pytest.fail("this test needs a device that is always full")
    with pytest.raises(StoreError, match="the disk is full"):
        write_record_file(ToySpec(), TASKS, "/dev/full")


def test_a_killed_process_leaves_whole_records_and_the_next_one_goes_on(tmp_path, whole):
    path = tmp_path / "killed.jsonl"
    code = (
        "import os, signal\n"
        "from resilisim.datasets.export import write_record_file\n"
        "from tests.datasets.toy_source import ToySpec, toy_tasks\n"
        "done = 0\n"
        "def progress(number):\n"
        "    global done\n"
        "    done += number\n"
        "    if done == 17:\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
        f"write_record_file(ToySpec(), toy_tasks(40), {str(path)!r}, progress=progress)\n"
    )
    process = subprocess.run([sys.executable, "-c", code], check=False, timeout=120)
    assert process.returncode == -signal.SIGKILL
    left = path.read_bytes()
    assert left.endswith(b"\n")
    assert whole.startswith(left)
    assert 0 < len(left) < len(whole)
    write_record_file(ToySpec(), TASKS, path)
    assert path.read_bytes() == whole


def test_the_manifest_says_what_the_file_is_and_nothing_of_when(tmp_path):
    path = tmp_path / "a.jsonl"
    write_record_file(ToySpec(), TASKS, path)
    first = Path(str(path) + MANIFEST_SUFFIX).read_bytes()
    manifest = json.loads(first)
    assert manifest["arguments"]["kind"] == "toys"
    assert manifest["records"]["columns"][0]["name"] == "instance_id"
    other = tmp_path / "b.jsonl"
    write_record_file(ToySpec(), TASKS, other)
    assert Path(str(other) + MANIFEST_SUFFIX).read_bytes() == first


def test_bad_arguments(tmp_path):
    with pytest.raises(InvalidInputError, match="is a folder"):
        write_record_file(ToySpec(), TASKS, tmp_path)
    with pytest.raises(InvalidInputError, match=r"\.jsonl or \.parquet"):
        write_record_file(ToySpec(), TASKS, tmp_path / "x.csv")
    with pytest.raises(InvalidInputError, match="workers is 0"):
        write_record_file(ToySpec(), TASKS, tmp_path / "x.jsonl", workers=0)
    with pytest.raises(StoreError, match="no/such"):
        write_record_file(ToySpec(), TASKS, tmp_path / "no/such/x.jsonl")
    with pytest.raises(InvalidInputError, match=TASKS[5].instance_id):
        write_record_file(ToySpec(fail_at=TASKS[5].instance_id, failure="wrong"), TASKS, tmp_path / "y.jsonl")
