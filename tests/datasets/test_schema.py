"""Schemas: what fits them, what is said of what does not, and what becomes of them in Arrow."""

import pyarrow
import pytest
from hypothesis import given
from hypothesis import strategies as st

from resilisim.datasets.schema import Column, RecordSchema, check_record, describe, describe_type, to_arrow
from resilisim.errors import InvalidInputError, MissingExtraError
from tests.datasets.toy_source import TOY_SCHEMA, toy_record

scalars = st.sampled_from(["string", "int64", "float64", "bool"])
types = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, min_size=1, max_size=1)
        | st.dictionaries(st.text("abc", min_size=1, max_size=2), inner, min_size=1, max_size=3)
    ),
    max_leaves=6,
)


def values_of(data_type):
    if isinstance(data_type, dict):
        inside = st.tuples(*[values_of(inner) for inner in data_type.values()])
        fitting = inside.map(lambda values: dict(zip(data_type, values, strict=True)))
    elif isinstance(data_type, list):
        fitting = st.lists(values_of(data_type[0]), max_size=3)
    else:
        fitting = {
            "string": st.text(),
            "int64": st.integers(-(2**63), 2**63 - 1),
            "float64": st.floats(allow_nan=False, allow_infinity=False),
            "bool": st.booleans(),
        }[data_type]
    return st.none() | fitting


@given(st.data())
def test_what_fits_a_schema_comes_back_from_arrow_as_it_was(data):
    schema = RecordSchema("any", tuple(Column(name, data.draw(types), "") for name in ("first", "second")))
    record = {column.name: data.draw(values_of(column.type)) for column in schema.columns}
    assert check_record(schema, record) is None
    assert pyarrow.Table.from_pylist([record], to_arrow(schema)).to_pylist() == [record]


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"number": 1.0}, "number: got 1.0 (float), expected int64 or null"),
        ({"number": True}, "number: got True (bool), expected int64 or null"),
        ({"number": 2**63}, "number: got 9223372036854775808 (int), expected a number of 64 bits"),
        ({"on": 1}, "on: got 1 (int), expected float64 or null"),
        ({"on": float("nan")}, "on: got nan, expected a finite number or null"),
        ({"is_even": 1}, "is_even: got 1 (int), expected bool or null"),
        ({"names": ("a",)}, "names: got ('a',) (tuple), expected a list"),
        ({"names": ["a", 2]}, "names[1]: got 2 (int), expected string or null"),
        ({"detail": {"method": "m"}}, "detail: 'edits' is missing"),
        ({"detail": []}, "detail: got [] (list), expected a mapping"),
        ({"detail": {"method": "m", "edits": [{"what": "", "before": "", "places": [""]}]}}, "edits[0].places[0]"),
        ({"detail": {"edits": None, "method": None}}, "detail: got the order edits, method, expected method, edits"),
        ({"more": 1}, "record: 'more' is not in the schema"),
        ({"never": "x" * 1000}, None),
        ({"never": b"x" * 1000}, "never: got b'xxxx"),
    ],
)
def test_what_does_not_fit_is_named_in_one_line(change, problem):
    found = check_record(TOY_SCHEMA, {**toy_record("task_1", 0, 0), **change})
    assert (found is None) == (problem is None)
    if found is not None:
        assert problem in found
        assert "\n" not in found
        assert len(found) < 150


def test_a_record_is_a_mapping_with_every_column_in_order():
    record = toy_record("task_1", 0, 0)
    assert check_record(TOY_SCHEMA, None) == "record: got None (NoneType), expected a mapping"
    assert check_record(TOY_SCHEMA, [record]) is not None
    assert check_record(TOY_SCHEMA, dict(reversed(record.items()))).startswith("record: got the order table, ")
    del record["never"]
    assert check_record(TOY_SCHEMA, record) == "record: 'never' is missing"


@pytest.mark.parametrize(
    ("data_type", "problem"),
    [
        ("sting", "did you mean 'string'"),
        ([], "expected a name"),
        ({}, "expected a name"),
        (["string", "string"], "one item type, got 2"),
        ({"a": ["text"]}, "field 'a', items"),
        (None, "expected a name"),
    ],
)
def test_a_type_that_is_none_is_refused(data_type, problem):
    with pytest.raises(InvalidInputError, match="column 'c'") as refusal:
        Column("c", data_type, "")
    assert problem in str(refusal.value)


def test_a_schema_has_columns_of_different_names():
    with pytest.raises(InvalidInputError, match="at least one"):
        RecordSchema("none", ())
    with pytest.raises(InvalidInputError, match="names different"):
        RecordSchema("twins", (Column("a", "string", ""), Column("a", "bool", "")))


def test_a_schema_describes_itself():
    schema = RecordSchema(
        "s-1", (Column("a", ["string"], "Names."), Column("b", {"c": "bool", "d": [["int64"]]}, "B."))
    )
    assert describe(schema) == (
        "| column | type | meaning |\n| --- | --- | --- |\n"
        "| `a` | list of string | Names. |\n"
        "| `b` | struct (c: bool, d: list of list of int64) | B. |"
    )
    assert describe_type({"c": "float64"}) == "struct (c: float64)"
    assert schema.to_mapping() == {
        "name": "s-1",
        "columns": [
            {"name": "a", "type": ["string"], "description": "Names."},
            {"name": "b", "type": {"c": "bool", "d": [["int64"]]}, "description": "B."},
        ],
    }


def test_without_pyarrow_the_extra_is_named(monkeypatch):
    def missing(name):
        raise ImportError(f"No module named {name!r}")

    monkeypatch.setattr("importlib.import_module", missing)
    with pytest.raises(MissingExtraError, match=r"pip install -c constraints.txt '\.\[datasets\]'"):
        to_arrow(TOY_SCHEMA)
