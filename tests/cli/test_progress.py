from __future__ import annotations

import io
import sys
import threading

import pytest

from resilisim.cli.output import Progressing


class Stream(io.StringIO):
    """A stream that says whether it is a terminal, and when something was written."""

    def __init__(self, terminal):
        super().__init__()
        self.terminal = terminal
        self.written = threading.Event()

    def isatty(self):
        return self.terminal

    def write(self, text):
        done = super().write(text)
        self.written.set()
        return done


@pytest.fixture(params=[False, True], ids=["pipe", "terminal"])
def error_stream(request, monkeypatch):
    """A function that puts such a stream in the place of standard error; pytest puts its own there before a test."""

    def install():
        stream = Stream(request.param)
        monkeypatch.setattr(sys, "stderr", stream)
        monkeypatch.setenv("TERM", "xterm")
        return stream

    return install


def test_what_is_done_soon_says_nothing(error_stream):
    stream = error_stream()
    with Progressing("counting", 3) as progress:
        assert list(progress.track("abc")) == ["a", "b", "c"]
    assert stream.getvalue() == ""


def test_what_takes_long_is_told_before_the_first_item_is_there(error_stream):
    stream = error_stream()

    def slow():
        assert stream.written.wait(30)
        yield 1

    with Progressing("counting", 3, quiet_seconds=0.0) as progress:
        assert list(progress.track(slow())) == [1]
    assert "counting" in stream.getvalue()
    if not stream.isatty():
        assert stream.getvalue() == "counting: 0 of 3 after 0 s\n"


def test_a_reader_that_is_gone_stops_nothing(monkeypatch):
    class Closed(Stream):
        def write(self, text):
            self.written.set()
            raise BrokenPipeError

    stream = Closed(terminal=False)
    monkeypatch.setattr(sys, "stderr", stream)
    with Progressing("counting", 1, quiet_seconds=0.0) as progress:
        assert stream.written.wait(30)
        assert list(progress.track("a")) == ["a"]


def test_an_error_passes_through(error_stream):
    error_stream()
    with pytest.raises(KeyError), Progressing("counting", 1):
        raise KeyError
