from __future__ import annotations

import io
import json
import math
import sys

import pytest
from rich.console import Console

from resilisim.cli.output import figure, plain, prepare_streams, print_json, table


def test_figures_that_do_not_exist_are_null_and_a_dash(capsys):
    print_json({"a": math.nan, "b": [math.inf, 1.5], "c": (0.25,), 3: "ü"})
    assert json.loads(capsys.readouterr().out) == {"a": None, "b": [None, 1.5], "c": [0.25], "3": "ü"}
    assert figure(math.nan) == "-"
    assert figure(None) == "-"


def test_figures_are_rounded_and_counts_are_not():
    assert figure(0.123456) == "0.1235"
    assert figure(0.123456, digits=6) == "0.123456"
    assert figure(5040) == "5040"


def test_square_brackets_of_the_data_are_not_markup(capsys):
    Console(width=80).print(table("title", ["a"], [["[bold]x[/bold] [1, 2]"]]))
    assert "[bold]x[/bold] [1, 2]" in capsys.readouterr().out


@pytest.mark.parametrize("text", ["[/foo]", "[bold]x[/bold]", "\\[/b]", ":smile:", "[link=x]"])
def test_text_of_the_data_is_shown_as_it_stands_wherever_it_is(text, capsys):
    Console(width=80).print(table("T" + text, ["C" + text], [["R" + text]]), plain(text, "bold"))
    shown = capsys.readouterr().out
    for mark in ("T", "C", "R"):
        assert mark + text in shown
    assert shown.splitlines()[-1].strip() == text


def test_control_characters_cannot_reach_the_terminal(capsys):
    Console(width=80).print(plain("a\x1b[31mb\x07\x9b\nd"))
    assert capsys.readouterr().out == "a\\x1b[31mb\\x07\\x9b\nd\n"


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_json_stays_json_whatever_the_text_and_the_encoding(encoding, monkeypatch):
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding=encoding))
    value = {"ü": "😀 \u2028", "half": "a\ud800b"}
    print_json(value)
    sys.stdout.flush()
    assert json.loads(written.getvalue().decode(encoding)) == value


def test_what_the_encoding_lacks_is_written_as_an_escape(monkeypatch):
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="ascii"))
    prepare_streams()
    Console(width=80).print(plain("ü \ud800"))
    sys.stdout.flush()
    assert written.getvalue() == b"\\xfc \\ud800\n"
