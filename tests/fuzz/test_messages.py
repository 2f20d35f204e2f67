"""Hostile and random messages: nothing raises, prose is no call, and what a form writes is read back."""

from __future__ import annotations

import json
import random
import string

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from resilisim.chat.call_forms import FORMS, FoundCalls, find_calls
from resilisim.chat.completions import UnreadableAnswerError, read_reply
from resilisim.chat.json_answers import split_thoughts
from resilisim.chat.types import LONGEST_REPLY, MOST_TOKENS, ChatMessage, ChatRequest
from resilisim.envs.protocol.message_reader import read_native, read_text
from resilisim.envs.protocol.native_messages import call_ids, decode_native
from resilisim.policies.llm.agents.code_act import Block, read_proposal
from resilisim.policies.llm.agents.react import FINISH_TOOL, kept_calls
from resilisim.policies.llm.agents.rp_react_moves import read_move
from resilisim.policies.llm.agents.step_plan import StepPlan, read_step_plan
from resilisim.policies.llm.conversation_toolbox import CONVERSATION_TOOLS
from resilisim.policies.llm.reply_reading import Action, Unreadable, read_action, read_arguments, read_json
from resilisim.tool_library import default_library
from tests.guards import no_endless_work

LIBRARY = default_library()
READER = "file_operations_reader"
TOOLS = (*CONVERSATION_TOOLS, FINISH_TOOL)
KINDS = {"execute", "search", "info", "format_error", "rejected", "finish", "wait"}
ASKED = ChatRequest((ChatMessage("user", "Hello?"),))
FEW, MANY = 80, 5_000

# Pieces of all forms, whole and broken, and of what stands around them.
MARKS = sorted(
    {
        piece
        for form in FORMS
        for sample in form.samples
        for piece in sample.replace(">", ">\0").replace("<", "\0<").split("\0")
    }
    - {""}
)
PIECES = [
    *MARKS,
    *(sample for form in FORMS for sample in form.samples),
    *[
        "<think>",
        "</think>",
        "[THINK]",
        "<finish/>",
        "<finish>",
        "</finish>",
        "<execute>",
        "</execute>",
        "<|begin_search_query|>",
    ],
    *[
        "<tool_search>",
        "</tool_search>",
        "<tool_info>",
        "<tool_call>",
        "</tool_call>",
        "tool_call",
        "finish",
        "null",
        "NaN",
        "1e999",
    ],
    *["```", "```json\n", "```tool_code\n", "```python\n", "{", "}", "[", "]", "(", ")", '"', "'", "\\", ":", ","],
    *("\n\n", "\n", " ", "\x00", "\ud800", "\u2028", "｜", "▁", "9" * 400, READER, "The task is complete."),
    *("Action: ", "Action: call {", "Action: call(", "Action: search[", "Action Input:", "\nObservation: ", "'\\x')"),
    *('{"steps": [', "1. fetch {", "[{", "step_1}"),
]
MIXTURES = st.lists(st.sampled_from(PIECES) | st.text(max_size=8), max_size=14).map("".join)


def is_known(call):
    return call.name == READER


def check_all_readers(text):
    """Read a text as everybody reads one; none may raise, whatever it holds."""
    for mode in ("strict", "ignore"):
        assert read_text(text, LIBRARY, mode, answers=mode == "strict", offers_wait=True).kind in KINDS
    action = read_action(text, TOOLS)
    assert isinstance(action, Action | Unreadable)
    if isinstance(action, Action):
        json.dumps(action.arguments, ensure_ascii=False, allow_nan=False).encode()
    assert isinstance(read_arguments(text), dict | Unreadable)
    assert isinstance(read_json(text), dict | Unreadable)
    assert isinstance(read_step_plan(text, TOOLS), StepPlan | Unreadable)
    proposal = read_proposal(text)
    assert not isinstance(proposal, Block) or proposal.code.strip()
    read_move(text)
    split_thoughts(text)
    message = {"content": text, "tool_calls": [{"id": text, "function": {"name": text, "arguments": text}}]}
    assert read_native(message, LIBRARY, "lenient").kind in KINDS
    assert read_native(decode_native(text), LIBRARY, "lenient").kind in KINDS


def check_mixture(text):
    check_all_readers(text)


test_mixtures_of_all_forms_are_read = settings(max_examples=2 * FEW, deadline=None)(given(MIXTURES)(check_mixture))
test_many_mixtures_of_all_forms_are_read = pytest.mark.fuzz(
    settings(max_examples=MANY, deadline=None)(given(MIXTURES)(check_mixture))
)


@settings(max_examples=FEW, deadline=None)
@given(st.binary(max_size=300))
@example(b"\xff\xfe<tool_call>\xe2")
def test_bytes_are_read(raw):
    for encoding in ("latin-1", "utf-8"):
        check_all_readers(raw.decode(encoding, "replace"))


LETTERS = st.text(string.ascii_letters + string.digits + " .,;:!?-()'\"/\n", max_size=200)


@settings(max_examples=FEW, deadline=None)
@given(st.lists(LETTERS | st.sampled_from([READER, "tool_call", "get_weather", "finish", "[1]", "{x}"]), max_size=6))
def test_prose_is_never_a_call(parts):
    text = "I have seen this. " + " ".join(parts) + " That is all there is to say"
    assert not isinstance(find_calls(text, is_known), FoundCalls)
    assert read_text(text, LIBRARY, "lenient").kind in ("format_error", "finish")


@settings(max_examples=FEW, deadline=None)
@given(
    LETTERS,
    st.sampled_from([form for form in FORMS if not form.mark]),
    st.sampled_from(["`{}`", "```json\n{}\n```", "{}"]),
)
def test_a_call_that_is_quoted_in_a_sentence_is_none(words, form, frame):
    quoted = frame.replace("{}", form.write([(READER, {"source": "a"})]))
    text = f"It went like this: {quoted} {words.strip()} and then it was over."
    assert not isinstance(find_calls(text, is_known), FoundCalls)
    assert read_text(f"The task is complete. The last call was:\n{quoted}", LIBRARY, "lenient").kind == "finish"


# A form without quotes has no way to write its own closing tags within a value.
SAFE = st.characters(exclude_characters="<>\x00", exclude_categories=["Cs"])
TEXTS = st.text(SAFE, max_size=20)
VALUES = st.recursive(
    TEXTS | st.integers(-(2**53), 2**53) | st.booleans() | st.none() | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text("abc_", min_size=1, max_size=5), inner, max_size=3)
    ),
    max_leaves=6,
)
PYTHON_NAMES = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,30}", fullmatch=True).filter(lambda name: name != "print")
ANY_NAMES = PYTHON_NAMES | st.from_regex(r"[a-z][a-z0-9]{0,9}([/._-][a-z0-9]{1,9}){0,3}", fullmatch=True)
KEYS = st.from_regex(r"[a-z_][a-z0-9_]{0,12}", fullmatch=True)


def schema_of(value):
    """Return the schema of a value, which tells texts from what only looks like something else."""
    kinds = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array", dict: "object"}
    return {"type": kinds.get(type(value), "null")}


def check_round_trip(data, form):
    names = PYTHON_NAMES if form.python_names else ANY_NAMES
    given = st.dictionaries(
        KEYS, VALUES, min_size=form.name == "glm", max_size=4
    )  # without any it is the protocol's tag
    calls = data.draw(st.lists(st.tuples(names, given), min_size=1, max_size=3))
    written = form.write(calls)
    found = find_calls(written, lambda call: True)
    assert isinstance(found, FoundCalls), (written, found)
    assert found.form is form, written
    read = [
        (call.name, call.arguments_for({key: schema_of(value) for key, value in given.items()}))
        for call, (_, given) in zip(found.calls, calls, strict=True)
    ]
    assert read == [(name, dict(given)) for name, given in calls], written


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_what_a_form_writes_is_read_back(data, form):
    check_round_trip(data, form)


@pytest.mark.fuzz
@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
@settings(max_examples=500, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_what_a_form_writes_is_read_back_at_length(data, form):
    check_round_trip(data, form)


LONG = 150_000
HUGE = {
    **{f"mark {number}": mark * (LONG // len(mark)) for number, mark in enumerate(MARKS) if len(mark) > 4},
    "parameters": "<function=f>" + "<parameter=a>" * (LONG // 13),
    "nested": "<tool_call>" + '{"a":' * (LONG // 5),
    "brackets": "[TOOL_CALLS]" + "[" * LONG,
    "python": "[" + "f(" * (LONG // 2),
    "texts": "<start_function_call>call:f{" + "a:<escape>b<escape>," * (LONG // 20),
    "quotes": "[TOOL_CALLS][" + '"\\' * (LONG // 2),
    "thoughts": "<think>a</think>" * (LONG // 16),
    "channels": "<|channel|>analysis<|message|>" * (LONG // 30),
    "fences": "```json\n{}\n" * (LONG // 11),
}


@pytest.mark.parametrize("kind", ["marks", *(name for name in HUGE if not name.startswith("mark "))])
def test_huge_messages_come_to_an_end(kind):
    draws = random.Random(0)
    texts = [HUGE[kind]] if kind in HUGE else draws.sample([HUGE[name] for name in HUGE if name.startswith("mark ")], 4)
    for text in texts:
        with no_endless_work():
            find_calls(text, is_known)
            read_text(text, LIBRARY, "lenient")


@pytest.mark.fuzz
@pytest.mark.parametrize("kind", list(HUGE))
def test_every_huge_message_comes_to_an_end(kind):
    with no_endless_work():
        check_all_readers(HUGE[kind])


NUMBERS = st.sampled_from(
    [0, 7, 2**31, 2**63, 10**400, -1, 1.0, 0.5, 1e300, float("nan"), float("inf"), "7", None, [], True]
)
SCALARS = NUMBERS | st.text(max_size=10) | st.sampled_from(["null", '""', '"{}"', "{}", "x" * 1000])
JSON = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3), max_leaves=6
)
CALLS = st.fixed_dictionaries(
    {},
    optional={
        "id": JSON,
        "type": JSON,
        "function": st.fixed_dictionaries({}, optional={"name": JSON, "arguments": JSON}) | JSON,
    },
)
MESSAGES = st.fixed_dictionaries(
    {},
    optional={
        "role": JSON,
        "content": JSON | st.lists(st.fixed_dictionaries({"type": JSON, "text": JSON})),
        "tool_calls": st.lists(CALLS, max_size=3) | CALLS | JSON,
        "function_call": CALLS | JSON,
        "reasoning_content": JSON,
    },
)
COMPLETIONS = st.fixed_dictionaries(
    {},
    optional={
        "choices": st.lists(
            st.fixed_dictionaries({}, optional={"message": MESSAGES, "finish_reason": JSON}), max_size=2
        )
        | JSON,
        "usage": st.fixed_dictionaries({"prompt_tokens": NUMBERS, "completion_tokens": NUMBERS}) | JSON,
        "model": JSON,
    },
)


@settings(max_examples=2 * FEW, deadline=None)
@given(COMPLETIONS)
def test_whatever_an_endpoint_sends_is_a_reply_that_can_be_kept_or_told_to_be_none(value):
    try:
        reply = read_reply(json.dumps(value), ASKED, 0.0)
    except UnreadableAnswerError:
        return
    usage = reply.usage
    assert all(isinstance(count, int) for count in (usage.prompt_tokens, usage.completion_tokens))
    assert 0 <= min(usage.prompt_tokens, usage.completion_tokens) <= usage.prompt_tokens + usage.completion_tokens
    assert max(usage.prompt_tokens, usage.completion_tokens) <= MOST_TOKENS
    assert len(reply.text) + len(reply.thoughts) <= LONGEST_REPLY
    ids = [call.id for call in reply.tool_calls]
    assert len(set(ids)) == len(ids)
    assert type(reply).from_mapping(json.loads(json.dumps(reply.to_mapping(), allow_nan=False))) == reply
    kept_calls(reply.tool_calls)


@settings(max_examples=FEW, deadline=None)
@given(MESSAGES)
def test_any_native_message_is_read(message):
    assert read_native(message, LIBRARY, "strict").kind in KINDS
    assert all(isinstance(call_id, str) for call_id in call_ids(message))
