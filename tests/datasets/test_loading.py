"""Hugging Face `datasets` loads what was written, offline, in both formats, with the types of the schema."""

import dataclasses
import json
import os
import subprocess
import sys

import pytest
from jinja2.sandbox import ImmutableSandboxedEnvironment

from resilisim.datasets import export_dataset, read_records
from resilisim.datasets.conversations import ConversationSpec
from resilisim.datasets.dataset_folder import DATASET_FORMATS
from resilisim.datasets.preferences import PreferenceSpec
from resilisim.datasets.prompt_records import PromptSpec
from resilisim.datasets.rollout import RolloutSpec
from resilisim.tasks.split import SPLITS, split_of
from tests.datasets.toy_source import ToySpec, has_detail, toy_tasks

pytestmark = pytest.mark.long  # the library takes seconds to be imported; schemas in Arrow are tested in test_schema

SCRIPT = """
import json, sys
from datasets import load_dataset

answers = {}
for folder in sys.argv[1:]:
    loaded = load_dataset(folder)
    answers[folder] = {
        "features": {split: repr(data.features) for split, data in loaded.items()},
        "rows": {split: list(data) for split, data in loaded.items()},
    }
print(json.dumps(answers, allow_nan=False))
"""
FEATURES = (
    "{'instance_id': Value('string'), 'number': Value('int64'), 'on': Value('float64'), 'is_even': Value('bool'), "
    "'never': Value('string'), 'names': List(Value('string')), 'detail': {'method': Value('string'), "
    "'edits': List({'what': Value('string'), 'before': Value('string'), 'places': List(Value('int64'))})}, "
    "'table': List(List(Value('float64')))}"
)


# One of each kind that needs no model: nothing is searched for, and flaws take tools away.
NATIVE = dataclasses.replace(RolloutSpec().environment, protocol="native")
KINDS = {
    "prompts": PromptSpec(flaws=("missing_step", "parameter_error"), alternatives=False),
    "conversations": ConversationSpec(prompts=("optimal",), search=False, alternatives=False),
    "native": ConversationSpec(prompts=("optimal",), search=False, alternatives=False, environment=NATIVE),
    "native-text": ConversationSpec(
        prompts=("optimal",), search=False, alternatives=False, call_arguments="text", environment=NATIVE
    ),
    "preferences": PreferenceSpec(prompts=("optimal",), search=False, alternatives=False),
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Datasets: many shards in each format, one with shards without records, and a small one of each kind."""
    root = tmp_path_factory.mktemp("load")
    tasks = toy_tasks()
    # First those without a detail: types guessed from the first shard would be those of nulls.
    tasks.sort(key=lambda task: has_detail(task.instance_id))
    for file_format in DATASET_FORMATS:
        export_dataset(ToySpec(), tasks, root / file_format, format=file_format, tasks_per_shard=3)
        spec = ToySpec(only=tasks[-1].instance_id)
        same_split = [task for task in tasks if split_of(task.required_tools) == split_of(tasks[-1].required_tools)]
        export_dataset(spec, same_split, root / f"sparse-{file_format}", format=file_format, tasks_per_shard=3)
        for name, kind in KINDS.items():
            export_dataset(kind, toy_tasks(12), root / f"{name}-{file_format}", format=file_format, tasks_per_shard=4)
    return {folder.name: folder for folder in root.iterdir()}


@pytest.fixture(scope="module")
def loaded(folders, tmp_path_factory):
    """What a process of its own, with an empty cache and no network, loads from the folders."""
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path_factory.mktemp("cache"))}
    arguments = [sys.executable, "-c", SCRIPT, *map(str, folders.values())]
    ended = subprocess.run(arguments, env=environment, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    # Logs go there too: the loader warns of what it does not understand in a card.
    assert "dataset_info" not in ended.stderr
    assert "warning" not in ended.stderr.lower()
    answers = json.loads(ended.stdout)
    return {name: answers[str(folder)] for name, folder in folders.items()}


@pytest.mark.parametrize("file_format", DATASET_FORMATS)
def test_rows_and_types_are_those_that_were_written_whatever_the_values(folders, loaded, file_format):
    found = loaded[file_format]
    assert set(found["rows"]) == set(SPLITS)
    assert set(found["features"].values()) == {FEATURES}
    for split in SPLITS:
        assert found["rows"][split] == list(read_records(folders[file_format], split))
        assert len(found["rows"][split]) >= 9
    assert loaded["jsonl"]["rows"] == loaded["parquet"]["rows"]
    details = [row["detail"] for row in found["rows"]["train"]]
    assert details[0] is None
    assert details[-1] is not None


@pytest.mark.parametrize("file_format", DATASET_FORMATS)
def test_shards_without_records_do_no_harm(folders, loaded, file_format):
    folder, found = folders[f"sparse-{file_format}"], loaded[f"sparse-{file_format}"]
    counts = [shard["records"] for shard in json.loads((folder / "shards.json").read_bytes())]
    assert counts.count(0) == len(counts) - 1 > 0
    (rows,) = found["rows"].values()
    assert rows == list(read_records(folder))
    assert len(rows) == 3
    assert set(found["features"].values()) == {FEATURES}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_loads_with_the_rows_that_were_written(folders, loaded, kind):
    jsonl, parquet = (loaded[f"{kind}-{file_format}"] for file_format in DATASET_FORMATS)
    assert jsonl["features"] == parquet["features"]
    assert len(set(jsonl["features"].values())) == 1
    for split, rows in parquet["rows"].items():
        assert rows == list(read_records(folders[f"{kind}-jsonl"], split))
        assert list(read_records(folders[f"{kind}-parquet"], split)) == rows
        # The loader rounds numbers of JSON Lines whose rows it encodes again (JSON of no fixed shape, lists of nulls).
        assert jsonl["rows"][split] == list(map(rounded, rows))
    assert sum(map(len, jsonl["rows"].values())) >= 12


def rounded(value):
    if isinstance(value, dict):
        return {name: rounded(item) for name, item in value.items()}
    if isinstance(value, list):
        return list(map(rounded, value))
    return pytest.approx(value, rel=0, abs=1e-10) if isinstance(value, float) else value


# What templates of real models do: they ask whether a message has a key, and print arguments with `tojson`.
CHAT_TEMPLATE = """
{%- for tool in tools %}{{ tool | tojson }}
{% endfor %}
{%- for message in messages %}<{{ message.role }}>{{ message.content }}
{%- if 'tool_calls' in message %}{% for call in message.tool_calls %}
CALL {"name": {{ call.function.name | tojson }}, "arguments": {{ call.function.arguments | tojson }}}
{%- endfor %}{% endif %}
{%- if message.tool_call_id is defined %} ({{ message.tool_call_id | length }}){% endif %}
{% endfor %}"""


def test_chat_templates_render_loaded_rows_as_they_are(folders, loaded):
    environment = ImmutableSandboxedEnvironment()
    environment.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)  # as transformers has it
    template = environment.from_string(CHAT_TEMPLATE)
    num_calls = 0
    for name in ("native-jsonl", "native-parquet"):
        for split, rows in loaded[name]["rows"].items():
            for row, written in zip(rows, read_records(folders["native-text-jsonl"], split), strict=True):
                text = template.render(messages=row["messages"], tools=row["tools"])
                shown = [json.loads(line[5:]) for line in text.splitlines() if line.startswith("CALL ")]
                called = [
                    {"name": call["function"]["name"], "arguments": json.loads(call["function"]["arguments"])}
                    for message in written["messages"]
                    for call in message["tool_calls"] or ()
                ]
                assert shown == called
                assert text.startswith('{"type": "function"')
                assert all(isinstance(call["arguments"], dict) for call in shown)
                num_calls += len(shown)
    assert num_calls > 50


GUESSED = """
import json, sys
from datasets import load_dataset

for name, *files in json.loads(sys.argv[1]):
    print(name, load_dataset("json", data_files=files, split="train").num_rows)
"""


@pytest.mark.long
def test_types_that_a_loader_guesses_from_the_first_file_fit_the_others(tmp_path):
    """Without the folder's card: what only some records have is an empty text in the others, and no null."""
    common = {"search": False, "alternatives": False}
    parts = {
        "sound": ConversationSpec(prompts=("optimal",), **common),  # no flaw, nothing lost
        "flawed": ConversationSpec(prompts=("flawed:missing_step",), explore=0.9, **common),
        "unplanned": ConversationSpec(prompts=("baseline",), policy="random", **common),
        "pairs": PreferenceSpec(prompts=("optimal",), **common),
        "flawed-pairs": PreferenceSpec(prompts=("flawed:missing_step",), **common),
    }
    files = {}
    for name, spec in parts.items():
        export_dataset(spec, toy_tasks(6), tmp_path / name, tasks_per_shard=1)
        files[name] = [str(file) for file in sorted((tmp_path / name / "data").iterdir()) if file.stat().st_size]
    jobs = [
        ["sound-first", *files["sound"], *files["flawed"], *files["unplanned"]],
        ["unplanned-first", *files["unplanned"], *files["sound"], *files["flawed"]],
        ["pairs", *files["pairs"], *files["flawed-pairs"]],
    ]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "cache")}
    arguments = [sys.executable, "-c", GUESSED, json.dumps(jobs)]
    ended = subprocess.run(arguments, env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr[-2_000:]
    assert len(ended.stdout.split()) == 6
