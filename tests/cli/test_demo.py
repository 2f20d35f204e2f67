from __future__ import annotations

import json
import re

import numpy as np
import pytest

from resilisim import read_results
from resilisim.cli.evaluation.demo import POLICIES, PROMPTS, one_of_each_complexity
from resilisim.tasks.benchmark import benchmark_tasks
from resilisim.tasks.split import split_of


def test_demo_goes_from_tasks_to_the_report(command, tmp_path):
    out = tmp_path / "demo"
    outcome = command("demo", "--out", out, "--tasks", "5", "--seeds", "1", "--workers", "1", "--model-tasks", "0")
    assert outcome.code == 0, outcome.err
    for heading in ("1. Tasks", "2. Bounds", "3. Agents", "4. Comparison", "5. Report", "Where to look next"):
        assert heading in outcome.out
    for policy in POLICIES:
        assert policy in outcome.out
    assert (out / "report.html").is_file()
    records = [json.loads(line) for line in (out / "episodes.jsonl").read_text(encoding="utf-8").splitlines()]
    assert len(records) == len(POLICIES) * len(PROMPTS) * 5
    assert {split_of(record["required_tools"]) for record in records} == {"test"}
    # What it tells to do next is a command that works.
    suggestion = re.search(r"resilisim (bound --task task_\w+)", outcome.out)
    assert suggestion is not None
    assert command(*suggestion.group(1).split(), "--clairvoyant-seeds", "0").code == 0


def test_examples_differ_in_complexity():
    examples = one_of_each_complexity(list(benchmark_tasks()[:200]))
    assert sorted(task.complexity for task in examples) == ["easy", "hard", "medium"]


@pytest.mark.long
def test_the_demo_lets_the_adapter_that_ships_play(tmp_path, command):
    outcome = command("demo", "--out", tmp_path, "--tasks", "5", "--seeds", "1", "--workers", "1", "--model-tasks", "3")
    assert outcome.code == 0, outcome.err
    assert "6. A language model" in outcome.out
    assert (tmp_path / "language-model" / "report.html").is_file()
    played = read_results(tmp_path / "language-model")
    assert {row.policy for row in played.rows} == {"direct[max_tokens=96]", "plan-follower", "exact-optimum"}
    steps = [step for record in played.records() if record["policy"].startswith("direct") for step in record["steps"]]
    assert sum(step["kind"] in ("execute", "finish") for step in steps) > 0.9 * len(steps)
    assert np.mean([step["regret"] for step in steps]) < 0.1
