"""Ranks and comparisons count an episode as lost that broke, nobody can tell why, as long as it is not finished."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from resilisim import evaluate, read_results
from resilisim.evaluation import compare_runs
from resilisim.evaluation.run.store import RunStore, begun, read_manifest
from resilisim.evaluation.table.leaderboard import read_leaderboard
from tests.evaluation.session_agents import careful, dodging
from tests.evaluation.toy_policies import toy_tasks


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("run")
    result = evaluate(agents=[careful, dodging], tasks=toy_tasks(3), prompts="optimal", seeds=4, out=out)
    assert 0 < result.call.num_failures < 12
    assert result.row("dodging", "optimal").success.value == 1.0  # of those that are finished
    return out


def test_an_agent_that_dodges_its_losses_does_not_lead(run: Path) -> None:
    board = read_leaderboard([run])
    rows = {row.label: row for row in board.sections["optimal"]}
    assert [row.label for row in board.sections["optimal"]] == ["careful", "dodging"]
    lost = rows["dodging"].entry.num_counted_as_lost
    assert (rows["careful"].entry.num_counted_as_lost, lost) == (0, 24 - read_results(run).num_episodes)
    assert rows["dodging"].entry.summary.success.value == (12 - lost) / 12
    assert board.num_unfinished == {str(run): lost}
    assert board.same_episodes
    identity = rows["dodging"].entry.summary
    assert identity.optimum.value - identity.regret.value == pytest.approx(identity.success.value - identity.luck.value)


def test_comparisons_take_the_worst_case_too(run: Path) -> None:
    found = compare_runs(run, run, "careful", "dodging")
    assert found.pooled.episodes == 12
    assert found.num_counted_as_lost == found.num_unfinished
    assert found.pooled.best.difference > 0.0


def test_without_another_episode_of_the_task_it_counts_all_the_same(tmp_path: Path) -> None:
    evaluate(agents=dodging, tasks=toy_tasks(3), prompts="optimal", seeds=4, out=tmp_path / "alone")
    (row,) = read_leaderboard([tmp_path / "alone"]).sections["optimal"]
    assert row.entry.num_counted_as_lost > 0
    assert row.entry.summary.num_episodes == 12


def test_an_episode_that_was_handed_out_and_never_finished_counts_as_lost(tmp_path: Path) -> None:
    evaluate(agents=careful, tasks=toy_tasks(2), prompts="optimal", out=tmp_path)
    # Two sessions are played at the same time: either can be written first.
    lines = (tmp_path / "episodes.jsonl").read_bytes().splitlines(keepends=True)
    (line,) = (line for line in lines if json.loads(line)["index"] == 0)
    (tmp_path / "episodes.jsonl").write_bytes(line)
    with RunStore(tmp_path, read_manifest(tmp_path)["arguments"], 2) as store:
        store.begin(begun(1, "careful", "optimal", toy_tasks(2)[1].instance_id, 0))
    (row,) = read_leaderboard([tmp_path]).sections["optimal"]
    assert (row.entry.summary.num_episodes, row.entry.num_counted_as_lost) == (2, 1)


def test_what_the_infrastructure_broke_counts_nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from resilisim.envs.conversation import ConversationEnv
    from resilisim.worlds.base import WorldFailed

    step, calls = ConversationEnv.step, iter(range(1000))

    def breaks(self: ConversationEnv, *call: Any) -> Any:
        if next(calls) == 3:
            raise WorldFailed("the server is gone", "Gone")
        return step(self, *call)

    monkeypatch.setattr(ConversationEnv, "step", breaks)
    result = evaluate(agents=careful, tasks=toy_tasks(3), prompts="optimal", out=tmp_path)
    assert (result.num_episodes, result.call.num_failures) == (2, 1)
    (row,) = read_leaderboard([tmp_path]).sections["optimal"]
    assert (row.entry.summary.num_episodes, row.entry.num_counted_as_lost) == (2, 0)
