"""The schema of `<mcp_task>`, which ships with the package as `mcp_task.xsd`."""

from __future__ import annotations

import functools
from importlib import resources
from typing import TYPE_CHECKING

from resilisim.errors import InvalidInputError, MissingExtraError
from resilisim.workflows.mcp_task.reading import mcp_task_element

if TYPE_CHECKING:
    from xmlschema import XMLSchema10


def mcp_task_schema() -> str:
    """Return the text of the XML Schema (version 1.0) of `<mcp_task>`."""
    return resources.files("resilisim.workflows.mcp_task").joinpath("mcp_task.xsd").read_text(encoding="utf-8")


def validate_mcp_task(text: str) -> None:
    """Check an `<mcp_task>` element against its schema; nothing happens if it fits.

    The schema says nothing about the JSON inside `<parameters>`; `parse_mcp_task` reads it.

    Args:
        text: The element, or a text that holds it, such as a prompt.

    Raises:
        InvalidInputError: There is no such element, it is not well-formed, or it does not fit the schema.
        MissingExtraError: The package xmlschema is not installed.
    """
    element = mcp_task_element(text)
    for error in _compiled_schema().iter_errors(element):
        reason = " ".join((error.reason or error.message).split())
        raise InvalidInputError(f"<mcp_task> does not fit its schema at {error.path}: {reason[:200]}")


@functools.cache
def _compiled_schema() -> XMLSchema10:
    try:
        from xmlschema import XMLSchema10
    except ImportError as error:
        message = f"checking <mcp_task> needs 'xmlschema' ({error}): pip install 'resilisim[xml]'"
        raise MissingExtraError(message) from error
    return XMLSchema10(mcp_task_schema())
