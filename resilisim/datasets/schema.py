"""What a record of a dataset looks like: fixed columns with fixed types, the same for JSON Lines and for Parquet."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from resilisim.datasets.extras import require
from resilisim.errors import InvalidInputError, unknown_name

# "string", "int64", "float64" or "bool"; a list with the type of its items as its one member; or the fields of a
# struct with their types. Every value may be null. What has no fixed shape stands in a "string" as JSON text.
DataType: TypeAlias = "str | Sequence[DataType] | Mapping[str, DataType]"
Record: TypeAlias = dict[str, Any]

SCALAR_TYPES: Mapping[str, type] = {"string": str, "int64": int, "float64": float, "bool": bool}
INT64_LIMIT = 2**63
SHOWN_LENGTH = 60  # characters of a value in a message


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a schema.

    Attributes:
        name: Its name.
        type: Type of its values.
        description: What it means, in a sentence or two, for the dataset card.
    """

    name: str
    type: DataType
    description: str

    def __post_init__(self) -> None:
        """Refuse a type that is none.

        Raises:
            InvalidInputError: A scalar type is unknown, a list has not one item type, or a struct has no fields.
        """
        _check_type(self.type, f"column {self.name!r}")


@dataclass(frozen=True, slots=True)
class RecordSchema:
    """The columns of a kind of record.

    Attributes:
        name: Name and version, such as "resilisim-prompts-1".
        columns: In the order in which records hold them.
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
        columns = [
            {"name": column.name, "type": _plain_type(column.type), "description": column.description}
            for column in self.columns
        ]
        return {"name": self.name, "columns": columns}


def check_record(schema: RecordSchema, record: object) -> str | None:
    """Return what keeps a value from being a record of a schema, in one line, or None if nothing does.

    A record holds every column of the schema, null where it has no value, in the order of the schema; the same is true
    of structs inside. Integers are no floats and no booleans; NaN and infinities are nowhere, as JSON has neither.
    """
    return _problem(record, schema.struct, "")


def to_arrow(schema: RecordSchema) -> Any:
    """Return the schema as a `pyarrow.Schema`.

    Raises:
        MissingExtraError: pyarrow is not installed.
    """
    pyarrow = require("pyarrow")
    return pyarrow.schema([(column.name, _arrow_type(pyarrow, column.type)) for column in schema.columns])


def describe(schema: RecordSchema) -> str:
    """Return the schema as a Markdown table: column, type, meaning."""
    rows = [f"| `{column.name}` | {describe_type(column.type)} | {column.description} |" for column in schema.columns]
    return "\n".join(["| column | type | meaning |", "|---|---|---|", *rows])


def describe_type(data_type: DataType) -> str:
    """Return a type as people write it: `list of struct (role: string, content: string)`."""
    if isinstance(data_type, str):
        return data_type
    if isinstance(data_type, Mapping):
        return "struct (" + ", ".join(f"{name}: {describe_type(inner)}" for name, inner in data_type.items()) + ")"
    return f"list of {describe_type(data_type[0])}"


def _check_type(data_type: object, where: str) -> None:
    if isinstance(data_type, str):
        if data_type not in SCALAR_TYPES:
            raise unknown_name("type", data_type, SCALAR_TYPES, where)
        return
    if not isinstance(data_type, Sequence | Mapping) or len(data_type) < 1:
        raise InvalidInputError(f"{where}: got the type {data_type!r}, expected a name, [item type] or {{field: type}}")
    if isinstance(data_type, Mapping):
        for name, inner in data_type.items():
            _check_type(inner, f"{where}, field {name!r}")
        return
    if len(data_type) > 1:
        raise InvalidInputError(f"{where}: a list has one item type, got {len(data_type)}")
    _check_type(data_type[0], f"{where}, items")


def _problem(value: object, data_type: DataType, where: str) -> str | None:
    if isinstance(data_type, str):
        return _scalar_problem(value, data_type, where)
    if value is None and where:
        return None
    if isinstance(data_type, Mapping):
        if type(value) is not dict:
            return f"{_place(where)}: got {_shown(value)}, expected a mapping"
        if tuple(value) != tuple(data_type):
            return f"{_place(where)}: {_key_problem(tuple(value), tuple(data_type))}"
        inner = ((value[name], item, f"{where}.{name}" if where else name) for name, item in data_type.items())
    else:
        if type(value) is not list:
            return f"{_place(where)}: got {_shown(value)}, expected a list"
        inner = ((item, data_type[0], f"{where}[{index}]") for index, item in enumerate(value))
    for item, item_type, place in inner:
        problem = _problem(item, item_type, place)
        if problem is not None:
            return problem
    return None


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


def _key_problem(found: tuple[object, ...], expected: tuple[str, ...]) -> str:
    missing = [name for name in expected if name not in found]
    if missing:
        return f"{missing[0]!r} is missing"
    unknown = [name for name in found if name not in expected]
    if unknown:
        return f"{unknown[0]!r} is not in the schema"
    return f"got the order {', '.join(map(str, found))}, expected {', '.join(expected)}"


def _place(where: str) -> str:
    return where or "record"


def _shown(value: object) -> str:
    text = repr(value)
    text = text if len(text) <= SHOWN_LENGTH else text[: SHOWN_LENGTH - 3] + "..."
    return f"{text} ({type(value).__name__})"


def _plain_type(data_type: DataType) -> Any:
    if isinstance(data_type, str):
        return data_type
    if isinstance(data_type, Mapping):
        return {name: _plain_type(inner) for name, inner in data_type.items()}
    return [_plain_type(data_type[0])]


def _arrow_type(pyarrow: Any, data_type: DataType) -> Any:
    if isinstance(data_type, str):
        return {"string": pyarrow.string, "int64": pyarrow.int64, "float64": pyarrow.float64, "bool": pyarrow.bool_}[
            data_type
        ]()
    if isinstance(data_type, Mapping):
        return pyarrow.struct([(name, _arrow_type(pyarrow, inner)) for name, inner in data_type.items()])
    return pyarrow.list_(_arrow_type(pyarrow, data_type[0]))
