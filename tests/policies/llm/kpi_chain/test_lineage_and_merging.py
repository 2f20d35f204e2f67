"""Whose attempt a task is, and what is left of a plan after a failure."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resilisim.policies.llm.kpi_chain.chain_plan import ReplanCounts, lineage_of
from resilisim.policies.llm.kpi_chain.plan_reading import PlanRules, read_plan
from tests.policies.llm.kpi_chain.chains import answer_task, plan_of, ref, tool_task


@pytest.mark.parametrize(
    ("task_id", "lineage"),
    [
        ("T3", "T3"),
        ("T3a", "T3"),
        ("T3b", "T3"),
        ("T3ab", "T3"),
        ("T3a2", "T3"),
        ("T3_retry", "T3"),
        ("T3-2", "T3"),
        ("T31", "T31"),
        ("T31a", "T31"),
        ("task_2b", "task_2"),
        ("3a", "3"),
        ("find_film", "find_film"),
        ("find_film_again", "find_film"),
        ("find_film_2", "find_film"),
        ("find_filmography", "find_filmography"),
        ("T1", "T1"),
        ("T1a", "T1"),
        ("T4_1a", "T4_1"),
        ("T4_1_2", "T4_1"),
        ("T4_2-retry", "T4_2"),
        ("T4_12", "T4"),
        ("T4_3", "T4"),
        ("T5ab", "T5"),
        ("T6bc", "T6b"),
    ],
)
def test_the_lineage_of_a_continuations_id(task_id, lineage):
    earlier = {name: name for name in ("find_film", "T1", "T4_1", "T4_2", "T6a", "T6b")}
    assert lineage_of(task_id, {**earlier, "T5a": "T5"}) == lineage


@pytest.mark.parametrize(
    "ids", [["T1_1", "T1_2"], ["T1", "T1a", "T1b"], ["find", "find_again"], ["step-1", "step-1-2"], ["1", "1.1", "1.2"]]
)
def test_tasks_of_the_first_plan_descend_from_themselves(ids):
    counts = ReplanCounts(3)
    counts.register(ids)
    assert [counts.lineage(task_id) for task_id in ids] == ids
    counts.spend(ids[0])
    assert [counts.left(task_id) for task_id in ids] == [2] + [3] * (len(ids) - 1)


def test_continuations_inherit_from_the_task_of_the_first_plan_that_they_extend():
    counts = ReplanCounts(1)
    counts.register(["T1_1", "T1_2"])
    counts.register(["T1_1a", "T1_2_retry"])
    counts.register(["T1_1a2", "T1_1ab"])
    assert [counts.lineage(task_id) for task_id in ("T1_1a", "T1_2_retry", "T1_1a2", "T1_1ab")] == [
        "T1_1",
        "T1_2",
        "T1_1",
        "T1_1",
    ]


@given(st.lists(st.from_regex(r"[Tt][0-9]{1,2}([_-][0-9])?[a-c]{0,2}", fullmatch=True), unique=True, min_size=1))
def test_whatever_the_first_ids_are_continuations_find_back_to_them(ids):
    counts = ReplanCounts(3)
    counts.register(ids)
    assert [counts.lineage(task_id) for task_id in ids] == ids
    continuations = [f"{task_id}_again" for task_id in ids]
    counts.register(continuations)
    assert [counts.lineage(task_id) for task_id in continuations] == ids


def test_counts_are_shared_within_a_lineage():
    counts = ReplanCounts(2)
    counts.register(["T1", "T2", "find"])
    counts.spend("T2")
    counts.register(["T2a", "T3a", "find_again"])
    assert (counts.left("T2a"), counts.left("T2"), counts.left("T3a"), counts.left("T1")) == (1, 1, 2, 2)
    counts.spend("T2a")
    assert counts.left("T2a") == 0
    assert counts.to_mapping() == {"T2": 2}
    assert counts.lineage("find_again") == "find"
    assert counts.used_ids == ("T1", "T2", "find", "T2a", "T3a", "find_again")


def a_plan():
    text = plan_of(
        tool_task("T1", "a", "x"),
        tool_task("T2", ref("T1.x"), "y", needs=("T1",)),
        tool_task("T3", "c", "z"),
        tool_task("T4", f"{ref('T2.y')} {ref('T3.z')}", "w", needs=("T2", "T3")),
        answer_task("T5", "T3.z"),
    )
    return read_plan(text, PlanRules())[0]


def test_descendants_directly_and_through_others():
    plan = a_plan()
    assert plan.descendants("T1") == {"T2", "T4"}
    assert plan.descendants("T3") == {"T4", "T5"}
    assert plan.descendants("T5") == set()


@pytest.mark.parametrize(
    ("failed", "kept"),
    [
        ("T1", ["T1", "T3"]),
        ("T2", ["T1", "T2", "T3"]),
        ("T3", ["T1", "T2", "T3"]),
        ("T5", ["T1", "T2", "T3", "T4", "T5"]),
    ],
)
def test_what_stays_when_a_task_fails(failed, kept):
    assert [task.task_id for task in a_plan().failed(failed, "why").kept_after(failed)] == kept


def test_a_continuation_stands_last():
    plan = a_plan().done("T1", {"x": 1}).failed("T2", "why")
    rules = PlanRules(kept=plan.kept_after("T2"))
    continuation, _ = read_plan(plan_of(answer_task("T2a", "T1.x", "T3.z")), rules)
    merged = plan.continued("T2", continuation)
    assert [(task.task_id, task.status) for task in merged.tasks] == [
        ("T1", "done"),
        ("T2", "failed"),
        ("T3", "pending"),
        ("T2a", "pending"),
    ]
    assert merged.next_task().task_id == "T3"
