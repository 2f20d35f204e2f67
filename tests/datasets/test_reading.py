"""Reading a dataset back; what was changed in it is found."""

from __future__ import annotations

from pathlib import Path

import pytest

from resilisim.datasets import export_dataset, read_records, verify_dataset
from resilisim.datasets.folder import FORMATS, Format, facts_of_file
from resilisim.errors import InvalidInputError, StoreError
from tests.datasets.toy_source import ToySpec, toy_tasks


@pytest.fixture(params=FORMATS)
def dataset(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    export_dataset(ToySpec(), toy_tasks(), tmp_path, format=request.param, tasks_per_shard=5)
    return tmp_path


def shards_of(folder: Path) -> list[Path]:
    return sorted((folder / "data").iterdir())


def test_a_dataset_as_it_was_written_has_no_problems(dataset: Path) -> None:
    found = verify_dataset(dataset)
    assert (found.num_shards, found.num_records, found.problems) == (len(shards_of(dataset)), 120, ())
    assert len(list(read_records(dataset))) == 120
    assert found.to_mapping() == {"shards": len(shards_of(dataset)), "records": 120, "problems": []}


def test_one_changed_bit_is_found(dataset: Path) -> None:
    path = shards_of(dataset)[1]
    data = bytearray(path.read_bytes())
    data[20] ^= 1
    path.write_bytes(data)
    assert verify_dataset(dataset).problems == (f"{path} was changed: remove it, and the same command makes it again",)


def test_torn_missing_and_foreign_shards_are_all_found(dataset: Path) -> None:
    missing, torn, *_, kept = shards_of(dataset)
    missing.unlink()
    torn.write_bytes(torn.read_bytes()[:-1])
    foreign = kept.with_name("train-00000-of-00099" + kept.suffix)
    foreign.write_bytes(kept.read_bytes())
    problems = verify_dataset(dataset).problems
    assert set(problems) == {
        f"{missing} is missing: the same command makes it again",
        f"{torn} is not whole: remove it, and the same command makes it again",
        f"{foreign} belongs to no dataset in this folder",
    }


def test_what_is_not_finished_is_told(dataset: Path) -> None:
    (dataset / "shards.json").unlink()
    with pytest.raises(StoreError, match="is not finished: the same command goes on from there"):
        verify_dataset(dataset)
    assert len(list(read_records(dataset))) == 120
    with pytest.raises(StoreError, match="is no folder of a dataset"):
        next(read_records(dataset / "data"))
    with pytest.raises(InvalidInputError, match="unknown split 'valid': did you mean 'validation'"):
        next(read_records(dataset, "valid"))


@pytest.mark.parametrize("file_format", FORMATS)
def test_a_torn_shard_stops_an_export_that_goes_on(tmp_path: Path, file_format: Format) -> None:
    """No kill leaves one, as a shard gets its name when it is whole; somebody must have cut it."""
    export_dataset(ToySpec(), toy_tasks(), tmp_path, format=file_format)
    (tmp_path / "README.md").unlink()
    path = shards_of(tmp_path)[0]
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(StoreError, match=f"{path.name} is not whole: remove it, and the same command makes it again"):
        export_dataset(ToySpec(), toy_tasks(), tmp_path, format=file_format)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"cannot read .*: no such file"):
        facts_of_file(tmp_path / "train-00000-of-00001.jsonl")
