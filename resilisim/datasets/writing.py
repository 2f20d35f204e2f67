"""Writing a shard: streamed into a hidden file that gets its name when it is whole, and hashed on the way."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

from resilisim.datasets.extras import require
from resilisim.datasets.schema import Record, RecordSchema, check_record, convert_json, to_arrow
from resilisim.datasets.shards import Format, ShardFacts
from resilisim.errors import InvalidInputError, StoreError
from resilisim.provenance import describe_os_error
from resilisim.run_folder import temporary_path

ROWS_PER_GROUP = 1_000  # of a Parquet file: what is held in memory at a time
BUFFER_BYTES = 1 << 20

_LINE_ENCODER = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False, allow_nan=False)


class ShardWriter:
    """Writes one shard; used as a context, which leaves nothing behind unless `commit` was called.

    Args:
        path: The file; it appears when it is whole.
        file_format: "jsonl" or "parquet".
        schema: What each record has to look like.
        metadata: Names and texts that a Parquet file keeps with its schema; JSON Lines have no place for them.
        advice: What a refusal says of what was written before.

    Raises:
        StoreError: The file cannot be written.
        MissingExtraError: Parquet was asked for, and pyarrow is not installed.
    """

    def __init__(
        self,
        path: Path,
        file_format: Format,
        schema: RecordSchema,
        *,
        metadata: Mapping[str, str] | None = None,
        advice: str = "shards that were finished are kept, and the same command goes on from there",
    ) -> None:
        self.path = path
        self.num_records = 0
        self._advice = advice
        self._schema = schema
        self._temporary = temporary_path(path)
        try:
            self._sink = _HashedFile(self._temporary)
        except OSError as error:
            raise self._refusal(error) from error
        try:
            self._encoder: _Encoder = ENCODERS[file_format](self._sink, schema, metadata or {})
        except BaseException as error:
            self._sink.abandon()
            self._temporary.unlink(missing_ok=True)
            if isinstance(error, OSError):
                raise self._refusal(error) from error
            raise

    def write(self, record: Record) -> None:
        """Append one record.

        Raises:
            InvalidInputError: It does not fit the schema.
            StoreError: The disk is full, or the like.
        """
        problem = check_record(self._schema, record)
        if problem is not None:
            raise InvalidInputError(f"no record of the schema {self._schema.name!r}: {problem}")
        try:
            self._encoder.write(record)
        except OSError as error:
            raise self._refusal(error) from error
        self.num_records += 1

    def commit(self) -> ShardFacts:
        """Finish the file and give it its name.

        Raises:
            StoreError: The disk is full, or the like.
        """
        try:
            self._encoder.finish()
            self._sink.hand_to_disk()
            self._temporary.replace(self.path)
        except OSError as error:
            raise self._refusal(error) from error
        return ShardFacts(self.path.name, self.num_records, self._sink.num_bytes, self._sink.digest.hexdigest())

    def __enter__(self) -> ShardWriter:
        """Return the writer itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Take away what is not whole."""
        self._sink.abandon()
        self._encoder.close()
        self._temporary.unlink(missing_ok=True)

    def _refusal(self, error: OSError) -> StoreError:
        return StoreError(f"cannot write {self.path}: {describe_os_error(error)}; {self._advice}")


def encode_record(record: Record) -> bytes:
    """Return a record as one JSON line, as it stands in shards and files."""
    try:
        return _LINE_ENCODER.encode(record).encode() + b"\n"
    except UnicodeEncodeError:
        return _LINE_ENCODER.encode(_without_surrogates(record)).encode() + b"\n"


class _HashedFile:
    """A file that counts and hashes what is written to it; pyarrow can write to it too."""

    closed = False

    def __init__(self, path: Path) -> None:
        self._stream = path.open("wb", buffering=BUFFER_BYTES)
        self._is_abandoned = False
        self.digest = hashlib.sha256()
        self.num_bytes = 0

    def write(self, data: Any) -> int:
        view = memoryview(data)
        if not self._is_abandoned:
            self._stream.write(view)
            self.digest.update(view)
            self.num_bytes += view.nbytes
        return view.nbytes

    def tell(self) -> int:
        return self.num_bytes

    def flush(self) -> None:
        """Do nothing: only whole files matter."""

    def close(self) -> None:
        """Do nothing: whoever made the file closes it."""

    def hand_to_disk(self) -> None:
        self._stream.flush()
        os.fsync(self._stream.fileno())
        self._stream.close()

    def abandon(self) -> None:
        """Close the file, whole or not; what is written from now on goes nowhere."""
        self._is_abandoned = True
        with contextlib.suppress(OSError):  # what is still in the buffer may not fit on a full disk
            self._stream.close()


class _Encoder(Protocol):
    def write(self, record: Record) -> None: ...

    def finish(self) -> None: ...

    def close(self) -> None: ...


class _JsonLines:
    def __init__(self, sink: _HashedFile, schema: RecordSchema, metadata: Mapping[str, str]) -> None:
        self._sink = sink

    def write(self, record: Record) -> None:
        self._sink.write(encode_record(record))

    def finish(self) -> None:
        pass

    def close(self) -> None:
        pass


class _Parquet:
    def __init__(self, sink: _HashedFile, schema: RecordSchema, metadata: Mapping[str, str]) -> None:
        self._pyarrow = require("pyarrow")
        self._types = schema.struct
        self._schema = to_arrow(schema).with_metadata(dict(metadata) or None)
        self._stored = to_arrow(schema, "string")  # tables are made of texts: pyarrow makes no JSON inside of lists
        self._rows: list[Record] = []
        self._writer = require("pyarrow.parquet").ParquetWriter(sink, self._schema, compression="zstd")

    def write(self, record: Record) -> None:
        self._rows.append(convert_json(record, self._types, _LINE_ENCODER.encode))
        if len(self._rows) == ROWS_PER_GROUP:
            self._write_group()

    def finish(self) -> None:
        if self._rows:
            self._write_group()
        self._writer.close()

    def close(self) -> None:
        # A writer that was never closed writes its footer when it is collected: into a file that takes it no more.
        self._writer.close()

    def _write_group(self) -> None:
        table_of = self._pyarrow.Table.from_pylist
        try:
            table = table_of(self._rows, self._stored)
        except UnicodeEncodeError:
            table = table_of(_without_surrogates(self._rows), self._stored)
        self._writer.write_table(table.cast(self._schema))
        self._rows = []


ENCODERS: Mapping[Format, Callable[[_HashedFile, RecordSchema, Mapping[str, str]], _Encoder]] = {
    "jsonl": _JsonLines,
    "parquet": _Parquet,
}


def _without_surrogates(value: Any) -> Any:
    """Return JSON values with each half of a character, which UTF-8 and Parquet cannot hold, replaced by U+FFFD."""
    if isinstance(value, str):
        return value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    if isinstance(value, dict):
        return {name: _without_surrogates(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_without_surrogates(item) for item in value]
    return value
