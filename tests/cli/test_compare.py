"""`resilisim runs compare`, `leaderboard` and `power` on small runs that were really played."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from resilisim.cli.runs import compare
from resilisim.evaluation import evaluate
from resilisim.evaluation.run.store import begun
from resilisim.evaluation.table import leaderboard
from resilisim.provenance import encode_json_line
from tests.evaluation.toy_policies import Quitter, Reading, toy_tasks

METHODS = ("independent", "paired", "paired_luck_adjusted", "mcnemar")


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("runs")
    settings = {
        "reading": ({"policies": Reading}, {}),
        "quitter": ({"policies": Quitter}, {}),
        "both": ({"policies": [Reading, Quitter], "prompts": ["optimal", "baseline"]}, {}),
        "easy": ({"policies": Reading}, {"base": 0.95}),
        "compact": ({"policies": Quitter, "tasks": toy_tasks(1), "seeds": 1}, {"prompt_style": "compact"}),
        "other_seeds": ({"policies": Reading, "seeds": [7, 8]}, {}),
        "told_and_not": ({"policies": [Reading, Quitter], "prompts": ["optimal", "baseline"], "tasks": 2}, {}),
        "one_task": ({"policies": Quitter, "tasks": toy_tasks(1)}, {}),
    }
    found = {}
    for name, (what, law) in settings.items():
        given = {"tasks": toy_tasks(), "prompts": ["optimal"], "seeds": 4, **what}
        evaluate(**given, out=folder / name, **law)
        found[name] = folder / name
    return found


def test_a_lower_bound_is_not_shown_as_if_it_were_exact(command, runs, monkeypatch):
    told = "Some V* are lower bounds, at most 42.0 points too low"
    arguments = ("runs", "compare", runs["reading"], runs["quitter"])
    assert "lower bounds" not in command(*arguments).out
    compared = replace(compare.compare_runs(*arguments[2:]), optimum_gap=0.42)
    monkeypatch.setattr(compare, "compare_runs", lambda *_: compared)
    assert told in command(*arguments).out


def test_the_ceiling_is_that_of_the_prompt(command, runs, tmp_path):
    run = runs["told_and_not"]
    options = ("--policy-a", "reading", "--policy-b", "quitter", "--prompt")
    for prompt in ("optimal", "baseline"):
        found = command("runs", "compare", run, run, *options, prompt, "--json").json()
        best, one, other = (found[name]["value"] for name in ("optimum", "ceiling_a", "ceiling_b"))
        assert one == other
        assert (one < best) == (prompt == "baseline")
        told = command("runs", "compare", run, run, *options, prompt).out
        assert ("tools had to be found" in told) == (prompt == "baseline")
        assert f"{100 * one:.1f}%" in told
        assert f"{100 * best:.1f}%" in told
        rows = command("runs", "leaderboard", run, "--prompt", prompt, "--json").json()["rows"]
        for row in rows:
            assert row["ceiling"]["value"] == pytest.approx(one)
            assert row["share_of_ceiling"]["value"] == pytest.approx(row["success"]["value"] / one)
    command("runs", "leaderboard", run, "--markdown", tmp_path / "board.md")
    shown = (tmp_path / "board.md").read_text()
    assert "| success | reference | V\\* | of reference |" in shown
    assert "they must be found" in shown


def test_the_table_says_what_to_believe_and_what_it_saved(command, runs):
    outcome = command("runs", "compare", runs["reading"], runs["quitter"])
    assert outcome.code == 0, outcome.err
    assert "24 pairs of episodes on common draws, 6 tasks" in outcome.out
    for name in ("independent samples", "McNemar, exact", "paired, luck-adjusted"):
        assert name in outcome.out
    assert "Rely on: paired, luck-adjusted" in outcome.out
    assert "it estimates the same difference as plain pairing" in outcome.out
    assert "McNemar treats episodes as independent" in outcome.out
    assert "came out differently" not in outcome.out
    assert "independent draws" in outcome.out
    assert "have no counterpart" not in outcome.out


def test_runs_that_do_not_differ_anywhere_are_said_to(command, runs):
    said = "o episode came out differently: the interval is that of differences too rare to turn up"
    options = ("--policy-a", "reading", "--policy-b", "reading")
    text = command("runs", "compare", runs["both"], runs["reading"], *options).out
    assert f"N{said}" in text
    text = command("runs", "compare", runs["both"], runs["both"], *options[:3], "quitter").out
    # Without a plan neither reaches the goal in any episode; with one they differ.
    assert text.count(f"N{said}") == 1
    assert text.index(said) < text.index("all together")
    text = command("runs", "leaderboard", runs["both"]).out
    assert "Where no episode of two rows came out differently" in text
    assert "came out differently" not in command("runs", "leaderboard", runs["both"], "--prompt", "optimal").out


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ("runs compare reading easy", "law (base success probability) is 0.8 in one and 0.95 in the other"),
        ("runs compare reading other_seeds", "no episode in common"),
        ("runs compare both both --policy-a reader", "unknown policy 'reader'"),
        ("runs compare both both --prompt flawed", "unknown prompt type 'flawed'"),
        ("runs leaderboard reading easy", "law (base success probability)"),
        ("runs leaderboard one_task compact", "prompt style is 'full' in one and 'compact' in the other"),
        ("runs power both --prompt optimal --power 1", "power is 1"),
        ("runs power both --prompt optimal --level -1", "level is -1"),
        ("runs power both", "the pilot holds 2 comparisons"),
    ],
)
def test_bad_input_is_refused_in_one_line(command, runs, arguments, text):
    assert text in command(*(runs.get(word, word) for word in arguments.split())).refusal()


def test_a_run_that_is_not_finished_is_compared_and_said(command, runs, tmp_path):
    part = tmp_path / "part"
    shutil.copytree(runs["quitter"], part)
    lines = (part / "episodes.jsonl").read_bytes().splitlines(keepends=True)
    (part / "episodes.jsonl").write_bytes(b"".join(lines[:10]))
    outcome = command("runs", "compare", runs["reading"], part)
    assert outcome.code == 0, outcome.err
    assert "part is not finished: 14 of its episodes are missing" in outcome.err
    (part / "episodes.jsonl").write_bytes(lines[0] + b"{}\n")
    refusal = command("runs", "compare", runs["reading"], part).refusal()
    assert "line 2 of" in refusal
    assert "it has the schema None, expected 'resilisim-episode-1'" in refusal


def test_leaderboard_ranks_marks_and_explains(command, runs):
    folders = (runs["both"], runs["reading"])
    board = command("runs", "leaderboard", *folders, "--json").json()
    optimal = [row for row in board["rows"] if row["prompt_type"] == "optimal"]
    assert [row["policy"] for row in optimal] == ["reading", "reading", "quitter"]
    assert optimal[0]["rank_range"] == [1, 2]
    assert optimal[2]["against_above"]["difference"] < 0
    text = command("runs", "leaderboard", *folders, "--prompt", "optimal").out
    assert "reading (both)" in text
    assert "1-2" in text
    assert "sorted by luck-adjusted success" in text


def test_leaderboard_as_markdown_is_a_table(command, runs, tmp_path):
    command("runs", "leaderboard", runs["both"], "--markdown", tmp_path / "board.md")
    lines = (tmp_path / "board.md").read_text().splitlines()
    assert lines[0] == "### Prompt optimal"
    table = [line for line in lines if line.startswith("|")]
    assert len(table) == 2 * (2 + 2)
    assert len({line.count("|") - line.count("\\|") for line in table}) == 1
    assert "quitter" in table[3]
    assert any("corrected" in line for line in lines)


def test_power_plans_from_a_pilot(command, runs):
    found = command("runs", "power", runs["reading"], runs["quitter"], "--difference", "10", "--json").json()
    assert found["pilot_was_played"] is False
    assert found["pilot"]["episodes"] == 24
    assert (found["difference"], found["power"], found["level"]) == (0.1, 0.8, 0.05)
    methods = found["methods"]
    assert set(methods) == {"independent", "same_tasks_independent_luck", "paired", "paired_luck_adjusted"}
    for row in methods["independent"]["sizes"]:
        assert row["episodes"] == row["num_seeds"] * row["num_tasks"]
    stricter = command(
        "runs", "power", runs["reading"], runs["quitter"], "--difference", "5", "--power", "0.9", "--json"
    ).json()
    first = stricter["methods"]["paired"]["sizes"][0]
    assert first["episodes"] > methods["paired"]["sizes"][0]["episodes"]
    text = command("runs", "power", runs["both"], "--prompt", "optimal").out
    assert "same tasks, independent draws" in text
    assert "From a pilot of 24 pairs on 6 tasks" in text


def test_a_share_in_place_of_points_is_asked_about(command, runs):
    outcome = command("runs", "power", runs["reading"], runs["quitter"], "--difference", "0.03")
    assert outcome.code == 0
    assert "--difference is in points: 0.03 points; did you mean 3?" in outcome.err
    assert "did you mean" not in command("runs", "power", runs["reading"], runs["quitter"], "--difference", "3").err


def test_power_plays_a_pilot_and_says_so(command, monkeypatch):
    monkeypatch.setattr("resilisim.cli.runs.power.PILOT_TASKS", 12)
    outcome = command("runs", "power")
    assert outcome.code == 0, outcome.err
    assert "no pilot given: playing plan-follower and repairing-follower on 12 tasks" in outcome.err
    assert "Your agents may vary more" in outcome.out


def test_a_leaderboard_explains_an_order_that_the_differences_contradict(command, runs, monkeypatch):
    explained = "A row can be ahead of the one above it by the difference"
    assert explained not in command("runs", "leaderboard", runs["both"]).out
    tested = leaderboard._compare

    def turned(one, other):
        return replace(tested(one, other), difference=0.0011)

    monkeypatch.setattr(leaderboard, "_compare", turned)
    assert explained in command("runs", "leaderboard", runs["both"]).out


def test_episodes_that_broke_unclearly_are_told_to_count_as_lost(command, tmp_path):
    evaluate(["plan-follower", "random"], 2, "optimal", out=tmp_path / "run")
    lines = (tmp_path / "run" / "episodes.jsonl").read_bytes().splitlines(keepends=True)
    (tmp_path / "run" / "episodes.jsonl").write_bytes(b"".join(lines[:-1]))
    lost = json.loads(lines[-1])
    line = begun(lost["index"], lost["policy"], "optimal", lost["instance_id"], lost["seed"])
    (tmp_path / "run" / "failures.jsonl").write_bytes(encode_json_line(line))
    words = "1 episode broke and is not finished: it counts as lost"
    told = command("runs", "leaderboard", tmp_path / "run")
    assert words in " ".join((told.out + told.err).split())
    told = command("runs", "compare", tmp_path / "run", tmp_path / "run")
    assert words in " ".join((told.out + told.err).split())
