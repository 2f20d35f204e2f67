"""The card says what is in a dataset, in words for people and in YAML for the loader."""

import dataclasses
import json
import statistics
from typing import Any, get_args

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from resilisim.chat.local import shipped_model_path
from resilisim.chat.local.gguf import TokenCounter
from resilisim.datasets import export_dataset, read_records
from resilisim.datasets.card import KINDS_WITH_A_TEXT, record_length, render_card, yaml_lines
from resilisim.datasets.conversations import ConversationSpec
from resilisim.datasets.dataset_folder import ShardFacts
from resilisim.datasets.preferences import PreferenceSpec
from resilisim.datasets.rollout import TRAINING_ENVIRONMENT
from resilisim.errors import InvalidInputError
from resilisim.evaluation.episode.record import LOSS_LABELS
from resilisim.simulator.law import load_law
from resilisim.simulator.scoring import Level
from resilisim.simulator.state import ENDED_BY
from resilisim.tool_library import default_library
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
def test_our_yaml_is_read_as_it_was_meant(value):
    assert yaml.safe_load("\n".join(yaml_lines(value))) == value


def front_matter(card):
    _, front, _ = card.split("---\n", 2)
    return yaml.safe_load(front)


def test_the_card_of_a_dataset(tmp_path):
    command = "resilisim dataset export --kind toys --out DIR"
    result = export_dataset(ToySpec(), toy_tasks(), tmp_path, tasks_per_shard=10, license="cc0-1.0", command=command)
    card = (tmp_path / "README.md").read_text()
    front = front_matter(card)
    assert front["license"] == "cc0-1.0"
    assert front["size_categories"] == ["n<1K"]
    (config,) = front["configs"]  # the rest of what the loader needs is tested by loading
    assert config["data_files"][0] == {"split": "train", "path": "data/train-*-of-00003.jsonl"}
    per_split = result.records_per_split()
    sizes = {split: sum(facts.num_bytes for facts in result.shards if facts.split == split) for split in per_split}
    assert front["dataset_info"]["splits"] == [
        {"name": split, "num_bytes": sizes[split], "num_examples": per_split[split]}
        for split in ("train", "validation", "test")
    ]
    tasks = result.manifest["tasks_per_split"]["train"]
    assert f"| train | {tasks} | {per_split['train']} | 3 | {sizes['train']:,} |" in card
    assert f"```console\n$ {command}\n```" in card
    assert "| `never` | string | Null in every record. |" in card
    assert result.manifest["hash"] in card
    assert "resilisim " + result.manifest["versions"]["resilisim"] in card
    arguments = card.split("```json\n")[1].split("```")[0]
    assert json.loads(arguments) == result.manifest["arguments"]


def card_of(kind, num_records=1, schema=TOY_SCHEMA, form="object", errors="transient", law=None):
    environment = {"errors": errors} if law is None else {"errors": errors, "law": load_law(law).to_mapping()}
    manifest = {
        "hash": "ab",
        "arguments": {"kind": kind, "source": {"call_arguments": form, "environment": environment}},
        "versions": {"resilisim": "1"},
        "tasks_per_split": {"test": 2},
    }
    facts = [ShardFacts("test-00000-of-00001.parquet", num_records, 10, "cd")]
    return render_card(manifest, schema, facts, "apache-2.0", "")


@pytest.mark.parametrize("kind", [*KINDS_WITH_A_TEXT, "toys"])
def test_every_kind_has_a_text_without_open_places(kind):
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
def test_sizes_are_told_as_on_the_hub(num_records, category):
    assert front_matter(card_of("prompts", num_records))["size_categories"] == [category]


PLAIN = {"prompts": ("optimal",), "search": False, "alternatives": False}  # what needs no retrieval


def snippets(kind, rows):
    """Run the Python of a kind's card, without the loading, on rows, and return the names that it defines."""
    found = {"dataset": {"train": _Rows(rows)}}
    blocks = [block.split("```")[0] for block in card_of(kind, form="text").split("```python\n")[1:]]
    for block in blocks:
        if "load_dataset" not in block:
            exec(block, found)
    return found


class _Rows(list[dict[str, Any]]):
    """Rows with the one method of a loaded dataset that the card uses."""

    def filter(self, keep):
        return [row for row in self if keep(row)]


def rows_of(spec):
    source = spec.make(default_library())
    return [record for task in toy_tasks(12) for record in source.records(task)]


def assert_plain(messages, protocol):
    assert messages
    for message in messages:
        assert None not in message.values()
        assert message["role"] in ("user", "assistant", "tool")
        assert isinstance(message["content"], str)
        assert ("tool_call_id" in message) == (message["role"] == "tool")
        for call in message.get("tool_calls", ()):
            assert protocol == "native"
            assert isinstance(call["function"]["arguments"], dict)


@pytest.mark.parametrize("protocol", ["text", "native"])
def test_the_card_of_conversations_turns_rows_into_what_chat_templates_take(protocol):
    environment = dataclasses.replace(TRAINING_ENVIRONMENT, protocol=protocol)
    rows = rows_of(ConversationSpec(seeds=3, call_arguments="text", environment=environment, **PLAIN))
    before = json.dumps(rows)
    defined = snippets("conversations", rows)
    assert json.dumps(rows) == before
    assert len(defined["examples"]) == len(rows) == 36
    for row, example in zip(rows, defined["examples"], strict=True):
        assert_plain(example["messages"], protocol)
        assert len(example["messages"]) == len(row["messages"])
        functions = {tool["function"]["name"] for tool in example.get("tools", ())}
        assert functions == ({"tool_search", "tool_info", "tool_call", "finish"} if protocol == "native" else set())
    assert defined["successes"] == [row for row in rows if row["success"]]
    assert 0 < len(defined["successes"]) < len(rows)


def test_the_card_says_which_turns_are_worth_learning():
    rows = rows_of(ConversationSpec(seeds=6, **PLAIN))
    worth = snippets("conversations", rows)["turns_to_learn"]
    lost = 0
    for row in rows:
        kept = worth(row)
        assert all(row["messages"][place]["role"] == "assistant" for place in kept)
        dropped = [turn for turn in row["turns"] if turn["message_index"] not in kept]
        assert all(turn["value"] == 0.0 for turn in dropped)
        assert row["success"] <= (not dropped)
        lost += sum(turn["kind"] == "execute" for turn in dropped)
        said = [row["messages"][place]["content"] for place in kept]
        assert "I have used all my turns and could not do everything." not in said
    assert lost  # the player goes on when all is lost


@pytest.mark.parametrize("protocol", ["text", "native"])
def test_the_card_of_preferences_turns_rows_into_prompt_chosen_and_rejected(protocol):
    environment = dataclasses.replace(TRAINING_ENVIRONMENT, protocol=protocol)
    options = {"prompts": ("optimal",), "alternatives": False, "environment": environment}
    rows = rows_of(PreferenceSpec(call_arguments="text", **options))
    examples = snippets("preferences", rows)["examples"]
    assert len(examples) == len(rows) > 20
    for example in examples:
        assert set(example) - {"tools"} == {"prompt", "chosen", "rejected"}
        for side in ("prompt", "chosen", "rejected"):
            assert_plain(example[side], protocol)
    # As objects, rows need no turning.
    objects = rows_of(PreferenceSpec(**options))
    assert examples == [{name: row[name] for name in example} for row, example in zip(objects, examples, strict=True)]


@pytest.mark.parametrize("kind", ["conversations", "preferences"])
def test_the_card_says_what_failures_are(kind):
    assert "show transient errors only" in card_of(kind)
    assert "a habit that a model should not learn" in card_of(kind, errors="documented")


def test_the_card_says_what_failures_are_under_a_law():
    def said(law=None):
        return " ".join(card_of("conversations", law=law).split())

    meant = said("meaningful-errors")
    assert "(law `meaningful-errors`)" in meant
    assert "a parameter has to change" in meant
    assert "goes away" not in meant
    limited = said("rate-limits")
    assert "show transient errors only" in limited
    assert "only when its window has moved on" in limited
    assert "SERVICE_UNAVAILABLE" in said("outages")
    assert "however often" in said({"name": "worn", "broken": {"probability": 0.1}})
    assert "window has moved on" not in said()


def test_the_card_lists_every_value_that_records_hold():
    conversations, preferences = card_of("conversations"), card_of("preferences")
    for label, text in LOSS_LABELS.items():
        assert f"| `turns.label` | `{label}` | {text} |" in conversations
        assert (f"| `rejected_reason` | `{label}` | {text} |" in preferences) == (
            label not in ("information", "obeyed_flaw")
        )
    rows = rows_of(ConversationSpec(prompts=("optimal",), policy="random", seeds=2, alternatives=False))
    for column, values in {
        "turns.kind": {turn["kind"] for row in rows for turn in row["turns"]},
        "ended_by": {row["ended_by"] for row in rows} | set(filter(None, ENDED_BY)) - {"deadlock"},
        "level": {row["level"] for row in rows} | set(get_args(Level)),
    }.items():
        assert values
        for value in values:
            assert f"| `{column}` | `{value}` | " in conversations
    assert "deadlock" not in conversations  # the training law of Workflow-v0 alone ends so


NATIVE = dataclasses.replace(TRAINING_ENVIRONMENT, protocol="native")


@pytest.fixture(scope="module")
def counter():
    return TokenCounter(shipped_model_path())


# What llama.cpp counts of the same texts with the same file.
@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("", 0),
        ("<|im_start|>user\nhi 123<|im_end|>\n", 10),
        ("<tool_call>file_operations_reader</tool_call>", 15),
        ('a  b\n\n\tc 12345 ünïcödé 日本 {"a": [1,2.5]}', 34),
        ("don't  I'LL we've\r\nx", 11),
    ],
)
def test_tokens_are_those_of_the_model_that_ships(counter, text, tokens):
    assert counter.count(text) == tokens


def chatml(messages):
    """Messages as a model of the ChatML family reads them, calls as in its training."""
    text = ""
    for message in messages:
        text += f"<|im_start|>{message['role']}\n{message['content']}"
        for call in message.get("tool_calls", ()):
            function = {"name": call["function"]["name"], "arguments": call["function"]["arguments"]}
            text += f"\n<tool_call>\n{json.dumps(function, ensure_ascii=False)}\n</tool_call>"
        text += "<|im_end|>\n"
    return text


@pytest.mark.parametrize("environment", [TRAINING_ENVIRONMENT, NATIVE], ids=["text", "native"])
def test_the_card_tells_how_long_records_are(counter, environment, tmp_path):
    spec = ConversationSpec(prompts=("optimal",), seeds=2, search=False, environment=environment)
    export_dataset(spec, toy_tasks(12), tmp_path, tasks_per_shard=4)
    by_split = {}
    for record in read_records(tmp_path):
        functions = [json.dumps(tool, ensure_ascii=False) for tool in record["tools"] or ()]
        system = [{"role": "system", "content": "\n".join(functions)}] if functions else []
        whole = counter.count(chatml([*system, *record["messages"]]))
        assert record_length(record, counter) == whole
        by_split.setdefault(record["split"], []).append(whole)
    card = (tmp_path / "README.md").read_text()
    assert counter.name in card
    for split, lengths in by_split.items():
        row = next(line for line in card.splitlines() if line.startswith(f"| {split} | optimal |"))
        cells = [int(cell) for cell in row.replace(",", "").strip("| ").split(" | ")[2:]]
        assert cells[:2] == [len(lengths), statistics.median_low(lengths)]
        assert cells[2:] == sorted(cells[2:])
        assert cells[-1] == max(lengths)
    longest = max(map(max, by_split.values()))
    stated = int(card.split("longest record, rounded up | ")[1].split(" ")[0].replace(",", ""))
    assert longest <= stated < longest + 64


def test_a_pair_is_as_long_as_its_longer_side(counter):
    source = PreferenceSpec(prompts=("optimal",), search=False).make(default_library())
    records = [record for task in toy_tasks(3) for record in source.records(task)]
    assert records
    for record in records:
        sides = [counter.count(chatml(record["prompt"] + record[side])) for side in ("chosen", "rejected")]
        assert record_length(record, counter) == max(sides)


def test_without_a_tokenizer_or_without_texts_the_card_says_so(tmp_path):
    export_dataset(ToySpec(), toy_tasks(4), tmp_path / "toys")
    assert "Length in tokens" not in (tmp_path / "toys" / "README.md").read_text()
    spec = ConversationSpec(prompts=("optimal",), search=False)
    result = export_dataset(spec, toy_tasks(2), tmp_path / "none", tokenizer="none")
    assert "Not measured" in (tmp_path / "none" / "README.md").read_text()
    assert result.manifest["arguments"]["tokenizer"] is None


def test_any_tokenizer_file_counts_and_what_is_none_is_refused(counter, tmp_path):
    counter._tokenizer.save(str(tmp_path / "tokenizer.json"))
    for path in (tmp_path, tmp_path / "tokenizer.json"):
        assert TokenCounter(path).count("<|im_start|>user\nhi 123<|im_end|>\n") == 10
    (tmp_path / "broken.json").write_text("{}")
    (tmp_path / "broken.gguf").write_text("GGUF")
    for name in ("broken.json", "broken.gguf", "absent.json"):
        with pytest.raises(InvalidInputError) as refused:
            export_dataset(ToySpec(), toy_tasks(2), tmp_path / "out", tokenizer=str(tmp_path / name))
        assert name in str(refused.value)
        assert "\n" not in str(refused.value)
        assert not (tmp_path / "out").exists()
