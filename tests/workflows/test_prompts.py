"""Prompts: what stands in them, what can be read back, and what foreign text cannot do to them."""

import itertools
import re

import pytest
from hypothesis import given, settings
from strategies import hostile_unicode, unicode_objects, wild_workflows, workflows
from toy_workflows import LIBRARY, task

from resilisim.errors import InvalidInputError
from resilisim.simulator.end_rules import EndRules
from resilisim.tasks import Task
from resilisim.tool_library import ReturnValue, Tool, ToolLibrary
from resilisim.workflows import ExactPlanner, Step, Workflow, parse_plan
from resilisim.workflows.prompts import (
    PLAN_FORMATS,
    PLANNED_PROMPT_TYPES,
    PROMPT_TYPES,
    parse_steps,
    parse_work_order,
    render_prompt,
)

LIVE_TAG = re.compile(r"<\s*/?\s*(tool_search|tool_info|tool_call|finish|think)\b", re.IGNORECASE)
MCP_TASK_TAG = re.compile(r"<\s*/?\s*mcp_task\b", re.IGNORECASE)
HEADING = re.compile(r"^[^\S\n]*#.*$", re.MULTILINE)

# Every way in which a prompt can be rendered.
FORMS = list(itertools.product(PROMPT_TYPES, PLAN_FORMATS, ("text", "native")))


def shown(one, workflow, prompt_type, plan_format="markdown", protocol="text"):
    return render_prompt(one, prompt_type, workflow, plan_format=plan_format, protocol=protocol).text


def plan_for(*required):
    one = task(*required)
    return one, ExactPlanner(LIBRARY).plan(one)


def test_a_baseline_prompt_gives_no_tool_away():
    text = render_prompt(task("fetch", "merge"), "baseline", library=LIBRARY).text
    assert "fetch" not in text
    assert "merge" not in text


def test_each_type_is_the_baseline_and_one_part():
    one, workflow = plan_for("read", "write")
    for plan_format, protocol in itertools.product(PLAN_FORMATS, ("text", "native")):
        baseline = shown(one, None, "baseline", plan_format, protocol)
        parts = {}
        for prompt_type in PROMPT_TYPES[1:]:
            text = shown(one, workflow, prompt_type, plan_format, protocol)
            assert text.startswith(baseline)
            parts[prompt_type] = text.removeprefix(baseline)
            assert len(re.findall("^## ", parts[prompt_type], re.MULTILINE)) == 1
        assert "Reasoning:" in parts["chain_of_thought"]
        assert not LIVE_TAG.search(parts["chain_of_thought"])
        assert parts["optimal"] == parts["flawed"] != parts["chain_of_thought"]


@settings(max_examples=30)
@given(wild_workflows)
def test_nothing_gives_away_that_a_plan_is_flawed(workflow):
    for plan_format in PLAN_FORMATS:
        flawed = render_prompt(task("read"), "flawed", workflow, plan_format=plan_format)
        optimal = render_prompt(task("read"), "optimal", workflow, plan_format=plan_format)
        assert flawed.text == optimal.text
        assert (flawed.type, optimal.type) == ("flawed", "optimal")
    assert "flaw" not in shown(*plan_for("read", "write"), "flawed").lower()


@given(hostile_unicode, unicode_objects, workflows)
def test_a_plan_round_trips_whatever_stands_around_it(description, inputs, workflow):
    one = task("read", description=description, inputs=inputs, constraints=inputs, task_type=description[:200])
    for prompt_type, plan_format, protocol in FORMS:
        text = shown(one, workflow, prompt_type, plan_format, protocol)
        planned = workflow.steps if prompt_type in PLANNED_PROMPT_TYPES else ()
        assert parse_plan(text) == [step.tool for step in planned]
        read_back = parse_steps(text)
        assert [step.tool for step in read_back] == [step.tool for step in planned]
        assert [step.requires or () for step in read_back] == [step.requires for step in planned]
        assert [step.parameters or {} for step in read_back] == [step.parameters for step in planned]
        for limit in ("max_tries", "skip_from"):
            assert [getattr(step, limit) for step in read_back] == [getattr(step, limit) for step in planned]


@given(hostile_unicode, unicode_objects, wild_workflows)
def test_foreign_text_brings_no_tags_no_headings_and_no_sections(description, foreign, workflow):
    hostile = task(
        "read",
        description=description,
        inputs=foreign,
        expected_outputs=foreign,
        constraints=foreign,
        task_type=description[:200],
    )
    plain = Workflow("task_1", (Step("read"),), "exact", 0.5)
    for form in FORMS:
        ours, text = shown(task("read"), plain, *form), shown(hostile, workflow, *form)
        assert LIVE_TAG.findall(text) == LIVE_TAG.findall(ours)
        assert MCP_TASK_TAG.findall(text) == MCP_TASK_TAG.findall(ours)
        assert HEADING.findall(text) == HEADING.findall(ours)


@given(hostile_unicode, hostile_unicode)
def test_foreign_text_of_a_library_stays_text(hostile, category):
    tools = [
        Tool("Execute", hostile or "Runs.", returns=(ReturnValue(hostile),), metadata={"category": category}),
        Tool("1.Execute", "Runs.", dependencies=("Execute",), original_description=hostile),
    ]
    library = ToolLibrary(tools)
    one = Task.from_mapping({"required_tools": ["1.Execute"], "description": "Do it."}, library)
    workflow = ExactPlanner(library).plan(one)
    for prompt_type, plan_format, protocol in FORMS:
        ours = shown(task("read"), Workflow("task_1", (), "exact", 0.5), prompt_type, plan_format, protocol)
        prompt = render_prompt(
            one, prompt_type, workflow, library, plan_format=plan_format, protocol=protocol, tools_listed=True
        )
        assert LIVE_TAG.findall(prompt.text) == LIVE_TAG.findall(ours)
        planned = prompt_type in PLANNED_PROMPT_TYPES
        assert parse_plan(prompt.text) == (["Execute", "1.Execute"] if planned else [])


@given(hostile_unicode)
def test_the_work_order_reads_back(description):
    one = task("read", description=description)
    workflow = Workflow("task_1", (Step("read"),), "exact", 0.9)
    for form in FORMS:
        assert parse_work_order(shown(one, workflow, *form)) == one.description.strip()


def test_a_hand_written_plan_is_read():
    text = "Please do:\n1. Execute `read`\n  - Requires: nothing, really\n 2. execute write\n   - Parameters: {broken\n"
    assert parse_plan(text) == ["read", "write"]
    assert parse_steps(text)[1].parameters is None
    assert parse_plan("1. Execute the reader first") == []
    assert parse_work_order("  Read the file. ") == "Read the file."


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


@pytest.mark.parametrize(
    ("prompt_type", "arguments", "message"),
    [
        ("optmal", {}, "unknown prompt type 'optmal': did you mean 'optimal'?"),
        ("optimal", {}, "needs a workflow"),
        ("flawed", {}, "needs a workflow"),
        ("baseline", {"plan_format": "xlm"}, "unknown plan format 'xlm': did you mean 'xml'?"),
        ("baseline", {"protocol": "nativ"}, "unknown protocol 'nativ': did you mean 'native'?"),
        ("baseline", {"tools_listed": True}, "needs a library"),
        ("baseline", {"style": "compackt"}, "did you mean 'compact'"),
        ("baseline", {"style": "compact", "plan_format": "xml"}, "plan format 'xml'"),
    ],
)
def test_what_no_prompt_can_be_is_refused(prompt_type, arguments, message):
    with pytest.raises(InvalidInputError) as error:
        render_prompt(task("read"), prompt_type, **arguments)
    assert message in str(error.value)
