"""Progress: silence for short runs, lines where there is no terminal, a bar where there is one."""

from __future__ import annotations

import io
import sys
import threading

import pytest

from resilisim.evaluation.run import progress
from resilisim.evaluation.run.progress import RunProgress


class Clock:
    """A clock that the test sets."""

    now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(progress, "time", clock)
    return clock


def watched(stream: io.StringIO, total: int, finished: int = 0, show: bool | None = None) -> RunProgress:
    """Return the progress of a run whose standard error is a stream."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stderr", stream)
        return RunProgress(total, finished, show)


def test_a_short_run_says_nothing(clock: Clock) -> None:
    out = io.StringIO()
    shown = watched(out, 3, 0)
    for _ in range(3):
        clock.now += 0.5
        shown.advance()
    shown.close()
    assert out.getvalue() == ""


def test_without_a_terminal_there_is_a_line_now_and_then_with_rate_and_time_left(clock: Clock) -> None:
    out = io.StringIO()
    shown = watched(out, 1000, 400)
    for _ in range(300):
        clock.now += 0.0625
        shown.advance()
    clock.now += 1.0
    shown.close()
    assert out.getvalue().splitlines() == [
        "560 of 1,000 episodes, 16.0/s, 28 s left",
        "700 of 1,000 episodes, 15.2/s, 20 s left",
    ]


def test_long_waits_are_told_in_minutes_and_hours() -> None:
    assert [progress._duration(seconds) for seconds in (59.4, 60, 3725)] == [
        "59 s",
        "1 min 00 s",
        "1 h 02 min",
    ]


def test_a_terminal_gets_a_bar_that_goes_away(clock: Clock) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    out = Terminal()
    shown = watched(out, 100, 0)
    for _ in range(50):
        clock.now += 0.1
        shown.advance()
    shown.close()
    assert "/100" in out.getvalue()
    assert "10.0/s" in out.getvalue()


def test_it_can_be_switched_off(clock: Clock) -> None:
    out = io.StringIO()
    shown = watched(out, 100, 0, show=False)
    for _ in range(100):
        clock.now += 1.0
        shown.advance()
    shown.close()
    assert out.getvalue() == ""


def test_a_reader_that_went_away_does_not_stop_the_run(clock: Clock) -> None:
    class Closed(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    shown = watched(Closed(), 100, 0)
    for _ in range(100):
        clock.now += 1.0
        shown.advance()
    shown.close()


def test_the_time_before_the_first_episode_is_not_in_the_rate(clock: Clock) -> None:
    out = io.StringIO()
    shown = watched(out, 1000, 0)
    clock.now += 30.0
    shown.advance()
    for _ in range(160):
        clock.now += 0.0625
        shown.advance()
    shown.close()
    assert out.getvalue().splitlines() == [
        "1 of 1,000 episodes",
        "161 of 1,000 episodes, 16.0/s, 52 s left",
        "161 of 1,000 episodes, 16.0/s, 52 s left",
    ]


def test_two_seconds_are_measured_before_anything_is_estimated(clock: Clock) -> None:
    shown = watched(io.StringIO(), 100, 0)
    clock.now += 60.0
    shown.advance()
    clock.now += 1.9375
    for _ in range(10):
        shown.advance()
    assert shown._line(clock.now) == "11 of 100 episodes"
    clock.now += 0.0625
    assert shown._line(clock.now) == "11 of 100 episodes, 5.0/s, 18 s left"


def test_a_few_episodes_are_no_basis_for_an_estimate_unless_they_are_slow(clock: Clock) -> None:
    shown = watched(io.StringIO(), 100, 0)
    shown.advance()
    clock.now += 59.0
    shown.advance()
    assert shown._line(clock.now) == "2 of 100 episodes"
    clock.now += 1.0
    assert shown._line(clock.now) == "2 of 100 episodes, 0.0/s, 1 h 38 min left"


class Listener(io.StringIO):
    """A stream that tells when something has been written to it."""

    def __init__(self, is_terminal: bool) -> None:
        super().__init__()
        self._is_terminal = is_terminal
        self.heard = threading.Event()

    def isatty(self) -> bool:
        return self._is_terminal

    def write(self, text: str) -> int:
        written = super().write(text)
        if "starting" in text:
            self.heard.set()
        return written


def test_a_run_whose_first_episode_takes_long_says_that_it_is_starting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "QUIET_SECONDS", 0.01)
    out = Listener(is_terminal=False)
    shown = watched(out, 3, 1)
    assert out.heard.wait(10.0)
    shown.advance()
    shown.close()
    assert out.getvalue().splitlines() == ["starting: no episode has ended yet", "2 of 3 episodes"]


def test_a_terminal_shows_the_bar_before_the_first_episode(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "QUIET_SECONDS", 0.01)
    out = Listener(is_terminal=True)
    shown = watched(out, 3, 0)
    assert out.heard.wait(10.0)
    shown.close()
    assert "0/3" in out.getvalue()
