"""Whose a folder is: what is gone on with, what is refused, what overwriting removes and what it never touches."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from resilisim.datasets.folder import DATASET_SCHEMA, DatasetFolder, ShardFacts, read_facts, read_manifest
from resilisim.errors import StoreError
from resilisim.provenance import content_hash
from resilisim.run_folder import run_manifest

FACTS = ShardFacts("train-00000-of-00001.jsonl", 1, 3, "ab")


def manifest_of(version: str = "1", **arguments: Any) -> dict[str, Any]:
    return {
        "schema": DATASET_SCHEMA,
        "hash": content_hash(arguments),
        "arguments": arguments,
        "versions": {"resilisim": version},
    }


def made(out: Path, **arguments: Any) -> Path:
    """Leave a finished dataset of one shard in a folder, and return the shard."""
    with DatasetFolder(out, manifest_of(**arguments), overwrite=False) as folder:
        (folder.data / FACTS.file).write_text("{}\n")
        folder.finish([FACTS], "# Card\n")
    return out / "data" / FACTS.file


def names(out: Path) -> set[str]:
    return {str(path.relative_to(out)) for path in out.rglob("*") if path.is_file()}


OURS = {"README.md", "manifest.json", "shards.json", "data/train-00000-of-00001.jsonl"}


def test_a_new_folder_is_made_with_the_manifest_first(tmp_path: Path) -> None:
    out = tmp_path / "a" / "b"
    with DatasetFolder(out, manifest_of(seed=1), overwrite=False) as folder:
        assert names(out) == {"manifest.json"}
        assert not folder.is_finished()
        assert not folder.holds(FACTS.file)
        with pytest.raises(StoreError, match="not finished"):
            read_facts(out)
    assert read_manifest(out) == manifest_of(seed=1)
    made(out, seed=1)
    assert names(out) == OURS
    assert read_facts(out) == [FACTS]


def test_the_same_dataset_is_gone_on_with_overwriting_or_not(tmp_path: Path) -> None:
    made(tmp_path, seed=1)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.is_file()}
    for overwrite in (False, True):
        with DatasetFolder(tmp_path, manifest_of(seed=1), overwrite=overwrite) as folder:
            assert folder.is_finished()
            assert folder.holds(FACTS.file)
    assert {path: path.stat().st_mtime_ns for path in before} == before


def test_another_dataset_is_refused_naming_the_first_difference(tmp_path: Path) -> None:
    made(tmp_path, seed=1)
    expected = (
        r"holds another dataset: arguments\.seed is 1 there and 2 here; use another folder, or allow overwriting$"
    )
    with pytest.raises(StoreError, match=expected):
        DatasetFolder(tmp_path, manifest_of(seed=2), overwrite=False)
    with pytest.raises(StoreError, match=r'versions\.resilisim is "1" there and "2" here'):
        DatasetFolder(tmp_path, manifest_of("2", seed=1), overwrite=False)
    assert names(tmp_path) == OURS


def test_overwriting_removes_what_an_export_wrote_and_nothing_else(tmp_path: Path) -> None:
    made(tmp_path, seed=1)
    foreign = {"notes.txt", "data/mine.jsonl", "data/train.jsonl", ".git/HEAD", ".notes.txt.1.tmp"}
    for name in foreign:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("mine")
    with DatasetFolder(tmp_path, manifest_of(seed=2), overwrite=True):
        assert names(tmp_path) == {"manifest.json"} | foreign
    assert read_manifest(tmp_path)["arguments"] == {"seed": 2}
    assert {(tmp_path / name).read_text() for name in foreign} == {"mine"}


def test_foreign_files_are_refused_unless_they_may_stand_beside(tmp_path: Path) -> None:
    (tmp_path / "b.txt").write_text("mine")
    with pytest.raises(StoreError, match=r"holds b\.txt that no dataset export wrote: use another folder, or allow"):
        DatasetFolder(tmp_path, manifest_of(), overwrite=False)
    (tmp_path / ".a").write_text("mine")
    with pytest.raises(StoreError, match=r"holds \.a and 1 more that no dataset export wrote"):
        DatasetFolder(tmp_path, manifest_of(), overwrite=False)
    assert names(tmp_path) == {"b.txt", ".a"}
    with DatasetFolder(tmp_path, manifest_of(), overwrite=True):
        assert names(tmp_path) == {"b.txt", ".a", "manifest.json"}


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("name", ["README.md", "shards.json", "data/train-00000-of-00001.jsonl"])
def test_a_foreign_file_under_one_of_our_names_is_never_overwritten(tmp_path: Path, name: str, overwrite: bool) -> None:
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text("mine")
    with pytest.raises(StoreError, match=f"holds a {name.partition('/')[0]} that no dataset export wrote"):
        DatasetFolder(tmp_path, manifest_of(), overwrite=overwrite)
    assert names(tmp_path) == {name}
    assert (tmp_path / name).read_text() == "mine"


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_folder_of_results_is_refused(tmp_path: Path, overwrite: bool) -> None:
    (tmp_path / "manifest.json").write_text(json.dumps(run_manifest({"seeds": [0]})))
    with pytest.raises(StoreError, match=r"does not have the schema 'resilisim-dataset-1': use another folder"):
        DatasetFolder(tmp_path, manifest_of(), overwrite=overwrite)
    with pytest.raises(StoreError, match="does not have the schema"):
        read_manifest(tmp_path)


def test_what_a_killed_process_left_is_removed(tmp_path: Path) -> None:
    made(tmp_path, seed=1)
    left = [".manifest.json.7.tmp", ".README.md.7.tmp", "data/.train-00003-of-00010.parquet.123456.tmp"]
    for name in left:
        (tmp_path / name).write_text("torn")
    with DatasetFolder(tmp_path, manifest_of(seed=1), overwrite=False):
        assert names(tmp_path) == OURS


def test_a_kill_while_the_first_manifest_was_written_does_no_harm(tmp_path: Path) -> None:
    (tmp_path / ".manifest.json.7.tmp").write_text("torn")
    made(tmp_path, seed=1)
    assert names(tmp_path) == OURS


def test_an_export_that_fails_before_it_wrote_anything_leaves_nothing_behind(tmp_path: Path) -> None:
    def export(out: Path, *files: str) -> None:
        with DatasetFolder(out, manifest_of(seed=1), overwrite=False) as folder:
            (folder.data / ".train-00000-of-00001.jsonl.1.tmp").write_text("torn")
            for name in files:
                (out / name).write_text("{}\n")
            raise LookupError

    def fail(out: Path, *files: str) -> None:
        with pytest.raises(LookupError):
            export(out, *files)

    fail(tmp_path / "a" / "b")
    assert list(tmp_path.iterdir()) == []
    there = tmp_path / "there"
    there.mkdir()
    fail(there)
    assert list(there.iterdir()) == []
    fail(there, "notes.txt")
    assert names(there) == {"notes.txt"}
    whole = tmp_path / "whole"
    fail(whole, "data/train-00000-of-00001.jsonl")
    assert names(whole) == {"manifest.json", "data/train-00000-of-00001.jsonl"}
    fail(whole)  # what an earlier call left stays
    assert names(whole) == {"manifest.json", "data/train-00000-of-00001.jsonl"}


def test_a_folder_has_one_writer(tmp_path: Path) -> None:
    with DatasetFolder(tmp_path, manifest_of(), overwrite=False):
        for overwrite in (False, True):
            with pytest.raises(StoreError, match=f"another process is writing to {tmp_path}: wait for it"):
                DatasetFolder(tmp_path, manifest_of(), overwrite=overwrite)
    with DatasetFolder(tmp_path, manifest_of(), overwrite=False):
        pass
    with pytest.raises(StoreError, match="another dataset"):
        DatasetFolder(tmp_path, manifest_of(seed=3), overwrite=False)
    with DatasetFolder(tmp_path, manifest_of(), overwrite=False):
        pass  # a refusal lets go of the folder


def test_a_place_where_no_folder_can_be_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match=r"cannot make the folder .*file"):
        DatasetFolder(tmp_path / "file", manifest_of(), overwrite=False)
    with pytest.raises(StoreError, match="is no folder of a dataset"):
        read_manifest(tmp_path)


def test_a_manifest_that_was_changed_is_refused(tmp_path: Path) -> None:
    made(tmp_path, seed=1)
    text = (tmp_path / "manifest.json").read_text()
    (tmp_path / "manifest.json").write_text(text.replace('"seed": 1', '"seed": 2'))
    with pytest.raises(StoreError, match="its hash does not fit its arguments: use another folder"):
        DatasetFolder(tmp_path, manifest_of(seed=2), overwrite=True)


@pytest.mark.parametrize("text", ["{", "{}", "[1]", '[{"file": "a"}]', "[" * 100_000])
def test_a_list_of_shards_that_was_changed_is_refused(tmp_path: Path, text: str) -> None:
    made(tmp_path)
    (tmp_path / "shards.json").write_text(text)
    with pytest.raises(StoreError, match=r"shards\.json was changed"):
        read_facts(tmp_path)
