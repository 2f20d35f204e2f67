"""Workflows: the plan for a task, who makes it, and the prompt that shows it."""

from resilisim.workflows.planner import (
    AutoPlanner,
    ExactPlanner,
    Planner,
    all_success_path,
    resolve_planner,
    similar_by_retrieval,
)
from resilisim.workflows.prompts import (
    PROMPT_TYPES,
    PlannedStep,
    Prompt,
    critical_tools,
    parse_plan,
    parse_steps,
    parse_work_order,
    render_plan,
    render_prompt,
)
from resilisim.workflows.templating import PromptTemplates, load_templates
from resilisim.workflows.types import Step, Workflow

__all__ = [
    "PROMPT_TYPES",
    "AutoPlanner",
    "ExactPlanner",
    "PlannedStep",
    "Planner",
    "Prompt",
    "PromptTemplates",
    "Step",
    "Workflow",
    "all_success_path",
    "critical_tools",
    "load_templates",
    "parse_plan",
    "parse_steps",
    "parse_work_order",
    "render_plan",
    "render_prompt",
    "resolve_planner",
    "similar_by_retrieval",
]
