"""Gates: verdicts of runs that were really played, what is missing, what is exact, and where episodes part."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from resilisim import evaluate, explore
from resilisim.envs import Session
from resilisim.errors import InvalidInputError
from resilisim.evaluation.episode.record import failure_record
from resilisim.evaluation.run import store
from resilisim.evaluation.run.store import read_records
from resilisim.evaluation.table.gate import ROOMS, gate_pilot, gate_runs, luck_within, verdict_of
from resilisim.evaluation.table.verdict import difference_sentence
from resilisim.provenance import encode_json_line
from resilisim.workflows import parse_plan
from tests.evaluation.session_agents import careful, crashing, dodging
from tests.evaluation.toy_policies import toy_tasks


def keep_first(folder: Path, number: int) -> None:
    """Take all but the first episodes of the plan out of a run: sessions at once end in any order."""
    path = folder / "episodes.jsonl"
    lines = sorted(path.read_bytes().splitlines(keepends=True), key=lambda line: int(json.loads(line)["index"]))
    path.write_bytes(b"".join(lines[:number]))


def hasty(session: Session) -> str:
    for name in parse_plan(session.prompt):
        if not session.call(name).ok:
            return "gave up"
    return "done"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    told: dict[str, Any] = {"tasks": toy_tasks(6), "prompts": "optimal"}
    for agent in (careful, hasty, crashing, dodging):
        evaluate(agents=agent, seeds=16, out=folder / agent.__name__, **told)
    for name, seeds in (("first", [0, 1, 2, 3]), ("second", range(4, 16))):
        evaluate(agents=hasty, seeds=seeds, out=folder / "parts" / name, **told)
    for agent in (careful, hasty):
        explore(agents=agent, out=folder / f"{agent.__name__} explored", **{**told, "tasks": toy_tasks(2)})
    return folder


def test_an_agent_that_gives_up_is_worse_and_the_episodes_say_where(runs: Path) -> None:
    gate = gate_runs(runs / "careful", runs / "hasty")
    (row,) = gate.rows
    assert (gate.verdict, gate.exit_code) == ("worse", 1)
    assert row.low < row.difference < row.high < 0.0
    assert row.num_won == 0 < row.num_lost
    assert f"it lost {row.num_lost} episodes that the baseline won" in gate.sentence
    parted = row.parted[0]
    assert (parted.baseline, parted.candidate) == (1, 0)
    assert "failed with" in parted.before
    assert (parted.baseline_did.split()[0], parted.candidate_did) == ("called", "finished")
    other = next(each for each in read_records(runs / "hasty") if each["index"] == parted.candidate_index)
    assert (other["instance_id"], other["seed"]) == (parted.task, parted.seed)


def test_a_folder_is_read_once_and_of_episodes_that_part_their_lines_again(
    runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parse, read, times = store.record_in_line, store.placed_lines, {"lines": 0, "files": 0}

    def parsed(*line: Any) -> Any:
        times["lines"] += 1
        return parse(*line)

    def lines(path: Path) -> Any:
        times["files"] += 1
        return read(path)

    monkeypatch.setattr(store, "record_in_line", parsed)
    monkeypatch.setattr(store, "placed_lines", lines)
    (row,) = gate_runs(runs / "careful", runs / "hasty").rows
    assert times == {"lines": 2 * row.pairs + 2 * len(row.parted), "files": 2}


def test_the_other_way_round_it_is_better_and_the_same_is_not_worse(runs: Path) -> None:
    forth, back = gate_runs(runs / "careful", runs / "hasty"), gate_runs(runs / "hasty", runs / "careful")
    assert back.verdict == "better"
    assert (back.rows[0].low, back.rows[0].high) == pytest.approx((-forth.rows[0].high, -forth.rows[0].low), abs=1e-5)
    copy = runs / "copy"
    shutil.copytree(runs / "careful", copy)
    same = gate_runs(runs / "careful", copy, margin=0.1)
    assert (same.verdict, same.rows[0].difference, same.rows[0].parted) == ("not worse", 0.0, ())
    assert gate_runs(runs / "careful", copy, margin=0.001).verdict == "undecided"


def test_an_agent_that_raises_where_a_tool_fails_fares_like_one_that_gives_up_there(runs: Path) -> None:
    given_up, raised, dodged = (
        gate_runs(runs / "careful", runs / name).rows[0] for name in ("hasty", "crashing", "dodging")
    )
    assert raised.verdict == dodged.verdict == "worse"
    assert given_up.success_candidate == raised.success_candidate == dodged.success_candidate
    assert given_up.pairs == raised.pairs == dodged.pairs == 96
    assert any("raised" in each.candidate_did for each in raised.parted)
    assert any("count as lost" in note for note in gate_runs(runs / "careful", runs / "dodging").notes)


def test_what_the_infrastructure_broke_helps_nobody_and_turns_nothing_red(runs: Path, tmp_path: Path) -> None:
    for name, kept in (("careful", 1.0), ("hasty", 0.7)):
        broken = tmp_path / name
        shutil.copytree(runs / "careful", broken)
        keep_first(broken, int(kept * 96))
    whole, part = (gate_runs(runs / "careful", tmp_path / name, margin=0.2).rows[0] for name in ("careful", "hasty"))
    assert (whole.verdict, whole.num_missing) == ("not worse", 0)
    assert (part.verdict, part.num_missing) == ("undecided", 96 - part.pairs)
    assert part.low < -0.2
    assert part.high > 0.0
    turned = gate_runs(tmp_path / "hasty", runs / "careful", margin=0.2).rows[0]
    # What the baseline lacks it may have won: only where the candidate has lost it does that count against it.
    assert (turned.num_missing, turned.verdict) == (part.num_missing, "not worse")
    assert turned.high > 0.2


def test_without_a_plan_only_what_is_said_to_have_broken_is_missing(runs: Path, tmp_path: Path) -> None:
    part = tmp_path / "part"
    evaluate(agents=careful, tasks=toy_tasks(6)[:5], prompts="optimal", seeds=16, out=part)
    row = gate_runs(runs / "careful", part, margin=0.1).rows[0]
    assert (row.pairs, row.num_missing, row.verdict) == (80, 0, "not worse")
    task = toy_tasks(6)[5].instance_id
    why = {"error": "InfrastructureError", "reason": "the endpoint is gone"}
    failure = failure_record(96, "careful", "optimal", task, 3, fault="infrastructure", **why)
    (part / "failures.jsonl").write_bytes(encode_json_line(failure))
    lost = gate_runs(runs / "careful", part, margin=0.1).rows[0]
    assert lost.num_missing == 1
    assert lost.low == pytest.approx((80 * row.low - 1.0) / 81)


def test_explored_runs_are_exact_and_need_no_episodes(runs: Path, tmp_path: Path) -> None:
    gate = gate_runs(runs / "careful explored", runs / "hasty explored", margin=0.0)
    (row,) = gate.rows
    assert row.is_exact
    assert row.low == pytest.approx(row.high, abs=1e-9)
    assert (gate.verdict, row.pairs, row.num_lost) == ("worse", 2, 2)
    assert "exactly" in gate.sentence
    assert [b < a for _, a, b in row.moved] == [True, True]
    assert np.mean([b - a for _, a, b in row.moved]) == pytest.approx(row.difference)
    sampled = gate_runs(runs / "careful explored", runs / "hasty").rows[0]
    assert not sampled.is_exact
    assert sampled.low <= row.difference <= sampled.high < 0.0
    assert (sampled.pairs, sampled.num_missing) == (32, 0)
    part = tmp_path / "part"
    evaluate(agents=hasty, tasks=toy_tasks(2), prompts="optimal", seeds=16, out=part)
    keep_first(part, 20)
    rest = gate_runs(runs / "careful explored", part).rows[0]
    assert (rest.pairs, rest.num_missing) == (20, 12)
    assert rest.low < sampled.low
    assert rest.high > sampled.high


def test_runs_of_more_seeds_in_one_folder_are_one_side(runs: Path, tmp_path: Path) -> None:
    whole, parts = gate_runs(runs / "careful", runs / "hasty"), gate_runs(runs / "careful", runs / "parts")
    assert parts.rows[0].pairs == 96
    assert (parts.rows[0].low, parts.rows[0].high) == pytest.approx((whole.rows[0].low, whole.rows[0].high), abs=1e-6)
    assert {each.candidate_run for each in parts.rows[0].parted} <= {
        str(runs / "parts" / n) for n in ("first", "second")
    }
    twice = tmp_path / "twice"
    shutil.copytree(runs / "parts", twice)
    shutil.copytree(runs / "parts" / "first", twice / "third")
    with pytest.raises(InvalidInputError, match="holds an episode twice"):
        gate_runs(runs / "careful", twice)


def test_luck_that_is_taken_off_has_mean_zero_and_leaves_bounded_scores(runs: Path) -> None:
    for name in ("careful explored", "hasty explored"):
        for room in ROOMS:
            means: dict[str, float] = {}
            for record in read_records(runs / name):
                taken = luck_within(record, room)
                left, optimum = record["outcome"] - taken, record["optimum"]
                assert optimum - 1.0 - room - 1e-9 <= left <= optimum + 1e-9
                means[record["instance_id"]] = means.get(record["instance_id"], 0.0) + record["weight"] * taken
            assert np.abs(list(means.values())).max() < 1e-9


def test_luck_removed_makes_bounds_tighter_where_agents_meet_other_luck(runs: Path) -> None:
    terms = gate_pilot(runs / "careful", runs / "hasty")
    assert len(terms) == 1 + len(ROOMS)
    assert len({round(float(each.terms.mean()), 1) for each in terms}) <= 2
    assert terms[-1].terms.std() < terms[0].terms.std()


def test_verdicts_follow_from_bounds() -> None:
    assert verdict_of(0.01, 0.2, 0.05) == "better"
    assert verdict_of(-0.04, 0.2, 0.05) == verdict_of(-0.04, -0.01, 0.05) == verdict_of(0.0, 0.0, 0.0) == "not worse"
    assert verdict_of(-0.2, -0.01, 0.05) == "worse"
    assert verdict_of(-0.2, 0.01, 0.05) == "undecided"
    within = difference_sentence("it", "that", -0.02, -0.04, -0.01, margin=0.05)
    assert within == "it is worse than that by 2.0 points [1.0, 4.0], within the margin of 5 points"


def test_what_cannot_be_judged_is_refused(runs: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match=r"margin is 1\.5"):
        gate_runs(runs / "careful", runs / "hasty", margin=1.5)
    with pytest.raises(InvalidInputError, match="unknown policy 'hsty'"):
        gate_runs(runs / "careful", runs / "hasty", candidate_policy="hsty")
    evaluate(agents=hasty, tasks=toy_tasks(6), prompts="optimal", seeds=range(90, 94), out=tmp_path / "others")
    with pytest.raises(InvalidInputError, match="no episode in common"):
        gate_runs(runs / "careful", tmp_path / "others")
    evaluate(agents=hasty, tasks=toy_tasks(6), prompts="optimal", out=tmp_path / "easy", base=0.99)
    with pytest.raises(InvalidInputError, match="base success probability"):
        gate_runs(runs / "careful", tmp_path / "easy")
