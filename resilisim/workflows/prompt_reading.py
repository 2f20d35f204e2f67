"""How the plan and the work order are read out of a prompt again, whatever format the plan has."""

from __future__ import annotations

import re

from resilisim.workflows.compact_plan import read_compact_steps
from resilisim.workflows.escaping import unescape_text
from resilisim.workflows.markdown_plan import read_markdown_steps
from resilisim.workflows.mcp_task.reading import read_mcp_task_steps
from resilisim.workflows.types import PlannedStep

_WORK_ORDER = re.compile(r"^## Work order[^\S\n]*\n(.*?)(?=^#{1,6} |\Z)", re.MULTILINE | re.DOTALL)


def parse_plan(text: str) -> list[str]:
    """Return the tools of the plan in a prompt, in order; empty if it holds no plan."""
    return [step.tool for step in parse_steps(text)]


def parse_steps(text: str) -> list[PlannedStep]:
    """Return the steps of the plan in a prompt, with what the prompt says about each; empty if it holds no plan.

    Plans in Markdown, in an `<mcp_task>` element and in the compact style are read alike. A prompt that holds several,
    which none of ours does, is read by its element; an element that is not well-formed counts as none.
    """
    return read_mcp_task_steps(text) or read_compact_steps(text) or read_markdown_steps(text)


def parse_work_order(text: str) -> str:
    """Return the description of the task in a prompt; the whole text if it has no section for it (own templates)."""
    match = _WORK_ORDER.search(text)
    return unescape_text(match.group(1)).strip() if match is not None else text.strip()
