"""Charts of rows: dots with intervals beside the ceiling, stacked bars, differences around zero, and the results.

Each has columns with an axis of their own, on which rows are drawn one under the other: estimates, bars, exact numbers.
Titles and descriptions are for readers of the page; every row has a label.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from markupsafe import Markup

from resilisim.reporting.charts import (
    CHARACTER_WIDTH,
    LABEL_GAP,
    NAME_WIDTH,
    Axis,
    Figure,
    Layout,
    RowLabel,
    Shape,
    Tick,
    box,
    estimate_text,
    for_all_pages,
    line,
    nice_step,
    share_ticks,
    shortened,
    tail,
    words,
)
from resilisim.statistics import Estimate
from resilisim.tables.numbers import NO_NUMBER, interval_text, percent, signed_interval, signed_points

AXIS_TOP = 46.0  # of the headings and the numbers of an axis
DOTS_HEIGHT, DOT_HEIGHT = 27.0, 11.0  # of a row with one dot, and of each further one
COLUMN_GAP = 34.0
BAR_HEIGHT, BAR_THICKNESS = 25.0, 16.0  # of a row, of the bar in it
FOREST_HEIGHT, FOREST_PADDING = 15.0, 16.0  # of each interval, and of a row beside them
HEADING_HEIGHT = 34.0  # of a group of rows
RESULTS_GAP = 24.0
_MARGIN = 14.0  # right of a column of results, for what lies at its end
VALUE_WIDTH, NUMBER_WIDTH = 152.0, 52.0  # of a number with its interval, of the number alone
MOST_SHARE = 1.1  # of the ceiling that the axis shows: what lies beyond is noise, and stands in the numbers


class Mark(NamedTuple):
    """An estimate drawn as a dot with its interval: its CSS class ("adjusted", "series-0"), and what it is."""

    estimate: Estimate
    style: str
    name: str


class Part(NamedTuple):
    """A part of a stacked bar: a CSS class, its amount, and what it is."""

    style: str
    amount: float
    name: str


class _Column(NamedTuple):
    """An axis with its ticks, what stands above its left and right end, and what is drawn of a row around a height."""

    axis: Axis
    ticks: Sequence[Tick]
    headings: Sequence[str]
    draw: Callable[[int, float], Iterable[Shape]]


class _Group(NamedTuple):
    """The labels of some rows, and what stands above them, if anything."""

    labels: Sequence[RowLabel]
    heading: str = ""
    detail: str = ""


def _figure(
    title: str,
    description: str,
    layout: Layout,
    row_height: float,
    columns: Sequence[_Column],
    groups: Sequence[_Group],
) -> Figure:
    """Draw groups of rows that are all `row_height` high, and labels above them where these have no other place."""
    height = row_height + layout.label_height
    num_rows = sum(len(group.labels) for group in groups)
    bottom = AXIS_TOP + height * num_rows + HEADING_HEIGHT * sum(bool(group.heading) for group in groups)
    shapes: list[Shape] = []
    for column in columns:
        ends = ((column.axis.start, "start"), (column.axis.end, "end"))
        for heading, (x, anchor) in zip(column.headings, ends, strict=False):
            shapes.append(words(x, 12.0, heading, "panel-heading", anchor))
        shapes += column.axis.grid(column.ticks, AXIS_TOP, bottom)
    top, row = AXIS_TOP, 0
    for group in groups:
        if group.heading:
            shapes += _group_heading(group, top, layout)
            top += HEADING_HEIGHT
        shapes += _labels(group.labels, layout, top, height)
        for _ in group.labels:
            for column in columns:
                shapes += column.draw(row, top + (height + layout.label_height) / 2.0)
            top, row = top + height, row + 1
    return Figure(layout.width, bottom + 8.0, title, description, shapes)


def _group_heading(group: _Group, top: float, layout: Layout) -> list[Shape]:
    room = layout.width / CHARACTER_WIDTH - len(group.heading) - 4.0
    heading = words(0.0, top + HEADING_HEIGHT - 11.0, group.heading, "group-heading")
    rule = line(0.0, top + 4.0, layout.width, top + 4.0, "row-rule")
    return [rule, heading._replace(detail=shortened(group.detail, room))]


def _labels(labels: Sequence[RowLabel], layout: Layout, top: float, height: float) -> Iterator[Shape]:
    """Draw the labels of rows that begin at `top`, with a line above each further policy."""
    several_prompts = any(label.prompt_type for label in labels)
    characters = layout.prompt_width / CHARACTER_WIDTH
    for row, label in enumerate(labels):
        edge = top + height * row
        if row > 0 and label.policy and several_prompts:
            yield line(0.0, edge, layout.width, edge, "row-rule")
        if layout.is_narrow:
            y, end = edge + 13.0, layout.width
            prompt = min(layout.prompt_width, len(label.prompt_type) * CHARACTER_WIDTH)
            room = layout.width - LABEL_GAP - prompt
        else:
            y, end = edge + height / 2.0 + 4.0, layout.label_width - LABEL_GAP + 2.0
            room = end - 2.0 - (layout.prompt_width + LABEL_GAP if several_prompts else 0.0)
        if label.name:
            yield words(0.0, y, tail(label.name, room / NAME_WIDTH), "policy", tooltip=label.full_name)
        if label.prompt_type:
            yield words(end, y, tail(label.prompt_type, characters + 0.5), "prompt", "end")


def _marks(
    axis: Axis, marks: Sequence[Mark], middle: float, height: float, text: Callable[[Estimate], str]
) -> Iterator[Shape]:
    """Draw marks `height` apart, one under the other, around the middle of a row."""
    for number, mark in enumerate(marks):
        y = middle + height * (number - (len(marks) - 1) / 2.0)
        yield from axis.estimate(mark.estimate, y, mark.style, f"{mark.name}: {text(mark.estimate)}")


def _bar(
    axis: Axis, bar: Iterable[Part], middle: float, number: Callable[[float], str], unit: str = ""
) -> Iterator[Shape]:
    """Draw the parts of a bar one behind the other; with a unit, their numbers stand in those that are long."""
    amount = 0.0
    for part in bar:
        x, size = axis.at(amount), axis.length * part.amount / axis.high
        text = number(part.amount)
        tooltip = f"{part.name}: {text} {unit}".rstrip()
        yield box(x, middle - BAR_THICKNESS / 2.0, max(size, 0.0), BAR_THICKNESS, part.style, tooltip)
        if unit and size > 30.0:
            yield words(x + size / 2.0, middle + 4.0, text, f"on-bar on-{part.style}", "middle")
        amount += part.amount


class Dots(NamedTuple):
    """A row of dots, one below the other, with exact numbers drawn as ticks; NaN draws none."""

    marks: Sequence[Mark]
    ceiling: float  # V*
    obedience: float  # what following its plan to the letter brings


class Panel(NamedTuple):
    """A column of a chart of dots."""

    heading: str
    rows: Sequence[Dots]


def dot_panels(title: str, description: str, labels: Sequence[RowLabel], panels: Sequence[Panel]) -> Markup:
    """Draw rows of dots with intervals from 0 to 100%, for wide pages in panels beside each other, else one by one."""

    def draw(layout: Layout) -> list[Figure]:
        if not layout.is_narrow:
            return [_dots(title, description, labels, panels, layout)]
        return [alone(panel, layout) for panel in panels]

    def alone(panel: Panel, layout: Layout) -> Figure:
        """Draw a panel with only those rows that have any mark."""
        own = [label for label, row in zip(labels, panel.rows, strict=True) if row.marks]
        full = Panel(panel.heading, [row for row in panel.rows if row.marks])
        return _dots(f"{title}, {panel.heading}", description, own, [full], layout)

    return for_all_pages(draw, labels)


def _dots(title: str, description: str, labels: Sequence[RowLabel], panels: Sequence[Panel], layout: Layout) -> Figure:
    left, margin = (6.0, 6.0) if layout.is_narrow else (layout.label_width, 18.0)
    width = (layout.width - left - margin - COLUMN_GAP * (len(panels) - 1)) / len(panels)
    most = max((len(row.marks) for panel in panels for row in panel.rows), default=1)
    height = DOTS_HEIGHT + DOT_HEIGHT * (most - 1)
    half = height / 2.0 - 4.0

    def column(number: int, panel: Panel) -> _Column:
        axis = Axis(left + number * (width + COLUMN_GAP), width)
        ticks = share_ticks(axis, 0.25 if width < 400 else 0.1)
        return _Column(axis, ticks, [panel.heading], lambda row, y: _row_of_dots(panel.rows[row], axis, y, half))

    columns = [column(number, panel) for number, panel in enumerate(panels)]
    return _figure(title, description, layout, height, columns, [_Group(labels)])


def _row_of_dots(row: Dots, axis: Axis, middle: float, half: float) -> Iterator[Shape]:
    yield from axis.exact(row.ceiling, middle, half, "ceiling", "ceiling V*")
    if row.marks:
        last = row.marks[-1].estimate
        reach = last.value if math.isnan(last.high) else last.high
        if reach < row.ceiling:
            y = middle + DOT_HEIGHT * (len(row.marks) - 1) / 2.0
            yield axis.line((reach, row.ceiling), (y, y), "gap")
    yield from _marks(axis, row.marks, middle, DOT_HEIGHT, estimate_text)
    yield from axis.exact(row.obedience, middle, half, "reference", "obey: following the plan to the letter")


def bar_chart(
    title: str,
    description: str,
    labels: Sequence[RowLabel],
    bars: Sequence[Sequence[Part]],
    unit: str,
    number: Callable[[float], str],
) -> Markup:
    """Draw stacked bars of amounts; `unit` is what the axis counts, from 0 on, and `number` writes an amount."""
    longest = max((math.fsum(part.amount for part in bar) for bar in bars), default=0.0) or 1.0

    def draw(layout: Layout) -> list[Figure]:
        left = 4.0 if layout.is_narrow else layout.label_width
        step = nice_step(longest, 4 if layout.is_narrow else 8)
        most = math.ceil(longest / step - 1e-9)
        axis = Axis(left, layout.width - left - 26.0, step * most)
        ticks = [Tick(place * step, number(place * step), "middle" if place else "start") for place in range(most + 1)]
        column = _Column(axis, ticks, [unit], lambda row, y: _bar(axis, bars[row], y, number))
        return [_figure(title, description, layout, BAR_HEIGHT, [column], [_Group(labels)])]

    return for_all_pages(draw, labels)


def forest_chart(
    title: str, description: str, labels: Sequence[RowLabel], rows: Sequence[Sequence[Mark]], sides: tuple[str, str]
) -> Markup:
    """Draw differences around zero as in a forest plot; `sides` are what those below and above 0 speak for."""
    estimates = [mark.estimate for row in rows for mark in row]
    ends = [
        abs(end)
        for estimated in estimates
        for end in (estimated.value, estimated.low, estimated.high)
        if math.isfinite(end)
    ]
    longest = max(ends, default=0.05) * 1.04
    step = nice_step(longest, 2)
    most = max(1, math.ceil(longest / step - 1e-9))  # ticks on each side of 0
    height = FOREST_HEIGHT * max((len(row) for row in rows), default=1) + FOREST_PADDING
    headings = [f"← {sides[0]}", f"{sides[1]} →"]
    ticks = []
    for number in range(-most, most + 1):
        sign = "+" if number > 0 else "−" if number < 0 else ""
        ticks.append(Tick(number * step, f"{sign}{abs(number) * step * 100:.3g}"))

    def text(estimate: Estimate) -> str:
        return f"{signed_points(estimate.value)} points {signed_interval(estimate.low, estimate.high)}".rstrip()

    def draw(layout: Layout) -> list[Figure]:
        left = 18.0 if layout.is_narrow else layout.label_width
        axis = Axis(left, layout.width - left - 24.0, most * step, -most * step)
        column = _Column(axis, ticks, headings, lambda row, y: _marks(axis, rows[row], y, FOREST_HEIGHT, text))
        return [_figure(title, description, layout, height, [column], [_Group(labels)])]

    return for_all_pages(draw, labels)


class ResultRow(NamedTuple):
    """One policy under one prompt type."""

    label: RowLabel
    share: Estimate  # of the ceiling; NaN where it has no ceiling
    raw: Estimate  # success, which stands in place of a share that is NaN
    bar: Sequence[Part]  # where it lost points, as shares; empty where it has no ceiling

    @property
    def has_share(self) -> bool:
        """Whether it has a share of a ceiling."""
        return not math.isnan(self.share.value)

    @property
    def texts(self) -> tuple[str, str]:
        """Its number and interval, or what else there is to say."""
        if self.has_share:
            return f"{percent(self.share.value)}%", _interval(self.share)
        return f"{percent(self.raw.value)}% raw", _interval(self.raw)


class ResultGroup(NamedTuple):
    """Rows with a heading of their own, and what their ceiling is."""

    heading: str
    detail: str
    rows: Sequence[ResultRow]


def results_chart(title: str, description: str, groups: Sequence[ResultGroup]) -> Markup:
    """Draw for each row a dot with its interval on an axis up to the ceiling, its number, and a bar of lost points."""
    rows = [row for group in groups for row in group.rows]

    def draw(layout: Layout) -> list[Figure]:
        shares, points, step = _axes(rows, layout)
        columns = [
            _Column(
                shares,
                share_ticks(shares, 0.25),
                ["of the ceiling" if layout.is_narrow else "share of the ceiling, luck removed"],
                lambda row, y: _share(rows[row], shares, y, layout),
            ),
            _Column(
                points,
                share_ticks(points, step, ""),
                ["points lost of 100" if layout.is_narrow else "points lost of 100 episodes, by cause"],
                lambda row, y: _bar(points, rows[row].bar, y, percent, "points"),
            ),
        ]
        labelled = [_Group([label(row, layout) for row in own], *names) for *names, own in groups]
        return [_figure(title, description, layout, DOTS_HEIGHT, columns, labelled)]

    def label(row: ResultRow, layout: Layout) -> RowLabel:
        # Narrow pages have no other place for number and interval.
        return row.label._replace(prompt_type=" ".join(row.texts)) if layout.is_narrow else row.label

    return for_all_pages(draw, [row.label for row in rows])


def _axes(rows: Sequence[ResultRow], layout: Layout) -> tuple[Axis, Axis, float]:
    """Return the axes of shares and of lost points, and the distance of the latter's ticks."""
    reach = [end for row in rows for end in (row.share.value, row.share.high) if not math.isnan(end)]
    longest = max((math.fsum(part.amount for part in row.bar) for row in rows), default=0.0)
    step = 0.25 if longest > 0.5 else 0.1 if longest > 0.2 else 0.05
    if layout.is_narrow:
        left, width = 2.0, (layout.width - RESULTS_GAP) / 2.0
        second, rest = width + RESULTS_GAP, width
    else:
        left, width = layout.label_width, (layout.width - layout.label_width - VALUE_WIDTH - RESULTS_GAP) * 0.46
        second = left + width + VALUE_WIDTH + RESULTS_GAP
        rest = layout.width - second
    shares = Axis(left, width - _MARGIN, min(max([1.0, *reach]), MOST_SHARE))
    return shares, Axis(second, rest - _MARGIN, step * max(2, math.ceil(longest / step - 1e-9))), step


def _share(row: ResultRow, axis: Axis, y: float, layout: Layout) -> Iterator[Shape]:
    number, interval = row.texts
    if not layout.is_narrow:
        x = axis.end + _MARGIN + NUMBER_WIDTH + (0.0 if row.has_share else 30.0)
        yield words(x, y + 4.0, number, "value", "end")
        yield words(x + 7.0, y + 4.0, interval, "tick")
    if row.has_share:
        half = DOTS_HEIGHT / 2.0
        yield axis.line((1.0, 1.0), (y - half, y + half), "ceiling")
    style = "privileged" if row.label.privileged else "adjusted"
    tooltip = f"{row.label.full_name}: {number} of the ceiling {interval}".removesuffix(f" {NO_NUMBER}")
    yield from axis.estimate(row.share, y, style, tooltip)


def _interval(estimate: Estimate) -> str:
    """Return an interval, and nothing where there is none: what is exact needs no dash beside it."""
    return "" if math.isnan(estimate.low) else interval_text(estimate)
