"""Reading replies: what is understood, what is refused and how, and that nothing takes long."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resilisim.policies.llm.reply_reading import (
    EXCERPT_LENGTH,
    LONGEST_THOUGHT,
    Action,
    Unreadable,
    read_action,
    read_arguments,
    read_json,
    visible,
)
from tests.guards import no_endless_work
from tests.policies.llm.helpers import spec

SEARCH = spec("search", "query")
CALL = spec("call", "name", parameters="object")
PYTHON = spec("python", "code")
COUNT = spec("count", limit="integer", exact="boolean")
FINISH = spec("finish", "answer")
TOOLS = (SEARCH, CALL, PYTHON, COUNT, FINISH)


def read(text: str) -> tuple[str, dict]:
    action = read_action(text, TOOLS)
    assert isinstance(action, Action), action
    return action.name, action.arguments


@pytest.mark.parametrize(
    "text",
    [
        'Thought: t\nAction: search {"query": "x y"}',
        'Action: search {"query": "x y"}\nObservation: made up\nAction: finish {}',
        'Action: search {"query": "x y"}\nThought: next\nAction: finish {}',
        "Action: search\nAction Input: x y\nObservation: made up",
        'Action: search\n```json\n{"query": "x y"}\n```\nThat is it.',
        'Action:\n```json\n{"action": "search", "action_input": {"query": "x y"}}\n```',
        '{"name": "search", "arguments": "{\\"query\\": \\"x y\\"}"}',
        '{"type": "function", "function": {"name": "search", "arguments": {"query": "x y"}}}',
        'Thought: I look for it,\nand then\n{"name": "search", "arguments": {"query": "x y"}}',
        'I look for it:\n```json\n{"name": "search", "arguments": {"query": "x y"}}\n```\nThat is it.',
        'So:\n<tool_call>\n{"name": "search", "arguments": {"query": "x y"}}\n</tool_call>',
        'search {"query": "x y"}',
        'I look for it. Action: search {"query": "x y"}',
        '<think>Action: finish {}</think>Action: search {"query": "x y"}',
        '**Thought:** t\n\n**Action:** search\n**Action Input:** {"query": "x y"}\n**Observation:** made up',
        '**Thought**: t\n\n**Action**: **search**\n**Action Input**: `{"query": "x y"}`',
        '### Action: `search`\n### Action Input:\n```json\n{"query": "x y"}\n```\nObservation: made up',
        '## Thought\nt\n\n## Action\nsearch\n\n## Action Input\n{"query": "x y"}\n\n## Observation\nmade up',
        '- Action: search\n- Action Input: {"query": "x y"}\nAction: finish {}',
        '```\nsearch({"query": "x y"})\n```',
        '<tool_call>\n{"name": "search", "arguments": {"query": "x y"}}\n{"name": "finish"}\n</tool_call>',
        '<tool_call>search {"query": "x y"}</tool_call><tool_response>no</tool_response><tool_call>finish</tool_call>',
        'My next action: a search.\n<tool_call>{"name": "search", "arguments": {"query": "x y"}}</tool_call>',
        'no opening tag: Action: finish {}</think>\nAction: search {"query": "x y"}',
        "<search>x y</search>",
        'Then I look.\n<search>\n{"query": "x y"}\n</search>\n<finish/>',
    ],
)
def test_one_action_in_many_hands(text):
    assert read(text) == ("search", {"query": "x y"})


LABELS = ["Action: ", "**Action:** ", "**Action**: ", "Action 3: ", "### Action: ", "- Action: ", "I look. Action: "]
CALLS = [
    *('search {"query": "x y"}', "search {'query': 'x y'}", "`search` {'query': 'x y'}", "search x y", 'search "x y"'),
    *('Search["x y"]', "search[x y]", 'search ("x y")', "search(query='x y',)", 'search(query: "x y")'),
    *('`search({"query": "x y"})`', '```\nsearch({"query": "x y"})\n```', 'search Action Input: {"query": "x y"}'),
    *('search\nAction Input: {"query": "x y"}', "<tool_call>search {'query': 'x y'}</tool_call>"),
    '{"name": "search", "arguments": {"query": "x y"}}',
]


@pytest.mark.parametrize("label", LABELS)
def test_every_label_goes_with_every_form_of_a_call(label):
    for call in CALLS:
        assert read(f"Thought: t\n{label}{call}\nObservation: made up") == ("search", {"query": "x y"}), call


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("<finish/>", None),
        ("Thought: all is done, my last action: none.\n<finish />", None),
        ("Action: <finish/>", None),
        ("**Action:** `finish`", None),
        ("finish", None),
        ('<tool_call>{"name": "finish"}</tool_call>', None),
        ("<finish>it is 4</finish>", "it is 4"),
        ("Thought: done\n**Final Answer:** it is 4", "it is 4"),
        ('**Action:** finish\n**Action Input:** {"answer": "it is 4"}', "it is 4"),
    ],
)
def test_every_form_of_finish_ends(text, answer):
    assert read(text) == ("finish", {} if answer is None else {"answer": answer})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('Action: call {"name": "a", "parameters": {"b": [1, null, {"c": "}"}]}}', {"b": [1, None, {"c": "}"}]}),
        ('Action: call(name="a", parameters={"b": 1})', {"b": 1}),
        ('Action: call["a", {"b": 1}]', {"b": 1}),
        ("Action: call {'name': 'a', 'parameters': {'b': True, 'c': None}}", {"b": True, "c": None}),
        ('Action: call {"name": "a", "parameters": {"b": "two\nlines"}}', {"b": "two\nlines"}),
        ('Action: call {"name": "a", "parameters": {"b": "\\ud800!"}}', {"b": "?!"}),
    ],
)
def test_nested_arguments(text, expected):
    assert read(text) == ("call", {"name": "a", "parameters": expected})


@pytest.mark.parametrize(
    ("text", "name", "arguments"),
    [
        ("Action: count(3, exact=False)", "count", {"limit": 3, "exact": False}),
        ("Action: finish[42]", "finish", {"answer": "42"}),
        ("Action: finish The answer is (4).", "finish", {"answer": "The answer is (4)."}),
        ("Action: finish (probably) 4", "finish", {"answer": "(probably) 4"}),
        ("Action: search[What's [new]?]", "search", {"query": "What's [new]?"}),
        ("Final Answer: it is\n4\nThought: done", "finish", {"answer": "it is\n4"}),
        ("Action: call a", "call", {"name": "a"}),  # the only parameter that is needed, and a single word
        ('Action: file.reader-2 {"a": 1}', "file.reader-2", {"a": 1}),
        ("Action: nothing_like_it", "nothing_like_it", {}),
        ("Action: python\n```python\n{1: 2}.get(1)\n```", "python", {"code": "{1: 2}.get(1)"}),
        (
            "Thought: now\nAction: python\n```python\n(a, b) = 1, 2\nfor x in {a, b}:\n    print(x)\n```\nDone",
            "python",
            {"code": "(a, b) = 1, 2\nfor x in {a, b}:\n    print(x)"},
        ),
    ],
)
def test_values_without_names_bare_texts_code_and_names_in_any_case(text, name, arguments):
    assert read(text) == (name, arguments)


def test_the_thought_is_what_stands_before_the_action():
    action = read_action("<think>secret</think>Thought: first this\nand that\nAction: search[x]", TOOLS)
    assert action.thought == "first this\nand that"
    assert len(read_action("Thought: " + "so " * 10**5 + "\nAction: search[x]", TOOLS).thought) <= LONGEST_THOUGHT


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "empty"),
        ("<think>I never stop thinking", "empty"),
        ("Let me see.", "no action"),
        ("Finish the task now", "no action"),
        ("When the task is complete, I will tell you with <finish/>.", "no action"),
        ("Observation: all done\nAction: finish[1]", "begins with an observation"),
        ("Action:", "no name"),
        ("Action: I will look for a tool", "no tool's name"),
        ('{"answer": 4}', "no action"),
        ('It said {"name": "search", "parameters": {"query": "x"}} and I am thinking.', "no action"),
        ('Thought: it said {"name": "search", "parameters": {"query": "x"}}', "no action"),
        ('I cannot do it.\n{"name": "finish"}', "no action"),
        ('{"name": "finish"} is what I would call at the end.', "no action"),
        ('Action: {"answer": 4}', "names no action"),
        ('Action: {"name": ', "no JSON object"),
    ],
)
def test_replies_without_an_action(text, problem):
    refused = read_action(text, TOOLS)
    assert isinstance(refused, Unreadable)
    assert problem in refused.problem
    assert refused.name is None


@pytest.mark.parametrize(
    "arguments",
    [
        '{"query": "cut off',
        "{query: x}",
        '{"query": NaN}',
        '{"query": ' + "9" * 5000 + "}",
        '{"query": ' + "[" * 100 + "]" * 100 + "}",
        "{" * 100_000,
        "{'query': " + "-" * 9000 + "1}",
        "{'query': {1, 2}}",
        '```json\n{"query": \n```',
        '(query="x" limit=3)',
        " a with b",
    ],
)
def test_unreadable_arguments_are_never_an_empty_object(arguments):
    refused = read_action(f"Thought: t\nAction: call {arguments}", TOOLS)
    assert isinstance(refused, Unreadable)
    assert refused.name == "call"
    assert refused.thought == "t"
    assert refused.excerpt
    assert len(refused.excerpt) <= EXCERPT_LENGTH
    assert refused.excerpt.startswith(arguments.lstrip()[:5])


def test_arguments_of_native_calls_objects_in_replies_and_thoughts():
    assert read_arguments('{"a": {"b": 1}}') == {"a": {"b": 1}}
    assert read_arguments("") == read_arguments(" null ") == {}
    for raw in ('{"a": ', "[1]", '"a"', "4", '{"a": 1} {"b": 2}', '{"a": Infinity}', "x" * 300_000):
        refused = read_arguments(raw)
        assert isinstance(refused, Unreadable), raw
        assert refused.excerpt
    assert "array" in read_arguments("[1]").problem
    assert read_json('<think>{"a": 0}</think>Here: ```json\n{"a": 1}\n```', ["a"]) == {"a": 1}
    refused = read_json('{"b": 1}', ["a"])
    assert ("'a'" in refused.problem, refused.excerpt) == (True, '{"b": 1}')
    for text, shown in (("a<think>b</think>c</think>d", "ac</think>d"), ("b</think>c", "c"), ("a<THINK>b", "a")):
        assert visible(text) == shown
    for text, problem in (("Action: search[x y", "never closed"), ("Action: unheard_of(1)", "without the names")):
        assert problem in read_action(text, TOOLS).problem


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(), VALUES, max_size=4), st.booleans())
def test_what_our_prompt_asks_for_is_read_back_exactly(arguments, is_ascii):
    written = json.dumps(arguments, ensure_ascii=is_ascii)
    expected = json.loads(written.encode("utf-8", "replace"))
    assert read(f"Thought: </tool_call> {{\nAction: call {written}\nObservation: no") == ("call", expected)


HOSTILE = {
    "repetition": "Thought: again and again\n",
    "actions": "Action: search\n",
    "inline actions": "Action: ",
    "observations without a line": "Observation ",
    "thinking": "<think>",
    "both": "<think></think>",
    "calls": '<tool_call>search {"query": "x"}</tool_call>',
    "unclosed fences": "```json\n{",
    "braces": "{",
    "keys": '{"a":',
    "brackets": "[",
    "parentheses": "Action: search(",
    "quotes": "'",
    "escapes": "\\'",
    "spaces": " ",
    "letters": "a",
    "labels": "**_action 1 ",
}
STARTS = (
    "",
    "Action: search ",
    "Action: call {",
    "Action: call {'a': '",
    "Action: call(",
    "Action: search[",
    "Action: python\n```python\n",
)


@pytest.mark.parametrize("piece", HOSTILE.values(), ids=list(HOSTILE))
def test_reading_is_linear(piece):
    for start in STARTS:
        text = start + piece * ((60_000 if start else 250_000) // len(piece))
        with no_endless_work(5.0):
            read_action(text, TOOLS)
            read_json(text)
            read_arguments(text)
