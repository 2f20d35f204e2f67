"""Calls in the forms of many models: the samples of the table, arguments in many wrappings, what is no call."""

from __future__ import annotations

import pytest

from resilisim.chat.call_forms import FORMS, FoundCalls, StrangeCall, calls_at, find_calls, find_form, has_call_mark
from resilisim.chat.json_answers import NotALiteral, split_thoughts, without_thoughts
from resilisim.chat.unwrapping import Words, WrittenCall, arguments_object, spellings, text_of_parts

WEATHER = {"city": {"type": "string"}, "days": {"type": "integer"}}
SAMPLES = [(form, sample) for form in FORMS for sample in form.samples]
NAMES = ("get_weather", "other")


def is_meant(call):
    return call.name in NAMES


def found_in(text, properties=WEATHER):
    found = find_calls(text, is_meant)
    assert isinstance(found, FoundCalls), found
    return found.form.name, [(call.name, call.arguments_for(properties)) for call in found.calls]


@pytest.mark.parametrize(("form", "sample"), SAMPLES, ids=lambda value: getattr(value, "name", "sample"))
def test_every_sample_is_the_same_call(form, sample):
    expected = (form.name, [("get_weather", {"city": "Paris", "days": 2})])
    assert found_in(sample) == expected
    assert found_in(f"\n {sample}\n") == expected
    assert has_call_mark(sample) is bool(form.mark)
    if form.mark:
        assert found_in(f"I look for the weather.\n\n{sample}\nI wait for it.") == expected
        assert calls_at(f"Action:\n{sample}", len("Action:")).form is form
    else:
        assert calls_at(sample, 0) is None


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
def test_what_a_form_writes_it_reads(form):
    calls = [("get_weather", {"city": "São\nPaulo", "days": 3}), ("other", {"city": "", "days": -1})]
    written = form.write(calls)
    assert found_in(written) == (form.name, calls)
    assert find_calls(written, is_meant).end == len(written)
    if form.name != "glm":  # whose name alone in a tag is the form of the text protocol
        assert found_in(form.write([("other", {})]))[1] == [("other", {})]
    assert find_form(form.name) is form


@pytest.mark.parametrize(
    "text",
    [
        "Paris is warm.",
        'I called {"name": "get_weather", "arguments": {"city": "Paris"}} and it failed.',
        'It replied:\n```json\n{"name": "get_weather", "arguments": {}}\n```\nSo all is done.',
        'I called get_weather(city="Paris") before.',
        "[1] get_weather(city) is described there.",
        '{"name": "Alice", "arguments": {"x": 1}}',
        '{"temperature": 3, "city": "Paris"}',
        '[{"name": "Alice"}, {"name": "Bob"}]',
        "```python\nprint('hello')\n```",
        "A list: [a(1), b]",
        "x < y and functools[0] is no call; [TOOL CALLS] neither.",
        "```",
        "``` ```",
        "",
    ],
)
def test_prose_is_no_call(text):
    assert not isinstance(find_calls(text, is_meant), FoundCalls)


@pytest.mark.parametrize(
    ("text", "seen", "form"),
    [
        ("<|tool_query|>{}", "'<|tool_query|>', which begins no call that is known here", None),
        ('<use_tool name="x">', "<use_tool name", None),
        ("[TOOL_REQUEST]{}[END_TOOL_REQUEST]", "'[TOOL_REQUEST]'", None),
        ('{"city": "Paris"}', "an object with the keys 'city', which names no tool", None),
        ('{"name": "weather", "parameters": {}}', "an object that names 'weather', which is no tool here", None),
        ("[TOOL_CALLS]get_weather", "the form of Mistral ('[TOOL_CALLS]'), which cannot be read", "mistral"),
        ('[TOOL_CALLS]get_weather[ARGS]{"city": ', "the arguments of get_weather", "mistral"),
        ("<tool_call><function=get_weather><parameter=city>Par", "a value is never closed", "qwen-xml"),
        ('<tool_call>{"name": "get_weather", "arg', "which cannot be read", "hermes"),
        ("<｜tool▁calls▁begin｜>get_weather", "the form of DeepSeek", "deepseek"),
    ],
)
def test_what_looks_like_a_call_is_told(text, seen, form):
    strange = find_calls(text, is_meant)
    assert isinstance(strange, StrangeCall)
    assert seen in strange.seen
    assert (strange.form.name if strange.form else None) == form
    assert "\n" not in strange.seen


def test_a_mark_that_is_only_spoken_of_does_not_hide_the_call_behind_it():
    text = 'Mistral would write [TOOL_CALLS] now; I write <function=get_weather>{"city": "Paris", "days": 2}</function>'
    assert found_in(text) == ("qwen-xml", [("get_weather", {"city": "Paris", "days": 2})])


PLAIN = {"city": "Paris", "days": 2}
TEXT = '{"city": "Paris", "days": 2}'


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (None, {}),
        ("", {}),
        (" \n", {}),
        ("null", {}),
        (" null ", {}),
        ('"null"', {}),
        ('""', {}),
        ("None", {}),
        ([], {}),
        ("[]", {}),
        ("{}", {}),
        (PLAIN, PLAIN),
        (TEXT, PLAIN),
        (f"\n{TEXT}\n", PLAIN),
        ('"{\\"city\\": \\"Paris\\", \\"days\\": 2}"', PLAIN),
        ('"\\"{\\\\\\"city\\\\\\": \\\\\\"Paris\\\\\\", \\\\\\"days\\\\\\": 2}\\""', PLAIN),
        ([{"type": "text", "text": TEXT}], PLAIN),
        ([{"text": TEXT[:9]}, {"text": TEXT[9:]}], PLAIN),
        ([{"type": "text", "text": {"value": TEXT}}], PLAIN),
        ("{'city': 'Paris', 'days': 2}", PLAIN),
        ('{"city": "null"}', {"city": "null"}),
        ('{"city": "{\\"a\\": 1}"}', {"city": '{"a": 1}'}),  # a value is no wrapping
    ],
)
def test_arguments_in_every_wrapping(raw, expected):
    assert arguments_object(raw) == expected


@pytest.mark.parametrize(
    "raw", ["4", "[1]", '"a"', '{"a": ', TEXT * 2, '{"a": NaN}', 4, True, [1], ["a"], "x" * 300_000]
)
def test_arguments_that_are_no_object_are_told_and_never_guessed(raw):
    with pytest.raises(NotALiteral):
        arguments_object(raw)


@pytest.mark.parametrize(
    ("words", "schema", "value"),
    [
        ("2", {"type": "integer"}, 2),
        ("2", {"type": "string"}, "2"),
        ("2.5", {"type": ["number", "null"]}, 2.5),
        ("null", {"anyOf": [{"type": "string"}, {"type": "null"}]}, None),
        ("null", {"type": "string"}, "null"),
        ("True", {"type": "boolean"}, True),
        ('{"a": [1]}', {"type": "object"}, {"a": [1]}),
        ("{'a': None}", {"type": "object"}, {"a": None}),
        ("[1, 2]", {"type": "array"}, [1, 2]),
        ("/data/in.csv", None, "/data/in.csv"),
        ("3", None, 3),
        ("two", {"type": "integer"}, "two"),  # the tool says what is wrong with it
        ("a", {"enum": ["a", "b"]}, "a"),
    ],
)
def test_bare_words_become_what_the_parameter_takes(words, schema, value):
    call = WrittenCall("f", {"x": Words(words)})
    assert call.arguments_for({} if schema is None else {"x": schema}) == {"x": value}


def test_values_without_names_stand_for_the_parameters_in_their_order():
    assert found_in('[get_weather("Paris", 2)]')[1] == [("get_weather", PLAIN)]
    assert found_in('[get_weather("Paris", days=2)]')[1] == [("get_weather", PLAIN)]
    with pytest.raises(NotALiteral, match="without the names"):
        find_calls("[get_weather(1, 2, 3)]", is_meant).calls[0].arguments_for(WEATHER)


def test_text_in_parts():
    assert text_of_parts([{"type": "text", "text": "a"}, {"type": "thinking", "thinking": "hm"}, "b"]) == "ab"
    assert [text_of_parts(value) for value in (5, "a", [], [1], {"text": "a"}, None)] == [None] * 6


ACTION = 'Action: search {"query": "x"}'


@pytest.mark.parametrize(
    ("text", "thoughts", "shown"),
    [
        ("<think>a</think>b", ["a"], "b"),
        ("a</think>b", ["a"], "b"),
        ("[THINK]a[/THINK]b", ["a"], "b"),
        ("◁think▷a◁/think▷b", ["a"], "b"),
        ("<seed:think>a</seed:think>b", ["a"], "b"),
        ("<thinking>a</thinking>b", ["a"], "b"),
        ("<|START_THINKING|>a<|END_THINKING|>b", ["a"], "b"),
        ("<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>final<|message|>b<|return|>", ["a"], "b"),
        ("analysisWe think.assistantfinalb", ["We think."], "b"),
        ("The analysis is done. assistantfinal", [], "The analysis is done. assistantfinal"),
        ("<think>a", ["a"], ""),
        ("<think>So the task is complete.\n\nThe task is complete.", None, ""),
        (f"<think>a\n\n{ACTION}", None, ACTION),
        (f"<think>a {ACTION}", None, ""),
        (f"<think>a\n\n{ACTION} would do it, but\n\nI do not know.", None, ""),
        ("<think>a\n\n```python\nf()\n\ng()\n```", None, "```python\nf()\n\ng()\n```"),
        ("<think>a\n\n<tool_call>x</tool_call>\n", None, "<tool_call>x</tool_call>"),
    ],
)
def test_thoughts_of_every_make_and_those_left_open(text, thoughts, shown):
    found, visible = split_thoughts(text)
    assert visible == without_thoughts(text) == shown
    if thoughts is not None:
        assert found == thoughts


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("get_weather", "get_weather"),
        ("functions.get_weather", "get_weather"),
        ("functions.get_weather:0", "get_weather"),
        ("get_weather:12", "get_weather"),
        ("default_api.get_weather", "get_weather"),
        ("default_api:get_weather", "get_weather"),
        ("get_weather<|channel|>commentary", "get_weather"),
        ("fs:read", "fs:read"),
    ],
)
def test_a_name_may_mean_what_is_left_without_its_frame(written, meant):
    assert spellings(written)[0] == written
    assert meant in spellings(written)
