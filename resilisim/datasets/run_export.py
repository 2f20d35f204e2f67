"""A run's folder as Parquet tables, for pandas, polars, DuckDB, Hugging Face `datasets` and whatever reads Parquet.

`episodes.parquet` has one row for each episode, `steps.parquet` one for each message of a policy, `calls.parquet` one
for each call of a language model (only where there are some), `failures.parquet` one for each try that infrastructure
kept from its end. `resilisim.datasets.run_schema` says what the columns mean; `index` joins them. The run's manifest is
JSON text under `resilisim.manifest` in the metadata of each schema, the name of the table's schema under
`resilisim.table`. Strings are dictionary-encoded and pages compressed with zstd. Halves of characters, which Parquet
cannot hold, become U+FFFD.
"""

from __future__ import annotations

import contextlib
import json
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from resilisim.datasets.extras import require
from resilisim.datasets.run_schema import (
    CALLS,
    EPISODES,
    FAILURES,
    STEPS,
    call_rows,
    episode_row,
    failure_row,
    step_rows,
)
from resilisim.datasets.schema import Record, RecordSchema
from resilisim.datasets.shards import ShardFacts
from resilisim.datasets.writing import ShardWriter
from resilisim.errors import InvalidInputError, StoreError
from resilisim.evaluation.episode.record import EpisodeRecord
from resilisim.evaluation.episode.texts import opened_if_whole
from resilisim.evaluation.run.store import EPISODES_NAME, FAILURES_NAME, read_failures, read_manifest, read_own_records
from resilisim.provenance import describe_os_error, encode_json

MANIFEST_KEY: Final = "resilisim.manifest"
TABLE_KEY: Final = "resilisim.table"
TABLES: Final[dict[str, RecordSchema]] = {
    "episodes.parquet": EPISODES,
    "steps.parquet": STEPS,
    "calls.parquet": CALLS,
    "failures.parquet": FAILURES,
}
ADVICE = "no table was changed"
# A record that was valid when it was written and is not any more raises one of these in whatever reads it.
_BROKEN = (KeyError, TypeError, ValueError, AttributeError, InvalidInputError)


@dataclass(frozen=True, slots=True)
class RunExport:
    """What an export made.

    Attributes:
        directory: The folder of the tables.
        tables: Name, rows, size and hash of each.
        num_episodes: Episodes in them.
        num_planned: Episodes of the whole run.
    """

    directory: Path
    tables: tuple[ShardFacts, ...]
    num_episodes: int
    num_planned: int

    def to_mapping(self) -> dict[str, Any]:
        """Return the result as JSON values."""
        return {
            "directory": str(self.directory),
            "num_episodes": self.num_episodes,
            "num_planned": self.num_planned,
            "tables": [facts.to_mapping() for facts in self.tables],
        }


def export_run(directory: Path | str, out: Path | str, *, progress: Callable[[int], None] | None = None) -> RunExport:
    """Write the tables of a run, finished or not; rows in the order in which episodes ended.

    Records are read and written one by one. Each table gets its name when it is whole; tables that an earlier export of
    the same run left are replaced.

    Args:
        directory: Folder that `evaluate` wrote.
        out: Folder of the tables; it is made if needed.
        progress: Called with the number of episodes read since the last call.

    Raises:
        StoreError: It is no folder of results, a record is broken, the folder holds tables of another run, or it cannot
            be written.
        MissingExtraError: pyarrow is not installed.
    """
    require("pyarrow.parquet")
    source, folder = Path(directory), Path(out)
    manifest = read_manifest(source)
    _prepare(folder, manifest)
    with contextlib.ExitStack() as stack:
        tables = _Tables(folder, manifest, stack)
        for record in read_own_records(source, manifest):
            with _naming(source / EPISODES_NAME, record["index"]):
                tables.add(record)
            if progress is not None:
                progress(1)
        for failure in read_failures(source):
            with _naming(source / FAILURES_NAME, failure.get("index")):
                tables.write("failures.parquet", [failure_row(failure)])
        facts = tables.commit()
    num_episodes = facts[0].num_records
    return RunExport(folder, facts, num_episodes, manifest["arguments"].get("num_episodes", num_episodes))


class _Tables:
    """The tables under way; each leaves nothing behind unless all are whole."""

    def __init__(self, folder: Path, manifest: dict[str, Any], stack: contextlib.ExitStack) -> None:
        self._folder = folder
        self._manifest = encode_json(manifest, sort_keys=True, separators=(",", ":")).decode()
        self._stack = stack
        self._writers: dict[str, ShardWriter] = {}
        for name in ("episodes.parquet", "steps.parquet", "failures.parquet"):
            self.write(name, [])

    def add(self, record: EpisodeRecord) -> None:
        """Write the rows of an episode."""
        record, problem = opened_if_whole(record)
        if problem is not None:
            warnings.warn(f"{problem}; the tables leave them out", UserWarning, stacklevel=2)
        self.write("episodes.parquet", [episode_row(record)])
        self.write("steps.parquet", step_rows(record))
        calls = call_rows(record)
        if calls:
            self.write("calls.parquet", calls)

    def write(self, name: str, rows: list[Record]) -> None:
        """Write rows of a table, which is begun if needed."""
        if name not in self._writers:
            schema = TABLES[name]
            metadata = {TABLE_KEY: schema.name, MANIFEST_KEY: self._manifest}
            writer = ShardWriter(self._folder / name, "parquet", schema, metadata=metadata, advice=ADVICE)
            self._writers[name] = self._stack.enter_context(writer)
        for row in rows:
            self._writers[name].write(row)

    def commit(self) -> tuple[ShardFacts, ...]:
        """Give all tables their names, in the order of `TABLES`; remove one that this run has not (any more)."""
        for name in TABLES:
            if name not in self._writers:
                (self._folder / name).unlink(missing_ok=True)
        return tuple(self._writers[name].commit() for name in TABLES if name in self._writers)


@contextlib.contextmanager
def _naming(path: Path, index: object) -> Iterator[None]:
    """Name the episode whose record is broken."""
    try:
        yield
    except _BROKEN as error:
        text = f"lacks {error}" if isinstance(error, KeyError) else " ".join(str(error).split())
        raise StoreError(f"episode {index} in {path} cannot be exported: {text}") from error


def _prepare(folder: Path, manifest: dict[str, Any]) -> None:
    """Make the folder, refuse tables that are not of this run, and remove what a killed export left."""
    parquet = require("pyarrow.parquet")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name in TABLES:
            for old in folder.glob(f".{name}.*.tmp"):
                old.unlink(missing_ok=True)
            path = folder / name
            if path.exists() and _run_of(parquet, path) != manifest["hash"]:
                raise StoreError(f"{path} is not a table of this run: use another folder")
    except OSError as error:
        raise StoreError(f"cannot write to {folder}: {describe_os_error(error)}") from error


def _run_of(parquet: Any, path: Path) -> str | None:
    """Return the hash of the run that a table is of; None if it is not one of ours."""
    try:
        metadata = parquet.read_schema(path).metadata or {}
        found = json.loads(metadata[MANIFEST_KEY.encode()])["hash"]
    except (ValueError, KeyError, TypeError):  # pyarrow's refusals of what is no Parquet are ValueErrors
        return None
    return found if isinstance(found, str) else None
