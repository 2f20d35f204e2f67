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
from resilisim.statistics import fold_of
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
        assert table.tasks[table.task[row]] == record["instance_id"]
        assert table.task_types[table.task[row]] == record["task_type"]
        for name in ("seed", "index", "outcome", "optimum", "luck", "regret", "privileged"):
            assert getattr(table, name)[row] == record[name]
        assert table.partial[row] == (record["score"]["level"] == "partial_success")
        assert table.turns[row] == len(record["steps"])
        assert not table.tries_again[row]
    assert table.num_planned == 96
    assert table.folds.tolist() == [fold_of(task) for task in table.tasks]


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
    given = [{**records[0], "agent": part} for part in (agent, fresh, plain)]
    given[1] = {**given[1], "optimum_gap": 0.25}
    table = table_of(given, MANIFEST)
    assert table.tries_again.tolist() == [True, True, False]
    assert table.optimum_gap == 0.25


def test_a_folder_is_read_as_it_was_written(tmp_path, records):
    with RunStore(tmp_path, {"num_episodes": 72}, 72) as store:
        assert len(read_episode_table(tmp_path)) == 0
        for record in records:
            store.append_encoded(encode_json_line({**record, "manifest": store.manifest["hash"]}), record["index"])
    table = read_episode_table(tmp_path)
    expected = table_of(records, {})
    assert table.tasks == expected.tasks
    assert np.array_equal(table.luck, expected.luck)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"schema": "other"}, "episode 2 has the schema 'other'"),
        ({"luck": "x"}, "episode 2 cannot be read"),
        ({"outcome": 1000}, "episode 2 cannot be read"),
        ({"seed": None}, "episode 2 cannot be read"),
        ({"score": {}}, "episode 2 lacks the field 'level'"),
        ({"manifest": "1" * 64}, "episode 2 belongs to another run"),
    ],
)
def test_a_line_that_is_no_episode_is_named(tmp_path, records, change, text):
    with RunStore(tmp_path, {"num_episodes": 72}, 72) as store:
        own = {"manifest": store.manifest["hash"]}
    lines = [json.dumps({**records[0], **own}), json.dumps({**records[1], **own, **change})]
    (tmp_path / "episodes.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    with pytest.raises(StoreError, match=text) as refused:
        read_episode_table(tmp_path)
    assert "episodes.jsonl" in str(refused.value)
    assert "\n" not in str(refused.value)


def test_no_folder_of_results_is_refused(tmp_path):
    with pytest.raises(StoreError, match=r"holds no manifest\.json"):
        read_episode_table(tmp_path)
