"""Rows, their order and what tests leave of it."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from resilisim.errors import InvalidInputError, StoreError
from resilisim.evaluation.run.store import RunStore
from resilisim.evaluation.table.comparing import compare_tables
from resilisim.evaluation.table.episodes import read_episode_table
from resilisim.evaluation.table.leaderboard import read_leaderboard
from resilisim.provenance import encode_json_line
from resilisim.statistics.comparison import holm
from tests.evaluation.synthetic import synthetic_run


def write_run(folder: Path, policies: list[str], num_tasks: int = 30, planned: int | None = None, **more) -> Path:
    records = list(synthetic_run(policies, num_tasks=num_tasks, num_seeds=3))
    count = planned or len(records)
    arguments = {"policy_names": policies, "prompts": ["baseline", "optimal"], "num_episodes": count, **more}
    with RunStore(folder, arguments, count) as store:
        for record in records:
            line = encode_json_line({**record, "manifest": store.manifest["hash"]})
            store.append_encoded(line, record["index"])
    return folder


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> list[Path]:
    folder = tmp_path_factory.mktemp("runs")
    return [
        write_run(folder / "one", ["random", "exact-optimum"]),
        write_run(folder / "two", ["plan-follower", "repairing-follower", "random"]),
    ]


def test_rows_stand_by_luck_adjusted_score_within_each_prompt(runs):
    board = read_leaderboard(runs)
    assert list(board.sections) == ["baseline", "optimal"]
    for rows in board.sections.values():
        scores = [row.entry.summary.luck_adjusted.value for row in rows]
        assert scores == sorted(scores, reverse=True)
        assert [row.rank for row in rows] == [1, 2, 3, 4, 5]
        labels = {row.label for row in rows}
        assert {"random (one)", "random (two)", "exact-optimum"} <= labels
    assert board.same_episodes
    assert board.num_unfinished == {}


def test_differences_and_ranks_are_those_of_all_pairs(runs):
    rows = read_leaderboard(runs, "optimal").sections["optimal"]
    tables = [row.entry.table for row in rows]
    count = len(rows)
    tests = {(i, j): compare_tables(tables[i], tables[j]).best for i in range(count) for j in range(i)}
    corrected = dict(zip(tests, holm([test.p_value for test in tests.values()]), strict=True))
    for place, row in enumerate(rows):
        if place == 0:
            assert row.behind_above is None
            assert math.isnan(row.p_value)
        else:
            assert row.behind_above == tests[place, place - 1]
            assert row.p_value == pytest.approx(corrected[place, place - 1])
        better = worse = 0
        for other in range(count):
            if other == place:
                continue
            pair = (max(place, other), min(place, other))
            if corrected[pair] > 0.05:
                continue
            # tests[i, j] is row i minus row j.
            ahead = tests[pair].difference > 0 if pair[0] == other else tests[pair].difference < 0
            better, worse = better + ahead, worse + (not ahead)
        assert row.rank_range == (1 + better, count - worse)
    # The two runs of one policy have played the same episodes to the same end.
    twins = [row for row in rows if row.entry.summary.policy == "random"]
    assert twins[0].rank_range == twins[1].rank_range


def test_tables_are_those_of_the_folders(runs):
    entry = read_leaderboard(runs[:1], "optimal").sections["optimal"][0].entry
    expected = read_episode_table(runs[0]).group(entry.summary.policy, "optimal")
    assert entry.table.index.tolist() == expected.index.tolist()
    assert entry.summary.num_episodes == len(expected)


def test_unfinished_runs_and_other_episodes_are_said(tmp_path, runs):
    part = write_run(tmp_path / "part", ["plan-follower"], num_tasks=10, planned=500)
    board = read_leaderboard([runs[0], part])
    assert board.num_unfinished == {str(part): 440}
    assert not board.same_episodes
    mapping = board.to_mapping()
    row = next(row for row in mapping["rows"] if row["policy"] == "plan-follower")
    assert row["num_unfinished"] == 440
    assert mapping["rows"][0]["against_above"] is None
    assert set(mapping["rows"][1]["against_above"]) >= {"difference", "interval", "p_value", "p_value_holm", "method"}


def test_runs_whose_folders_have_one_name_are_told_apart(tmp_path):
    folders = [write_run(tmp_path / place / "run", ["random"], num_tasks=4) for place in ("here", "there")]
    rows = read_leaderboard(folders, "optimal").sections["optimal"]
    assert sorted(row.label for row in rows) == [f"random ({folder})" for folder in folders]


def test_what_does_not_belong_in_one_table_is_refused(tmp_path, runs):
    other = write_run(tmp_path / "law", ["random"], num_tasks=2, environment={"base": 0.9})
    with pytest.raises(InvalidInputError, match="cannot be compared: law"):
        read_leaderboard([runs[0], other])
    with pytest.raises(InvalidInputError, match="given twice"):
        read_leaderboard([runs[0], runs[0]])
    with pytest.raises(InvalidInputError, match="unknown prompt type 'flawed'"):
        read_leaderboard(runs, "flawed")
    with pytest.raises(StoreError, match="not a folder of results"):
        read_leaderboard([tmp_path])
