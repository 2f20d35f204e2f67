"""`<mcp_task>`: equal after a round trip whatever stands in it, fits its schema, and safe to read from strangers."""

import sys

import pytest
from hypothesis import example, given, settings
from strategies import hostile_texts, wild_workflows
from toy_workflows import LIBRARY, task

from resilisim.errors import InvalidInputError, MissingExtraError
from resilisim.workflows import ExactPlanner, Step, Workflow, mcp_task, parse_mcp_task
from resilisim.workflows.mcp_task import decode_characters, encode_characters, render_mcp_task, validate_mcp_task
from resilisim.workflows.prompts import parse_steps
from resilisim.workflows.templating import load_templates

WORKFLOW = Workflow(
    "task_1",
    (
        Step("read", reason="first", expected_outcome="success, with data", confidence=0.8, semantic_match=0.731),
        Step(
            "parse", {"data": {"result_of": "read"}}, "helps", ("read",), ("scan", "load"), "", 0.4, 0.5, "policy", 2, 6
        ),
        Step("write", requires=("parse", "read")),
    ),
    "exact",
    0.75,
)


@given(wild_workflows)
@example(Workflow("", (), "", 0.0))
@example(Workflow("a", (Step("\ud83d\ude00", {"\ud83d\ude00": "\ud83d\ude00\x00\\\x00"}),), "b", 1e-300))
def test_every_workflow_survives(workflow):
    assert parse_mcp_task(render_mcp_task(workflow)) == workflow


@settings(max_examples=25)
@given(wild_workflows)
def test_every_workflow_fits_the_schema_in_text_that_is_nothing_else(workflow):
    text = render_mcp_task(workflow)
    validate_mcp_task(text)
    assert all(line.lstrip().startswith("<") for line in text.splitlines())
    text.encode("utf-8")


@given(hostile_texts)
@example("\\" * 3 + "\x00" + "\\u0041" + "\\" * 2 + "u0041\\")
def test_characters_are_encoded_on_one_line_and_undone_exactly(text):
    encoded = encode_characters(text)
    assert len(encoded.splitlines()) <= 1
    assert decode_characters(encoded) == text
    if "\\" not in text and text.isprintable():
        assert encoded == text


@pytest.mark.parametrize(
    ("text", "encoded"),
    [
        (r"C:\users\new", r"C:\users\new"),
        ("two\nlines", r"two\u000alines"),
        (r"\u0041", r"\\u0041"),
        (r"\\u0041", r"\\\\u0041"),
        ("\\\n", r"\\\u000a"),
        ("\ud800", r"\ud800"),
    ],
)
def test_only_what_must_be_is_encoded(text, encoded):
    assert encode_characters(text) == encoded
    assert decode_characters(encoded) == text


def test_long_runs_of_backslashes_take_linear_time():
    # A million of them in quadratic time would outlast the test session.
    text = "\\" * 1_000_000 + "x"
    assert encode_characters(text + "\n") == text + r"\u000a"
    assert decode_characters(text + "u00") == text + "u00"


def test_parameters_that_are_not_json_are_refused():
    circular = {}
    circular["self"] = circular
    for parameters in ({"data": {1, 2}}, circular):
        with pytest.raises(InvalidInputError, match="parameters of step 'read' are not JSON values"):
            render_mcp_task(Workflow("task_1", (Step("read", parameters),), "exact", 0.5))


def test_what_could_not_be_read_back_is_not_written(monkeypatch):
    monkeypatch.setattr(mcp_task, "MAX_CHARACTERS", 1000)
    with pytest.raises(InvalidInputError, match=r"workflow of 'task_1': .* characters as <mcp_task>, expected at most"):
        render_mcp_task(WORKFLOW)


def test_the_texts_that_guide_are_templates(tmp_path):
    (tmp_path / "mcp_task.failure_handling.report.md").write_text("Call <b>\n# Anna</b> & ask.", encoding="utf-8")
    text = render_mcp_task(WORKFLOW, load_templates(tmp_path))
    assert "<report>Call &lt;b&gt; # Anna&lt;/b&gt; &amp; ask.</report>" in text
    assert parse_mcp_task(text) == WORKFLOW
    validate_mcp_task(text)


SMALLEST = """
<mcp_task>
  <instance_id>task_1</instance_id><planner>me</planner>
  <execution_plan>{steps}</execution_plan>
  <workflow_intelligence><predicted_success_probability>{chance}</predicted_success_probability></workflow_intelligence>
</mcp_task>
"""


def by_hand(steps="", chance="0.5"):
    return SMALLEST.format(steps=steps, chance=chance)


def test_a_hand_written_element_needs_no_more_than_the_workflow():
    text = '<?xml version="1.0"?>\n<!-- mine -->\n' + by_hand("<step><tool>read</tool></step>")
    assert parse_mcp_task(text) == Workflow("task_1", (Step("read"),), "me", 0.5)
    with pytest.raises(InvalidInputError, match="does not fit its schema at /mcp_task/execution_plan/step"):
        validate_mcp_task(text)


HOSTILE = {
    "billion laughs": (
        '<!DOCTYPE mcp_task [<!ENTITY a "ha"><!ENTITY b "&a;&a;&a;">]>' + by_hand("<step><tool>&b;</tool></step>"),
        "DOCTYPE",
    ),
    "external entity": (
        '<?xml version="1.0"?>\n<!-- x --><!doctype m [<!ENTITY x SYSTEM "file:///etc/passwd">]>' + by_hand("&x;"),
        "DOCTYPE",
    ),
    "a document type behind other text": ('Hello <!DOCTYPE m [<!ENTITY x "y">]>' + by_hand("&x;"), "undefined entity"),
    "a document type inside": (by_hand("<!DOCTYPE x>"), "not well-formed XML"),
    "an unknown entity": (by_hand("<step><tool>&nbsp;</tool></step>"), "undefined entity"),
    "deep nesting": (by_hand("<step>" * 100_000 + "</step>" * 100_000), "nested too deeply: expected at most 8 levels"),
    "megabytes": (by_hand("<step><tool>" + "x" * 4_000_000 + "</tool></step>"), "expected at most 4,000,000"),
    "megabytes of openings": ("<mcp_task>" * 400_000, "never closed"),
    "no element": ("1. Execute read", "holds no <mcp_task> element"),
    "another element": ("<mcp_tasks></mcp_tasks>", "holds no <mcp_task> element"),
    "half an element": ("<mcp_task><planner>", "never closed"),
    "broken markup": (by_hand("<step></tool>"), "mismatched tag"),
    "a raw control character": (by_hand("<step><tool>\x00</tool></step>"), "not well-formed XML"),
    "half a surrogate pair": (by_hand("<step><tool>\ud800</tool></step>"), "not Unicode text"),
    "an unknown section": ("<mcp_task><planer>x</planer></mcp_task>", "did you mean 'planner'?"),
    "a missing section": ("<mcp_task><planner>x</planner></mcp_task>", "<mcp_task> has no <workflow_intelligence>"),
    "a section twice": ("<mcp_task><planner/><planner/></mcp_task>", "<planner> stands twice"),
    "an unknown part": (
        by_hand("<step><tol>read</tol></step>"),
        "unknown element 'tol' in <step>: did you mean 'tool'",
    ),
    "a part of no plan": (by_hand("<stage/>"), "unknown element 'stage' in <execution_plan>"),
    "no tool": (by_hand("<step><reasoning>x</reasoning></step>"), "field 'tool': is missing"),
    "text between steps": (by_hand("1. Execute read"), "<execution_plan> holds the text '1. Execute read'"),
    "markup in a text": (by_hand("<step><tool><b>x</b></tool></step>"), "<tool> holds the element <b>"),
    "tools in a row": (by_hand("<step><tool>a</tool><requires>b, c</requires></step>"), "<requires> holds the text"),
    "no tools": (by_hand("<step><requires><name>b</name></requires></step>"), "unknown element 'name' in <requires>"),
    "no number": (by_hand(chance="likely"), "is 'likely': expected a number"),
    "not a chance": (by_hand(chance="1.5"), "got 1.5; expected a number, at least 0 and at most 1"),
    "not a number": (by_hand(chance="nan"), "got NaN; expected a number, at least 0 and at most 1"),
    "a chooser": (by_hand("<step><tool>a</tool><chosen_by>luck</chosen_by></step>"), "expected one of semantics, pol"),
    "no JSON": (by_hand("<step><tool>a</tool><parameters>{a}</parameters></step>"), "expected a JSON object"),
    "no object": (by_hand("<step><tool>a</tool><parameters>[1]</parameters></step>"), "expected an object"),
    "deep JSON": (by_hand(f"<step><tool>a</tool><parameters>{'[' * 100_000}</parameters></step>"), "nested too deeply"),
    "a long wrong name": (by_hand(f"<step><{'x' * 100_000}/></step>"), "unknown element 'xxx"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_what_strangers_write_is_refused_in_one_line(name):
    text, message = HOSTILE[name]
    with pytest.raises(InvalidInputError) as error:
        parse_mcp_task(text)
    assert message in str(error.value)
    assert len(str(error.value).splitlines()) == 1
    assert len(str(error.value)) < 400


@given(hostile_texts, hostile_texts)
def test_reading_anything_gives_a_workflow_or_a_refusal(around, inside):
    text = f"{around}<mcp_task>{inside}</mcp_task>{around}"
    parse_steps(text)
    with pytest.raises(InvalidInputError) as error:
        parse_mcp_task(text)
    assert len(str(error.value).splitlines()) == 1


def test_a_follower_takes_from_a_broken_plan_what_can_be_read():
    steps = """
        <step><tool> read </tool><parameters>{broken</parameters><max_tries>few</max_tries>
        <skip_from> 7 </skip_from></step>
        <step><tool>no name</tool></step>
        <step><tool></tool></step>
        <step><reasoning>nothing</reasoning></step>
        <step><tool>write</tool><requires><tool>read</tool><tool/></requires><parameters>[1]</parameters>
        <max_tries>0</max_tries></step>
    """
    read, write = parse_steps(by_hand(steps, chance="perhaps"))
    assert [(step.max_tries, step.skip_from) for step in (read, write)] == [(None, 7), (1, None)]
    assert (read.tool, read.requires, read.parameters) == ("read", None, None)
    assert (write.tool, write.requires, write.parameters) == ("write", ("read",), None)
    assert parse_steps(by_hand("<step>")) == []
    assert [step.tool for step in parse_steps(by_hand("<step>") + "\n1. Execute read\n")] == ["read"]


@pytest.mark.parametrize(
    ("change", "place"),
    [
        (("<confidence>0.4<", "<confidence>1.4<"), "/mcp_task/execution_plan/step[2]/confidence"),
        (("<semantic_match>0.5<", "<semantic_match>-2<"), "/mcp_task/execution_plan/step[2]/semantic_match"),
        (("<chosen_by>policy<", "<chosen_by>luck<"), "/mcp_task/execution_plan/step[2]/chosen_by"),
        (("<max_tries>2<", "<max_tries>0<"), "/mcp_task/execution_plan/step[2]/max_tries"),
        ((' rank="1"', ""), "/mcp_task/execution_plan/step[2]/alternatives/tool[1]"),
        (("<planner>exact</planner>", ""), "/mcp_task"),
        (("<report>", "<apology/><report>"), "/mcp_task/failure_handling"),
    ],
)
def test_the_schema_refuses_what_does_not_fit(change, place):
    text = render_mcp_task(WORKFLOW)
    assert change[0] in text
    with pytest.raises(InvalidInputError) as error:
        validate_mcp_task(text.replace(*change))
    assert f"does not fit its schema at {place}: " in str(error.value)
    assert len(str(error.value).splitlines()) == 1


def test_without_xmlschema_everything_but_validation_works(monkeypatch):
    mcp_task._compiled_schema.cache_clear()
    monkeypatch.setitem(sys.modules, "xmlschema", None)
    text = render_mcp_task(ExactPlanner(LIBRARY).plan(task("read")))
    assert parse_mcp_task(text).tools == ("read",)
    with pytest.raises(MissingExtraError, match=r"pip install -c constraints.txt '\.\[xml\]'"):
        validate_mcp_task(text)
