"""Workflows: the plan for a task, who makes it, and the prompt that shows it."""

from resilisim.workflows.mcp_task import parse_mcp_task
from resilisim.workflows.planner import ExactPlanner, Planner
from resilisim.workflows.prompts import parse_plan
from resilisim.workflows.workflow import PlannedStep, Step, Workflow

__all__ = ["ExactPlanner", "PlannedStep", "Planner", "Step", "Workflow", "parse_mcp_task", "parse_plan"]
