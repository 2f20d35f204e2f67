"""The mode `rewrite`: a better description for a task whose tools, inputs and outputs stay as they are.

A description has to lead a search to every required tool in its turn, whoever wrote it (`check_order`).
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Sequence
from typing import Any

from resilisim.chat import ChatMessage
from resilisim.chat.checked_answers import RefusedAnswer, check_plain_text
from resilisim.tasks.enhancement.questions import fields_in, question
from resilisim.tasks.task import Task
from resilisim.tasks.wording import Searcher, solving_clauses
from resilisim.tool_library.differentiation import tools_named_in
from resilisim.tool_library.library import ToolLibrary
from resilisim.tool_library.tool import Tool

_SHORTEST_LIMIT = 1500  # characters that any description may have
LENGTH_FACTOR = 2  # times the original's length; a longer text says something else


class RewriteMode:
    """Asks for a better description and accepts one that needs the same tools in the same order."""

    name = "rewrite"

    def __init__(self, library: ToolLibrary, searcher: Searcher) -> None:
        self._library = library
        self._searcher = searcher

    def ask(self, task: Task) -> tuple[ChatMessage, ...]:
        """Return the question for a task."""
        steps = [purpose(self._library[name]) for name in task.required_tools]
        facts = {
            "description": task.description,
            "steps": "\n".join(f"{place}. {step}." for place, step in enumerate(steps, start=1)),
            "values": "\n".join(f"- {value}" for value in kept_values(task)) or "- (none)",
        }
        return question(self.name, {"limit": longest_description(task.description)}, facts)

    def read(self, task: Task, answer: str) -> Task:
        """Return the task with the description that an answer holds; raises `RefusedAnswer` where none can be used."""
        description = fields_in(answer, ("description",))["description"]
        check_text(description, task.description, self._library, kept_values(task))
        check_order(description, task.required_tools, self._library, self._searcher)
        return dataclasses.replace(task, description=description)


def kept_values(task: Task) -> tuple[str, ...]:
    """Return the values of a task's data that its description says and that a rewritten one has to say as well."""
    values = dict.fromkeys((*identifying_values(dict(task.inputs)), *identifying_values(dict(task.expected_outputs))))
    return tuple(value for value in values if value in task.description)


def longest_description(original: str) -> int:
    """Return how many characters a description may have that stands for another one."""
    return max(_SHORTEST_LIMIT, LENGTH_FACTOR * len(original))


def check_text(description: str, original: str, library: ToolLibrary, kept_values: Sequence[str]) -> None:
    """Refuse a description that cannot be used whatever it asks for, names a tool anew or lacks a kept value."""
    check_plain_text(description, "the description", longest_description(original))
    if " ".join(description.split()) == " ".join(original.split()):
        raise RefusedAnswer("unchanged", "the description is the same as before")
    for name in tools_named_in(description, library):
        if not re.search(rf"(?<!\w){re.escape(name)}(?!\w)", original, re.IGNORECASE):
            raise RefusedAnswer("names_tool", f"the description names the tool {name!r}; say what it does instead")
    for value in kept_values:
        if value.lower() not in description.lower():
            detail = f"the description lacks {value!r}, which has to stand in it unchanged"
            raise RefusedAnswer("lost_value", detail)


def check_order(description: str, required_tools: Sequence[str], library: ToolLibrary, searcher: Searcher) -> None:
    """Refuse a description that does not lead a search to each required tool in its turn."""
    if solving_clauses(description, required_tools, searcher) is not None:
        return
    beginnings = (required_tools[:count] for count in range(1, len(required_tools) + 1))
    unsolved = next(len(own) for own in beginnings if solving_clauses(description, own, searcher) is None)
    after = f" after the one for step {unsolved - 1}" if unsolved > 1 else ""
    task = purpose(library[required_tools[unsolved - 1]])
    raise RefusedAnswer(
        "not_solvable",
        f"no sentence{after} says clearly enough that step {unsolved} has to be done ({task}); each step needs a "
        "sentence or a line of its own, in the order of the steps",
    )


def identifying_values(value: Any) -> Iterator[str]:
    """Yield the texts in JSON values that mean one thing only: no spaces, and a digit or one of / @ : _ in them."""
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
