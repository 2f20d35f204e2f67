"""What sections share: means and differences of rates over tasks against naive forms, and the paper's figures."""

from __future__ import annotations

import json
import math
from dataclasses import astuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from resilisim.evaluation.table.episodes import sums_of
from resilisim.evaluation.table.summary import summarise_group
from resilisim.reporting.groups import (
    BY_MODEL_SIZE,
    BY_TASK_TYPE,
    Rate,
    above_ceiling,
    base_prompt,
    combination,
    difference,
    mean_of,
    pool,
    published_reference,
)
from resilisim.reporting.page import packaged_file
from resilisim.statistics.estimates import clustered_mean
from resilisim.tables.table import Table
from tests.evaluation.synthetic import synthetic_run
from tests.reporting.pages import text_of

MEAN = "mean (as printed)"


def rate(*sums: tuple[float, float]) -> Rate:
    """Return a rate from numerator and denominator of each task."""
    numerators, denominators = np.array(sums, dtype=float).T
    return Rate(numerators, denominators)


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=2, max_size=12))
def test_a_difference_is_the_clustered_mean_of_the_pairs(successes: list[tuple[int, int]]) -> None:
    first, second = (np.array(side, dtype=float) for side in zip(*successes, strict=True))
    episodes = np.full(len(first), 4.0)
    found = difference(Rate(first, episodes), Rate(second, episodes))
    naive = clustered_mean(first - second, episodes)
    assert found.value == pytest.approx(naive.value)
    assert found.standard_error == pytest.approx(naive.standard_error, abs=1e-12)
    if naive.standard_error > 1e-9:
        assert (found.low, found.high) == pytest.approx((naive.low, naive.high))
    else:  # where no task differs, the interval is not a point
        assert found.low < found.value < found.high or abs(found.value) == 1.0


def test_rates_are_combined_as_by_hand() -> None:
    # A difference takes only tasks that both have.
    found = difference(rate((1, 2), (0, 0), (2, 2)), rate((0, 2), (2, 2), (1, 2)))
    assert (found.value, found.num_clusters, found.num_episodes) == (pytest.approx(3 / 4 - 1 / 4), 2, 8)
    # A mean gives every rate the same weight: task g contributes the mean of both residuals over the sum of episodes.
    found = mean_of([rate((1, 1), (1, 1)), rate((0, 10), (3, 10))])
    assert found.value == pytest.approx((1.0 + 0.15) / 2)
    shares = [0.5 * (0.0 - 0.15 * 10) / 20, 0.5 * (3.0 - 0.15 * 10) / 20]
    assert found.standard_error == pytest.approx(math.sqrt(2 * (shares[0] ** 2 + shares[1] ** 2)))
    # One task gives no interval, and none gives no number.
    assert math.isnan(mean_of([rate((1, 2))]).low)
    assert mean_of([rate((1, 2))]).value == 0.5
    assert math.isnan(combination([(1.0, rate((1, 2))), (-1.0, rate((0, 0)))]).value)


def test_groups_counted_as_one_are_what_one_group_of_all_episodes_would_be() -> None:
    parts = list(synthetic_run(("random",), ("flawed:a", "flawed:b"), num_tasks=9, num_seeds=3))
    assert {base_prompt(record["prompt_type"]) for record in parts} == {"flawed"}
    together = sums_of({**record, "prompt_type": "flawed"} for record in parts)
    found = pool(sums_of(parts).group("random", "flawed:a", "flawed:b"), "flawed")
    expected = summarise_group(together.group("random", "flawed"))
    for name in (
        "success",
        "partial_success",
        "optimum",
        "luck_adjusted",
        "share_of_ceiling",
        "luck",
        "regret",
        "turns",
    ):
        mine, other = getattr(found.summary, name), getattr(expected, name)
        assert astuple(mine) == pytest.approx(astuple(other)), name
    assert found.summary.losses.keys() == expected.losses.keys()
    assert found.summary.ended_by == pytest.approx(expected.ended_by)
    assert found.success.value == pytest.approx(found.summary.success.value)
    assert found.adjusted.value == pytest.approx(found.summary.luck_adjusted.value)
    assert sum(rate.value for rate in found.levels) == pytest.approx(1.0)


def test_published_figures_are_those_of_the_paper_and_fit_each_other() -> None:
    tables = json.loads(packaged_file("published.json"))
    prompts, flawed, scaling, types = (tables[number] for number in ("2", "3", "4", "13"))
    assert prompts["rows"]["GPT-4o-mini"] == [[50.5, 46.5, 3.0], [56.1, 43.9, 0.0], [67.7, 31.2, 1.1]]
    assert prompts["rows"]["Llama-3.3-70B"][1] == [43.6, 43.6, 12.7]
    assert flawed["rows"]["Gemini-2.5-Flash"][1] == [20.0, 12.8, 67.3]
    assert scaling["rows"]["Qwen2.5-3B"] == [[0.5, 0.5, 99.1]]
    assert types["rows"]["Multi-step processing"][0][types["columns"].index("DeepSeek-R1") - 1] == 47.3
    # Each printed figure is off by up to 0.05, and so is the printed mean.
    for table in (prompts, flawed):
        rows = np.array([levels for name, levels in table["rows"].items() if name != MEAN])
        assert rows.mean(axis=0) == pytest.approx(np.array(table["rows"][MEAN]), abs=0.1001)
        assert rows.sum(axis=2) == pytest.approx(100.0, abs=0.2001)
    assert {name: row[2] for name, row in prompts["rows"].items()} == {
        name: row[0] for name, row in flawed["rows"].items()
    }
    assert scaling["rows"]["Qwen2.5-32B"] == prompts["rows"]["Qwen2.5-32B"][2:]


def test_published_rates_above_the_ceiling_of_the_run_are_named_with_it() -> None:
    low = sums_of({**record, "optimum": 0.4} for record in synthetic_run(num_tasks=6, num_seeds=1))
    (note,) = above_ceiling(low, BY_TASK_TYPE)
    assert note.startswith("52.8 to 53.7% full success is published for advanced computation pipeline tasks")
    assert "on this run's own is 40.0%" in note
    (note,) = above_ceiling(low, BY_MODEL_SIZE)
    assert note.startswith("63.5 to 65.0% full success is published for all tasks")
    high = sums_of({**record, "optimum": 0.9} for record in synthetic_run(num_tasks=6, num_seeds=1))
    assert not any(above_ceiling(high, number) for number in (2, 3, 4, 13))
    other_types = sums_of(record for record in synthetic_run(num_tasks=2, num_seeds=1))
    assert not above_ceiling(other_types, BY_TASK_TYPE)


@pytest.mark.parametrize(("number", "rows"), [(2, 8), (3, 8), (4, 4), (13, 5)])
def test_published_rows_are_folded_away_and_say_what_they_are(number: int, rows: int) -> None:
    fold = published_reference(number)
    assert fold.is_published
    assert "Published figures of other systems" in fold.summary
    (table,) = fold.blocks
    assert isinstance(table, Table)
    assert f"table {number})" in table.caption
    assert "not of this run" in table.caption
    assert any("Other systems, another scorer and another environment" in note for note in table.notes)
    assert any("not its five task types" in note for note in table.notes) == (number == 13)
    assert len(table.rows) == rows
    assert {len(row) for row in table.rows} == {len(table.headings)}
    if number == 3:
        drops = {row[0]: text_of(row[-1]) for row in table.rows}
        expected = {"GPT-4o-mini": "5.5", "Gemini-2.5-Flash": "40.1", "GPT-5-mini": "−2.8", MEAN: "7.8"}
        assert expected.items() <= drops.items()
