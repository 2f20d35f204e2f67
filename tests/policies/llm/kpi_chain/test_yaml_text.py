"""YAML as models write it: plain JSON values or a readable complaint, whatever is thrown at it, and in time."""

from __future__ import annotations

import contextlib
import json

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from resilisim.policies.llm.kpi_chain.model_yaml import (
    MAX_CHARACTERS,
    UnreadableReplyError,
    dump_yaml,
    read_yaml,
    typed,
    yaml_with,
)
from tests.guards import no_endless_work


@pytest.fixture(params=["compiled", "plain"], autouse=True, scope="module")
def parser(request):
    """Every test runs with both parsers of PyYAML: not every installation has the compiled one."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "plain":
            patch.setattr("resilisim.yaml_text._LOADER", yaml.SafeLoader)
        yield


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**12), 10**12) | st.text(st.characters(codec="utf-8"), max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text("ab- :#", max_size=5), inner, max_size=4),
    max_leaves=12,
)


@given(JSON_VALUES)
def test_what_is_written_for_prompts_is_read_back(value):
    text = dump_yaml(value)
    assert dump_yaml([shared := [1], shared]) == "- - 1\n- - 1", "twice is written out twice"
    if not text.startswith(("---", "%")):
        assert read_yaml(text) == value


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("Report: the third", "Report: the third"),
        ('say "yes": twice  ', 'say "yes": twice'),
        ('"Kiss and Tell": the film', '"Kiss and Tell": the film'),
        ("@user of `x`: y", "@user of `x`: y"),
    ],
)
def test_a_value_that_needs_quotes_gets_them(written, value):
    text = f"tasks:\n- id: T1\n  value: {written}\n  quoted: 'a: b'\n  block: |-\n    c: d: e\n  last: 1"
    assert typed(yaml_with(text, "tasks")) == {
        "tasks": [{"id": "T1", "value": value, "quoted": "a: b", "block": "c: d: e", "last": 1}]
    }


def test_what_quotes_do_not_mend_is_told_as_it_was_written():
    with pytest.raises(UnreadableReplyError, match="line 2, column 7"):
        yaml_with("tasks:\n- a: b: c\n  - d: [e", "tasks")


@given(st.text(max_size=200) | st.text("[]{}:-?&*!|>'\"%@ \nab,#", max_size=100))
def test_any_text_is_read_or_refused_in_one_way(text):
    with contextlib.suppress(UnreadableReplyError):
        json.dumps(read_yaml(text), allow_nan=False)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("no", "no"),
        ("2024-01-31", "2024-01-31"),
        ("12:30:00", "12:30:00"),
        ("007", "007"),
        ("1e999", "1e999"),
        ("9" * 5000, "9" * 5000),
        ("5", 5),
        ("-1.5e3", -1500.0),
        ("true", True),
        ("'true'", "true"),
        ("!!str 5", "5"),
        ("<<: {a: 1}", {"<<": {"a": 1}}),
        ("<JSON_PATH>T1.names[*]</JSON_PATH>", "<JSON_PATH>T1.names[*]</JSON_PATH>"),
    ],
)
def test_scalars_are_json_and_nothing_else(text, value):
    read = read_yaml(text)
    assert read == value
    assert type(read) is type(value)


BOMB = "a: &a [x, x]\n" + "".join(f"{b}: &{b} [*{a}, *{a}]\n" for a, b in zip("abcdefgh", "bcdefghi", strict=True))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (BOMB, "aliases such as \\*a are not allowed"),
        ("a: !!python/object/apply:os.system [ls]", "tag .* is not allowed"),
        ("!" * 40_000, "tag"),
        ("[" * 40_000, "nested"),
        ("{" * 40_000, "plain text"),
        ("- " * 20_000, "nested"),
        ("a: 1\na: 2", "line 2: the name 'a' stands twice"),
        ("? [a]\n: b", "plain text"),
        ("---\na\n---\nb", "several YAML documents"),
        ("a: b: c", "line 1, column 5"),
        ("a: [b", "not valid YAML"),
        ("a: \x00", "not valid YAML"),
        ('a: "\\UFFFFFFFF"', "not valid YAML"),
        ("", "empty"),
        ("x" * (MAX_CHARACTERS + 1), "50,001 characters"),
    ],
    ids=lambda text: text[:12].encode("unicode_escape").decode(),
)
def test_what_is_refused_says_why_in_time_and_in_few_words(text, problem):
    with no_endless_work(), pytest.raises(UnreadableReplyError, match=problem) as error:
        read_yaml(text)
    assert len(str(error.value)) < 400


WANTED = {"tasks": ["a"]}


@pytest.mark.parametrize(
    "reply",
    [
        "tasks:\n- a",
        "Here is the plan:\n\n```yaml\ntasks:\n- a\n```\nGood luck!",
        "```\ntasks:\n- a\n```",
        "```yaml\ntasks:\n- a",
        "  ```yaml\n  tasks:\n  - a\n  ```",
        "```yaml\n# the plan\ntasks:\n- a\n```",
        '```json\n{"tasks": ["a"]}\n```',
        '{"tasks": ["a"]}',
        "```python\nprint()\n```\n```yaml\ntasks:\n- a\n```",
        "```yaml\ntasks:\n- a\n```\n```yaml\ntasks:\n- a\n```",
        '"tasks":\n- a',
    ],
)
def test_fences_and_prose_are_passed_over(reply):
    assert yaml_with(reply, "tasks") == WANTED


@pytest.mark.parametrize(
    ("reply", "problem"),
    [
        ("", "empty"),
        ("I cannot do that.", "no YAML with 'tasks'"),
        ("".join(f"```yaml\ntasks:\n- {number}\n```\n" for number in range(10)), "10 different blocks"),
        ("tasks:\n- a\n" * 10, "stands twice"),
        ("tasks:\n- a\nAnd that is all.", "not valid YAML"),
        ("tasks: [" + "a, " * 500_000, "1,500,008 characters"),
    ],
)
def test_what_holds_no_single_mapping(reply, problem):
    with pytest.raises(UnreadableReplyError, match=problem):
        yaml_with(reply, "tasks")
