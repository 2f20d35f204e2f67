"""What a tool is: frozen plain data, one field for each row of the library's definition (seed 004, Table 11).

Mappings and JSON values inside these classes are read-only by agreement: they are annotated `Mapping` and are left out
of the hashes. From JSON they are made by `resilisim.inputs.validated`, which also runs the validators named here.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from importlib import resources
from typing import Annotated, Any, ClassVar, TypeVar

from annotated_types import Gt, Le
from pydantic import AfterValidator, PlainValidator

from resilisim.errors import InvalidInputError, nearest_name, unknown_name
from resilisim.inputs import shown
from resilisim.tool_library.names import checked_code, checked_name

T = TypeVar("T")

VALUE_TYPES = ("string", "number", "integer", "boolean", "object", "array")
DEPENDENCY_ERROR = "DEPENDENCY_ERROR"
DEFAULT_CATEGORY = "general"

# Operations by their role in a workflow (seed 004, section C.1.1). An alias of an operation has the role of that
# operation: combiner and merger stand for aggregator, exporter for writer or converter.
SEMANTIC_TYPES: Mapping[str, tuple[str, ...]] = {
    "sources": ("reader", "fetcher", "scanner", "authenticator"),
    "processors": ("parser", "transformer", "validator", "analyzer", "calculator"),
    "aggregators": ("aggregator", "combiner", "merger"),
    "outputs": ("writer", "poster", "exporter", "notifier"),
    "utilities": ("logger", "cache", "tracker", "monitor"),
}
OUTPUT_OPERATIONS: frozenset[str] = frozenset(SEMANTIC_TYPES["outputs"])
COMMON_ERROR_CODES = ("INVALID_INPUT", "OPERATION_FAILED", "TIMEOUT")
CATEGORY_ERROR_CODES: Mapping[str, tuple[str, ...]] = {
    "file_operations": ("FILE_NOT_FOUND", "PERMISSION_DENIED"),
    "network": ("NETWORK_ERROR", "RATE_LIMIT_ERROR"),
    "computation": ("CALCULATION_ERROR", "OVERFLOW"),
    "integration": ("AUTHENTICATION_FAILED",),
}

_STRICT: Mapping[str, str] = {"extra": "forbid"}
_BETWEEN_WORDS = "_.-/: "  # of a tool's name
_SLOT_PATTERN = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)\}")
_TYPE_OF_OPERATION = {operation: role for role, operations in SEMANTIC_TYPES.items() for operation in operations}
_RANK_OF_TYPE = {role: rank for rank, role in enumerate(SEMANTIC_TYPES)}


def semantic_rank(operation: str) -> int:
    """Return the place of an operation's semantic type in the usual flow of data; operations without one come last."""
    return _RANK_OF_TYPE.get(_TYPE_OF_OPERATION.get(operation, ""), len(_RANK_OF_TYPE))


def name_parts(name: str) -> tuple[str, str]:
    """Return the category and the operation that a tool's name suggests: all but its last word, and its last word."""
    stem = name.rstrip(_BETWEEN_WORDS) or name
    cut = max(stem.rfind(separator) for separator in _BETWEEN_WORDS)
    return stem[: max(cut, 0)].rstrip(_BETWEEN_WORDS) or DEFAULT_CATEGORY, stem[cut + 1 :] or stem


def _telling(text: str) -> str:
    if not text.strip():
        raise InvalidInputError("is empty; expected a text that says something")
    return text


def _value_type(text: str) -> str:
    if text not in VALUE_TYPES:
        raise unknown_name("type", text, VALUE_TYPES)
    return text


def _distinct(key: str) -> Callable[[tuple[T, ...]], tuple[T, ...]]:
    def check(items: tuple[T, ...]) -> tuple[T, ...]:
        names = [getattr(item, key) for item in items]
        for place, name in enumerate(names):
            if name in names[:place]:
                raise InvalidInputError(f"{name!r} stands there twice; expected each name once")
        return items

    return check


def _with_named_category(metadata: Mapping[str, Any]) -> Mapping[str, Any]:
    for name in ("category", "operation"):
        if name in metadata and not (isinstance(metadata[name], str) and metadata[name]):
            raise InvalidInputError(f"{name!r} is {shown(metadata[name])}; expected a non-empty string")
    return metadata


def _of_the_library(value: Any) -> DependencyMetadata:
    """Take any object: its values follow from the dependencies, and the library computes them."""
    if not isinstance(value, Mapping):
        raise InvalidInputError(f"got {shown(value)}; expected an object")
    return DependencyMetadata()


Name = Annotated[str, AfterValidator(checked_name)]
Code = Annotated[str, AfterValidator(checked_code)]
TellingText = Annotated[str, AfterValidator(_telling)]
ValueType = Annotated[str, AfterValidator(_value_type)]


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

    Example:
        >>> from resilisim.tool_library import Parameter
        >>> Parameter("retries", "integer", required=False, default=3, constraints={"minimum": 0}).default
        3
    """

    __pydantic_config__: ClassVar[Mapping[str, str]] = _STRICT

    name: TellingText
    type: ValueType = "string"
    description: str = ""
    required: bool = True
    default: Any = field(default=None, hash=False)
    constraints: Mapping[str, Any] = field(default_factory=dict, hash=False)


@dataclass(frozen=True, slots=True)
class ReturnValue:
    """One value that a successful execution returns; `type` is one of `VALUE_TYPES`.

    Example:
        >>> from resilisim.tool_library import ReturnValue
        >>> ReturnValue("row_count", "integer", "Rows that were read.").type
        'integer'
    """

    __pydantic_config__: ClassVar[Mapping[str, str]] = _STRICT

    name: TellingText
    type: ValueType = "object"
    description: str = ""


# What a tool returns of which nothing else is known.
DEFAULT_RETURNS = (
    ReturnValue("success", "boolean", "Whether the operation succeeded."),
    ReturnValue("metadata", "object", "Facts about the execution, such as its duration."),
)


@dataclass(frozen=True, slots=True)
class ErrorSpec:
    """One way in which a tool can fail.

    Attributes:
        code: Upper-case code.
        description: What the code means.
        template: Message with `{slot}` places.
        slots: For each place of the template, the texts that can stand there.

    Example:
        >>> from resilisim.tool_library import ErrorSpec
        >>> error = ErrorSpec("NO_PAPER", template="Tray {tray} is empty.", slots={"tray": ("1", "2")})
        >>> error.message({"tray": "2"})
        'Tray 2 is empty.'
    """

    __pydantic_config__: ClassVar[Mapping[str, str]] = _STRICT

    code: Code
    description: str = ""
    template: str = ""
    slots: Mapping[str, tuple[str, ...]] = field(default_factory=dict, hash=False)

    def message(self, values: Mapping[str, str]) -> str:
        """Return the template with every slot replaced by its value."""
        text = self.template
        for name in self.slots:
            text = text.replace("{" + name + "}", values[name])
        return text


def _with_filled_slots(error: ErrorSpec) -> ErrorSpec:
    """Check that template and slots of an error belong together."""
    for slot, options in error.slots.items():
        if not options or not _SLOT_PATTERN.fullmatch("{" + slot + "}"):
            expected = "names with non-empty arrays of strings"
            raise InvalidInputError(f"field 'slots': {slot!r} has {shown(options)}; expected {expected}")
        if "{" + slot + "}" not in error.template:
            problem = f"{slot!r} does not occur in the template {shown(error.template)}"
            raise InvalidInputError(f"field 'slots': {problem}; expected '{{{slot}}}' in it")
    for place in _SLOT_PATTERN.findall(error.template):
        if place not in error.slots:
            near = nearest_name(place, error.slots)
            meant = f" (did you mean {near!r}?)" if near else ""
            problem = f"slot {place!r} has no values"
            raise InvalidInputError(f"field 'template': {problem}; expected field 'slots' to give it{meant}")
    return error


def _with_last_resort(errors: tuple[ErrorSpec, ...]) -> tuple[ErrorSpec, ...]:
    """Return errors with DEPENDENCY_ERROR, the simulator's own, which is always the last resort and always there."""
    codes = [error.code for error in errors]
    if not set(codes) - {DEPENDENCY_ERROR}:
        problem = f"has no error besides {DEPENDENCY_ERROR}"
        raise InvalidInputError(f"{problem}; expected at least one, such as OPERATION_FAILED")
    return errors if DEPENDENCY_ERROR in codes else (*errors, standard_error_specs()[DEPENDENCY_ERROR])


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

    __pydantic_config__: ClassVar[Mapping[str, str]] = _STRICT

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
        equivalents: Names of the tools that can stand in for it in a required list, under a law that breaks tools and
            names no equivalents itself.
        input_schema: JSON Schema of an object, which calls have to fit; the library then makes `parameters` of it. None
            leaves it to them.
        output_schema: JSON Schema of what it answers; the library then makes `returns` of it.
        annotations: What its owner says of it, as MCP has it: readOnlyHint, destructiveHint, idempotentHint, title. No
            draw depends on that.

    Example:
        >>> from resilisim.tool_library import Tool
        >>> Tool("billing_exporter", "Exports invoices.", dependencies=("billing_reader",)).dependencies
        ('billing_reader',)
    """

    __pydantic_config__: ClassVar[Mapping[str, str]] = _STRICT

    name: Name
    description: TellingText
    parameters: Annotated[tuple[Parameter, ...], AfterValidator(_distinct("name"))] = ()
    returns: Annotated[tuple[ReturnValue, ...], AfterValidator(_distinct("name"))] = ()
    errors: Annotated[
        tuple[Annotated[ErrorSpec, AfterValidator(_with_filled_slots)], ...],
        AfterValidator(_distinct("code")),
        AfterValidator(_with_last_resort),
    ] = ()
    dependencies: tuple[str, ...] = ()
    dependency_metadata: Annotated[DependencyMetadata, PlainValidator(_of_the_library)] = DependencyMetadata()
    metadata: Annotated[Mapping[str, Any], AfterValidator(_with_named_category)] = field(
        default_factory=dict, hash=False
    )
    canonical_name: str = ""
    aliases: tuple[Name, ...] = ()
    differentiation: Differentiation = Differentiation()
    original_description: str = ""
    differentiation_enhanced: bool = False
    success_probability: Annotated[float, Gt(0), Le(1)] | None = None
    equivalents: tuple[str, ...] = ()
    input_schema: Mapping[str, Any] | None = field(default=None, hash=False)
    output_schema: Mapping[str, Any] | None = field(default=None, hash=False)
    annotations: Mapping[str, Any] = field(default_factory=dict, hash=False)

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
        return _TYPE_OF_OPERATION.get(self.operation)

    @property
    def failure_errors(self) -> tuple[ErrorSpec, ...]:
        """The documented errors that are not about dependencies: what an ordinary failure is drawn from."""
        return tuple(error for error in self.errors if error.code != DEPENDENCY_ERROR)

    def error(self, code: str) -> ErrorSpec | None:
        """Return the documented error of that code, or None."""
        return next((error for error in self.errors if error.code == code), None)

    def to_mapping(self) -> dict[str, Any]:
        """Return the tool as plain JSON values, one key for each field.

        Fields from `success_probability` on stand there only if they are set; schemas stand in place of what the
        library makes of them.
        """
        mapping = {entry.name: _plain(getattr(self, entry.name)) for entry in dataclasses.fields(self)}
        for name in ("success_probability", "equivalents", "input_schema", "output_schema", "annotations"):
            if mapping[name] in (None, [], {}):
                del mapping[name]
        for schema, made_of_it in (("input_schema", "parameters"), ("output_schema", "returns")):
            if schema in mapping:
                del mapping[made_of_it]
        return mapping


def _plain(value: Any) -> Any:
    """Return a copy made of JSON values only: dicts, lists, and scalars."""
    if dataclasses.is_dataclass(value):
        return {entry.name: _plain(getattr(value, entry.name)) for entry in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return [_plain(item) for item in value]
    return value


@lru_cache(maxsize=1)
def standard_error_specs() -> Mapping[str, ErrorSpec]:
    """Return the well-known failures by code; they ship as data, with the texts that their slots can hold."""
    text = resources.files("resilisim.tool_library").joinpath("data/errors.json").read_text(encoding="utf-8")
    return {
        code: ErrorSpec(
            code,
            entry["description"],
            entry["template"],
            {name: tuple(texts) for name, texts in entry["slots"].items()},
        )
        for code, entry in json.loads(text).items()
    }


def standard_errors(category: str) -> tuple[ErrorSpec, ...]:
    """Return the errors documented on every tool of a category; an unknown category has the common ones."""
    codes = (*COMMON_ERROR_CODES, *CATEGORY_ERROR_CODES.get(category, ()), DEPENDENCY_ERROR)
    return tuple(standard_error_specs()[code] for code in codes)
