"""Parts of one run become one folder: each episode once, nothing lost, nothing of another run."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resilisim.errors import InvalidInputError, StoreError
from resilisim.evaluation import evaluate
from resilisim.evaluation.episode.record import FAILURE_SCHEMA, FailureRecord
from resilisim.evaluation.run.merge import merge_runs
from resilisim.evaluation.run.store import RunStore, read_failures, read_manifest, read_records
from resilisim.provenance import content_hash, encode_json_line
from tests.evaluation.synthetic import synthetic_run
from tests.evaluation.toy_policies import toy_tasks

TOYS = "tests.evaluation.toy_policies"
NUM_EPISODES = 24
ARGUMENTS = {"num_episodes": NUM_EPISODES, "seeds": [0, 1], "environment": {"base": 0.8}}
RECORDS = [
    {**record, "manifest": content_hash(ARGUMENTS)}
    for record in synthetic_run(num_tasks=3, num_seeds=4, prompts=("optimal",), policies=("random", "careful"))
]


def write_part(folder, records, failures=(), **changes):
    """Write a folder as a run leaves it."""
    with RunStore(folder, {**ARGUMENTS, **changes}, NUM_EPISODES) as store:
        for record in records:
            store.append_encoded(encode_json_line(record), record["index"])
        for failure in failures:
            store.append_failure(encode_json_line(failure))
    return folder


def lines(folder):
    return sorted((folder / "episodes.jsonl").read_bytes().splitlines(keepends=True))


def failure(index, error="the endpoint does not answer"):
    return FailureRecord(
        schema=FAILURE_SCHEMA,
        index=index,
        policy="random",
        prompt_type="optimal",
        instance_id="task_0",
        seed=0,
        error=error,
        reason="InfrastructureError",
        calls=3,
    )


def test_shards_of_a_run_become_the_run(tmp_path):
    arguments = {
        "policies": [f"{TOYS}:Reading", f"{TOYS}:Quitter"],
        "tasks": toy_tasks(),
        "prompts": ("baseline", "optimal"),
        "seeds": 2,
    }
    evaluate(**arguments, out=tmp_path / "whole")
    for number in (1, 2, 3):
        evaluate(**arguments, out=tmp_path / str(number), shard=f"{number}/3")
    result = merge_runs([tmp_path / "1", tmp_path / "2"], tmp_path / "merged")
    assert (result.is_complete, result.num_episodes, result.num_planned) == (False, 32, 48)
    assert result.first_missing is not None
    third = {record["index"] for record in read_records(tmp_path / "3")}
    assert result.first_missing == min(third)
    result = merge_runs([tmp_path / str(number) for number in (1, 2, 3)], tmp_path / "merged")
    assert (result.is_complete, result.num_new, result.num_duplicates) == (True, 16, 32)
    assert lines(tmp_path / "merged") == lines(tmp_path / "whole")
    before = (tmp_path / "merged" / "episodes.jsonl").read_bytes()
    assert evaluate(**arguments, out=tmp_path / "merged").num_episodes == 48
    assert (tmp_path / "merged" / "episodes.jsonl").read_bytes() == before  # nothing was played again


@given(st.lists(st.sets(st.integers(0, NUM_EPISODES - 1)), min_size=1, max_size=4))
def test_any_parts_become_their_union_however_often_they_are_merged(tmp_path_factory, parts):
    folder = tmp_path_factory.mktemp("parts")
    directories = [
        write_part(folder / str(number), [RECORDS[index] for index in part]) for number, part in enumerate(parts)
    ]
    union = set[int]().union(*parts)
    expected = sorted(encode_json_line(RECORDS[index]) for index in union)
    counted = []
    result = merge_runs(directories, folder / "merged", progress=counted.append)
    assert lines(folder / "merged") == expected
    assert sum(counted) == result.num_new == result.num_episodes == len(union)
    assert result.num_duplicates == sum(map(len, parts)) - len(union)
    assert result.first_missing == min(set(range(NUM_EPISODES)) - union, default=None)
    before = {path.name: path.read_bytes() for path in (folder / "merged").iterdir()}
    counted.clear()
    again = merge_runs(directories, folder / "merged", progress=counted.append)
    assert (again.num_new, again.num_episodes, sum(counted)) == (0, len(union), len(union))
    assert {path.name: path.read_bytes() for path in (folder / "merged").iterdir()} == before
    # Into one of them is the same.
    merge_runs(directories, directories[-1])
    assert lines(directories[-1]) == expected


def test_other_runs_are_refused_naming_the_first_difference(tmp_path):
    ours = write_part(tmp_path / "ours", RECORDS[:2])
    other = write_part(tmp_path / "other", [], environment={"base": 0.9})
    with pytest.raises(
        StoreError, match=r"other holds .* environment\.base is 0\.9 there and 0\.8 here; only parts of"
    ):
        merge_runs([ours, other], tmp_path / "merged")
    assert not (tmp_path / "merged").exists()
    with pytest.raises(StoreError, match=r"other holds .* environment\.base is 0\.9 there and 0\.8 here"):
        merge_runs([ours], other)
    with pytest.raises(StoreError, match="is not a folder of results"):
        merge_runs([ours, tmp_path], tmp_path / "merged")
    with pytest.raises(InvalidInputError, match="ours is named twice"):
        merge_runs([ours, tmp_path / "other" / ".." / "ours"], tmp_path / "merged")
    with pytest.raises(InvalidInputError, match="no folder to merge"):
        merge_runs([], tmp_path / "merged")


def test_an_episode_that_came_out_twice_is_refused(tmp_path):
    changed = {**RECORDS[3], "luck": RECORDS[3]["luck"] + 1e-9}
    parts = [write_part(tmp_path / "a", RECORDS[:5]), write_part(tmp_path / "b", [RECORDS[2], changed, RECORDS[9]])]
    expected = r"episode 3 of .*b differs from the one in .*merged: policy random, prompt optimal, task task_.*, seed 3"
    for _ in range(2):
        with pytest.raises(StoreError, match=expected) as refusal:
            merge_runs(parts, tmp_path / "merged")
    assert "\n" not in str(refusal.value)
    assert lines(tmp_path / "merged") == lines(tmp_path / "a")


def test_episodes_that_cannot_be_of_the_run_are_refused(tmp_path):
    part = write_part(tmp_path / "part", RECORDS[:1])
    for number, (line, expected) in enumerate(
        [
            (encode_json_line({**RECORDS[1], "manifest": "1" * 64}), "episode 1 in .* does not belong to the run"),
            (encode_json_line({**RECORDS[1], "index": NUM_EPISODES}), "episode 24 in .* does not belong to the run"),
            (encode_json_line({**RECORDS[1], "index": -1}), "line 2 of .*, field 'index': got -1; expected"),
            (b"{}\n", "line 2 of .*episodes.jsonl is not an episode"),
            (b"{\n", "line 2 of .*episodes.jsonl is not JSON"),
        ]
    ):
        (part / "episodes.jsonl").write_bytes(encode_json_line(RECORDS[0]) + line)
        with pytest.raises(StoreError, match=expected):
            merge_runs([part], tmp_path / f"merged{number}")


def test_failures_stand_there_as_often_as_in_the_folder_that_knows_most(tmp_path):
    parts = [
        write_part(tmp_path / "a", [], [failure(1), failure(1), failure(2)]),
        write_part(tmp_path / "b", [], [failure(1), failure(2, "timeout")]),
    ]
    for added in (4, 0):
        assert merge_runs(parts, tmp_path / "merged").num_failures == added
        found = sorted((line["index"], line["error"]) for line in read_failures(tmp_path / "merged"))
        plain = "the endpoint does not answer"
        assert found == [(1, plain), (1, plain), (2, plain), (2, "timeout")]


def test_replies_of_unfinished_episodes_are_kept(tmp_path):
    parts = [write_part(tmp_path / "a", RECORDS[:2]), write_part(tmp_path / "b", RECORDS[2:4])]
    replies = {
        (0, "1.jsonl"): b"finished\n",
        (0, "3.jsonl"): b"finished elsewhere\n",
        (0, "5.jsonl"): b"one\n",
        (1, "5.jsonl"): b"one\ntwo\n",
        (1, "6.jsonl"): b"one\ntorn",
        (1, "99.jsonl"): b"of no episode\n",
        (1, "notes.txt"): b"somebody's\n",
    }
    for (part, name), text in replies.items():
        (parts[part] / "unfinished").mkdir(exist_ok=True)
        (parts[part] / "unfinished" / name).write_bytes(text)
    out = tmp_path / "merged"
    for _ in range(2):
        assert merge_runs(parts, out).num_unfinished == 2
        kept = {path.name: path.read_bytes() for path in (out / "unfinished").iterdir()}
        assert kept == {"5.jsonl": b"one\ntwo\n", "6.jsonl": b"one\ntorn"}
    third = write_part(tmp_path / "c", RECORDS[4:])
    assert merge_runs([third], out).num_unfinished == 0
    assert not (out / "unfinished").exists()


def test_the_manifest_tells_what_the_parts_ran_on(tmp_path):
    parts = [write_part(tmp_path / name, []) for name in "ab"]
    for part, system in zip(parts, ("Linux x86_64, 64 cores", "Darwin arm64, 8 cores"), strict=True):
        manifest = {**read_manifest(part), "platform": system}
        (part / "manifest.json").write_text(json.dumps(manifest))
    merge_runs(parts, tmp_path / "ab")
    found = read_manifest(tmp_path / "ab")["parts"]
    assert [part["platform"] for part in found] == ["Linux x86_64, 64 cores", "Darwin arm64, 8 cores"]
    assert all(set(part) == {"versions", "platform", "created"} for part in found)
    merge_runs([tmp_path / "ab", parts[0]], tmp_path / "abc")  # a merged run is a part like any other
    assert read_manifest(tmp_path / "abc")["parts"] == found
