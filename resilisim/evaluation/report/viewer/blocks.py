"""Blocks of a page: JSON that is deflated and written in base64, so that no text of a record can end the element."""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Iterable, Iterator
from typing import Any

COMPRESSION_LEVEL = 6
CHUNK_BYTES = 262_144  # of JSON that a browser unpacks to show one episode
CHUNK_ROWS = 256


def pack_block(value: object) -> str:
    """Return JSON values as a block of a page."""
    return _packed(encode(value))


def unpack_block(block: str) -> Any:
    """Return the JSON values of a block of a page; the viewer's script does the same."""
    return json.loads(zlib.decompress(base64.b64decode(block)))


_ENCODER = json.JSONEncoder(separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def encode(value: object) -> bytes:
    """Return the shortest JSON of a value, in ASCII; NaN and infinities are refused."""
    return _ENCODER.encode(value).encode("ascii")


def pack_chunks(rows: Iterable[bytes], most_bytes: int) -> tuple[list[str], list[int]]:
    """Pack rows into blocks, each a JSON array, until a budget is used up.

    Args:
        rows: The JSON of each row, the most important first.
        most_bytes: How long all blocks may be together.

    Returns:
        The blocks; and for each the number of its first row, with the number of all packed rows at the end.
    """
    blocks: list[str] = []
    starts = [0]
    left = most_bytes
    for chunk in _chunks(rows):
        fitting, block = chunk, _packed_array(chunk)
        while len(block) > left and fitting:
            fitting = fitting[: len(fitting) // 2]
            block = _packed_array(fitting)
        if fitting:
            blocks.append(block)
            starts.append(starts[-1] + len(fitting))
            left -= len(block)
        if len(fitting) < len(chunk):
            break
    return blocks, starts


def _chunks(rows: Iterable[bytes]) -> Iterator[list[bytes]]:
    chunk: list[bytes] = []
    size = 0
    for row in rows:
        if chunk and (size + len(row) > CHUNK_BYTES or len(chunk) == CHUNK_ROWS):
            yield chunk
            chunk, size = [], 0
        chunk.append(row)
        size += len(row)
    if chunk:
        yield chunk


def _packed_array(rows: list[bytes]) -> str:
    return _packed(b"[" + b",".join(rows) + b"]")


def _packed(data: bytes) -> str:
    return base64.b64encode(zlib.compress(data, COMPRESSION_LEVEL)).decode("ascii")
