"""Where results come from: one text for each JSON value, its hash, and the versions that made it."""

from __future__ import annotations

import errno
import hashlib
import json
from collections.abc import Iterable, Mapping
from importlib import metadata
from typing import Any


def canonical_json(value: object) -> str:
    """Return the one JSON text of a value: keys sorted, no spaces, Unicode as it is, NaN and infinities refused."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def arguments_text(arguments: Mapping[str, Any]) -> str:
    """Return the text by which the whole arguments of a call are known again, in whatever order they were given.

    It is their canonical JSON. What JSON has no words for (NaN, an object of Python) stands by its representation.
    """
    try:
        return canonical_json(arguments)
    except (TypeError, ValueError):
        pass
    try:
        return json.dumps(_with_texts(arguments), sort_keys=True, ensure_ascii=False, default=repr)
    except RecursionError:  # it holds itself
        return repr(arguments)


def _with_texts(value: Any) -> Any:
    """Return a value whose mappings have texts as keys."""
    if isinstance(value, Mapping):
        return {str(key): _with_texts(item) for key, item in value.items()}
    return [_with_texts(item) for item in value] if isinstance(value, list | tuple) else value


def without_surrogates(text: str) -> str:
    """Return a text that can be encoded: halves of characters become question marks."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")


def encode_json(value: object, **layout: Any) -> bytes:
    """Return the JSON text of a value in UTF-8: Unicode as it is, or escaped if it holds halves of characters."""
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, **layout).encode()
    except UnicodeEncodeError:
        return json.dumps(value, ensure_ascii=True, allow_nan=False, **layout).encode()


_LINE_ENCODER = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def encode_json_line(value: object) -> bytes:
    """Return a value as one line of a JSON Lines file, keys in the order in which mappings hold them."""
    try:
        return _LINE_ENCODER.encode(value).encode() + b"\n"
    except UnicodeEncodeError:
        return encode_json(value, separators=(",", ":")) + b"\n"


def content_hash(value: object) -> str:
    """Return the SHA-256, in hex, of bytes as they are or of the canonical JSON of any other value."""
    data = value if isinstance(value, bytes) else canonical_json(value).encode("utf-8", "surrogatepass")
    return hashlib.sha256(data).hexdigest()


def package_versions(packages: Iterable[str]) -> dict[str, str]:
    """Return the versions of packages; one that is not there is "not installed"."""
    versions = {}
    for package in packages:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            versions[package] = "not installed"
    return versions


def describe_os_error(error: OSError) -> str:
    """Say in a few words what the operating system refused."""
    if error.errno == errno.ENOSPC:
        return "the disk is full"
    return (error.strerror or str(error)).lower()
