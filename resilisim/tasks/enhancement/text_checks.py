"""Whether a description that a model wrote can stand in a task: what it may not hold, and what it must lead to."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from resilisim.inputs import json_problem
from resilisim.tasks.enhancement.outcomes import Refusal
from resilisim.tasks.wording import Searcher, solving_clauses
from resilisim.tool_library.library import ToolLibrary
from resilisim.tool_library.model import Tool

SHORTEST_LIMIT = 1500  # characters that any description may have
LENGTH_FACTOR = 2  # times the original's length; a longer text says something else

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029]")  # all but tabs and line ends
_TAG = re.compile(r"</?\s*[A-Za-z_][\w:.-]*(?:\s[^<>]*)?/?>|<\s*/?\s*(?:tool_|finish|think|mcp_)|<!\[CDATA\[|<!--")
_PLAIN_WORD = re.compile(r"[^\W\d_]+")


def longest_description(original: str) -> int:
    """Return how many characters a description may have that stands for another one."""
    return max(SHORTEST_LIMIT, LENGTH_FACTOR * len(original))


def tidied(description: str) -> str:
    """Return a description with line ends as they are everywhere else, and no space around it."""
    return description.replace("\r\n", "\n").replace("\r", "\n").strip()


def text_problem(description: str, original: str, library: ToolLibrary, kept_values: Sequence[str]) -> Refusal | None:
    """Say why a description cannot be used whatever it asks for, or return None.

    Args:
        description: What the model wrote, tidied.
        original: The description in whose place it is to stand; tool names that it says may be said again.
        library: Names and aliases of its tools may not stand in the text.
        kept_values: Texts that must stand in it.
    """
    if not description:
        return Refusal("not_json", "the description is empty")
    limit = longest_description(original)
    if len(description) > limit:
        return Refusal("too_long", f"the description has {len(description)} characters; expected at most {limit}")
    problem = json_problem(description)
    if problem is not None or _CONTROL.search(description):
        return Refusal("not_text", f"the description is no plain text: {problem or 'it holds control characters'}")
    tag = _TAG.search(description)
    if tag is not None:
        return Refusal("markup", f"the description holds markup ({tag.group()[:40]!r}); expected plain text")
    if " ".join(description.split()) == " ".join(original.split()):
        return Refusal("unchanged", "the description is the same as before")
    for name in _names(library):
        if _says(description, name) and not _says(original, name):
            return Refusal("names_tool", f"the description names the tool {name!r}; say what it does instead")
    for value in kept_values:
        if value.lower() not in description.lower():
            return Refusal("lost_value", f"the description lacks {value!r}, which has to stand in it unchanged")
    return None


def order_problem(
    description: str, required_tools: Sequence[str], library: ToolLibrary, searcher: Searcher
) -> Refusal | None:
    """Say for which required tool a description does not lead a search to it in its turn, or return None."""
    if solving_clauses(description, required_tools, searcher) is not None:
        return None
    place = next(
        count
        for count in range(1, len(required_tools) + 1)
        if solving_clauses(description, required_tools[:count], searcher) is None
    )
    after = f" after the one for step {place - 1}" if place > 1 else ""
    task = purpose(library[required_tools[place - 1]])
    return Refusal(
        "not_solvable",
        f"no sentence{after} says clearly enough that step {place} has to be done ({task}); each step needs a sentence "
        "or a line of its own, in the order of the steps",
    )


def identifying_values(value: Any) -> Iterator[str]:
    """Yield the texts at any depth of JSON values that mean one thing only: paths, addresses, numbers of orders.

    They are the ones without spaces that hold a digit or one of / @ : _; words of prose may be inflected.
    """
    if isinstance(value, str):
        if value and not any(c.isspace() for c in value) and any(c.isdigit() or c in "/@:_" for c in value):
            yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from identifying_values(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from identifying_values(item)


def purpose(tool: Tool) -> str:
    """Return in one sentence what a tool does."""
    return " ".join((tool.original_description or tool.description).split()).rstrip(".")


def _names(library: ToolLibrary) -> list[str]:
    """Return the names that nobody writes without meaning the tool: those that are more than a plain word."""
    names = [name for tool in library for name in (tool.name, *tool.aliases)]
    return [name for name in names if not _PLAIN_WORD.fullmatch(name)]


def _says(text: str, name: str) -> bool:
    return re.search(rf"(?<![\w]){re.escape(name)}(?![\w])", text, re.IGNORECASE) is not None
