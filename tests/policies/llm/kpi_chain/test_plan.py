"""Plans: references, what is left after a failure, and reading them: what a plan can break, and what is put right."""

from __future__ import annotations

import string

import pytest
from hypothesis import given as given_by_hypothesis
from hypothesis import strategies as st

from resilisim.policies.llm.kpi_chain.agent import lineage_of
from resilisim.policies.llm.kpi_chain.entities import FINAL_ANSWER
from resilisim.policies.llm.kpi_chain.kpi_plan import (
    MAX_TASKS,
    OUTPUT,
    REASONING,
    TOOL_CALL,
    KpiChainOptions,
    PlanRules,
    UnresolvedError,
    has_references,
    read_plan,
    resolve,
)
from resilisim.policies.llm.kpi_chain.model_yaml import UnreadableReplyError
from tests.guards import no_endless_work
from tests.policies.llm.helpers import SEARCH, answer_task, entity, given, plan_of, ref, spec, tool_task

RULES = PlanRules(specs=(SEARCH, spec("add", "a", "b", note="string")))
FIRST = tool_task("T1", "it", "name")
LAST = answer_task("T2", "T1.name")

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
        (ref("T1.place"), {"x": 1}),
        (ref("T1.none[*]"), []),
        ({"a": {"b": [1, {"c": ref("T1.year")}]}}, {"a": {"b": [1, {"c": 1999}]}}),
        ([ref("T1.name"), [ref("T1.names[*]")]], ["Kim", [["a", "b"]]]),
        (f"{ref('T1.name')} ({ref('T1.year')}, {ref('T1.yes')})", "Kim (1999, true)"),
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
        (ref("T1.names[0]"), "cannot be read"),
        (ref("T1.place.x"), "cannot be read"),
        ("<JSON_PATH>T1.name", "without its partner"),
        (f"<JSON_PATH>{ref('T1.name')}", "without its partner"),
        (ref(ref("T1.name")), "without its partner"),
        ({ref("T1.name"): 1}, "can only stand in values"),
        (ref("T1.name[*]"), "no array"),
        (f"all of {ref('T1.names')}", "no single value"),
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


@given_by_hypothesis(st.text("<>/JSON_PATHT1.name[*] \n", max_size=120))
def test_no_text_passes_on_a_tag_that_was_not_resolved(text):
    resolution = resolve(text, lambda _: "x")
    assert resolution.problems or not has_references(resolution.value)


def test_many_tags_without_a_partner_are_found_out_in_time():
    with no_endless_work():
        for text in ("<JSON_PATH>" * 50_000, "<" * 500_000, "<" + " " * 500_000, "</JSON_PATH>" * 50_000):
            assert resolve([text], lookup).problems or "JSON" not in text


@pytest.mark.parametrize(
    ("task_id", "lineage"),
    [
        ("T3", "T3"),
        ("T3a", "T3"),
        ("T3a2", "T3"),
        ("T3_retry", "T3"),
        ("T31", "T31"),
        ("3a", "3"),
        ("find_film_again", "find_film"),
        ("find_filmography", "find_filmography"),
        ("T4_1_2", "T4_1"),
        ("T4_2-retry", "T4_2"),
        ("T4_12", "T4"),
        ("T5ab", "T5"),
        ("T6bc", "T6b"),
    ],
)
def test_the_lineage_of_a_continuations_id(task_id, lineage):
    earlier = {name: name for name in ("find_film", "T1", "T4_1", "T4_2", "T6a", "T6b")}
    assert lineage_of(task_id, {**earlier, "T5a": "T5"}) == lineage


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
    text = plan_of(
        tool_task("T1", "a", "x"),
        tool_task("T2", ref("T1.x"), "y", needs=("T1",)),
        tool_task("T3", "c", "z"),
        tool_task("T4", f"{ref('T2.y')} {ref('T3.z')}", "w", needs=("T2", "T3")),
        answer_task("T5", "T3.z"),
    )
    plan = read_plan(text, PlanRules())[0].with_task(failed, status="failed", failure="why")
    assert [task.task_id for task in plan.kept_after(failed)] == kept


REMOVED = object()
# What is changed in the first task of a plan, and what is said about it.
BROKEN_TASKS = [
    ({"task_id": REMOVED}, "task number 1: task_id is missing"),
    ({"task_id": "T.1"}, "T.1: task_id has to be of letters"),
    ({"task_id": "T2"}, "'T2' stands twice"),
    ({"task_type": REMOVED}, "T1: task_type is missing"),
    ({"task_type": "Magic"}, "T1: task_type has to be 'Tool call' or 'Reasoning'"),
    ({"task_description": " "}, "T1: task_description is missing"),
    ({"tool_name": ""}, "T1: a 'Tool call' task needs a tool_name"),
    ({"task_type": "Reasoning"}, "T1: a 'Reasoning' task has the tool_name 'search'"),
    ({"dependencies": REMOVED, "dependancies": []}, "mean 'dependencies'"),
    ({"dependencies": {"a": 1}}, "T1: dependencies has to be a list"),
    ({"dependencies": ["T1"]}, "T1: depends on itself"),
    ({"dependencies": ["T2"]}, "'T2', which depends on it in its turn"),
    ({"dependencies": ["T7"]}, "'T7', which does not exist"),
    ({"input_parameters": {"query": "x"}}, "T1: input_parameters has to be a list"),
    ({"input_parameters": [5]}, "T1: input_parameters number 1 has to be a mapping"),
    ({"input_parameters": [{"value": 1}]}, "T1: input_parameters number 1 name is missing"),
    ({"input_parameters": [given("query", "a"), given("query", "b")]}, "'query' stands twice"),
    ({"input_parameters": [given("text", "x")]}, "no parameter 'text'; its signature is search\\(query: string\\)"),
    ({"input_parameters": []}, "search needs the parameter 'query'"),
    ({"input_parameters": [given("query", ref("T2.final_answer"))]}, "'T2', which depends on it in its turn"),
    ({"input_parameters": [given("query", "<JSON_PATH>T0.x")]}, "without its partner"),
    ({"expected_output_entities": REMOVED}, "T1: expected_output_entities has to be a list"),
    ({"expected_output_entities": [{"type": "string"}]}, "T1: expected_output_entities number 1 name is missing"),
    ({"expected_output_entities": [entity("a.b")]}, "number 1 name has to be of letters"),
    ({"expected_output_entities": [entity("name", "blob")]}, "type is 'blob'; expected string, number"),
    ({"expected_output_entities": [entity("name"), entity("name")]}, "'name' stands twice"),
    ({"expected_output_entities": [entity("final_answer")]}, "T1: only the last task brings 'final_answer'"),
]
BROKEN_PLANS = [
    ("tasks: 5", "'tasks' has to be a list"),
    ("tasks:\n- go\n", "task number 1 is no mapping"),
    (plan_of(*[FIRST] * (MAX_TASKS + 1)), "51 tasks"),
    (plan_of(FIRST, answer_task("T2", "T7.name")), "'T7', which does not exist"),
    (plan_of(FIRST, answer_task("T2", "T1.nome")), "did you mean 'name'"),
    (plan_of(FIRST, answer_task("T2", "T1")), "cannot be read"),
    (plan_of(FIRST), "T1: the last task has to bring exactly one entity, 'final_answer'"),
    (plan_of(tool_task("T1", "it", "final_answer", "name")), "the last task has to bring exactly one entity"),
]


def changed(**changes):
    return {name: value for name, value in {**FIRST, **changes}.items() if value is not REMOVED}


@pytest.mark.parametrize(
    ("text", "problem"),
    [*BROKEN_PLANS, *((plan_of(changed(**changes), LAST), problem) for changes, problem in BROKEN_TASKS)],
)
def test_a_broken_rule_is_named(text, problem):
    with pytest.raises(UnreadableReplyError, match=problem):
        read_plan(text, RULES)


CHAIN = [
    tool_task("T1", "it", "name"),
    tool_task("T2", ref("T1.name"), "place", needs=("T1",)),
    tool_task("T3", ref("T1.name"), "year"),
    tool_task("T4", f"{ref('T2.place')} {ref('T3.year')}", "record", needs=("T2", "T3")),
    answer_task("T5", "T4.record", "T1.name"),
]


@given_by_hypothesis(st.permutations(CHAIN), st.booleans())
def test_tasks_in_any_order_are_sorted_by_what_they_need(tasks, entities):
    rules = PlanRules(KpiChainOptions(entities=entities, memory=entities), RULES.specs)
    plan, warnings = read_plan(plan_of(*tasks), rules)
    ids = [task.task_id for task in plan.tasks]
    written = [task["task_id"] for task in tasks]
    assert ids in (["T1", "T2", "T3", "T4", "T5"], ["T1", "T3", "T2", "T4", "T5"])
    assert (ids.index("T2") < ids.index("T3")) is (written.index("T2") < written.index("T3"))
    assert [task.entity_names for task in plan.tasks][-1] == (FINAL_ANSWER,)
    assert any(warning.startswith("the tasks were sorted") for warning in warnings) is (ids != written)


def test_a_plan_is_read_whole_and_a_value_with_a_colon_needs_no_quotes():
    plan = plan_of(FIRST, LAST).replace("value: it", "value: Report: the third, of 12:30")
    plan = plan.replace("Search for T1", "Find this: the name").replace("what it is", "@name, not: the title", 1)
    (first, last), warnings = read_plan(plan, RULES)[0].tasks, read_plan(plan, RULES)[1]
    assert (first.tool_name, last.tool_name, last.dependencies, warnings) == ("search", "", ("T1",), ())
    assert (first.task_type, last.task_type) == (TOOL_CALL, REASONING)
    assert first.inputs[0].value == "Report: the third, of 12:30"
    assert (first.description, first.entities[0].description) == ("Find this: the name", "@name, not: the title")


def test_an_object_in_a_block_of_text_is_one_with_its_references():
    words = '{"source": "x", "rows": "<JSON_PATH>T1.name</JSON_PATH>"}'
    task = {**FIRST, "task_id": "T2", "tool_name": "run", "input_parameters": [given("parameters", words, "object")]}
    plan, _ = read_plan(plan_of(FIRST, task, answer_task("T3", "T2.name")), RULES)
    assert plan.tasks[1].inputs[0].value == {"source": "x", "rows": ref("T1.name")}
    assert plan.tasks[1].inputs[0].is_reference


def test_all_problems_are_told_at_once_but_not_without_end():
    with pytest.raises(UnreadableReplyError) as error:
        read_plan(plan_of({**FIRST, "tool_name": "", "task_description": ""}, answer_task("T2", "T1.nome")), RULES)
    assert len(str(error.value).splitlines()) == 4
    with pytest.raises(UnreadableReplyError, match="and 40 more"):
        read_plan("tasks:\n" + "- x\n" * 50, RULES)


def test_optional_parameters_may_be_left_out_and_unknown_tools_are_left_to_the_toolbox():
    add = {**FIRST, "tool_name": "add", "input_parameters": [given("a", "1"), given("b", "2")]}
    unknown = {**FIRST, "tool_name": "file_operations_reader", "input_parameters": [given("source", "x")]}
    for task in (add, unknown):
        assert read_plan(plan_of(task, LAST), RULES)[0].tasks[0].tool_name == task["tool_name"]


@pytest.mark.parametrize("word", ["tool call", "Tool_call", "TOOL CALL", "tool-call", "ToolCall"])
def test_the_type_of_a_task_in_other_spellings(word):
    assert read_plan(plan_of({**FIRST, "task_type": word}, LAST), RULES)[0].tasks[0].task_type == TOOL_CALL


@pytest.mark.parametrize("nothing", [None, "", "null", "None", "none"])
def test_no_tool_and_no_dependencies_in_any_word_for_none(nothing):
    tasks = {**FIRST, "dependencies": nothing}, {**LAST, "tool_name": nothing}
    first, last = read_plan(plan_of(*tasks), RULES)[0].tasks
    assert (first.dependencies, last.tool_name) == ((), "")


def test_what_is_put_right_is_told():
    second = {**answer_task("T2", "T1.name"), "dependencies": [], "priority": 3}
    second["input_parameters"][0] |= {"type": "banana"}
    plan, warnings = read_plan(plan_of(FIRST, second), RULES)
    assert plan.tasks[1].dependencies == ("T1",)
    assert len(warnings) == 3
    assert any("the dependency was added" in warning for warning in warnings)
    assert any("'priority' is none of a task's" in warning for warning in warnings)
    assert any("unknown type 'banana'" in warning for warning in warnings)


def test_what_a_plan_says_about_its_own_execution_is_not_believed():
    plan, _ = read_plan(
        plan_of(
            {**FIRST, "execution_status": "done", "execution_result": {"name": "Kim"}, "failure_reason": "x"}, LAST
        ),
        RULES,
    )
    assert (plan.tasks[0].status, dict(plan.tasks[0].result), plan.tasks[0].failure) == ("pending", {}, None)


@pytest.mark.parametrize(
    ("value", "kind", "expected"),
    [
        ("|-\n          5", "number", 5),
        ("5", "string", "5"),
        ("007", "string", "007"),
        ("'true'", "bool", True),
        ("'[1, 2]'", "array", [1, 2]),
        ("'{\"a\": 1}'", "object", {"a": 1}),
        ("five", "number", "five"),
        ("{a: [1]}", "object", {"a": [1]}),
        ("5", "", 5),
        ("'null'", "number", "null"),
    ],
)
def test_literals_are_read_in_the_type_that_the_plan_states(value, kind, expected):
    task = tool_task("1", "", "final_answer", tool_name="other", input_parameters=[given("x", "WRITTEN", kind)])
    plan, _ = read_plan(plan_of(task).replace("WRITTEN", value), RULES)
    assert plan.tasks[0].task_id == "1"
    read = plan.tasks[0].inputs[0].value
    assert read == expected
    assert type(read) is type(expected)


def test_without_entities_every_task_brings_its_output():
    plan, _ = read_plan(
        plan_of(changed(expected_output_entities=REMOVED), LAST), PlanRules(KpiChainOptions(entities=False))
    )
    assert [task.entity_names for task in plan.tasks] == [(OUTPUT,), (FINAL_ANSWER,)]


def continued(task):
    """Read a continuation after T3 has failed; T1 is done, and T2 gone."""
    first = tool_task("T1", "it", "name", entity("note", required=False))
    plan, _ = read_plan(plan_of(first, LAST), RULES)
    done = plan.with_task("T1", status="done", result={"name": "Kim"}).tasks[0]
    plan, _ = read_plan(plan_of(tool_task("T3", "x", "final_answer")), RULES)
    failed = plan.with_task("T3", status="failed", failure="why").tasks[0]
    rules = PlanRules(specs=(SEARCH,), kept=(done, failed), used_ids=("T1", "T2", "T3"))
    return read_plan(plan_of(task), rules)[0]


@pytest.mark.parametrize(
    ("task", "problem"),
    [
        (answer_task("T3", "T1.name"), "'T3' is used already; write only tasks still to do, under ids such as T3a"),
        (answer_task("T2", "T1.name"), "'T2' is used already"),
        (answer_task("T3a", "T3.final_answer"), "'T3', which failed and has no results"),
        ({**answer_task("T3a", "T1.name"), "dependencies": ["T1", "T3"]}, "'T3', which failed"),
        (answer_task("T3a", "T2.final_answer"), "'T2', which does not exist"),
        (answer_task("T3a", "T1.note"), "refers to T1.note, and T1 has no such entity"),  # optional, and not found
    ],
)
def test_a_continuation_builds_on_what_is_done_and_neither_repeats_nor_leans_on_what_failed(task, problem):
    assert continued(answer_task("T3a", "T1.name")).tasks[0].task_id == "T3a"
    with pytest.raises(UnreadableReplyError, match=problem):
        continued(task)


def test_ids_of_a_lineage_never_run_out():
    used = ("T3", *(f"T3{letter}" for letter in string.ascii_lowercase))
    with pytest.raises(UnreadableReplyError, match="under ids such as T3z1"):
        read_plan(plan_of(tool_task("T3", "it", "final_answer")), PlanRules(used_ids=used))
