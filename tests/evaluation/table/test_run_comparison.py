"""Which policies of two runs belong together."""

from __future__ import annotations

import dataclasses

import pytest

from resilisim.errors import InvalidInputError
from resilisim.evaluation.table.comparing import compare_run_tables, compare_tables
from resilisim.evaluation.table.episodes import EpisodeTable, table_of
from resilisim.statistics import holm
from tests.evaluation.synthetic import synthetic_run

ARGUMENTS = {"library": "l", "environment": {"base": 0.8}}


def run(*policies: str, prompts: tuple[str, ...] = ("baseline", "optimal"), planned: int = 0) -> EpisodeTable:
    arguments = {**ARGUMENTS, "policy_names": list(policies), "prompts": list(prompts)}
    records = list(synthetic_run(policies, prompts, num_tasks=12, num_seeds=2))
    return table_of(records, {"arguments": {**arguments, "num_episodes": planned or len(records)}})


def labels(result) -> list[tuple[str, str, str]]:
    return [(each.label_a, each.label_b, each.prompt) for each in result.comparisons]


def test_runs_of_one_policy_each_are_compared_whatever_their_names():
    result = compare_run_tables(run("random"), run("plan-follower"))
    assert labels(result) == [("random", "plan-follower", "baseline"), ("random", "plan-follower", "optimal")]
    assert (result.pooled.label_a, result.pooled.label_b) == ("random", "plan-follower")
    assert result.pooled.episodes == 2 * 24
    assert result.pooled.pairs.num_tasks == 12


def test_policies_of_one_name_are_matched_and_others_left_out():
    result = compare_run_tables(
        run("random", "plan-follower", "x"), run("plan-follower", "y", "random"), prompt="optimal"
    )
    assert [label[0] for label in labels(result)] == ["random (A)", "plan-follower (A)"]


def test_named_policies_are_compared():
    a, b = run("random", "plan-follower"), run("exact-optimum", "z")
    result = compare_run_tables(a, b, "random", "exact-optimum", "baseline")
    assert labels(result) == [("random", "exact-optimum", "baseline")]
    alone = compare_tables(a.group("random", "baseline"), b.group("exact-optimum", "baseline"))
    assert result.comparisons[0].to_mapping() == alone.to_mapping()
    assert result.comparisons[0].privileged == (False, True)


def test_one_run_of_two_policies_is_compared_with_itself():
    table = run("random", "plan-follower", prompts=("optimal",))
    assert labels(compare_run_tables(table, table, same_run=True)) == [("random", "plan-follower", "optimal")]
    named = compare_run_tables(table, table, policy_b="random", same_run=True)
    assert labels(named) == [("plan-follower", "random", "optimal")]


@pytest.mark.parametrize(
    ("policies_a", "policies_b", "options", "text"),
    [
        (("random", "x"), ("y", "z"), {}, "say which two to compare with --policy-a and --policy-b"),
        (("random", "x"), ("y", "z"), {"policy_a": "x"}, "say which two"),
        (("random",), ("y",), {"policy_a": "randon"}, "unknown policy 'randon' in A: did you mean 'random'"),
        (("random",), ("y",), {"prompt": "optimul"}, "unknown prompt type 'optimul' in A: did you mean 'optimal'"),
    ],
)
def test_what_is_not_clear_is_asked_for(policies_a, policies_b, options, text):
    with pytest.raises(InvalidInputError, match=text):
        compare_run_tables(run(*policies_a), run(*policies_b), **options)


def test_a_run_of_one_policy_is_not_compared_with_itself():
    table = run("random")
    for options in ({}, {"policy_a": "random", "policy_b": "random"}):
        with pytest.raises(InvalidInputError, match="A holds only one policy, random: expected a run of two"):
            compare_run_tables(table, table, **options, same_run=True)


def test_a_comparison_shows_what_is_compared_and_not_its_episodes():
    table = run("random", "plan-follower", prompts=("optimal",))
    result = compare_run_tables(table, table, same_run=True)
    shown = f"RunComparison(random - plan-follower, prompts: optimal, {result.pooled.episodes} pairs)"
    assert repr(result) == shown


def test_a_policy_is_not_compared_with_its_own_episodes():
    table = run("random", "x", "y")
    for options in ({}, {"policy_a": "x"}, {"policy_a": "x", "policy_b": "x"}):
        with pytest.raises(InvalidInputError, match="say which two"):
            compare_run_tables(table, table, **options, same_run=True)


def test_reworded_tasks_are_compared_and_told():
    def with_tasks(policy: str, count: int, sha256: str) -> EpisodeTable:
        table = run(policy)
        arguments = {**table.manifest["arguments"], "tasks": {"count": count, "sha256": sha256}}
        return dataclasses.replace(table, manifest={"arguments": arguments})

    first = with_tasks("random", 12, "a")
    for other, told in ((with_tasks("x", 12, "a"), False), (with_tasks("x", 12, "b"), True)):
        result = compare_run_tables(first, other)
        assert (result.tasks_differ, result.to_mapping()["tasks_differ"]) == (told, told)
    assert not compare_run_tables(first, with_tasks("x", 13, "c")).tasks_differ  # other tasks, not others of one id


def test_empty_runs_and_other_prompts_are_refused():
    with pytest.raises(InvalidInputError, match="B holds no episode"):
        compare_run_tables(run("random"), table_of([], {"arguments": ARGUMENTS}))
    with pytest.raises(InvalidInputError, match="no prompt type in common"):
        compare_run_tables(run("random", prompts=("baseline",)), run("random", prompts=("optimal",)))


def test_json_has_each_method_at_the_top_and_corrected_p_values_below():
    result = compare_run_tables(run("random", "plan-follower", planned=200), run("random", "plan-follower"))
    mapping = result.to_mapping()
    for method in ("independent", "paired", "paired_luck_adjusted", "mcnemar"):
        assert mapping[method]["episodes"] == result.pooled.episodes == 96
        assert set(mapping[method]) >= {"difference", "interval", "p_value", "episodes"}
        raw = [row[method]["p_value"] for row in mapping["comparisons"]]
        assert [row[method]["p_value_holm"] for row in mapping["comparisons"]] == pytest.approx(holm(raw))
    assert len(mapping["comparisons"]) == 4
    assert mapping["num_unfinished"] == [104, 0]
