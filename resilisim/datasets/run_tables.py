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

from resilisim.datasets.export import ShardWriter
from resilisim.datasets.folder import ShardFacts
from resilisim.datasets.schema import Column, DataType, Record, RecordSchema, import_parquet
from resilisim.errors import InvalidInputError, StoreError
from resilisim.evaluation.episode.record import LOSS_LABELS, EpisodeRecord, FailureRecord
from resilisim.evaluation.episode.texts import opened_if_whole
from resilisim.evaluation.run.store import EPISODES_NAME, FAILURES_NAME, read_failures, read_manifest, read_own_records
from resilisim.provenance import describe_os_error, encode_json

KEYS: Final = (
    Column("index", "int64", "Place of the episode in the plan of the run; the same in all tables."),
    Column("policy", "string", "Name of the policy; behind an @ the model, where a run has several."),
    Column("prompt_type", "string", "Prompt type."),
    Column("instance_id", "string", "Task."),
    Column("seed", "int64", "Seed of the episode."),
)
OTHER_LOSSES: Final = "loss_other"

_MESSAGE: Final = {"role": "string", "content": "string", "tool_calls": "string", "tool_call_id": "string"}
_EVENT: Final = {
    "kind": "string",
    "component": "string",
    "text": "string",
    "call": "int64",
    "turn": "int64",
    "details": "string",
}

EPISODES: Final = RecordSchema(
    "resilisim-run-episodes-2",
    (
        *KEYS,
        Column("task_type", "string", "Type of the task."),
        Column("complexity", "string", "easy, medium or hard."),
        Column("required_tools", ["string"], "Required tools in the required order."),
        Column("required_outputs", ["string"], "Output tools among them."),
        Column("privileged", "bool", "Whether the policy saw the state."),
        Column("protocol", "string", "native if a message used a native tool call, else text."),
        Column("planner", "string", "Who made the plan in the prompt; null without a plan."),
        Column("flaw_type", "string", "What is wrong with this plan; null if nothing is."),
        Column("flaw_method", "string", "How the flaw was made."),
        Column("flaw_severity", "string", "light, moderate or severe."),
        Column("flaw_edits", "string", "The edits that made it, as JSON text."),
        Column("flaw_plan", ["string"], "Tools of the flawed plan as shown; null in older records."),
        Column("flaw_limits", "string", "`max_tries` and `skip_from` of its steps, as JSON text; null without limits."),
        Column("outcome", "int64", "1 for a full success, else 0."),
        Column("level", "string", "full_success, partial_success or failure."),
        Column("coverage", "float64", "Share of the required tools that succeeded."),
        Column("minimum", "bool", "Whether they were enough for a partial success."),
        Column("order", "bool", "Whether their first successes came in the required order."),
        Column("output", "bool", "Whether a required output tool succeeded, or none is required."),
        Column("completion", "bool", "Whether completion was signalled."),
        Column("ended_by", "string", "What ended the episode."),
        Column("num_steps", "int64", "Messages of the policy."),
        Column("optimum", "float64", "V* of the start: the highest probability of a full success."),
        Column("optimum_gap", "float64", "By how much any V* of the task may be too low."),
        Column(
            "known_after_search",
            "float64",
            "V* after the fewest searches that show the required tools: the ceiling where they must be found; null "
            "where they are told (V* is the ceiling there), where the number is unknown, and in older records.",
        ),
        Column("searches_needed", "int64", "How many searches these are; null likewise."),
        Column("no_search_ceiling", "string", "Why the number is unknown where tools must be found; else null."),
        Column("regret", "float64", "Probability of success that calls gave away, over all steps."),
        Column("luck", "float64", "Luck of the draws, over all steps."),
        *(Column(f"loss_{label}", "float64", f"Regret by {text}.") for label, text in LOSS_LABELS.items()),
        Column(OTHER_LOSSES, "float64", "Regret with a label that this version does not know."),
        Column("law", "string", "Constants of the law, as JSON text."),
        Column("rules", "string", "End rules, as JSON text."),
        Column("salt", "string", "Salt of the luck."),
        Column("prompt", "string", "What the environment said first; null if the record kept no texts."),
        Column(
            "agent_architecture", "string", "Architecture of an LLM agent; null, like all that follows, for others."
        ),
        Column("agent_model", "string", "The model that all its components ask; null if they ask several."),
        Column("agent_models", "string", "Component to model, as JSON text."),
        Column("agent_protocol", "string", "How the model called tools: text or native."),
        Column("agent_prompts", "string", "Hash of the agent's prompts."),
        Column("agent_options", "string", "Its options, as JSON text."),
        Column("agent_oracle", "bool", "Whether it was told what only the benchmark knows."),
        Column("agent_calls", "int64", "Calls of models."),
        Column("agent_prompt_tokens", "int64", "Tokens that models read."),
        Column("agent_completion_tokens", "int64", "Tokens that they wrote."),
        Column("agent_seconds", "float64", "Seconds that calls took, one after the other."),
        Column("agent_cost", "float64", "US dollars; null if a price is not known."),
        Column("agent_restarts", "int64", "Fresh episodes that it began before this one."),
        Column("agent_ended_by", "string", "What ended it: answer, gave_up, environment, or a cap."),
        Column("agent_answer", "string", "Its answer."),
        Column("agent_first_failure", "string", "The first event in which a component gave up, as JSON text."),
        Column("agent_counters", "string", "Its counters, as JSON text."),
        Column("agent_components", "string", "What each component used, as JSON text."),
        Column("agent_structure", "string", "Its own structure (plans, tasks, memories), as JSON text."),
        Column("agent_events", [_EVENT], "What happened in it, in order; details as JSON text."),
        Column("agent_messages", [_MESSAGE], "Messages that calls name by their place; tool_calls as JSON text."),
    ),
)
STEPS: Final = RecordSchema(
    "resilisim-run-steps-2",
    (
        *KEYS,
        Column("turn", "int64", "Number of the message in its episode, from 1."),
        Column("message", "string", "What the policy wrote."),
        Column("kind", "string", "What it was: search, info, execute, rejected, finish, format_error or stop."),
        Column("tool", "string", "Tool that it executed, asked for, or was refused."),
        Column("attempt", "int64", "How often this tool has been executed, this time included."),
        Column("success", "bool", "Whether the execution succeeded."),
        Column("error", "string", "Code of a failed execution, or why a message was rejected or not read."),
        Column("success_probability", "float64", "Probability that the law gave it."),
        Column("value", "float64", "V* before the message."),
        Column("action_value", "float64", "Q* of the message."),
        Column("regret", "float64", "value - action_value: what the choice cost."),
        Column("luck", "float64", "V* after the message - action_value."),
        Column("label", "string", "Reason of the regret."),
        Column("reply", "string", "What the environment answered; null if the record kept no texts."),
    ),
)
CALLS: Final = RecordSchema(
    "resilisim-run-calls-2",
    (
        *KEYS,
        Column("call", "int64", "Number of the call in its episode, from 0."),
        Column("component", "string", "Component of the agent that asked."),
        Column("model", "string", "Model that was asked."),
        Column("turn", "int64", "Messages that the policy had sent before."),
        Column("messages", ["int64"], "The request: places in agent_messages of the episode."),
        Column("tools", ["string"], "Tools that the request offered."),
        Column("settings", "string", "Settings of the request, as JSON text."),
        Column("thoughts", "string", "What the model thought, where the endpoint gave that beside the reply."),
        Column("text", "string", "The reply; null, as all that was said, if the record kept no texts."),
        Column("tool_calls", "string", "Native tool calls of the reply, as JSON text."),
        Column("finish_reason", "string", "Why the reply ended."),
        Column("answered_by", "string", "Model as the endpoint named it."),
        Column("prompt_tokens", "int64", "Tokens read."),
        Column("completion_tokens", "int64", "Tokens written."),
        Column("is_estimate", "bool", "Whether these are estimates."),
        Column("latency_seconds", "float64", "Seconds until the reply."),
        Column("attempts", "int64", "Requests that it took."),
        Column("dropped", ["string"], "Options of the request that the endpoint refuses, so that they were left out."),
        Column("from_cache", "bool", "Whether the reply came from a cache."),
        Column("cost", "float64", "US dollars; null if the price is not known."),
    ),
)
FAILURES: Final = RecordSchema(
    "resilisim-run-failures-1",
    (
        *KEYS,
        Column("error", "string", "What kept the episode from its end."),
        Column("reason", "string", "Kind of the error."),
        Column("calls", "int64", "Calls of models that were answered before."),
    ),
)


# What not every record has: older ones, those of episodes without a flaw, and those that keep no texts.
_MAY_BE_MISSING: Final = frozenset(
    {
        *("coverage", "minimum", "order", "output", "completion"),
        *("known_after_search", "searches_needed", "no_search_ceiling"),
        *(column.name for column in EPISODES.columns if column.name.startswith("flaw_")),
        *("agent_structure", "messages", "thoughts", "text", "tool_calls"),
    }
)


def episode_row(record: EpisodeRecord) -> Record:
    """Return the row of an opened episode; KeyError, TypeError and the like tell that a part of it is not whole."""
    losses = record["losses"]
    values: dict[str, Any] = {
        **record["score"],
        **record,
        **{f"flaw_{name}": value for name, value in (record["flaw"] or {}).items()},
        **{f"loss_{label}": losses.get(label, 0.0) for label in LOSS_LABELS},
        OTHER_LOSSES: sum(loss for label, loss in losses.items() if label not in LOSS_LABELS),
        "num_steps": len(record["steps"]),
        "prompt": _spoken(record)["prompt"],
        **_agent_values(record.get("agent")),
    }
    return _cells(EPISODES.columns, values)


def step_rows(record: EpisodeRecord) -> list[Record]:
    """Return one row for each message of an episode."""
    keys = _cells(KEYS, record)
    replies = _spoken(record)["replies"] or [None] * len(record["steps"])
    columns = STEPS.columns[len(KEYS) :]
    return [
        keys | _cells(columns, {**step, "reply": reply}) for step, reply in zip(record["steps"], replies, strict=True)
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


def failure_row(failure: FailureRecord) -> Record:
    """Return the row of a failure."""
    return _cells(FAILURES.columns, failure)


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


def _spoken(record: EpisodeRecord) -> Mapping[str, Any]:
    spoken = record.get("texts")
    return {"prompt": None, "replies": None} if spoken is None or isinstance(spoken, str) else spoken


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
                tables.add_failure(failure)
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
            self._writer(name)

    def _writer(self, name: str) -> ShardWriter:
        if name not in self._writers:
            schema = TABLES[name]
            metadata = {TABLE_KEY: schema.name, MANIFEST_KEY: self._manifest}
            writer = ShardWriter(self._folder / name, "parquet", schema, metadata=metadata, advice=ADVICE)
            self._writers[name] = self._stack.enter_context(writer)
        return self._writers[name]

    def add(self, record: EpisodeRecord) -> None:
        """Write the rows of an episode; the table of calls is begun with the first call."""
        record, problem = opened_if_whole(record)
        if problem is not None:
            warnings.warn(f"{problem}; the tables leave them out", UserWarning, stacklevel=2)
        self._writer("episodes.parquet").write(episode_row(record))
        for row in step_rows(record):
            self._writer("steps.parquet").write(row)
        for row in call_rows(record):
            self._writer("calls.parquet").write(row)

    def add_failure(self, failure: FailureRecord) -> None:
        """Write the row of a failure."""
        self._writer("failures.parquet").write(failure_row(failure))

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
    parquet = import_parquet()
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
