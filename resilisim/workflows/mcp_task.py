r"""Workflows as `<mcp_task>` XML: written, read back to the same workflow, and checked against a schema.

An element may come from anywhere, so nothing of XML is used that a stranger could abuse: it is cut out of the text
around it, a document type (and with it every entity of one's own) is refused, and length and depth are bounded.

XML refuses control characters, halves of surrogate pairs, U+FFFE and U+FFFF, and changes line ends. These, and
everything else that could end a line, are written as `\uXXXX`. So that a text that itself holds `\u0041` stays what it
is, backslashes that stand directly before such a code are doubled; all other backslashes are left alone.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any
from xml.etree import ElementTree

from resilisim.errors import InvalidInputError, import_extra, one_line, unknown_name
from resilisim.workflows.plan_text import QUOTED, read_name, read_stated_parameters, written_name
from resilisim.workflows.templating import PromptTemplates, packaged_templates
from resilisim.workflows.workflow import (
    CHOSEN_BY,
    PlannedStep,
    Workflow,
    critical_tools,
    mean_semantic_match,
    share_chosen_by,
)

Element = ElementTree.Element

# Far above any plan that can be carried out; parsing that much takes well under a second.
MAX_CHARACTERS = 4_000_000
_MAX_DEPTH = 8
INSIGHT_DECIMALS = 3

_SECTIONS = (
    "instance_id",
    "planner",
    "execution_plan",
    "workflow_intelligence",
    "semantic_insights",
    "failure_handling",
    "execution_tracking",
)
_INTELLIGENCE = ("predicted_success_probability", "critical_tools")
# Sections whose texts are templates, `mcp_task.<section>.<part>.md`, and the parts of each.
GUIDANCE: Mapping[str, tuple[str, ...]] = {
    "failure_handling": ("primary", "alternatives", "report"),
    "execution_tracking": ("rationale", "deviations", "confidence"),
}

_OPENING = re.compile(r"<mcp_task(?=[\s>])")
_CLOSING = re.compile(r"</mcp_task\s*>")
# At the beginning of a document, behind its declaration and comments.
_DOCUMENT_TYPE = re.compile(r"\s*(?:<\?xml[^>]*>\s*)?(?:<!--.*?-->\s*)*<!DOCTYPE", re.DOTALL | re.IGNORECASE)
_WHOLE_NUMBER = re.compile(r"[0-9]{1,9}")
_TOOL_NAME = re.compile(rf"{QUOTED}|[^\s`]+")

_UNFIT = r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff\ufffe\uffff]"
_CODE = r"u[0-9a-fA-F]{4}"
# Only whole runs of backslashes are looked at, each from its beginning, so the time is linear in the text.
_TO_ENCODE = re.compile(rf"(?<!\\)(?:(\\*+)({_UNFIT})|(\\++)(?={_CODE}))")
_TO_DECODE = re.compile(rf"(?<!\\)(\\++)({_CODE})")


def render_mcp_task(workflow: Workflow, templates: PromptTemplates | None = None) -> str:
    """Return a workflow as an `<mcp_task>` element, from which `parse_mcp_task` reads the same workflow.

    Args:
        workflow: The workflow.
        templates: Texts of the sections that guide; the packaged ones if omitted.

    Raises:
        InvalidInputError: A step's parameters are not JSON, or the element would be too long to be read back.
    """
    root = Element("mcp_task")
    _add(root, "instance_id", workflow.instance_id)
    _add(root, "planner", workflow.planner)
    plan = ElementTree.SubElement(root, "execution_plan")
    for number, step in enumerate(workflow.steps, start=1):
        element = ElementTree.SubElement(plan, "step", number=str(number))
        for part in _STEP_PARTS:
            value = getattr(step, part.field)
            if part.always or value not in (None, "", (), {}):
                part.write(element, part.tag, value)
    intelligence = ElementTree.SubElement(root, "workflow_intelligence")
    _add_number(intelligence, "predicted_success_probability", workflow.predicted_success_probability)
    critical = critical_tools(workflow.steps)
    if critical:
        _add_tools(intelligence, "critical_tools", critical)
    insights = ElementTree.SubElement(root, "semantic_insights")
    values = {"mean_semantic_match": mean_semantic_match(workflow.steps)}
    values |= {f"share_chosen_by_{chooser}": share_chosen_by(workflow.steps, chooser) for chooser in CHOSEN_BY}
    for name, value in values.items():
        if value is not None:
            _add_number(insights, name, round(value, INSIGHT_DECIMALS))
    fill = (templates or packaged_templates()).fill
    for section, parts in GUIDANCE.items():
        element = ElementTree.SubElement(root, section)
        for name in parts:
            _add(element, name, " ".join(fill(f"mcp_task.{section}.{name}.md", {}).split()))
    ElementTree.indent(root)
    text = ElementTree.tostring(root, encoding="unicode")
    if len(text) > MAX_CHARACTERS:
        where = f"workflow of {workflow.instance_id!r}"
        raise InvalidInputError(f"{where}: {len(text):,} characters as <mcp_task>, expected at most {MAX_CHARACTERS:,}")
    return text


def mcp_task_start(text: str) -> int | None:
    """Return where the `<mcp_task>` element of a text begins; None if it holds none."""
    opening = _OPENING.search(text)
    return None if opening is None else opening.start()


def parse_mcp_task(text: str) -> Workflow:
    """Read the workflow in an `<mcp_task>` element; what follows from the workflow itself is not looked at.

    Args:
        text: The element, or a text that holds it, such as a prompt.

    Returns:
        A workflow equal to the one that `render_mcp_task` was given.

    Raises:
        InvalidInputError: There is no such element, it is not well-formed, too long or too deep, or a part of it is
            unknown, stands twice, is missing, or of the wrong kind.

    Example:
        >>> from resilisim import benchmark_tasks
        >>> from resilisim.workflows import ExactPlanner, parse_mcp_task
        >>> from resilisim.workflows.prompts import render_prompt
        >>> task = benchmark_tasks()[0]
        >>> plan = ExactPlanner().plan(task)
        >>> parse_mcp_task(render_prompt(task, "optimal", plan, plan_format="xml").text) == plan
        True
    """
    root = mcp_task_element(text)
    parts = _parts(root, _SECTIONS)
    intelligence = _part(parts, "workflow_intelligence", root)
    read = {part.tag: part for part in _STEP_PARTS}
    steps = [
        {read[tag].field: read[tag].read(element) for tag, element in _parts(step, read).items()}
        for step in _children(_part(parts, "execution_plan", root), "step")
    ]
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
            needed = filter(None, map(_loose_text, element.iterfind("requires/tool")))
            requires = tuple(map(read_name, needed))
            parameters, problem = read_stated_parameters(_loose_text(element.find("parameters")))
            limits = (_loose_limit(element.find(name)) for name in ("max_tries", "skip_from"))
            steps.append(PlannedStep(read_name(tool), requires or None, parameters, problem, *limits))
    return steps


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
def _compiled_schema() -> Any:
    text = resources.files("resilisim.workflows").joinpath("mcp_task.xsd").read_text(encoding="utf-8")
    return import_extra("xmlschema", "checking <mcp_task> needs", "xml").XMLSchema10(text)


def mcp_task_element(text: str) -> Element:
    """Return the first `<mcp_task>` element of a text; one that is not well-formed, too long or too deep is refused."""
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
        root: Element = parser.close()
    except ElementTree.ParseError as error:
        raise InvalidInputError(f"<mcp_task> is not well-formed XML: {error}") from None
    except UnicodeEncodeError as error:
        raise InvalidInputError(f"<mcp_task> is not Unicode text ({error.reason})") from None
    return root


class _ShallowTreeBuilder(ElementTree.TreeBuilder):
    """Builds a tree, and stops where elements are nested too deeply."""

    def __init__(self) -> None:
        super().__init__()
        self._depth = 0

    def start(self, tag: str, attributes: dict[str, str], /) -> Element:
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise InvalidInputError(f"<mcp_task> is nested too deeply: expected at most {_MAX_DEPTH} levels")
        return super().start(tag, attributes)

    def end(self, tag: str, /) -> Element:
        self._depth -= 1
        return super().end(tag)


def encode_characters(text: str) -> str:
    """Return a text as one line of characters that XML can hold; markup is left to the XML writer."""
    if text.isprintable() and "\\u" not in text:
        return text
    return _TO_ENCODE.sub(_encoded, text)


def decode_characters(text: str) -> str:
    """Return the text that `encode_characters` was given."""
    return _TO_DECODE.sub(_decoded, text) if "\\u" in text else text


def _encoded(match: re.Match[str]) -> str:
    backslashes, unfit, backslashes_before_code = match.groups()
    if unfit is None:
        return str(backslashes_before_code * 2)
    return f"{backslashes * 2}\\u{ord(unfit):04x}"


def _decoded(match: re.Match[str]) -> str:
    backslashes, code = match.groups()
    half, odd = divmod(len(backslashes), 2)
    return "\\" * half + (chr(int(code[1:], 16)) if odd else code)


def _add(parent: Element, name: str, value: object, **attributes: str) -> None:
    ElementTree.SubElement(parent, name, attributes).text = encode_characters(str(value))


def _add_number(parent: Element, name: str, value: float) -> None:
    _add(parent, name, repr(float(value)))


def _add_tools(parent: Element, name: str, tools: Sequence[str], ranked: bool = False) -> None:
    element = ElementTree.SubElement(parent, name)
    for rank, tool in enumerate(tools, start=1):
        _add(element, "tool", written_name(tool), **({"rank": str(rank)} if ranked else {}))


def _add_tool(parent: Element, name: str, tool: str) -> None:
    _add(parent, name, written_name(tool))


def _add_json(parent: Element, name: str, value: Mapping[str, Any]) -> None:
    try:
        _add(parent, name, json.dumps(dict(value), ensure_ascii=False))
    except (TypeError, ValueError, RecursionError) as error:
        tool = read_name(decode_characters(parent.findtext("tool", "")))
        raise InvalidInputError(f"parameters of step {tool!r} are not JSON values ({one_line(error)})") from None


def _parts(element: Element, known: Collection[str]) -> dict[str, Element]:
    """Return the children of an element that may have each once."""
    parts: dict[str, Element] = {}
    for child in _children(element, *known):
        if child.tag in parts:
            raise InvalidInputError(f"<{child.tag}> stands twice in <{element.tag}>: expected it once")
        parts[child.tag] = child
    return parts


def _part(parts: Mapping[str, Element], name: str, parent: Element) -> Element:
    if name not in parts:
        raise InvalidInputError(f"<{parent.tag}> has no <{name}>: expected one")
    return parts[name]


def _children(element: Element, *known: str) -> list[Element]:
    """Return the children of an element that may have these and no text of its own."""
    for text in (element.text, *(child.tail for child in element)):
        if text and text.strip():
            raise InvalidInputError(f"<{element.tag}> holds the text {text.strip()[:60]!r}: expected elements only")
    for child in element:
        if child.tag not in known:
            raise unknown_name("element", child.tag[:60], known, f"<{element.tag}>")
    return list(element)


def _text(element: Element) -> str:
    if len(element):
        raise InvalidInputError(f"<{element.tag}> holds the element <{element[0].tag[:60]}>: expected a text")
    return decode_characters(element.text or "")


def _number(element: Element) -> float:
    text = _text(element)
    try:
        return float(text)
    except ValueError:
        raise InvalidInputError(f"<{element.tag}> is {text[:60]!r}: expected a number") from None


def _whole_number(element: Element) -> int:
    text = _text(element)
    if not _WHOLE_NUMBER.fullmatch(text):
        raise InvalidInputError(f"<{element.tag}> is {text[:60]!r}: expected a whole number")
    return int(text)


def _tool(element: Element) -> str:
    return read_name(_text(element))


def _tools(element: Element) -> list[str]:
    return [_tool(child) for child in _children(element, "tool")]


def _json(element: Element) -> Any:
    text = _text(element)
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else one_line(error)
        raise InvalidInputError(f"<{element.tag}> is {text[:60]!r}: expected a JSON object ({reason})") from None


def _loose_text(element: Element | None) -> str:
    return decode_characters(element.text or "").strip() if element is not None else ""


def _loose_limit(element: Element | None) -> int | None:
    text = _loose_text(element)
    return max(int(text), 1) if _WHOLE_NUMBER.fullmatch(text) else None


@dataclass(frozen=True, slots=True)
class _StepPart:
    """A part of `<step>`: its tag, the field of `Step`, how it is written and read, and whether also if it is empty."""

    tag: str
    field: str
    write: Callable[[Element, str, Any], None]
    read: Callable[[Element], Any]
    always: bool = False


_STEP_PARTS = (
    _StepPart("tool", "tool", _add_tool, _tool, always=True),
    _StepPart("semantic_match", "semantic_match", _add_number, _number),
    _StepPart("reasoning", "reason", _add, _text),
    _StepPart("requires", "requires", _add_tools, _tools),
    _StepPart("alternatives", "alternatives", functools.partial(_add_tools, ranked=True), _tools),
    _StepPart("parameters", "parameters", _add_json, _json),
    _StepPart("expected_outcome", "expected_outcome", _add, _text),
    _StepPart("confidence", "confidence", _add_number, _number, always=True),
    _StepPart("chosen_by", "chosen_by", _add, _text, always=True),
    _StepPart("max_tries", "max_tries", _add, _whole_number),
    _StepPart("skip_from", "skip_from", _add, _whole_number),
)
