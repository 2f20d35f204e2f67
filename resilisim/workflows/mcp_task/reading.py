"""An `<mcp_task>` element read back: strictly as a workflow, or leniently as the steps that an agent should do.

The text may come from anywhere, so nothing of XML is used that a stranger could abuse: the element is cut out of the
text around it, a document type (and with it every entity of one's own) is refused, and length and depth are bounded.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping
from typing import Any
from xml.etree import ElementTree

from resilisim.errors import InvalidInputError, unknown_name
from resilisim.workflows.mcp_task.characters import decode_characters
from resilisim.workflows.stated_parameters import read_stated_parameters
from resilisim.workflows.types import PlannedStep, Workflow

# Far above any plan that can be carried out; parsing that much takes well under a second.
MAX_CHARACTERS = 4_000_000
MAX_DEPTH = 8

_OPENING = re.compile(r"<mcp_task(?=[\s>])")
_CLOSING = re.compile(r"</mcp_task\s*>")
# At the beginning of a document, behind its declaration and comments.
_DOCUMENT_TYPE = re.compile(r"\s*(?:<\?xml[^>]*>\s*)?(?:<!--.*?-->\s*)*<!DOCTYPE", re.DOTALL | re.IGNORECASE)
_WHOLE_NUMBER = re.compile(r"[0-9]{1,9}")
_TOOL_NAME = re.compile(r"[^\s`]+")


def parse_mcp_task(text: str) -> Workflow:
    """Read the workflow in an `<mcp_task>` element; what follows from the workflow itself is not looked at.

    Args:
        text: The element, or a text that holds it, such as a prompt.

    Returns:
        A workflow equal to the one that `render_mcp_task` was given.

    Raises:
        InvalidInputError: There is no such element, it is not well-formed, too long or too deep, or a part of it is
            unknown, stands twice, is missing, or of the wrong kind.
    """
    root = mcp_task_element(text)
    parts = _parts(root, _SECTIONS)
    intelligence = _part(parts, "workflow_intelligence", root)
    steps = []
    for step in _children(_part(parts, "execution_plan", root), "step"):
        steps.append(
            {_STEP_PARTS[tag][0]: _STEP_PARTS[tag][1](part) for tag, part in _parts(step, _STEP_PARTS).items()}
        )
    probability = _part(_parts(intelligence, _INTELLIGENCE), "predicted_success_probability", intelligence)
    return Workflow.from_mapping(
        {
            "instance_id": _text(_part(parts, "instance_id", root)),
            "steps": steps,
            "planner": _text(_part(parts, "planner", root)),
            "predicted_success_probability": _number(probability),
        }
    )


def read_mcp_task_steps(text: str) -> list[PlannedStep]:
    """Return the steps of the `<mcp_task>` element in a text; empty if it holds none that is well-formed.

    What cannot be read of a step is left out, as it is where a plan is Markdown.
    """
    if _OPENING.search(text) is None:
        return []
    try:
        root = mcp_task_element(text)
    except InvalidInputError:
        return []
    steps = []
    for element in root.iterfind("execution_plan/step"):
        tool = _loose_text(element.find("tool"))
        if _TOOL_NAME.fullmatch(tool):
            requires = tuple(filter(None, map(_loose_text, element.iterfind("requires/tool"))))
            parameters, problem = read_stated_parameters(_loose_text(element.find("parameters")))
            limits = (_loose_limit(element.find(name)) for name in ("max_tries", "skip_from"))
            steps.append(PlannedStep(tool, requires or None, parameters, problem, *limits))
    return steps


def mcp_task_element(text: str) -> ElementTree.Element:
    """Return the first `<mcp_task>` element of a text.

    Raises:
        InvalidInputError: There is none, or it is not well-formed, too long or too deep.
    """
    if _DOCUMENT_TYPE.match(text):
        raise InvalidInputError("a document with a DOCTYPE was given: expected an <mcp_task> element without one")
    opening = _OPENING.search(text)
    if opening is None:
        raise InvalidInputError("the text holds no <mcp_task> element: expected one")
    closing = _CLOSING.search(text, opening.end())
    if closing is None:
        raise InvalidInputError("<mcp_task> is never closed: expected </mcp_task>")
    length = closing.end() - opening.start()
    if length > MAX_CHARACTERS:
        raise InvalidInputError(f"<mcp_task> has {length:,} characters: expected at most {MAX_CHARACTERS:,}")
    parser = ElementTree.XMLParser(target=_ShallowTreeBuilder())
    try:
        parser.feed(text[opening.start() : closing.end()])
        root: ElementTree.Element = parser.close()
    except ElementTree.ParseError as error:
        raise InvalidInputError(f"<mcp_task> is not well-formed XML: {error}") from None
    except UnicodeEncodeError as error:
        raise InvalidInputError(f"<mcp_task> is not Unicode text ({error.reason})") from None
    return root


class _ShallowTreeBuilder(ElementTree.TreeBuilder):
    """Builds the tree of an element, and stops where elements are nested too deeply."""

    def __init__(self) -> None:
        super().__init__()
        self._depth = 0

    def start(self, tag: str, attributes: dict[str, str], /) -> ElementTree.Element:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise InvalidInputError(f"<mcp_task> is nested too deeply: expected at most {MAX_DEPTH} levels")
        return super().start(tag, attributes)

    def end(self, tag: str, /) -> ElementTree.Element:
        self._depth -= 1
        return super().end(tag)


def _parts(element: ElementTree.Element, known: Collection[str]) -> dict[str, ElementTree.Element]:
    """Return the children of an element that may have each once."""
    parts: dict[str, ElementTree.Element] = {}
    for child in _children(element, *known):
        if child.tag in parts:
            raise InvalidInputError(f"<{child.tag}> stands twice in <{element.tag}>: expected it once")
        parts[child.tag] = child
    return parts


def _part(parts: Mapping[str, ElementTree.Element], name: str, parent: ElementTree.Element) -> ElementTree.Element:
    if name not in parts:
        raise InvalidInputError(f"<{parent.tag}> has no <{name}>: expected one")
    return parts[name]


def _children(element: ElementTree.Element, *known: str) -> list[ElementTree.Element]:
    """Return the children of an element that may have these and no text of its own."""
    for text in (element.text, *(child.tail for child in element)):
        if text and text.strip():
            raise InvalidInputError(f"<{element.tag}> holds the text {text.strip()[:60]!r}: expected elements only")
    for child in element:
        if child.tag not in known:
            raise unknown_name("element", child.tag[:60], known, f"<{element.tag}>")
    return list(element)


def _text(element: ElementTree.Element) -> str:
    if len(element):
        raise InvalidInputError(f"<{element.tag}> holds the element <{element[0].tag[:60]}>: expected a text")
    return decode_characters(element.text or "")


def _number(element: ElementTree.Element) -> float:
    text = _text(element)
    try:
        return float(text)
    except ValueError:
        raise InvalidInputError(f"<{element.tag}> is {text[:60]!r}: expected a number") from None


def _whole_number(element: ElementTree.Element) -> int:
    text = _text(element)
    if not _WHOLE_NUMBER.fullmatch(text):
        raise InvalidInputError(f"<{element.tag}> is {text[:60]!r}: expected a whole number")
    return int(text)


def _tools(element: ElementTree.Element) -> list[str]:
    return [_text(child) for child in _children(element, "tool")]


def _object(element: ElementTree.Element) -> Any:
    text = _text(element)
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else " ".join(str(error).split())
        raise InvalidInputError(f"<{element.tag}> is {text[:60]!r}: expected a JSON object ({reason})") from None


def _loose_text(element: ElementTree.Element | None) -> str:
    return decode_characters(element.text or "").strip() if element is not None else ""


def _loose_limit(element: ElementTree.Element | None) -> int | None:
    text = _loose_text(element)
    return max(int(text), 1) if _WHOLE_NUMBER.fullmatch(text) else None


# Parts of a step -> the field of `Step`, and how it is read.
_STEP_PARTS: Mapping[str, tuple[str, Callable[[ElementTree.Element], Any]]] = {
    "tool": ("tool", _text),
    "semantic_match": ("semantic_match", _number),
    "reasoning": ("reason", _text),
    "requires": ("requires", _tools),
    "alternatives": ("alternatives", _tools),
    "parameters": ("parameters", _object),
    "expected_outcome": ("expected_outcome", _text),
    "confidence": ("confidence", _number),
    "chosen_by": ("chosen_by", _text),
    "max_tries": ("max_tries", _whole_number),
    "skip_from": ("skip_from", _whole_number),
}
_INTELLIGENCE = ("predicted_success_probability", "critical_tools")
_SECTIONS = (
    "instance_id",
    "planner",
    "execution_plan",
    "workflow_intelligence",
    "semantic_insights",
    "failure_handling",
    "execution_tracking",
)
