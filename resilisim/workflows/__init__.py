"""Workflows: the plan for a task, who makes it, and the prompt that shows it."""

from resilisim.workflows.mcp_task import parse_mcp_task, render_mcp_task, validate_mcp_task
from resilisim.workflows.model import PlannedStep, Step, Workflow
from resilisim.workflows.plan_text import render_plan
from resilisim.workflows.planner import (
    AutoPlanner,
    ExactPlanner,
    Planner,
    ReferencePlanner,
    resolve_planner,
    similar_by_retrieval,
    with_limits,
)
from resilisim.workflows.prompts import PROMPT_TYPES, Prompt, parse_plan, parse_steps, parse_work_order, render_prompt
from resilisim.workflows.steps import semantic_match_by_retrieval
from resilisim.workflows.templating import PromptTemplates, load_templates

__all__ = [
    "PROMPT_TYPES",
    "AutoPlanner",
    "ExactPlanner",
    "PlannedStep",
    "Planner",
    "Prompt",
    "PromptTemplates",
    "ReferencePlanner",
    "Step",
    "Workflow",
    "load_templates",
    "parse_mcp_task",
    "parse_plan",
    "parse_steps",
    "parse_work_order",
    "render_mcp_task",
    "render_plan",
    "render_prompt",
    "resolve_planner",
    "semantic_match_by_retrieval",
    "similar_by_retrieval",
    "validate_mcp_task",
    "with_limits",
]
