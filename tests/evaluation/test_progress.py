"""Progress: silence for short runs, lines where there is no terminal, a bar where there is one."""

import io
import sys
import threading

import pytest

from resilisim.evaluation.run import progress
from resilisim.evaluation.run.progress import RunProgress
from tests.guards import WAITING_SECONDS


class Clock:
    """A clock that the test sets."""

    now = 100.0

    def monotonic(self):
        return self.now


class Stream(io.StringIO):
    """A stream that tells when a run was said to be starting."""

    def __init__(self, is_terminal=False):
        super().__init__()
        self._is_terminal = is_terminal
        self.heard = threading.Event()

    def isatty(self):
        return self._is_terminal

    def write(self, text):
        written = super().write(text)
        if "starting" in text:
            self.heard.set()
        return written


class Closed(Stream):
    """A stream whose reader has gone."""

    def write(self, text):
        raise BrokenPipeError


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(progress, "time", clock)
    return clock


def watched(stream, total, finished=0, show=None):
    """Return the progress of a run whose standard error is a stream."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stderr", stream)
        return RunProgress(total, finished, show)


def advance(shown, clock, count, seconds):
    for _ in range(count):
        clock.now += seconds
        shown.advance()


@pytest.mark.parametrize(
    ("stream", "total", "seconds", "show"),
    [(Stream(), 3, 0.5, None), (Stream(), 100, 1.0, False), (Closed(), 100, 1.0, None)],
    ids=["short", "switched off", "nobody listens"],
)
def test_nothing_is_said_and_nothing_stops(clock, stream, total, seconds, show):
    shown = watched(stream, total, show=show)
    advance(shown, clock, total, seconds)
    shown.close()
    assert stream.getvalue() == ""


def test_without_a_terminal_there_is_a_line_now_and_then_with_rate_and_time_left(clock):
    stream = Stream()
    shown = watched(stream, 1000, 400)
    advance(shown, clock, 300, 0.0625)
    clock.now += 1.0
    shown.close()
    assert stream.getvalue().splitlines() == [
        "560 of 1,000 episodes, 16.0/s, 28 s left",
        "700 of 1,000 episodes, 15.2/s, 20 s left",
    ]


def test_the_time_before_the_first_episode_is_not_in_the_rate(clock):
    stream = Stream()
    shown = watched(stream, 1000)
    advance(shown, clock, 1, 30.0)
    advance(shown, clock, 160, 0.0625)
    shown.close()
    assert stream.getvalue().splitlines() == [
        "1 of 1,000 episodes",
        "161 of 1,000 episodes, 16.0/s, 52 s left",
        "161 of 1,000 episodes, 16.0/s, 52 s left",
    ]


def test_an_estimate_needs_two_seconds_and_ten_episodes_or_a_minute(clock):
    shown = watched(Stream(), 100)
    advance(shown, clock, 1, 60.0)
    advance(shown, clock, 10, 0.1875)
    assert shown._line(clock.now) == "11 of 100 episodes"
    assert shown._line(clock.now + 0.125) == "11 of 100 episodes, 5.0/s, 18 s left"
    slow = watched(Stream(), 100)
    slow.advance()
    advance(slow, clock, 1, 59.0)
    assert slow._line(clock.now) == "2 of 100 episodes"
    assert slow._line(clock.now + 1.0) == "2 of 100 episodes, 0.0/s, 1 h 38 min left"


def test_a_terminal_gets_a_bar_that_goes_away(clock):
    stream = Stream(is_terminal=True)
    shown = watched(stream, 100)
    advance(shown, clock, 50, 0.1)
    shown.close()
    assert "/100" in stream.getvalue()
    assert "10.0/s" in stream.getvalue()


@pytest.mark.parametrize("is_terminal", [False, True])
def test_a_run_whose_first_episode_takes_long_says_that_it_is_starting(monkeypatch, is_terminal):
    monkeypatch.setattr(progress, "QUIET_SECONDS", 0.01)
    stream = Stream(is_terminal)
    shown = watched(stream, 3, 1)
    assert stream.heard.wait(WAITING_SECONDS)
    shown.advance()
    shown.close()
    if is_terminal:
        assert "1/3" in stream.getvalue()
    else:
        assert stream.getvalue().splitlines() == ["starting: no episode has ended yet", "2 of 3 episodes"]
