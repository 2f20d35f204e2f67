"""Reading messages: tags, thoughts, parameters, completion, native calls."""

from __future__ import annotations

import functools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resilisim.chat.call_forms import FORMS, find_form
from resilisim.envs.protocol.completion_signal import signals_completion
from resilisim.envs.protocol.message_reader import read_native, read_text
from resilisim.envs.protocol.native_tools import (
    NATIVE_FUNCTIONS,
    WAIT_FUNCTION,
    native_tools,
    tool_functions,
)
from resilisim.tool_library import default_library
from tests.guards import no_endless_work

LIBRARY = default_library()
READER = "file_operations_reader"


def read(text, mode="lenient"):
    return read_text(text, LIBRARY, mode)


def native(name, arguments, content=None):
    calls = [{"id": "c1", "type": "function", "function": {"name": name, "arguments": arguments}}]
    return read_native({"role": "assistant", "content": content, "tool_calls": calls}, LIBRARY, "lenient")


@pytest.mark.parametrize(
    ("text", "kind", "tool"),
    [
        (f"<tool_call>{READER}</tool_call>", "execute", READER),
        (f"I call it.\n```xml\n<tool_call> {READER} </tool_call>\n```", "execute", READER),
        (f'<tool_call>{READER} {{"source": "a.csv"}}</tool_call>', "execute", READER),
        (f'<tool_call>{READER}{{"source": "a.csv"}}</tool_call>', "execute", READER),
        (f"<TOOL_CALL>{READER.upper()}</TOOL_CALL>", "execute", READER),
        ("<tool_call>data_processing_merger</tool_call>", "execute", "data_processing_aggregator"),
        (f"<tool_info>{READER}</tool_info>", "info", READER),
        ("<tool_search>read a file</tool_search>", "search", None),
        ("<tool_call>file_reader</tool_call>", "rejected", "file_reader"),
        (f'<tool_call>{READER} {{"source": 1}}</tool_call>', "rejected", READER),
        (f"<tool_call>{READER} {{not json}}</tool_call>", "rejected", READER),
        (f"<tool_call>{READER} [1]</tool_call>", "rejected", READER),
        ("<tool_call></tool_call>", "format_error", None),
        ("<tool_search> </tool_search>", "format_error", None),
        (f"<tool_call>{READER}", "format_error", None),
        ("", "format_error", None),
        ("<finish/>", "finish", None),
        ("The task is complete.", "finish", None),
        (f"<tool_call>{READER}</tool_call> The task is complete.", "execute", READER),
        (f"<think><tool_call>{READER}</tool_call></think><finish/>", "finish", None),
        (f"<think>open end <tool_call>{READER}</tool_call>", "format_error", None),
        (f"<finish/></think><tool_info>{READER}</tool_info>", "info", READER),
    ],
)
def test_reading(text, kind, tool):
    message = read(text)
    assert (message.kind, message.tool) == (kind, tool)


WAITS = (*NATIVE_FUNCTIONS, WAIT_FUNCTION)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("<wait/>", "wait"),
        ("I let it rest.\n<WAIT />", "wait"),
        ("<wait></wait>", "wait"),
        ("<wait/> and then <finish/>", "wait"),
        ("<tool_call>wait</tool_call>", "wait"),
        (f"<tool_call>{READER}</tool_call><wait/>", "execute"),
        ("<think><wait/></think>I wait.", "format_error"),
        ("<finish/>", "finish"),
    ],
)
def test_waiting_is_read_where_it_is_offered_and_nowhere_else(text, kind):
    assert read_text(text, LIBRARY, "lenient", offers_wait=True).kind == kind
    assert read_text(text, LIBRARY, "lenient").kind != "wait"
    assert read_native({"content": text}, LIBRARY, "lenient", WAITS).kind == kind
    assert read_native({"content": text}, LIBRARY, "lenient").kind != "wait"


def test_the_function_wait_is_understood_where_it_is_offered():
    call = {"content": None, "tool_calls": [{"function": {"name": "wait", "arguments": "{}"}}]}
    assert read_native(call, LIBRARY, "lenient", WAITS).kind == "wait"
    unknown = read_native(call, LIBRARY, "lenient")
    assert (unknown.kind, unknown.problems[0][:23]) == ("format_error", "unknown function 'wait'")
    for functions in (native_tools, functools.partial(tool_functions, LIBRARY, "lenient")):
        names = [[entry["function"]["name"] for entry in functions(offers_wait=offers)] for offers in (False, True)]
        assert names[1] == [*names[0][:-1], "wait", "finish"]


@pytest.mark.parametrize(
    ("text", "signalled"),
    [
        ("I have finished executing all steps.", True),
        ("TASK COMPLETED", True),
        ("Task has been done", True),
        ("The task is finished; goodbye", True),
        ("<finish />", True),
        ("<finish></finish>", True),
        ("I have not finished executing.", False),
        ("I don't think the task is complete.", False),
        ("The task is not complete", False),
        ("One tool did not answer. The task is complete.", True),
        ("The logger was not needed, but the task is complete.", True),
        ("taskcomplete", False),
        ("The multitask is done", False),
        ("The task is completely unclear", False),
        ("complete the task", False),
        ("Saying task complete would not be right", False),
        ("I will not send <finish/> yet", False),
        ("I could not reach the logger. <finish/>", True),
        ("When the task is complete, I will tell you.", False),
        ("I will tell you when the task is complete.", False),
        ("Once I have finished executing all steps I will report.", False),
        ("I'll say task complete then.", False),
        ("If the parser succeeded, the task is complete.", False),
        ("Two steps are left before the task is complete.", False),
        ("The task is complete when the writer has run.", False),
        ("Let me check whether the task is complete.", False),
        ("I will write <finish/> when everything has run.", False),
        ("Once everything has run I write <finish/>.", False),
        ("After five calls, the task is complete.", True),
        ("When it failed I tried again, and now the task is complete.", True),
        ("I will now signal completion: <finish/>", True),
        ("Thought: when all is done I finish.\n**Action:** `finish`", True),
        ('Action: finish {"answer": "done"}', True),
        ("Action: finish the parsing", False),
        ("Action: reader {}\nObservation: it worked\nAction: finish", False),
        ("<tool_call>finish</tool_call>", True),
        ('<tool_call>{"name": "finish", "arguments": {}}</tool_call>', True),
    ],
)
def test_completion_signal(text, signalled):
    assert "<tool_call>" in text or signals_completion(text) is signalled
    assert (read(text).kind == "finish") is signalled


def test_first_tag_counts_and_the_rest_is_counted():
    message = read(f"<tool_info>{READER}</tool_info><tool_call>{READER}</tool_call><tool_search>x</tool_search>")
    assert (message.kind, message.ignored) == ("info", 2)


def test_thoughts_are_kept_apart():
    message = read(f"<think>first</think>say <think>second</think><tool_call>{READER}</tool_call>")
    assert message.thoughts == "first\nsecond"
    assert message.text == f"say <tool_call>{READER}</tool_call>"


@pytest.mark.parametrize(
    "text",
    [
        "<tool_call>" * 90_000,
        "<tool_call>a</tool_call>" * 40_000,
        "<think>" * 140_000,
        "not finished executing " * 40_000,
        "not finished executing. " * 40_000,
        "<tool_call>" + "[" * 900_000 + "</tool_call>",
        "<tool_call>file_operations_reader {" + '"a":{' * 150_000 + "</tool_call>",
    ],
    ids=range(7),
)
def test_a_million_hostile_characters_are_read_in_linear_time(text):
    with no_endless_work():
        read(text)


@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity", "1e999", "1" * 5000])
def test_numbers_that_json_does_not_have_are_refused(value):
    message = read(f'<tool_call>network_fetcher {{"source": "a", "timeout": {value}}}</tool_call>')
    assert message.kind == "rejected"


def test_a_call_with_parameters_alone_says_what_is_missing():
    for content in ('{"source": "a.csv"}', '{"name": '):
        message = read(f"<tool_call>{content}</tool_call>")
        assert message.kind == "format_error"
        assert "name" in message.problems[0]


@pytest.mark.parametrize(
    "content",
    [
        f'`{READER}` `{{"source": "a"}}`',
        f'**{READER}**: {{"source": "a"}}',
        f'{READER}({{"source": "a"}})',
        f'{READER}\n```json\n{{"source": "a"}}\n```',
        f'```\n{READER} {{"source": "a"}}\n```',
        f'{{"name": "{READER}", "arguments": {{"source": "a"}}}}',
        f'{{"name": "{READER}", "arguments": "{{\\"source\\": \\"a\\"}}"}}',
        f'{{"type": "function", "function": {{"name": "{READER}", "parameters": {{"source": "a"}}}}}}',
        f'{{"name": "tool_call", "arguments": {{"name": "{READER}", "parameters": {{"source": "a"}}}}}}',
        f'tool_call({{"name": "{READER}", "parameters": {{"source": "a"}}}})',
    ],
)
def test_one_call_in_many_hands(content):
    plain = read(f'<tool_call>{READER} {{"source": "a"}}</tool_call>')
    habit = read(
        f"I call it:\n<tool_call>\n{content}\n</tool_call>\nObservation: done\n<tool_call>{READER}</tool_call>"
    )
    assert (habit.kind, habit.tool, habit.parameters) == (plain.kind, plain.tool, plain.parameters)
    assert (plain.kind, habit.ignored) == ("execute", 1)


def test_parameter_modes():
    empty, wrong = f"<tool_call>{READER}</tool_call>", f'<tool_call>{READER} {{"source": 1}}</tool_call>'
    assert [read(empty, mode).kind for mode in ("lenient", "strict", "ignore")] == ["execute", "rejected", "execute"]
    assert [read(wrong, mode).kind for mode in ("lenient", "strict", "ignore")] == ["rejected", "rejected", "execute"]


def test_a_misspelt_tool_is_told_its_neighbour():
    assert "did you mean 'file_operations_reader'?" in read("<tool_call>file_operation_reader</tool_call>").problems[0]


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=10),
    lambda children: st.lists(children, max_size=3) | st.dictionaries(st.text(max_size=5), children, max_size=3),
    max_leaves=8,
)


@given(st.sampled_from(["tool_call", "tool_search", "tool_info", "finish", "nope"]), json_values)
def test_any_native_arguments_are_read(name, arguments):
    assert native(name, arguments).kind
    assert native(name, json.dumps(arguments)).kind


@pytest.mark.parametrize(
    ("text", "name", "arguments"),
    [
        ("<tool_search>read a file</tool_search>", "tool_search", {"query": "read a file"}),
        (f"<tool_info>{READER}</tool_info>", "tool_info", {"name": READER}),
        (f"<tool_call>{READER}</tool_call>", "tool_call", {"name": READER}),
        (
            f'<tool_call>{READER} {{"source": "a"}}</tool_call>',
            "tool_call",
            {"name": READER, "parameters": {"source": "a"}},
        ),
        ("<tool_call>nope</tool_call>", "tool_call", {"name": "nope"}),
        (f'<tool_call>{READER} {{"source": "a"}}</tool_call>', READER, {"source": "a"}),
        ("<finish/>", "finish", {}),
    ],
)
def test_both_protocols_mean_the_same(text, name, arguments):
    one, other = read(text), native(name, json.dumps(arguments))
    assert native(name, arguments) == other  # some servers give objects
    assert (one.native, other.native) == (False, True)
    fields = ("kind", "tool", "parameters", "query", "problems", "ignored")
    assert [getattr(one, field) for field in fields] == [getattr(other, field) for field in fields]
    if one.kind in {"search", "info", "rejected"}:
        assert one.signature == other.signature


def test_native_functions_are_valid_json_schemas():
    from jsonschema import Draft202012Validator

    functions = native_tools()
    assert [entry["function"]["name"] for entry in functions] == ["tool_search", "tool_info", "tool_call", "finish"]
    for entry in functions:
        Draft202012Validator.check_schema(entry["function"]["parameters"])


CALLED = {"source": "a"}
WRITTEN = [(form, sample) for form in FORMS for sample in [form.write([(READER, CALLED), ("finish", {"a": 1})])]]


@pytest.mark.parametrize(("form", "text"), WRITTEN, ids=lambda value: getattr(value, "name", "text"))
def test_a_call_in_the_form_of_any_model_is_the_same_call(form, text):
    plain = read(f'<tool_call>{READER} {{"source": "a"}}</tool_call>', "strict")
    for message in (read(text, "strict"), read_native({"content": text}, LIBRARY, "strict")):
        assert (message.kind, message.tool, message.parameters) == (plain.kind, plain.tool, plain.parameters)
        assert message.ignored == 1
    behind = read(f"{text}\n<tool_info>{READER}</tool_info>", "strict")
    assert (behind.kind, behind.ignored) == (("execute", 2) if form.mark else ("info", 0))
    assert read(f"<tool_info>{READER}</tool_info>\n{text}", "strict").kind == "info", "the first tag counts"
    asked = form.write([("tool_search", {"query": "read it"})])
    assert (read(asked).kind, read(asked).query) == ("search", "read it")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("<|tool_query|>{}", "; seen was '<|tool_query|>', which begins no call that is known here"),
        ('{"city": "Paris"}', "; seen was an object with the keys 'city', which names no tool"),
        ("[TOOL_CALLS]nothing", "; seen was the form of Mistral ('[TOOL_CALLS]'), which cannot be read: "),
        ("<think>I never end", "; seen was nothing but thoughts"),
        ("I do not know.", "no tag and no completion signal was found"),
    ],
)
def test_what_looks_like_a_call_is_told_by_what_was_seen(text, problem):
    message = read(text)
    assert message.kind == "format_error"
    assert problem in message.problems[0]


@pytest.mark.parametrize("arguments", [None, "", "null", '"null"', [], "{}", '"{}"'])
def test_no_arguments_in_every_wrapping(arguments):
    assert native("finish", arguments).kind == "finish"
    assert native(READER, arguments).kind == "execute"
    called = native("tool_call", {"name": READER, "parameters": arguments})
    assert (called.kind, called.parameters) == ("execute", {})


@pytest.mark.parametrize(
    "arguments",
    [
        json.dumps(json.dumps(CALLED)),
        [{"type": "text", "text": '{"source"'}, {"type": "text", "text": ': "a"}'}],
        {"source": "a"},
    ],
)
def test_arguments_in_every_wrapping(arguments):
    for message in (native(READER, arguments), native("tool_call", {"name": READER, "parameters": arguments})):
        assert (message.kind, message.parameters) == ("execute", CALLED)


def test_calls_are_read_wherever_a_server_puts_them_and_whatever_is_around_their_name():
    function = {"name": f"functions.{READER}:0", "arguments": '{"source": "a"}'}
    for message in (
        {"content": [{"type": "text", "text": "now"}], "tool_calls": [{"function": function}]},
        {"content": None, "tool_calls": {"function": function}},
        {"content": None, "tool_calls": [function]},
        {"function_call": function},
    ):
        found = read_native(message, LIBRARY, "strict")
        assert (found.kind, found.tool, found.parameters) == ("execute", READER, CALLED), message
    beside = {"name": READER, "source": "a", "reason": "it is next"}
    assert native("tool_call", beside).parameters == CALLED


def test_an_answer_that_holds_a_call_is_an_answer_and_one_behind_a_call_is_none():
    call = find_form("mistral").write([(READER, CALLED)])
    for answer in ("4", '{"name": "file_operations_reader", "arguments": {}}', call):
        found = read_text(f"So:\n<finish>{answer}</finish>", LIBRARY, "lenient", answers=True)
        assert (found.kind, found.answer) == ("finish", answer)
    assert read_text(f"{call}\n<finish>4</finish>", LIBRARY, "lenient", answers=True).kind == "execute"
