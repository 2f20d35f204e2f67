"""Prompts: templates are filled once, and a user's files replace packaged ones if they fit."""

from __future__ import annotations

import itertools
import string
import sys

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from resilisim.errors import InvalidInputError
from resilisim.policies.llm.templates import PromptTexts, load_prompts, packaged_prompts
from resilisim.policies.registry import BUILT_IN_POLICIES, LLM_POLICIES

_NUMBERS = itertools.count()


@pytest.fixture
def package(tmp_path, monkeypatch):
    """An agent's package with the templates `system` and `step`, and with examples."""
    name = f"agent_package_{next(_NUMBERS)}"
    prompts = tmp_path / "packages" / name / "prompts"
    prompts.mkdir(parents=True)
    (prompts.parent / "__init__.py").write_text("", encoding="utf-8")
    (prompts / "system.md").write_text("Use these tools:\n${tools}\n\nDo this: ${task}, for $$1.\n", encoding="utf-8")
    (prompts / "step.md").write_text("Go on.\n", encoding="utf-8")
    (prompts / "examples.md").write_text("\nAn example for $5 and ${nothing}.\n\n", encoding="utf-8")
    (prompts / "notes.txt").write_text("No template.", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path / "packages")
    yield packaged_prompts(f"{name}.agent")
    sys.modules.pop(name, None)


@pytest.fixture
def own(tmp_path):
    folder = tmp_path / "own"
    folder.mkdir()
    return folder


def test_packaged_templates(package):
    prompts = load_prompts(package, None, "default")
    assert sorted(prompts.texts) == ["step", "system"]
    assert prompts.fill("system", tools="- a()", task="x") == "Use these tools:\n- a()\n\nDo this: x, for $1."
    assert prompts.examples == "An example for $5 and ${nothing}."
    assert load_prompts(package, None, "none").examples == ""
    with pytest.raises(KeyError):
        prompts.fill("system", tools="")


@given(st.text(), st.text())
@example("{task}${task}$task", "$$ $ {} {0} %s ${ \\1 $$task")
def test_values_come_out_as_they_went_in(tools, task):
    prompts = PromptTexts({"system": "[${tools}|${task}]"}, "")
    assert prompts.fill("system", tools=tools, task=task) == f"[{tools}|{task}]"


def test_a_users_file_replaces_the_one_of_its_name_and_is_read_anew_each_time(package, own):
    (own / "system.md").write_text("Mine: ${task} ${tools} for $$2", encoding="utf-8")
    (own / "readme.txt").write_text("not read", encoding="utf-8")
    prompts = load_prompts(package, str(own), "default")
    assert prompts.fill("system", task="T", tools="t") == "Mine: T t for $2"
    assert prompts.fill("step") == "Go on."
    (own / "step.md").write_text("Second.", encoding="utf-8")
    (own / "examples.md").write_text("Costs $3.\n", encoding="utf-8")
    assert load_prompts(package, str(own), "default").fill("step") == "Second."
    assert load_prompts(package, str(own), "default").examples == "Costs $3."
    assert load_prompts(package, str(own), "none").examples == ""
    (own / "few.txt").write_text("\nFew: {x} ${y} $z\n", encoding="utf-8")
    assert load_prompts(package, None, str(own / "few.txt")).examples == "Few: {x} ${y} $z"


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("sytem.md", b"x", "unknown template 'sytem.md' in "),
        ("system.md", b"${tools} ${tasks}", "unknown placeholder 'tasks' in template "),
        ("system.md", b"${tools} $task $price", "unknown placeholder 'price'"),
        ("system.md", b"${tools}", "lacks the placeholder ${task}"),
        ("system.md", b"${tools} ${task} for 5 $ each", "holds a lone $: expected ${name}, or $$ for the sign itself"),
        ("system.md", b"\xff\xfe${tools} ${task}", "cannot be read"),
        ("examples.md", b"\xff", "cannot be read"),
    ],
)
def test_a_users_file_that_does_not_fit_is_refused(package, own, file, content, message):
    (own / file).write_bytes(content)
    with pytest.raises(InvalidInputError) as error:
        load_prompts(package, str(own), "default")
    assert message in str(error.value)
    assert len(str(error.value).splitlines()) == 1


@pytest.mark.parametrize("name", ["missing", "x" * 5000, "nul\0"])
def test_what_does_not_exist_is_refused(package, own, name):
    with pytest.raises(InvalidInputError, match="expected a folder of"):
        load_prompts(package, str(own / name), "default")
    with pytest.raises(InvalidInputError, match="expected none, default, or a file that exists"):
        load_prompts(package, None, str(own / name))
    (own / "step.md").mkdir()
    with pytest.raises(InvalidInputError, match="is not an ordinary file"):
        load_prompts(package, str(own), "default")


def test_the_hash_says_which_texts_were_used(package, own):
    packaged = load_prompts(package, None, "default")
    (own / "step.md").write_text(packaged.texts["step"], encoding="utf-8")
    assert packaged.hash == load_prompts(package, str(own), "default").hash
    seen = {packaged.hash, load_prompts(package, None, "none").hash}
    for text in ("Go on!", "Go on. "):
        (own / "step.md").write_text(text, encoding="utf-8")
        seen.add(load_prompts(package, str(own), "default").hash)
    assert len(seen) == 4


@pytest.mark.parametrize("agent", LLM_POLICIES)
def test_the_prompts_that_ship_are_templates(agent):
    module, _, _ = BUILT_IN_POLICIES[agent].partition(":")
    prompts = load_prompts(packaged_prompts(module), None, "default")
    assert prompts.texts
    for name, text in prompts.texts.items():
        template = string.Template(text)
        assert template.is_valid(), name
        assert prompts.fill(name, **dict.fromkeys(template.get_identifiers(), "value")), name
