"""Branches of agents that were explored are summed by weight, wherever episodes are summed."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from resilisim.errors import StoreError
from resilisim.evaluation.run.store import RunStore, read_own_records
from resilisim.evaluation.table.comparing import compare_run_tables
from resilisim.evaluation.table.episodes import read_episode_table, sums_of, table_of
from resilisim.evaluation.table.facts import read_facts
from resilisim.evaluation.table.leaderboard import read_leaderboard
from resilisim.evaluation.table.summary import summarise, summary_table
from resilisim.provenance import encode_json_line
from resilisim.reporting.body import build_page
from tests.evaluation.synthetic import synthetic_record, synthetic_run

# Weight and outcome of each branch, task by task.
WHOLE = [[(0.5, 1), (0.3, 0), (0.2, 1)], [(0.9, 1), (0.1, 0)], [(0.25, 0), (0.75, 0)], [(1.0, 1)]]
RATES = [0.7, 0.9, 0.0, 1.0]


def branches(tasks, policy="careful", first=0, prompt="optimal"):
    """Return records: optimum 0.9, and what each branch misses of it by luck is lost to no call."""
    records = []
    for task, own in enumerate(tasks):
        for weight, outcome in own:
            record = synthetic_record(first + len(records), policy, prompt, task, 0, 0.2)
            fields = {"outcome": outcome, "optimum": 0.9, "regret": 0.0, "luck": outcome - 0.9, "losses": {}}
            records.append({**record, **fields, "weight": weight})
    return records


def written(folder: Path, records, **more) -> Path:
    arguments = {
        "policy_names": ["careful"],
        "policies": ["careful"],
        "prompts": ["optimal"],
        "num_episodes": 99,
        **more,
    }
    with RunStore(folder, arguments, 99) as store:
        for record in records:
            line = encode_json_line({**record, "manifest": store.manifest["hash"]})
            store.append_encoded(line, record["index"])
    return folder


def test_rates_are_exact_and_intervals_over_tasks():
    row = summarise(sums_of(branches(WHOLE)))[0]
    assert row.success.value == pytest.approx(sum(RATES) / 4)
    assert (row.num_episodes, row.num_tasks, row.is_explored, row.unplayed) == (8, 4, True, 0.0)
    again = [[(1.0, 1)] * 1 if rate == 1.0 else [(rate, 1), (1 - rate, 0)] for rate in RATES[:2]]
    assert summarise(sums_of(branches(again)))[0].success.value == pytest.approx(0.8)
    assert row.luck_adjusted == row.success
    assert row.success.low < 0.65 < row.success.high
    assert row.adjusted_share.value == pytest.approx(row.success.value / 0.9)
    assert math.isnan(row.mean_beta)
    assert row.regret.value == pytest.approx(0.9 - row.success.value + row.luck.value)


def test_one_task_has_no_interval_or_the_bracket():
    whole = summarise(sums_of(branches(WHOLE[:1])))[0]
    assert (whole.success.value, math.isnan(whole.success.low)) == (pytest.approx(0.7), True)
    row = summarise(sums_of(branches([[(0.5, 1), (0.3, 0)]])))[0]
    assert (row.success.low, row.success.high) == pytest.approx((0.5, 0.7))
    assert row.success.value == pytest.approx(0.7)  # V* without what calls lost is 0.9, more than can be
    assert row.unplayed == pytest.approx(0.2)
    assert (row.adjusted_share.low, row.adjusted_share.high) == pytest.approx((0.5 / 0.9, 0.7 / 0.9))
    text = " ".join(str(summary_table([row])).split())
    assert "exact on these tasks" in text
    assert "20.00% was not played" in text
    json.dumps(row.to_mapping(), allow_nan=False)


def test_what_was_played_is_lucky_and_the_rate_is_told_without_that():
    lost = [{**record, "regret": 0.3, "luck": record["luck"] + 0.3} for record in branches([[(0.5, 1), (0.1, 0)]])]
    row = summarise(sums_of(lost))[0]
    assert row.success.value == pytest.approx(0.9 - 0.3)  # V* less what calls have lost
    assert (row.success.low, row.success.high) == pytest.approx((0.5, 0.9))
    assert row.luck.value == pytest.approx(0.0)
    assert 1.0 - row.success.value == pytest.approx(row.unavoidable + row.regret.value - row.luck.value)


def test_what_was_not_played_widens_the_interval_over_tasks():
    whole = summarise(sums_of(branches(WHOLE)))[0].success
    cut = summarise(sums_of(branches([WHOLE[0][:1], *WHOLE[1:]])))[0].success
    assert cut.low < whole.low
    assert cut.high > whole.high


def test_weights_above_one_and_mixtures_are_refused(tmp_path):
    with pytest.raises(StoreError, match=r"weigh 1\.2 together, expected at most 1"):
        sums_of(branches([[(0.6, 1), (0.6, 0)]]))
    one, other = branches([[(0.5, 1), (0.5, 0)]])
    del other["weight"]
    with pytest.raises(StoreError, match="have a weight or have none"):
        sums_of([one, other])
    folder = written(tmp_path / "sampled", [one])
    with pytest.raises(StoreError, match="has a weight in a run of samples"):
        list(read_own_records(folder, json.loads((folder / "manifest.json").read_bytes())))


def test_sampled_episodes_weigh_the_same_whatever_the_number_of_seeds():
    records = list(synthetic_run(("random",), ("optimal",), num_tasks=9, num_seeds=4))
    seeds = sums_of(records)
    weighed = sums_of([{**record, "weight": 0.25} for record in records])
    for name in ("success", "turns", "regret", "optimum"):
        assert getattr(summarise(weighed)[0], name).value == pytest.approx(getattr(summarise(seeds)[0], name).value)
    assert summarise(weighed)[0].success.high == pytest.approx(summarise(seeds)[0].success.high)


def test_explored_agents_are_compared_with_each_other_and_with_samples():
    better = [[(0.8, 1), (0.2, 0)], [(1.0, 1)], [(0.4, 1), (0.6, 0)], [(1.0, 1)]]
    a, b = table_of(branches(better, "better")), table_of(branches(WHOLE))
    both = compare_run_tables(a, b).pooled
    assert both.best.method == "paired"
    assert both.best.difference == pytest.approx((0.1 + 0.1 + 0.4) / 4)
    assert both.best.interval[0] < both.best.difference < both.best.interval[1]
    assert both.differences["mcnemar"].to_mapping()["interval"] is None
    alone = compare_run_tables(table_of(branches(better[:1], "better")), table_of(branches(WHOLE[:1]))).pooled.best
    assert alone.difference == pytest.approx(0.1)
    assert (math.isnan(alone.interval[0]), "exact on this task" in (alone.note or "")) == (True, True)
    open_ended = compare_run_tables(
        table_of(branches([[(0.8, 1)]], "better")), table_of(branches(WHOLE[:1]))
    ).pooled.best
    assert open_ended.interval == pytest.approx((0.1, 0.3))
    sampled = [
        {**synthetic_record(number, "sampled", "optimal", number % 4, number // 4, 0.3), "optimum": 0.9}
        for number in range(20)
    ]
    mixed = compare_run_tables(table_of(sampled), b).pooled
    assert mixed.episodes == 20
    wins = sum(record["outcome"] for record in sampled)
    assert mixed.differences["paired"].difference == pytest.approx(wins / 20 - sum(RATES) / 4)
    assert mixed.num_without_partner == (0, 0)
    swapped = compare_run_tables(b, table_of(sampled)).pooled
    for method in ("paired", "paired_luck_adjusted"):
        assert swapped.differences[method].difference == pytest.approx(-mixed.differences[method].difference)


def test_a_folder_of_branches_is_read_by_everything_that_sums(tmp_path):
    folder = written(tmp_path / "explored", branches(WHOLE), explored=True, seeds=[0], plays=100)
    facts = read_facts(folder)
    assert facts.rows[0].success.value == pytest.approx(0.65)
    assert facts.num_planned == facts.table.num_episodes == 8
    tools = [row for row in facts.breakdown.totals("tool") if row.key]
    calls = [step for record in branches(WHOLE) for step in record["steps"]]
    assert sum(row.calls for row in tools) < len(calls)
    row = read_leaderboard([folder]).sections["optimal"][0]
    assert (row.entry.score, row.entry.num_unfinished) == (pytest.approx(0.65), 0)
    assert len(read_episode_table(folder)) == 4
    page = build_page(facts, folder)
    assert page.sections
