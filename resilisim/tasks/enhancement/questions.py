"""What a model is asked about a task, and the form of its answer: packaged Markdown texts, and a JSON object.

The texts have `${placeholders}`. An answer that cannot be used is refused, with one word of `TASK_REFUSALS`.
"""

from __future__ import annotations

import functools
import string
from collections.abc import Mapping
from importlib import resources
from typing import Any

from resilisim.chat import ChatMessage
from resilisim.chat.checked_answers import CORRECTION, RefusedAnswer
from resilisim.chat.json_answers import json_object_in
from resilisim.inputs import json_problem
from resilisim.provenance import canonical_json, content_hash

# Why an answer was refused; results count them by these words.
TASK_REFUSALS = (
    "cut_off",  # the model reached its limit of tokens
    "not_json",  # no answer, no JSON object, or one without the fields that were asked for
    "wrong_fields",  # a field of the wrong type
    "too_long",
    "not_text",  # control characters, halves of characters
    "markup",  # tags, which could pass for the protocol's
    "names_tool",  # a tool's name stands in the description, so that nothing is left to be found
    "unchanged",
    "lost_value",  # a path, an address or a number of the task's data no longer stands in the description
    "not_solvable",  # retrieval does not find a required tool by the description, or not in the required order
    "unknown_tool",
    "wrong_number_of_tools",
    "wrong_steps",  # the tools do not carry out the steps of such a task
    "wrong_inputs",
    "wrong_outputs",
    "duplicate",  # the same task was designed before
)
# What an answer may hold: of each field its type, and what a refusal calls that.
ANSWER_FIELDS: Mapping[str, tuple[type, str]] = {
    "description": (str, "text"),
    "tools": (list, "list of names"),
    "inputs": (dict, "object"),
    "expected_outputs": (dict, "object"),
}
LONGEST_DATA = 20_000  # characters of the JSON of inputs, and of expected outputs


@functools.cache
def template(name: str) -> str:
    """Return a packaged template."""
    folder = resources.files("resilisim.tasks.enhancement").joinpath("templates")
    return folder.joinpath(name).read_text(encoding="utf-8")


def filled(name: str, values: Mapping[str, object]) -> str:
    """Return a template with its placeholders replaced; what stands in the values is not looked at again."""
    return string.Template(template(name)).substitute(values).strip()


def question(mode: str, rules: Mapping[str, object], facts: Mapping[str, object]) -> tuple[ChatMessage, ...]:
    """Return the first messages of a conversation: the rules of a mode, then the facts of one task."""
    return (
        ChatMessage("system", filled(f"{mode}.system.md", rules)),
        ChatMessage("user", filled(f"{mode}.user.md", facts)),
    )


def templates_hash(mode: str) -> str:
    """Return the hash of the texts of a mode: other texts are other questions."""
    return content_hash([*(template(f"{mode}.{part}.md") for part in ("system", "user")), CORRECTION.template])


def fields_in(answer: str, names: tuple[str, ...]) -> dict[str, Any]:
    """Return these fields of an answer's JSON object, each of its type, the description as it will stand."""
    fields = json_object_in(answer, names)
    if isinstance(fields, str):
        raise RefusedAnswer("not_json", fields)
    for field in names:
        value, (kind, name) = fields[field], ANSWER_FIELDS[field]
        is_named = kind is not list or not isinstance(value, list) or all(isinstance(item, str) for item in value)
        if not (isinstance(value, kind) and is_named):
            raise RefusedAnswer("wrong_fields", f"{field!r} is no {name}")
        problem = json_problem(value) if kind is dict else None
        if kind is dict and problem is None and len(canonical_json(value)) > LONGEST_DATA:
            problem = f"more than {LONGEST_DATA:,} characters"
        if problem is not None:
            raise RefusedAnswer("wrong_fields", f"{field!r} cannot be used: {problem}")
    description = fields["description"].replace("\r\n", "\n").replace("\r", "\n").strip()
    return {**fields, "description": description}
