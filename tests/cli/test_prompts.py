from __future__ import annotations

import json

import pytest

from resilisim import benchmark_tasks

LONG = next(task.instance_id for task in benchmark_tasks() if len(task.required_tools) == 5)
SHORT = next(task.instance_id for task in benchmark_tasks() if len(task.required_tools) == 1)


def test_generate_writes_records_with_flaws_and_costs(command, tmp_path):
    out = tmp_path / "prompts.jsonl"
    summary = command("tasks", "prompts", "generate", "--tasks", 6, "--out", out, "--json").json()
    rows = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    assert summary["records"] == len(rows)
    assert summary["records"] + summary["flaws_not_carried"] == 60
    for row in rows:
        assert {"instance_id", "prompt_type", "text", "workflow", "planner", "flaw", "costs"} <= set(row)
        assert set(row["costs"]) == {"obey", "obey_coverage", "deviate"}
        assert (row["flaw"] is None) == (row["prompt_type"] != "flawed")
    again = command("tasks", "prompts", "generate", "--tasks", 6, "--out", out)
    assert f"{len(rows)} of them already there" in again.err


def test_generate_makes_what_is_asked_for(command, tmp_path):
    out = tmp_path / "some.jsonl"
    command(
        *(
            "tasks",
            "prompts",
            "generate",
            "--tasks",
            3,
            "--prompt-type",
            "flawed",
            "--flaw",
            "tool_misuse",
            "--flaw",
            "semantic_drift",
        ),
        *("--severity", "light", "--severity", "severe", "--method", "all", "--planner", "exact", "--out", out),
    )
    rows = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    assert len(rows) == 3 * 2 * 2 * 2
    assert {row["flaw"]["severity"] for row in rows} == {"light", "severe"}


def test_another_command_into_the_same_file_is_refused(command, tmp_path):
    out = tmp_path / "prompts.jsonl"
    command("tasks", "prompts", "generate", "--tasks", 1, "--prompt-type", "baseline", "--out", out)
    refusal = command("tasks", "prompts", "generate", "--tasks", 1, "--prompt-type", "optimal", "--out", out).refusal()
    assert "source.types" in refusal
    done = command(
        "tasks", "prompts", "generate", "--tasks", 1, "--prompt-type", "optimal", "--out", out, "--overwrite"
    )
    assert done.code == 0
    assert json.loads(out.read_text(encoding="utf-8"))["prompt_type"] == "optimal"


@pytest.mark.parametrize("plan_format", ["markdown", "xml"])
def test_show_marks_what_a_flaw_changed(command, plan_format):
    shown = command(
        *(
            "tasks",
            "prompts",
            "show",
            "--task",
            LONG,
            "--prompt-type",
            "flawed",
            "--flaw",
            "missing_step",
            "--severity",
            "severe",
        ),
        *("--method", "middle_step_removal", "--plan-format", plan_format),
    ).out
    lines = shown.splitlines()
    gone = [line for line in lines if line.startswith("- ")]
    assert any(("Execute" if plan_format == "markdown" else "<tool>") in line for line in gone)
    assert "removed" in shown
    assert "price of obedience" in shown
    prompt = [line[2:] for line in lines if line.startswith(("  ", "+ "))]
    assert "# Task" in prompt


def test_a_sound_prompt_is_printed_as_it_is(command):
    text = command("tasks", "prompts", "show", "--task", LONG, "--prompt-type", "chain_of_thought").out
    record = command("tasks", "prompts", "show", "--task", LONG, "--prompt-type", "chain_of_thought", "--json").json()
    assert text.rstrip("\n") == record["text"].rstrip("\n")
    assert "Reasoning:" in text


def test_show_draws_a_flaw_that_the_plan_can_carry(command):
    shown = [
        command("tasks", "prompts", "show", "--task", task, "--prompt-type", "flawed", "--seed", seed, "--json").json()[
            "flaw"
        ]["type"]
        for task in (LONG, SHORT)
        for seed in range(6)
    ]
    assert len(set(shown[:6])) > 1
    assert "missing_step" not in shown[6:]


def test_costs_depend_on_who_carries_the_plan_out(command):
    prices = {}
    for executor in ("plan-follower", "plan-and-execute", "kpi-chain"):
        rows = command("tasks", "prompts", "costs", "--tasks", 10, "--executor", executor, "--json").json()
        prices[executor] = {(row["method"], row["severity"]): row for row in rows}
        assert prices[executor]["none", "none"]["obey"] == prices["plan-follower"]["none", "none"]["obey"]
        assert prices[executor]["nested_reference", "severe"]["harmless"] == 1.0
    coverage = {name: rows["missing_reference", "light"]["obey_coverage"] for name, rows in prices.items()}
    assert coverage["plan-follower"] > coverage["plan-and-execute"] > coverage["kpi-chain"] == 0.0


def test_costs_are_ordered_by_severity(command):
    rows = command("tasks", "prompts", "costs", "--tasks", 40, "--json").json()
    assert len(rows) == 1 + 3 * (2 * 7 + 4)
    assert rows[0]["flaw"] == "none"
    for light, moderate, severe in zip(rows[1::3], rows[2::3], rows[3::3], strict=True):
        assert [light["severity"], moderate["severity"], severe["severity"]] == ["light", "moderate", "severe"]
        if light["method"] == "nested_reference":  # which can be resolved
            assert [row["harmless"] for row in (light, moderate, severe)] == [1.0] * 3
            continue
        assert light["obey_coverage"] > moderate["obey_coverage"] > severe["obey_coverage"]
        assert light["obey"] >= moderate["obey"] >= severe["obey"]
        assert light["harmless"] == 0.0
    assert "obey_coverage" in command("tasks", "prompts", "costs", "--tasks", 2).out
