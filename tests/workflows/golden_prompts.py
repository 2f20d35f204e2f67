"""The prompts of one task, byte by byte: `python tests/workflows/golden_prompts.py` writes them anew.

Look at the difference before it is committed: whatever changes here changes what every agent reads.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

from resilisim.tasks import Task
from resilisim.tool_library import default_library
from resilisim.workflows import (
    PROMPT_TYPES,
    ExactPlanner,
    Workflow,
    render_prompt,
)
from resilisim.workflows.prompts import PLAN_FORMATS, PLANNED_PROMPT_TYPES

FOLDER = Path(__file__).parents[1] / "golden" / "prompts"
PROTOCOLS = ("text", "native")


def golden_task() -> Task:
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


def golden_workflow(task: Task) -> Workflow:
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


def golden_prompts() -> dict[str, str]:
    """File name -> text, for each prompt type, plan format, style and protocol."""
    task = golden_task()
    optimal = golden_workflow(task)
    workflows = {"optimal": optimal, "flawed": replace(optimal, steps=optimal.steps[::-1])}
    prompts: dict[str, str] = {}
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


def main() -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    for path in FOLDER.glob("*.md"):
        path.unlink()
    for name, text in golden_prompts().items():
        (FOLDER / name).write_bytes(text.encode("utf-8"))
        print(FOLDER / name)


if __name__ == "__main__":
    main()
