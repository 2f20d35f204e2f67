"""The check of coverage on made-up episodes: it passes rates that are true, and finds out those that are not."""

from __future__ import annotations

import numpy as np
import pytest

from resilisim.statistics.luck_adjustment import NUM_MORE
from verification import coverage
from verification.contest import Contest
from verification.findings import failing

SMALL = {
    "SINGLE_TASKS": (0,),
    "SINGLE_SIZES": {10: 20, 30: 10},
    "MANY_TASKS": 20,
    "MANY_SEEDS": 20,
    "MANY_SIZES": {(8, 1): 20},
    "RUN_TASKS": 10,
    "RUN_SEEDS": 20,
}


@pytest.fixture
def pieces(monkeypatch: pytest.MonkeyPatch) -> list[coverage.Played]:
    """Episodes of one task and of many that succeed by chance, a part of which is luck by V*."""
    for name, value in SMALL.items():
        monkeypatch.setattr(coverage, name, value)
    generator = np.random.Generator(np.random.Philox(key=1))
    rates = np.array([0.8, 0.7, 0.5, 0.2])[:, None, None]
    made = []
    for num_tasks, num_seeds in ((1, 300), (20, 20)):
        shape = (4, num_tasks, num_seeds)
        outcome = (generator.random(shape) < rates).astype(np.float64)
        luck = np.zeros((*shape, 1 + NUM_MORE))
        luck[..., 0] = 0.9 * (outcome - rates)
        own = np.broadcast_to(rates[..., 0], (4, num_tasks))
        slipping = np.stack([0.98 * own[coverage.POLICIES.index(name)] for name in coverage.SLIPS])
        contest = Contest(tuple(map(str, range(num_tasks))), outcome, luck, np.full(num_tasks, 0.8))
        made.append(coverage.Played(contest, np.concatenate([own, slipping]), 0))
    return made


def failed(pieces: list[coverage.Played]) -> list[str]:
    return [name for name in failing(coverage.judge(pieces)) if not name.startswith("control")]


def test_true_rates_pass(pieces: list[coverage.Played]) -> None:
    assert failed(pieces) == []


def test_rates_that_are_not_those_of_the_agents_are_found_out(pieces: list[coverage.Played]) -> None:
    wrong = [piece._replace(rates=piece.rates * np.array([0.7, 1.0, 1.0, 1.0, 1.0, 1.0])[:, None]) for piece in pieces]
    found = failed(wrong)
    for where in (coverage.ONE, coverage.MANY, coverage.ROWS):
        assert f"95% intervals hold exact rates: {where}, {coverage.SCORE}" in found
    assert f"95% intervals hold exact rates: {coverage.ONE}, {coverage.DIFFERENCES['paired_luck_adjusted']}" in found
