"""Lengths in tokens: counted as a model reads a record, and told in the card."""

import dataclasses
import json
import statistics

import pytest

from resilisim.chat.local import shipped_model_path
from resilisim.chat.local.gguf import TokenCounter
from resilisim.datasets import export_dataset, read_records
from resilisim.datasets.card import record_length
from resilisim.datasets.conversations import ConversationSpec
from resilisim.datasets.preferences import PreferenceSpec
from resilisim.datasets.rollout import TRAINING_ENVIRONMENT
from resilisim.errors import InvalidInputError
from resilisim.tool_library import default_library
from tests.datasets.toy_source import ToySpec, toy_tasks

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
