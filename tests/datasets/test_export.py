"""Exports: the same bytes however they were written, and whole shards after any accident."""

import json
import signal
import subprocess
from pathlib import Path

import pytest

from resilisim.datasets import export_dataset, read_records, verify_dataset
from resilisim.datasets.dataset_folder import DATASET_FORMATS, facts_of_file, plan_shards
from resilisim.errors import InfrastructureError, InvalidInputError, StoreError
from resilisim.tasks.split import SPLITS, split_of
from resilisim.tool_library import ToolLibrary, default_library
from tests.datasets.toy_source import ARGUMENTS, RECORDS_PER_TASK, ToySpec, toy_record, toy_tasks
from tests.killing import kill_when, wait_until, wait_until_gone

ROOT = Path(__file__).parents[2]


def contents(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def shards_of(folder):
    return {name: data for name, data in contents(folder).items() if name.startswith("data/")}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The dataset of the export target in each format, written in one go by one process."""
    folders = {file_format: tmp_path_factory.mktemp("whole") / "out" for file_format in DATASET_FORMATS}
    for file_format, folder in folders.items():
        export_dataset(ToySpec(RECORDS_PER_TASK), toy_tasks(), folder, format=file_format, **ARGUMENTS)
    return folders


def test_a_folder_holds_every_record_of_every_task_in_the_split_of_its_tools(tmp_path):
    tasks = toy_tasks()
    result = export_dataset(ToySpec(), tasks, tmp_path, tasks_per_shard=7)
    by_split = {split: [task for task in tasks if split_of(task.required_tools) == split] for split in SPLITS}
    assert all(by_split.values())
    expected = {"README.md", "manifest.json", "shards.json"}
    for split, chosen in by_split.items():
        count = -(-len(chosen) // 7)
        expected |= {f"data/{split}-{number:05d}-of-{count:05d}.jsonl" for number in range(count)}
        assert list(read_records(tmp_path, split)) == [
            toy_record(task.instance_id, 0, number) for task in chosen for number in range(3)
        ]
        assert result.records_per_split()[split] == 3 * len(chosen)
    assert set(contents(tmp_path)) == expected
    assert result.num_records == 3 * len(tasks)
    assert [facts.to_mapping() for facts in result.shards] == json.loads((tmp_path / "shards.json").read_bytes())
    assert result.to_mapping()["records"] == result.records_per_split()
    assert verify_dataset(tmp_path).problems == ()


def test_tasks_of_a_shard_do_not_depend_on_what_follows():
    tasks = toy_tasks(200)
    few, many = plan_shards(tasks[:150], 10), plan_shards(tasks, 10)
    full = [shard for shard in few if len(shard.tasks) == 10]
    assert len(full) > 10
    assert {(s.split, s.number, s.tasks) for s in full} < {(s.split, s.number, s.tasks) for s in many}
    assert sorted(task.instance_id for shard in many for task in shard.tasks) == sorted(t.instance_id for t in tasks)


@pytest.mark.long
def test_other_processes_write_the_same_bytes(whole, tmp_path):
    counts = []
    export_dataset(
        ToySpec(RECORDS_PER_TASK),
        toy_tasks(),
        tmp_path,
        format="parquet",
        workers=2,
        progress=counts.append,
        **ARGUMENTS,
    )
    assert contents(tmp_path) == contents(whole["parquet"])
    assert sum(counts) == len(toy_tasks())
    assert len(counts) > 10


def test_the_manifest_says_what_decides_the_bytes_and_nothing_of_when_and_where(tmp_path):
    manifests = {}
    for file_format in DATASET_FORMATS:
        out = tmp_path / file_format
        manifests[file_format] = export_dataset(ToySpec(), toy_tasks(4), out, format=file_format).manifest
        assert json.loads((out / "manifest.json").read_bytes()) == manifests[file_format]
        assert str(tmp_path) not in "".join(map(str, contents(out).values()))
    manifest = manifests["jsonl"]
    assert set(manifest) == {"schema", "hash", "arguments", "versions", "records", "tasks_per_split"}
    assert manifest["arguments"]["source"] == {"records_per_task": 3, "seed": 0}
    assert manifest["arguments"]["tasks"]["count"] == sum(manifest["tasks_per_split"].values()) == 4
    assert manifest["records"]["name"] == "toy-1"
    assert set(manifest["versions"]) == {"resilisim"}
    assert set(manifests["parquet"]["versions"]) == {"resilisim", "pyarrow"}


def run_target(python, out, file_format, workers):
    pids = out.parent / "pids"
    pids.mkdir()
    command = [*python, "-m", "tests.datasets.toy_source", out, file_format, workers, pids]
    return subprocess.Popen([*map(str, command)], cwd=ROOT, stderr=subprocess.PIPE, text=True), pids


def has_shards(out, number):
    """Tell whether so many shards are whole and another one is being written."""
    return len(list(out.glob("data/[!.]*"))) >= number and bool(list(out.glob("data/.*.tmp")))


@pytest.mark.long
@pytest.mark.parametrize(("file_format", "workers"), [("jsonl", 2), ("parquet", 1)])
def test_a_killed_export_leaves_whole_shards_and_goes_on(whole, tmp_path, file_format, workers, python):
    folder = whole[file_format]
    out = tmp_path / "out"
    process, pids = run_target(python, out, file_format, workers)
    kill_when(process, lambda: has_shards(out, 2))
    wait_until_gone(pids)
    there = {name: data for name, data in shards_of(out).items() if not Path(name).name.startswith(".")}
    assert 2 <= len(there) < len(shards_of(folder))
    assert there.items() <= shards_of(folder).items()
    assert set(contents(out)) & {"manifest.json", "shards.json", "README.md"} == {"manifest.json"}
    with pytest.raises(StoreError, match=r"another dataset: arguments\.source\.seed is 0 there and 1 here"):
        export_dataset(ToySpec(RECORDS_PER_TASK, seed=1), toy_tasks(), out, format=file_format, **ARGUMENTS)
    result = export_dataset(ToySpec(RECORDS_PER_TASK), toy_tasks(), out, format=file_format, **ARGUMENTS)
    assert result.num_already_there == len(there)
    assert contents(out) == contents(folder)


@pytest.mark.long
def test_ctrl_c_leaves_whole_shards_and_says_how_many(whole, tmp_path, python):
    folder = whole["jsonl"]
    out = tmp_path / "out"
    process, pids = run_target(python, out, "jsonl", 2)
    wait_until(process, lambda: has_shards(out, 1))
    process.send_signal(signal.SIGINT)
    told = process.communicate()[1]
    wait_until_gone(pids)
    assert process.returncode == 1
    assert told == f"interrupted: {len(shards_of(out))} of {len(shards_of(folder))} shards kept\n"
    assert shards_of(out).items() <= shards_of(folder).items()


def test_a_finished_dataset_is_not_touched_and_a_missing_shard_is_made_again(tmp_path):
    first = export_dataset(ToySpec(), toy_tasks(), tmp_path, tasks_per_shard=10)
    (tmp_path / "README.md").write_text("edited by hand")
    second = export_dataset(ToySpec(), toy_tasks(), tmp_path, tasks_per_shard=10)
    assert second.shards == first.shards
    assert second.num_already_there == len(first.shards)
    assert (tmp_path / "README.md").read_text() == "edited by hand"
    lost = tmp_path / "data" / first.shards[1].file
    data = lost.read_bytes()
    lost.unlink()
    third = export_dataset(ToySpec(), toy_tasks(), tmp_path, tasks_per_shard=10)
    assert lost.read_bytes() == data
    assert third.shards == first.shards


@pytest.mark.parametrize("workers", [1, 2])
def test_what_a_source_raises_names_the_task_and_whole_shards_are_kept(tmp_path, workers):
    tasks = toy_tasks()
    late = plan_shards(tasks, 4)[-1].tasks[-1].instance_id
    with pytest.raises(LookupError, match="nothing here") as failure:
        export_dataset(ToySpec(fail_at=late, failure="raise"), tasks, tmp_path, tasks_per_shard=4, workers=workers)
    assert failure.value.__notes__ == [f"ResiliSim: this was raised for task {late}"]
    num_shards = len(plan_shards(tasks, 4))
    assert num_shards - workers <= len(shards_of(tmp_path)) < num_shards  # those that others were at are given up, too
    for path in (tmp_path / "data").iterdir():
        facts_of_file(path)


def test_a_record_that_does_not_fit_names_the_task(tmp_path):
    spec = ToySpec(fail_at=toy_tasks()[0].instance_id, failure="wrong")
    with pytest.raises(InvalidInputError, match=f"^task {spec.fail_at}: no record of the schema 'toy-1': record: 'nu"):
        export_dataset(spec, toy_tasks(1), tmp_path)
    assert shards_of(tmp_path) == {}


def test_a_worker_that_dies_is_reported(tmp_path):
    spec = ToySpec(fail_at=toy_tasks()[0].instance_id, failure="exit")
    with pytest.raises(InfrastructureError, match=r"a worker process died \(exit code 3\)"):
        export_dataset(spec, toy_tasks(), tmp_path, tasks_per_shard=4, workers=2)
    assert not [name for name in shards_of(tmp_path) if name.startswith("data/.")]


def test_a_source_that_cannot_travel_is_refused(tmp_path):
    class Local(ToySpec):
        pass

    with pytest.raises(InvalidInputError, match=r"cannot be handed to other processes .* use one worker"):
        export_dataset(Local(), toy_tasks(), tmp_path, tasks_per_shard=4, workers=2)
    assert export_dataset(Local(), toy_tasks(4), tmp_path, overwrite=True, workers=1).num_records == 12


@pytest.mark.long
def test_another_library_reaches_the_workers(tmp_path):
    library = ToolLibrary(list(default_library())[:10])
    task = {"required_tools": [library.names[0]], "description": "One thing."}
    tasks = [{**task, "inputs": {"number": number}} for number in range(6)]
    result = export_dataset(ToySpec(), tasks, tmp_path, library=library, tasks_per_shard=2, workers=2)
    assert result.manifest["arguments"]["library"] == library.content_hash
    assert result.num_records == 18


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"format": "parket"}, "unknown format 'parket': did you mean 'parquet'?"),
        ({"tasks_per_shard": 0}, "tasks_per_shard is 0: expected at least 1 and at most 1,000,000"),
        ({"workers": 0}, "workers is 0: expected at least 1 and at most 1,024"),
        ({"workers": "two"}, "workers is 'two': expected a whole number"),
        ({"tasks": []}, "no task was given"),
        ({"tasks": 0}, "expected a number from 1"),
    ],
)
def test_bad_arguments_are_refused_before_anything_is_written(tmp_path, arguments, expected):
    out = tmp_path / "out"
    with pytest.raises(InvalidInputError) as refusal:
        export_dataset(**{"spec": ToySpec(), "tasks": toy_tasks(4), "out": out, **arguments})
    assert expected in str(refusal.value)
    assert not out.exists()
