"""The card says what is in a dataset, in words for people and in YAML for the loader."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from resilisim.datasets import export_dataset
from resilisim.datasets.card import KINDS_WITH_A_TEXT, render_card, yaml_lines
from resilisim.datasets.schema import RecordSchema
from resilisim.datasets.shards import ShardFacts
from tests.datasets.toy_source import TOY_SCHEMA, ToySpec, toy_tasks

texts = st.text(max_size=30) | st.sampled_from(
    ["yes", "No", "null", "on", "1", "1e3", "a: b", "- a", "#", "~", "n<1K", "1K<n<10K"]
)
trees = st.recursive(
    texts | st.integers(),
    lambda inner: st.lists(inner, min_size=1, max_size=3) | st.dictionaries(texts, inner, min_size=1, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(texts, trees, min_size=1) | st.lists(trees, min_size=1))
def test_our_yaml_is_read_as_it_was_meant(value: Any) -> None:
    assert yaml.safe_load("\n".join(yaml_lines(value))) == value


def front_matter(card: str) -> Any:
    _, front, _ = card.split("---\n", 2)
    return yaml.safe_load(front)


def test_the_card_of_a_dataset(tmp_path: Path) -> None:
    command = "resilisim dataset export --kind toys --out DIR"
    result = export_dataset(ToySpec(), toy_tasks(), tmp_path, tasks_per_shard=10, license="cc0-1.0", command=command)
    card = (tmp_path / "README.md").read_text()
    front = front_matter(card)
    assert front["license"] == "cc0-1.0"
    assert front["size_categories"] == ["n<1K"]
    assert front["configs"] == [
        {
            "config_name": "default",
            "data_files": [
                {"split": "train", "path": "data/train-*-of-00003.jsonl"},
                {"split": "validation", "path": "data/validation-*-of-00001.jsonl"},
                {"split": "test", "path": "data/test-*-of-00001.jsonl"},
            ],
        }
    ]
    per_split = result.records_per_split()
    splits = [{"name": split, "num_examples": per_split[split]} for split in ("train", "validation", "test")]
    assert front["dataset_info"]["splits"] == splits
    assert front["dataset_info"]["features"][5:] == [
        {"name": "names", "list": "string"},
        {
            "name": "detail",
            "struct": [
                {"name": "method", "dtype": "string"},
                {
                    "name": "edits",
                    "list": [
                        {"name": "what", "dtype": "string"},
                        {"name": "before", "dtype": "string"},
                        {"name": "places", "list": "int64"},
                    ],
                },
            ],
        },
        {"name": "table", "list": {"list": "float64"}},
    ]
    tasks = result.manifest["tasks_per_split"]["train"]
    size = sum(facts.num_bytes for facts in result.shards if facts.split == "train")
    assert f"| train | {tasks} | {per_split['train']} | 3 | {size:,} |" in card
    assert f"```console\n$ {command}\n```" in card
    assert "| `never` | string | Null in every record. |" in card
    assert result.manifest["hash"] in card
    assert "resilisim " + result.manifest["versions"]["resilisim"] in card
    arguments = card.split("```json\n")[1].split("```")[0]
    assert json.loads(arguments) == result.manifest["arguments"]


def card_of(kind: str, num_records: int = 1, schema: RecordSchema = TOY_SCHEMA) -> str:
    manifest = {
        "hash": "ab",
        "arguments": {"kind": kind},
        "versions": {"resilisim": "1"},
        "tasks_per_split": {"test": 2},
    }
    facts = [ShardFacts("test-00000-of-00001.parquet", num_records, 10, "cd")]
    return render_card(manifest, schema, facts, "apache-2.0", "")


@pytest.mark.parametrize("kind", [*KINDS_WITH_A_TEXT, "toys"])
def test_every_kind_has_a_text_without_open_places(kind: str) -> None:
    card = card_of(kind)
    body = card.split("---\n", 2)[2]
    assert body.startswith("\n# ResiliSim: ")
    assert "$" not in body
    assert "## What to keep in mind" in body
    assert kind in front_matter(card)["tags"]
    assert max(len(line) for line in body.splitlines() if not line.startswith("|")) <= 120


@pytest.mark.parametrize(
    ("num_records", "category"),
    [(0, "n<1K"), (999, "n<1K"), (1_000, "1K<n<10K"), (200_000, "100K<n<1M"), (10**8, "100M<n<1B")],
)
def test_sizes_are_told_as_on_the_hub(num_records: int, category: str) -> None:
    assert front_matter(card_of("prompts", num_records))["size_categories"] == [category]
