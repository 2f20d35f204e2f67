"""What numbers may be, declared once as annotated types: Python arguments, commands and files read the same bounds.

    def play(seed: int) -> None:
        seed = checked(Seed, "seed", seed)

Fields of frozen dataclasses and pydantic models have these types too, and a command's options (`cli.output`).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Hashable
from dataclasses import dataclass
from types import UnionType
from typing import Annotated, Any, Union, cast, get_args, get_origin, get_type_hints

from annotated_types import Ge, Gt, Le, Lt

from resilisim.errors import MAX_COUNT, MAX_TURNS, MAX_WORKERS, InvalidInputError, check_integer, check_number
from resilisim.seeding import MAX_SEED

Seed = Annotated[int, Ge(0), Le(MAX_SEED)]
Count = Annotated[int, Ge(1), Le(MAX_COUNT)]  # of episodes, tasks, records
CountOrNone = Annotated[int, Ge(0), Le(MAX_COUNT)]  # 0 for none, or for all
Workers = Annotated[int, Ge(1), Le(MAX_WORKERS)]
Turns = Annotated[int, Ge(1), Le(MAX_TURNS)]
Share = Annotated[float, Ge(0.0), Le(1.0)]
Temperature = Annotated[float, Ge(0.0), Le(2.0)]  # at which a model's replies are sampled
Port = Annotated[int, Ge(0), Le(65_535)]
Seconds = Annotated[float, Ge(0.001)]
Speed = Annotated[float, Ge(0.01), Le(10_000)]  # how much faster than real hosts' the clock of their twin runs


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a number may be: its type, the least and the most, and bounds that it must not be itself."""

    kind: type[Any]
    least: Any = None
    most: Any = None
    above: Any = None
    below: Any = None

    def checked(self, name: str, value: object) -> Any:
        """Return a number as a plain one; InvalidInputError if it is none, or out of bounds."""
        if self.kind is int:
            return check_integer(name, value, int(self.least or 0), None if self.most is None else int(self.most))
        number = check_number(name, value, self.least, self.most, above=self.above, below=self.below)
        if not math.isfinite(number):
            raise InvalidInputError(f"{name} is {number}: expected a finite number")
        return number


def bounds_of(kind: Hashable) -> Bounds | None:
    """Return the bounds of an annotated type, or of the one beside None; None if it states none."""
    return _read_once(kind)


@functools.cache
def _read_once(kind: Any) -> Bounds | None:
    for member in get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,):
        limits = {
            name: getattr(limit, attribute)
            for limit in getattr(member, "__metadata__", ())
            for limit_type, name, attribute in _LIMITS
            if isinstance(limit, limit_type)
        }
        if limits:
            return Bounds(get_args(member)[0], **limits)
    return None


_LIMITS: tuple[tuple[type[Any], str, str], ...] = (
    (Ge, "least", "ge"),
    (Le, "most", "le"),
    (Gt, "above", "gt"),
    (Lt, "below", "lt"),
)


def checked(kind: Any, name: str, value: object) -> Any:
    """Return a number that a bounded type allows as a plain one.

    Args:
        kind: The type, such as `Seed`.
        name: What the number is called.
        value: The number, of any type (NumPy's, say).

    Raises:
        InvalidInputError: It is none, or out of bounds.
    """
    bounds = bounds_of(kind)
    if bounds is None:
        raise TypeError(f"{kind!r} states no bounds")
    return bounds.checked(name, value)


@functools.cache
def _bounded_fields(declaring: Any) -> dict[str, tuple[Bounds, bool]]:
    hints = get_type_hints(declaring, include_extras=True)
    bounds = {name: bounds_of(hint) for name, hint in hints.items()}
    return {name: (each, type(None) in get_args(hints[name])) for name, each in bounds.items() if each is not None}


def check_fields(declaring: Any) -> None:
    """Refuse numbers in a frozen dataclass that the types of its fields do not allow, and make the others plain."""
    for name, (bounds, is_optional) in _bounded_fields(cast("Hashable", type(declaring))).items():
        value = getattr(declaring, name)
        if value is not None or not is_optional:
            object.__setattr__(declaring, name, bounds.checked(name, value))
