"""Small JSON files that users write for chat models, read with care: every refusal is one line that says where."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NoReturn

from resilisim.chat.json_answers import finite, refuse_constant
from resilisim.errors import InvalidInputError, nearest_name
from resilisim.provenance import describe_os_error


def read_text(path: Path, what: str) -> str:
    """Return the text of a file.

    Args:
        path: The file.
        what: What kind of file it is, for refusals ("script").

    Raises:
        InvalidInputError: It cannot be read, or is not UTF-8.
    """
    try:
        return path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise InvalidInputError(f"{what} {str(path)!r} cannot be read: {describe_os_error(error)}") from None
    except UnicodeDecodeError:
        raise InvalidInputError(f"{what} {str(path)!r} is not UTF-8 text") from None


def json_object(text: str, where: str) -> dict[str, Any]:
    """Parse one JSON object, refusing doubled keys and numbers that JSON does not have.

    Args:
        text: The JSON text.
        where: Where it stands, for refusals.

    Raises:
        InvalidInputError: The text is not JSON, or JSON of another kind.
    """

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        result = dict(pairs)
        if len(result) < len(pairs):
            raise ValueError("a key stands twice in one object")
        return result

    try:
        value = json.loads(text, object_pairs_hook=unique, parse_constant=refuse_constant, parse_float=finite)
    except (ValueError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise InvalidInputError(f"{where} is not JSON: {reason}") from None
    if not isinstance(value, dict):
        refuse(where, value, "a JSON object")
    return value


def refuse(where: str, value: object, expected: str) -> NoReturn:
    """Raise the refusal of a value: where it stands, what it is, what was expected."""
    text = json.dumps(value, default=repr)
    shown = text if len(text) <= 60 else text[:57] + "..."
    raise InvalidInputError(f"{where}: got {shown}; expected {expected}")


def refuse_unknown_keys(values: Mapping[str, Any], known: Iterable[str], where: str) -> None:
    """Refuse an object with a key that nobody reads, naming the nearest known one."""
    names = tuple(known)
    for key in values:
        if key not in names:
            near = nearest_name(key, names)
            hint = f"did you mean {near!r}?" if near else "expected one of " + ", ".join(names)
            raise InvalidInputError(f"{where}: unknown field {key!r}: {hint}")
