"""The chart of differences: one interval under the other around zero, as in a forest plot."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from resilisim.evaluation.report.cells import signed_points
from resilisim.evaluation.report.drawing import (
    AXIS_HEIGHT,
    Layout,
    RowLabel,
    figure,
    for_all_pages,
    nice_step,
    panel_heading,
    points_axis,
    row_labels,
)
from resilisim.evaluation.report.markup import Child, Markup, element

MARK_HEIGHT = 15.0
ROW_PADDING = 16.0


@dataclass(frozen=True, slots=True)
class Interval:
    """A difference with its interval, drawn on its own line.

    Attributes:
        value: The difference as a share.
        low: Lower end, or NaN.
        high: Upper end, or NaN.
        style: CSS class.
        name: What it is, for the tooltip.
    """

    value: float
    low: float
    high: float
    style: str
    name: str


def forest_chart(
    title: str,
    description: str,
    labels: Sequence[RowLabel],
    rows: Sequence[Sequence[Interval]],
    left_name: str,
    right_name: str,
) -> Markup:
    """Draw differences around zero, those of one row under each other.

    Args:
        title: For readers of the page.
        description: For readers of the page.
        labels: One per row.
        rows: The differences of each row.
        left_name: What a difference below zero speaks for.
        right_name: What a difference above zero speaks for.
    """

    def draw(layout: Layout) -> Markup:
        return _draw(title, description, labels, rows, (left_name, right_name), layout)

    return for_all_pages(draw, labels)


def _draw(
    title: str,
    description: str,
    labels: Sequence[RowLabel],
    rows: Sequence[Sequence[Interval]],
    sides: tuple[str, str],
    layout: Layout,
) -> Markup:
    ends = [abs(end) for row in rows for item in row for end in (item.value, item.low, item.high) if math.isfinite(end)]
    longest = max(ends, default=0.05) * 1.04
    marks = 2
    step = nice_step(longest, marks)
    marks = max(1, math.ceil(longest / step - 1e-9))
    span = marks * step
    left = 18.0 if layout.is_narrow else layout.label_width
    width = layout.width - left - 24.0
    most = max((len(row) for row in rows), default=1)
    row_height = MARK_HEIGHT * most + ROW_PADDING + layout.label_height
    top = AXIS_HEIGHT + 16.0
    height = top + row_height * len(rows) + 8.0
    zero, scale = left + width / 2.0, width / 2.0 / span
    content: list[Child] = [
        panel_heading([f"← {sides[0]}"], left),
        element("text", f"{sides[1]} →", x=left + width, y=12.0, class_="panel-heading", text_anchor="end"),
        points_axis(left, width, top, height - 8.0, span, marks),
    ]
    for number, row in enumerate(rows):
        start = top + row_height * number + layout.label_height + ROW_PADDING / 2.0
        for place, item in enumerate(row):
            content.append(_interval(item, zero, scale, start + MARK_HEIGHT * (place + 0.5)))
    content.append(row_labels(labels, layout, top, row_height))
    return figure(layout.width, height, title, description, content)


def _interval(item: Interval, zero: float, scale: float, y: float) -> Markup:
    if math.isnan(item.value):
        return element("g")
    parts: list[Child] = []
    text = f"{item.name}: {signed_points(item.value)} points"
    if not math.isnan(item.low):
        low, high = zero + item.low * scale, zero + item.high * scale
        parts.append(element("line", x1=low, x2=high, y1=y, y2=y, class_=f"interval {item.style}"))
        text += f" [{signed_points(item.low)}, {signed_points(item.high)}]"
    x = zero + item.value * scale
    parts.append(element("circle", element("title", text), cx=x, cy=y, r=4.5, class_=f"dot {item.style}"))
    return element("g", parts)
