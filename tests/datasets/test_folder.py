"""A dataset's folder: whose it is, what overwriting removes and never touches, and that a change in it is found."""

import contextlib
import json
from pathlib import Path

import pytest

from resilisim.datasets import export_dataset, read_records, verify_dataset
from resilisim.datasets.dataset_folder import (
    DATASET_FORMATS,
    DATASET_SCHEMA,
    DatasetFolder,
    ShardFacts,
    facts_of_file,
    read_facts,
    read_manifest,
)
from resilisim.errors import InvalidInputError, StoreError
from resilisim.provenance import content_hash
from resilisim.run_folder import run_manifest
from tests.datasets.toy_source import ToySpec, toy_tasks

SHARD = "data/train-00000-of-00001.jsonl"
FACTS = ShardFacts(Path(SHARD).name, 1, 3, "ab")
OURS = {"README.md", "manifest.json", "shards.json", SHARD}


def manifest_of(version="1", **arguments):
    return {
        "schema": DATASET_SCHEMA,
        "hash": content_hash(arguments),
        "arguments": arguments,
        "versions": {"resilisim": version},
    }


def opened(out, overwrite=False, version="1", **arguments):
    return DatasetFolder(out, manifest_of(version, **arguments), overwrite=overwrite)


def made(out, **arguments):
    """Leave a finished dataset of one shard in a folder."""
    with opened(out, **arguments) as folder:
        (folder.data / FACTS.file).write_text("{}\n")
        folder.finish([FACTS], "# Card\n")


def write(out, *names, text="mine"):
    for name in names:
        (out / name).parent.mkdir(exist_ok=True)
        (out / name).write_text(text)


def names(out):
    return {str(path.relative_to(out)) for path in out.rglob("*") if path.is_file()}


def test_a_folder_begins_with_its_manifest_and_is_not_touched_when_it_is_finished(tmp_path):
    out = tmp_path / "a" / "b"
    with opened(out, seed=1) as folder:
        assert names(out) == {"manifest.json"}
        assert not folder.is_finished()
        assert not folder.holds(FACTS.file)
        with pytest.raises(StoreError, match="not finished"):
            read_facts(out)
    assert read_manifest(out) == manifest_of(seed=1)
    made(out, seed=1)
    assert names(out) == OURS
    assert read_facts(out) == [FACTS]
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*") if path.is_file()}
    for overwrite in (False, True):
        with opened(out, overwrite, seed=1) as folder:
            assert folder.is_finished()
            assert folder.holds(FACTS.file)
    assert {path: path.stat().st_mtime_ns for path in before} == before


def spoil_manifest(out):
    made(out, seed=1)
    text = (out / "manifest.json").read_text()
    (out / "manifest.json").write_text(text.replace('"seed": 1', '"seed": 2'))


REFUSED = {
    # What is in the folder, what is said, and whether that is refused even where overwriting is permitted.
    "another dataset": (
        lambda out: made(out, seed=1),
        r"another dataset: arguments\.seed is 1 there and 2 here; use another folder, or allow overwriting$",
        False,
    ),
    "of another version": (
        lambda out: opened(out, version="0", seed=2).close(),
        r'versions\.resilisim is "0" there and "1" here',
        False,
    ),
    "a foreign file": (lambda out: write(out, "b.txt"), r"holds b\.txt that no dataset export wrote: use anoth", False),
    "foreign files": (lambda out: write(out, "b.txt", ".a"), r"holds \.a and 1 more that no dataset export", False),
    "a foreign card": (lambda out: write(out, "README.md"), r"holds a README\.md that no dataset export wrote", True),
    "a foreign list": (lambda out: write(out, "shards.json"), r"holds a shards\.json that no dataset export", True),
    "foreign shards": (lambda out: write(out, SHARD), "holds a data that no dataset export wrote", True),
    "results of a run": (
        lambda out: write(out, "manifest.json", text=json.dumps(run_manifest({"seeds": [0]}))),
        r"does not have the schema 'resilisim-dataset-1': use another folder",
        True,
    ),
    "a changed manifest": (spoil_manifest, "its hash does not fit its arguments: use another folder", True),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_somebody_elses_is_refused_and_kept(tmp_path, case):
    prepare, expected, also_overwriting = REFUSED[case]
    prepare(tmp_path)
    before = {name: (tmp_path / name).read_bytes() for name in names(tmp_path)}
    for overwrite in (False, True) if also_overwriting else (False,):
        with pytest.raises(StoreError, match=expected):
            opened(tmp_path, overwrite, seed=2)
    assert {name: (tmp_path / name).read_bytes() for name in names(tmp_path)} == before


def test_overwriting_removes_what_an_export_wrote_and_nothing_else(tmp_path):
    made(tmp_path, seed=1)
    foreign = {"notes.txt", "data/mine.jsonl", "data/train.jsonl", ".git/HEAD", ".notes.txt.1.tmp"}
    write(tmp_path, *foreign)
    with opened(tmp_path, overwrite=True, seed=2):
        assert names(tmp_path) == {"manifest.json"} | foreign
    assert read_manifest(tmp_path)["arguments"] == {"seed": 2}
    assert {(tmp_path / name).read_text() for name in foreign} == {"mine"}


def test_what_a_killed_process_left_is_removed(tmp_path):
    (tmp_path / ".manifest.json.7.tmp").write_text("torn")
    made(tmp_path, seed=1)
    assert names(tmp_path) == OURS
    write(tmp_path, ".manifest.json.7.tmp", ".README.md.7.tmp", "data/.train-00003-of-00010.parquet.123456.tmp")
    with opened(tmp_path, seed=1):
        assert names(tmp_path) == OURS


def test_an_export_that_fails_before_it_wrote_anything_leaves_nothing_behind(tmp_path):
    def fail(out, *files):
        with contextlib.suppress(LookupError), opened(out, seed=1) as folder:
            (folder.data / ".train-00000-of-00001.jsonl.1.tmp").write_text("torn")
            write(out, *files)
            raise LookupError

    fail(tmp_path / "a" / "b")
    assert list(tmp_path.iterdir()) == []
    fail(tmp_path)
    assert list(tmp_path.iterdir()) == []
    fail(tmp_path / "there", "notes.txt")
    assert names(tmp_path) == {"there/notes.txt"}
    whole = tmp_path / "whole"
    fail(whole, SHARD)
    fail(whole)  # what an earlier call left stays
    assert names(whole) == {"manifest.json", SHARD}


def test_a_folder_has_one_writer_and_a_refusal_lets_go_of_it(tmp_path):
    with opened(tmp_path):
        for overwrite in (False, True):
            with pytest.raises(StoreError, match=f"another process is writing to {tmp_path}: wait for it"):
                opened(tmp_path, overwrite)
    with pytest.raises(StoreError, match="another dataset"):
        opened(tmp_path, seed=3)
    opened(tmp_path).close()
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match=r"cannot make the folder .*file"):
        opened(tmp_path / "file")


@pytest.mark.parametrize("text", ["{", "{}", "[1]", '[{"file": "a"}]', "[" * 100_000])
def test_a_list_of_shards_that_was_changed_is_refused(tmp_path, text):
    made(tmp_path)
    (tmp_path / "shards.json").write_text(text)
    with pytest.raises(StoreError, match=r"shards\.json was changed"):
        read_facts(tmp_path)


@pytest.fixture(params=DATASET_FORMATS)
def dataset(request, tmp_path):
    export_dataset(ToySpec(), toy_tasks(), tmp_path, format=request.param, tasks_per_shard=5)
    return tmp_path


def test_every_kind_of_change_to_a_dataset_is_found(dataset):
    shards = sorted((dataset / "data").iterdir())
    found = verify_dataset(dataset)
    assert found.to_mapping() == {"shards": len(shards), "records": 120, "problems": []}
    missing, torn, changed, *_, kept = shards
    missing.unlink()
    torn.write_bytes(torn.read_bytes()[:-1])
    data = bytearray(changed.read_bytes())
    data[20] ^= 1
    changed.write_bytes(data)
    foreign = kept.with_name("train-00000-of-00099" + kept.suffix)
    foreign.write_bytes(kept.read_bytes())
    assert set(verify_dataset(dataset).problems) == {
        f"{missing} is missing: the same command makes it again",
        f"{torn} is not whole: remove it, and the same command makes it again",
        f"{changed} was changed: remove it, and the same command makes it again",
        f"{foreign} belongs to no dataset in this folder",
    }
    with pytest.raises(StoreError, match=r"cannot read .*: no such file"):
        facts_of_file(missing)


def test_what_is_not_finished_is_read_and_not_verified(dataset):
    (dataset / "shards.json").unlink()
    with pytest.raises(StoreError, match="is not finished: the same command resumes it"):
        verify_dataset(dataset)
    assert len(list(read_records(dataset))) == 120
    with pytest.raises(StoreError, match="is not a folder of a dataset"):
        next(read_records(dataset / "data"))
    with pytest.raises(InvalidInputError, match="unknown split 'valid': did you mean 'validation'"):
        next(read_records(dataset, "valid"))
    # No kill leaves a torn shard, as it gets its name when it is whole; somebody must have cut it.
    path = sorted((dataset / "data").iterdir())[0]
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(StoreError, match=f"{path.name} is not whole: remove it, and the same command makes it again"):
        export_dataset(ToySpec(), toy_tasks(), dataset, format=path.suffix[1:], tasks_per_shard=5)
