"""Which runs can be compared, and which of their policies belong together."""

from __future__ import annotations

import copy
import dataclasses

import pytest

from resilisim.errors import InvalidInputError
from resilisim.evaluation.run.rescoring import SOURCE_KEY
from resilisim.evaluation.table.comparing import compare_run_tables, compare_tables, refuse_incomparable
from resilisim.evaluation.table.episodes import EpisodeTable, table_of
from resilisim.simulator import Law, RateLimit
from resilisim.statistics.comparison import holm
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
    assert labels(compare_run_tables(a, run("x"), "random"))[0] == ("random", "x", "baseline")
    named = labels(compare_run_tables(a, run("y", "random"), policy_b="random"))
    assert named[0] == ("random (A)", "random (B)", "baseline")


def test_one_run_of_two_policies_is_compared_with_itself():
    table = run("random", "plan-follower", prompts=("optimal",))
    result = compare_run_tables(table, table, same_run=True)
    assert labels(result) == [("random", "plan-follower", "optimal")]
    shown = f"RunComparison(random - plan-follower, prompts: optimal, {result.pooled.episodes} pairs)"
    assert repr(result) == shown
    named = compare_run_tables(table, table, policy_b="random", same_run=True)
    assert labels(named) == [("plan-follower", "random", "optimal")]


@pytest.mark.parametrize(
    ("policies_a", "policies_b", "options", "text"),
    [
        (("random", "x"), ("y", "z"), {}, "say which two to compare with --policy-a and --policy-b"),
        (("random", "x"), ("y", "z"), {"policy_a": "x"}, "say which two"),
        (("random",), ("y",), {"policy_a": "randon"}, "unknown policy 'randon' in A: did you mean 'random'"),
        (("random",), ("y",), {"prompt": "optimul"}, "unknown prompt type 'optimul' in A: did you mean 'optimal'"),
        (("random",), None, {}, "A holds only one policy, random: expected a run of two"),
        (("random",), None, {"policy_a": "random", "policy_b": "random"}, "A holds only one policy, random"),
        (("random", "x", "y"), None, {}, "say which two"),
        (("random", "x", "y"), None, {"policy_a": "x"}, "say which two"),
        (("random", "x"), None, {"policy_a": "x", "policy_b": "x"}, "say which two"),
    ],
)
def test_what_is_not_clear_is_asked_for(policies_a, policies_b, options, text):
    """Without other policies the run is compared with itself."""
    same_run = policies_b is None
    with pytest.raises(InvalidInputError, match=text):
        compare_run_tables(run(*policies_a), run(*(policies_b or policies_a)), **options, same_run=same_run)


def test_runs_without_episodes_or_a_common_prompt_are_refused():
    with pytest.raises(InvalidInputError, match="B holds no episode"):
        compare_run_tables(run("random"), table_of([], {"arguments": ARGUMENTS}))
    with pytest.raises(InvalidInputError, match="no prompt type in common"):
        compare_run_tables(run("random", prompts=("baseline",)), run("random", prompts=("optimal",)))


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


MANIFEST = {
    "arguments": {
        "benchmark": {"version": "benchmark-v1", "sha256": "aa"},
        "environment": {"base": 0.8, "max_turns": 10, "salt": "s", "planner": "auto"},
        "library": "bb",
        "num_episodes": 12,
        "policies": ["random"],
        "policy_names": ["random"],
        "prompts": ["baseline"],
        "seeds": [0, 1],
        "tasks": {"count": 6, "sha256": "cc"},
    },
    "created": "then",
}


def changed(*path: str, value: object) -> dict:
    manifest = copy.deepcopy(MANIFEST)
    place = manifest["arguments"]
    for name in path[:-1]:
        place = place[name]
    place[path[-1]] = value
    return manifest


@pytest.mark.parametrize(
    ("path", "value", "text"),
    [
        (("benchmark", "version"), "benchmark-v2", "benchmark version is 'benchmark-v1' in one and 'benchmark-v2'"),
        (("library",), "dd", "tool library is 'bb' in one and 'dd'"),
        (("environment", "base"), 0.9, r"law \(base success probability\) is 0.8 in one and 0.9"),
        (("environment", "max_turns"), 20, "end rule max_turns is 10 in one and 20"),
        (("environment", "salt"), "t", "salt of the draws is 's' in one and 't'"),
        (("environment", "planner"), "exact", "environment option planner is 'auto' in one and 'exact'"),
        (("something_new",), 1, "something_new is absent in one and 1"),
    ],
)
def test_what_changes_episodes_is_refused_and_named(path, value, text):
    with pytest.raises(InvalidInputError, match=text) as refused:
        refuse_incomparable([MANIFEST, MANIFEST, changed(*path, value=value)], ["a", "b", "c"])
    assert str(refused.value).startswith("a and c cannot be compared")


def with_law(name: str, calls: int) -> dict:
    law = Law(name=name, rate_limit=RateLimit(calls, 5)).to_mapping()
    manifest = changed("environment", "law", value=law)
    del manifest["arguments"]["environment"]["base"]
    return manifest


def test_laws_are_compared_by_content_and_named():
    refuse_incomparable([with_law("mine", 2), with_law("yours", 2)])
    with pytest.raises(InvalidInputError) as refused:
        refuse_incomparable([with_law("mine", 2), MANIFEST], ["a", "b"])
    hash_of_mine = Law(rate_limit=RateLimit(2, 5)).content_hash[:12]
    expected = f"a and b cannot be compared: law is mine ({hash_of_mine}) in one and that of the benchmark in the other"
    assert str(refused.value) == expected
    with pytest.raises(InvalidInputError, match=r"law is mine \(\w+\) in one and mine \(\w+\) in the other"):
        refuse_incomparable([with_law("mine", 2), with_law("mine", 3)])


def test_texts_of_different_revisions_are_not_compared_and_missing_means_the_first():
    refuse_incomparable([MANIFEST, changed("benchmark", "texts", value=1)])
    now = changed("benchmark", "texts", value=2)
    refuse_incomparable([now, now])
    now["arguments"]["environment"]["base"] = 0.1  # versions are named before everything that follows from them
    with pytest.raises(InvalidInputError) as refused:
        refuse_incomparable([MANIFEST, now], ["old", "new"])
    expected = "old and new cannot be compared: revision of the texts that agents read is 1 in one and 2 in the other"
    assert str(refused.value) == expected
    other = changed("environment", "base", value=0.1)
    other["arguments"]["benchmark"] |= {"version": "benchmark-v2", "sha256": "zz"}
    with pytest.raises(InvalidInputError, match="benchmark version"):
        refuse_incomparable([MANIFEST, other])


WHO = ("policies", "policy_names", "models", "models_of_policies", "prompts")
HOW_OFTEN = ("tasks", "seeds", "num_episodes", SOURCE_KEY)


@pytest.mark.parametrize("name", [*WHO, *HOW_OFTEN])
def test_who_plays_what_and_how_often_may_differ(name):
    refuse_incomparable([MANIFEST, changed(name, value=["other"])])


def test_the_checkpoint_that_plans_prompts_belongs_to_the_episodes():
    one, other = (
        changed("checkpoints", value={"policy:p": "1", "auto": "2"}),
        changed("checkpoints", value={"auto": "3"}),
    )
    with pytest.raises(InvalidInputError, match="trained policy that plans prompts is '2' in one and '3'"):
        refuse_incomparable([one, other])
    refuse_incomparable([one, changed("checkpoints", value={"policy:q": "4", "auto": "2"})])


def test_how_far_any_v_star_of_either_run_may_be_too_low_is_told():
    records = list(synthetic_run(("random",), ("optimal",), num_tasks=12, num_seeds=2))
    records[3] = {**records[3], "optimum_gap": 0.125}
    arguments = {**ARGUMENTS, "policy_names": ["random"], "prompts": ["optimal"], "num_episodes": len(records)}
    bounded, exact = table_of(records, {"arguments": arguments}), run("plan-follower", prompts=("optimal",))
    for a, b in (bounded, exact), (exact, bounded):
        assert compare_run_tables(a, b).to_mapping()["optimum_gap"] == 0.125
    assert compare_run_tables(exact, run("random", prompts=("optimal",))).optimum_gap == 0.0
