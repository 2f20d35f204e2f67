from __future__ import annotations

import json
import re

from resilisim.cli.evaluation.demo import POLICIES, PROMPTS, one_of_each_complexity
from resilisim.tasks.benchmark import benchmark_tasks
from resilisim.tasks.model import split_of


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
