"""What commands refuse, each in one line with the value and the nearest name, before anything is written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from resilisim.tasks.benchmark import benchmark_tasks
from tests.cli.conftest import Command

READER = "file_operations_reader"
LONG = next(task.instance_id for task in benchmark_tasks() if len(task.required_tools) == 5)
SHORT = next(task.instance_id for task in benchmark_tasks() if len(task.required_tools) == 1)
# What begins several of the commands below.
BEGINNINGS = {
    "EVALUATE": "evaluate --policy random --tasks 3 --out DIR",
    "EXPORT": "dataset export --out DIR --kind",
    "PROFILE": "runs profile --policy random --out DIR",
    "TRAIN": "train --out DIR",
}
# A command, "|", and what its line has to hold, one thing a word; DIR is a folder that does not exist, and FILES one
# with an empty folder and the script of a model.
REFUSED = f"""
evalute | evalute evaluate
--nonsense | --nonsense
tools lst | lst list
tools show | name
tools list extra | extra
tools show file_operations_reeder | file_operations_reeder '{READER}'
tools show reader | did you mean '{READER}'?
tools export --format jsn | 'json'
tools list --library DIR/nowhere.json | nowhere.json
tools search x --embedding-model no/such/folder | no/such/folder
tools search x --embedding-model= | ''
tasks generate | --out
tasks generate --out DIR --count zero | --count zero
tasks generate --out DIR --count=none | --count none
tasks generate --out DIR --count 0 | --count 0
tasks generate --out DIR/a.jsonl --count 1 | DIR
tasks generate --out DIR --count 1 --embedding-model no/such/folder | no/such/folder
tasks show task_0 | task_0
tasks list --type basic_file_procesing | 'basic_file_processing'
tasks list --split tests | 'test'
tasks list --complexity harder | 'hard'
tasks list --tasks benchmark-v9 | benchmark-v9 benchmark-v
tasks list --tasks= | no tasks were named benchmark-v
tasks list --tasks {"1" * 300} | cannot be read
tasks stats --tasks no/such/file.jsonl | no/such/file.jsonl
tasks stats --plot DIR/a.jpg | '.jpg' .png, .svg, .pdf
tasks stats --plot DIR/plot | '' .png, .svg, .pdf
tasks stats --plot DIR/a.png | DIR
bound | --task --required
bound --requird a | --requird --required
bound --task all --required {READER} | --task --required
bound --required file_operations_reeder | file_operations_reeder '{READER}'
bound --required reader | did you mean '{READER}'?
bound --required , | at least one
bound --required {READER},{READER} | {READER}
bound --task task_none | task_none
bound --required {READER} --turns -1 | --turns -1
bound --required {READER} --turns 1000000000000 | --turns
bound --required {READER} --success-probability 2 | --success-probability 2
bound --required {READER} --loop-length 1 | loop_length is 1
bound --required {READER} --history 1.5 | --history 1.5
bound --required {READER} --failed nan | --failed nan
bound --required {READER} --clairvoyant-seeds {"9" * 30} | --clairvoyant-seeds
agents check | --model
agents check --model opneai:x | did you mean 'openai'?
agents check --model openai:x --base-url nowhere | no address
agents show kpi_chain | did you mean 'kpi-chain'?
EVALUATE --seeds 1000000000000 | --seeds
EVALUATE --seeds {"9" * 5000} | --seeds
EVALUATE --tasks {"9" * 30} | {"9" * 30}
EVALUATE --max-seconds 1e300 | 1e300
EVALUATE --max-cost inf | inf
EVALUATE --timeout nan | nan
PROFILE --turns 1000000000 | turns is 1000000000
PROFILE --tasks 4 --axis turn | unknown axis 'turn': did you mean 'turns'?
PROFILE --tasks 4 --reliability 1.2 | reliability is 1.2: above 0 and at most 1
PROFILE --tasks 4 --turns 0 | turns is 0: expected at least 1
PROFILE --tasks 4 --flaw missing | unknown flaw 'missing': did you mean 'missing_step'?
PROFILE --axis turns --flaw missing_step | --flaw changes nothing without the axis flaws
PROFILE --tasks 4 --split tset | did you mean 'test'?
runs power --difference 0 | --difference is 0
runs power --difference 100 | --difference is 100
runs power --prompt optimal | expected RUN_A
runs compare DIR DIR | not a folder of results
runs leaderboard DIR | not a folder of results
runs power DIR | not a folder of results
TRAIN --steps {"9" * 30} | steps
TRAIN --minutes inf | Infinity
TRAIN --set num_envs={"9" * 30} | num_envs
runs episode DIR {"9" * 30} | DIR
EVALUATE --policy randm | randm 'random'
EVALUATE --policy no_such_module:Policy | no_such_module
EVALUATE --policy json:loads | json:loads
EVALUATE --prompt optimall | 'optimal'
EVALUATE --tasks 0 | 0
EVALUATE --tasks missing.jsonl | missing.jsonl
EVALUATE --tasks= | no tasks were named
EVALUATE --split tests | 'test'
EVALUATE --parameters loose | loose lenient
EVALUATE --seeds 0 | --seeds
EVALUATE --search-detail long | long full
EVALUATE --payload huge | huge verbose
EVALUATE --loop-length 1 | loop_length is 1
EVALUATE --embedding-model no/such/folder | no/such/folder
EVALUATE --planner exakt | exakt exact
evaluate --tasks 3 --out DIR | --policy
EVALUATE --policy react | needs a language model
EVALUATE --policy react --model opnai:x | did you mean 'openai'?
EVALUATE --policy react --model scripted:nowhere.jsonl | nowhere.jsonl
EVALUATE --policy react[stps=3] --model scripted:FILES/script.jsonl | did you mean 'steps'?
EVALUATE --policy react[steps=0] --model scripted:FILES/script.jsonl | steps is 0: expected at least 1
EVALUATE --policy react[steps] --model scripted:FILES/script.jsonl | 'steps' is no option, expected name=value
EVALUATE --policy react[steps=3 --model scripted:FILES/script.jsonl | the bracket is not closed
EVALUATE --policy react[templates=FILES/empty] --model scripted:FILES/script.jsonl | holds no .md file
EVALUATE --policy react[templates=nowhere] --model scripted:FILES/script.jsonl | templates='nowhere' does not exist
EVALUATE --policy react --model scripted:FILES/script.jsonl --prices nowhere.json | nowhere.json
play --task {LONG[:-1]} | did you mean '{LONG}'?
play --task {LONG} --prompt optimall | 'optimal'
play --task {LONG} --embedding-model no/such/folder | no/such/folder
tasks prompts show --task task_x | task 'task_x'
tasks prompts show --task {LONG} --prompt-type optimum | 'optimal'
tasks prompts show --task {LONG} --prompt-type flawed --flaw drift | 'drift' 'semantic_drift'
tasks prompts show --task {LONG} --prompt-type flawed --flaw tool_misuse --severity hard | 'hard' moderate, severe
tasks prompts show --task {SHORT} --prompt-type flawed --flaw missing_step | cannot carry between
tasks prompts show --task {LONG} --flaw missing_step | --prompt-type flawed
tasks prompts show --task {LONG} --plan-format xml --prompt-style compact | plan format 'xml'
tasks prompts generate --out DIR --tasks 1 --prompt-type baseline --flaw tool_misuse | --prompt-type flawed
tasks prompts generate --out DIR --tasks 1 --planner exat | 'exact'
tasks prompts generate --out DIR --tasks no.jsonl | no.jsonl
EXPORT prompt | unknown kind 'prompt' in option --kind: did you mean 'prompts'?
EXPORT conversations --prompt-type baseline | option --prompt-type does nothing for kind 'conversations': expected
EXPORT prompts --seeds 2 | option --seeds does nothing for kind 'prompts': expected one of --prompt-type
EXPORT prompts --salt x | option --salt does nothing for kind 'prompts'
EXPORT preferences --policy x | option --policy does nothing for kind 'preferences'
EXPORT prompts --flaw missing_stop | unknown flaw 'missing_stop': did you mean 'missing_step'?
EXPORT prompts --prompt-type baseline --flaw missing_step | need the prompt type flawed
EXPORT prompts --split tset | unknown split 'tset' in option --split: did you mean 'test'?
EXPORT prompts --format csv | unknown value 'csv' in --format: expected one of jsonl, parquet
EXPORT conversations --prompt basline | did you mean 'baseline'?
EXPORT preferences --min-margin 0 | min_margin is 0.0
EXPORT conversations --prompt flawed:missing_stop | did you mean 'missing_step'?
EXPORT conversations --flaw missing_step | --flaw and --severity are about the prompt type flawed
train --seed 3 | --out
TRAIN --preset quik | 'quik' 'quick'
TRAIN --set num_env=3 | 'num_env' 'num_envs'
TRAIN --set law=bench | 'bench' 'benchmark'
TRAIN --device gpu | "gpu" 'cpu'
TRAIN --steps 0 | max_steps at least 1
TRAIN --minutes -1 | max_minutes above 0
TRAIN --config none.yaml | 'none.yaml' does not exist
train evaluate nowhere | 'nowhere' policy.json
train evalute nowhere | evalute evaluate
train evaluate default --split tset | did you mean 'test'?
train evaluate default --tasks 99999 | expected a number from 1
demo --tasks 99999 --out DIR | 99999
demo --workers 0 --out DIR | --workers
"""


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("files")
    (folder / "empty").mkdir()
    (folder / "script.jsonl").write_text('{"reply": "nonsense"}\n', encoding="utf-8")
    return folder


@pytest.mark.parametrize(("arguments", "words"), [line.split(" | ") for line in REFUSED.strip().splitlines()])
def test_wrong_usage_and_wrong_values_are_refused_in_one_line(
    command: Command, tmp_path: Path, files: Path, arguments: str, words: str
) -> None:
    first, _, rest = arguments.partition(" ")
    arguments = f"{BEGINNINGS.get(first, first)} {rest}"
    places = {"DIR": str(tmp_path / "run"), "FILES": str(files)}
    for name, place in places.items():
        arguments, words = arguments.replace(name, place), words.replace(name, place)
    line = command(*arguments.split()).refusal()
    assert len(line) < 1000
    for word in words.split():
        assert word in line
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("text", ["", "[", "{}", '{"tools": []}', '[{"name": "a", "dependencies": ["b"]}]'])
def test_wrong_library_files_are_refused_with_the_files_name(command: Command, tmp_path: Path, text: str) -> None:
    path = tmp_path / "wrong.json"
    path.write_text(text, encoding="utf-8")
    assert "wrong.json" in command("tools", "list", "--library", path).refusal()


@pytest.mark.parametrize(
    ("field", "words"),
    [
        ('"description": "a\\ud800b"', ["line 1", "not Unicode"]),
        ('"inputs": {"a": ' + "[" * 600 + "]" * 600 + "}", ["line 1", "nested too deeply"]),
        ('"inputs": {"a": ' + "9" * 5000 + "}", ["line 1", "5000 digits"]),
    ],
)
def test_tasks_that_no_program_can_use_are_refused(
    command: Command, tmp_path: Path, field: str, words: list[str]
) -> None:
    path = tmp_path / "tasks.jsonl"
    path.write_text('{"required_tools": ["file_operations_reader"], ' + field + "}\n", encoding="utf-8")
    for arguments in (["list"], ["show", "x"], ["stats"]):
        line = command("tasks", *arguments, "--tasks", path).refusal()
        assert all(word in line for word in words)


def test_markup_in_tasks_and_libraries_is_shown_as_it_stands(command: Command, tmp_path: Path) -> None:
    path, library = tmp_path / "tasks.jsonl", tmp_path / "library.json"
    task = {
        "instance_id": "[/id]",
        "required_tools": ["file_operations_reader"],
        "task_type": "[/b]",
        "description": "[bold]d :smile:",
        "inputs": {"x[/i]": "[/u]"},
    }
    path.write_text(json.dumps(task) + "\n", encoding="utf-8")
    tool = {"name": "a_b", "description": "x\\[/b] :smile:", "metadata": {"category": "[/foo]", "operation": "[red]op"}}
    library.write_text(json.dumps([tool]), encoding="utf-8")
    for arguments, texts in (
        (("tasks", "show", "[/id]", "--tasks", path), ("[/id]  [/b], easy", "[bold]d :smile:", "x[/i]", "'[/u]'")),
        (("tasks", "list", "--tasks", path), ("[/b]",)),
        (("tasks", "stats", "--tasks", path), ("[/b]",)),
        (("bound", "--task", "all", "--tasks", path, "--clairvoyant-seeds", "0"), ("[/b]",)),
        (("tools", "show", "a_b", "--library", library), ("a_b  [/foo] / [red]op", tool["description"])),
        (("tools", "list", "--library", library), ("a_b",)),
        (("tools", "search", "[/x]"), ("Tools for '[/x]'",)),
    ):
        shown = command(*arguments).out
        assert all(str(text) in shown for text in texts)
