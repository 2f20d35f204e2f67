"""What commands refuse, each in one line with the value and the nearest name, before anything is written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Command

READER = "file_operations_reader"
# A command, "|", and what its line has to hold, one thing a word; DIR is a folder that does not exist.
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
tasks list --tasks benchmark-v2 | benchmark-v2 benchmark-v1
tasks list --tasks= | no tasks were named benchmark-v1
tasks list --tasks {"1" * 300} | cannot be read
tasks stats --tasks no/such/file.jsonl | no/such/file.jsonl
tasks stats --plot DIR/a.jpg | '.jpg' .png, .svg, .pdf
tasks stats --plot DIR/plot | '' .png, .svg, .pdf
tasks stats --plot DIR/a.png | DIR
bound | --task --tools
bound --toolz a | --toolz --tools
bound --task all --tools {READER} | --task --tools
bound --tools file_operations_reeder | file_operations_reeder '{READER}'
bound --tools reader | did you mean '{READER}'?
bound --tools , | at least one
bound --tools {READER},{READER} | {READER}
bound --task task_none | task_none
bound --tools {READER} --turns -1 | --turns -1
bound --tools {READER} --turns 1000000000000 | --turns
bound --tools {READER} --success-probability 2 | --success-probability 2
bound --tools {READER} --loop-length 1 | loop_length is 1
bound --tools {READER} --history 1.5 | --history 1.5
bound --tools {READER} --failed nan | --failed nan
bound --tools {READER} --clairvoyant-seeds {"9" * 30} | --clairvoyant-seeds
models check | --model
models check --model opneai:x | did you mean 'openai'?
models check --model openai:x --base-url nowhere | no address
agents kpi_chain | did you mean 'kpi-chain'?
evaluate --policy random --out DIR --seeds 1000000000000 | --seeds
evaluate --policy random --out DIR --seeds {"9" * 5000} | --seeds
evaluate --policy random --out DIR --tasks {"9" * 30} | {"9" * 30}
evaluate --policy random --out DIR --tasks 1 --max-seconds 1e300 | 1e+300
evaluate --policy random --out DIR --tasks 1 --max-cost inf | inf
evaluate --policy random --out DIR --tasks 1 --timeout nan | nan
profile --policy random --out DIR --turns 1000000000 | turns is 1000000000
profile --policy random --out DIR --tasks 4 --axis turn | unknown axis 'turn': did you mean 'turns'?
profile --policy random --out DIR --tasks 4 --reliability 1.2 | reliability is 1.2: a probability above 0 and at most 1
profile --policy random --out DIR --tasks 4 --turns 0 | turns is 0: expected at least 1
profile --policy random --out DIR --tasks 4 --flaw missing | unknown flaw 'missing': did you mean 'missing_step'?
profile --policy random --out DIR --axis turns --flaw missing_step | --flaw changes nothing without the axis flaws
profile --policy random --out DIR --tasks 4 --split tset | did you mean 'test'?
power --difference 0 | --difference is 0
power --difference 100 | --difference is 100
power --prompt optimal | expected RUN_A
compare DIR DIR | no folder of results
leaderboard DIR | no folder of results
power DIR | no folder of results
train --out DIR --steps {"9" * 30} | steps
train --out DIR --minutes inf | Infinity
train --out DIR --set num_envs={"9" * 30} | num_envs
episode show DIR {"9" * 30} | DIR
"""


@pytest.mark.parametrize(("arguments", "words"), [line.split(" | ") for line in REFUSED.strip().splitlines()])
def test_wrong_usage_and_wrong_values_are_refused_in_one_line(
    command: Command, tmp_path: Path, arguments: str, words: str
) -> None:
    folder = str(tmp_path / "run")
    line = command(*arguments.replace("DIR", folder).split()).refusal()
    assert len(line) < 1000
    for word in words.replace("DIR", folder).split():
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
