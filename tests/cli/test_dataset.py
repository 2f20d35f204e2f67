"""`resilisim dataset`: export, verify and show, through the real commands."""

from __future__ import annotations

import dataclasses
import inspect
import json
from pathlib import Path
from typing import Any

import pytest

from resilisim.cli import dataset
from resilisim.cli.options import option_fields
from resilisim.datasets import read_records
from resilisim.datasets.conversations import ConversationSpec
from resilisim.datasets.export import DEFAULT_LICENSE, TASKS_PER_SHARD
from resilisim.datasets.preferences import PreferenceSpec
from resilisim.datasets.prompt_records import PromptSpec
from tests.cli.conftest import Command

# Plain prompts of a few tasks need no model, so they take no time.
PLAIN = ("dataset", "export", "--kind", "prompts", "--prompt-type", "baseline", "--no-alternatives")


def source_arguments(out: Path) -> Any:
    return json.loads((out / "manifest.json").read_bytes())["arguments"]["source"]


def test_prompts_become_a_folder(command: Command, tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = command(*PLAIN, "--tasks", 12, "--out", out)
    assert done.code == 0
    assert "12 records in" in done.out
    assert "train" in done.out
    assert "resilisim dataset show" in done.err
    assert [record["prompt_type"] for record in read_records(out)] == ["baseline"] * 12
    again = command(*PLAIN, "--tasks", 12, "--out", out, "--workers", 2, "--json")
    assert "3 of 3 files were already there" in again.err
    assert again.json()["records"] == {"train": 10, "validation": 1, "test": 1}
    refusal = command(*PLAIN, "--tasks", 13, "--out", out).refusal()
    assert "holds another dataset: arguments.tasks.count is 12 there and 13 here; use another folder" in refusal
    assert command(*PLAIN, "--tasks", 13, "--out", out, "--overwrite", "--json").json()["shards_already_there"] == 0


def test_the_card_has_the_command_without_folders_and_processes(command: Command, tmp_path: Path) -> None:
    tasks = tmp_path / "my tasks.jsonl"
    tasks.write_text('{"required_tools": ["network_fetcher"]}\n')
    options = ("--tasks", tasks, "--tasks-per-shard", 5, "--turns", 8)
    command(*PLAIN, *options, "--out", tmp_path / "out", "--workers", 2, "--overwrite", "--json").json()
    lines = (tmp_path / "out" / "README.md").read_text().splitlines()
    assert lines[lines.index("```console") + 1] == (
        "$ resilisim dataset export --kind prompts --tasks 'my tasks.jsonl' --tasks-per-shard 5 --prompt-type baseline "
        "--no-alternatives --turns 8 --out DIR"
    )
    assert str(tmp_path) not in "\n".join(lines)


def test_options_reach_the_spec_and_the_others_keep_its_defaults(command: Command, tmp_path: Path) -> None:
    given = (
        "--prompt-type",
        "flawed",
        "--prompt-type",
        "baseline",
        "--flaw",
        "missing_step",
        "--severity",
        "severe",
        "--seed",
        7,
    )
    options = (*given, "--method", "all", "--no-alternatives", "--list-tools", "--success-probability", 0.7)
    done = command("dataset", "export", "--kind", "prompts", "--tasks", 2, "--out", tmp_path, *options)
    assert done.code == 0, done.err
    expected = PromptSpec(
        types=("flawed", "baseline"),
        flaws=("missing_step",),
        severities=("severe",),
        methods=("middle_step_removal", "validation_removal"),
        alternatives=False,
        seed=7,
    )
    environment = dataclasses.replace(expected.environment, tools="listed", base=0.7)
    assert source_arguments(tmp_path) == dataclasses.replace(expected, environment=environment).arguments()


@pytest.mark.parametrize(
    ("kind", "options", "spec"),
    [
        (
            "conversations",
            ("--prompt", "optimal", "--seeds", 2, "--first-seed", 3, "--policy", "plan-follower", "--no-look-up"),
            ConversationSpec(prompts=("optimal",), seeds=2, first_seed=3, policy="plan-follower", search=False),
        ),
        (
            "preferences",
            (
                "--prompt",
                "optimal",
                "--explore",
                0.5,
                "--min-margin",
                0.1,
                "--no-pass-parameters",
                "--arguments",
                "text",
            ),
            PreferenceSpec(
                prompts=("optimal",), explore=0.5, min_margin=0.1, pass_parameters=False, call_arguments="text"
            ),
        ),
    ],
)
def test_episodes_are_played_with_the_luck_of_training(
    command: Command, tmp_path: Path, kind: str, options: tuple[object, ...], spec: Any
) -> None:
    style = ("--prompt-style", "compact", "--tokenizer", "none")
    done = command("dataset", "export", "--kind", kind, "--tasks", 2, "--out", tmp_path, "--turns", 9, *options, *style)
    assert done.code == 0, done.err
    environment = dataclasses.replace(spec.environment, max_turns=9, prompt_style="compact")
    assert source_arguments(tmp_path) == dataclasses.replace(spec, environment=environment).arguments()
    assert source_arguments(tmp_path)["environment"]["salt"] == "resilisim/training"


FLAWED = ("--no-look-up", "--no-alternatives", "--tasks", "benchmark-v1:12")


@pytest.mark.parametrize("kind", ["conversations", "preferences"])
def test_tasks_whose_plan_cannot_carry_a_flaw_are_left_out_and_counted(
    command: Command, tmp_path: Path, kind: str
) -> None:
    export = ("dataset", "export", "--kind", kind, *FLAWED, "--out")
    named = command(*export, tmp_path / "named", "--prompt", "flawed:logic_discontinuity:severe")
    assert named.code == 0, named.err
    optioned = ("--prompt", "flawed", "--flaw", "logic_discontinuity", "--severity", "severe")
    counted = command(*export, tmp_path / "optioned", *optioned, "--json").json()["tasks_without_a_flawed_prompt"]
    records = list(read_records(tmp_path / "named"))
    assert records == list(read_records(tmp_path / "optioned"))
    assert {record["flaw"]["type"] for record in records} == {"logic_discontinuity"}
    assert {record["flaw"]["severity"] for record in records} == {"severe"}
    assert {record["prompt_type"] for record in records} == {"flawed"}
    assert counted == 12 - len({record["instance_id"] for record in records}) > 0
    assert f"{counted} of 12 tasks have no record under a flawed prompt" in named.err


def test_the_command_offers_what_the_specs_take_with_their_defaults() -> None:
    defaults = {name: value.default for name, value in inspect.signature(dataset.export).parameters.items()}
    assert (defaults["tasks_per_shard"], defaults["license_name"]) == (TASKS_PER_SHARD, DEFAULT_LICENSE)
    for spec_class in dataset.KINDS.values():
        fields = option_fields(spec_class)
        assert {field.name for field in dataclasses.fields(spec_class)} - {"environment"} <= fields.keys()
        # A reward is paid to trainers, and changes nothing in a dataset; a world is named by --tasks; no call is
        # forced, and none hangs; what is learned is the work order itself, whose goal is the tools that it names.
        offered = fields.keys() - {"reward", "world", "force", "fails_by", "goal", "once", "any_order"}
        assert offered <= dataset.SOURCES.options.keys() <= defaults.keys()
    assert [spec_class.kind for spec_class in dataset.KINDS.values()] == list(dataset.KINDS)
    assert set(dataset.ONLY_FOR_EPISODES) <= set(dataset.ENVIRONMENT)


def test_verify_tells_what_was_changed(command: Command, tmp_path: Path) -> None:
    command(*PLAIN, "--tasks", 12, "--out", tmp_path)
    whole = command("dataset", "verify", tmp_path)
    assert (whole.code, whole.out) == (0, "")
    assert whole.err == "12 records in 3 files, all as they were written\n"
    shard = next((tmp_path / "data").glob("train-*"))
    shard.write_bytes(shard.read_bytes().replace(b"baseline", b"BASELINE", 1))
    changed = command("dataset", "verify", tmp_path)
    assert changed.code == 1
    assert changed.out == f"{shard} was changed: remove it, and the same command makes it again\n"
    as_json = command("dataset", "verify", tmp_path, "--json")
    assert as_json.code == 1
    assert json.loads(as_json.out) == {"shards": 3, "records": 12, "problems": [changed.out.rstrip("\n")]}
    assert "is not a folder of a dataset" in command("dataset", "verify", tmp_path / "data").refusal()


def test_show_prints_the_first_records(command: Command, tmp_path: Path) -> None:
    command(*PLAIN, "--tasks", 12, "--out", tmp_path)
    record = next(read_records(tmp_path, "test"))
    shown = command("dataset", "show", tmp_path, "--split", "test")
    assert shown.code == 0
    lines = shown.out.splitlines()
    assert lines[:2] == ["record 1", f"  instance_id: {record['instance_id']}"]
    assert "  flaw: -" in lines
    assert f"    - {record['required_tools'][0]}" not in lines
    assert f"      - {record['required_tools'][0]}" in lines
    assert "\n".join(f"      {line}" for line in record["text"].split("\n")) in shown.out
    assert len(command("dataset", "show", tmp_path, "--limit", 3, "--json").json()) == 3
    assert len(command("dataset", "show", tmp_path, "--limit", 0, "--json").json()) == 12
    assert "unknown split 'trian'" in command("dataset", "show", tmp_path, "--split", "trian").refusal()
