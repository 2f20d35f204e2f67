"""The formulas of the rewards, by hand from SPEC section 5; `test_reference` compares what episodes are paid."""

from __future__ import annotations

import pytest

from resilisim.envs.workflow.rewards import (
    efficiency_reward,
    error_penalty,
    order_reward,
    progress_reward,
    terminal_reward,
)


@pytest.mark.parametrize(
    ("places", "once", "printed"),
    [
        ([2], 15, 15),
        ([0, 3], 15, 30),
        ([3, 0], 5, 10),  # ranks 1, 0: one swap
        ([1, 0, 2], 5, 15),
        ([2, 0, 1], -5, -20),  # two swaps; off by 2, 1, 1; the latest by 1
        ([2, 1, 0], -10, -20),
        ([5, 4, 9], 5, 15),
        ([4, 5, 3, 9], 0, -20),  # the latest is in its rank: nothing; off by 1, 1, 2, 0
    ],
)
def test_order_rewards(places, once, printed):
    assert order_reward(places, len(places), False) == once
    assert order_reward(places, len(places), True) == printed


def test_formulas():
    assert [error_penalty(rate) for rate in (0.0, 0.1, 0.29, 0.3, 0.9)] == [0, 2, 2, 5, 5]
    assert efficiency_reward(4, 4, 0) == pytest.approx(20 * 2 / 6 + 10)
    assert efficiency_reward(4, 4, 1) == pytest.approx(20 * 2 / 6)
    assert efficiency_reward(7, 4, 3) == 0.0
    assert progress_reward(0.25, 0.5, 9, False) == 2.5
    assert progress_reward(0.25, 0.5, 10, False) == 0.0
    assert progress_reward(0.25, 0.9, 10, False) == 5.0
    assert progress_reward(0.25, 0.9, 9, True) == 10.0
    assert terminal_reward(True, 0, 0.5, 0.25, 0.6) == 175.0
    assert terminal_reward(True, 1, 0.5, 0.5, 0.6) == 125.0
    assert terminal_reward(False, 1, 0.5, 0.5, 0.6) == pytest.approx(30.0)
