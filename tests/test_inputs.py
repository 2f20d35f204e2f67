from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal

import gymnasium
import numpy as np
import pytest
from annotated_types import Ge, Gt, Le, MinLen
from pydantic import BaseModel, ConfigDict

from resilisim import bound, evaluate
from resilisim.envs.workflow.vector import WorkflowVectorEnv
from resilisim.errors import InvalidInputError, StoreError, nearest_name, unknown_name
from resilisim.inputs import expectation, read_json, read_text, validated
from resilisim.tasks.generation import generate_tasks

STRICT: Mapping[str, Any] = {"extra": "forbid"}


@dataclass(frozen=True, slots=True)
class Wheel:
    __pydantic_config__: ClassVar[Mapping[str, Any]] = STRICT

    name: Annotated[str, MinLen(1)]
    kind: Literal["spoked", "solid"] = "spoked"
    sizes: tuple[int, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        if self.name == "square":
            raise ValueError("a wheel is not square; expected a round one")


@dataclass(frozen=True, slots=True)
class Cart:
    __pydantic_config__: ClassVar[Mapping[str, Any]] = STRICT

    wheels: tuple[Wheel, ...]
    load: Annotated[float, Gt(0), Le(1)] | None = None
    axles: Annotated[int, Ge(1)] = 1
    label: str | list[str] = ""


class Model(BaseModel):
    model_config = ConfigDict(extra="forbid")

    count: int = 0


def test_json_values_become_the_dataclasses_that_they_describe():
    cart = validated(Cart, {"wheels": [{"name": "left", "sizes": [3]}], "load": 1, "axles": np.int64(2)}, "cart.json")
    assert cart == Cart((Wheel("left", sizes=(3,)),), 1.0, 2)
    assert validated(list[Wheel], ({"name": "left"},), "wheels") == [Wheel("left")]
    assert validated(Model, {"count": "3"}, "typed", strict=False) == Model(count=3)


@pytest.mark.parametrize(
    ("value", "line"),
    [
        (5, "c: got 5; expected an object with wheels, load, axles, label"),
        ({}, "c, field 'wheels': is missing; expected an array of objects"),
        ({"wheels": [{"nam": "a"}]}, "c, field 'wheels', item 1: unknown field 'nam': did you mean 'name'?"),
        ({"wheels": [], "zzz": 1}, "c: unknown field 'zzz': expected one of wheels, load, axles, label"),
        (
            {"wheels": [{"name": "a"}, {"name": "b", "kind": "solids"}]},
            "c, field 'wheels', item 2, field 'kind': got \"solids\"; did you mean 'solid'?",
        ),
        (
            {"wheels": [{"name": "a", "kind": 3}]},
            "c, field 'wheels', item 1, field 'kind': got 3; expected one of spoked, solid",
        ),
        ({"wheels": [{"name": ""}]}, "c, field 'wheels', item 1, field 'name': got \"\"; expected a non-empty string"),
        (
            {"wheels": [{"name": "a", "sizes": [1, "2"]}]},
            "c, field 'wheels', item 1, field 'sizes', item 2: got \"2\"; expected a whole number",
        ),
        ({"wheels": [], "load": True}, "c, field 'load': got true; expected a number above 0 and at most 1 or null"),
        ({"wheels": [], "load": 2}, "c, field 'load': got 2; expected a number above 0 and at most 1 or null"),
        ({"wheels": [], "axles": 0}, "c, field 'axles': got 0; expected a whole number, at least 1"),
        ({"wheels": [], "label": 3}, "c, field 'label': got 3; expected a string or an array of strings"),
        ({"wheels": [{"name": "square"}]}, "c, field 'wheels', item 1: a wheel is not square; expected a round one"),
        ({"wheels": {"a"}}, "c: not JSON: \"{'a'}\" has no form in JSON"),
        ({"wheels": [{"name": "a", "options": {"x": float("nan")}}]}, "c: not JSON: Out of range float values"),
    ],
)
def test_a_refusal_is_one_line_with_value_place_and_nearest_name(value, line):
    with pytest.raises(InvalidInputError) as caught:
        validated(Cart, value, "c")
    assert str(caught.value).startswith(line)
    assert "\n" not in str(caught.value)


def test_a_bound_reads_alike_as_whole_number_and_as_float():
    schema = {"type": "number", "exclusiveMinimum": 0.0, "maximum": 0.5}
    assert expectation(schema, schema) == "a number above 0 and at most 0.5"


def test_the_class_of_the_refusal_can_be_chosen():
    with pytest.raises(StoreError, match=r"^r, field 'count': got \"x\"; expected a whole number$"):
        validated(Model, {"count": "x"}, "r", error=StoreError)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "s: not valid JSON at column 2"),
        ('{\n"a": }', "s: not valid JSON at line 2, column 6"),
        ('{"a": 1, "a": 2}', "s: key 'a' stands twice in one JSON object"),
        ('{"a": NaN}', "s: NaN is not a finite number"),
        ('{"a": 1e999}', "s: 1e999 is not a finite number"),
        ('"\\ud800"', "s: JSON cannot be used: .* is not Unicode text"),
        ("[" * 70 + "]" * 70, "s: JSON cannot be used: nested too deeply"),
        ("[" * 100_000, "s: JSON cannot be used: nested too deeply"),
        ("1" * 400, "s: JSON cannot be used: a whole number of 400 digits"),
    ],
)
def test_json_that_cannot_be_used_is_refused_in_one_line(text, words):
    with pytest.raises(InvalidInputError, match=words):
        read_json(text, "s")


def test_files_that_cannot_be_read_are_refused_with_the_nearest_name(tmp_path):
    (tmp_path / "tools.json").write_bytes(b"\xef\xbb\xbf{}")
    (tmp_path / "bad.json").write_bytes(b"a\xff")
    for other in ("Makefile", "policy.json", "tools.csv"):
        (tmp_path / other).touch()
    assert read_text(tmp_path / "tools.json", "tool library") == "{}"
    for name, words in [
        ("tool.json", "does not exist; did you mean '.*tools.json'"),
        ("tools.jsn", "does not exist; did you mean '.*tools.json'"),
        ("another", "does not exist; expected the path of a JSON file"),
        ("nofile", "does not exist; expected the path of a JSON file"),  # half of Makefile
        ("price.json", "does not exist; expected the path of a JSON file"),  # alike in the ending alone
        ("bad.json", r"is not UTF-8 text \(byte 1\)"),
        ("", "cannot be read: is a directory"),
        ("\0", "cannot be read: embedded null byte"),
    ]:
        with pytest.raises(InvalidInputError, match=words):
            read_text(tmp_path / name, "tool library")


NAMES = ("file_operations_reader", "file_operations_writer", "data_processing_parser")


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("FILE_OPERATIONS_READER", "file_operations_reader"),
        ("file_operations_reeder", "file_operations_reader"),
        ("reader", "file_operations_reader"),
        ("Parser", "data_processing_parser"),
        ("data", "data_processing_parser"),
        ("file", None),  # two names have it
        ("read", None),  # no whole word
        ("", None),
        ("_", None),
        ("nonsense", None),
        ("operations.writer", "file_operations_writer"),  # words that stand together
    ],
)
def test_a_name_that_resembles_or_the_only_one_with_that_word(value: str, expected: str | None) -> None:
    assert nearest_name(value, NAMES) == expected


def test_a_long_value_is_compared_with_nothing_and_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[int] = []

    def note(value: str, names: list[str], **options: object) -> list[str]:
        compared.append(len(value) * sum(map(len, names)))
        return []

    monkeypatch.setattr(difflib, "get_close_matches", note)
    long = "file_operations_raeder" * 40_000
    assert nearest_name(long, NAMES) is None
    assert nearest_name("file_operations_raeder", [*NAMES, long]) is None  # names may be an agent's, too
    assert compared == [22 * 66]
    assert len(str(unknown_name("tool", long, NAMES))) < 500


HUGE = [10**12, 10**30, 10**5000]


@pytest.mark.parametrize("value", [*HUGE, -1, 0.5, "3.5", True, math.nan, None], ids=range(9))
@pytest.mark.parametrize(
    "use",
    [
        lambda value: evaluate("random", 1, seeds=value),
        lambda value: evaluate("random", 1, workers=value),
        lambda value: evaluate("random", value),
        lambda value: gymnasium.make("resilisim/Conversation-v0", max_turns=value),
        lambda value: gymnasium.make("resilisim/Conversation-v0", loop_length=value),
        lambda value: gymnasium.make("resilisim/Conversation-v0", base="x" if value in (0.5, True) else value),
        lambda value: WorkflowVectorEnv(num_envs=value),
        lambda value: bound(["file_operations_reader"], clairvoyant_seeds=value),
        lambda value: next(generate_tasks(count=value)),
    ],
    ids=range(9),
)
def test_numbers_that_nobody_means_are_refused_in_a_line(use: Callable[[object], object], value: object) -> None:
    with pytest.raises(InvalidInputError) as refused:
        use(value)
    assert len(str(refused.value)) < 300
    assert "\n" not in str(refused.value)
