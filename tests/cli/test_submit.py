"""`resilisim runs submit`: a set is defined from a run, other runs are checked against it."""

from __future__ import annotations

import hashlib
from pathlib import Path

from resilisim.evaluation.run.store import EPISODES_NAME
from tests.cli.conftest import Command

EVALUATE = ("evaluate", "--prompt", "optimal", "--tasks", 2, "--seeds", 2, "--record-texts", "all", "--salt", "spring")


def test_a_set_is_defined_and_runs_are_checked_against_it(command: Command, tmp_path: Path) -> None:
    first, own, secret = tmp_path / "first", tmp_path / "own.json", tmp_path / "secret.json"
    assert command(*EVALUATE, "--policy", "random", "--out", first).code == 0
    assert (
        command("runs", "submit", "define", first, "--name", "own-v1", "--out", own).out
        == f"4 episodes of each policy: {own}\n"
    )
    outcome = command("runs", "submit", "check", first, "--set", own)
    assert outcome.code == 0
    assert outcome.out.startswith("accepted: 4 episodes of random on own-v1\nluck of random under optimal: ")
    values = command("runs", "submit", "check", first, "--set", own, "--json", "--workers", 2).json()
    assert (values["accepted"], values["num_episodes"], values["refusals"]) == (True, 4, [])

    lines = (first / EPISODES_NAME).read_bytes().splitlines(keepends=True)
    (first / EPISODES_NAME).write_bytes(b"".join(lines[1:]))
    outcome = command("runs", "submit", "check", first, "--set", own)
    assert outcome.code == command("runs", "submit", "check", first, "--set", own, "--json").code == 1
    assert outcome.out.startswith(
        "refused: 3 of 4 episodes of random on own-v1\nepisodes are missing (1):\n  episode 0: "
    )
    refused = command("runs", "submit", "check", first)
    assert refused.code == 1
    assert 'salt of the draws is "spring", expected "resilisim/open-v2"' in refused.out

    second = tmp_path / "second"
    assert command(*EVALUATE, "--policy", "plan-follower", "--out", second).code == 0
    assert command("runs", "submit", "define", second, "--name", "secret-v1", "--private", "--out", secret).code == 0
    hashed = hashlib.sha256(b"spring").hexdigest()
    assert f"salt: private, SHA-256 {hashed}" in command("runs", "submit", "show", secret).out
    assert "its owner checks with --salt-file" in command("runs", "submit", "check", second, "--set", secret).refusal()
    salt = tmp_path / "salt.txt"
    salt.write_text("summer\n", encoding="utf-8")
    assert hashed in command("runs", "submit", "check", second, "--set", secret, "--salt-file", salt).refusal()
    salt.write_text("spring\n", encoding="utf-8")
    assert command("runs", "submit", "check", second, "--set", secret, "--salt-file", salt).code == 0


def test_the_open_set_is_shown(command: Command) -> None:
    outcome = command("runs", "submit", "show")
    assert outcome.out.startswith("open-v2: 100 tasks x 3 seeds x 2 prompts = 600 episodes of each policy\n")
    assert len(command("runs", "submit", "show", "open-v2", "--json").json()["tasks"]) == 100


def test_what_is_no_run_and_no_set_is_refused_in_one_line(command: Command, tmp_path: Path) -> None:
    assert "is not a folder of results" in command("runs", "submit", "check", tmp_path).refusal()
    assert "did you mean 'open-v2'?" in command("runs", "submit", "check", tmp_path, "--set", "opn-v2").refusal()
    assert "no.json" in command("runs", "submit", "show", tmp_path / "no.json").refusal()
    assert "salt file" in command("runs", "submit", "check", tmp_path, "--salt-file", tmp_path / "no.txt").refusal()
    assert (
        "is not a folder of results"
        in command("runs", "submit", "define", tmp_path, "--name", "a", "--out", tmp_path / "a.json").refusal()
    )
