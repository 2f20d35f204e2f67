"""A plan as Markdown: numbered steps with details, and how they are read back."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from resilisim.workflows.escaping import escape_line, inline_json
from resilisim.workflows.stated_parameters import read_stated_parameters
from resilisim.workflows.types import PlannedStep, Step

# A step of a plan is one line; everything that is not ours is escaped so that it cannot look like one.
_STEP_LINE = re.compile(r"^[^\S\n]*\d+\.[^\S\n]+Execute[^\S\n]+`?([^\s`]+)`?[^\S\n]*$", re.MULTILINE | re.IGNORECASE)
_DETAIL_LINE = re.compile(r"^[^\S\n]*-[^\S\n]+(Requires|Parameters):[^\S\n]*(.*?)[^\S\n]*$", re.MULTILINE)
_HEADING_LINE = re.compile(r"^#{1,6} ", re.MULTILINE)


def render_plan(steps: Sequence[Step]) -> str:
    """Return the numbered steps of a plan, from which `parse_steps` reads them back."""
    lines: list[str] = []
    for number, step in enumerate(steps, start=1):
        lines.append(f"{number}. Execute {escape_line(step.tool)}")
        if step.reason:
            lines.append(f"   - Reason: {escape_line(step.reason)}")
        if step.semantic_match is not None:
            lines.append(f"   - Semantic match: {step.semantic_match:.2f}")
        if step.requires:
            lines.append(f"   - Requires: {escape_line(', '.join(step.requires))}")
        if step.parameters:
            lines.append(f"   - Parameters: {inline_json(step.parameters)}")
        if step.alternatives:
            lines.append(f"   - Alternatives: {escape_line(', '.join(step.alternatives))}")
        if step.expected_outcome:
            lines.append(f"   - Expected: {escape_line(step.expected_outcome)} (confidence {step.confidence:.2f})")
    return "\n".join(lines)


def read_markdown_steps(text: str) -> list[PlannedStep]:
    """Return the steps of the Markdown plan in a text, wherever they stand; empty if it holds none."""
    matches = list(_STEP_LINE.finditer(text))
    if not matches:
        return []
    heading = _HEADING_LINE.search(text, matches[-1].end())
    ends = [match.start() for match in matches[1:]] + [heading.start() if heading else len(text)]
    steps = []
    for match, end in zip(matches, ends, strict=True):
        requires: tuple[str, ...] | None = None
        parameters: Mapping[str, Any] | None = None
        problem: str | None = None
        for detail in _DETAIL_LINE.finditer(text, match.end(), end):
            if detail.group(1) == "Requires":
                requires = tuple(name for name in re.split(r"[,\s]+", detail.group(2)) if name)
            else:
                parameters, problem = read_stated_parameters(detail.group(2))
        steps.append(PlannedStep(match.group(1), requires, parameters, problem))
    return steps
