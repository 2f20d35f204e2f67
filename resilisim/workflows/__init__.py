"""Workflows: the plan for a task, who makes it, and the prompt that shows it."""

import importlib
import warnings
from typing import Any

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

# Names that are for the package's own use; they are imported from the modules that hold them.
_ELSEWHERE = {
    "PLANNED_PROMPT_TYPES": "prompts",
    "PLAN_FORMATS": "prompts",
    "PROMPT_STYLES": "prompts",
    "PromptStyle": "prompts",
    "SemanticMatch": "steps",
    "all_success_path": "planner",
    "check_style": "prompts",
    "critical_tools": "model",
    "no_similar_tools": "planner",
}


def __getattr__(name: str) -> Any:
    if name not in _ELSEWHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    place = f"{__name__}.{_ELSEWHERE[name]}"
    warnings.warn(f"{__name__}.{name} is deprecated: import it from {place}", DeprecationWarning, stacklevel=2)
    return getattr(importlib.import_module(place), name)
