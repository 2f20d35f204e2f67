"""The chart of results: for each policy how much of the ceiling it reaches, and beside it where it lost points."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from resilisim.evaluation.report.cells import NOTHING, interval_text, percent
from resilisim.evaluation.report.drawing import (
    AXIS_HEIGHT,
    CHARACTER_WIDTH,
    Layout,
    RowLabel,
    figure,
    for_all_pages,
    panel_heading,
    row_labels,
    share_axis,
    shortened,
)
from resilisim.evaluation.report.markup import Child, Markup, element
from resilisim.statistics import Estimate

ROW_HEIGHT = 27.0
HEADING_HEIGHT = 34.0
GAP = 24.0
MARGIN = 14.0  # right of a panel, for what lies at its end
VALUE_WIDTH, NUMBER_WIDTH = 152.0, 52.0  # of a number with its interval, of the number alone
MOST_SHARE = 1.1  # of the ceiling that the axis shows: what lies beyond is noise, and stands in the numbers


@dataclass(frozen=True, slots=True)
class Segment:
    """A part of a stacked bar: a CSS class, its size as a share, and what it is."""

    style: str
    size: float
    name: str


@dataclass(frozen=True, slots=True)
class ResultRow:
    """One policy under one prompt type.

    Attributes:
        label: Its name.
        share: Its share of the ceiling; NaN where it has no ceiling.
        raw: Its raw success, which stands in place of a share that is NaN.
        bar: Where it lost points; empty where it has no ceiling.
    """

    label: RowLabel
    share: Estimate
    raw: Estimate
    bar: Sequence[Segment]


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

    def points_x(self, points: float) -> float:
        return self.bars_left + self.bars_width * points / self.bars_span


def results_chart(title: str, description: str, groups: Sequence[ResultGroup]) -> Markup:
    """Draw for each row a dot with its interval on an axis up to the ceiling, its number, and a bar of lost points."""
    return for_all_pages(
        lambda layout: _draw(title, description, groups, layout), [row.label for group in groups for row in group.rows]
    )


def _draw(title: str, description: str, groups: Sequence[ResultGroup], layout: Layout) -> Markup:
    panels = _panels(groups, layout)
    row_height = ROW_HEIGHT + layout.label_height
    heights = [HEADING_HEIGHT + row_height * len(group.rows) for group in groups]
    top = AXIS_HEIGHT + 16.0
    height = top + sum(heights) + 6.0
    names = ("of the ceiling", "points lost of 100") if layout.is_narrow else (
        "share of the ceiling, luck taken out",
        "points lost of 100 episodes, by cause",
    )  # fmt: skip
    content: list[Child] = [
        panel_heading([names[0]], panels.left),
        panel_heading([names[1]], panels.bars_left),
        share_axis(panels.left, panels.width, top, height - 6.0, panels.share_span, 0.25),
        share_axis(panels.bars_left, panels.bars_width, top, height - 6.0, panels.bars_span, panels.bars_step, False),
    ]
    start = top
    for group, own in zip(groups, heights, strict=True):
        content.append(_heading(group, start, layout))
        first = start + HEADING_HEIGHT
        start += own
        for number, row in enumerate(group.rows):
            middle = first + row_height * (number + 0.5) + layout.label_height / 2.0
            content.append(_share(row, panels, middle, layout))
            content.append(_bar(row, panels, middle))
        labels = [_narrow_label(row) if layout.is_narrow else row.label for row in group.rows]
        content.append(row_labels(labels, layout, first, row_height))
    return figure(layout.width, height, title, description, content)


def _panels(groups: Sequence[ResultGroup], layout: Layout) -> _Panels:
    rows = [row for group in groups for row in group.rows]
    reach = [end for row in rows for end in (row.share.value, row.share.high) if not math.isnan(end)]
    share_span = min(max([1.0, *reach]), MOST_SHARE)
    longest = max((math.fsum(segment.size for segment in row.bar) for row in rows), default=0.0)
    step = _step(longest)
    bars_span = step * max(2, math.ceil(longest / step - 1e-9))
    if layout.is_narrow:
        width = (layout.width - GAP) / 2.0
        return _Panels(2.0, width - MARGIN, share_span, width + GAP, width - MARGIN, bars_span, step)
    width = layout.width - layout.label_width - VALUE_WIDTH - GAP
    own = width * 0.46
    bars_left = layout.label_width + own + VALUE_WIDTH + GAP
    return _Panels(
        layout.label_width, own - MARGIN, share_span, bars_left, layout.width - bars_left - MARGIN, bars_span, step
    )


def _step(longest: float) -> float:
    return 0.25 if longest > 0.5 else 0.1 if longest > 0.2 else 0.05


def _heading(group: ResultGroup, top: float, layout: Layout) -> Markup:
    y = top + HEADING_HEIGHT - 11.0
    room = layout.width / CHARACTER_WIDTH - len(group.heading) - 4.0
    detail = element("tspan", shortened(group.detail, room), dx=10, class_="group-detail")
    return element(
        "g",
        element("line", x1=0, x2=layout.width, y1=top + 4.0, y2=top + 4.0, class_="row-rule"),
        element("text", group.heading, detail, x=0, y=y, class_="group-heading"),
    )


def _texts(row: ResultRow) -> tuple[str, str]:
    """Return a row's number and its interval, or what else there is to say."""
    if math.isnan(row.share.value):
        return f"{percent(row.raw.value)}% raw", interval_text(row.raw)
    return f"{percent(row.share.value)}%", interval_text(row.share)


def _narrow_label(row: ResultRow) -> RowLabel:
    label = row.label
    return RowLabel(label.policy, " ".join(_texts(row)), label.privileged, label.full_name)


def _share(row: ResultRow, panels: _Panels, y: float, layout: Layout) -> Markup:
    parts: list[Child] = []
    number, interval = _texts(row)
    if not layout.is_narrow:
        x = panels.left + panels.width + MARGIN
        wide = NUMBER_WIDTH + 30.0 * math.isnan(row.share.value)
        parts.append(element("text", number, x=x + wide, y=y + 4.0, class_="value", text_anchor="end"))
        parts.append(element("text", interval, x=x + wide + 7.0, y=y + 4.0, class_="tick"))
    if math.isnan(row.share.value):
        return element("g", parts)
    x = panels.share_x(1.0)
    parts.append(element("line", x1=x, x2=x, y1=y - ROW_HEIGHT / 2.0, y2=y + ROW_HEIGHT / 2.0, class_="ceiling"))
    style = "privileged" if row.label.privileged else "adjusted"
    if not math.isnan(row.share.low):
        low, high = panels.share_x(row.share.low), panels.share_x(row.share.high)
        parts.append(element("line", x1=low, x2=high, y1=y, y2=y, class_=f"interval {style}"))
    tooltip = element("title", f"{row.label.full_name}: {number} of the ceiling {interval}".removesuffix(f" {NOTHING}"))
    x = panels.share_x(row.share.value)
    parts.append(element("circle", tooltip, cx=x, cy=y, r=4.5, class_=f"dot {style}"))
    return element("g", parts)


def _bar(row: ResultRow, panels: _Panels, middle: float) -> Markup:
    parts: list[Child] = []
    before = 0.0
    for segment in row.bar:
        x, size = panels.points_x(before), panels.bars_width * segment.size / panels.bars_span
        text = percent(segment.size)
        tooltip = element("title", f"{segment.name}: {text} points")
        style = f"bar {segment.style}"
        parts.append(element("rect", tooltip, x=x, y=middle - 8.0, width=max(size, 0.0), height=16.0, class_=style))
        if size > 30.0:
            on_bar = f"on-bar on-{segment.style}"
            parts.append(element("text", text, x=x + size / 2.0, y=middle + 4.0, class_=on_bar, text_anchor="middle"))
        before += segment.size
    return element("g", parts)
