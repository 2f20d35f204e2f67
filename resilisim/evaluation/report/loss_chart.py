"""The chart of lost points: a stacked bar per row, and the row's luck beside it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from resilisim.evaluation.report.drawing import (
    AXIS_HEIGHT,
    Layout,
    RowLabel,
    figure,
    for_all_pages,
    panel_heading,
    points_axis,
    row_labels,
    share_axis,
)
from resilisim.evaluation.report.markup import Child, Markup, element
from resilisim.evaluation.statistics import Estimate
from resilisim.evaluation.summary import format_interval, format_percent

ROW_HEIGHT = 27.0
LUCK_GAP = 46.0


@dataclass(frozen=True, slots=True)
class Segment:
    """A part of a stacked bar: a CSS class, its size as a share, and what it is."""

    style: str
    size: float
    name: str


def stacked_chart(
    title: str,
    description: str,
    labels: Sequence[RowLabel],
    bars: Sequence[Sequence[Segment]],
    luck: Sequence[Estimate],
) -> Markup:
    """Draw one stacked bar of lost points per row, and beside it the row's luck, which may have either sign."""

    def draw(layout: Layout) -> Markup:
        return _draw(title, description, labels, bars, luck, layout)

    return for_all_pages(draw, labels)


def _draw(
    title: str,
    description: str,
    labels: Sequence[RowLabel],
    bars: Sequence[Sequence[Segment]],
    luck: Sequence[Estimate],
    layout: Layout,
) -> Markup:
    left = 4.0 if layout.is_narrow else layout.label_width
    luck_width, gap = (62.0, 28.0) if layout.is_narrow else (170.0, LUCK_GAP)
    width = layout.width - left - luck_width - gap - 12.0
    top = AXIS_HEIGHT + 16.0
    row_height = ROW_HEIGHT + layout.label_height
    height = top + row_height * len(labels) + 8.0
    longest = max((sum(segment.size for segment in bar) for bar in bars), default=0.0)
    span = max(0.1, math.ceil(longest * 10.0 - 1e-9) / 10.0)
    luck_left = left + width + gap
    largest = max((abs(bound) for e in luck for bound in (e.value, e.low, e.high) if math.isfinite(bound)), default=0.0)
    luck_span = max(0.05, math.ceil(largest * 20.0 - 1e-9) / 20.0)
    content: list[Child] = [
        panel_heading(["points lost of 100" if layout.is_narrow else "points lost of 100, luck apart"], left),
        panel_heading(["luck" if layout.is_narrow else "won or lost by luck"], luck_left),
        share_axis(left, width, top, height - 8.0, span, _step(span, layout), percent=False),
        points_axis(luck_left, luck_width, top, height - 8.0, luck_span),
    ]
    for row, (bar, estimate) in enumerate(zip(bars, luck, strict=True)):
        middle = top + row_height * (row + 0.5) + layout.label_height / 2.0
        content.append(_bar(left, width / span, middle, bar))
        content.append(_luck_bar(luck_left + luck_width / 2.0, luck_width / 2.0 / luck_span, middle, estimate))
    content.append(row_labels(labels, layout, top, row_height))
    return figure(layout.width, height, title, description, content)


def _step(span: float, layout: Layout) -> float:
    if layout.is_narrow:
        return 0.25 if span > 0.5 else 0.1
    return 0.1 if span > 0.3 else 0.05


def _bar(left: float, scale: float, middle: float, segments: Sequence[Segment]) -> Markup:
    parts: list[Child] = []
    x = left
    for segment in segments:
        size = segment.size * scale
        text = format_percent(segment.size)
        tooltip = element("title", f"{segment.name}: {text} points")
        style = f"bar {segment.style}"
        parts.append(element("rect", tooltip, x=x, y=middle - 9.0, width=max(size, 0.0), height=18.0, class_=style))
        if size > 32.0:
            on_bar = f"on-bar on-{segment.style}"
            parts.append(element("text", text, x=x + size / 2.0, y=middle + 4.0, class_=on_bar, text_anchor="middle"))
        x += size
    return element("g", parts)


def _luck_bar(zero: float, scale: float, middle: float, estimate: Estimate) -> Markup:
    if math.isnan(estimate.value):
        return element("g")
    end = zero + estimate.value * scale
    sign = "+" if estimate.value > 0 else "−" if estimate.value < 0 else ""
    tooltip = element("title", f"luck: {sign}{format_percent(abs(estimate.value))} points {format_interval(estimate)}")
    parts: list[Child] = [
        element(
            "rect", tooltip, x=min(zero, end), y=middle - 6.0, width=abs(end - zero), height=12.0, class_="bar luck"
        )
    ]
    if not math.isnan(estimate.low):
        low, high = zero + estimate.low * scale, zero + estimate.high * scale
        parts.append(element("line", x1=low, x2=high, y1=middle, y2=middle, class_="interval luck"))
    return element("g", parts)
