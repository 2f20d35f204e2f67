"""Templates of one's own: used where they are, refused where they are wrong."""

from __future__ import annotations

import re
import string
from importlib import resources

import pytest
from toy_workflows import LIBRARY, task

from resilisim.errors import InvalidInputError
from resilisim.workflows import ExactPlanner, load_templates, parse_plan, render_prompt
from resilisim.workflows.templating import PLACEHOLDERS, packaged_templates


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
        ("basline.md", "x", "unknown template 'basline.md'"),
        ("baseline.md", "${work_oder}", "did you mean 'work_order'?"),
        ("baseline.md", "no place for the task", "lacks the placeholder ${work_order}"),
        ("optimal.md", "${critical_tools}", "lacks the placeholder ${plan}"),
        ("optimal.md", "${plan} costs $ 5", "holds a lone $"),
    ],
)
def test_wrong_templates_are_named(tmp_path, name, text, message):
    (tmp_path / name).write_text(text, encoding="utf-8")
    with pytest.raises(InvalidInputError) as error:
        load_templates(tmp_path)
    assert message in str(error.value)
    assert name in str(error.value)


def test_a_template_that_is_not_text_is_named(tmp_path):
    (tmp_path / "optimal.md").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InvalidInputError, match=re.escape("optimal.md")):
        load_templates(tmp_path)


def test_a_missing_folder_is_named(tmp_path):
    with pytest.raises(InvalidInputError, match="does not exist"):
        load_templates(tmp_path / "nowhere")
