"""What a tool is: frozen plain data, one field for each row of the library's definition (seed 004, Table 11).

Mappings and JSON values inside these classes are read-only by agreement: they are annotated `Mapping` and are left out
of the hashes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from resilisim.errors import InvalidInputError
from resilisim.tool_library.semantics import semantic_type_of

VALUE_TYPES = ("string", "number", "integer", "boolean", "object", "array")
DEPENDENCY_ERROR = "DEPENDENCY_ERROR"


def _plain(value: Any) -> Any:
    """Return a copy made of JSON values only: dicts, lists, and scalars."""
    if dataclasses.is_dataclass(value):
        return {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return [_plain(item) for item in value]
    return value


@dataclass(frozen=True, slots=True)
class Parameter:
    """One input of a tool.

    Attributes:
        name: Name under which the value is given.
        type: One of `VALUE_TYPES`.
        description: What the value means.
        required: Whether a call in strict mode must give it.
        default: Value used when it is left out (None: there is none).
        constraints: Further JSON Schema keywords that a value must obey.
    """

    name: str
    type: str = "string"
    description: str = ""
    required: bool = True
    default: Any = field(default=None, hash=False)
    constraints: Mapping[str, Any] = field(default_factory=dict, hash=False)


@dataclass(frozen=True, slots=True)
class ReturnValue:
    """One value that a successful execution returns; `type` is one of `VALUE_TYPES`."""

    name: str
    type: str = "object"
    description: str = ""


@dataclass(frozen=True, slots=True)
class ErrorSpec:
    """One way in which a tool can fail.

    Attributes:
        code: Upper-case code.
        description: What the code means.
        template: Message with `{slot}` places.
        slots: For each place of the template, the texts that can stand there.
    """

    code: str
    description: str = ""
    template: str = ""
    slots: Mapping[str, tuple[str, ...]] = field(default_factory=dict, hash=False)

    def message(self, values: Mapping[str, str]) -> str:
        """Return the template with every slot replaced by its value.

        Args:
            values: One text for each name in `slots`.
        """
        text = self.template
        for name in self.slots:
            text = text.replace("{" + name + "}", values[name])
        return text


@dataclass(frozen=True, slots=True)
class DependencyMetadata:
    """Where a tool stands among the others of its library; computed by the library, never trusted from a file.

    Attributes:
        level: 0 without dependencies, else one more than the highest level among them.
        execution_order: Place in the library's reference order, which respects all dependencies.
        category: The tool's category.
    """

    level: int = 0
    execution_order: int = 0
    category: str = ""


@dataclass(frozen=True, slots=True)
class Differentiation:
    """What tells a tool from its neighbours."""

    unique_purpose: str = ""
    key_differentiators: tuple[str, ...] = ()
    usage_keywords: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Tool:
    """One tool; `name` and `description` suffice, a `ToolLibrary` fills in what follows from them.

    Attributes:
        name: Unique name.
        description: What the tool does, for a reader who chooses among many.
        parameters: Inputs, in the order in which they are shown.
        returns: Values of a successful execution.
        errors: Documented failures, `DEPENDENCY_ERROR` included.
        dependencies: Names of the tools that should have succeeded before this one.
        dependency_metadata: Level and order, computed by the library.
        metadata: At least category, operation, version, created_at, dependency_level, execution_order.
        canonical_name: The name that aliases resolve to; always equal to `name`.
        aliases: Other names for the tool.
        differentiation: What tells it from its neighbours, and the words people use for its work.
        original_description: The plain sentence that the description enlarges on.
        differentiation_enhanced: Whether a language model wrote the differentiation.
        success_probability: Base chance of success of one execution, in (0, 1]; None leaves it to the law.
    """

    name: str
    description: str
    parameters: tuple[Parameter, ...] = ()
    returns: tuple[ReturnValue, ...] = ()
    errors: tuple[ErrorSpec, ...] = ()
    dependencies: tuple[str, ...] = ()
    dependency_metadata: DependencyMetadata = DependencyMetadata()
    metadata: Mapping[str, Any] = field(default_factory=dict, hash=False)
    canonical_name: str = ""
    aliases: tuple[str, ...] = ()
    differentiation: Differentiation = Differentiation()
    original_description: str = ""
    differentiation_enhanced: bool = False
    success_probability: float | None = None

    def __post_init__(self) -> None:
        """Refuse a chance of success that is none."""
        if self.success_probability is not None and not 0.0 < self.success_probability <= 1.0:
            where = f"field 'success_probability' of tool {self.name!r}"
            raise InvalidInputError(f"{where}: got {self.success_probability!r}; expected above 0 and at most 1")

    @property
    def category(self) -> str:
        """The tool's category, from its metadata."""
        return str(self.metadata.get("category", ""))

    @property
    def operation(self) -> str:
        """The tool's operation, from its metadata."""
        return str(self.metadata.get("operation", ""))

    @property
    def semantic_type(self) -> str | None:
        """The semantic type of the tool's operation ("sources", "processors", ...), or None if it has none."""
        return semantic_type_of(self.operation)

    @property
    def failure_errors(self) -> tuple[ErrorSpec, ...]:
        """The documented errors that are not about dependencies: what an ordinary failure is drawn from."""
        return tuple(error for error in self.errors if error.code != DEPENDENCY_ERROR)

    def error(self, code: str) -> ErrorSpec | None:
        """Return the documented error of that code, or None."""
        return next((error for error in self.errors if error.code == code), None)

    def to_mapping(self) -> dict[str, Any]:
        """Return the tool as plain JSON values, one key for each field.

        `success_probability` stands there only if it is set.
        """
        mapping = {field.name: _plain(getattr(self, field.name)) for field in dataclasses.fields(self)}
        if self.success_probability is None:
            del mapping["success_probability"]
        return mapping
