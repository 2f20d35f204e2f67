"""The dataset card: a README that tells people what a dataset is, and Hugging Face `datasets` how to load it."""

from __future__ import annotations

import json
import re
import string
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any

from resilisim.datasets.column_values import values_table
from resilisim.datasets.folder import DATA_NAME
from resilisim.datasets.schema import DataType, RecordSchema, describe
from resilisim.datasets.shards import ShardFacts
from resilisim.provenance import encode_json
from resilisim.tasks.model import SPLITS

KINDS_WITH_A_TEXT = ("prompts", "conversations", "preferences")
SIZE_CATEGORIES = (  # names and limits are those of the Hugging Face hub
    (1_000, "n<1K"),
    (10_000, "1K<n<10K"),
    (100_000, "10K<n<100K"),
    (1_000_000, "100K<n<1M"),
    (10_000_000, "1M<n<10M"),
    (100_000_000, "10M<n<100M"),
)
LARGEST_SIZE_CATEGORY = "100M<n<1B"

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

    Args:
        manifest: The dataset's manifest.
        schema: What its records look like.
        facts: What is in each shard.
        license_name: License, as the hub names it ("apache-2.0").
        command: The command that made the dataset, without what does not decide its bytes; empty if no command did.
        lengths: What there is to say about lengths in tokens (`lengths.describe_lengths`).
    """
    front = "\n".join(yaml_lines(_front_matter(manifest, schema, facts, license_name)))
    kind = manifest["arguments"]["kind"]
    about = string.Template(_template(f"about.{kind if kind in KINDS_WITH_A_TEXT else 'other'}.md"))
    versions = ", ".join(f"{name} {number}" for name, number in manifest["versions"].items())
    body = string.Template(_template("card.md")).substitute(
        about=about.substitute(kind=kind, values=values_table(kind), rows=_rows_text(manifest["arguments"])).strip(),
        splits=_split_table(manifest, facts),
        schema_name=schema.name,
        columns=describe(schema),
        lengths=f"{lengths}\n\n" if lengths else "",
        command=f"```console\n$ {command}\n```\n\n" if command else "",
        provenance=f"| versions | {versions} |\n| hash of the arguments | `{manifest['hash']}` |",
        arguments=encode_json(manifest["arguments"], indent=2, sort_keys=True).decode(),
    )
    return f"---\n{front}\n---\n\n{body}"


def yaml_lines(value: Any, indent: str = "") -> list[str]:
    """Return mappings, lists, texts and whole numbers as lines of YAML, in the style of the hub.

    Args:
        value: A mapping or a list that is not empty.
        indent: What each line begins with.
    """
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
    num_records = sum(fact.num_records for fact in facts)
    tags = ["resilisim", "synthetic", "tool-use", "agents", arguments["kind"]]
    return {
        "license": license_name,
        "language": ["en"],
        "pretty_name": f"ResiliSim {arguments['kind']}",
        "task_categories": ["text-generation"],
        "tags": tags,
        "size_categories": [_size_category(num_records)],
        "configs": [{"config_name": "default", "data_files": _data_files(facts)}],
        # The loader would otherwise guess types from the first lines, and a column of nulls has none to guess.
        "dataset_info": {
            "features": [_feature(column.name, column.type) for column in schema.columns],
            "splits": [
                {
                    "name": split,
                    "num_bytes": _sum(facts, split, "num_bytes"),
                    "num_examples": _sum(facts, split, "num_records"),
                }
                for split in _splits_with_files(facts)
            ],
        },
    }


def _data_files(facts: Sequence[ShardFacts]) -> list[dict[str, str]]:
    files = []
    for split in _splits_with_files(facts):
        # Every part of the name but the number, so that the pattern takes in nothing that does not belong here.
        name = next(fact.file for fact in facts if fact.split == split)
        files.append({"split": split, "path": f"{DATA_NAME}/" + re.sub(r"^(\w+)-\d+-", r"\1-*-", name)})
    return files


def _feature(name: str | None, data_type: DataType) -> Any:
    """Return a type as the hub's YAML writes it; items of a list have no name."""
    named = {} if name is None else {"name": name}
    if isinstance(data_type, str):
        return {**named, "dtype": data_type}
    if isinstance(data_type, Mapping):
        return {**named, "struct": [_feature(field, inner) for field, inner in data_type.items()]}
    item = data_type[0]
    if isinstance(item, str):
        return {**named, "list": item}
    if isinstance(item, Mapping):
        return {**named, "list": [_feature(field, inner) for field, inner in item.items()]}
    return {**named, "list": _feature(None, item)}


def _rows_text(arguments: Mapping[str, Any]) -> str:
    """Return how rows of played episodes become what chat templates take."""
    form = arguments.get("source", {}).get("call_arguments", "object")
    return _template(f"rows.{form}.md").strip()


def _split_table(manifest: Mapping[str, Any], facts: Sequence[ShardFacts]) -> str:
    rows = ["| split | tasks | records | files | bytes |", "|---|---:|---:|---:|---:|"]
    for split in _splits_with_files(facts):
        files = sum(fact.split == split for fact in facts)
        tasks = manifest["tasks_per_split"][split]
        rows.append(
            f"| {split} | {tasks:,} | {_sum(facts, split, 'num_records'):,} | {files:,} "
            f"| {_sum(facts, split, 'num_bytes'):,} |"
        )
    return "\n".join(rows)


def _splits_with_files(facts: Sequence[ShardFacts]) -> list[str]:
    return [split for split in SPLITS if any(fact.split == split for fact in facts)]


def _sum(facts: Sequence[ShardFacts], split: str, name: str) -> int:
    return sum(getattr(fact, name) for fact in facts if fact.split == split)


def _size_category(num_records: int) -> str:
    return next((name for limit, name in SIZE_CATEGORIES if num_records < limit), LARGEST_SIZE_CATEGORY)


def _yaml_scalar(value: str | int) -> str:
    if isinstance(value, str) and (not _PLAIN_YAML.fullmatch(value) or value.lower() in _YAML_WORDS):
        # A text in double quotes means the same in YAML, but for characters that JSON writes as two halves.
        return _NOT_ASCII.sub(lambda found: f"\\U{ord(found.group()):08x}", json.dumps(value, ensure_ascii=False))
    return str(value)


def _template(name: str) -> str:
    folder = resources.files("resilisim.datasets").joinpath("templates")
    return folder.joinpath(name).read_text(encoding="utf-8")
