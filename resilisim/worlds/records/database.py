"""Tables in a DuckDB file that many processes read, and queries that can neither change, leave nor exhaust anything."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import selectors
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from resilisim.errors import InfrastructureError, import_extra
from resilisim.provenance import describe_os_error, without_surrogates
from resilisim.run_folder import default_cache_dir
from resilisim.worlds.base import ToolError
from resilisim.worlds.records.fictional_tables import NULL, Table

_PROGRAM: Final = Path(__file__).with_name("query_process.py")


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryLimits:
    """How much a query may use before it is stopped."""

    seconds: float = 5.0
    memory_mib: int = 256  # DuckDB's own limit, which it does not always keep; its process is stopped at four times it
    rows: int = 1_000  # that an answer shows


@dataclass(frozen=True, slots=True)
class Rows:
    """What a query found: names of columns, rows of JSON values, and whether there would have been more rows."""

    columns: tuple[str, ...]
    rows: list[list[Any]]
    more: bool


class Database:
    """Tables that can only be read; all queries of a process go one by one through one child process.

    Args:
        key: What the tables follow from. The file of the same key in the user's cache folder is taken if it is there.
        fill: Makes the tables, over a connection, if it is not.
        limits: Limits of a query.
    """

    def __init__(self, key: str, fill: Callable[[Any], None], limits: QueryLimits | None = None) -> None:
        self.limits = limits or QueryLimits()
        self._key = key
        self._fill = fill
        self._columns: dict[str, Mapping[str, str]] = {}
        self._child: _Child | None = None
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._lock = threading.Lock()

    def query(self, sql: str, values: Sequence[Any] = (), rows: int | None = None) -> Rows:
        """Run one statement that only reads.

        Args:
            sql: The statement, with a question mark for each value.
            values: Values for the question marks.
            rows: Number of rows that are returned at most; None takes that of the limits.

        Raises:
            ToolError: The statement is refused (QUERY_ERROR) or met a limit (LIMIT_EXCEEDED).
            InfrastructureError: The process cannot be started.
        """
        bound_values = [without_surrogates(value) if isinstance(value, str) else value for value in values]
        most = self.limits.rows if rows is None else rows
        request = {"query": without_surrogates(sql), "values": bound_values, "rows": most}
        with self._lock:
            if self._child is None or not self._child.is_this_process():
                self._child = self._started()
            child = self._child
            try:
                answer = child.ask(request)
            except BaseException:
                self._child = None
                child.end()
                raise
        if "error" in answer:
            text = str(answer["error"])
            if text.startswith("Out of Memory") or "bad allocation" in text or text == "MemoryError":
                self.close()  # what ran out of memory once was seen to crash later
                raise ToolError("LIMIT_EXCEEDED", f"the query needed more than {_memory(self.limits)} and was stopped")
            raise ToolError("QUERY_ERROR", " ".join(text.split("\n\nLINE")[0].split()))
        return Rows(tuple(answer["columns"]), answer["rows"], answer["more"])

    def columns(self, table: str) -> Mapping[str, str]:
        """Return the SQL type of each column of a table."""
        if table not in self._columns:
            rows = self.query(f"SELECT column_name, column_type FROM (DESCRIBE {quoted(table)})").rows
            self._columns[table] = {str(name): str(kind) for name, kind in rows}
        return self._columns[table]

    def close(self) -> None:
        """End the child process; the next query starts another."""
        with self._lock:
            child, self._child = self._child, None
        if child is not None:
            child.end()

    def _started(self) -> _Child:
        """Start the process; a file that it cannot read, damaged by a crash or a full disk, is made once more."""
        file = self._file()
        try:
            return _Child(file, self.limits)
        except InfrastructureError:
            with contextlib.suppress(OSError):
                file.unlink()
            return _Child(self._file(), self.limits)

    def _file(self) -> Path:
        """Return the file of the tables, made now if need be; two processes that make it make the same."""
        duckdb = import_extra("duckdb", "tables of worlds need", "worlds")
        name = f"{self._key}-duckdb{duckdb.__version__}.db"
        shared = default_cache_dir() / "worlds" / name
        for file in itertools.chain((shared,), self._own(name)):
            if file.is_file():
                return file
            try:
                file.parent.mkdir(parents=True, exist_ok=True)
                self._write(duckdb, file)
            except OSError as error:
                problem = f"{str(file)!r} cannot be written: {describe_os_error(error)}"
            else:
                return file
        raise InfrastructureError(f"no folder takes the tables of {self._key}: {problem}")

    def _own(self, name: str) -> Iterator[Path]:
        """Yield the file's place where the cache folder does not take it: a folder that ends with this object."""
        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory(prefix="resilisim-")
        yield Path(self._folder.name) / name

    def _write(self, duckdb: Any, file: Path) -> None:
        with tempfile.TemporaryDirectory(dir=file.parent) as folder:
            new = Path(folder) / file.name
            try:
                with duckdb.connect(str(new)) as connection:
                    self._fill(connection)
            except duckdb.IOException as error:
                raise OSError(str(error)) from error
            new.replace(file)


def quoted(name: str) -> str:
    """Return a name as SQL takes it, whatever stands in it."""
    return '"' + name.replace('"', '""') + '"'


def create_table(connection: Any, table: Table) -> None:
    """Create a table over a connection of DuckDB."""
    given = dict(table.columns)  # DuckDB finds it by this name
    nulls = {"BIGINT": str(NULL)}  # the arrays of other types say None themselves
    columns = [
        f'nullif("{name}", {nulls.get(sql_type, "NULL")})::{sql_type} AS "{name}"'
        for name, sql_type in table.types.items()
    ]
    connection.execute(f'CREATE TABLE "{table.name}" AS SELECT {", ".join(columns)} FROM given')
    assert given


def _memory(limits: QueryLimits) -> str:
    return f"{limits.memory_mib} MiB"


class _Child:
    """The child process; after any exception it has to be ended."""

    def __init__(self, file: Path, limits: QueryLimits) -> None:
        self._owner = os.getpid()
        self._limits = limits
        try:
            self._process = subprocess.Popen(
                # Isolated, in the folder of the file, with an empty environment: what a query can read says nothing.
                [sys.executable, "-I", str(_PROGRAM), file.name, str(limits.memory_mib), str(limits.seconds)],
                cwd=file.parent,
                env={},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                bufsize=0,
            )
        except OSError as error:
            raise InfrastructureError(f"the process for queries does not start: {error}") from error
        self._end = weakref.finalize(self, _kill, self._process, self._owner)
        # Starting takes a while on a busy machine, and no query pays for it.
        if "error" in self._exchange({"query": "SELECT 1", "values": [], "rows": 1}, 120.0, "does not start"):
            raise InfrastructureError("the process for queries does not start")

    def is_this_process(self) -> bool:
        """Return whether this process started it, and not one that was forked away."""
        return self._owner == os.getpid()

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return the answer to a request."""
        limits = self._limits
        try:
            return self._exchange(request, limits.seconds, "")
        except TimeoutError:
            raise ToolError(
                "LIMIT_EXCEEDED", f"the query ran for more than {limits.seconds:g} s and was stopped"
            ) from None
        except (EOFError, OSError):
            raise ToolError("LIMIT_EXCEEDED", f"the query needed more than {_memory(limits)} and was stopped") from None

    def _exchange(self, request: dict[str, Any], seconds: float, failure: str) -> dict[str, Any]:
        until = time.monotonic() + seconds
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        try:
            stdin.write(json.dumps(request).encode() + b"\n")
            parts: list[bytes] = []
            with selectors.DefaultSelector() as selector:
                selector.register(stdout, selectors.EVENT_READ)
                while not (parts and parts[-1].endswith(b"\n")):
                    if not selector.select(max(0.0, until - time.monotonic())):
                        raise TimeoutError
                    part = os.read(stdout.fileno(), 1 << 20)
                    if not part:
                        raise EOFError
                    parts.append(part)
        except (TimeoutError, EOFError, OSError) as error:
            if failure:
                self.end()
                raise InfrastructureError(f"the process for queries {failure}") from error
            raise
        answer: dict[str, Any] = json.loads(b"".join(parts))
        return answer

    def end(self) -> None:
        """End the process, whatever it is doing."""
        self._end()


def _kill(process: subprocess.Popen[bytes], owner: int) -> None:
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with contextlib.suppress(OSError):
                pipe.close()
    if owner == os.getpid():
        process.kill()
        process.wait()
