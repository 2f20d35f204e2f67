"""A workflow written as an `<mcp_task>` element: the plan with all that its planner knows, and how to work by it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any
from xml.etree import ElementTree

from resilisim.errors import InvalidInputError
from resilisim.workflows.insights import critical_tools, mean_semantic_match, share_chosen_by
from resilisim.workflows.mcp_task.characters import encode_characters
from resilisim.workflows.mcp_task.reading import MAX_CHARACTERS
from resilisim.workflows.templating import PromptTemplates, packaged_templates
from resilisim.workflows.types import CHOSEN_BY, Step, Workflow

# Sections whose texts are templates, `mcp_task.<section>.<part>.md`, and the parts of each.
GUIDANCE: Mapping[str, tuple[str, ...]] = {
    "failure_handling": ("primary", "alternatives", "report"),
    "execution_tracking": ("rationale", "deviations", "confidence"),
}
INSIGHT_DECIMALS = 3


def render_mcp_task(workflow: Workflow, templates: PromptTemplates | None = None) -> str:
    """Return a workflow as an `<mcp_task>` element, from which `parse_mcp_task` reads the same workflow.

    Args:
        workflow: The workflow.
        templates: Texts of the sections that guide; the packaged ones if omitted.

    Raises:
        InvalidInputError: A step's parameters are not JSON, or the element would be too long to be read back.
    """
    root = ElementTree.Element("mcp_task")
    _add(root, "instance_id", workflow.instance_id)
    _add(root, "planner", workflow.planner)
    plan = ElementTree.SubElement(root, "execution_plan")
    for number, step in enumerate(workflow.steps, start=1):
        _add_step(plan, number, step)
    _add_intelligence(root, workflow)
    _add_insights(root, workflow.steps)
    _add_guidance(root, templates or packaged_templates())
    ElementTree.indent(root)
    text = ElementTree.tostring(root, encoding="unicode")
    if len(text) > MAX_CHARACTERS:
        where = f"workflow of {workflow.instance_id!r}"
        raise InvalidInputError(f"{where}: {len(text):,} characters as <mcp_task>, expected at most {MAX_CHARACTERS:,}")
    return text


def _add_step(plan: ElementTree.Element, number: int, step: Step) -> None:
    element = ElementTree.SubElement(plan, "step", number=str(number))
    _add(element, "tool", step.tool)
    if step.semantic_match is not None:
        _add(element, "semantic_match", repr(float(step.semantic_match)))
    if step.reason:
        _add(element, "reasoning", step.reason)
    _add_tools(element, "requires", step.requires)
    _add_tools(element, "alternatives", step.alternatives, ranked=True)
    if step.parameters:
        _add(element, "parameters", _json(step))
    if step.expected_outcome:
        _add(element, "expected_outcome", step.expected_outcome)
    _add(element, "confidence", repr(float(step.confidence)))
    _add(element, "chosen_by", step.chosen_by)
    if step.max_tries is not None:
        _add(element, "max_tries", str(step.max_tries))
    if step.skip_from is not None:
        _add(element, "skip_from", str(step.skip_from))


def _add_intelligence(root: ElementTree.Element, workflow: Workflow) -> None:
    element = ElementTree.SubElement(root, "workflow_intelligence")
    _add(element, "predicted_success_probability", repr(float(workflow.predicted_success_probability)))
    _add_tools(element, "critical_tools", critical_tools(workflow.steps))


def _add_insights(root: ElementTree.Element, steps: Sequence[Step]) -> None:
    element = ElementTree.SubElement(root, "semantic_insights")
    values = {"mean_semantic_match": mean_semantic_match(steps)}
    values |= {f"share_chosen_by_{chooser}": share_chosen_by(steps, chooser) for chooser in CHOSEN_BY}
    for name, value in values.items():
        if value is not None:
            _add(element, name, repr(round(value, INSIGHT_DECIMALS)))


def _add_guidance(root: ElementTree.Element, templates: PromptTemplates) -> None:
    for section, parts in GUIDANCE.items():
        element = ElementTree.SubElement(root, section)
        for part in parts:
            _add(element, part, " ".join(templates.fill(f"mcp_task.{section}.{part}.md", {}).split()))


def _add_tools(parent: ElementTree.Element, name: str, tools: Sequence[str], ranked: bool = False) -> None:
    if tools:
        element = ElementTree.SubElement(parent, name)
        for rank, tool in enumerate(tools, start=1):
            _add(element, "tool", tool, **({"rank": str(rank)} if ranked else {}))


def _add(parent: ElementTree.Element, name: str, text: str, **attributes: str) -> None:
    ElementTree.SubElement(parent, name, attributes).text = encode_characters(text)


def _json(step: Step) -> str:
    parameters: dict[str, Any] = dict(step.parameters)
    try:
        return json.dumps(parameters, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError) as error:
        reason = " ".join(str(error).split())
        raise InvalidInputError(f"parameters of step {step.tool!r} are not JSON values ({reason})") from None
