"""The dataset card: a README that says what a dataset is and how long its records are in tokens, and how to load it."""

from __future__ import annotations

import json
import math
import re
import string
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, Final

import numpy as np
from markupsafe import Markup

from resilisim.chat.local import shipped_model_path
from resilisim.chat.local.gguf import TokenCounter
from resilisim.datasets.dataset_folder import DATA_NAME, ShardFacts
from resilisim.datasets.schema import DataType, Record, RecordSchema, describe, shipped_values
from resilisim.errors import MissingExtraError
from resilisim.evaluation.episode.record import LOSS_LABELS
from resilisim.provenance import encode_json
from resilisim.tables.markdown import markdown_lines
from resilisim.tables.table import Cell, Table
from resilisim.tasks.split import SPLITS, split_of_task
from resilisim.tasks.task import Task

# Finding out what the prompt does not say has a price, and a message that obeys its prompt is not held against anybody.
_NO_MISTAKES: Final = ("information", "obeyed_flaw")
# Why a message is rejected in a world (`world_pairs`), and what kinds such messages are of.
WORLD_KINDS: Final = ("execute", "finish", "format_error", "rejected")
WORLD_REASONS: Final[Mapping[str, str]] = {
    "other_arguments": "calling the right tool with what another question asks of it",
    "unneeded_tool": "calling a tool that the reference solution does not use, as another question does",
    "repeated_success": "making again the call that went through last",
    "wrong_answer": "finishing with the answer of another question",
    **{name: LOSS_LABELS[name] for name in ("gave_up_early", "format_error", "rejected_call")},
}


def values_of(kind: str, in_world: bool = False) -> dict[str, Mapping[str, str]]:
    """Return what the values of a kind's columns mean, by column; empty for kinds without such columns."""
    if kind == "preferences" and in_world:
        return {"rejected_kind": _only(shipped_values("kind"), WORLD_KINDS), "rejected_reason": WORLD_REASONS}
    kinds, levels, ends = (shipped_values(name) for name in ("kind", "level", "ended_by"))
    if kind == "conversations":
        return {"turns.kind": kinds, "turns.label": LOSS_LABELS, "ended_by": ends, "level": levels}
    if kind == "preferences":
        return {
            "rejected_kind": {name: text for name, text in kinds.items() if name not in ("info", "stop", "wait")},
            "rejected_reason": {label: text for label, text in LOSS_LABELS.items() if label not in _NO_MISTAKES},
        }
    return {}


def _only(texts: Mapping[str, str], names: Sequence[str]) -> Mapping[str, str]:
    return {name: texts[name] for name in names}


def values_table(kind: str, in_world: bool = False) -> str:
    """Return the values of a kind's columns as a Markdown table; empty for kinds without such columns."""
    values = values_of(kind, in_world)
    rows = [
        [Cell(column, style="code"), Cell(name, style="code"), Markup(text)]
        for column, texts in values.items()
        for name, text in texts.items()
    ]
    return _table(["column", "value", "meaning"], rows, num_texts=3) if rows else ""


def _table(heads: Sequence[str], rows: Iterable[Sequence[object]], num_texts: int) -> str:
    """Return a Markdown table; columns behind the first texts hold numbers."""
    return "\n".join(markdown_lines(Table("", heads, list(rows), text_columns=num_texts)))


NO_TOKENIZER = "none"
# What ChatML puts around a message beside its role: two marks and two line ends. Other templates need about as much.
TOKENS_AROUND_A_MESSAGE = 4
_PERCENTILES = (50, 90, 99)
ROUNDED_TO = 64  # tokens: lengths of sequences are multiples of it
USUAL_MAX_LENGTH = 1024  # what TRL's trainers cut at unless they are told otherwise

# Lengths of the records of each split and prompt type.
Lengths = dict[tuple[str, str], list[int]]


# Parts of a law under which calling again at once can be wrong, and what the card says of each.
_LASTING = {
    "rate_limit": "What a rate limit refused works again only when its window has moved on.",
    "outage": "`SERVICE_UNAVAILABLE` lasts until the outage ends.",
    "broken": "A broken tool never works, however often it is called, and shows the same errors.",
}


def describe_failures(environment: Mapping[str, Any]) -> str:
    """Return what the dataset card says about failed calls, as an item of a list, under an environment's options."""
    law = environment.get("law", {})  # only where it is more than four constants
    if "error_kinds" in law:
        text = (
            f"Errors mean what they say (law `{law['name']}`): after a transient one calling again unchanged is right, "
            "after one of the input a parameter has to change, and after one of access what opens the tool has to "
            "succeed first."
        )
    elif environment.get("errors") == "transient":
        text = (
            "Failed calls show transient errors only (`TIMEOUT`, `NETWORK_ERROR`, `RATE_LIMIT_ERROR`, "
            "`OPERATION_FAILED`), after which calling again unchanged is right (`--errors transient`, the default)."
        )
    else:
        text = (
            "Failed calls show any error that the tool documents (`--errors documented`), and each goes away by "
            "calling again unchanged, `INVALID_INPUT` too: a habit that a model should not learn for tools whose "
            "errors mean what they say."
        )
    for part, exception in _LASTING.items():
        if part in law:
            text += f" {exception}"
    return textwrap.fill(text, 120, initial_indent="- ", subsequent_indent="  ")


def token_counter(tokenizer: str | Path | None) -> TokenCounter | None:
    """Return what counts tokens, as `export_dataset` names it; None for no counting."""
    if tokenizer is not None:
        return None if str(tokenizer) == NO_TOKENIZER else TokenCounter(Path(tokenizer))
    try:
        return TokenCounter(shipped_model_path())
    except MissingExtraError:
        return None


def measure_lengths(records: Iterable[Record], tasks: Iterable[Task], counter: TokenCounter) -> Lengths:
    """Return the lengths of records, ascending, by split and prompt type; empty for kinds without messages."""
    splits = {task.instance_id: split_of_task(task) for task in tasks}
    measured: Lengths = {}
    for record in records:
        length = record_length(record, counter)
        if length is not None:
            measured.setdefault((splits[record["instance_id"]], str(record["prompt_type"])), []).append(length)
    return {key: sorted(lengths) for key, lengths in measured.items()}


def record_length(record: Record, counter: TokenCounter) -> int | None:
    """Return the tokens of a record as one sequence, of a pair those of its longer side; None without text."""
    if "messages" in record:
        return _tokens_of(record["messages"], counter) + _tokens_of_tools(record, counter)
    if "chosen" in record and "rejected" in record:
        longer = max(_tokens_of(record[side], counter) for side in ("chosen", "rejected"))
        return longer + _tokens_of(record["prompt"], counter) + _tokens_of_tools(record, counter)
    if "prompt_type" in record and "text" in record:
        return _tokens_of([{"role": "user", "content": record["text"]}], counter)
    return None


def describe_lengths(lengths: Lengths, counter: TokenCounter | None) -> str:
    """Return what the dataset card says of lengths; empty where there is nothing to say."""
    if counter is None:
        return _template("lengths.none.md").strip()
    if not lengths:
        return ""
    everything = np.concatenate([np.array(values) for values in lengths.values()])
    longest = int(everything.max())
    heads = ["split", "prompt type", "records", "median", *(f"{share}%" for share in _PERCENTILES[1:]), "longest"]
    rows = []
    for key in sorted(lengths, key=lambda key: SPLITS.index(key[0])):
        # A length that a record has, not one between two of them.
        shares = np.percentile(lengths[key], _PERCENTILES, method="inverted_cdf").astype(int)
        rows.append([*key, len(lengths[key]), *shares, max(lengths[key])])
    return string.Template(_template("lengths.md").strip()).substitute(
        tokenizer=counter.name,
        table=_table(heads, rows, num_texts=2),
        max_length=f"{-(-longest // ROUNDED_TO) * ROUNDED_TO:,}",
        usual=f"{USUAL_MAX_LENGTH:,}",
        cut=f"{100 * float((everything > USUAL_MAX_LENGTH).mean()):.0f}%",
    )


def _tokens_of(messages: Sequence[Mapping[str, Any]], counter: TokenCounter) -> int:
    return sum(
        counter.count(_written(message)) + counter.count(message["role"]) + TOKENS_AROUND_A_MESSAGE
        for message in messages
    )


def _tokens_of_tools(record: Record, counter: TokenCounter) -> int:
    tools = record.get("tools")
    if tools is None:
        return 0
    listed = json.loads(tools) if isinstance(tools, str) else tools
    return _tokens_of([{"role": "system", "content": "\n".join(map(_json, listed))}], counter)


def _written(message: Mapping[str, Any]) -> str:
    """Return the words of a message, its calls written as most templates write them."""
    calls = []
    for call in message.get("tool_calls") or ():
        name, arguments = call["function"]["name"], call["function"]["arguments"]
        text = arguments if isinstance(arguments, str) else _json(arguments)
        calls.append(f'\n<tool_call>\n{{"name": {_json(name)}, "arguments": {text}}}\n</tool_call>')
    return str(message["content"]) + "".join(calls)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


KINDS_WITH_A_TEXT = ("prompts", "conversations", "preferences")
KINDS_OF_WORLDS = ("prompts", "preferences")  # which have another text in a world
SIZE_CATEGORIES = (  # names and limits are those of the Hugging Face hub
    (1_000, "n<1K"),
    (10_000, "1K<n<10K"),
    (100_000, "10K<n<100K"),
    (1_000_000, "100K<n<1M"),
    (10_000_000, "1M<n<10M"),
    (100_000_000, "10M<n<100M"),
    (math.inf, "100M<n<1B"),
)

_PLAIN_YAML = re.compile(r"[A-Za-z_][A-Za-z0-9_./*-]*")
_NOT_ASCII = re.compile(r"[^\x20-\x7e]")
# What YAML reads as something else than a text.
_YAML_WORDS = {"y", "n", "yes", "no", "on", "off", "true", "false", "null"}


def render_card(
    manifest: Mapping[str, Any],
    schema: RecordSchema,
    facts: Sequence[ShardFacts],
    license_name: str,
    command: str,
    lengths: str = "",
) -> str:
    """Return the card of a finished dataset.

    `command` is the one that made it, without what does not decide its bytes, or empty; `lengths` is what
    `describe_lengths` says.
    """
    front = "\n".join(yaml_lines(_front_matter(manifest, schema, facts, license_name)))
    arguments = manifest["arguments"]
    kind = arguments["kind"]
    environment = arguments.get("source", {}).get("environment", {})
    in_world = "world" in environment
    text = kind if kind in KINDS_WITH_A_TEXT else "other"
    about = string.Template(_template(f"about.{text}{'.world' * (in_world and kind in KINDS_OF_WORLDS)}.md"))
    # How rows of played episodes become what chat templates take.
    rows = _template(f"rows.{arguments.get('source', {}).get('call_arguments', 'object')}.md").strip()
    failures = describe_failures(environment)
    versions = ", ".join(f"{name} {number}" for name, number in manifest["versions"].items())
    body = string.Template(_template("card.md")).substitute(
        about=about.substitute(kind=kind, values=values_table(kind, in_world), rows=rows, failures=failures).strip(),
        splits=_split_table(manifest, facts),
        schema_name=schema.name,
        columns=describe(schema),
        lengths=f"{lengths}\n\n" if lengths else "",
        command=f"```console\n$ {command}\n```\n\n" if command else "",
        provenance=f"| versions | {versions} |\n| hash of the arguments | `{manifest['hash']}` |",
        arguments=encode_json(arguments, indent=2, sort_keys=True).decode(),
    )
    return f"---\n{front}\n---\n\n{body}"


def yaml_lines(value: Any, indent: str = "") -> list[str]:
    """Return mappings, lists, texts and whole numbers as lines of YAML, in the style of the hub; none is empty."""
    lines: list[str] = []
    pairs = value.items() if isinstance(value, Mapping) else ((None, item) for item in value)
    for name, item in pairs:
        head = f"{indent}-" if name is None else f"{indent}{_yaml_scalar(name)}:"
        if not isinstance(item, Mapping | list):
            lines.append(f"{head} {_yaml_scalar(item)}")
        elif name is None:
            inner = yaml_lines(item, indent + "  ")
            lines += [f"{head} {inner[0].removeprefix(indent + '  ')}", *inner[1:]]
        else:
            lines += [head, *yaml_lines(item, indent + ("  " if isinstance(item, Mapping) else ""))]
    return lines


def _front_matter(
    manifest: Mapping[str, Any], schema: RecordSchema, facts: Sequence[ShardFacts], license_name: str
) -> dict[str, Any]:
    arguments = manifest["arguments"]
    tags = ["resilisim", "synthetic", "tool-use", "agents", arguments["kind"]]
    num_records, by_split = sum(fact.num_records for fact in facts), _by_split(facts)
    return {
        "license": license_name,
        "language": ["en"],
        "pretty_name": f"ResiliSim {arguments['kind']}",
        "task_categories": ["text-generation"],
        "tags": tags,
        "size_categories": [next(name for limit, name in SIZE_CATEGORIES if num_records < limit)],
        # Every part of a file's name but the number, so that the pattern takes in nothing that does not belong here.
        "configs": [
            {
                "config_name": "default",
                "data_files": [
                    {"split": split, "path": f"{DATA_NAME}/" + re.sub(r"^(\w+)-\d+-", r"\1-*-", own[0].file)}
                    for split, own in by_split.items()
                ],
            }
        ],
        # The loader would otherwise guess types from the first lines, and a column of nulls has none to guess.
        "dataset_info": {
            "features": [_feature(column.name, column.type) for column in schema.columns],
            "splits": [
                {
                    "name": split,
                    "num_bytes": sum(fact.num_bytes for fact in own),
                    "num_examples": sum(fact.num_records for fact in own),
                }
                for split, own in by_split.items()
            ],
        },
    }


def _by_split(facts: Sequence[ShardFacts]) -> dict[str, list[ShardFacts]]:
    by_split = {split: [fact for fact in facts if fact.split == split] for split in SPLITS}
    return {split: own for split, own in by_split.items() if own}


def _feature(name: str | None, data_type: DataType) -> Any:
    """Return a type as the hub's YAML writes it; items of a list have no name."""
    named = {} if name is None else {"name": name}
    if isinstance(data_type, str):
        return {**named, "dtype": data_type}
    if isinstance(data_type, Mapping):
        return {**named, "struct": [_feature(field, inner) for field, inner in data_type.items()]}
    inner = _feature(None, data_type[0])
    return {**named, "list": inner.get("dtype", inner.get("struct", inner))}


def _split_table(manifest: Mapping[str, Any], facts: Sequence[ShardFacts]) -> str:
    rows = [
        [
            split,
            manifest["tasks_per_split"][split],
            sum(fact.num_records for fact in own),
            len(own),
            sum(fact.num_bytes for fact in own),
        ]
        for split, own in _by_split(facts).items()
    ]
    return _table(["split", "tasks", "records", "files", "bytes"], rows, num_texts=1)


def _yaml_scalar(value: str | int) -> str:
    if isinstance(value, str) and (not _PLAIN_YAML.fullmatch(value) or value.lower() in _YAML_WORDS):
        # A text in double quotes means the same in YAML, but for characters that JSON writes as two halves.
        return _NOT_ASCII.sub(lambda match: f"\\U{ord(match.group()):08x}", json.dumps(value, ensure_ascii=False))
    return str(value)


def _template(name: str) -> str:
    folder = resources.files("resilisim.datasets").joinpath("templates")
    return folder.joinpath(name).read_text(encoding="utf-8")
