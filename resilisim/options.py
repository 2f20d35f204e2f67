"""Options that stand once: fields of frozen dataclasses that say what they take, for Python and the command line alike.

    @dataclass(frozen=True, slots=True)
    class Settings:
        turns: Annotated[int, Ge(1)] = option(10, "Turns of an episode.")

        def __post_init__(self) -> None:
            check_options(self)

`options_of(Settings)` is what documentation and commands are made from, `check_options` refuses what a field cannot be.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, cast, get_args, get_origin, get_type_hints

from resilisim.bounds import Bounds, bounds_of
from resilisim.errors import (
    InvalidInputError,
    shown_value,
    unknown_argument,
    unknown_name,
)

OUTPUT_GROUP = "Output"  # heading of options about what is written, and in which form


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """What is known about an option besides the type and the default of its field."""

    help: str  # one sentence for people
    choices: tuple[str, ...] = ()  # the only values of a text whose type does not say them
    noun: str = ""  # what a value is called where it does not exist ("unknown parameter mode 'x'"); the field's name
    # On the command line: spelling (the field's if empty), the value that the flag alone stands for, what is said of
    # the default (None: the value itself), the heading above it, what a path names, and what stands for a value.
    flag: str = ""
    switch: str = ""
    default_text: str | None = None
    group: str = ""
    path: Literal["", "file", "folder", "any"] = ""
    metavar: str = ""
    separator: str = ""  # what stands between several values of a tuple that one text holds there, too


@dataclass(frozen=True, slots=True)
class OptionField:
    """An option as a dataclass declares it: field, default, and its type with None, `Literal` and tuple taken apart."""

    name: str
    default: Any
    kind: Any
    choices: tuple[str, ...]
    optional: bool
    is_tuple: bool
    option: Option
    bounds: Bounds  # what a number may be, as the type says (`resilisim.bounds`)
    takes_objects: bool = False  # Python may also give something that no text says; whoever declares it checks that

    def checked(self, value: object, called: str = "") -> Any:
        """Return a value as a plain one (no number of NumPy's, say); `called` names it in refusals."""
        name = called or self.name
        if (value is None and self.optional) or (self.takes_objects and not isinstance(value, str)):
            return value
        if self.is_tuple:
            if isinstance(value, str) or not isinstance(value, Iterable):
                raise InvalidInputError(f"{name} is {shown_value(value)}: expected a list")
            return tuple(dataclasses.replace(self, is_tuple=False).checked(item, name) for item in value)
        if self.kind in (int, float):
            return self.bounds.checked(name, value)
        if self.kind is bool and not isinstance(value, bool):
            raise InvalidInputError(f"{name} is {shown_value(value)}: expected True or False")
        if self.option.path and isinstance(value, Path):
            return str(value)
        if self.kind is str and not isinstance(value, str):
            raise InvalidInputError(f"{name} is {shown_value(value)}: expected a text")
        if self.choices and value not in self.choices:
            raise unknown_name(self.option.noun or name.replace("_", " "), value, self.choices)
        return value


def option(default: Any, help: str, **known: Any) -> Any:
    """Declare a field of a dataclass as an option; its type says what it takes.

    Args:
        default: Its value if none is given.
        help: What it is, in one sentence for people.
        **known: What else is known about it (`Option`).

    Example:
        >>> from dataclasses import dataclass
        >>> from typing import Annotated
        >>> from annotated_types import Ge
        >>> from resilisim.policies.llm import AgentOptions, option
        >>> @dataclass(frozen=True, slots=True, kw_only=True)
        ... class LoopOptions(AgentOptions):
        ...     steps: Annotated[int, Ge(1)] = option(20, "steps of the loop")
        ...     style: str = option("short", "how it thinks", choices=("short", "long"))
        >>> LoopOptions(style="long").steps
        20
    """
    return dataclasses.field(default=default, metadata={"option": Option(help=help, **known)})


def options_of(settings: type[Any]) -> dict[str, OptionField]:
    """Return the options that a dataclass declares, by name; fields that are no options are left out."""
    return _read_once(cast("Hashable", settings))


@cache
def _read_once(settings: Any) -> dict[str, OptionField]:
    hints = get_type_hints(settings, include_extras=True)
    declared = [field for field in dataclasses.fields(settings) if "option" in field.metadata]
    return {field.name: _option_field(field, hints[field.name]) for field in declared}


def _option_field(field: dataclasses.Field[Any], kind: Any) -> OptionField:
    kinds = get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)
    takes_objects = len(kinds) > 1 and Any in kinds
    kind = next(kind for kind in kinds if kind is not NoneType)
    bounds = bounds_of(kind)
    kind = kind if bounds is None else bounds.kind
    is_tuple = get_origin(kind) is tuple
    kind = get_args(kind)[0] if is_tuple else kind
    known = field.metadata["option"]
    choices = get_args(kind) if get_origin(kind) is Literal else known.choices
    kind = str if choices else kind
    return OptionField(
        field.name,
        field.default,
        kind,
        choices,
        NoneType in kinds,
        is_tuple,
        known,
        bounds or Bounds(kind),
        takes_objects,
    )


def check_options(settings: Any, prefix: str = "") -> None:
    """Refuse values of a frozen dataclass that its options do not take, and make the others plain."""
    for name, option_field in options_of(type(settings)).items():
        object.__setattr__(settings, name, option_field.checked(getattr(settings, name), prefix + name))


def with_options(settings: Any, options: Any) -> Any:
    """Return settings in which some options have other values.

    Raises:
        UnknownArgumentError: There is no such option.
    """
    known = options_of(type(settings))
    for name in options:
        if name not in known:
            raise unknown_argument(type(settings).__name__, name, known)
    return dataclasses.replace(settings, **options)
