"""What a task is: frozen plain data with the fields of the seed's Table 8, and its five types."""

from __future__ import annotations

import copy
import json
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from importlib import resources
from typing import Annotated, Any, Literal, get_args

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from resilisim.errors import InvalidInputError, unknown_name
from resilisim.inputs import json_problem, shown, validated
from resilisim.provenance import canonical_json, content_hash
from resilisim.tool_library.library import ToolLibrary

Complexity = Literal["easy", "medium", "hard"]
COMPLEXITIES: tuple[Complexity, ...] = get_args(Complexity)
CUSTOM_TYPE = "custom"
DEFAULT_CONSTRAINTS: Mapping[str, Any] = {"timeout": 300, "max_retries": 3}
MAX_NAME_LENGTH = 200  # characters of ids, types and the like, which stand in tables and records
MAX_TEXT_LENGTH = 100_000  # characters of a description, or of the JSON of one object; prompts hold both
ID_PREFIX = "task_"  # of ids that follow from a task's content
ID_DIGITS = 16  # hexadecimal digits: among a million tasks, a chance of 3e-8 that any two share an id


@dataclass(frozen=True, slots=True)
class SkeletonStep:
    """One operation of a template's skeleton: the role that a tool for it should have, and what retrieval is asked."""

    operation: str
    semantic_type: str
    query: str


@dataclass(frozen=True, slots=True)
class TaskTemplate:
    """One type of task.

    `share` is its number of tasks among 5,040, `selection` the rule by which their tools are drawn, `matched_steps` the
    steps that this rule finds tools for by meaning, `steps` the operations that the type is about, `num_tools` how
    often each number of tools is drawn (any scale), and `minimum_for_partial` how many required tools must succeed
    before a failure counts as partial success.
    """

    task_type: str
    complexity: Complexity
    share: int
    selection: Literal["matched", "random", "category", "paths"]
    matched_steps: tuple[SkeletonStep, ...]
    steps: tuple[SkeletonStep, ...]
    num_tools: Mapping[int, float]
    minimum_for_partial: int


def _packaged_templates() -> Iterator[TaskTemplate]:
    data = json.loads(resources.files("resilisim.tasks").joinpath("data/templates.json").read_text(encoding="utf-8"))
    steps = {operation: SkeletonStep(operation, **values) for operation, values in data["steps"].items()}
    for values in data["templates"]:
        of_steps = {key: tuple(steps[operation] for operation in values[key]) for key in ("matched_steps", "steps")}
        num_tools = {int(number): weight for number, weight in values["num_tools"].items()}
        yield TaskTemplate(**{**values, **of_steps, "num_tools": num_tools})


TEMPLATES: tuple[TaskTemplate, ...] = tuple(_packaged_templates())
TEMPLATE_OF_TYPE: Mapping[str, TaskTemplate] = {template.task_type: template for template in TEMPLATES}
TASKS_OF_TYPES: tuple[int, ...] = tuple(template.share for template in TEMPLATES)
TASK_TYPES: tuple[str, ...] = tuple(TEMPLATE_OF_TYPE)
MINIMUM_FOR_PARTIAL: Mapping[str, int] = {template.task_type: template.minimum_for_partial for template in TEMPLATES}


def quotas(count: int, weights: Sequence[int] = TASKS_OF_TYPES) -> tuple[int, ...]:
    """Divide `count` places in proportion to the weights, by largest remainder (ties go to the earlier one)."""
    total = sum(weights)
    result = [count * weight // total for weight in weights]
    by_remainder = sorted(range(len(weights)), key=lambda place: (-(count * weights[place] % total), place))
    for place in by_remainder[: count - sum(result)]:
        result[place] += 1
    return tuple(result)


@dataclass(frozen=True, slots=True)
class Task:
    """One task, with the fields of Table 8; mappings inside are read-only by agreement.

    Attributes:
        instance_id: `task_` and a hash of the content.
        task_type: One of `TASK_TYPES`, or any other text for tasks from elsewhere.
        description: What the agent is told.
        inputs: Input data, fit for the first required tool.
        expected_outputs: What the last required tool should return.
        required_tools: Names of the tools, in the order in which they have to succeed first.
        constraints: Shown to the agent, not enforced.
        complexity: "easy", "medium" or "hard".
        metadata: How the task was made.
        original_description: The description before any rewriting.

    Example:
        >>> from resilisim.tasks import benchmark_tasks
        >>> benchmark_tasks()[0].task_type
        'complex_validation_pipeline'
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
        mapping = {entry.name: getattr(self, entry.name) for entry in fields(self)}
        return canonical_json({**mapping, "required_tools": list(self.required_tools)})

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

        Example:
            >>> from resilisim.tool_library import default_library
            >>> Task.from_mapping({"required_tools": ["file_operations_reader"]}, default_library()).complexity
            'easy'
        """
        if isinstance(mapping, Mapping):
            for key, value in mapping.items():
                if key in FIELD_NAMES and (problem := json_problem(value)) is not None:
                    raise InvalidInputError(f"{where}, field {key!r}: {problem}")
        fields = validated(_GivenTask, mapping, where)
        required_tools = _resolved(fields.required_tools, library, f"{where}, field 'required_tools'")
        _warn_of_contradicted_dependencies(required_tools, library, where)
        task_type = fields.task_type or CUSTOM_TYPE
        description = fields.description or fields.original_description or _plain_description(required_tools)
        original = fields.original_description or description
        inputs = {} if fields.inputs is None else fields.inputs
        expected_outputs = {"success": True} if fields.expected_outputs is None else fields.expected_outputs
        return cls(
            instance_id=fields.instance_id
            or instance_id_of(task_type, required_tools, inputs, expected_outputs, original),
            task_type=task_type,
            description=description,
            inputs=inputs,
            expected_outputs=expected_outputs,
            required_tools=required_tools,
            constraints=dict(DEFAULT_CONSTRAINTS) if fields.constraints is None else fields.constraints,
            complexity=fields.complexity or complexity_of(len(required_tools)),
            metadata=fields.metadata or {},
            original_description=original,
        )

    @classmethod
    def from_trusted_mapping(cls, mapping: Mapping[str, Any]) -> Task:
        """Build a task from a mapping that `to_mapping` made and that becomes the task's own: nothing is checked."""
        return cls(**{**mapping, "required_tools": tuple(mapping["required_tools"])})


FIELD_NAMES: tuple[str, ...] = tuple(entry.name for entry in fields(Task))


def _not_too_long(value: dict[str, Any]) -> dict[str, Any]:
    length = len(canonical_json(value))
    if length > MAX_TEXT_LENGTH:
        raise InvalidInputError(f"{length:,} characters of JSON; expected at most {MAX_TEXT_LENGTH:,}")
    return value


_Name = Annotated[str, Field(max_length=MAX_NAME_LENGTH)] | None
_Text = Annotated[str, Field(max_length=MAX_TEXT_LENGTH)] | None
_Object = Annotated[dict[str, Any], AfterValidator(_not_too_long)] | None


class _GivenTask(BaseModel):
    """A task as somebody wrote it: what is null or empty is left out."""

    model_config = ConfigDict(extra="forbid")

    instance_id: _Name = None
    task_type: _Name = None
    description: _Text = None
    inputs: _Object = None
    expected_outputs: _Object = None
    required_tools: Annotated[list[str], Field(min_length=1)]
    constraints: _Object = None
    complexity: Complexity | None = None
    metadata: _Object = None
    original_description: _Text = None


def minimum_for_partial(task_type: str, num_required: int) -> int:
    """Return how many required tools must succeed for partial success: the type's number, else half, rounded up."""
    return MINIMUM_FOR_PARTIAL.get(task_type, (num_required + 1) // 2)


def complexity_of(num_tools: int) -> str:
    """Return the complexity that a task of so many tools has when nothing else is said."""
    return "easy" if num_tools <= 3 else "medium" if num_tools <= 5 else "hard"


def instance_id_of(
    task_type: str,
    required_tools: Sequence[str],
    inputs: Mapping[str, Any],
    expected_outputs: Mapping[str, Any],
    original_description: str,
) -> str:
    """Return the id that follows from a task's content; rewriting the description later does not change it."""
    digest = content_hash([task_type, list(required_tools), inputs, expected_outputs, original_description])
    return f"{ID_PREFIX}{digest[:ID_DIGITS]}"


def sorted_by_dependencies(names: Sequence[str], library: ToolLibrary) -> tuple[str, ...]:
    """Sort tools so that each follows those that it depends on, also indirectly; ties keep the given order."""
    waiting = {name: set(library.closure((name,))) & set(names) - {name} for name in names}
    result: list[str] = []
    while waiting:
        ready = next(name for name, needed in waiting.items() if needed <= set(result))
        result.append(ready)
        del waiting[ready]
    return tuple(result)


def _resolved(references: Sequence[str], library: ToolLibrary, place: str) -> tuple[str, ...]:
    """Return the names that names and aliases mean."""
    names: list[str] = []
    for text in references:
        name = library.resolve(text)
        if name is None:
            raise unknown_name("tool", text if len(text) <= MAX_NAME_LENGTH else shown(text), library.names, place)
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
