"""Docstrings are written in Markdown: as pages of their own, and as reStructuredText where autodoc wants that.

The directive `docstring` puts an object's docstring, down to its arguments, where it stands; `columns` puts a table of
Workflow-v0's observation there, and `names` one of a module's public names.
"""

from __future__ import annotations

import importlib
import inspect
import re
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective

from resilisim.envs.workflow import spaces
from resilisim.envs.workflow.context import TASK_FEATURES

logger = logging.getLogger(__name__)


class Docstring(SphinxDirective):
    """Puts the docstring of `module:name` where it stands."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Return the docstring's nodes."""
        module, _, name = self.arguments[0].partition(":")
        text = inspect.getdoc(getattr(importlib.import_module(module), name)) or ""
        text = re.split(r"^(?:Args|Example|Raises):\n", text, flags=re.MULTILINE)[0]
        # The page has a table of the keys of `info` in place of this paragraph.
        text = re.sub(r"^(?:\*\*Info\.\*\*|## Info$).*?(?=^\*\*|^## )", "", text, flags=re.MULTILINE | re.DOTALL)
        text = re.sub(r"((?:^ {4}.*\n)*^ {4}>>>.*\n(?:^ {4}.*\n)*)", _fenced, text, flags=re.MULTILINE)
        if "\n## " in text:  # a docstring with headings begins with its summary, which the page has in its own words
            text = text[text.index("\n## ") + 1 :]
        return self.parse_text_to_nodes(text, allow_section_headings=True)


def _fenced(block: re.Match[str]) -> str:
    return "```pycon\n" + inspect.cleandoc(block.group(0)) + "\n```\n"


# Array of an observation -> its columns, and what the names of their indices begin with.
COLUMNS = {
    "tools": (spaces.TOOL_COLUMNS, "TOOL_"),
    "task": (spaces.TASK_COLUMNS, "TASK_"),
    "tool_parts": (spaces.PART_COLUMNS, "PART_"),
    "law": (spaces.LAW_COLUMNS, "LAW_"),
}


class Columns(SphinxDirective):
    """Puts a table of the columns of an array where it stands, from the comments beside their indices."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Return the table."""
        names, prefix = COLUMNS[self.arguments[0]]
        source = inspect.getsource(spaces).split(f"# Columns of `{self.arguments[0]}`")[1]
        source = re.split(r"_COLUMNS = (?:tuple)?\(", source)[0]
        rows = []
        if self.arguments[0] == "task":
            rows = [f"| {index} | `{names[index]}` | {meaning} |" for index, meaning in enumerate(TASK_FEATURES)]
        for name, index, comment in re.findall(r"^([A-Z_]+) = (\d+)(?:  # (.*))?$", source, flags=re.MULTILINE):
            column = name.removeprefix(prefix).lower()
            if name.startswith(prefix) and column in names:
                rows.append(f"| {index} | `{column}` | {comment or column.replace('_', ' ')} |")
        return self.parse_text_to_nodes("\n".join(["| | column | meaning |", "|---|---|---|", *rows]))


class Names(SphinxDirective):
    """Puts a table of a module's public names where it stands: those of its content first, then the others."""

    required_arguments = 1
    has_content = True

    def run(self) -> list[nodes.Node]:
        """Return the table, each name with the first sentence of its docstring and a link to all of it."""
        module = importlib.import_module(self.arguments[0])
        first = [name for line in self.content for name in line.split()]
        if unknown := set(first) - set(module.__all__):
            raise self.error(f"{self.arguments[0]} has no public name {', '.join(sorted(unknown))}")
        rows = []
        for name in [*first, *(name for name in module.__all__ if name not in first)]:
            value = getattr(module, name)
            doc = inspect.getdoc(value) if callable(value) else None
            summary = re.split(r"(?<=[.:])\s", " ".join((doc or "").partition("\n\n")[0].split()))[0]
            rows.append(f"| {{py:obj}}`{name} <{_home(module, name)}.{name}>` | {summary.rstrip(':')} |")
        return self.parse_text_to_nodes("\n".join(["| name | |", "|---|---|", *rows]))


def _home(module: Any, name: str) -> str:
    """Return the package on whose page a public name is described: of those that export it not the whole of it all."""
    for page in sorted((Path(__file__).parents[1] / "reference/api").glob("resilisim.*.md")):
        package = importlib.import_module(page.stem)
        if name in package.__all__ and getattr(package, name) is getattr(module, name):
            return page.stem
    return str(module.__name__)


# What Python prints that no signature can hold, and what a reader wants to see there.
ANNOTATIONS = (
    (re.compile(r"(?:numpy\.)?ndarray\[tuple\[[^\]]*\], (?:numpy\.)?dtype\[[^\]]*\]\]"), "ndarray"),
    (re.compile(r"<(?:built-in )?function (?:[\w<>]+\.)*(\w+)(?: at \w+)?>"), r"\1"),
    (re.compile(r"<class '(?:\w+\.)*(\w+)'>"), r"\1"),
    (re.compile(r"<[^<>]+>"), "..."),
)


def readable_annotations(
    app: Sphinx, what: str, name: str, value: Any, options: Any, signature: str | None, returned: str | None
) -> tuple[str | None, str | None]:
    """Say of arrays and bounded numbers what they are, not how a type checker writes it; docstrings tell the shapes."""
    for pattern, words in ANNOTATIONS:
        signature, returned = (text and pattern.sub(words, text) for text in (signature, returned))
    signature, returned = _without_bounds(signature), _without_bounds(returned)
    try:
        compile(f"def shown{signature or '()'} -> {returned or None}: ...".replace("~", ""), name, "exec")
    except SyntaxError:  # the page would show it as it stands, with the module of every name
        logger.warning("the signature of %s cannot be read: %s -> %s", name, signature, returned)
    return signature, returned


def _without_bounds(text: str | None) -> str | None:
    """Return an annotation with the type alone of each `Annotated[type, ...]`."""
    while text and (found := re.search(r"~?(?:[\w.]+\.)?Annotated\[", text)):
        depth, first = 1, 0  # open brackets, and where the type ends
        for end in range(found.end(), len(text)):
            depth += {"[": 1, "(": 1, "]": -1, ")": -1}.get(text[end], 0)
            if text[end] == "," and depth == 1 and not first:
                first = end
            if not depth:
                break
        text = text[: found.start()] + text[found.end() : first or end] + text[end + 1 :]
    return text


def to_restructured_text(app: Sphinx, what: str, name: str, value: Any, options: Any, lines: list[str]) -> None:
    """Turn what reStructuredText writes otherwise: tables, headings, and lists that follow a line of text."""
    found: list[str] = []
    for line in lines:
        heading = re.fullmatch(r"#+ (.*)", line)
        row = re.fullmatch(r"\|(.*)\|", line.strip())
        if heading:
            found += [f"**{heading.group(1)}**", ""]
        elif row:
            cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", row.group(1))]
            if set("".join(cells)) <= set("-: "):
                continue
            if not found or not found[-1].startswith("     - "):
                found += ["", ".. list-table::", "   :header-rows: 1", ""]
            found += [f"   * - {cells[0]}", *(f"     - {cell}" for cell in cells[1:])]
        else:
            listed = re.match(r"[*-] ", line)
            if listed and found and found[-1].strip() and not re.match(r"[*-] |  ", found[-1]):
                found.append("")
            found.append(line)
    lines[:] = found


def draw_dashes(app: Sphinx, doctree: nodes.document, page: str) -> None:
    """Put a dash between an argument and what it is; elsewhere two hyphens begin an option."""
    for text in list(doctree.findall(nodes.Text)):
        if text == " -- ":
            text.parent.replace(text, nodes.Text(" – "))


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the directive, and what autodoc is to do with docstrings."""
    app.add_directive("docstring", Docstring)
    app.add_directive("columns", Columns)
    app.add_directive("names", Names)
    app.connect("autodoc-process-signature", readable_annotations)
    app.connect("autodoc-process-docstring", to_restructured_text, priority=100)
    app.connect("doctree-resolved", draw_dashes)
    return {"parallel_read_safe": True}
