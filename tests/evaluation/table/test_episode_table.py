"""Columns of a run against its records."""

from __future__ import annotations

import json

import numpy as np
import pytest

from resilisim.errors import InvalidInputError, StoreError
from resilisim.evaluation.episode.record import EpisodeRecord
from resilisim.evaluation.run.store import RunStore
from resilisim.evaluation.table.episodes import read_episode_table, table_of
from resilisim.provenance import encode_json_line
from resilisim.statistics.luck_adjustment import fold_of
from tests.evaluation.synthetic import synthetic_run

MANIFEST = {"arguments": {"num_episodes": 96, "policy_names": ["random", "exact-optimum"], "prompts": ["optimal"]}}


@pytest.fixture(scope="module")
def records() -> list[EpisodeRecord]:
    return list(synthetic_run(["exact-optimum", "random"], num_tasks=6, num_seeds=3))


def test_columns_hold_what_the_records_hold(records):
    table = table_of(iter(records), MANIFEST)
    assert len(table) == len(records) == 72
    for row, record in enumerate(records):
        assert table.policies[table.policy[row]] == record["policy"]
        assert table.prompts[table.prompt[row]] == record["prompt_type"]
        assert table.tasks[table.task[row]].instance_id == record["instance_id"]
        assert table.tasks[table.task[row]].task_type == record["task_type"]
        for name in ("seed", "index", "outcome", "optimum", "luck", "regret", "privileged"):
            assert getattr(table, name)[row] == record[name]
        assert table.partial[row] == (record["score"]["level"] == "partial_success")
        assert table.turns[row] == len(record["steps"])
        assert not table.tries_again[row]
    assert table.num_planned == 96
    assert table.task_folds.tolist() == [fold_of(task.instance_id) for task in table.tasks]


def test_groups_come_in_the_order_of_the_command_and_hold_their_episodes(records):
    table = table_of(records, MANIFEST)
    assert table.groups() == [
        ("random", "optimal"),
        ("random", "baseline"),
        ("exact-optimum", "optimal"),
        ("exact-optimum", "baseline"),
    ]
    part = table.group("random", "optimal")
    expected = [r["index"] for r in records if (r["policy"], r["prompt_type"]) == ("random", "optimal")]
    assert part.index.tolist() == expected
    assert part.groups() == [("random", "optimal")]
    with pytest.raises(InvalidInputError, match="did you mean 'random'"):
        table.group("randon", "optimal")
    with pytest.raises(InvalidInputError, match="unknown prompt type 'x'"):
        table.group("random", "x")


def test_agents_that_try_again_and_bounds_are_seen(records):
    agent = {"restarts": 1, "options": {}}
    fresh = {"restarts": 0, "options": {"trials": "fresh"}}
    plain = {"restarts": 0, "options": {"trials": "same"}}
    given = [{**records[0], "agent": {**part, "models": {}, "architecture": "x"}} for part in (agent, fresh, plain)]
    given[1] = {**given[1], "optimum": 0.5, "optimum_gap": 0.25}
    table = table_of(given, MANIFEST)
    assert table.tries_again.tolist() == [True, True, False]
    assert table.optimum_gap == 0.25
    given[1] = {**given[1], "optimum_gap": 1.0}  # of another state: V* of the start cannot be so much too low
    assert table_of(given, MANIFEST).optimum_gap == 0.5


def test_a_folder_is_read_as_it_was_written(tmp_path, records):
    with RunStore(tmp_path, {"num_episodes": 72}, 72) as store:
        assert len(read_episode_table(tmp_path)) == 0
        for record in records:
            store.append_encoded(encode_json_line({**record, "manifest": store.manifest["hash"]}), record["index"])
    table = read_episode_table(tmp_path)
    expected = table_of(records, {})
    assert table.tasks == expected.tasks
    assert np.array_equal(table.luck, expected.luck)


def test_an_episode_of_another_run_is_named(tmp_path, records):
    with RunStore(tmp_path, {"num_episodes": 72}, 72):
        pass
    (tmp_path / "episodes.jsonl").write_text(json.dumps({**records[0], "manifest": "1" * 64}) + "\n", encoding="utf-8")
    with pytest.raises(StoreError, match=r"episodes\.jsonl belongs to another run"):
        read_episode_table(tmp_path)


def test_no_folder_of_results_is_refused(tmp_path):
    with pytest.raises(StoreError, match=r"has no manifest\.json"):
        read_episode_table(tmp_path)
