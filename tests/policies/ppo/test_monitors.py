"""When the monitors see convergence."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resilisim.errors import InvalidInputError
from resilisim.policies.ppo.states import Convergence, ConvergenceMonitor

SHARE = st.floats(0.0, 1.0)
WINDOWS = st.lists(st.tuples(st.integers(0, 1), SHARE, SHARE, st.none() | st.floats(1.0, 20.0)), max_size=30)


def coverage_windows(*coverages: float) -> ConvergenceMonitor:
    monitor = ConvergenceMonitor()
    for coverage in coverages:
        monitor = monitor.after(0, coverage, 0.0, 5.0)
    return monitor


def sequence_windows(steps: list[float | None], sequences: list[float] | None = None) -> ConvergenceMonitor:
    monitor = ConvergenceMonitor()
    for place, number in enumerate(steps):
        monitor = monitor.after(1, 1.0, 0.8 if sequences is None else sequences[place], number)
    return monitor


def test_coverage_must_stay_above_the_line_for_five_windows() -> None:
    assert ConvergenceMonitor().convergence == Convergence(None, 0, None, None)
    assert coverage_windows(0.81, 0.9, 0.9, 0.9).convergence == Convergence(None, 4, None, None)
    assert coverage_windows(0.1, 0.81, 0.9, 0.9, 0.9, 0.9).convergence == Convergence("coverage", 5, None, None)
    assert not coverage_windows(0.9, 0.9, 0.8, 0.9, 0.9).convergence.converged  # 0.8 is not above 0.8
    assert not coverage_windows(0.9, 0.9, 0.9, 0.9, 0.9, 0.5).convergence.converged


def test_sequence_needs_order_and_fewer_steps() -> None:
    assert sequence_windows([6.0] * 5 + [5.0] * 5).convergence == Convergence("sequence", 10, 5.0, 6.0)
    assert not sequence_windows([5.0] * 10).convergence.converged  # not fewer
    assert not sequence_windows([5.0] * 5 + [6.0] * 5).convergence.converged
    assert not sequence_windows([6.0] * 5 + [5.0] * 4).convergence.converged  # nothing to compare with yet
    assert sequence_windows([6.0] * 5 + [5.0] * 5, [0.2] * 5 + [0.71] * 5).convergence.converged
    assert not sequence_windows([6.0] * 5 + [5.0] * 5, [0.9] * 9 + [0.7]).convergence.converged


def test_windows_without_a_successful_episode() -> None:
    assert sequence_windows([None, 6.0, None, 7.0, 8.0, 5.0, None, 5.0, 5.0, 5.0]).convergence == Convergence(
        "sequence", 10, 5.0, 7.0
    )
    assert sequence_windows([None] * 5 + [5.0] * 5).convergence == Convergence(None, 10, 5.0, None)


def test_a_new_phase_starts_from_nothing() -> None:
    monitor = coverage_windows(0.9, 0.9, 0.9, 0.9, 0.9)
    assert monitor.after(1, 0.9, 0.9, 4.0).convergence == Convergence(None, 1, None, None)
    assert monitor.after(1, 0.9, 0.9, 4.0).after(0, 0.9, 0.9, 4.0).convergence.consistent_windows == 1


@given(WINDOWS)
def test_the_monitor_follows_the_definition(windows: list[tuple[int, float, float, float | None]]) -> None:
    monitor = ConvergenceMonitor()
    for window in windows:
        monitor = monitor.after(*window)
    phase = windows[-1][0] if windows else 0
    run = len(windows)
    while run > 0 and windows[run - 1][0] == phase:
        run -= 1
    latest = windows[run:]
    holds = len(latest) >= 5 and all(window[1 + phase] > (0.8, 0.7)[phase] for window in latest[-5:])
    if phase == 1 and holds:
        before = [steps for *_, steps in latest[-10:-5] if steps is not None]
        now = [steps for *_, steps in latest[-5:] if steps is not None]
        enough = len(latest) >= 10 and before and now
        holds = bool(enough and sum(now) / len(now) < sum(before) / len(before))
    assert monitor.convergence.converged == holds
    assert monitor.convergence.criterion == ((("coverage", "sequence")[phase]) if holds else None)
    read = ConvergenceMonitor.from_mapping(json.loads(json.dumps(monitor.to_mapping())))
    assert read == monitor
    assert read.after(1, 0.9, 0.9, None) == monitor.after(1, 0.9, 0.9, None)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"correct": [0.5]}, "1 windows with 0 numbers of steps"),
        ({"correct": [0.5] * 11, "steps": [1.0] * 11}, "at most 10"),
        (
            {"correct": [2.0], "steps": [1.0]},
            "field 'correct', item 1: got 2.0; expected a number, at least 0 and at most 1",
        ),
        ({"steps": [-1.0], "correct": [0.5]}, "field 'steps', item 1: got -1.0"),
        ({"phase": "coverage"}, "field 'phase': got .coverage"),
    ],
)
def test_unusable_state_is_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        ConvergenceMonitor.from_mapping(ConvergenceMonitor().to_mapping() | change)
