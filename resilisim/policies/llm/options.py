"""The options of LLM agents: frozen dataclasses whose fields say what they are and which values they take.

Options come as keyword arguments or as text behind a policy's name (`kpi-chain[theta=0.8]`); both are checked here.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from resilisim.errors import InvalidInputError, unknown_name

Options = TypeVar("Options", bound="AgentOptions")

_TRUE, _FALSE = ("true", "yes", "on", "1"), ("false", "no", "off", "0")


@dataclass(frozen=True, slots=True)
class _Rule:
    """What a field takes.

    Attributes:
        help: One line for people.
        kind: int, float, bool or str.
        least: Smallest number.
        most: Largest number.
        choices: The only texts.
        optional: Whether None is a value ("none" as text).
    """

    help: str
    kind: type
    least: float | None = None
    most: float | None = None
    choices: tuple[str, ...] = ()
    optional: bool = False

    def read(self, name: str, value: object) -> Any:
        """Return a value of the field's kind.

        Raises:
            InvalidInputError: It is none, or out of range.
        """
        if self.optional and (value is None or (isinstance(value, str) and value.strip().lower() == "none")):
            return None
        read = self._converted(value)
        if read is None:
            raise InvalidInputError(f"option {name}={value!r:.60}: expected {self.expected}")
        if self.choices and read not in self.choices:
            raise unknown_name(f"value of option {name}", read, self.choices)
        too_small = self.least is not None and read < self.least
        too_large = self.most is not None and read > self.most
        if too_small or too_large:
            raise InvalidInputError(f"option {name}={read}: expected {self.expected}")
        return read

    def _converted(self, value: object) -> Any:
        if self.kind is bool:
            if isinstance(value, bool):
                return value
            word = str(value).strip().lower()
            return True if word in _TRUE else False if word in _FALSE else None
        if self.kind is str:
            return str(value) if isinstance(value, str) or hasattr(value, "__fspath__") else None
        if isinstance(value, bool):
            return None
        if self.kind is int and isinstance(value, int):
            return value  # exactly, also where a float would be rounded
        try:
            number = float(value) if isinstance(value, str | int | float) else math.nan
        except (ValueError, OverflowError):
            return None
        if not math.isfinite(number):
            return None
        if self.kind is int:
            return int(number) if number == int(number) else None
        return number

    @property
    def expected(self) -> str:
        """What the field takes, in words."""
        if self.choices:
            return "one of " + ", ".join(self.choices)
        words = {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}[self.kind]
        if self.least is not None and self.most is not None:
            words += f" from {self.least:g} to {self.most:g}"
        elif self.least is not None:
            words += f" of {self.least:g} or more"
        elif self.most is not None:
            words += f" of {self.most:g} or less"
        return words + (" (or none)" if self.optional else "")


def _field(default: Any, rule: _Rule) -> Any:
    return dataclasses.field(default=default, metadata={"rule": rule})


def limit(default: int | None, help: str, least: int = 0, most: int | None = None, *, optional: bool = False) -> Any:
    """Declare an option that is a whole number; if optional or with the default None, none at all is a value, too."""
    return _field(default, _Rule(help, int, least, most, optional=optional or default is None))


def number(
    default: float | None,
    help: str,
    least: float | None = None,
    most: float | None = None,
    *,
    optional: bool = False,
) -> Any:
    """Declare an option that is a number; if optional or with the default None, none at all is a value, too."""
    return _field(default, _Rule(help, float, least, most, optional=optional or default is None))


def flag(default: bool, help: str) -> Any:
    """Declare an option that is true or false."""
    return _field(default, _Rule(help, bool))


def choice(default: str, help: str, choices: tuple[str, ...]) -> Any:
    """Declare an option that is one of some texts."""
    return _field(default, _Rule(help, str, choices=choices))


def text(default: str | None, help: str) -> Any:
    """Declare an option that is a text; with the default None, none at all is a value, too."""
    return _field(default, _Rule(help, str, optional=default is None))


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentOptions:
    """What every LLM agent can be told."""

    max_llm_calls: int = limit(100, "calls of the model in one episode; the next one ends the episode", least=1)
    max_total_tokens: int | None = limit(None, "tokens, prompts included, after which an episode ends", least=1)
    max_tokens: int | None = limit(None, "longest reply in tokens, thoughts included; none leaves it to the model", 1)
    temperature: float | None = number(
        0.0, "sampling temperature; none leaves it to the model", least=0.0, most=2.0, optional=True
    )
    top_p: float | None = number(None, "nucleus sampling; none leaves it to the model", least=0.0, most=1.0)
    examples: str = text("default", "few-shot examples: none, default (those that ship), or a file")
    templates: str | None = text(None, "folder whose .md files replace prompts of the same name")


def read_options(cls: type[Options], given: Mapping[str, object], where: str = "") -> Options:
    """Return options with the given values, those left out at their defaults.

    Args:
        cls: The agent's options.
        given: Name -> value, a value of its type or its text.
        where: Whose options they are, for messages.

    Raises:
        InvalidInputError: A name is unknown, or a value is not what its option takes.
    """
    rules = {field.name: field.metadata["rule"] for field in dataclasses.fields(cls)}
    for name in given:
        if name not in rules:
            raise unknown_name("option", name, rules, where)
    try:
        return cls(**{name: rules[name].read(name, value) for name, value in given.items()})
    except InvalidInputError as error:
        raise InvalidInputError(f"{where}: {error}" if where else str(error)) from None


def describe_options(cls: type[AgentOptions]) -> list[tuple[str, object, str, str]]:
    """Return (name, default, what it takes, help) of each option, those of the agent itself first."""
    common = {field.name for field in dataclasses.fields(AgentOptions)}
    fields = sorted(dataclasses.fields(cls), key=lambda field: field.name in common)
    return [
        (field.name, field.default, field.metadata["rule"].expected, field.metadata["rule"].help) for field in fields
    ]
