"""What a call's arguments are kept as: a text that may be cut, and a digest that follows all of them."""

from __future__ import annotations

import asyncio
import collections
import dataclasses
import datetime
import decimal
import enum
import functools
import inspect
import threading
import uuid
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from resilisim import InjectedFailure, inject
from resilisim.injection.call_arguments import CUT, LONGEST_ARGUMENTS, CallArguments, digest_of


class Query:
    def __init__(self, text: str, **more: Any) -> None:
        self.text = text
        self.__dict__.update(more)


class Slotted:
    __slots__ = ("left", "right")

    def __init__(self, left: object, right: object) -> None:
        self.left, self.right = left, right


@dataclasses.dataclass
class Order:
    item: object
    number: int = 1


class Parcel(pydantic.BaseModel):
    to: str
    size: int = 1
    labels: dict[str, Any] = {}


class Point(NamedTuple):
    x: int
    y: int


class Color(enum.Enum):
    RED = 1
    BLUE = 2


def adder(amount: int) -> Any:
    return lambda number: number + amount


LONG = "lamp " * 400
MOMENT = datetime.datetime(2026, 1, 2, 3, tzinfo=datetime.UTC)


@pytest.mark.parametrize(
    ("value", "equal", "other"),
    [
        (LONG + "a", LONG + "a", LONG + "b"),
        (LONG.encode() + b"a", bytearray(LONG.encode() + b"a"), LONG.encode() + b"b"),
        (Query("a"), Query("a"), Query("b")),
        (Query("a", deep=Query("b")), Query("a", deep=Query("b")), Query("a", deep=Query("c"))),
        (Slotted(1, [2]), Slotted(1, [2]), Slotted(1, [3])),
        (Order("lamp"), Order("lamp", 1), Order("lamp", 2)),
        (Order(Query("a")), Order(Query("a")), Order(Query("b"))),
        (Parcel(to="a"), Parcel(to="a", size=1), Parcel(to="a", size=2)),
        (Parcel(to="a", labels={"x": 1, "y": 2}), Parcel(to="a", labels={"y": 2, "x": 1}), Parcel(to="a")),
        (Point(1, 2), Point(1, 2), Point(2, 1)),
        (Color.RED, Color.RED, Color.BLUE),
        (np.arange(2000.0), np.arange(2000.0), np.arange(2000.0) + np.eye(1, 2000, 1000)[0]),
        (np.zeros((2, 3)), np.zeros((2, 3)), np.zeros((3, 2))),
        (np.array([Query("a"), 1], dtype=object), np.array([Query("a"), 1], dtype=object), np.array([1, 1], object)),
        (np.float32(0.5), 0.5, 0.25),
        ({"a": 1, "b": {"c": [1], "d": 2}}, {"b": {"d": 2, "c": [1]}, "a": 1}, {"a": 1, "b": {"c": [2], "d": 2}}),
        ({"a", "b", ("c", 1)}, {("c", 1), "b", "a"}, {"a", "b", ("c", 2)}),
        ([1, (2, 3)], [1, [2, 3]], [1, [3, 2]]),
        (collections.OrderedDict(a=1, b=2), {"b": 2, "a": 1}, {"a": 2, "b": 1}),
        (collections.deque([1, 2]), collections.deque([1, 2]), collections.deque([2, 1])),
        (MOMENT, MOMENT + datetime.timedelta(0), MOMENT + datetime.timedelta(seconds=1)),
        (decimal.Decimal("1.10"), decimal.Decimal("1.10"), decimal.Decimal("1.11")),
        (uuid.UUID(int=5), uuid.UUID(int=5), uuid.UUID(int=6)),
        (Path("a/b"), Path("a") / "b", Path("a")),
        (ValueError("a"), ValueError("a"), ValueError("b")),
        (functools.partial(max, 1), functools.partial(max, 1), functools.partial(min, 1)),
        (adder(1), adder(1), adder(2)),
        (Query("a").__eq__, Query("a").__eq__, Query("b").__eq__),
        (10**400, 10**400, 10**400 + 1),
        (float("nan"), float("nan"), 0.0),
        ("\ud800", "\ud800", "\ud801"),
        (1, 1, "1"),
        (b"a", b"a", "a"),
        ([], [], {}),
        ([None], [None], []),
        (["a", "b"], ["a", "b"], ["ab"]),
    ],
)
def test_equal_content_is_the_same_input_and_any_other_is_not(value: object, equal: object, other: object) -> None:
    assert digest_of(value) == digest_of(equal)
    assert digest_of([value]) == digest_of([equal])
    assert digest_of(value) != digest_of(other)
    assert digest_of({"x": [value]}) != digest_of({"x": [other]})


@pytest.mark.parametrize("make", [threading.Lock, object, lambda: (n for n in ())])
def test_what_tells_nothing_of_itself_is_the_same_as_long_as_it_is_the_same_object(make: Any) -> None:
    value, other = make(), make()
    assert digest_of(value) == digest_of(value) != digest_of(other)
    before = digest_of(value)
    seen = set()
    for _ in range(50):  # new ones where old ones lay in memory
        seen.add(digest_of(make()))
    assert len(seen) == 50
    assert digest_of(value) == before


def test_objects_that_break_when_they_are_asked_are_told_apart_by_identity() -> None:
    class Hostile:
        def __reduce_ex__(self, protocol: object) -> Any:
            raise RuntimeError("no")

        def __repr__(self) -> str:
            raise RuntimeError("no")

    one, other = Hostile(), Hostile()
    assert digest_of([one]) == digest_of([one]) != digest_of([other])
    assert CallArguments.of((one,)).shown == "<Hostile>"


def test_rings_and_depths_have_a_digest() -> None:
    ring: list[Any] = [1]
    ring.append({"ring": ring})
    other: list[Any] = [1]
    other.append({"ring": other})
    assert digest_of(ring) == digest_of(other)
    deep, deeper = [], [0]
    for _ in range(5_000):
        deep, deeper = [deep], [deeper]
    assert digest_of(deep) != digest_of(deeper)
    doubled: list[Any] = []
    for _ in range(200):  # 2^200 ways to the end
        doubled = [doubled, doubled]
    assert digest_of(doubled) == digest_of([doubled[0], list(doubled[0])])


def test_how_an_argument_is_given_does_not_matter() -> None:
    def function(a: int, b: int = 2, *rest: int, c: int = 3, **more: int) -> None: ...

    signature = inspect.signature(function)
    same = [((1,), {}), ((1, 2), {}), ((), {"a": 1}), ((), {"b": 2, "a": 1, "c": 3})]
    assert len({CallArguments.of(args, kwargs, signature).digest for args, kwargs in same}) == 1
    others = [((1, 3), {}), ((1, 2, 4), {}), ((1,), {"d": 4}), ((), {"b": 2})]
    assert len({CallArguments.of(args, kwargs, signature).digest for args, kwargs in [*same, *others]}) == 5


def test_a_text_that_is_cut_says_so() -> None:
    assert CallArguments.of((1,), {"b": "x"}).shown == "1, b='x'"
    for args in (("y" * 495,), ("y" * 499,), ("y" * 9999,), tuple(range(999))):
        shown = CallArguments.of(args).shown
        whole = ", ".join(map(repr, args))
        assert len(shown) <= LONGEST_ARGUMENTS
        assert shown == whole or (shown.endswith(CUT) and whole.startswith(shown.removesuffix(CUT)))
        assert (shown == whole) == (len(whole) <= LONGEST_ARGUMENTS)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(VALUES, VALUES, st.randoms())
def test_digests_follow_content_alone(value: Any, other: Any, random: Any) -> None:
    def copied(each: Any) -> Any:
        if isinstance(each, dict):
            items = [(key, copied(item)) for key, item in each.items()]
            random.shuffle(items)
            return dict(items)
        return [copied(item) for item in each] if isinstance(each, list) else each

    def told(each: Any) -> str:
        if isinstance(each, dict):
            return "{" + ",".join(sorted(repr(key) + told(item) for key, item in each.items())) + "}"
        return "[" + ",".join(map(told, each)) + "]" if isinstance(each, list) else repr(each)

    assert digest_of(value) == digest_of(copied(value))
    assert (digest_of(value) == digest_of(other)) == (told(value) == told(other))


def search(query: object, *, filters: object = None) -> str:
    return "found"


async def search_later(query: object, *, filters: object = None) -> str:
    return "found"


INPUT_ERRORS = {"base": 0.5, "history": 1.0, "error_kinds": {"transient": 0.0, "input": 1.0, "access": 0.0}}


@pytest.mark.parametrize("function", [search, search_later])
def test_a_refused_input_is_refused_again_and_another_one_is_drawn_however_long_both_are(function: Any) -> None:
    def passes(*args: Any, **kwargs: Any) -> bool:
        try:
            answer = tools[0](*args, **kwargs)
            return bool(asyncio.run(answer) if function is search_later else answer)
        except InjectedFailure as failure:
            return failure.code != "INVALID_INPUT"

    tools = inject([function], law=INPUT_ERRORS, seed=4)
    refused = next(n for n in range(40) if not passes(Query(LONG, number=n), filters={"a": n, "b": 1}))
    for _ in range(10):
        assert not passes(Query(LONG, number=refused), filters={"b": 1, "a": refused})
        assert not passes(query=Query(LONG, number=refused), filters={"b": 1, "a": refused})
    assert sum(passes(Query(LONG, number=1000 + n), filters={"a": refused, "b": 1}) for n in range(20)) > 3
