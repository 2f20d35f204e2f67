"""Prompts: what stands in them, what can be read back, and what foreign text cannot do to them."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_escaping import hostile_texts
from toy_workflows import LIBRARY, task

from resilisim.errors import InvalidInputError
from resilisim.simulator.rules import EndRules
from resilisim.workflows import (
    PROMPT_TYPES,
    ExactPlanner,
    Step,
    Workflow,
    critical_tools,
    parse_plan,
    parse_steps,
    parse_work_order,
    render_prompt,
)

OPEN_TAG = re.compile(r"<(tool_search|tool_info|tool_call|finish)\b")

names = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_.\-]{0,20}", fullmatch=True)
json_values = st.none() | st.booleans() | st.integers() | hostile_texts
json_objects = st.dictionaries(hostile_texts, json_values, max_size=3)
steps = st.builds(
    Step,
    tool=names,
    parameters=json_objects,
    reason=hostile_texts,
    requires=st.lists(names, max_size=3).map(tuple),
    alternatives=st.lists(names, max_size=3).map(tuple),
    expected_outcome=hostile_texts,
    confidence=st.floats(0.0, 1.0),
)
workflows = st.builds(
    Workflow,
    instance_id=st.just("task_1"),
    steps=st.lists(steps, max_size=6).map(tuple),
    planner=hostile_texts,
    predicted_success_probability=st.floats(0.0, 1.0),
)


def plan_for(*required):
    one = task(*required)
    return one, ExactPlanner(LIBRARY).plan(one)


def test_a_baseline_prompt_says_what_an_agent_needs_to_know():
    one = task("read", "write", inputs={"source": "a.json"}, expected_outputs={"rows": 3})
    prompt = render_prompt(one, "baseline")
    assert (prompt.type, prompt.planner, prompt.workflow, prompt.tools_listed) == ("baseline", None, None, False)
    text = prompt.text
    assert "Do the work." in text
    assert '- source: "a.json"' in text
    assert "- rows: 3" in text
    assert text.count("<tool_search>") == 4  # the form, and three examples
    assert "<tool_info>" in text
    assert '<tool_call>tool_name {"parameter": "value"}</tool_call>' in text
    assert "<finish/>" in text
    assert len(re.findall(r"^[1-4]\. ", text, re.MULTILINE)) == 4
    assert "You have 10 messages" in text
    assert parse_plan(text) == []
    assert parse_steps(text) == []


def test_a_baseline_prompt_gives_no_tool_away():
    text = render_prompt(task("fetch", "merge"), "baseline", library=LIBRARY).text
    assert "fetch" not in text
    assert "merge" not in text


def test_an_optimal_prompt_is_the_baseline_and_a_plan():
    one, workflow = plan_for("read", "write")
    baseline = render_prompt(one, "baseline").text
    prompt = render_prompt(one, "optimal", workflow)
    assert prompt.text.startswith(baseline.rstrip("\n"))
    assert (prompt.type, prompt.planner, prompt.workflow) == ("optimal", "exact", workflow)
    added = prompt.text[len(baseline) :]
    assert re.search(rf"^1\. Execute {workflow.tools[0]}$", added, re.MULTILINE)
    assert f"{workflow.predicted_success_probability:.3f}" in added
    assert "Critical tools: " + ", ".join(critical_tools(workflow.steps)) in added
    assert parse_plan(prompt.text) == list(workflow.tools)


def test_critical_tools_are_those_that_later_steps_build_on():
    first, second, third = Step("a"), Step("b", requires=("a",)), Step("c", requires=("x",))
    plan = [first, second, third, first, Step("d", requires=("b", "a"))]
    assert critical_tools(plan) == ("a", "b")
    assert critical_tools([Step("b", requires=("a",)), Step("a")]) == ()
    workflow = Workflow("task_1", (Step("read"),), "exact", 0.9)
    assert "Critical tools: none" in render_prompt(task("read"), "optimal", workflow).text


@settings(max_examples=60, deadline=None)
@given(hostile_texts, json_objects, workflows)
def test_a_plan_round_trips_whatever_stands_around_it(description, inputs, workflow):
    one = task("read", description=description, inputs=inputs, constraints=inputs, task_type=description)
    text = render_prompt(one, "optimal", workflow).text
    assert parse_plan(text) == list(workflow.tools)
    read_back = parse_steps(text)
    assert [step.tool for step in read_back] == list(workflow.tools)
    assert [step.requires or () for step in read_back] == [step.requires for step in workflow.steps]
    assert [step.parameters or {} for step in read_back] == [step.parameters for step in workflow.steps]


@settings(max_examples=60, deadline=None)
@given(hostile_texts, json_objects, workflows)
def test_foreign_text_brings_no_tags_and_no_plan(description, foreign, workflow):
    plain, hostile = task("read"), task("read", description=description, inputs=foreign, expected_outputs=foreign)
    for prompt_type in PROMPT_TYPES:
        shown = render_prompt(hostile, prompt_type, workflow).text
        own_tags = OPEN_TAG.findall(render_prompt(plain, "baseline").text)
        assert OPEN_TAG.findall(shown) == own_tags
    assert parse_plan(render_prompt(hostile, "baseline").text) == []


@given(hostile_texts)
def test_the_work_order_reads_back(description):
    one = task("read", description=description)
    workflow = Workflow("task_1", (Step("read"),), "exact", 0.9)
    for prompt_type in PROMPT_TYPES:
        assert parse_work_order(render_prompt(one, prompt_type, workflow).text) == one.description.strip()


def test_a_text_without_sections_is_the_work_order():
    assert parse_work_order("  Read the file. ") == "Read the file."


def test_a_hand_written_plan_is_read():
    text = "Please do:\n1. Execute `read`\n  - Requires: nothing, really\n 2. execute write\n   - Parameters: {broken\n"
    assert parse_plan(text) == ["read", "write"]
    assert parse_steps(text)[1].parameters is None
    assert parse_plan("1. Execute the reader first") == []


def test_details_after_the_plan_belong_to_no_step():
    assert parse_steps("1. Execute read\n\n## Notes\n- Requires: fetch\n")[0].requires is None


def test_limits_follow_the_rules():
    text = render_prompt(task("read"), "baseline", rules=EndRules(7, 0, 0)).text
    assert "You have 7 messages" in text
    assert "tool runs have failed" not in text
    assert "messages in a row" not in text
    text = render_prompt(task("read"), "baseline", rules=EndRules(7, 3, 6)).text
    assert "3 tool runs have failed" in text
    assert "6 messages in a row" in text


def test_listed_tools_stand_in_the_prompt():
    prompt = render_prompt(task("read"), "baseline", library=LIBRARY, tools_listed=True)
    assert prompt.tools_listed
    for name in LIBRARY.names:
        assert f"- {name}\n" in prompt.text


def test_native_calls_are_explained_without_tags():
    text = render_prompt(task("read"), "baseline", protocol="native").text
    assert not OPEN_TAG.search(text)
    assert "tool_search" in text
    assert "finish" in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("optmal",), "unknown prompt type 'optmal': did you mean 'optimal'?"),
        (("optimal",), "needs a workflow"),
    ],
)
def test_wrong_prompt_types_are_refused(arguments, message):
    with pytest.raises(InvalidInputError) as error:
        render_prompt(task("read"), *arguments)
    assert message in str(error.value)


def test_listing_without_a_library_is_refused():
    with pytest.raises(InvalidInputError, match="needs a library"):
        render_prompt(task("read"), "baseline", tools_listed=True)
