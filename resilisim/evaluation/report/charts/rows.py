"""Charts of rows: dots with intervals beside the ceiling, stacked bars, differences around zero, and the results."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from markupsafe import Markup

from resilisim.evaluation.report.charts import (
    AXIS_HEIGHT,
    CHARACTER_WIDTH,
    NAME_WIDTH,
    Child,
    Layout,
    RowLabel,
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
    wrapped,
)
from resilisim.evaluation.report.content import NOTHING, interval_text, percent, signed_points
from resilisim.evaluation.table.summary import format_interval, format_percent
from resilisim.statistics import Estimate

DOTS_HEIGHT, DOT_HEIGHT = 27.0, 11.0  # of a row with one dot, and of each further one
PANEL_GAP = 34.0
BAR_HEIGHT = 25.0  # of a row
FOREST_HEIGHT, FOREST_PADDING = 15.0, 16.0  # of each interval, and of a row beside them


def _interval(x: float, low: float, high: float, y: float, style: str, tooltip: str) -> Child:
    """Draw an estimate and its interval (none if an end is NaN)."""
    own = dot(x, y, f"dot {style}", tooltip)
    return own if math.isnan(low) else [level_line(low, high, y, f"interval {style}"), own]


def _heading(text: str, left: float, anchor: str | None = None) -> Markup:
    return words(left, 12.0, text, "panel-heading", anchor)


@dataclass(frozen=True, slots=True)
class Mark:
    """An estimate drawn as a dot with its interval.

    Attributes:
        estimate: The number and its interval.
        style: CSS class of the mark ("raw", "adjusted", "privileged", "series-0").
        name: What it is, for the tooltip.
    """

    estimate: Estimate
    style: str
    name: str


@dataclass(frozen=True, slots=True)
class Panel:
    """One panel of a chart of dots.

    Attributes:
        heading: What it shows; may be empty.
        rows: The marks of each row, one below the other where there are several.
        ceilings: V* of each row; NaN draws none.
        references: For each row another number drawn as a tick, such as what obeying a plan brings; NaN draws none.
        reference_name: What that number is.
    """

    heading: str
    rows: Sequence[Sequence[Mark]]
    ceilings: Sequence[float]
    references: Sequence[float]
    reference_name: str


def dot_panels(title: str, description: str, labels: Sequence[RowLabel], panels: Sequence[Panel]) -> Markup:
    """Draw rows of dots with intervals from 0 to 100%, for wide pages in panels beside each other, else one by one.

    Title and description are for readers of the page; every row has a label.
    """

    def draw(layout: Layout) -> Child:
        if not layout.is_narrow:
            return _dots(title, description, labels, panels, layout)
        charts = []
        for panel in panels:
            shown = [row for row, marks in enumerate(panel.rows) if marks]
            own = replace(
                panel,
                rows=[panel.rows[row] for row in shown],
                ceilings=[panel.ceilings[row] for row in shown],
                references=[panel.references[row] for row in shown],
            )
            own_title = f"{title}, {panel.heading}" if panel.heading else title
            charts.append(_dots(own_title, description, [labels[row] for row in shown], [own], layout))
        return charts

    return for_all_pages(draw, labels)


def _dots(title: str, description: str, labels: Sequence[RowLabel], panels: Sequence[Panel], layout: Layout) -> Markup:
    margin = 18.0 if not layout.is_narrow else 6.0
    left_margin = layout.label_width if not layout.is_narrow else 6.0
    width = (layout.width - left_margin - margin - PANEL_GAP * (len(panels) - 1)) / len(panels)
    headings = [wrapped(panel.heading, width / NAME_WIDTH) for panel in panels]
    top = AXIS_HEIGHT + 16.0 * max((len(lines) for lines in headings if lines != [""]), default=0)
    most_marks = max((len(marks) for panel in panels for marks in panel.rows), default=1)
    row_height = DOTS_HEIGHT + DOT_HEIGHT * (most_marks - 1) + layout.label_height
    height = top + row_height * len(labels) + 8.0
    half = (row_height - layout.label_height) / 2.0 - 4.0
    content: list[Child] = []
    for number, panel in enumerate(panels):
        left = left_margin + number * (width + PANEL_GAP)
        for place, text in enumerate(headings[number]):
            content.append(words(left, 12.0 + 16.0 * place, text, "panel-heading"))
        step = 0.25 if width < 400 else 0.1
        content.append(level_axis(share_ticks(left, width, 1.0, step), top, height - 8.0))
        for row, marks in enumerate(panel.rows):
            middle = top + row_height * (row + 0.5) + layout.label_height / 2.0
            ends = (middle - half, middle + half)
            ceiling, reference = panel.ceilings[row], panel.references[row]
            if not math.isnan(ceiling):
                tooltip = f"ceiling V*: {format_percent(ceiling)}%"
                content.append(upright_line(left + width * ceiling, *ends, "ceiling", tooltip))
            content += _row_of_dots(left, width, middle, marks, ceiling)
            if not math.isnan(reference):
                tooltip = f"{panel.reference_name}: {format_percent(reference)}%"
                content.append(upright_line(left + width * reference, *ends, "reference", tooltip))
    content.append(row_labels(labels, layout, top, row_height))
    return figure(layout.width, height, title, description, content)


def _row_of_dots(left: float, width: float, middle: float, marks: Sequence[Mark], ceiling: float) -> list[Child]:
    parts: list[Child] = []
    for number, mark in enumerate(marks):
        estimate = mark.estimate
        if math.isnan(estimate.value):
            continue
        y = middle + DOT_HEIGHT * (number - (len(marks) - 1) / 2.0)
        reach = estimate.value if math.isnan(estimate.high) else estimate.high
        if number == len(marks) - 1 and reach < ceiling:
            parts.append(level_line(left + width * reach, left + width * ceiling, y, "gap"))
        ends = (estimate.value, estimate.low, estimate.high)
        x, low, high = (end if math.isnan(end) else left + width * min(max(end, 0.0), 1.0) for end in ends)
        tooltip = f"{mark.name}: {format_percent(estimate.value)}% {format_interval(estimate)}"
        parts.append(_interval(x, low, high, y, mark.style, tooltip))
    return parts


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a stacked bar: a CSS class, its amount, and what it is."""

    style: str
    amount: float
    name: str


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

    def draw(layout: Layout) -> Markup:
        left = 4.0 if layout.is_narrow else layout.label_width
        width = layout.width - left - 26.0
        top = AXIS_HEIGHT + 16.0
        row_height = BAR_HEIGHT + layout.label_height
        height = top + row_height * len(labels) + 8.0
        longest = max((math.fsum(part.amount for part in bar) for bar in bars), default=0.0) or 1.0
        step = nice_step(longest, 4 if layout.is_narrow else 8)
        span = step * math.ceil(longest / step - 1e-9)
        ticks = [
            (left + width * tick * step / span, number(tick * step), "middle" if tick else "start", tick == 0)
            for tick in range(round(span / step) + 1)
        ]
        content: list[Child] = [_heading(unit, left), level_axis(ticks, top, height - 8.0)]
        for row, bar in enumerate(bars):
            y = top + row_height * (row + 0.5) + layout.label_height / 2.0 - 8.0
            x = left
            for part in bar:
                size = part.amount * width / span
                content.append(box(x, y, size, 16.0, part.style, f"{part.name}: {number(part.amount)}"))
                x += size
        content.append(row_labels(labels, layout, top, row_height))
        return figure(layout.width, height, title, description, content)

    return for_all_pages(draw, labels)


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
    span = num_ticks * step

    def draw(layout: Layout) -> Markup:
        left = 18.0 if layout.is_narrow else layout.label_width
        width = layout.width - left - 24.0
        most = max((len(row) for row in rows), default=1)
        row_height = FOREST_HEIGHT * most + FOREST_PADDING + layout.label_height
        top = AXIS_HEIGHT + 16.0
        height = top + row_height * len(rows) + 8.0
        zero, scale = left + width / 2.0, width / 2.0 / span
        ticks = []
        for number in range(-num_ticks, num_ticks + 1):
            share = number / num_ticks
            text = f"{'+' if share > 0 else '−' if share < 0 else ''}{abs(share) * span * 100:.3g}"
            ticks.append((left + width / 2.0 * (1.0 + share), text, "middle", number == 0))
        content: list[Child] = [
            _heading(f"← {left_name}", left),
            _heading(f"{right_name} →", left + width, "end"),
            level_axis(ticks, top, height - 8.0),
        ]
        for number, row in enumerate(rows):
            start = top + row_height * number + layout.label_height + FOREST_PADDING / 2.0
            for place, mark in enumerate(row):
                one = mark.estimate
                if math.isnan(one.value):
                    continue
                text = f"{mark.name}: {signed_points(one.value)} points"
                if not math.isnan(one.low):
                    text += f" [{signed_points(one.low)}, {signed_points(one.high)}]"
                x, low, high = (zero + end * scale for end in (one.value, one.low, one.high))
                content.append(_interval(x, low, high, start + FOREST_HEIGHT * (place + 0.5), mark.style, text))
        content.append(row_labels(labels, layout, top, row_height))
        return figure(layout.width, height, title, description, content)

    return for_all_pages(draw, labels)


HEADING_HEIGHT = 34.0
GAP = 24.0
MARGIN = 14.0  # right of a panel, for what lies at its end
VALUE_WIDTH, NUMBER_WIDTH = 152.0, 52.0  # of a number with its interval, of the number alone
MOST_SHARE = 1.1  # of the ceiling that the axis shows: what lies beyond is noise, and stands in the numbers


@dataclass(frozen=True, slots=True)
class ResultRow:
    """One policy under one prompt type.

    Attributes:
        label: Its name.
        share: Its share of the ceiling; NaN where it has no ceiling.
        raw: Its raw success, which stands in place of a share that is NaN.
        bar: Where it lost points, as shares; empty where it has no ceiling.
    """

    label: RowLabel
    share: Estimate
    raw: Estimate
    bar: Sequence[Part]

    @property
    def texts(self) -> tuple[str, str]:
        """Its number and interval, or what else there is to say."""
        if math.isnan(self.share.value):
            return f"{percent(self.raw.value)}% raw", interval_text(self.raw)
        return f"{percent(self.share.value)}%", interval_text(self.share)

    @property
    def narrow_label(self) -> RowLabel:
        """Its name, with the number and interval that narrow pages have no other place for."""
        return replace(self.label, prompt_type=" ".join(self.texts))


@dataclass(frozen=True, slots=True)
class ResultGroup:
    """Rows with a heading of their own, and what their ceiling is."""

    heading: str
    detail: str
    rows: Sequence[ResultRow]


@dataclass(frozen=True, slots=True)
class _Panels:
    """Where the two panels lie: left edges and widths, how far their axes go, and the steps of the second."""

    left: float
    width: float
    share_span: float
    bars_left: float
    bars_width: float
    bars_span: float
    bars_step: float

    def share_x(self, share: float) -> float:
        return self.left + self.width * min(max(share / self.share_span, 0.0), 1.0)


def results_chart(title: str, description: str, groups: Sequence[ResultGroup]) -> Markup:
    """Draw for each row a dot with its interval on an axis up to the ceiling, its number, and a bar of lost points."""

    def draw(layout: Layout) -> Markup:
        panels = _panels([row for group in groups for row in group.rows], layout)
        row_height = DOTS_HEIGHT + layout.label_height
        top = AXIS_HEIGHT + 16.0
        height = top + sum(HEADING_HEIGHT + row_height * len(group.rows) for group in groups) + 6.0
        names = ["share of the ceiling, luck taken out", "points lost of 100 episodes, by cause"]
        if layout.is_narrow:
            names = ["of the ceiling", "points lost of 100"]
        shares = share_ticks(panels.left, panels.width, panels.share_span, 0.25)
        points = share_ticks(panels.bars_left, panels.bars_width, panels.bars_span, panels.bars_step, percent=False)
        content: list[Child] = [
            _heading(names[0], panels.left),
            _heading(names[1], panels.bars_left),
            level_axis(shares, top, height - 6.0),
            level_axis(points, top, height - 6.0),
        ]
        start = top
        for group in groups:
            content.append(_group_heading(group, start, layout))
            start += HEADING_HEIGHT
            for number, row in enumerate(group.rows):
                middle = start + row_height * (number + 0.5) + layout.label_height / 2.0
                content += _share(row, panels, middle, layout)
                content += _lost_points(row, panels, middle)
            labels = [row.narrow_label if layout.is_narrow else row.label for row in group.rows]
            content.append(row_labels(labels, layout, start, row_height))
            start += row_height * len(group.rows)
        return figure(layout.width, height, title, description, content)

    return for_all_pages(draw, [row.label for group in groups for row in group.rows])


def _panels(rows: Sequence[ResultRow], layout: Layout) -> _Panels:
    reach = [end for row in rows for end in (row.share.value, row.share.high) if not math.isnan(end)]
    share_span = min(max([1.0, *reach]), MOST_SHARE)
    longest = max((math.fsum(part.amount for part in row.bar) for row in rows), default=0.0)
    step = 0.25 if longest > 0.5 else 0.1 if longest > 0.2 else 0.05
    bars_span = step * max(2, math.ceil(longest / step - 1e-9))
    if layout.is_narrow:
        width = (layout.width - GAP) / 2.0
        return _Panels(2.0, width - MARGIN, share_span, width + GAP, width - MARGIN, bars_span, step)
    own = (layout.width - layout.label_width - VALUE_WIDTH - GAP) * 0.46
    bars_left = layout.label_width + own + VALUE_WIDTH + GAP
    bars_width = layout.width - bars_left - MARGIN
    return _Panels(layout.label_width, own - MARGIN, share_span, bars_left, bars_width, bars_span, step)


def _group_heading(group: ResultGroup, top: float, layout: Layout) -> Markup:
    room = layout.width / CHARACTER_WIDTH - len(group.heading) - 4.0
    detail = element("tspan", shortened(group.detail, room), dx=10, class_="group-detail")
    rule = level_line(0.0, layout.width, top + 4.0, "row-rule")
    return rule + words(0.0, top + HEADING_HEIGHT - 11.0, render([group.heading, detail]), "group-heading")


def _share(row: ResultRow, panels: _Panels, y: float, layout: Layout) -> list[Child]:
    parts: list[Child] = []
    number, interval = row.texts
    share = row.share
    if not layout.is_narrow:
        x = panels.left + panels.width + MARGIN + NUMBER_WIDTH + 30.0 * math.isnan(share.value)
        parts.append(words(x, y + 4.0, number, "value", "end"))
        parts.append(words(x + 7.0, y + 4.0, interval, "tick"))
    if math.isnan(share.value):
        return parts
    parts.append(upright_line(panels.share_x(1.0), y - DOTS_HEIGHT / 2.0, y + DOTS_HEIGHT / 2.0, "ceiling"))
    ends = (share.value, share.low, share.high)
    x, low, high = (end if math.isnan(end) else panels.share_x(end) for end in ends)
    tooltip = f"{row.label.full_name}: {number} of the ceiling {interval}".removesuffix(f" {NOTHING}")
    return [*parts, _interval(x, low, high, y, "privileged" if row.label.privileged else "adjusted", tooltip)]


def _lost_points(row: ResultRow, panels: _Panels, middle: float) -> list[Child]:
    parts: list[Child] = []
    before = 0.0
    for part in row.bar:
        x = panels.bars_left + panels.bars_width * before / panels.bars_span
        size = panels.bars_width * part.amount / panels.bars_span
        text = percent(part.amount)
        parts.append(box(x, middle - 8.0, max(size, 0.0), 16.0, part.style, f"{part.name}: {text} points"))
        if size > 30.0:
            parts.append(words(x + size / 2.0, middle + 4.0, text, f"on-bar on-{part.style}", "middle"))
        before += part.amount
    return parts
