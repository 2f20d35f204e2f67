"""The mode `rewrite`: a better description for a task whose tools, inputs and outputs stay as they are."""

from __future__ import annotations

import dataclasses

from resilisim.chat import ChatMessage
from resilisim.chat.json_answers import json_object_in
from resilisim.tasks.enhancement.outcomes import Refusal
from resilisim.tasks.enhancement.prompting import question
from resilisim.tasks.enhancement.text_checks import (
    identifying_values,
    longest_description,
    order_problem,
    purpose,
    text_problem,
    tidied,
)
from resilisim.tasks.types import Task
from resilisim.tasks.wording import Searcher
from resilisim.tool_library.library import ToolLibrary


class RewriteMode:
    """Asks for a better description and accepts one that needs the same tools in the same order.

    Args:
        library: The tools of the tasks.
        searcher: Retrieval over them; only reading answers searches.
    """

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

    def read(self, task: Task, answer: str) -> Task | Refusal:
        """Return the task with the description that an answer holds, or why it cannot be used."""
        found = json_object_in(answer, ("description",))
        if isinstance(found, str):
            return Refusal("not_json", found)
        description = found["description"]
        if not isinstance(description, str):
            return Refusal("wrong_fields", "'description' is no text")
        description = tidied(description)
        problem = text_problem(description, task.description, self._library, kept_values(task))
        problem = problem or order_problem(description, task.required_tools, self._library, self._searcher)
        return problem or dataclasses.replace(task, description=description)


def kept_values(task: Task) -> tuple[str, ...]:
    """Return the values of a task's data that its description says and that a rewritten one has to say as well."""
    values = dict.fromkeys((*identifying_values(dict(task.inputs)), *identifying_values(dict(task.expected_outputs))))
    return tuple(value for value in values if value in task.description)
