"""The options of LLM agents: frozen dataclasses whose fields say what they are and which values they take.

Options come as keyword arguments or as text behind a policy's name (`kpi-chain[theta=0.8]`); both are checked here.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Annotated, Any, Final, TypeVar

from annotated_types import Ge

from resilisim.bounds import Share, Temperature
from resilisim.errors import InvalidInputError, shown_value, unknown_name
from resilisim.options import OptionField, option, options_of

Options = TypeVar("Options", bound="AgentOptions")

_TRUE, _FALSE = ("true", "yes", "on", "1"), ("false", "no", "off", "0")


# Options that are lengths in characters, and what they are if left out: as a rule, and where tasks ask for an answer,
# which may stand anywhere in what tools return.
LENGTHS: Final[Mapping[str, tuple[int, int]]] = {
    "observation_chars": (20_000, 100_000),
    "history_chars": (20_000, 100_000),
    "trajectory_chars": (12_000, 500_000),
}


def length(name: str, help: str) -> Any:
    """Declare one of `LENGTHS`; none is as it says."""
    usual, of_answers = LENGTHS[name]
    return option(None, f"{help}; none: {usual:,}, or {of_answers:,} where tasks ask for an answer")


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentOptions:
    """What every LLM agent can be told; an agent's own options are a subclass.

    Example:
        >>> from dataclasses import dataclass
        >>> from typing import Annotated
        >>> from annotated_types import Ge
        >>> from resilisim.policies.llm import AgentOptions, option
        >>> @dataclass(frozen=True, slots=True, kw_only=True)
        ... class MyOptions(AgentOptions):
        ...     max_steps: Annotated[int, Ge(1)] = option(20, "steps of the loop")
        >>> MyOptions(max_steps=3).max_llm_calls
        100
    """

    max_llm_calls: Annotated[int, Ge(1)] = option(
        100, "calls of the model in one episode; the next one ends the episode"
    )
    max_total_tokens: Annotated[int, Ge(1)] | None = option(
        None, "tokens, prompts included, after which an episode ends"
    )
    max_tokens: Annotated[int, Ge(1)] | None = option(
        None, "longest reply in tokens, thoughts included; none leaves it to the model"
    )
    temperature: Temperature | None = option(0.0, "sampling temperature; none leaves it to the model")
    top_p: Share | None = option(None, "nucleus sampling; none leaves it to the model")
    model_options: str = option(
        "", "fields of requests, over those of --model-option: planner.temperature=0;reasoning_effort=high"
    )
    examples: str = option("default", "few-shot examples: none, default (those that ship), or a file")
    templates: str | None = option(None, "folder whose .md files replace prompts of the same name")


def read_options(cls: type[Options], values: Mapping[str, object], where: str = "") -> Options:
    """Return options with the given values or their texts, those left out at their defaults.

    Raises:
        InvalidInputError: A name is unknown, or a value is not what its option takes; `where` says whose it is.
    """
    known = options_of(cls)
    for name in values:
        if name not in known:
            raise unknown_name("option", name, known, where)
    try:
        return cls(**{name: _read(known[name], value) for name, value in values.items()})
    except InvalidInputError as error:
        raise InvalidInputError(f"{where}: {error}" if where else str(error)) from None


def _read(field: OptionField, value: object) -> Any:
    if field.optional and (value is None or (isinstance(value, str) and value.strip().lower() == "none")):
        return None
    read = _converted(field.kind, value)
    if read is None:
        raise InvalidInputError(f"option {field.name} is {shown_value(value)}: expected {_expected(field)}")
    return field.checked(read, f"option {field.name}")


def _converted(kind: type, value: object) -> Any:
    """Return a value of a kind, given as such or as its text; None if it is none."""
    if kind is bool:
        word = str(value).strip().lower()
        return True if word in _TRUE else False if word in _FALSE else None
    if kind is str:
        return os.fspath(value) if isinstance(value, str | os.PathLike) else None
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return None
    if kind is int and isinstance(value, int):
        return value  # exactly, also where a float would be rounded
    try:
        read = float(value)
    except (ValueError, OverflowError):
        return None
    if not math.isfinite(read) or (kind is int and not read.is_integer()):
        return None
    return kind(read)


def _expected(field: OptionField) -> str:
    if field.choices:
        return "one of " + ", ".join(field.choices)
    words = {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}[field.kind]
    least, most = field.bounds.least, field.bounds.most
    if least is not None and most is not None:
        words += f" from {least:g} to {most:g}"
    elif least is not None:
        words += f" of {least:g} or more"
    elif most is not None:
        words += f" of {most:g} or less"
    return words + (" (or none)" if field.optional else "")


def describe_options(cls: type[AgentOptions]) -> list[tuple[str, object, str, str]]:
    """Return (name, default, what it takes, help) of each option, those of the agent itself first."""
    common = {field.name for field in fields(AgentOptions)}
    fields_of_class = sorted(options_of(cls).values(), key=lambda option_field: option_field.name in common)
    return [
        (option_field.name, option_field.default, _expected(option_field), option_field.option.help)
        for option_field in fields_of_class
    ]
