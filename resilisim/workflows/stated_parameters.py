"""The parameters that a plan in a prompt states for a step: read, or said to be unreadable."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

_EXCERPT_LENGTH = 200


def read_stated_parameters(text: str) -> tuple[Mapping[str, Any] | None, str | None]:
    """Read the parameters that a plan states.

    Args:
        text: What the plan says; empty if it says nothing.

    Returns:
        The parameters (None if there are none to pass), and what is wrong with the text (None if nothing is).
    """
    if not text.strip():
        return None, None
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        return None, f"the parameters are not valid JSON ({reason}): {text[:_EXCERPT_LENGTH]!r}"
    if value is not None and not isinstance(value, dict):
        return None, f"the parameters are no JSON object: {text[:_EXCERPT_LENGTH]!r}"
    return value, None
