"""Prompts byte by byte; `golden_prompts.py` says how to write the files anew."""

import pytest
from golden_prompts import FOLDER, golden_prompts, golden_task, golden_workflow

from resilisim.workflows import parse_mcp_task, parse_plan, parse_steps, parse_work_order, validate_mcp_task

PROMPTS = golden_prompts()


@pytest.mark.parametrize("name", PROMPTS)
def test_a_prompt_is_what_it_was(name):
    assert (FOLDER / name).read_bytes() == PROMPTS[name].encode("utf-8")


def test_there_are_no_other_files():
    assert {path.name for path in FOLDER.iterdir()} == set(PROMPTS)
    assert len(PROMPTS) == 2 * (2 + 2 * 2) + 2 * 4


def test_the_files_read_back():
    task, texts = golden_task(), {path.name: path.read_text(encoding="utf-8") for path in FOLDER.iterdir()}
    workflow = golden_workflow(task)
    assert {step.chosen_by for step in workflow.steps} == {"semantics", "policy"}
    for name, text in texts.items():
        assert parse_work_order(text) == task.description
        planned = {"optimal": list(workflow.tools), "flawed": list(workflow.tools[::-1])}
        limits = {(step.max_tries, step.skip_from) for step in parse_steps(text)}
        assert limits == ({(None, None), (2, 6), (1, None)} if name.startswith(("optimal", "flawed")) else set())
        assert parse_plan(text) == planned.get(name.split(".")[0], [])
        if ".xml." in name:
            validate_mcp_task(text)
            assert list(parse_mcp_task(text).tools) == parse_plan(text)
