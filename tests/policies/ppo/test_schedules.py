"""Learning rate and entropy coefficient: the paper's numbers, and when its conditions hold."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resilisim.errors import InvalidInputError
from resilisim.policies.ppo.states import (
    DECLINE_WINDOW,
    RECENT_ITERATIONS,
    Schedule,
    ScheduleState,
    entropy_coefficient,
    learning_rate,
)

RATE = st.floats(0.0, 1.0)
STREAM = st.lists(st.tuples(st.integers(0, 1), RATE, st.integers(0, 4)), min_size=1, max_size=40)


def run(phases: list[int], rates: list[float] | None = None, stages: list[int] | None = None) -> ScheduleState:
    state = ScheduleState()
    for iteration, phase in enumerate(phases):
        rate = 0.5 if rates is None else rates[iteration]
        state = state.after(iteration, phase, rate, 0 if stages is None else stages[iteration])
    return state


@pytest.mark.parametrize(
    ("stage", "changed", "declining", "expected"),
    [
        (0, False, False, 3e-4),
        (1, False, False, 2.85e-4),
        (4, False, False, 2.443518750e-4),
        (0, True, False, 3.6e-4),
        (0, False, True, 2.4e-4),
        (0, True, True, 3.6e-4),  # the change of phase counts
        (2, False, True, 2.166e-4),
    ],
)
def test_learning_rate(stage: int, changed: bool, declining: bool, expected: float) -> None:
    assert learning_rate(3e-4, stage, changed, declining) == pytest.approx(expected, rel=1e-9)


def test_entropy_coefficient() -> None:
    assert entropy_coefficient(0) == 0.01
    assert entropy_coefficient(1) == 0.005


def test_a_change_to_the_sequence_phase_is_recent_for_ten_iterations() -> None:
    for later in range(RECENT_ITERATIONS):
        assert run([0, 0, 1] + [1] * later).phase_changed_recently
    assert not run([0, 0, 1] + [1] * RECENT_ITERATIONS).phase_changed_recently
    assert not run([0, 1, 0]).phase_changed_recently  # back in the coverage phase
    assert run([0, 1] + [1] * 20 + [0, 1]).phase_changed_recently  # a second time
    assert not run([1, 1]).phase_changed_recently  # nothing changed
    assert run([0, 1]).learning_rate() == pytest.approx(3.6e-4)


def test_declining_compares_with_the_best_of_ten() -> None:
    assert run([1] * 3, [0.9, 0.9, 0.69]).declining
    assert not run([1] * 3, [0.9, 0.9, 0.71]).declining
    assert not run([1] * 11, [0.9] + [0.6] * 10).declining  # the best was too long ago
    assert run([1] * 10, [0.9] + [0.6] * 9).declining
    assert run([1] * 3, [0.9, 0.9, 0.6]).learning_rate(1e-3) == pytest.approx(8e-4)


def test_another_phase_or_stage_is_not_a_decline() -> None:
    assert not run([0, 1], [0.9, 0.3]).declining
    assert not run([1, 1], [0.9, 0.3], [0, 1]).declining
    assert run([1, 1, 1], [0.9, 0.8, 0.3], [0, 1, 1]).declining


@given(STREAM)
def test_state_follows_the_definition(stream: list[tuple[int, float, int]]) -> None:
    state = run([phase for phase, _, _ in stream], [rate for _, rate, _ in stream], [stage for _, _, stage in stream])
    last = len(stream) - 1
    phase, rate, stage = stream[last]
    began = [n for n in range(1, len(stream)) if (stream[n - 1][0], stream[n][0]) == (0, 1)]
    assert state.phase_changed_recently == (phase == 1 and bool(began) and last - began[-1] < RECENT_ITERATIONS)
    same = last
    while same > 0 and (stream[same - 1][0], stream[same - 1][2]) == (phase, stage):
        same -= 1
    window = [r for _, r, _ in stream[max(same, last - DECLINE_WINDOW + 1) :]]
    assert state.declining == (rate < max(window) - 0.2)
    assert state.learning_rate() == learning_rate(3e-4, stage, state.phase_changed_recently, state.declining)


@given(STREAM, RATE)
def test_json_keeps_everything(stream: list[tuple[int, float, int]], rate: float) -> None:
    state = run([phase for phase, _, _ in stream], [rate for _, rate, _ in stream], [stage for _, _, stage in stream])
    read = ScheduleState.from_mapping(json.loads(json.dumps(state.to_mapping())))
    assert read == state
    assert read.after(len(stream), 1, rate) == state.after(len(stream), 1, rate)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"phase": 2}, "field 'phase': got 2; expected a whole number, at least 0 and at most 1"),
        ({"rates": [1.5]}, "field 'rates', item 1: got 1.5; expected a number, at least 0 and at most 1"),
        ({"rates": [0.5] * 11}, "11 rates are kept: expected at most 10"),
        ({"rates": 1}, "field 'rates': got 1; expected an array"),
        ({"changed_at": 3}, "changed_at is 3"),
    ],
)
def test_unusable_state_is_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        ScheduleState.from_mapping(run([1]).to_mapping() | change)


def test_iterations_go_on() -> None:
    with pytest.raises(InvalidInputError, match="iteration 1 comes after 1: expected a larger number"):
        run([0, 0]).after(1, 0, 0.5)


def test_plain_schedules() -> None:
    assert [Schedule(2.0).at(done) for done in (0.0, 0.5, 1.0)] == [2.0, 2.0, 2.0]
    assert [Schedule(2.0, "linear", 1.0).at(done) for done in (0.0, 0.5, 1.0)] == [2.0, 1.5, 1.0]
    cosine = Schedule(2.0, "cosine", 1.0)
    assert cosine.at(0.0) == 2.0
    assert cosine.at(0.25) == pytest.approx(1.5 + math.sqrt(2) / 4)
    assert cosine.at(0.5) == pytest.approx(1.5)
    assert cosine.at(1.0) == 1.0
    with pytest.raises(InvalidInputError, match="unknown schedule 'liner': did you mean 'linear'"):
        Schedule(1.0, "liner")


@given(st.sampled_from(["constant", "linear", "cosine"]), RATE, RATE, st.floats(-0.5, 1.5), st.floats(-0.5, 1.5))
def test_plain_schedules_go_from_base_to_floor(kind, base: float, floor: float, one: float, other: float) -> None:
    base, floor = max(base, floor), min(base, floor)
    schedule = Schedule(base, kind, floor)
    early, late = schedule.at(min(one, other)), schedule.at(max(one, other))
    assert floor - 1e-12 <= late <= early + 1e-12 <= base + 2e-12
