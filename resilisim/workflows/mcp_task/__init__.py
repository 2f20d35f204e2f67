"""Workflows as `<mcp_task>` XML: written, read back to the same workflow, and checked against a schema."""

from resilisim.workflows.mcp_task.reading import parse_mcp_task
from resilisim.workflows.mcp_task.schema import validate_mcp_task
from resilisim.workflows.mcp_task.writing import render_mcp_task

__all__ = ["parse_mcp_task", "render_mcp_task", "validate_mcp_task"]
