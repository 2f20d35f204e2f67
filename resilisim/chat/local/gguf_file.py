"""What the head of a GGUF file says about its model, read without loading it.

The format: magic, version, number of tensors, number of facts, then each fact as key, type and value
(https://github.com/ggml-org/ggml/blob/master/docs/gguf.md).
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from resilisim.errors import InvalidInputError
from resilisim.provenance import describe_os_error

_MAGIC = b"GGUF"
_STRING, _ARRAY = 8, 9
# Types of facts by their number in the format, as `struct` spells them.
_NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_MOST_FACTS = 10_000  # real files have some dozens
_LONGEST_STRING = 1 << 24  # bytes; chat templates have thousands
_LONGEST_ARRAY = 1 << 24  # entries; vocabularies have a hundred thousand
_SAMPLE = 1 << 20  # bytes at each end of a file that go into its fingerprint


@dataclass(frozen=True, slots=True)
class GgufFacts:
    """What a GGUF file says of its model.

    Attributes:
        architecture: Such as "llama".
        context_length: Tokens that it was trained for; None if the file does not say.
        chat_template: Whether it says how a conversation is written; base models do not.
    """

    architecture: str
    context_length: int | None
    chat_template: bool


def read_gguf_facts(path: Path) -> GgufFacts:
    """Read the facts of a GGUF file.

    Raises:
        InvalidInputError: The file cannot be read, or is no GGUF file.
    """
    facts = _facts_of(path, lambda key: False)
    architecture = str(facts.get("general.architecture", ""))
    length = facts.get(f"{architecture}.context_length")
    return GgufFacts(architecture, length if isinstance(length, int) else None, "tokenizer.chat_template" in facts)


def read_gguf_vocabulary(path: Path) -> dict[str, Any]:
    """Return what a GGUF file says of its tokenizer: its facts without the `tokenizer.ggml.` of their names.

    Raises:
        InvalidInputError: The file cannot be read, or is no GGUF file.
    """
    prefix = "tokenizer.ggml."
    facts = _facts_of(path, lambda key: key.startswith(prefix))
    return {key.removeprefix(prefix): value for key, value in facts.items() if key.startswith(prefix)}


def fingerprint(paths: Iterable[Path]) -> str:
    """Return a short hash of files by their sizes and both ends, which hold what tells one model from another.

    Raises:
        InvalidInputError: A file cannot be read.
    """
    digest = hashlib.sha256()
    for path in paths:
        try:
            with path.open("rb") as stream:
                size = stream.seek(0, 2)
                stream.seek(0)
                digest.update(f"{size} ".encode() + stream.read(_SAMPLE))
                stream.seek(max(0, size - _SAMPLE))
                digest.update(stream.read(_SAMPLE))
        except OSError as error:
            raise InvalidInputError(f"local model {str(path)!r} cannot be read: {describe_os_error(error)}") from None
    return digest.hexdigest()[:16]


def _facts_of(path: Path, keep_array: Callable[[str], bool]) -> dict[str, Any]:
    """Return the facts of a file; of arrays, which can be long, those that are to be kept."""
    try:
        with path.open("rb") as stream:
            return _read_facts(stream, keep_array)
    except OSError as error:
        raise InvalidInputError(f"local model {str(path)!r} cannot be read: {describe_os_error(error)}") from None
    except (struct.error, ValueError):
        raise InvalidInputError(f"local model {str(path)!r} is no GGUF file, or its beginning is damaged") from None


def _read_facts(stream: BinaryIO, keep_array: Callable[[str], bool]) -> dict[str, Any]:
    if stream.read(4) != _MAGIC:
        raise ValueError("another magic")
    version, _, count = _unpack(stream, "IQQ")
    if version < 2 or count > _MOST_FACTS:
        raise ValueError("a version or number of facts that cannot be")
    facts: dict[str, Any] = {}
    for _ in range(count):
        key = _string(stream).decode("utf-8", "replace")
        (kind,) = _unpack(stream, "I")
        facts[key] = _array(stream, keep_array(key)) if kind == _ARRAY else _value(stream, kind)
    return facts


def _value(stream: BinaryIO, kind: int) -> Any:
    if kind == _STRING:
        return _string(stream).decode("utf-8", "replace")
    if kind not in _NUMBERS:
        raise ValueError("an unknown type")
    return _unpack(stream, _NUMBERS[kind])[0]


def _array(stream: BinaryIO, keep: bool) -> list[Any] | None:
    """Return the entries of an array, or step over it and return None."""
    kind, count = _unpack(stream, "IQ")
    if count > _LONGEST_ARRAY:
        raise ValueError("an array that cannot be")
    if kind not in _NUMBERS and kind != _STRING:
        raise ValueError("an array of a type that nobody writes")
    if keep:
        return [_value(stream, kind) for _ in range(count)]
    if kind in _NUMBERS:
        stream.seek(count * struct.calcsize("<" + _NUMBERS[kind]), 1)
    else:
        for _ in range(count):
            _string(stream)
    return None


def _string(stream: BinaryIO) -> bytes:
    (length,) = _unpack(stream, "Q")
    if length > _LONGEST_STRING:
        raise ValueError("a string that cannot be")
    text = stream.read(length)
    if len(text) < length:
        raise ValueError("the file ends within a string")
    return text


def _unpack(stream: BinaryIO, form: str) -> tuple[Any, ...]:
    layout = "<" + form
    return struct.unpack(layout, stream.read(struct.calcsize(layout)))
