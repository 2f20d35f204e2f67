"""How long the records of a dataset are in tokens, and so how long a trainer's sequences must be to hold them whole."""

from __future__ import annotations

import json
import string
from collections.abc import Iterable, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from resilisim.chat.local import shipped_model_path
from resilisim.chat.local.gguf import TokenCounter
from resilisim.datasets.schema import Record
from resilisim.errors import MissingExtraError
from resilisim.tasks.model import SPLITS, Task, split_of

NO_TOKENIZER = "none"
# What ChatML puts around a message beside its role: two marks and two line ends. Other templates need about as much.
TOKENS_AROUND_A_MESSAGE = 4
PERCENTILES = (50, 90, 99)
ROUNDED_TO = 64  # tokens: lengths of sequences are multiples of it
USUAL_MAX_LENGTH = 1024  # what TRL's trainers cut at unless they are told otherwise

# Lengths of the records of each split and prompt type.
Lengths = dict[tuple[str, str], list[int]]


def token_counter(tokenizer: str | Path | None) -> TokenCounter | None:
    """Return what counts tokens.

    Args:
        tokenizer: A `tokenizer.json`, a folder that holds one, or a GGUF file; "none" for no counting; None takes the
            tokenizer of the SmolLM2 that ships, and no counting where it is not installed.

    Raises:
        InvalidInputError: There is no such tokenizer.
        MissingExtraError: One was named, and the package that reads it is not installed.
    """
    if tokenizer is not None:
        return None if str(tokenizer) == NO_TOKENIZER else TokenCounter(Path(tokenizer))
    try:
        return TokenCounter(shipped_model_path())
    except MissingExtraError:
        return None


def measure_lengths(records: Iterable[Record], tasks: Iterable[Task], counter: TokenCounter) -> Lengths:
    """Return the lengths of records, ascending, by split and prompt type; empty for kinds without messages.

    Args:
        records: Records of prompts, conversations or preference pairs, or of a kind of one's own.
        tasks: Their tasks, which say what split they belong to.
        counter: What counts tokens.
    """
    splits = {task.instance_id: split_of(task.required_tools) for task in tasks}
    found: Lengths = {}
    for record in records:
        length = record_length(record, counter)
        if length is not None:
            key = (splits[record["instance_id"]], str(record["prompt_type"]))
            found.setdefault(key, []).append(length)
    return {key: sorted(lengths) for key, lengths in found.items()}


def record_length(record: Record, counter: TokenCounter) -> int | None:
    """Return the tokens of a record as one sequence, of a preference pair those of its longer side; None without text.

    Args:
        record: A record.
        counter: What counts tokens.
    """
    if "messages" in record:
        return _tokens_of(record["messages"], counter) + _tokens_of_tools(record, counter)
    if "chosen" in record and "rejected" in record:
        longer = max(_tokens_of(record[side], counter) for side in ("chosen", "rejected"))
        return longer + _tokens_of(record["prompt"], counter) + _tokens_of_tools(record, counter)
    if "prompt_type" in record and "text" in record:
        return _tokens_of([{"role": "user", "content": record["text"]}], counter)
    return None


def describe_lengths(lengths: Lengths, counter: TokenCounter | None) -> str:
    """Return what the dataset card says of lengths; empty where there is nothing to say.

    Args:
        lengths: What `measure_lengths` returned.
        counter: What counted; None if nothing did.
    """
    if counter is None:
        return _template("lengths.none.md")
    if not lengths:
        return ""
    everything = np.concatenate([np.array(values) for values in lengths.values()])
    longest = int(everything.max())
    heads = ["split", "prompt type", "records", "median", *(f"{share} %" for share in PERCENTILES[1:]), "longest"]
    rows = ["| " + " | ".join(heads) + " |", "|---|---|" + "---:|" * (len(heads) - 2)]
    for split in SPLITS:
        for (of_split, prompt_type), values in lengths.items():
            if of_split == split:
                # A length that a record has, not one between two of them.
                shares = np.percentile(values, PERCENTILES, method="inverted_cdf").astype(int)
                cells = [len(values), *shares, max(values)]
                rows.append(f"| {split} | {prompt_type} | " + " | ".join(f"{cell:,}" for cell in cells) + " |")
    return string.Template(_template("lengths.md")).substitute(
        tokenizer=counter.name,
        table="\n".join(rows),
        max_length=f"{-(-longest // ROUNDED_TO) * ROUNDED_TO:,}",
        usual=f"{USUAL_MAX_LENGTH:,}",
        cut=f"{100 * float((everything > USUAL_MAX_LENGTH).mean()):.0f} %",
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


def _template(name: str) -> str:
    return resources.files("resilisim.datasets").joinpath("templates", name).read_text(encoding="utf-8").strip()
