"""Progress: silence for what is short, lines where there is no terminal, a bar where there is one."""

import io
import sys
import threading
from collections import OrderedDict
from types import SimpleNamespace

import pytest

from resilisim import at_work, evaluate
from resilisim.evaluation.run import progress
from resilisim.evaluation.run.progress import Progressing
from resilisim.simulator.exact import optimum
from resilisim.tasks import find_task
from tests.guards import WAITING_SECONDS


class Stream(io.StringIO):
    """A stream that tells when it was written to, like that of a terminal or like one whose reader has gone."""

    def __init__(self, kind):
        super().__init__()
        self.kind = kind
        self.written = threading.Event()

    def isatty(self):
        return self.kind == "terminal"

    def write(self, text):
        done = super().write(text)
        self.written.set()
        if self.kind == "closed":
            raise BrokenPipeError
        return done


@pytest.mark.parametrize("kind", ["pipe", "terminal", "closed"])
def test_what_takes_long_is_told_before_anything_has_ended_and_nothing_stops(kind, monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", quick := Stream(kind))
    with Progressing("counting", 3) as shown:
        assert list(shown.track("abc")) == ["a", "b", "c"]
    with Progressing("counting", 3, show=False), pytest.raises(KeyError), Progressing("counting", 1):
        raise KeyError
    assert quick.getvalue() == ""

    monkeypatch.setattr(progress, "QUIET_SECONDS", 0.01)
    monkeypatch.setattr(sys, "stderr", stream := Stream(kind))

    def slow():
        assert stream.written.wait(WAITING_SECONDS)
        yield 1

    with Progressing("counting", 3, 1) as shown:
        assert list(shown.track(slow())) == [1]
    text = stream.getvalue()
    if kind == "pipe":
        assert text.splitlines() == ["counting: 1 of 3, starting", "counting: 2 of 3"]
    else:
        assert "counting" in text
        assert kind == "closed" or "1/3" in text


def test_where_nothing_is_counted_the_phases_are_all_there_is_to_say(monkeypatch):
    monkeypatch.setattr(at_work, "LONG_SECONDS", 0.0)
    shown = Progressing("preparing", None, show=False)
    assert shown._line() == "preparing"
    with at_work.AT_WORK.on("loading tasks"):
        assert shown._line() == "preparing: loading tasks"


def test_an_estimate_needs_two_seconds_and_ten_items_or_a_minute_from_the_first_on(monkeypatch):
    now = 100.0
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: now))
    shown = Progressing("episodes", 1000, 400, show=False)
    now += 30.0
    shown.advance()
    now += 1.9375
    shown.advance(31)
    assert shown._line() == "episodes: 432 of 1,000"
    now += 0.0625
    assert shown._line() == "episodes: 432 of 1,000, 15.5/s, 37 s left"
    slow = Progressing("episodes", 100, show=False)
    slow.advance()
    now += 59.0
    slow.advance()
    assert slow._line() == "episodes: 2 of 100"
    now += 1.0
    assert slow._line() == "episodes: 2 of 100, 1.0/min, 1 h 38 min left"


def test_what_is_waited_for_stands_in_the_line_in_place_of_a_start(monkeypatch):
    monkeypatch.setattr(progress, "QUIET_SECONDS", 0.01)
    monkeypatch.setattr(sys, "stderr", stream := Stream("pipe"))
    waits = iter(["2 requests under way, the oldest for 30 s", ""])

    def slow():
        assert stream.written.wait(WAITING_SECONDS)
        yield 1

    with Progressing("episodes", 3, waits_for=lambda: next(waits)) as shown:
        assert list(shown.track(slow())) == [1]
    assert stream.getvalue().splitlines() == [
        "episodes: 0 of 3, 2 requests under way, the oldest for 30 s",
        "episodes: 1 of 3",
    ]


def test_a_run_names_the_ceiling_that_it_solves_also_a_later_one(monkeypatch):
    monkeypatch.setattr(progress, "QUIET_SECONDS", 0.0)
    monkeypatch.setattr(progress, "LINE_SECONDS", 0.01)
    monkeypatch.setattr(at_work, "LONG_SECONDS", 0.0)
    monkeypatch.setattr(sys, "stderr", stream := Stream("pipe"))
    monkeypatch.setattr(optimum, "_solved", OrderedDict())
    lists = {"first": ["file_operations_reader"], "second": ["file_operations_reader", "data_processing_parser"]}
    like = find_task("task_c64444cae27fab46").to_mapping()
    tasks = [{**like, "instance_id": name, "required_tools": tools} for name, tools in lists.items()]
    solve = optimum.compute_optimum

    def solved_once_it_was_told(problem, *limits):
        number = len(problem.required)
        line = f"episodes: {number - 1} of 2, solving ceiling {number} of 2: {list(lists)[number - 1]}\n"
        while line not in stream.getvalue():
            stream.written.clear()
            assert stream.written.wait(WAITING_SECONDS)
        return solve(problem, *limits)

    monkeypatch.setattr(optimum, "compute_optimum", solved_once_it_was_told)
    evaluate("plan-follower", tasks, "optimal")
