"""What a record of a dataset looks like: fixed columns with fixed types, the same for JSON Lines and for Parquet."""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import resources
from typing import Any, Protocol, TypeAlias

from markupsafe import Markup

from resilisim.errors import InvalidInputError, import_extra, unknown_name
from resilisim.tables.markdown import markdown_lines
from resilisim.tables.table import Cell, Table
from resilisim.tasks.task import Task
from resilisim.tool_library.library import ToolLibrary

# "string", "int64", "float64" or "bool"; "json" for JSON values of no fixed shape, which readers get as they are,
# without the nulls of a struct (Parquet holds their text); a list with the type of its items as its one member; or the
# fields of a struct with their types. Every value may be null.
DataType: TypeAlias = "str | Sequence[DataType] | Mapping[str, DataType]"
Record: TypeAlias = dict[str, Any]

SCALAR_TYPES: Mapping[str, type] = {"string": str, "int64": int, "float64": float, "bool": bool}
_NAMES_OF_TYPES = {python_type: name for name, python_type in SCALAR_TYPES.items()}
JSON_TYPE = "json"
MAX_JSON_DEPTH = 100  # of a value of this type; parsers of others stop somewhere, too
INT64_LIMIT = 2**63
SHOWN_LENGTH = 60  # characters of a value in a message


def import_parquet(module: str = "pyarrow.parquet") -> Any:
    """Import a module of pyarrow, or say which extra brings it."""
    return import_extra(module, "Parquet needs", "datasets")


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a schema: its name, the type of its values, and a sentence on what it means for the card.

    Raises:
        InvalidInputError: A scalar type is unknown, a list has not one item type, or a struct has no fields.

    Example:
        >>> from resilisim.datasets import Column
        >>> Column("tools", ["string"], "Tools that were called.").type
        ['string']
    """

    name: str
    type: DataType
    description: str

    def __post_init__(self) -> None:
        """Refuse a type that is none."""
        _check_type(self.type, f"column {self.name!r}")


@dataclass(frozen=True, slots=True)
class RecordSchema:
    """The columns of a kind of record, in the order in which records hold them.

    The name has a version, such as "resilisim-prompts-1".

    Example:
        >>> from resilisim.datasets import Column, RecordSchema
        >>> schema = RecordSchema("lengths-1", (Column("length", "int64", "Number of words."),))
        >>> schema.struct
        {'length': 'int64'}
    """

    name: str
    columns: tuple[Column, ...]

    def __post_init__(self) -> None:
        """Refuse a schema without columns, or with two of one name."""
        names = [column.name for column in self.columns]
        if not names or len(set(names)) < len(names):
            raise InvalidInputError(
                f"schema {self.name!r}: got columns {names}, expected at least one, names different"
            )

    @property
    def struct(self) -> dict[str, DataType]:
        """The type of a whole record: name and type of each column."""
        return {column.name: column.type for column in self.columns}

    def to_mapping(self) -> dict[str, Any]:
        """Return the schema as JSON values, for a dataset's manifest."""
        return {"name": self.name, "columns": [asdict(column) for column in self.columns]}


@functools.cache
def _shipped() -> dict[str, Any]:
    text = resources.files("resilisim.datasets").joinpath("schemas.json").read_text(encoding="utf-8")
    shipped: dict[str, Any] = json.loads(text)
    return shipped


def shipped_columns(kind: str) -> tuple[Column, ...]:
    """Return the columns that `schemas.json` lists for a kind of record or table: name, type, meaning."""
    return tuple(Column(*column) for column in _shipped()[kind])


def shipped_values(column: str) -> dict[str, str]:
    """Return the values of a column, each with its meaning."""
    return dict(_shipped()["values"][column])


def check_record(schema: RecordSchema, record: object) -> str | None:
    """Return what keeps a value from being a record of a schema, in one line, or None if nothing does.

    A record holds every column of the schema, null where it has no value, in the order of the schema; the same is true
    of structs inside. Integers are no floats and no booleans; NaN and infinities are nowhere, as JSON has neither.
    """
    return _problem(record, schema.struct, "")


def to_arrow(schema: RecordSchema, json_name: str = "json_") -> Any:
    """Return the schema as a `pyarrow.Schema`.

    Args:
        schema: The schema.
        json_name: What pyarrow calls the type of JSON values; "string" gives the schema of what is stored.

    Raises:
        MissingExtraError: pyarrow is not installed.
    """
    pyarrow = import_parquet("pyarrow")
    return pyarrow.schema([(column.name, _arrow_type(pyarrow, column.type, json_name)) for column in schema.columns])


def convert_json(value: Any, data_type: DataType, convert: Callable[[Any], Any]) -> Any:
    """Return a value with the parts of it that are of the type "json" converted; what needs no change is not copied."""
    if value is None or not _holds_json(data_type):
        return value
    if isinstance(data_type, str):
        return convert(value)
    if isinstance(data_type, Mapping):
        return {name: convert_json(value[name], inner, convert) for name, inner in data_type.items()}
    return [convert_json(item, data_type[0], convert) for item in value]


def describe(schema: RecordSchema) -> str:
    """Return the schema as a Markdown table: column, type, meaning."""
    rows = [
        (Cell(column.name, style="code"), Markup(describe_type(column.type)), Markup(column.description))
        for column in schema.columns
    ]
    return "\n".join(markdown_lines(Table("", ("column", "type", "meaning"), rows, text_columns=3)))


def describe_type(data_type: DataType) -> str:
    """Return a type as people write it: `list of struct (role: string, content: string)`."""
    if isinstance(data_type, str):
        return data_type
    if isinstance(data_type, Mapping):
        return "struct (" + ", ".join(f"{name}: {describe_type(inner)}" for name, inner in data_type.items()) + ")"
    return f"list of {describe_type(data_type[0])}"


def _check_type(data_type: object, where: str) -> None:
    if isinstance(data_type, str):
        if data_type != JSON_TYPE and data_type not in SCALAR_TYPES:
            raise unknown_name("type", data_type, (*SCALAR_TYPES, JSON_TYPE), where)
    elif not isinstance(data_type, Sequence | Mapping) or not data_type:
        raise InvalidInputError(f"{where}: got the type {data_type!r}, expected a name, [item type] or {{field: type}}")
    elif isinstance(data_type, Mapping):
        for name, inner in data_type.items():
            _check_type(inner, f"{where}, field {name!r}")
    elif len(data_type) > 1:
        raise InvalidInputError(f"{where}: a list has one item type, got {len(data_type)}")
    else:
        _check_type(data_type[0], f"{where}, items")


def _problem(value: object, data_type: DataType, where: str) -> str | None:
    if data_type == JSON_TYPE:
        return json_problem(value, where)
    if isinstance(data_type, str):
        return _scalar_problem(value, data_type, where)
    if value is None and where:
        return None
    place = where or "record"
    if isinstance(data_type, Mapping):
        if type(value) is not dict:
            return f"{place}: got {_shown(value)}, expected a mapping"
        if tuple(value) != tuple(data_type):
            return f"{place}: {_key_problem(tuple(value), tuple(data_type))}"
        inner = ((value[name], item, f"{where}.{name}" if where else name) for name, item in data_type.items())
    else:
        if type(value) is not list:
            return f"{place}: got {_shown(value)}, expected a list"
        inner = ((item, data_type[0], f"{where}[{index}]") for index, item in enumerate(value))
    return next(filter(None, (_problem(*part) for part in inner)), None)


def _scalar_problem(value: object, name: str, where: str) -> str | None:
    if value is None:
        return None
    # The exact type: a bool would pass as an int, and a NumPy number as a float that JSON writes differently.
    if type(value) is not SCALAR_TYPES[name]:
        return f"{where}: got {_shown(value)}, expected {name} or null"
    if isinstance(value, float) and not math.isfinite(value):
        return f"{where}: got {value}, expected a finite number or null"
    if name == "int64" and isinstance(value, int) and not -INT64_LIMIT <= value < INT64_LIMIT:
        return f"{where}: got {_shown(value)}, expected a number of 64 bits"
    return None


def json_problem(value: object, where: str, depth: int = MAX_JSON_DEPTH) -> str | None:
    """Return what keeps a value, called `where`, from being one of the type "json", or None if nothing does."""
    if depth == 0:
        return f"{where}: nested too deeply, expected at most {MAX_JSON_DEPTH} levels"
    if type(value) is dict:
        wrong = next((key for key in value if type(key) is not str), None)
        if wrong is not None:
            return f"{where}: got the key {_shown(wrong)}, expected a string"
        parts = ((f"{where}.{key}", item) for key, item in value.items())
    elif type(value) is list:
        parts = ((f"{where}[{index}]", item) for index, item in enumerate(value))
    elif value is None or type(value) in _NAMES_OF_TYPES:
        return None if value is None else _scalar_problem(value, _NAMES_OF_TYPES[type(value)], where)
    else:
        return f"{where}: got {_shown(value)}, expected a JSON value"
    return next(filter(None, (json_problem(item, place, depth - 1) for place, item in parts)), None)


def _holds_json(data_type: DataType) -> bool:
    if isinstance(data_type, str):
        return data_type == JSON_TYPE
    return any(map(_holds_json, data_type.values() if isinstance(data_type, Mapping) else data_type))


def _key_problem(key: tuple[object, ...], expected: tuple[str, ...]) -> str:
    missing = [name for name in expected if name not in key]
    unknown = [name for name in key if name not in expected]
    if missing:
        return f"{missing[0]!r} is missing"
    if unknown:
        return f"{unknown[0]!r} is not in the schema"
    return f"got the order {', '.join(map(str, key))}, expected {', '.join(expected)}"


def _shown(value: object) -> str:
    text = repr(value)
    text = text if len(text) <= SHOWN_LENGTH else text[: SHOWN_LENGTH - 3] + "..."
    return f"{text} ({type(value).__name__})"


def _arrow_type(pyarrow: Any, data_type: DataType, json_name: str) -> Any:
    if isinstance(data_type, str):
        return getattr(pyarrow, {"bool": "bool_", JSON_TYPE: json_name}.get(data_type, data_type))()
    if isinstance(data_type, Mapping):
        return pyarrow.struct([(name, _arrow_type(pyarrow, inner, json_name)) for name, inner in data_type.items()])
    return pyarrow.list_(_arrow_type(pyarrow, data_type[0], json_name))


class RecordSource(Protocol):
    """Makes the records of one task after the other.

    A record is a function of the spec, the library and the task alone, never of tasks that came before: shards are made
    by different processes, in any order, and a run that goes on must write what an unbroken one would have written.

    Example:
        >>> from resilisim.datasets import Column, RecordSchema
        >>> class DescriptionSource:
        ...     schema = RecordSchema("descriptions-1", (Column("text", "string", "What the task says."),))
        ...
        ...     def records(self, task):
        ...         yield {"text": task.description}
    """

    @property
    def schema(self) -> RecordSchema:
        """What each record holds."""
        ...

    def records(self, task: Task) -> Iterator[Record]:
        """Yield the records of a task, in an order of their own that never changes."""
        ...


class SourceSpec(Protocol):
    """Everything that decides the records, as a frozen dataclass that can be pickled: it travels to other processes.

    Example:
        >>> from dataclasses import dataclass
        >>> from typing import ClassVar
        >>> @dataclass(frozen=True)
        ... class DescriptionSpec:
        ...     kind: ClassVar[str] = "descriptions"
        ...
        ...     def arguments(self):
        ...         return {}
        ...
        ...     def make(self, library):
        ...         return DescriptionSource()  # the example of `RecordSource`
    """

    @property
    def kind(self) -> str:
        """The kind of dataset, one word: "prompts", "conversations", "preferences"."""
        ...

    def arguments(self) -> dict[str, Any]:
        """Return what decides the records, as JSON values for the manifest; other values mean another dataset."""
        ...

    def make(self, library: ToolLibrary) -> RecordSource:
        """Return the source; slow preparation belongs here, it is done once in each process."""
        ...
