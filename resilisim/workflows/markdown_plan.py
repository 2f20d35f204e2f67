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
_DETAIL_LINE = re.compile(r"^[^\S\n]*-[^\S\n]+(Requires|Parameters|Limit):[^\S\n]*(.*?)[^\S\n]*$", re.MULTILINE)
# The two halves of a limit, as `describe_limits` writes them.
_MAX_TRIES = re.compile(r"\bat most (\d{1,9}) tr(?:y|ies)\b", re.IGNORECASE)
_SKIP_FROM = re.compile(r"\bfrom message (\d{1,9}) on\b", re.IGNORECASE)
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
        if step.is_limited:
            lines.append(f"   - Limit: {describe_limits(step)}")
        if step.requires:
            lines.append(f"   - Requires: {escape_line(', '.join(step.requires))}")
        if step.parameters:
            lines.append(f"   - Parameters: {inline_json(step.parameters)}")
        if step.alternatives:
            lines.append(f"   - Alternatives: {escape_line(', '.join(step.alternatives))}")
        if step.expected_outcome:
            lines.append(f"   - Expected: {escape_line(step.expected_outcome)} (confidence {step.confidence:.2f})")
    return "\n".join(lines)


def describe_limits(step: Step) -> str:
    """Return in words when to go on without a step's success; empty if never."""
    tries = "" if step.max_tries is None else f"at most {step.max_tries} {'try' if step.max_tries == 1 else 'tries'}"
    message = "" if step.skip_from is None else f"from message {step.skip_from} on"
    limit = f"{tries}, and none {message}" if tries and message else tries or (message and f"no try {message}")
    return f"{limit}; then go on to the next step without it" if limit else ""


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
        max_tries: int | None = None
        skip_from: int | None = None
        for detail in _DETAIL_LINE.finditer(text, match.end(), end):
            if detail.group(1) == "Requires":
                requires = tuple(name for name in re.split(r"[,\s]+", detail.group(2)) if name)
            elif detail.group(1) == "Limit":
                max_tries = _stated_limit(_MAX_TRIES, detail.group(2))
                skip_from = _stated_limit(_SKIP_FROM, detail.group(2))
            else:
                parameters, problem = read_stated_parameters(detail.group(2))
        steps.append(PlannedStep(match.group(1), requires, parameters, problem, max_tries, skip_from))
    return steps


def _stated_limit(pattern: re.Pattern[str], text: str) -> int | None:
    found = pattern.search(text)
    return max(int(found.group(1)), 1) if found else None
