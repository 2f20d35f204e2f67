"""What a task is: frozen plain data with the fields of the seed's Table 8, and how one is made from a mapping."""

from __future__ import annotations

import copy
import heapq
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from resilisim.errors import InvalidInputError, unknown_name
from resilisim.inputs import json_problem, shown
from resilisim.provenance import canonical_json, content_hash
from resilisim.tasks.templates import TEMPLATES
from resilisim.tool_library.library import ToolLibrary

TASK_TYPES: tuple[str, ...] = tuple(template.task_type for template in TEMPLATES)
COMPLEXITIES = ("easy", "medium", "hard")
CUSTOM_TYPE = "custom"
MINIMUM_FOR_PARTIAL: Mapping[str, int] = {template.task_type: template.minimum_for_partial for template in TEMPLATES}
DEFAULT_CONSTRAINTS: Mapping[str, Any] = {"timeout": 300, "max_retries": 3}
MAX_NAME_LENGTH = 200  # characters of ids, types and the like, which stand in tables and records
MAX_TEXT_LENGTH = 100_000  # characters of a description, or of the JSON of one object; prompts hold both
ID_DIGITS = 16  # hexadecimal digits: among a million tasks, a chance of 3e-8 that any two share an id


@dataclass(frozen=True, slots=True)
class Task:
    """One task, with the fields of Table 8; mappings inside are read-only by agreement.

    Attributes:
        instance_id: "task_" and a hash of the content.
        task_type: One of `TASK_TYPES`, or any other text for tasks from elsewhere.
        description: What the agent is told.
        inputs: Input data, fit for the first required tool.
        expected_outputs: What the last required tool should return.
        required_tools: Names of the tools, in the order in which they have to succeed first.
        constraints: Shown to the agent, not enforced.
        complexity: "easy", "medium" or "hard".
        metadata: How the task was made.
        original_description: The description before any rewriting.
    """

    instance_id: str
    task_type: str
    description: str
    inputs: Mapping[str, Any] = field(hash=False)
    expected_outputs: Mapping[str, Any] = field(hash=False)
    required_tools: tuple[str, ...]
    constraints: Mapping[str, Any] = field(hash=False)
    complexity: str
    metadata: Mapping[str, Any] = field(hash=False)
    original_description: str

    def to_mapping(self) -> dict[str, Any]:
        """Return the task as plain JSON values of its own, keys in the order of Table 8."""
        mapping = {entry.name: copy.deepcopy(getattr(self, entry.name)) for entry in fields(self)}
        mapping["required_tools"] = list(self.required_tools)
        return mapping

    def to_json(self) -> str:
        """Return the task as one line of canonical JSON."""
        return canonical_json(self.to_mapping())

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any], library: ToolLibrary, where: str = "task") -> Task:
        """Check a task from anywhere and fill in what it leaves out; only `required_tools` is needed.

        Args:
            mapping: JSON values under names of Table 8.
            library: The library that the required tools belong to; aliases become names.
            where: What the task is called in messages, such as a file and a line.

        Raises:
            InvalidInputError: A field is unknown, missing, too long or of the wrong form, a tool is unknown or stands
                twice.

        Warns:
            UserWarning: If the required order contradicts the dependencies.
        """
        if not isinstance(mapping, Mapping):
            raise InvalidInputError(f"{where}: expected an object with the fields of a task, got {shown(mapping)}")
        for key, value in mapping.items():
            if key not in FIELD_NAMES:
                raise unknown_name("field", _short_name(key), FIELD_NAMES, where)
            problem = json_problem(value)
            if problem is not None:
                raise InvalidInputError(f"{where}, field {key!r}: {problem}")
        required_tools = _required_tools(mapping, library, where)
        _warn_of_contradicted_dependencies(required_tools, library, where)
        task_type = _text(mapping, "task_type", CUSTOM_TYPE, where)
        description = _text(mapping, "description", "", where, MAX_TEXT_LENGTH)
        original = _text(mapping, "original_description", "", where, MAX_TEXT_LENGTH)
        description = description or original or _plain_description(required_tools)
        original = original or description
        inputs = _object(mapping, "inputs", {}, where)
        expected_outputs = _object(mapping, "expected_outputs", {"success": True}, where)
        complexity = _text(mapping, "complexity", complexity_of(len(required_tools)), where)
        if complexity not in COMPLEXITIES:
            raise unknown_name("complexity", complexity, COMPLEXITIES, where)
        return cls(
            instance_id=_text(mapping, "instance_id", "", where)
            or instance_id_of(task_type, required_tools, inputs, expected_outputs, original),
            task_type=task_type,
            description=description,
            inputs=inputs,
            expected_outputs=expected_outputs,
            required_tools=required_tools,
            constraints=_object(mapping, "constraints", DEFAULT_CONSTRAINTS, where),
            complexity=complexity,
            metadata=_object(mapping, "metadata", {}, where),
            original_description=original,
        )

    @classmethod
    def from_trusted_mapping(cls, mapping: Mapping[str, Any]) -> Task:
        """Build a task from a mapping that `to_mapping` made and that becomes the task's own: nothing is checked."""
        return cls(**{**mapping, "required_tools": tuple(mapping["required_tools"])})


FIELD_NAMES: tuple[str, ...] = tuple(entry.name for entry in fields(Task))


def minimum_for_partial(task_type: str, num_required: int) -> int:
    """Return how many required tools must succeed for partial success: the type's number, else half, rounded up."""
    return MINIMUM_FOR_PARTIAL.get(task_type, (num_required + 1) // 2)


def complexity_of(num_tools: int) -> str:
    """Return the complexity that a task of so many tools has when nothing else is said."""
    if num_tools <= 3:
        return "easy"
    return "medium" if num_tools <= 5 else "hard"


def instance_id_of(
    task_type: str,
    required_tools: Sequence[str],
    inputs: Mapping[str, Any],
    expected_outputs: Mapping[str, Any],
    original_description: str,
) -> str:
    """Return the id that follows from a task's content; rewriting the description later does not change it."""
    digest = content_hash([task_type, list(required_tools), inputs, expected_outputs, original_description])
    return f"task_{digest[:ID_DIGITS]}"


def sorted_by_dependencies(names: Sequence[str], library: ToolLibrary) -> tuple[str, ...]:
    """Sort tools so that each follows those of the others that it depends on; ties keep the given order.

    Dependencies are those among the given tools, also where they lead through tools that are not given.
    """
    place = {name: index for index, name in enumerate(names)}
    waiting = {name: set(library.closure((name,))) & place.keys() - {name} for name in names}
    ready = [place[name] for name in names if not waiting[name]]
    heapq.heapify(ready)
    result: list[str] = []
    while ready:
        done = names[heapq.heappop(ready)]
        result.append(done)
        for name in names:
            if done in waiting[name]:
                waiting[name].discard(done)
                if not waiting[name]:
                    heapq.heappush(ready, place[name])
    return tuple(result)


def _required_tools(mapping: Mapping[str, Any], library: ToolLibrary, where: str) -> tuple[str, ...]:
    given = mapping.get("required_tools")
    place = f"{where}, field 'required_tools'"
    if isinstance(given, str) or not isinstance(given, Sequence) or not given:
        raise InvalidInputError(f"{place}: got {shown(given)}, expected a list of at least one tool name")
    names: list[str] = []
    for value in given:
        name = library.resolve(value) if isinstance(value, str) else None
        if name is None:
            raise unknown_name("tool", _short_name(value), library.names, place)
        if name in names:
            raise InvalidInputError(f"{place}: tool {name!r} stands twice; each required tool is listed once")
        names.append(name)
    return tuple(names)


def _warn_of_contradicted_dependencies(names: Sequence[str], library: ToolLibrary, where: str) -> None:
    for index, name in enumerate(names):
        later = [other for other in names[index + 1 :] if other in library.closure((name,))]
        if later:
            text = (
                f"{where}: {name!r} is required before {later[0]!r}, on which it depends; full success gets less likely"
            )
            warnings.warn(text, UserWarning, stacklevel=4)
            return


def _plain_description(required_tools: Sequence[str]) -> str:
    return "Run the following tools in this order.\n" + "\n".join(f"- {name}" for name in required_tools)


def _short_name(value: object) -> object:
    """Return a name for a message: itself, or its beginning if it is too long to be one."""
    short = isinstance(value, str) and len(value) <= MAX_NAME_LENGTH
    return value if short or isinstance(value, int) else shown(value)


def _text(mapping: Mapping[str, Any], name: str, default: str, where: str, max_length: int = MAX_NAME_LENGTH) -> str:
    value = mapping.get(name)
    if value is None:
        return default
    if not isinstance(value, str):
        raise InvalidInputError(f"{where}, field {name!r}: got {shown(value)}, expected a text")
    _check_length(len(value), max_length, name, where)
    return value or default


def _check_length(length: int, most: int, name: str, where: str) -> None:
    if length > most:
        raise InvalidInputError(f"{where}, field {name!r}: {length:,} characters, expected at most {most:,}")


def _object(mapping: Mapping[str, Any], name: str, default: Mapping[str, Any], where: str) -> dict[str, Any]:
    value = mapping.get(name)
    if value is None:
        return dict(default)
    if not isinstance(value, Mapping):
        raise InvalidInputError(f"{where}, field {name!r}: got {shown(value)}, expected an object")
    try:
        text = canonical_json(value)
    except (TypeError, ValueError) as error:
        raise InvalidInputError(f"{where}, field {name!r}: not JSON: {error}") from None
    _check_length(len(text), MAX_TEXT_LENGTH, name, where)
    return copy.deepcopy(dict(value))
