from __future__ import annotations

import json
import math

from rich.console import Console

from resilisim.cli.output import figure, print_json, table


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
