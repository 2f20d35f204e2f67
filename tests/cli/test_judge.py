"""`resilisim judge` on a run that was really played, with a judge from a script."""

from __future__ import annotations

import json
from pathlib import Path

from tests.cli.conftest import Command
from tests.worlds.notebook import NAME


def test_the_command_shows_and_keeps_what_the_judge_says(command: Command, tmp_path: Path) -> None:
    run, script, out = tmp_path / "run", tmp_path / "judge.jsonl", tmp_path / "verdicts.jsonl"
    command("evaluate", "--tasks", f"{NAME}:4", "--policy", "reference", "--policy", "random", "--out", run)
    replies = ("correct", "incorrect", "perhaps", "correct")
    script.write_text("".join(json.dumps({"reply": reply}) + "\n" for reply in replies))
    model = ("--model", f"scripted:{script}", "--concurrency", 1)
    done = command("judge", run, *model, "--out", out)
    assert done.code == 0, done.err
    assert "8 answers" in done.out
    verdicts = [json.loads(line) for line in out.read_text().splitlines()]
    assert [one["verdict"] for one in verdicts if one["policy"] == "reference"] == [
        *("correct", "incorrect", "unreadable", "correct")
    ]
    reference, silent = command("judge", run, *model, "--json").json()
    assert (reference["exact"], reference["num_both"], reference["num_exact_only"]) == (1.0, 2, 1)
    assert reference["num_unreadable"] == 1
    assert (silent["judge"], silent["num_neither"], silent["agreement"]) == (0.0, 4, 1.0)
    assert "expected one, such as --model" in command("judge", run).refusal()
