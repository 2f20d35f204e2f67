"""Templates of one's own, and foreign text inside prompts: nothing in it passes for ours, and nothing of it is lost."""

import json
import re
import string
from importlib import resources

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from strategies import hostile_texts, json_scalars
from toy_workflows import LIBRARY, task

from resilisim.errors import InvalidInputError
from resilisim.workflows import ExactPlanner, parse_plan
from resilisim.workflows.prompts import render_prompt
from resilisim.workflows.templating import (
    PLACEHOLDERS,
    PROTOCOL_TAGS,
    escape_line,
    escape_text,
    inline_json,
    load_templates,
    packaged_templates,
    unescape_text,
)


def test_every_packaged_file_is_known_and_uses_only_its_placeholders():
    folder = resources.files("resilisim.workflows").joinpath("templates")
    assert {entry.name for entry in folder.iterdir() if entry.name.endswith(".md")} == set(PLACEHOLDERS)
    for name, text in packaged_templates().texts.items():
        permitted, needed = PLACEHOLDERS[name]
        used = set(string.Template(text).get_identifiers())
        assert used <= set(permitted)
        assert used >= set(needed)


def test_a_folder_replaces_what_it_holds(tmp_path):
    (tmp_path / "baseline.md").write_text("Costs $$5. ${work_order} / ${task_type}", encoding="utf-8")
    one = task("read", description="Pay $work_order and ${plan}.", task_type="billing")
    baseline = render_prompt(one, "baseline", templates=tmp_path).text
    assert baseline == "Costs $5. Pay $work_order and ${plan}. / billing\n"
    workflow = ExactPlanner(LIBRARY).plan(one)
    optimal = render_prompt(one, "optimal", workflow, templates=load_templates(tmp_path)).text
    assert optimal.startswith("Costs $5.")
    assert parse_plan(optimal) == ["read"]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("basline.md", b"x", "unknown template 'basline.md'"),
        ("baseline.md", b"${work_oder}", "did you mean 'work_order'?"),
        ("baseline.md", b"no place for the task", "lacks the placeholder ${work_order}"),
        ("optimal.md", b"${critical_tools}", "lacks the placeholder ${plan}"),
        ("optimal.md", b"${plan} costs $ 5", "holds a lone $"),
        ("optimal.md", b"\xff\xfe\x00", "cannot be read"),
    ],
)
def test_wrong_templates_are_named(tmp_path, name, text, message):
    (tmp_path / name).write_bytes(text)
    with pytest.raises(InvalidInputError) as error:
        load_templates(tmp_path)
    assert message in str(error.value)
    assert name in str(error.value)
    with pytest.raises(InvalidInputError, match="does not exist"):
        load_templates(tmp_path / "nowhere")


LIVE_TAG = re.compile(rf"<\s*/?\s*({'|'.join(PROTOCOL_TAGS)})\b", re.IGNORECASE)


@given(hostile_texts)
@example("&lt;tool_call>")
@example("1\\. Execute x")
def test_escaping_is_undone_exactly(text):
    assert unescape_text(escape_text(text)) == text


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
