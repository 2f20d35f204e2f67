"""A run's folder as Parquet tables, for pandas, polars, DuckDB, Hugging Face `datasets` and whatever reads Parquet.

Values stand in columns of their own; what has no fixed shape (edits of a flaw, settings of a request, the structure of
an agent) is JSON text. Every table of episodes begins with `KEYS`, by which rows are joined.
"""

from __future__ import annotations

import contextlib
import json
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from resilisim.datasets.dataset_folder import ShardFacts
from resilisim.datasets.export import ShardWriter
from resilisim.datasets.schema import (
    Column,
    DataType,
    Record,
    RecordSchema,
    import_parquet,
    shipped_columns,
    to_arrow,
)
from resilisim.errors import InvalidInputError, StoreError, unknown_name
from resilisim.evaluation.episode.record import LAW_LABELS, LOSS_LABELS, EpisodeRecord, FailureRecord
from resilisim.evaluation.episode.texts import opened_if_whole, spoken_texts
from resilisim.evaluation.run.store import (
    EPISODES_NAME,
    FAILURES_NAME,
    num_planned,
    read_failures,
    read_manifest,
    read_own_records,
)
from resilisim.evaluation.run_results import EvaluationResult
from resilisim.provenance import describe_os_error, encode_json

KEYS: Final = shipped_columns("keys")
OTHER_LOSSES: Final = "loss_other"
# Those of laws with parts stand with their steps, and together in the column of the others.
_OWN_LOSSES: Final = tuple(label for label in LOSS_LABELS if label not in LAW_LABELS)


def _episode_columns() -> tuple[Column, ...]:
    """Return the columns of episodes, among them one for each label that a loss can have."""
    listed = shipped_columns("episodes")
    place = next(place for place, column in enumerate(listed) if column.name == OTHER_LOSSES)
    losses = (Column(f"loss_{label}", "float64", f"Regret by {LOSS_LABELS[label]}.") for label in _OWN_LOSSES)
    return (*KEYS, *listed[:place], *losses, *listed[place:])


EPISODES: Final = RecordSchema("resilisim-run-episodes-4", _episode_columns())
STEPS: Final = RecordSchema("resilisim-run-steps-2", (*KEYS, *shipped_columns("steps")))
CALLS: Final = RecordSchema("resilisim-run-calls-2", (*KEYS, *shipped_columns("calls")))
OF_UNCLEAR_FAILURES: Final = ("fault", "messages", "optimum")  # which others, and older ones, lack
FAILURES: Final = RecordSchema("resilisim-run-failures-2", (*KEYS, *shipped_columns("failures")))
# What not every record has: older ones, those of episodes without a flaw, and those that keep no texts.
_MAY_BE_MISSING: Final = frozenset(
    {
        *("weight", "coverage", "minimum", "order", "output", "completion"),
        *("optimum_after_searches", "searches_needed", "no_search_ceiling"),
        *(column.name for column in EPISODES.columns if column.name.startswith("flaw_")),
        *("agent_structure", "messages", "thoughts", "text", "tool_calls"),
    }
)


# What a reference solution has to be there for, or the law of the benchmark.
_WORTH: Final = ("value", "action_value", "regret", "luck", "label")


def episode_row(record: EpisodeRecord) -> Record:
    """Return the row of an opened episode; KeyError, TypeError and the like tell that a part of it is not whole."""
    losses, spoken = record["losses"], spoken_texts(record)
    values: dict[str, Any] = {
        **record["score"],
        **record,
        **{f"flaw_{name}": value for name, value in (record["flaw"] or {}).items()},
        **{f"loss_{label}": losses.get(label, 0.0) for label in _OWN_LOSSES},
        OTHER_LOSSES: sum(loss for label, loss in losses.items() if label not in _OWN_LOSSES),
        "num_steps": len(record["steps"]),
        "prompt": None if spoken is None else spoken["prompt"],
        **_agent_values(record.get("agent")),
    }
    if "no_ceiling" in record:  # what nobody knows
        unknown = [name for name in values if name.startswith("loss_")]
        values |= dict.fromkeys((*_WORTH, "optimum", "optimum_gap", *unknown))
        values["no_search_ceiling"] = record["no_ceiling"]
    return _cells(EPISODES.columns, values)


def step_rows(record: EpisodeRecord) -> list[Record]:
    """Return one row for each message of an episode."""
    keys, spoken = _cells(KEYS, record), spoken_texts(record)
    replies = [None] * len(record["steps"]) if spoken is None else spoken["replies"]
    columns = STEPS.columns[len(KEYS) :]
    unknown = dict.fromkeys(_WORTH) if "no_ceiling" in record else {}
    return [
        keys | _cells(columns, {**step, **unknown, "reply": reply})
        for step, reply in zip(record["steps"], replies, strict=True)
    ]


def call_rows(record: EpisodeRecord) -> list[Record]:
    """Return one row for each call of a model; none for policies that ask no model."""
    keys = _cells(KEYS, record)
    columns = CALLS.columns[len(KEYS) :]
    rows: list[Record] = []
    for number, call in enumerate(record.get("agent", {}).get("calls", ())):
        reply = call["reply"]
        here = {
            "call": number,
            "component": call["role"],
            "answered_by": reply["model"],
            "messages": call.get("messages", []),
            "dropped": reply.get("dropped", []),
        }
        rows.append(keys | _cells(columns, {**reply["usage"], **reply, **call, **here}))
    return rows


def _agent_values(agent: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the values of the columns of an LLM agent; None in each for other policies."""
    if agent is None:
        return dict.fromkeys(column.name for column in EPISODES.columns if column.name.startswith("agent_"))
    usages = list(agent["components"].values())
    costs = [usage["cost"] for usage in usages]
    models = set(agent["models"].values())
    return {f"agent_{name}": value for name, value in agent.items()} | {
        "agent_model": models.pop() if len(models) == 1 else None,
        "agent_calls": len(agent["calls"]),
        "agent_prompt_tokens": sum(usage["prompt_tokens"] for usage in usages),
        "agent_completion_tokens": sum(usage["completion_tokens"] for usage in usages),
        "agent_seconds": sum(usage["latency_seconds"] for usage in usages),
        "agent_cost": None if None in costs else sum(costs),
        "agent_messages": agent.get("messages", []),
    }


def _cells(columns: Iterable[Column], values: Mapping[str, Any]) -> Record:
    """Return the values of columns in the types of the columns; what has no fixed shape becomes JSON text."""
    return {
        column.name: _cell(
            values.get(column.name) if column.name in _MAY_BE_MISSING else values[column.name], column.type
        )
        for column in columns
    }


def _cell(value: Any, data_type: DataType) -> Any:
    if value is None:
        return None
    if isinstance(data_type, Mapping):
        return {name: _cell(value.get(name), inner) for name, inner in data_type.items()}
    if not isinstance(data_type, str):
        return [_cell(item, data_type[0]) for item in value]
    if data_type == "float64":
        return float(value)
    if data_type == "string" and not isinstance(value, str):
        return encode_json(value, separators=(",", ":")).decode()
    return value


MANIFEST_KEY: Final = "resilisim.manifest"
TABLE_KEY: Final = "resilisim.table"
RUN_TABLES: Final[dict[str, RecordSchema]] = {
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
    """What an export made: a folder of tables with so many of the episodes that the whole run has."""

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
    """Write the tables of a run that `evaluate` wrote, finished or not; rows in the order in which episodes ended.

    Records are read and written one by one. Each table gets its name when it is whole; tables that an earlier export of
    the same run left are replaced.

    Raises:
        StoreError: It is not a folder of results, a record is broken, the folder holds tables of another run, or it
            cannot
            be written.
        MissingExtraError: pyarrow is not installed.
    """
    import_parquet()
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
                tables.writer("failures.parquet").write(_failure_row(failure))
        facts = tables.commit()
    num_episodes = facts[0].num_records
    return RunExport(folder, facts, num_episodes, num_planned(manifest["arguments"], num_episodes))


def run_frame(run: Path | str | EvaluationResult, table: str = "episodes") -> Any:
    """Return a table of a run in memory, which pandas, polars and DuckDB take as it is (Arrow's C stream).

    `pandas.DataFrame.from_arrow(frame)`, `polars.DataFrame(frame)` (tried with pandas 3 and polars 2.1); columns are
    those of `resilisim runs export`.

    Args:
        run: The folder of a run, finished or not, or its result.
        table: "episodes", "steps", "calls" (of language models) or "failures".

    Returns:
        A `pyarrow.Table`, rows in the order in which episodes ended.

    Raises:
        InvalidInputError: There is no such table.
        StoreError: It is not a folder of results, or a record is broken.
        MissingExtraError: pyarrow is not installed.

    Example:
        >>> from resilisim import evaluate
        >>> from resilisim.datasets import run_frame
        >>> frame = run_frame(evaluate("plan-follower", tasks=3, prompts="optimal"))
        >>> frame.num_rows, frame.column("policy")[0].as_py()
        (3, 'plan-follower')
    """
    name = f"{table}.parquet"
    if name not in RUN_TABLES:
        raise unknown_name("table", table, [each.removesuffix(".parquet") for each in RUN_TABLES])
    pyarrow = import_parquet("pyarrow")
    directory = Path(run.directory if isinstance(run, EvaluationResult) else run)
    schema = to_arrow(RUN_TABLES[name], "string")
    manifest = read_manifest(directory)
    rows: list[Record] = []
    if table == "failures":
        for failure in read_failures(directory):
            with _naming(directory / FAILURES_NAME, failure.get("index")):
                rows.append(_failure_row(failure))
    else:
        for record in read_own_records(directory, manifest):
            with _naming(directory / EPISODES_NAME, record["index"]):
                rows += _rows_of(opened_if_whole(record)[0], name)
    return pyarrow.Table.from_pylist(rows, schema=schema)


def _rows_of(record: EpisodeRecord, name: str) -> list[Record]:
    """Return the rows of an opened episode in a table."""
    if name == "episodes.parquet":
        return [episode_row(record)]
    return step_rows(record) if name == "steps.parquet" else call_rows(record)


def _failure_row(failure: FailureRecord) -> Record:
    return _cells(FAILURES.columns, {**dict.fromkeys(OF_UNCLEAR_FAILURES), **failure})


class _Tables:
    """The tables under way; each leaves nothing behind unless all are whole."""

    def __init__(self, folder: Path, manifest: dict[str, Any], stack: contextlib.ExitStack) -> None:
        self._folder = folder
        self._manifest = encode_json(manifest, sort_keys=True, separators=(",", ":")).decode()
        self._stack = stack
        self._writers: dict[str, ShardWriter] = {}
        for name in ("episodes.parquet", "steps.parquet", "failures.parquet"):
            self.writer(name)

    def writer(self, name: str) -> ShardWriter:
        """Return what writes a table, which is begun when it is asked for first."""
        if name not in self._writers:
            schema = RUN_TABLES[name]
            metadata = {TABLE_KEY: schema.name, MANIFEST_KEY: self._manifest}
            writer = ShardWriter(self._folder / name, "parquet", schema, metadata=metadata, advice=ADVICE)
            self._writers[name] = self._stack.enter_context(writer)
        return self._writers[name]

    def add(self, record: EpisodeRecord) -> None:
        """Write the rows of an episode."""
        record, problem = opened_if_whole(record)
        if problem is not None:
            warnings.warn(f"{problem}; the tables leave them out", UserWarning, stacklevel=2)
        for name in ("episodes.parquet", "steps.parquet", "calls.parquet"):
            for row in _rows_of(record, name):
                self.writer(name).write(row)

    def commit(self) -> tuple[ShardFacts, ...]:
        """Give all tables their names, in the order of `RUN_TABLES`; remove one that this run has not (any more)."""
        for name in RUN_TABLES:
            if name not in self._writers:
                (self._folder / name).unlink(missing_ok=True)
        return tuple(self._writers[name].commit() for name in RUN_TABLES if name in self._writers)


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
    parquet = import_parquet()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name in RUN_TABLES:
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
        run_hash = json.loads(metadata[MANIFEST_KEY.encode()])["hash"]
    except (ValueError, KeyError, TypeError):  # pyarrow's refusals of what is no Parquet are ValueErrors
        return None
    return run_hash if isinstance(run_hash, str) else None
