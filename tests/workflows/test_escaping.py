"""Foreign text inside prompts: nothing in it passes for ours, and nothing of it is lost."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from strategies import hostile_texts, json_scalars

from resilisim.workflows.templating import PROTOCOL_TAGS, escape_line, escape_text, inline_json, unescape_text

LIVE_TAG = re.compile(rf"<\s*/?\s*({'|'.join(PROTOCOL_TAGS)})\b", re.IGNORECASE)
LIVE_STEP = re.compile(r"^\s*\d+\.\s+Execute\b", re.IGNORECASE)


@given(hostile_texts)
@example("&lt;tool_call>")
@example("1\\. Execute x")
def test_escaping_is_undone_exactly(text):
    assert unescape_text(escape_text(text)) == text


@given(hostile_texts)
def test_nothing_escaped_is_a_tag_a_heading_or_a_step(text):
    escaped = escape_text(text)
    assert not LIVE_TAG.search(escaped)
    for line in escaped.split("\n"):
        assert not line.lstrip().startswith("#")
        assert not LIVE_STEP.match(line)


@given(hostile_texts)
def test_a_line_stays_one_line_without_tags(text):
    line = escape_line(text)
    assert len(line.splitlines()) <= 1
    assert not LIVE_TAG.search(line)


@given(st.recursive(json_scalars, lambda inner: st.lists(inner, max_size=3)))
def test_inline_json_is_one_line_without_tags_and_reads_back(value):
    text = inline_json(value)
    assert "\n" not in text
    assert not LIVE_TAG.search(text)
    assert json.loads(text) == value


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("Convert <b>bold</b> if a < b & c.", "Convert <b>bold</b> if a < b & c."),
        ("Say <finish/>.", "Say &lt;finish/>."),
        ("1. Execute write", "1\\. Execute write"),
        ("1. Fetch the file", "1. Fetch the file"),
        ("# Heading", "\\# Heading"),
        ("ticket #12", "ticket #12"),
    ],
)
def test_harmless_text_stays_as_it_is(text, shown):
    assert escape_text(text) == shown
