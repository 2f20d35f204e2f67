"""Charts of amounts: one stacked bar per row on an axis that begins at 0."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from resilisim.evaluation.report.drawing import (
    AXIS_HEIGHT,
    Layout,
    RowLabel,
    figure,
    for_all_pages,
    nice_step,
    panel_heading,
    row_labels,
)
from resilisim.evaluation.report.markup import Child, Markup, element

ROW_HEIGHT = 25.0


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a bar: a CSS class, its amount, and what it is."""

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
    """Draw stacked bars of amounts.

    Args:
        title: For readers of the page.
        description: For readers of the page.
        labels: One per row.
        bars: The parts of each row's bar.
        unit: What the axis counts.
        number: Writes an amount.
    """

    def draw(layout: Layout) -> Markup:
        left = 4.0 if layout.is_narrow else layout.label_width
        width = layout.width - left - 26.0
        top = AXIS_HEIGHT + 16.0
        row_height = ROW_HEIGHT + layout.label_height
        height = top + row_height * len(labels) + 8.0
        longest = max((math.fsum(part.amount for part in bar) for bar in bars), default=0.0) or 1.0
        step = nice_step(longest, 4 if layout.is_narrow else 8)
        span = step * math.ceil(longest / step - 1e-9)
        content: list[Child] = [panel_heading([unit], left)]
        for tick in range(round(span / step) + 1):
            x = left + width * tick * step / span
            style = "grid" if tick else "zero"
            content.append(element("line", x1=x, x2=x, y1=top, y2=height - 8.0, class_=style))
            text = number(tick * step)
            anchor = "middle" if tick else "start"
            content.append(element("text", text, x=x, y=top - 7.0, class_="tick", text_anchor=anchor))
        for row, bar in enumerate(bars):
            middle = top + row_height * (row + 0.5) + layout.label_height / 2.0
            content.append(_bar(bar, left, width / span, middle, number))
        content.append(row_labels(labels, layout, top, row_height))
        return figure(layout.width, height, title, description, content)

    return for_all_pages(draw, labels)


def _bar(bar: Sequence[Part], left: float, scale: float, middle: float, number: Callable[[float], str]) -> Markup:
    parts: list[Child] = []
    x = left
    for part in bar:
        tooltip = element("title", f"{part.name}: {number(part.amount)}")
        size = part.amount * scale
        parts.append(element("rect", tooltip, x=x, y=middle - 8.0, width=size, height=16.0, class_=f"bar {part.style}"))
        x += size
    return element("g", parts)
