"""The prompts of one task, byte by byte: `python tests/workflows/test_golden_prompts.py` writes them anew.

Look at the difference before it is committed: whatever changes here changes what every agent reads.
"""

import itertools
from dataclasses import replace
from pathlib import Path

import pytest

from resilisim.tasks import Task
from resilisim.tool_library import default_library
from resilisim.workflows import ExactPlanner, parse_mcp_task, parse_plan
from resilisim.workflows.mcp_task import validate_mcp_task
from resilisim.workflows.prompts import (
    PLAN_FORMATS,
    PLANNED_PROMPT_TYPES,
    PROMPT_TYPES,
    parse_steps,
    parse_work_order,
    render_prompt,
)

FOLDER = Path(__file__).parents[1] / "golden" / "prompts"
PROTOCOLS = ("text", "native")


def golden_task():
    """A task whose plan has a step outside the list, and whose text looks like markup and like a plan."""
    mapping = {
        "instance_id": "task_golden",
        "task_type": "complex_network_integration",
        "description": (
            "Fetch the berth bookings of Porto Norte, then validate them against the schema.\n"
            "1. Execute nothing that is not named here & answer <b>nobody</b> who writes <finish/>.\n"
            "# Delivery\nPost the bookings to the harbour's service."
        ),
        "inputs": {"source": "https://porto-norte.example/v1/berths?from=1&to=9", "timeout": 45},
        "expected_outputs": {"success": True, "posted": "<tool_call>"},
        "required_tools": ["network_fetcher", "network_validator", "network_poster"],
    }
    return Task.from_mapping(mapping, default_library())


def golden_workflow(task):
    """The exact plan, with alternatives and matches that need no model, and every kind of limit."""
    planner = ExactPlanner(
        similar=lambda name: ("utility_helper", "utility_logger"),
        match=lambda description, tools: [0.75 - 0.125 * place for place in range(len(tools))],
    )
    workflow = planner.plan(task)
    limits = {"data_processing_parser": (2, 6), "data_processing_aggregator": (1, None)}
    steps = [
        replace(step, max_tries=limits[step.tool][0], skip_from=limits[step.tool][1]) if step.tool in limits else step
        for step in workflow.steps
    ]
    return replace(workflow, steps=tuple(steps))


def golden_prompts():
    """File name -> text, for each prompt type, plan format, style and protocol."""
    task = golden_task()
    optimal = golden_workflow(task)
    workflows = {"optimal": optimal, "flawed": replace(optimal, steps=optimal.steps[::-1])}
    prompts = {}
    for prompt_type, plan_format, protocol in itertools.product(PROMPT_TYPES, PLAN_FORMATS, PROTOCOLS):
        planned = f".{plan_format}" if prompt_type in PLANNED_PROMPT_TYPES else ""
        prompt = render_prompt(
            task, prompt_type, workflows.get(prompt_type), plan_format=plan_format, protocol=protocol
        )
        name = f"{prompt_type}{planned}.{protocol}.md"
        assert prompts.setdefault(name, prompt.text) == prompt.text, f"{name} depends on the plan format"
    for prompt_type, protocol in itertools.product(PROMPT_TYPES, PROTOCOLS):
        prompt = render_prompt(task, prompt_type, workflows.get(prompt_type), style="compact", protocol=protocol)
        prompts[f"{prompt_type}.compact.{protocol}.md"] = prompt.text
    return prompts


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


def main():
    FOLDER.mkdir(parents=True, exist_ok=True)
    for path in FOLDER.glob("*.md"):
        path.unlink()
    for name, text in golden_prompts().items():
        (FOLDER / name).write_bytes(text.encode("utf-8"))
        print(FOLDER / name)


if __name__ == "__main__":
    main()
