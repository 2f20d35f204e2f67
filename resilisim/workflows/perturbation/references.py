"""What the steps of a plan say of each other: kept consistent, so that no text betrays a flaw."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from resilisim.workflows.parameters import UNSTATED_TEXT
from resilisim.workflows.perturbation.types import Edit
from resilisim.workflows.perturbation.values import as_json
from resilisim.workflows.types import Step

# Under these two forms a plan passes the result of one step to another (`workflows.parameters`).
RESULT_TEXT = "result of "
RESULT_KEY = "result_of"

_NAME = re.compile(r"[\w.-]+")
_TWICE = re.compile(r"(?<![\w.-])([\w.-]+) and \1(?![\w.-])")


def referred_tool(value: Any) -> str | None:
    """Return the tool whose result a parameter's value refers to, or None if it refers to none."""
    if isinstance(value, str) and value.startswith(RESULT_TEXT):
        return value.removeprefix(RESULT_TEXT)
    if isinstance(value, Mapping) and list(value) == [RESULT_KEY]:
        return str(value[RESULT_KEY])
    return None


def refer_to(value: Any, tool: str | None) -> Any:
    """Return a reference in the form of another one; without a tool, a value of the same type that says nothing."""
    if isinstance(value, str):
        return UNSTATED_TEXT if tool is None else RESULT_TEXT + tool
    return {} if tool is None else {RESULT_KEY: tool}


def redirect(
    steps: Sequence[Step],
    origins: Sequence[int],
    results: Mapping[str, str | None],
    reasons: Mapping[str, str],
    replaced: frozenset[int] = frozenset(),
) -> tuple[tuple[Step, ...], list[Edit]]:
    """Let steps refer to what is in the plan now.

    Args:
        steps: The steps of the flawed plan.
        origins: For each of them, its index in the original plan.
        results: Tool that is gone -> tool whose result is passed instead, None for none.
        reasons: Tool that is gone -> tool that reasons name instead.
        replaced: Indices of steps whose tools are new, so that their parameters are new anyway and need no edit.

    Returns:
        The steps, and the edits in the order of the steps.
    """
    changed, edits = [], []
    for index, step in enumerate(steps):
        parameters = dict(step.parameters)
        for name, value in step.parameters.items():
            tool = referred_tool(value)
            if tool is not None and tool in results:
                parameters[name] = refer_to(value, results[tool])
                if index not in replaced:
                    before, after = as_json(value), as_json(parameters[name])
                    edits.append(Edit("parameter_changed", index + 1, origins[index] + 1, name, before, after))
        reason = _renamed(step.reason, reasons)
        if reason != step.reason:
            edits.append(Edit("reason_changed", index + 1, origins[index] + 1, None, step.reason, reason))
        if parameters != step.parameters or reason != step.reason:
            step = replace(step, parameters=parameters, reason=reason)
        changed.append(step)
    return tuple(changed), edits


def _renamed(text: str, names: Mapping[str, str]) -> str:
    """Return a text that names other tools; a tool that is then named twice in a row is named once."""
    if not any(name in text for name in names):
        return text
    renamed = _NAME.sub(lambda found: names.get(found.group(), found.group()), text)
    return _TWICE.sub(r"\1", renamed) if renamed != text else text
