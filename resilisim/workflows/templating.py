"""How prompts are put together: templates, and text that is not ours shown inside them.

Templates are Markdown files with `${placeholders}`, packaged, each replaceable by a file of the user's. Text of tasks
and tools must not pass for the prompt itself. Two things could: a protocol tag, and a line that looks like a heading or
like a step of a plan. Both are escaped in a way that a reader still understands (an entity, a Markdown backslash) and
that `unescape_text` undoes exactly.
"""

from __future__ import annotations

import functools
import json
import re
import string
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from resilisim.errors import InvalidInputError, unknown_name
from resilisim.inputs import inside

# File -> the placeholders that its text may hold, and those that it must hold to be what its name says.
PLACEHOLDERS: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "baseline.md": (
        ("work_order", "input_data", "expected_output", "finding_tools", "calling_tools", "limits", "task_type"),
        ("work_order",),
    ),
    "world.md": (
        ("work_order", "input_data", "expected_output", "finding_tools", "calling_tools", "limits", "task_type"),
        ("work_order",),
    ),
    "answer.md": ((), ()),
    "finding_tools.text.md": ((), ()),
    "finding_tools.native.md": ((), ()),
    "finding_tools.functions.md": ((), ()),
    "calling_tools.text.md": (("parameters", "finish"), ()),
    "calling_tools.native.md": (("parameters", "finish"), ()),
    "calling_tools.functions.md": (("parameters", "finish"), ()),
    "waiting.text.md": ((), ()),
    "waiting.functions.md": ((), ()),
    "compact.waiting.text.md": ((), ()),
    "compact.waiting.functions.md": ((), ()),
    "tools_listed.md": (("names",), ("names",)),
    "chain_of_thought.text.md": (("acting",), ()),
    "chain_of_thought.native.md": (("acting",), ()),
    "chain_of_thought.functions.md": (("acting",), ()),
    "acting.text.md": ((), ()),
    "acting.native.md": ((), ()),
    "acting.functions.md": ((), ()),
    "optimal.md": (("plan", "critical_tools", "success_probability", "planner"), ("plan",)),
    "optimal.xml.md": (("mcp_task", "critical_tools", "success_probability", "planner"), ("mcp_task",)),
    "compact.md": (("work_order", "input_data", "calling_tools", "limits", "task_type"), ("work_order",)),
    "compact.calling_tools.text.md": (("parameters", "finish"), ()),
    "compact.calling_tools.native.md": (("parameters", "finish"), ()),
    "compact.calling_tools.functions.md": (("parameters", "finish"), ()),
    "compact.reasoning.md": ((), ()),
    "compact.reasoning.functions.md": ((), ()),
    "compact.plan.md": (("plan", "critical_tools", "success_probability", "planner"), ("plan",)),
    "terse.md": (("work_order", "instructions", "task_type"), ("work_order",)),
    "terse.instructions.md": (("limits", "waiting"), ()),
    "terse.plan.md": (("plan", "critical_tools", "success_probability", "planner"), ("plan",)),
    "mcp_task.failure_handling.primary.md": ((), ()),
    "mcp_task.failure_handling.alternatives.md": ((), ()),
    "mcp_task.failure_handling.report.md": ((), ()),
    "mcp_task.execution_tracking.rationale.md": ((), ()),
    "mcp_task.execution_tracking.deviations.md": ((), ()),
    "mcp_task.execution_tracking.confidence.md": ((), ()),
}


@dataclass(frozen=True, slots=True)
class PromptTemplates:
    """A full set of templates: file name -> text, for every name in `PLACEHOLDERS`."""

    texts: Mapping[str, str]

    def fill(self, name: str, values: Mapping[str, str], left_out: Collection[str] = ()) -> str:
        """Return a template with its placeholders replaced; what stands in the values is not looked at again.

        Those of `left_out` have no value, and leave no empty paragraph.
        """
        text = self.texts[name]
        for placeholder in left_out:
            text = text.replace(f"${{{placeholder}}}\n\n", "").replace(f"${{{placeholder}}}", "")
        return string.Template(text).substitute(values).strip()


@functools.cache
def packaged_templates() -> PromptTemplates:
    """Return the templates that ship with the package."""
    folder = resources.files("resilisim.workflows").joinpath("templates")
    return PromptTemplates({name: folder.joinpath(name).read_text(encoding="utf-8") for name in PLACEHOLDERS})


def load_templates(directory: str | Path) -> PromptTemplates:
    """Return the packaged templates with those replaced that a directory holds under the same file name.

    Raises:
        InvalidInputError: The directory does not exist, holds a Markdown file of an unknown name, or a template has a
            placeholder that does not exist or lacks one that it needs.
    """
    folder = Path(directory)
    if not folder.is_dir():
        raise InvalidInputError(f"template directory {str(directory)!r} does not exist: expected a folder of .md files")
    texts = dict(packaged_templates().texts)
    for path in sorted(folder.glob("*.md")):
        if path.name not in PLACEHOLDERS:
            raise unknown_name("template", path.name, PLACEHOLDERS, str(folder))
        texts[path.name] = read_template(path, *PLACEHOLDERS[path.name])
    return PromptTemplates(texts)


def read_template(path: Path, permitted: Collection[str], needed: Collection[str]) -> str:
    """Return the text of a template of the user's; refuse placeholders that do not exist, and the lack of one."""
    try:
        text = inside(path.parent, path, "template").read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInputError(f"template {str(path)!r} cannot be read: {error}") from None
    template = string.Template(text)
    if not template.is_valid():
        raise InvalidInputError(f"template {str(path)!r} holds a lone $: expected ${{name}}, or $$ for the sign itself")
    placeholders = template.get_identifiers()
    for name in placeholders:
        if name not in permitted:
            raise unknown_name("placeholder", name, permitted, f"template {str(path)!r}")
    for name in needed:
        if name not in placeholders:
            raise InvalidInputError(f"template {str(path)!r} lacks the placeholder ${{{name}}}")
    return text


# Tags that mean something to the environment or to a plan; other markup in a text is left as it is.
PROTOCOL_TAGS = ("tool_search", "tool_info", "tool_call", "finish", "think", "mcp_task")

# Spaces within a line; `\s` would run over line ends.
_SPACE = r"[^\S\n]"
_TAG = re.compile(rf"<(?=\s*/?\s*(?:{'|'.join(PROTOCOL_TAGS)})\b)", re.IGNORECASE)
_ENTITY = re.compile(r"&(?=(?:lt|amp);)")
_ESCAPED_ENTITY = re.compile(r"&(lt|amp);")
_HEADING = re.compile(rf"^({_SPACE}*)(\\*#)", re.MULTILINE)
_ESCAPED_HEADING = re.compile(rf"^({_SPACE}*)\\(\\*#)", re.MULTILINE)
_STEP = re.compile(rf"^({_SPACE}*\d+)(\\*\.{_SPACE}+Execute\b)", re.MULTILINE | re.IGNORECASE)
_ESCAPED_STEP = re.compile(rf"^({_SPACE}*\d+)\\(\\*\.{_SPACE}+Execute\b)", re.MULTILINE | re.IGNORECASE)


def escape_text(text: str) -> str:
    """Return a text in which nothing is a protocol tag, a heading, or a step of a plan."""
    # Looking for one character is far quicker than a pattern, and most texts have none of them.
    if "&" in text:
        text = _ENTITY.sub("&amp;", text)
    if "<" in text:
        text = _TAG.sub("&lt;", text)
    if "#" in text:
        text = _HEADING.sub(r"\1\\\2", text)
    return _STEP.sub(r"\1\\\2", text)


def escape_line(text: str) -> str:
    """Return a text as one line in which nothing is a protocol tag, for use behind a label."""
    return escape_text(" ".join(text.split()))


# Made once: `json.dumps` with an option makes one for every call.
_ENCODER = json.JSONEncoder(ensure_ascii=False, default=str)


def inline_json(value: Any) -> str:
    """Return a value as JSON on one line that holds no protocol tag; it reads back as the same value."""
    text = _ENCODER.encode(value)
    return _TAG.sub(r"\\u003c", text) if "<" in text else text


def unescape_text(text: str) -> str:
    """Return the text that `escape_text` was given."""
    text = _ESCAPED_STEP.sub(r"\1\2", text)
    text = _ESCAPED_HEADING.sub(r"\1\2", text)
    return _ESCAPED_ENTITY.sub(lambda match: "<" if match.group(1) == "lt" else "&", text)
