"""A plan and what it found: references, memory, lineages, and what is left of a plan after a failure."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resilisim.policies.llm.kpi_chain.plan import (
    ChainPlan,
    Memory,
    PlanTask,
    Reference,
    ReplanCounts,
    UnresolvedError,
    has_references,
    is_interpolated,
    lineage_of,
    references_in,
    resolve,
)
from resilisim.policies.llm.kpi_chain.plan import PlanRules, read_plan
from tests.guards import no_endless_work
from tests.policies.llm.kpi_chain.chains import answer_task, plan_of, ref, tool_task

VALUES = {"name": "Kim", "year": 1999, "names": ["a", "b"], "place": {"x": 1}, "none": [], "blank": "", "yes": True}


def lookup(reference):
    if reference.task_id != "T1" or reference.entity not in VALUES:
        raise UnresolvedError(f"{reference}: task {reference.task_id}")
    return VALUES[reference.entity]


@pytest.mark.parametrize(
    ("value", "resolved"),
    [
        ("plain", "plain"),
        (ref("T1.name"), "Kim"),
        (f"  {ref(' T1.year ')}\n", 1999),
        (ref("$.T1.year"), 1999),
        ("<json_path>T1.year</json_path>", 1999),
        (ref("T1.names"), ["a", "b"]),
        (ref("T1.names[*]"), ["a", "b"]),
        (ref("T1.place"), {"x": 1}),
        (ref("T1.none[*]"), []),
        (ref("T1.blank"), ""),
        ({"a": {"b": [1, {"c": ref("T1.year")}]}}, {"a": {"b": [1, {"c": 1999}]}}),
        ([ref("T1.name"), [ref("T1.names[*]")]], ["Kim", [["a", "b"]]]),
        (f"{ref('T1.name')} ({ref('T1.year')}, {ref('T1.yes')})", "Kim (1999, true)"),
        (f"{ref('T1.name')}{ref('T1.name')}", "KimKim"),
        ({"x": None, "y": 1.5}, {"x": None, "y": 1.5}),
    ],
)
def test_references_become_values_in_their_types(value, resolved):
    resolution = resolve(value, lookup)
    assert resolution.problems == ()
    assert resolution.value == resolved
    assert type(resolution.value) is type(resolved)


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (ref("T9.name"), "task T9"),
        ({"deep": [ref("T9.name")]}, "task T9"),
        (ref("T1.unknown"), "T1.unknown"),
        (ref("T1"), "cannot be read"),
        (ref("T1."), "cannot be read"),
        (ref(""), "cannot be read"),
        (ref("T1.names[0]"), "cannot be read"),
        (ref("T1.place.x"), "cannot be read"),
        ("<JSON_PATH>T1.name", "without its partner"),
        ("T1.name</JSON_PATH>", "without its partner"),
        (f"<JSON_PATH>{ref('T1.name')}", "without its partner"),
        (ref(ref("T1.name")), "without its partner"),
        (ref("T1.na<me"), "without its partner"),
        ({ref("T1.name"): 1}, "can only stand in values"),
        (ref("T1.name[*]"), "no array"),
        (f"all of {ref('T1.names')}", "no single value"),
        (f"in {ref('T1.place')}", "no single value"),
    ],
)
def test_what_cannot_be_resolved_has_a_problem_and_no_value(value, problem):
    resolution = resolve(value, lookup)
    assert resolution.value is None
    assert any(problem in line for line in resolution.problems)


def test_what_memory_puts_in_is_not_looked_at_again():
    text = f"see {ref('T1.year')}"
    assert resolve(ref("T1.name"), lambda _: text).value == text
    assert resolve(f"({ref('T1.name')})", lambda _: text).value == f"({text})"


@given(st.recursive(st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=8))
def test_values_without_tags_stay_what_they_are(value):
    if not has_references(value):
        assert resolve(value, lookup).value == value


@given(st.text("<>/JSON_PATHT1.name[*] \n", max_size=120))
def test_no_text_passes_on_a_tag_that_was_not_resolved(text):
    resolution = resolve(text, lambda _: "x")
    assert resolution.problems or not has_references(resolution.value)


def test_many_tags_without_a_partner_are_found_out_in_time():
    with no_endless_work():
        for text in ("<JSON_PATH>" * 50_000, "<" * 500_000, "<" + " " * 500_000, "</JSON_PATH>" * 50_000):
            assert resolve([text], lookup).problems or "JSON" not in text


def test_finding_references():
    assert references_in([ref("T1.a"), {"k": f"x {ref('T2.b[*]')}"}])[0] == [
        Reference("T1", "a"),
        Reference("T2", "b", is_array=True),
    ]
    assert not is_interpolated(ref("T1.a"))
    assert is_interpolated({"k": [f"x {ref('T1.a')}"]})
    assert is_interpolated(ref("T1.a") + ref("T1.b"))


def plan(**statuses: str) -> ChainPlan:
    return ChainPlan(
        tuple(
            PlanTask(task_id=task_id, task_type="Reasoning", status=status, failure="why")
            for task_id, status in statuses.items()
        )
    )


def test_memory_keeps_types_and_lends_copies():
    memory = Memory()
    memory.store("T1", VALUES, "raw")
    assert memory.to_mapping() == {"T1": VALUES}
    found = memory.lookup(Reference("T1", "names"), plan(T1="done"))
    found.append("c")
    assert memory.to_mapping() == {"T1": VALUES}


@pytest.mark.parametrize(
    ("reference", "problem"),
    [
        (Reference("T9", "name"), "task T9, which is not in the plan"),
        (Reference("T2", "name"), "task T2, which failed: why"),
        (Reference("T3", "name"), "task T3, which has not been done"),
        (Reference("T1", "nome"), "task T1, which found only: name"),
    ],
)
def test_memory_names_the_task_that_has_nothing(reference, problem):
    memory = Memory()
    memory.store("T1", {"name": "Kim"}, "raw")
    with pytest.raises(UnresolvedError, match=problem):
        memory.lookup(reference, plan(T1="done", T2="failed", T3="pending"))


def test_without_entities_a_reference_is_the_whole_output():
    memory = Memory(keeps_entities=False)
    memory.store("T1", {"name": "Kim"}, "the raw text")
    assert memory.lookup(Reference("T1", "name"), plan(T1="done")) == "the raw text"
    assert memory.to_mapping() == {"T1": {"output": "the raw text"}}


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
