"""Options made from dataclasses, and how commands speak: figures, texts that are not markup, JSON in any encoding."""

from __future__ import annotations

import io
import json
import math
import sys
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import pytest
import typer
from annotated_types import Ge
from rich.console import Console
from typer.testing import CliRunner

from resilisim.bounds import Share
from resilisim.cli.options import OptionGroup, takes
from resilisim.cli.output import plain, prepare_streams, print_json
from resilisim.options import check_options, option
from resilisim.tables.table import Table


@dataclass(frozen=True, slots=True)
class Oven:
    heat: Share = option(0.5, "How hot.", group="Kitchen")
    mode: Literal["top", "below"] = option("top", "Where from.", flag="--from")


@dataclass(frozen=True, slots=True)
class Recipe:
    names: tuple[str, ...] = option(("bread",), "What.", flag="--name", default_text="bread")
    book: str | None = option(None, "Where it stands.", path="file")
    minutes: Annotated[int, Ge(1)] | None = option(30, "How long; none until it is done.")
    slow: Literal["no", "yes"] = option("no", "Take time.", switch="yes")
    oven: Oven = field(default_factory=Oven)
    private: int = 3

    def __post_init__(self) -> None:
        check_options(self)


def called(group: OptionGroup, *arguments: str) -> Any:
    """Return what a command got for its options; a text is what it printed instead."""
    got: list[Any] = []
    app = typer.Typer(add_completion=False)

    @app.command()
    @takes(recipe=group)
    def bake(*, who: Annotated[str, typer.Argument()], recipe: Recipe, loud: bool = False) -> None:
        """Bake."""
        got.extend([who, recipe, loud])

    result = CliRunner().invoke(app, ["me", *arguments], env={"COLUMNS": "200"})
    return got[1] if got else result.output


def test_what_is_not_given_has_the_default_of_its_field():
    assert called(OptionGroup(Recipe)) == Recipe()


def test_values_reach_the_fields_in_their_types():
    what = ["--name", "cake", "--name", "pie", "--book", "b.txt"]
    how = ["--minutes", "5", "--slow", "--heat", "0.25", "--from", "below"]
    expected = Recipe(("cake", "pie"), "b.txt", 5, "yes", Oven(0.25, "below"))
    assert called(OptionGroup(Recipe), *what, *how) == expected


def test_help_shows_sentences_bounds_defaults_and_headings():
    shown = " ".join(called(OptionGroup(Recipe, panel="Recipe"), "--help").replace("│", " ").split())
    for part in ("What. [default: (bread)]", "[0.0<=x<=1.0]", "<top|below>", "─ Kitchen", "─ Recipe", "Bake."):
        assert part in shown
    assert "private" not in shown


def test_a_command_may_take_some_and_change_what_it_says():
    group = OptionGroup(Recipe, ["heat", "minutes"], changed={"minutes": {"default": None, "help": "Minutes."}})
    assert called(group, "--heat", "1") == Recipe(minutes=None, oven=Oven(1.0))
    assert called(group, "--minutes", "2").minutes == 2
    assert "No such option" in called(group, "--slow")


def test_several_dataclasses_give_the_command_their_values():
    assert called(OptionGroup([Recipe, Oven], ["names", "heat"]), "--name", "pie") == {"names": ("pie",), "heat": 0.5}


@pytest.mark.parametrize("arguments", [("--heat", "2"), ("--minutes", "0"), ("--from", "left")])
def test_what_a_field_cannot_be_is_refused_by_the_command(arguments):
    assert "Invalid value" in called(OptionGroup(Recipe), *arguments)


def test_figures_that_do_not_exist_are_null(capsys):
    print_json({"a": math.nan, "b": [math.inf, 1.5], "c": (0.25,), 3: "ü"})
    assert json.loads(capsys.readouterr().out) == {"a": None, "b": [None, 1.5], "c": [0.25], "3": "ü"}


@pytest.mark.parametrize(
    "text", ["[/foo]", "[bold]x[/bold]", "[1, 2]", "\\[/b]", ":smile:", "[link=x]", "a\x1b[31m\x9bb"]
)
def test_text_of_the_data_is_shown_as_it_stands_wherever_it_is(text, capsys):
    Console(width=80).print(Table.of_values("T" + text, ["C" + text], [["R" + text]]), plain(text, "bold"))
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
