"""The process that runs queries for `resilisim.worlds.records.database`, which starts it as a program of its own.

It imports nothing of the package. It reads requests as lines of JSON and writes an answer to each; when the pipe is
closed, it ends. What a query may read is decided by its syntax tree: tables of the database and what says which there
are, never settings, extensions, files or the place of the database. DuckDB alone keeps neither memory nor time:
`repeat('x', 3000000000)` takes 6 GB and half a minute in spite of its limit and of an interrupt. So the operating
system bounds this process, and whoever asks kills it; should they have died in the middle of a query, its time of the
processor ends it.
"""

import contextlib
import datetime
import json
import math
import os
import sys
import time
from collections.abc import Iterator
from typing import Any

import duckdb

if sys.platform != "win32":
    import resource

MOST_CHARACTERS = 2_000_000  # of the values of one answer
LONGEST_CELL = 20_000
PROCESS_FACTOR = 4  # how many times the memory of DuckDB its process may map: programs, threads and its excesses


# Functions in FROM that compute; all others read files, settings, extensions, logs or catalogs, or run a text as SQL.
TABLE_FUNCTIONS = frozenset(
    {"range", "generate_series", "unnest", "repeat", "repeat_row", "json_each", "json_tree"}
    | {"pragma_table_info", "pragma_show"}
)
CLOSED_FUNCTIONS = frozenset({"current_setting", "getenv", "query", "query_table"})
INFORMATION = frozenset({"tables", "columns", "schemata"})  # of information_schema
OWN_CATALOG = frozenset({"sqlite_master", "sqlite_schema"})
SHOWN = frozenset({"tables", "__show_tables_expanded"})  # SHOW TABLES, SHOW ALL TABLES
WITH_ZONE = "TIMESTAMP WITH TIME ZONE"  # for which DuckDB wants a package of its own in Python


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
    }
    connection = duckdb.connect(file, read_only=True, config=settings)
    with contextlib.suppress(duckdb.Error):  # time zones are an extension that a build may lack
        connection.execute("SET TimeZone = 'UTC'")  # the host's says where it stands
    connection.execute("SET lock_configuration = true")
    hidden = {str(name).lower() for (name,) in connection.execute("SELECT view_name FROM duckdb_views()").fetchall()}
    for line in sys.stdin.buffer:
        request = json.loads(line)
        if sys.platform != "win32":
            most = int(time.process_time() + float(seconds)) + 1
            resource.setrlimit(resource.RLIMIT_CPU, (most, resource.RLIM_INFINITY))
        try:
            answer = _answer(connection, hidden, **request)
        except (duckdb.Error, MemoryError, UnicodeError) as error:
            answer = {"error": _without_places(str(error))[:2_000] or type(error).__name__}
        sys.stdout.buffer.write(json.dumps(answer).encode() + b"\n")
        sys.stdout.buffer.flush()


def _answer(connection: Any, hidden: set[str], query: str, values: list[Any], rows: int) -> dict[str, Any]:
    statements = connection.extract_statements(query)
    if len(statements) != 1 or statements[0].type.name != "SELECT":
        kinds = ", ".join(statement.type.name for statement in statements) or "none"
        return {"error": f"statements given: {kinds}; expected one SELECT, which only reads"}
    text = str(statements[0].query).strip().rstrip(";")
    problem = next(_closed(connection, hidden, text), None)
    if problem is not None:
        return {"error": f"{problem} cannot be read; expected tables of the database, which SHOW TABLES lists"}
    cursor = connection.execute(statements[0], values)
    columns = [str(column[0]) for column in cursor.description]
    has_zone = [WITH_ZONE in str(column[1]) for column in cursor.description]
    if any(has_zone):
        names = [f"c{place}" for place in range(len(columns))]
        shown = [f"CAST({name} AS VARCHAR)" if zone else name for name, zone in zip(names, has_zone, strict=True)]
        cursor = connection.execute(f"SELECT {', '.join(shown)} FROM (\n{text}\n) AS q({', '.join(names)})", values)
    fetched: list[list[Any]] = []
    left = MOST_CHARACTERS
    while len(fetched) < rows and left > 0:
        row = cursor.fetchone()
        if row is None:
            return {"columns": columns, "rows": fetched, "more": False}
        cells = [_json(cell) for cell in row]
        left -= sum(len(cell) if isinstance(cell, str) else 8 for cell in cells)
        fetched.append(cells)
    return {"columns": columns, "rows": fetched, "more": cursor.fetchone() is not None}


def _closed(connection: Any, hidden: set[str], text: str) -> Iterator[str]:
    """Yield what a query reads that is no table of the database, by its syntax tree."""
    tree = json.loads(connection.execute("SELECT json_serialize_sql(?::VARCHAR)", [text]).fetchone()[0])
    if tree.get("error"):
        yield "a statement of this form"
        return
    waiting: list[Any] = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, list):
            waiting.extend(node)
            continue
        if not isinstance(node, dict):
            continue
        kind = node.get("type")
        name = str(node.get("table_name") or "").strip('"').lower()
        schema = str(node.get("schema_name") or "").lower()
        function = str(node.get("function_name") or "").lower()
        if kind == "TABLE_FUNCTION":
            called = str((node.get("function") or {}).get("function_name") or "").lower()
            if called not in TABLE_FUNCTIONS:
                yield f"the function {called!r}"
        elif kind == "BASE_TABLE":
            is_listed = name in INFORMATION if schema == "information_schema" else name in OWN_CATALOG
            if not is_listed and (name in hidden or schema not in ("", "main")):
                yield f"the table {name!r}"
        elif kind == "SHOW_REF":
            if (
                name
                and name not in SHOWN
                and (node.get("show_type") == "SHOW_SPECIAL" or not _is_table(connection, name))
            ):
                yield f"what SHOW {name} tells"
        elif function in CLOSED_FUNCTIONS:
            yield f"the function {function!r}"
        waiting.extend(node.values())


def _is_table(connection: Any, name: str) -> bool:
    count = connection.execute("SELECT count(*) FROM duckdb_tables() WHERE lower(table_name) = ?", [name]).fetchone()
    return bool(count[0])


def _without_places(text: str) -> str:
    """Return an error without what follows its first words about Python, and without the paths of this machine."""
    text = text.partition("Traceback (most recent call last)")[0].rstrip(" :,")
    for place in (os.getcwd(), os.path.dirname(__file__), sys.prefix, sys.base_prefix, sys.exec_prefix):
        text = text.replace(place, "...")
    return text


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
