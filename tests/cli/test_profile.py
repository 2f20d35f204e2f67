from __future__ import annotations

import json

import pytest
from rich.console import Console

from resilisim.cli.runs import profile as profile_view
from resilisim.evaluation.robustness import profiling as profile_job
from resilisim.evaluation.run.runner import RunInterrupted
from tests.chat.loopback import LoopbackServer, error

RUN = ["runs", "profile", "--policy", "plan-follower", "--policy", "exact-optimum", "--tasks", "4"]
SMALL = ["--reliability", "0.5", "--turns", "6", "--flaw", "redundant_operation", "--severity", "light"]


def test_profile_prints_its_axes_and_writes_a_page(command, tmp_path):
    out = tmp_path / "robust"
    outcome = command(*RUN, *SMALL, "--out", out, "--markdown", tmp_path / "tables.md")
    assert outcome.code == 0, outcome.err
    for text in ("by reliability", "by turns", "by flaw and severity", "What flaws in the plan cost", "optimum"):
        assert text in outcome.out
    assert f"page: {out / 'profile.html'}" in outcome.out
    assert (out / "profile.html").exists()
    assert "# How does it do as things get worse?" in (tmp_path / "tables.md").read_text(encoding="utf-8")
    assert sorted(path.name for path in out.iterdir() if path.is_dir()) == [
        "flaws-redundant_operation",
        "reliability-0.50",
        "standard",
        "turns-06",
    ]


def test_json_holds_curves_flaws_and_runs_and_the_same_command_plays_nothing_again(command, tmp_path):
    arguments = [*RUN, *SMALL, "--out", tmp_path / "robust", "--json"]
    first = command(*arguments).json()
    assert first["axes"]["reliability"]["values"] == [0.5, 0.8]
    assert first["axes"]["turns"]["values"] == [6, 10]
    optimum = first["axes"]["turns"]["curves"][1]
    assert optimum["policy"] == "exact-optimum"
    adjusted = [point["luck_adjusted"]["value"] for point in optimum["points"]]
    assert adjusted == pytest.approx(first["axes"]["turns"]["optimum"], abs=1e-12)
    assert first["flaws"]["policies"][0]["drop"]["raw"]["num_clusters"] == 4
    assert first["finished"]
    standard = tmp_path / "robust" / "standard" / "episodes.jsonl"
    before = standard.read_bytes()
    assert command(*arguments).json() == first
    assert standard.read_bytes() == before


@pytest.mark.parametrize("width", [80, 200])
def test_no_number_or_policy_is_cut_on_narrow_terminals(command, tmp_path, monkeypatch, width):
    monkeypatch.setattr(profile_view.output, "console", lambda: Console(width=width, highlight=False))
    more = ["--policy", "repairing-follower", "--policy", "random", "--severity", "moderate", "--severity", "severe"]
    outcome = command(*RUN, *more, *SMALL, "--out", tmp_path / "robust")
    assert outcome.code == 0, outcome.err
    shown = outcome.out.split("page: ")[0]
    assert "…" not in shown
    assert max(map(len, shown.splitlines())) <= width
    for word in ("plan-follower ", "repairing-follower ", "exact-optimum *", "recovered", "lowest under", "sound plan"):
        assert word in shown
    # Every number with its interval stands on one line of its own.
    assert all(line.count("[") == line.count("]") for line in shown.splitlines())


def test_options_reach_every_run(command, tmp_path):
    options = ["--axis", "turns", "--turns", "6", "--parameters", "strict", "--salt", "mine", "--prompt", "baseline"]
    assert command(*RUN, *options, "--max-consecutive-failures", "0", "--out", tmp_path / "a").code == 0
    for run in ("standard", "turns-06"):
        arguments = json.loads((tmp_path / "a" / run / "manifest.json").read_text(encoding="utf-8"))["arguments"]
        environment = arguments["environment"]
        assert (environment["parameters"], environment["salt"]) == ("strict", "mine")
        assert environment["max_consecutive_failures"] == 0
        assert arguments["prompts"] == ["baseline"]


def test_an_interrupted_profile_says_that_it_goes_on(command, tmp_path, monkeypatch):
    def interrupted(*arguments, **options):
        raise RunInterrupted(3, 8)

    monkeypatch.setattr(profile_job, "play_plan", interrupted)
    outcome = command(*RUN, "--axis", "turns", "--turns", "6", "--out", tmp_path / "robust")
    assert outcome.code == 130
    assert "run 1 of 2, standard setting: interrupted: 3 of 8 episodes kept; the same command resumes it" in outcome.err


def test_a_profile_that_the_surroundings_broke_ends_with_code_3(command, tmp_path):
    arguments = ["runs", "profile", "--policy", "react", "--model", "openai:m", "--tasks", "2", "--axis", "turns"]
    with LoopbackServer(lambda seen: error(503)) as server:
        where = ["--base-url", server.base_url, "--retries", "0", "--out", tmp_path / "robust"]
        outcome = command(*arguments, "--turns", "6", *where)
    assert outcome.code == 3
    assert "4 episodes broke and count in no score, the last because http://127.0.0.1" in outcome.err
    assert "react" in outcome.out
