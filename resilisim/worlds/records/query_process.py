"""The process that runs queries for `resilisim.worlds.records.database`, which starts it as a program of its own.

It imports nothing of the package. It reads requests as lines of JSON and writes an answer to each; when the pipe is
closed, it ends. DuckDB alone keeps neither memory nor time: `repeat('x', 3000000000)` takes 6 GB and half a minute in
spite of its limit and of an interrupt. So the operating system bounds this process, and whoever asks kills it; should
they have died in the middle of a query, its time of the processor ends it.
"""

import datetime
import json
import math
import sys
import time
from typing import Any

import duckdb

if sys.platform != "win32":
    import resource

MOST_CHARACTERS = 2_000_000  # of the values of one answer
LONGEST_CELL = 20_000
PROCESS_FACTOR = 4  # how many times the memory of DuckDB its process may map: programs, threads and its excesses


def main(file: str, memory_mib: str, seconds: str) -> None:
    """Answer queries on a database, which is in the working directory, until the pipe is closed."""
    if sys.platform != "win32":
        resource.setrlimit(resource.RLIMIT_AS, (PROCESS_FACTOR * int(memory_mib) << 20,) * 2)
    settings: dict[str, str | bool | int | float | list[str]] = {
        "enable_external_access": False,
        "autoload_known_extensions": False,
        "autoinstall_known_extensions": False,
        "allow_community_extensions": False,
        "temp_directory": "",
        "memory_limit": f"{memory_mib}MiB",
        "threads": 1,
        "lock_configuration": True,
    }
    connection = duckdb.connect(file, read_only=True, config=settings)
    for line in sys.stdin.buffer:
        request = json.loads(line)
        if sys.platform != "win32":
            most = int(time.process_time() + float(seconds)) + 1
            resource.setrlimit(resource.RLIMIT_CPU, (most, resource.RLIM_INFINITY))
        try:
            answer = _answer(connection, **request)
        except (duckdb.Error, MemoryError, UnicodeError) as error:
            answer = {"error": str(error)[:2_000] or type(error).__name__}
        sys.stdout.buffer.write(json.dumps(answer).encode() + b"\n")
        sys.stdout.buffer.flush()


def _answer(connection: Any, query: str, values: list[Any], rows: int) -> dict[str, Any]:
    statements = connection.extract_statements(query)
    if len(statements) != 1 or statements[0].type.name != "SELECT":
        kinds = ", ".join(statement.type.name for statement in statements) or "none"
        return {"error": f"statements given: {kinds}; expected one SELECT, which only reads"}
    cursor = connection.execute(statements[0], values)
    columns = [str(column[0]) for column in cursor.description]
    found: list[list[Any]] = []
    left = MOST_CHARACTERS
    while len(found) < rows and left > 0:
        row = cursor.fetchone()
        if row is None:
            return {"columns": columns, "rows": found, "more": False}
        cells = [_json(cell) for cell in row]
        left -= sum(len(cell) if isinstance(cell, str) else 8 for cell in cells)
        found.append(cells)
    return {"columns": columns, "rows": found, "more": cursor.fetchone() is not None}


def _json(value: Any) -> Any:
    """Return a cell as JSON has it; what it has not is written as a text, and a long text is cut, with a mark."""
    if value is None or isinstance(value, bool) or (isinstance(value, float) and math.isfinite(value)):
        return value
    if isinstance(value, int) and value.bit_length() <= 64:
        return value
    text = value.isoformat() if isinstance(value, datetime.date) else value if isinstance(value, str) else str(value)
    return text if len(text) <= LONGEST_CELL else f"{text[:LONGEST_CELL]} [cut: {len(text):,} characters]"


if __name__ == "__main__":
    main(*sys.argv[1:])
