"""How commands speak: figures, texts that are not markup, JSON in any encoding, and progress."""

from __future__ import annotations

import io
import json
import math
import sys
import threading

import pytest
from rich.console import Console

from resilisim.cli.output import Progressing, figure, plain, prepare_streams, print_json, table


def test_figures_that_do_not_exist_are_null_and_a_dash_and_others_are_rounded(capsys):
    print_json({"a": math.nan, "b": [math.inf, 1.5], "c": (0.25,), 3: "ü"})
    assert json.loads(capsys.readouterr().out) == {"a": None, "b": [None, 1.5], "c": [0.25], "3": "ü"}
    assert [figure(value) for value in (math.nan, None, 0.123456, 5040)] == ["-", "-", "0.1235", "5040"]
    assert figure(0.123456, digits=6) == "0.123456"


@pytest.mark.parametrize(
    "text", ["[/foo]", "[bold]x[/bold]", "[1, 2]", "\\[/b]", ":smile:", "[link=x]", "a\x1b[31m\x9bb"]
)
def test_text_of_the_data_is_shown_as_it_stands_wherever_it_is(text, capsys):
    Console(width=80).print(table("T" + text, ["C" + text], [["R" + text]]), plain(text, "bold"))
    shown, text = capsys.readouterr().out, text.replace("\x1b", "\\x1b").replace("\x9b", "\\x9b")
    assert all(mark + text in shown for mark in "TCR")
    assert shown.splitlines()[-1].strip() == text


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_what_an_encoding_lacks_is_written_as_an_escape_and_json_stays_json(encoding, monkeypatch):
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding=encoding))
    value = {"ü": "😀 \u2028", "half": "a\ud800b"}
    print_json(value)
    sys.stdout.flush()
    assert json.loads(written.getvalue().decode(encoding)) == value
    written.truncate(0)
    written.seek(0)
    prepare_streams()
    Console(width=80).print(plain("ü \ud800"))
    sys.stdout.flush()
    assert written.getvalue() == ("\\xfc" if encoding == "ascii" else "ü").encode(encoding) + b" \\ud800\n"


class Stream(io.StringIO):
    """A stream that says whether it is a terminal or has been closed, and when something was written."""

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
def test_progress_is_told_of_what_takes_long_and_stops_nothing(kind, monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", quick := Stream(kind))
    with Progressing("counting", 3) as progress:
        assert list(progress.track("abc")) == ["a", "b", "c"]
    with pytest.raises(KeyError), Progressing("counting", 1):
        raise KeyError
    assert quick.getvalue() == ""

    monkeypatch.setattr(sys, "stderr", stream := Stream(kind))

    def slow():
        assert stream.written.wait(300)  # it is told before the first item is there
        yield 1

    with Progressing("counting", 3, quiet_seconds=0.0) as progress:
        assert list(progress.track(slow())) == [1]
    assert "counting" in stream.getvalue()
    if kind == "pipe":
        assert stream.getvalue() == "counting: 0 of 3 after 0 s\n"
