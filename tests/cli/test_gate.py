"""`resilisim gate`: exit codes, what it prints for people, builds and pull requests, and playing until it is clear."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from resilisim.evaluation import evaluate
from tests.cli.conftest import Command
from tests.evaluation.toy_policies import Quitter, Reading, toy_tasks


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    told: dict[str, Any] = {"tasks": toy_tasks(6), "prompts": "optimal"}
    for name in ("both", "both-again"):
        evaluate([Reading, Quitter], out=folder / name, **told)
    for name, policy in (("reading", Reading), ("quitter", Quitter)):
        evaluate(policy, seeds=16, out=folder / name, **told)
        for first, number in ((0, 1), (1, 1), (2, 2), (4, 4), (8, 8)):
            evaluate(policy, seeds=range(first, first + number), out=folder / f"{name}-{first}-{number}", **told)
    return folder


def test_verdicts_are_exit_codes(command: Command, runs: Path) -> None:
    worse = command("gate", runs / "reading", runs / "quitter")
    assert worse.code == 1
    assert worse.out.startswith("The candidate is worse than the baseline by ")
    assert "WORSE" in worse.out
    assert "they part at" in worse.out
    assert f"resilisim runs episode {runs / 'quitter'}" in worse.err
    better = command("gate", runs / "quitter", runs / "reading")
    assert (better.code, better.out.split(" by ")[0]) == (0, "The candidate is better than the baseline")
    open_one = command("gate", runs / "reading-0-1", runs / "quitter-0-1")
    assert open_one.code == 3
    assert open_one.out.startswith("It cannot be told yet")
    assert "--plan says how many" in open_one.err
    same = command("gate", runs / "both", runs / "both-again")
    assert (same.code, "runs of resilisim explore tell exactly" in same.err) == (3, True)
    assert "(reading, prompt optimal; 2 of 2 are undecided)" in same.out
    assert command("gate", runs / "reading", runs / "none").refusal().endswith("it does not exist")
    assert "expected points from 0" in command("gate", runs / "reading", runs / "quitter", "--margin", "-1").refusal()
    assert "CANDIDATE is missing" in command("gate", runs / "reading").refusal()


def test_builds_and_pull_requests_are_told(
    command: Command, runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    summary = tmp_path / "summary.md"
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    report = tmp_path / "gate.xml"
    outcome = command("gate", runs / "reading", runs / "quitter", "--github", "--junit", report)
    assert outcome.code == 1
    assert outcome.out.startswith("### ❌ ResiliSim gate: worse")
    assert "<details><summary>Where they part (" in outcome.out
    assert summary.read_text(encoding="utf-8").strip() == outcome.out.strip()
    (suite,) = ElementTree.parse(report).getroot()
    assert (suite.get("tests"), suite.get("failures"), suite.get("errors")) == ("1", "1", "0")
    failure = suite.find("testcase/failure")
    assert failure is not None
    assert "is worse than the baseline" in failure.get("message", "")
    assert "candidate lost; turn" in (failure.text or "")
    told = command("gate", runs / "quitter", runs / "reading", "--json")
    assert (told.code, told.json()["verdict"], told.json()["rows"][0]["baseline"]) == (0, "better", "quitter")
    command("gate", runs / "reading-0-1", runs / "quitter-0-1", "--junit", report)
    assert ElementTree.parse(report).getroot().get("errors") == "1"


def test_it_says_how_many_pairs_it_will_take(command: Command, runs: Path) -> None:
    found = command(
        "gate", runs / "reading", runs / "quitter", "--plan", "--difference", "22", "--difference", "10", "--json"
    )
    rows = found.json()["plan"]
    assert [row["difference"] for row in rows] == [0.22, 0.1, 0.0]
    assert rows[0]["half"] <= rows[0]["mostly"] < rows[1]["half"]
    alone = command("gate", runs / "reading", "--plan", "--difference", "22")
    assert "worse by 22 points" in alone.out
    assert "At best" in alone.out
    assert "expected points above 0" in command("gate", runs / "reading", "--plan", "--difference", "0").refusal()


def test_commands_play_until_the_verdict_is_clear(command: Command, runs: Path, tmp_path: Path) -> None:
    copies = f"cp -r {shlex.quote(str(runs))}/{{name}}-{{first_seed}}-{{seeds}} {{out}}"
    out = tmp_path / "candidate"
    out.mkdir()
    quitter = copies.replace("{name}", "quitter")
    outcome = command("gate", runs / "reading", out, "--candidate-command", quitter)
    assert outcome.code == 1, outcome.err
    played = sorted(path.name for path in out.iterdir())
    assert played == ["seeds-00000", "seeds-00001", "seeds-00002", "seeds-00004"][: len(played)]
    assert 1 < len(played) < 5
    assert f"undecided after {2 ** (len(played) - 2)} of 16 seeds" in outcome.err
    early = tmp_path / "early"
    early.mkdir()
    stopped = command("gate", runs / "reading", early, "--candidate-command", quitter, "--most-seeds", 1)
    assert (stopped.code, [path.name for path in early.iterdir()]) == (3, ["seeds-00000"])


def test_commands_that_cannot_be_used_are_refused(command: Command, runs: Path, tmp_path: Path) -> None:
    def refused(line: str) -> str:
        return command("gate", runs / "reading", tmp_path / "out", "--candidate-command", line).refusal()

    assert "says nothing about {out}" in refused("true")
    assert "ended with 1: expected 0" in refused("false {out}")
    assert "cannot be started: No such file" in refused("no-such-program {out}")
    assert "No closing quotation" in refused("'{out}")


@pytest.mark.long
def test_evaluate_plays_seeds_behind_one_another(command: Command, tmp_path: Path) -> None:
    play = "resilisim evaluate --policy {} --prompt optimal --tasks 12"
    line = f"{play} --seeds {{{{seeds}}}} --first-seed {{{{first_seed}}}} --out {{{{out}}}}"
    sides = ("--baseline-command", line.format("plan-follower"), "--candidate-command", line.format("random"))
    outcome = command("gate", tmp_path / "a", tmp_path / "b", *sides)
    assert outcome.code == 1, outcome.err
    again = command("gate", tmp_path / "a", tmp_path / "b")
    assert again.out == outcome.out
