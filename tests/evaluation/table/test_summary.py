"""Sums and summaries against what the records themselves say, and the table in the terminal."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console

from resilisim.evaluation.episode.record import EpisodeRecord, ceiling_of
from resilisim.evaluation.table.controls import more_controls
from resilisim.evaluation.table.episodes import COLUMNS, sums_of
from resilisim.evaluation.table.summary import GroupSummary, summarise, summarise_group, summary_table
from resilisim.statistics import Estimate
from resilisim.statistics.luck_adjustment import NUM_FOLDS, cross_fitted_weights, fold_of, moments_of
from resilisim.tables.numbers import interval_text, percent
from tests.evaluation.synthetic import CARELESSNESS, synthetic_record, synthetic_run


@pytest.fixture(scope="module")
def records() -> list[EpisodeRecord]:
    return list(synthetic_run(num_tasks=24, num_seeds=5))


@pytest.fixture(scope="module")
def rows(records: list[EpisodeRecord]) -> tuple[GroupSummary, ...]:
    return rows_of(records)


def rows_of(records: list[EpisodeRecord]) -> tuple[GroupSummary, ...]:
    return tuple(summarise(sums_of(records, {"arguments": {"policy_names": list(CARELESSNESS)}})))


def mean(values: Iterator[float] | list[float]) -> float:
    numbers = list(values)
    return sum(numbers) / len(numbers)


def test_every_number_is_the_mean_over_the_records(
    records: list[EpisodeRecord], rows: tuple[GroupSummary, ...]
) -> None:
    for row in rows:
        own = [r for r in records if (r["policy"], r["prompt_type"]) == (row.policy, row.prompt_type)]
        assert row.num_episodes == len(own) == 120
        assert row.num_tasks == 24
        assert row.success.value == pytest.approx(mean([r["outcome"] for r in own]))
        assert row.optimum.value == pytest.approx(mean([r["optimum"] for r in own]))
        assert row.luck.value == pytest.approx(mean([r["luck"] for r in own]))
        assert row.regret.value == pytest.approx(mean([r["regret"] for r in own]))
        assert row.turns.value == pytest.approx(mean([len(r["steps"]) for r in own]))
        assert row.luck_adjusted_beta_1.value == pytest.approx(mean([r["outcome"] - r["luck"] for r in own]))
        assert row.share_of_ceiling.value == pytest.approx(
            sum(r["outcome"] for r in own) / sum(ceiling_of(r) for r in own)
        )
        for label, loss in row.losses.items():
            assert loss.value == pytest.approx(mean([r["losses"].get(label, 0.0) for r in own]))
        assert sum(loss.value for loss in row.losses.values()) == pytest.approx(row.regret.value)
        assert sum(row.ended_by.values()) == pytest.approx(1.0)
        lost = row.unavoidable + sum(loss.value for loss in row.losses.values()) - row.luck.value
        assert 1.0 - row.success.value == pytest.approx(lost)


def test_the_adjusted_score_is_its_definition_episode_by_episode(records: list[EpisodeRecord]) -> None:
    row = summarise_group(sums_of(records).group("plan-follower", "baseline"))
    own = [r for r in records if (r["policy"], r["prompt_type"]) == ("plan-follower", "baseline")]
    columns = np.array([[r["outcome"], r["optimum"], r["luck"]] for r in own]).T
    more = np.array([more_controls(r) for r in own])
    fold = np.array([(fold_of(r["instance_id"]) + r["seed"]) % NUM_FOLDS for r in own])
    by_fold = [moments_of(*columns[:, fold == number], more[fold == number]) for number in range(NUM_FOLDS)]
    weights = cross_fitted_weights(np.array(by_fold))[fold]
    adjusted = columns[0] - weights[:, 0] * columns[2] - (weights[:, 1:] * more).sum(axis=1)
    assert row.luck_adjusted.value == pytest.approx(adjusted.mean())
    assert row.is_fitted == pytest.approx(np.mean(weights[:, 1:].any(axis=1)))
    assert row.luck_adjusted.standard_error < row.success.standard_error


def test_luck_is_taken_out_of_a_small_group_whose_episodes_all_succeed() -> None:
    """Eight episodes, four tasks: always 1, so the slope of the outcome is 0; yet luck was needed in each of them."""
    run = synthetic_run(("random",), ("baseline",), num_tasks=4, num_seeds=2)
    lucky = []
    for number, record in enumerate(run):
        regret = 0.01 * (number % 3)
        lucky.append({**record, "outcome": 1, "luck": 1.0 - record["optimum"] + regret})
    row = summarise(sums_of(lucky))[0]
    assert row.success.value == 1.0
    assert row.mean_beta == pytest.approx(1.0 - row.regret.value / row.optimum.value, abs=0.02)
    assert row.luck_adjusted.value == pytest.approx(row.optimum.value - row.regret.value, abs=0.01)


def test_an_agent_without_regret_is_at_the_ceiling_once_luck_is_out(rows: tuple[GroupSummary, ...]) -> None:
    row = next(row for row in rows if row.policy == "exact-optimum")
    assert row.mean_beta == pytest.approx(1.0)
    assert row.luck_adjusted.value == pytest.approx(row.optimum.value)
    assert row.biggest_loss is None
    assert row.regret.value == pytest.approx(0.0, abs=1e-12)


def test_a_part_of_the_tasks_is_summarised_alone_with_the_betas_of_all(records: list[EpisodeRecord]) -> None:
    group = sums_of(records).group("random", "optimal")
    parts = [
        summarise_group(group, group.tasks_where(task_type=name))
        for name in ("basic_file_processing", "complex_network_integration", "advanced_computation_pipeline")
    ]
    whole = summarise_group(group)
    assert sum(part.num_tasks for part in parts) == whole.num_tasks
    total = sum(part.success.value * part.num_episodes for part in parts)
    assert total == pytest.approx(whole.success.value * whole.num_episodes)
    adjusted = sum(part.luck_adjusted.value * part.num_episodes for part in parts)
    assert adjusted == pytest.approx(whole.luck_adjusted.value * whole.num_episodes)
    assert summarise_group(group, group.tasks_where(task_type="none")).num_episodes == 0


def test_a_record_that_misses_the_identity_shows() -> None:
    record = synthetic_record(0, "random", "baseline", 3, 0, 0.5)
    assert sums_of([record]).largest_identity_error < 1e-12
    other = {**record, "luck": record["luck"] + 0.25}
    assert sums_of([record, other]).largest_identity_error == pytest.approx(0.25)


def test_memory_is_flat_over_episodes() -> None:
    """What is kept after many episodes is as large as after few: one number per task, policy and quantity."""

    def kept(num_seeds: int) -> int:
        sums = sums_of(synthetic_run(("random",), ("baseline",), num_tasks=3, num_seeds=num_seeds))
        return sum(len(values) for values in (*(getattr(sums, name) for name in COLUMNS), *sums.losses.values()))

    assert kept(200) == kept(300)


def test_one_episode_has_no_interval_but_a_json_form() -> None:
    row = summarise(sums_of(synthetic_run(("random",), ("baseline",), num_tasks=1, num_seeds=1)))[0]
    assert math.isnan(row.luck.standard_error)
    mapping = json.loads(json.dumps(row.to_mapping(), allow_nan=False))
    assert mapping["luck"]["standard_error"] is None
    assert mapping["num_tasks"] == 1


def test_intervals_on_one_task_are_over_its_seeds() -> None:
    run = list(synthetic_run(("random",), ("baseline",), num_tasks=1, num_seeds=40))
    row = summarise(sums_of(run))[0]
    wins = sum(record["outcome"] for record in run)
    assert (row.success.num_clusters, row.num_tasks, row.num_episodes) == (40, 1, 40)
    assert row.success.standard_error == pytest.approx(math.sqrt(wins / 40 * (1 - wins / 40) / 39))
    turns = [len(record["steps"]) for record in run]
    assert row.turns.standard_error == pytest.approx(np.std(turns, ddof=1) / math.sqrt(40))
    assert "One task: intervals are over its seeds" in " ".join(printed(run, 160).split())
    won = [{**record, "outcome": 1, "luck": 1.0 - record["optimum"] + record["regret"]} for record in run]
    assert summarise(sums_of(won))[0].success.low == pytest.approx(0.025 ** (1 / 40))


def test_percents_never_show_a_negative_zero() -> None:
    assert percent(-0.0001) == "0.0"
    assert percent(0.8333) == "83.3"
    assert percent(math.nan) == "–"
    assert interval_text(Estimate(0.5, 0.1, 0.25, 0.75, 2, 2)) == "[25.0, 75.0]"
    assert interval_text(Estimate(0.5, math.nan, math.nan, math.nan, 1, 2)) == "–"


def printed(records: list[EpisodeRecord], width: int) -> str:
    return shown(rows_of(records), width)


def shown(rows: tuple[GroupSummary, ...], width: int) -> str:
    out = io.StringIO()
    Console(file=out, width=width).print(summary_table(rows))
    return out.getvalue()


def test_a_bound_in_place_of_the_optimum_is_said(records: list[EpisodeRecord]) -> None:
    records = [record for record in records if record["prompt_type"] == "optimal"]
    bounded = [{**record, "optimum_gap": 0.02 if record["policy"] == "random" else 0.0} for record in records]
    rows = summarise(sums_of(bounded))
    assert {row.optimum_gap for row in rows if row.policy == "random"} == {0.02}
    assert {row.optimum_gap for row in rows if row.policy != "random"} == {0.0}
    assert {row.to_mapping()["optimum_gap"] for row in rows} == {0.0, 0.02}
    assert "at most 2.0 points too low" in " ".join(printed(bounded, 200).split())
    assert "lower bounds" not in printed(records, 200)
    seeing = [{**bounded[0], "optimum_knowledge": "informed"}, *bounded[1:]]
    assert [row.is_informed for row in summarise(sums_of(seeing))].count(True) == 1
    text = " ".join(printed(seeing, 200).split())
    assert "at most 2.0 points too low" in text
    assert "(informed): bounds that nobody may reach" in text
    assert "informed" not in printed([{**record, "optimum_knowledge": "observing"} for record in records], 200)


def test_the_table_shows_every_number_with_its_interval(rows: tuple[GroupSummary, ...]) -> None:
    for width in (80, 110, 160):
        text = shown(rows, width)
        for row in rows:
            for estimate in (row.success, row.adjusted_share, *([row.luck_adjusted] if width > 80 else [])):
                assert percent(estimate.value) in text
                assert interval_text(estimate) in text
        assert "exact-optimum *" in text
        assert "privileged" in text
        assert max(map(len, text.splitlines())) <= width
    one_line = next(line for line in shown(rows, 160).splitlines() if line.strip().startswith("random"))
    assert percent(next(row for row in rows if row.policy == "random").optimum.value) in one_line


def test_no_width_cuts_the_biggest_loss(rows: tuple[GroupSummary, ...]) -> None:
    lost = [row for row in rows if row.biggest_loss is not None]
    assert lost
    for names in (("repairing-follower", "optimal"), ("my-own-agent@openai:model", "flawed:missing:severe")):
        named = tuple(replace(row, policy=names[0], prompt_type=names[1]) for row in lost)
        for width in (72, 79, 80, 90, 95, 96, 97, 110, 120, 139):
            text = shown(named, width)
            for row in named:
                assert interval_text(row.success) in text
                loss = percent(row.avoidable_loss(row.biggest_loss or ""))
                has_losses = "biggest" in text
                assert (f" {loss} " in text) == has_losses >= (width >= 96), (width, loss)


def test_a_policy_named_like_markup_is_shown_as_it_is() -> None:
    record = synthetic_record(0, "[red]evil[/red]", "baseline", 3, 0, 0.5)
    assert "[red]evil[/red]" in printed([record], 160)


def summary_of(outcome: Callable[[int, EpisodeRecord], int], num_tasks: int, num_seeds: int) -> GroupSummary:
    """Return the summary of episodes without luck, each with the outcome that its place and record give."""
    run = synthetic_run(("random",), ("baseline",), num_tasks=num_tasks, num_seeds=num_seeds)
    made = ({**record, "outcome": outcome(place, record), "luck": 0.0} for place, record in enumerate(run))
    return summarise(sums_of(made))[0]


def test_no_interval_claims_a_certainty_or_leaves_the_range_of_a_rate() -> None:
    never = summary_of(lambda place, record: 0, 30, 2)
    assert (never.success.value, never.success.low) == (0.0, 0.0)
    assert never.success.high == pytest.approx(1 - 0.025 ** (1 / 30))
    assert never.luck_adjusted.high >= never.success.high
    assert never.share_of_ceiling.high == pytest.approx(never.success.high / never.ceiling.value)
    # One success in 120 episodes without luck: cut off at 0, the t interval would end at 2.5 percent.
    rare = summary_of(lambda place, record: int(place == 0), 40, 3)
    assert rare.luck_adjusted.high == rare.luck_adjusted_beta_1.high == pytest.approx(rare.success.high)
    alike = summary_of(lambda place, record: record["seed"], 30, 2)
    assert (alike.success.value, alike.success.standard_error) == (0.5, 0.0)
    assert min(each.high - each.low for each in (alike.success, alike.luck_adjusted)) > 0.3
    # Two tasks, one lucky and one not: Student's t with one degree of freedom would reach far outside.
    two = summary_of(lambda place, record: int(place > 0), 2, 2)
    assert two.share_of_ceiling.low == 0.0
    for each in (two.luck_adjusted, two.luck_adjusted_beta_1):
        assert min(0.0, each.value) <= each.low <= each.value <= each.high <= max(1.0, each.value)


def test_values_outside_0_and_100_are_explained_where_they_occur(rows: tuple[GroupSummary, ...]) -> None:
    assert "below 0 or above 100" not in shown(rows, 160)
    run = synthetic_run(("random",), ("baseline",), num_tasks=6, num_seeds=1)
    above = [{**record, "outcome": 1, "luck": -0.01 * number} for number, record in enumerate(run)]
    row = summarise(sums_of(above))[0]
    assert row.luck_adjusted.value == pytest.approx(1.0 + row.mean_beta * 0.025, abs=0.01)
    assert row.to_mapping()["luck_adjusted"]["value"] == row.luck_adjusted.value > 1.001
    text = " ".join(printed(above, 160).split())
    assert percent(row.luck_adjusted.value) in text
    assert "A luck-adjusted value below 0 or above 100 comes from removing luck from few episodes" in text


def test_the_footer_tells_of_luck_and_of_few_tasks(
    records: list[EpisodeRecord], rows: tuple[GroupSummary, ...]
) -> None:
    few = list(synthetic_run(("random",), ("baseline",), num_tasks=4, num_seeds=2))
    assert "Only 4 tasks: intervals say little" in printed(few, 160)
    wide = " ".join(shown(rows, 160).split())
    assert "intervals say little" not in wide
    told = rows_of([record for record in records if record["prompt_type"] == "optimal"])
    for some, words in ((told, "V* is an expected value: a sample can lie above it"), (rows, "Both are expected")):
        footer = " ".join(shown(some, 100).split())
        assert words in footer
        assert "by luck, which is removed from shares of" in footer
    assert "which is removed from shares of reference and from luck-adjusted success" in wide


@pytest.mark.parametrize("width", [50, 80, 120])
def test_the_share_of_the_ceiling_stands_at_any_width(records: list[EpisodeRecord], width: int) -> None:
    told = [record for record in records if record["prompt_type"] == "optimal"]
    text = printed(told, width)
    for row in summarise(sums_of(told)):
        assert percent(row.adjusted_share.value) in text
    assert max(map(len, text.splitlines())) <= width
