"""A table in the terminal, at any width, as Markdown, and the numbers in it."""

from __future__ import annotations

import io
import math
import re

import pytest
from rich.console import Console

from resilisim.statistics import Estimate
from resilisim.tables.markdown import markdown_lines
from resilisim.tables.numbers import NO_NUMBER, figure, p_value, percent, signed_interval, signed_points
from resilisim.tables.table import Cell, Table

RATE = Estimate(0.512, 0.1, 0.4, 0.634, 5, 5)
BELOW = Estimate(-0.03, 0.1, -0.1, 0.04, 5, 5)
WIDE = Table(
    "Success",
    ("policy", "prompt", "episodes", "success rate", "of V*", "why it lost"),
    [
        [Cell("repairing-follower", mark="*"), "flawed:missing_step", 5040, RATE, RATE, "calls in a wrong order"],
        ["[red]evil[/red] | *", "optimal", 7, BELOW, Estimate.nothing(), "\x1b[2Jnothing"],
    ],
    text_columns=(0, 1, 5),
    optional=("of V*", "why it lost"),
    summary_rows=1,
)


def shown(table: Table, width: int) -> str:
    out = io.StringIO()
    Console(file=out, width=width, no_color=True).print(table)
    return out.getvalue()


@pytest.mark.parametrize("width", [*range(34, 130, 7), 80, 160])
def test_no_width_breaks_a_number_and_none_is_passed(width: int) -> None:
    text = shown(WIDE, width)
    assert max(map(len, text.splitlines())) <= width
    for number in ("5,040", "51.2", "[40.0, 63.4]", "-3.0", "[-10.0, 4.0]"):
        assert re.search(rf"(?<![\d.]){re.escape(number)}(?![\d.])", text), number
    words = "".join(text.split())
    assert "[red]evil[/red]|*" in words
    assert "\x1b" not in text
    assert "repairing-follower" in text


def test_what_does_not_fit_is_stacked_then_left_out_then_apart() -> None:
    heads = {width: shown(WIDE, width).partition("──")[0].split() for width in (160, 90, 76, 62, 50)}
    assert heads[160] == ["Success", "policy", "prompt", "episodes", "success", "rate", "of", "V*", "why", "it", "lost"]
    assert heads[90] == ["Success", "policy", "prompt", "episodes", "success", "rate", "why", "it", "lost"]
    assert heads[76] == heads[160]  # headings that have room are not broken, nor is their order
    assert heads[62] == ["Success", "policy", "prompt", "episodes", "success", "rate", "why", "it", "lost"]
    assert heads[50] == ["Success", "policy", "prompt", "episodes", "success", "rate"]
    assert ("51.2 [40.0, 63.4]" in shown(WIDE, 160), "51.2 [40.0, 63.4]" in shown(WIDE, 90)) == (True, False)
    beside = {width: bool(re.search("policy +prompt", shown(WIDE, width))) for width in (90, 76)}
    assert beside == {90: True, 76: False}  # a number that is optional goes before texts are put below each other
    apart = shown(WIDE, 36)
    assert [apart.count(word) for word in ("Success", "policy", "episodes", "rate")] == [1, 2, 1, 1]


def test_names_that_are_too_long_are_folded_where_they_can_be_read() -> None:
    names = ["flawed:argument_passing:light", "data_processing_aggregator#1", "x" * 45]
    table = shown(Table("", ("name", "why"), [(name, "because it has to be so") for name in names], text_columns=2), 44)
    folded = [line[:22].strip() for line in table.splitlines()[3:] if line.strip()]
    assert folded == [
        "flawed:argument_",
        "passing:light",
        "data_processing_",
        "aggregator#1",
        *("x" * 20, "x" * 20, "x" * 5),
    ]


def test_markdown_shows_texts_as_they_are() -> None:
    caption, _, heads, marks, row, summary, *rest = markdown_lines(WIDE)
    assert caption == "**Success**"
    assert heads == "| policy | prompt | episodes | success rate | of V\\* | why it lost |"
    assert marks == "| --- | --- | ---: | ---: | ---: | --- |"
    assert row.startswith("| repairing-follower \\* | flawed:missing\\_step | 5,040 | 51.2 \\[40.0, 63.4\\] |")
    assert summary.startswith("| **\\[red\\]evil\\[/red\\] \\| \\*** | optimal | 7 | −3.0 \\[−10.0, 4.0\\] | – |")
    assert rest == []
    one_task = Table("", ("policy", "rate"), [("a", Estimate(0.5, math.nan, math.nan, math.nan, 1, 1))])
    assert markdown_lines(one_task)[-1].startswith("*– behind a number: there is no interval")


def test_values_are_numbers_or_texts_by_what_they_are() -> None:
    table = Table.of_values("", ("a", "b", "c"), [(None, "x", 1), (0.25, "y", None)], digits=2)
    assert table.column_styles == ["number", "", "number"]
    assert table.rows == [[NO_NUMBER, "x", "1"], ["0.25", "y", NO_NUMBER]]


def test_numbers_have_one_form() -> None:
    assert [percent(value) for value in (-0.0001, 0.8333, -0.02, math.nan)] == ["0.0", "83.3", "−2.0", NO_NUMBER]
    assert [signed_points(value) for value in (0.031, -0.004, 0.0, -0.0001, math.nan)] == [
        "+3.1",
        "−0.4",
        "0.0",
        "0.0",
        NO_NUMBER,
    ]
    assert (signed_interval(-0.01, 0.02), signed_interval(math.nan, 0.0)) == ("[−1.0, +2.0]", "")
    assert [p_value(value) for value in (0.0001, 0.0312, math.nan)] == ["< 0.001", "0.031", NO_NUMBER]
    assert [figure(value, 2) for value in (12345, 0.5, None, math.nan, False, "a")] == [
        "12,345",
        "0.50",
        NO_NUMBER,
        NO_NUMBER,
        "no",
        "a",
    ]
