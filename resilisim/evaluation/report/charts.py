"""Charts of rates: rows of dots with intervals on an axis from 0 to 100%, beside the ceiling."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from resilisim.evaluation.report.drawing import (
    AXIS_HEIGHT,
    CHART_WIDTH,
    HEADING_CHARACTER_WIDTH,
    NARROW,
    WIDE,
    Layout,
    RowLabel,
    figure,
    for_all_pages,
    panel_heading,
    row_labels,
    share_axis,
    wrapped,
)
from resilisim.evaluation.report.markup import Child, Markup, element
from resilisim.evaluation.summary import format_interval, format_percent
from resilisim.statistics import Estimate

__all__ = [
    "CHART_WIDTH",
    "NARROW",
    "WIDE",
    "Layout",
    "Mark",
    "Panel",
    "RowLabel",
    "dot_chart",
    "dot_panels",
    "figure",
]

ROW_HEIGHT = 27.0
MARK_HEIGHT = 11.0
PANEL_GAP = 34.0


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
        references: For each row another number drawn as a ring, such as what obeying a plan brings; NaN draws none.
        reference_name: What that number is.
    """

    heading: str
    rows: Sequence[Sequence[Mark]]
    ceilings: Sequence[float]
    references: Sequence[float] = ()
    reference_name: str = ""


def dot_panels(
    title: str, description: str, labels: Sequence[RowLabel], panels: Sequence[Panel], num_columns: int = 1
) -> Markup:
    """Draw panels for wide pages beside each other, for narrow ones one under the other.

    Args:
        title: For readers of the page.
        description: For readers of the page.
        labels: One per row.
        panels: The panels.
        num_columns: Panels that fit beside each other; charts of one series share it, so that their panels are alike.
    """

    def draw(layout: Layout) -> Child:
        if not layout.is_narrow:
            return dot_chart(title, description, labels, panels, num_columns, layout)
        return [_alone(title, description, labels, panel, layout) for panel in panels]

    return for_all_pages(draw, labels)


def dot_chart(
    title: str,
    description: str,
    labels: Sequence[RowLabel],
    panels: Sequence[Panel],
    num_columns: int = 1,
    layout: Layout = WIDE,
) -> Markup:
    """Draw rows of dots with intervals on an axis from 0 to 100%, in one panel or several beside each other.

    Args:
        title: For readers of the page.
        description: For readers of the page.
        labels: One per row.
        panels: The panels.
        num_columns: Panels that fit beside each other.
        layout: How the page is used.
    """
    num_columns = max(num_columns, len(panels))
    margin = 18.0 if not layout.is_narrow else 6.0
    left_margin = layout.label_width if not layout.is_narrow else 6.0
    panel_width = (layout.width - left_margin - margin - PANEL_GAP * (num_columns - 1)) / num_columns
    headings = [wrapped(panel.heading, panel_width / HEADING_CHARACTER_WIDTH) for panel in panels]
    top = AXIS_HEIGHT + 16.0 * max((len(lines) for lines in headings if lines != [""]), default=0)
    most_marks = max((len(marks) for panel in panels for marks in panel.rows), default=1)
    row_height = ROW_HEIGHT + MARK_HEIGHT * (most_marks - 1) + layout.label_height
    height = top + row_height * len(labels) + 8.0
    content: list[Child] = []
    for number, panel in enumerate(panels):
        left = left_margin + number * (panel_width + PANEL_GAP)
        content.append(panel_heading(headings[number], left))
        content.append(share_axis(left, panel_width, top, height - 8.0, 1.0, 0.25 if panel_width < 400 else 0.1))
        for row, marks in enumerate(panel.rows):
            middle = top + row_height * (row + 0.5) + layout.label_height / 2.0
            half = (row_height - layout.label_height) / 2.0 - 4.0
            content.append(_dot_row(left, panel_width, middle, half, marks, panel.ceilings[row]))
            if panel.references and not math.isnan(panel.references[row]):
                content.append(_reference(left, panel_width, middle, half, panel.references[row], panel.reference_name))
    content.append(row_labels(labels, layout, top, row_height))
    return figure(layout.width, height, title, description, content)


def _alone(title: str, description: str, labels: Sequence[RowLabel], panel: Panel, layout: Layout) -> Markup:
    """Draw one panel, without the rows that have nothing in it."""
    shown = [row for row, marks in enumerate(panel.rows) if marks]
    own = replace(
        panel,
        rows=[panel.rows[row] for row in shown],
        ceilings=[panel.ceilings[row] for row in shown],
        references=[panel.references[row] for row in shown] if panel.references else (),
    )
    own_title = f"{title}, {panel.heading}" if panel.heading else title
    return dot_chart(own_title, description, [labels[row] for row in shown], [own], 1, layout)


def _dot_row(left: float, width: float, middle: float, half: float, marks: Sequence[Mark], ceiling: float) -> Markup:
    parts: list[Child] = []
    if not math.isnan(ceiling):
        x = left + width * ceiling
        tick = element("title", f"ceiling V*: {format_percent(ceiling)}%")
        parts.append(element("line", tick, x1=x, x2=x, y1=middle - half, y2=middle + half, class_="ceiling"))
    for number, mark in enumerate(marks):
        estimate = mark.estimate
        if math.isnan(estimate.value):
            continue
        y = middle + MARK_HEIGHT * (number - (len(marks) - 1) / 2.0)
        x = left + width * min(max(estimate.value, 0.0), 1.0)
        reach = estimate.value if math.isnan(estimate.high) else estimate.high
        if number == len(marks) - 1 and reach < ceiling:
            parts.append(element("line", x1=left + width * reach, x2=left + width * ceiling, y1=y, y2=y, class_="gap"))
        if not math.isnan(estimate.low):
            low, high = (left + width * min(max(end, 0.0), 1.0) for end in (estimate.low, estimate.high))
            parts.append(element("line", x1=low, x2=high, y1=y, y2=y, class_=f"interval {mark.style}"))
        tooltip = f"{mark.name}: {format_percent(estimate.value)}% {format_interval(estimate)}"
        parts.append(element("circle", element("title", tooltip), cx=x, cy=y, r=4.5, class_=f"dot {mark.style}"))
    return element("g", parts)


def _reference(left: float, width: float, middle: float, half: float, value: float, name: str) -> Markup:
    x = left + width * value
    return element(
        "line",
        element("title", f"{name}: {format_percent(value)}%"),
        x1=x,
        x2=x,
        y1=middle - half,
        y2=middle + half,
        class_="reference",
    )
