"""Charts of rows: dots with intervals beside the ceiling, stacked bars, differences around zero, and the results.

Each has axes, on which its rows are drawn one under the other: marks (estimates), bars (amounts), exact numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from markupsafe import Markup

from resilisim.evaluation.report.charts import (
    CHARACTER_WIDTH,
    Child,
    Layout,
    RowLabel,
    Tick,
    box,
    dot,
    element,
    figure,
    for_all_pages,
    level_axis,
    level_line,
    nice_step,
    render,
    row_labels,
    share_ticks,
    shortened,
    upright_line,
    words,
)
from resilisim.evaluation.report.page import NOTHING, interval_text, percent, signed_points
from resilisim.evaluation.table.summary import format_interval, format_percent
from resilisim.statistics import Estimate

AXIS_HEIGHT = 30.0  # of the numbers of an axis
LINE_HEIGHT = 16.0  # of a heading above them
DOTS_HEIGHT, DOT_HEIGHT = 27.0, 11.0  # of a row with one dot, and of each further one
PANEL_GAP = 34.0
BAR_HEIGHT, BAR_THICKNESS = 25.0, 16.0  # of a row, of the bar in it
FOREST_HEIGHT, FOREST_PADDING = 15.0, 16.0  # of each interval, and of a row beside them


@dataclass(frozen=True, slots=True)
class Mark:
    """An estimate drawn as a dot with its interval: its CSS class ("adjusted", "series-0"), and what it is."""

    estimate: Estimate
    style: str
    name: str


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a stacked bar: a CSS class, its amount, and what it is."""

    style: str
    amount: float
    name: str


@dataclass(frozen=True, slots=True)
class _Axis:
    """A level axis: its left edge and width in pixels, and the values at both ends; what lies beyond is drawn there."""

    left: float
    width: float
    low: float
    high: float

    def x(self, value: float) -> float:
        inside = value if math.isnan(value) else min(max(value, self.low), self.high)
        return self.left + self.width * (inside - self.low) / (self.high - self.low)

    def marks(self, marks: Sequence[Mark], middle: float, height: float, text: Callable[[Mark], str]) -> list[Child]:
        """Draw marks `height` apart, one under the other, around the middle of a row."""
        parts: list[Child] = []
        for number, mark in enumerate(marks):
            estimate = mark.estimate
            if math.isnan(estimate.value):
                continue
            y = middle + height * (number - (len(marks) - 1) / 2.0)
            if not math.isnan(estimate.low):
                parts.append(level_line(self.x(estimate.low), self.x(estimate.high), y, f"interval {mark.style}"))
            parts.append(dot(self.x(estimate.value), y, f"dot {mark.style}", text(mark)))
        return parts

    def bar(self, bar: Iterable[Part], middle: float, number: Callable[[float], str], unit: str = "") -> list[Child]:
        """Draw the parts of a bar one behind the other; with a unit, their numbers stand in those that are long."""
        parts: list[Child] = []
        amount = 0.0
        for part in bar:
            x, size = self.x(amount), self.width * part.amount / self.high
            text = number(part.amount)
            tooltip = f"{part.name}: {text} {unit}".rstrip()
            top = middle - BAR_THICKNESS / 2.0
            parts.append(box(x, top, max(size, 0.0), BAR_THICKNESS, part.style, tooltip))
            if unit and size > 30.0:
                parts.append(words(x + size / 2.0, middle + 4.0, text, f"on-bar on-{part.style}", "middle"))
            amount += part.amount
        return parts


def _heading(text: str, left: float, anchor: str | None = None) -> Markup:
    return words(left, 12.0, text, "panel-heading", anchor)


def _rows_chart(
    title: str,
    description: str,
    labels: Sequence[RowLabel],
    layout: Layout,
    row_height: float,
    draw: Callable[[float, float, list[float]], Child],
) -> Markup:
    """Draw a chart of labelled rows of one height; `draw` is told top and bottom of the rows, and their middles."""
    top = AXIS_HEIGHT + LINE_HEIGHT
    height = row_height + layout.label_height
    middles = [top + height * (row + 0.5) + layout.label_height / 2.0 for row in range(len(labels))]
    bottom = top + height * len(labels)
    content = [draw(top, bottom, middles), row_labels(labels, layout, top, height)]
    return figure(layout.width, bottom + 8.0, title, description, content)


@dataclass(frozen=True, slots=True)
class Panel:
    """One panel of a chart of dots, with exact numbers drawn as ticks; NaN draws none."""

    heading: str
    rows: Sequence[Sequence[Mark]]  # the marks of each row, one below the other where there are several
    ceilings: Sequence[float]  # V* of each row
    obediences: Sequence[float]  # of each row what following its plan to the letter brings


def dot_panels(title: str, description: str, labels: Sequence[RowLabel], panels: Sequence[Panel]) -> Markup:
    """Draw rows of dots with intervals from 0 to 100%, for wide pages in panels beside each other, else one by one.

    Title and description are for readers of the page; every row has a label.
    """

    def draw(layout: Layout) -> Child:
        if not layout.is_narrow:
            return _dots(title, description, labels, panels, layout)
        return [_panel_alone(title, description, labels, panel, layout) for panel in panels]

    return for_all_pages(draw, labels)


def _panel_alone(title: str, description: str, labels: Sequence[RowLabel], panel: Panel, layout: Layout) -> Markup:
    """Draw a panel with only those rows that have any mark."""
    shown = [row for row, marks in enumerate(panel.rows) if marks]
    own = replace(
        panel,
        rows=[panel.rows[row] for row in shown],
        ceilings=[panel.ceilings[row] for row in shown],
        obediences=[panel.obediences[row] for row in shown],
    )
    return _dots(f"{title}, {panel.heading}", description, [labels[row] for row in shown], [own], layout)


def _dots(title: str, description: str, labels: Sequence[RowLabel], panels: Sequence[Panel], layout: Layout) -> Markup:
    left, margin = (6.0, 6.0) if layout.is_narrow else (layout.label_width, 18.0)
    width = (layout.width - left - margin - PANEL_GAP * (len(panels) - 1)) / len(panels)
    most_marks = max((len(marks) for panel in panels for marks in panel.rows), default=1)
    row_height = DOTS_HEIGHT + DOT_HEIGHT * (most_marks - 1)
    half = row_height / 2.0 - 4.0

    def draw(top: float, bottom: float, middles: list[float]) -> Child:
        content: list[Child] = []
        for number, panel in enumerate(panels):
            axis = _Axis(left + number * (width + PANEL_GAP), width, 0.0, 1.0)
            content.append(_heading(panel.heading, axis.left))
            content.append(level_axis(share_ticks(axis.left, width, 1.0, 0.25 if width < 400 else 0.1), top, bottom))
            for row, middle in enumerate(middles):
                content += _row_of_dots(axis, panel, row, middle, half)
        return content

    return _rows_chart(title, description, labels, layout, row_height, draw)


def _row_of_dots(axis: _Axis, panel: Panel, row: int, middle: float, half: float) -> list[Child]:
    def exact(value: float, style: str, name: str) -> Child:
        if math.isnan(value):
            return ()
        return upright_line(axis.x(value), middle - half, middle + half, style, f"{name}: {format_percent(value)}%")

    marks, ceiling = panel.rows[row], panel.ceilings[row]
    parts: list[Child] = [exact(ceiling, "ceiling", "ceiling V*")]
    if marks:
        last = marks[-1].estimate
        reach = last.value if math.isnan(last.high) else last.high
        if reach < ceiling:
            y = middle + DOT_HEIGHT * (len(marks) - 1) / 2.0
            parts.append(level_line(axis.x(reach), axis.x(ceiling), y, "gap"))
    parts += axis.marks(
        marks,
        middle,
        DOT_HEIGHT,
        lambda mark: f"{mark.name}: {format_percent(mark.estimate.value)}% {format_interval(mark.estimate)}",
    )
    return [*parts, exact(panel.obediences[row], "reference", "obey: following the plan to the letter")]


def bar_chart(
    title: str,
    description: str,
    labels: Sequence[RowLabel],
    bars: Sequence[Sequence[Part]],
    unit: str,
    number: Callable[[float], str],
) -> Markup:
    """Draw stacked bars of amounts on an axis that begins at 0.

    Title and description are for readers of the page; `unit` is what the axis counts, and `number` writes an amount.
    """
    longest = max((math.fsum(part.amount for part in bar) for bar in bars), default=0.0) or 1.0

    def draw_all(layout: Layout) -> Markup:
        left = 4.0 if layout.is_narrow else layout.label_width
        step = nice_step(longest, 4 if layout.is_narrow else 8)
        num_ticks = math.ceil(longest / step - 1e-9)
        axis = _Axis(left, layout.width - left - 26.0, 0.0, step * num_ticks)
        ticks: list[Tick] = [
            (axis.x(tick * step), number(tick * step), "middle" if tick else "start", tick == 0)
            for tick in range(num_ticks + 1)
        ]

        def draw(top: float, bottom: float, middles: list[float]) -> Child:
            content: list[Child] = [_heading(unit, left), level_axis(ticks, top, bottom)]
            for bar, middle in zip(bars, middles, strict=True):
                content += axis.bar(bar, middle, number)
            return content

        return _rows_chart(title, description, labels, layout, BAR_HEIGHT, draw)

    return for_all_pages(draw_all, labels)


def forest_chart(
    title: str,
    description: str,
    labels: Sequence[RowLabel],
    rows: Sequence[Sequence[Mark]],
    left_name: str,
    right_name: str,
) -> Markup:
    """Draw differences around zero as in a forest plot, those of one row under each other.

    Title and description are for readers of the page; the last two are what differences below and above 0 speak for.
    """
    estimates = [mark.estimate for row in rows for mark in row]
    ends = [abs(end) for one in estimates for end in (one.value, one.low, one.high) if math.isfinite(end)]
    longest = max(ends, default=0.05) * 1.04
    step = nice_step(longest, 2)
    num_ticks = max(1, math.ceil(longest / step - 1e-9))  # on each side of 0
    row_height = FOREST_HEIGHT * max((len(row) for row in rows), default=1) + FOREST_PADDING

    def text(mark: Mark) -> str:
        one = mark.estimate
        interval = "" if math.isnan(one.low) else f" [{signed_points(one.low)}, {signed_points(one.high)}]"
        return f"{mark.name}: {signed_points(one.value)} points{interval}"

    def draw_all(layout: Layout) -> Markup:
        left = 18.0 if layout.is_narrow else layout.label_width
        axis = _Axis(left, layout.width - left - 24.0, -num_ticks * step, num_ticks * step)
        ticks: list[Tick] = []
        for number in range(-num_ticks, num_ticks + 1):
            sign = "+" if number > 0 else "−" if number < 0 else ""
            ticks.append((axis.x(number * step), f"{sign}{abs(number) * step * 100:.3g}", "middle", number == 0))

        def draw(top: float, bottom: float, middles: list[float]) -> Child:
            content: list[Child] = [
                _heading(f"← {left_name}", left),
                _heading(f"{right_name} →", left + axis.width, "end"),
                level_axis(ticks, top, bottom),
            ]
            for row, middle in zip(rows, middles, strict=True):
                content += axis.marks(row, middle, FOREST_HEIGHT, text)
            return content

        return _rows_chart(title, description, labels, layout, row_height, draw)

    return for_all_pages(draw_all, labels)


HEADING_HEIGHT = 34.0
GAP = 24.0
MARGIN = 14.0  # right of a panel, for what lies at its end
VALUE_WIDTH, NUMBER_WIDTH = 152.0, 52.0  # of a number with its interval, of the number alone
MOST_SHARE = 1.1  # of the ceiling that the axis shows: what lies beyond is noise, and stands in the numbers


@dataclass(frozen=True, slots=True)
class ResultRow:
    """One policy under one prompt type."""

    label: RowLabel
    share: Estimate  # of the ceiling; NaN where it has no ceiling
    raw: Estimate  # success, which stands in place of a share that is NaN
    bar: Sequence[Part]  # where it lost points, as shares; empty where it has no ceiling

    @property
    def texts(self) -> tuple[str, str]:
        """Its number and interval, or what else there is to say."""
        if math.isnan(self.share.value):
            return f"{percent(self.raw.value)}% raw", interval_text(self.raw)
        return f"{percent(self.share.value)}%", interval_text(self.share)


@dataclass(frozen=True, slots=True)
class ResultGroup:
    """Rows with a heading of their own, and what their ceiling is."""

    heading: str
    detail: str
    rows: Sequence[ResultRow]


def results_chart(title: str, description: str, groups: Sequence[ResultGroup]) -> Markup:
    """Draw for each row a dot with its interval on an axis up to the ceiling, its number, and a bar of lost points."""
    every = [row for group in groups for row in group.rows]

    def draw(layout: Layout) -> Markup:
        shares, points, step = _axes(every, layout)
        names = ("share of the ceiling, luck taken out", "points lost of 100 episodes, by cause")
        if layout.is_narrow:
            names = ("of the ceiling", "points lost of 100")
        top = start = AXIS_HEIGHT + LINE_HEIGHT
        row_height = DOTS_HEIGHT + layout.label_height
        bottom = top + HEADING_HEIGHT * len(groups) + row_height * len(every)
        content: list[Child] = [
            _heading(names[0], shares.left),
            _heading(names[1], points.left),
            level_axis(share_ticks(shares.left, shares.width, shares.high, 0.25), top, bottom),
            level_axis(share_ticks(points.left, points.width, points.high, step, percent=False), top, bottom),
        ]
        for group in groups:
            content.append(_group_heading(group, start, layout))
            start += HEADING_HEIGHT
            labels = [row.label for row in group.rows]
            if layout.is_narrow:  # which has no other place for number and interval
                labels = [replace(row.label, prompt_type=" ".join(row.texts)) for row in group.rows]
            for number, row in enumerate(group.rows):
                middle = start + row_height * (number + 0.5) + layout.label_height / 2.0
                content += [*_share(row, shares, middle, layout), *points.bar(row.bar, middle, percent, "points")]
            content.append(row_labels(labels, layout, start, row_height))
            start += row_height * len(group.rows)
        return figure(layout.width, bottom + 6.0, title, description, content)

    return for_all_pages(draw, [row.label for row in every])


def _axes(rows: Sequence[ResultRow], layout: Layout) -> tuple[_Axis, _Axis, float]:
    """Return the axes of shares and of lost points, and the distance of the latter's ticks."""
    reach = [end for row in rows for end in (row.share.value, row.share.high) if not math.isnan(end)]
    share_span = min(max([1.0, *reach]), MOST_SHARE)
    longest = max((math.fsum(part.amount for part in row.bar) for row in rows), default=0.0)
    step = 0.25 if longest > 0.5 else 0.1 if longest > 0.2 else 0.05
    span = step * max(2, math.ceil(longest / step - 1e-9))
    if layout.is_narrow:
        left, width = 2.0, (layout.width - GAP) / 2.0
        second, rest = width + GAP, width
    else:
        left, width = layout.label_width, (layout.width - layout.label_width - VALUE_WIDTH - GAP) * 0.46
        second = left + width + VALUE_WIDTH + GAP
        rest = layout.width - second
    return _Axis(left, width - MARGIN, 0.0, share_span), _Axis(second, rest - MARGIN, 0.0, span), step


def _group_heading(group: ResultGroup, top: float, layout: Layout) -> Markup:
    room = layout.width / CHARACTER_WIDTH - len(group.heading) - 4.0
    detail = element("tspan", shortened(group.detail, room), dx=10, class_="group-detail")
    rule = level_line(0.0, layout.width, top + 4.0, "row-rule")
    return rule + words(0.0, top + HEADING_HEIGHT - 11.0, render([group.heading, detail]), "group-heading")


def _share(row: ResultRow, axis: _Axis, y: float, layout: Layout) -> list[Child]:
    parts: list[Child] = []
    number, interval = row.texts
    has_share = not math.isnan(row.share.value)
    if not layout.is_narrow:
        x = axis.left + axis.width + MARGIN + NUMBER_WIDTH + (0.0 if has_share else 30.0)
        parts.append(words(x, y + 4.0, number, "value", "end"))
        parts.append(words(x + 7.0, y + 4.0, interval, "tick"))
    if has_share:
        parts.append(upright_line(axis.x(1.0), y - DOTS_HEIGHT / 2.0, y + DOTS_HEIGHT / 2.0, "ceiling"))
    style = "privileged" if row.label.privileged else "adjusted"
    tooltip = f"{row.label.full_name}: {number} of the ceiling {interval}".removesuffix(f" {NOTHING}")
    return [*parts, *axis.marks([Mark(row.share, style, "")], y, 0.0, lambda _: tooltip)]
