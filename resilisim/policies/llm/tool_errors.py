"""Telling a result from an error that a tool wrote into its result."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from resilisim.policies.llm.tools import ToolResult

_MAX_BODY: Final = 100_000  # characters; a longer body is no error message


def error_of(result: ToolResult) -> str | None:
    """Return what went wrong in a call, in the tool's words, or None if it succeeded.

    An error is also a JSON body that says so: `error` with something in it, `isError`, or the status "error".
    """
    if result.error is not None:
        return result.error
    body = result.value if isinstance(result.value, Mapping) else _json_object(result.text)
    if body is None:
        return None
    error = body.get("error")
    if error:
        return error if isinstance(error, str) else json.dumps(error, ensure_ascii=False, default=str)
    if body.get("isError") is True or body.get("is_error") is True or body.get("status") == "error":
        return str(body.get("message") or result.text)
    return None


def _json_object(text: str) -> Mapping[str, Any] | None:
    stripped = text.strip()
    if not stripped.startswith("{") or len(stripped) > _MAX_BODY:
        return None
    try:
        body = json.loads(stripped)
    except (ValueError, RecursionError):
        return None
    return body if isinstance(body, dict) else None
