"""JSON objects in what models write."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resilisim.chat.json_answers import LONGEST_READ, json_object_in

OBJECT = {"description": 'Say "{hello}"\n```', "n": 1}
WRITTEN = json.dumps(OBJECT)


@pytest.mark.parametrize(
    "answer",
    [
        WRITTEN,
        f"```json\n{WRITTEN}\n```",
        f"Sure! Here it is, with {{braces}}:\n```\n{WRITTEN}\n```\nAnything else?",
        f"Of course {{ ok }}. {WRITTEN} I hope that helps {{}}.",
        f'<think>Maybe {{"description": "draft"}}?</think>{WRITTEN}',
        f'no first tag {{"description": "draft"}}</think>\n{WRITTEN}',
        f'{{"draft": true}} {WRITTEN}',
        WRITTEN.replace("\\n", "\n"),
    ],
)
def test_the_object_is_found(answer):
    assert json_object_in(answer, ("description",)) == OBJECT


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        ("", "the answer is empty"),
        ("<think>I never stop thinking {}", "the answer is empty"),
        ("I cannot do that.", "the answer holds no JSON object"),
        ('["description"]', "the answer holds no JSON object"),
        (WRITTEN[:-1], "the answer holds no JSON object"),
        ('{"a": 1}', "the JSON object lacks 'description', 'n'"),
        ('{"description": NaN, "n": 1}', "the answer holds no JSON object"),
        ('{"description": 1e999, "n": 1}', "the answer holds no JSON object"),
        ('{"description": 1' + "0" * 5000 + ', "n": 1}', "the answer holds no JSON object"),
        ('{"a":' * 30_000, "the answer holds no JSON object"),
        ("{" * 190_000, "the answer holds no JSON object"),
        ("```\n" * 40_000, "the answer holds no JSON object"),
        ("x" * (LONGEST_READ + 1), "the answer has 200,001 characters; expected at most 200,000"),
    ],
)
def test_what_holds_no_object_is_said(answer, problem):
    assert json_object_in(answer, ("description", "n")) == problem


@given(st.text(st.sampled_from('{}[]":,\\ `\n<>/thinka1')))
def test_any_answer_is_an_object_or_a_problem(answer):
    assert isinstance(json_object_in(answer, ("a",)), (dict, str))
