"""Charts of rates over something ordered: the number of tries, models by size."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from resilisim.evaluation.report.drawing import (
    CHARACTER_WIDTH,
    HALF,
    Layout,
    figure,
    for_all_pages,
    shortened,
)
from resilisim.evaluation.report.markup import Child, Markup, element
from resilisim.evaluation.summary import format_interval, format_percent
from resilisim.statistics import Estimate

HEIGHT = 280.0

_Height = Callable[[float], float]


@dataclass(frozen=True, slots=True)
class Line:
    """A row of estimates that belong together.

    Attributes:
        name: What they are of.
        style: CSS class ("series-0").
        estimates: One for each place on the axis; NaN leaves a place out.
        is_dashed: Whether the line is dashed, to tell two kinds of one series apart.
    """

    name: str
    style: str
    estimates: Sequence[Estimate]
    is_dashed: bool = False


@dataclass(frozen=True, slots=True)
class LinePanel:
    """One chart of lines.

    Attributes:
        title: For readers of the page.
        heading: What it shows, in few words.
        lines: The lines.
    """

    title: str
    heading: str
    lines: Sequence[Line]


def line_charts(description: str, places: Sequence[str], axis_name: str, panels: Sequence[LinePanel]) -> Markup:
    """Draw lines through estimates with their intervals, on an upright axis from 0 to 100%; two charts side by side.

    Args:
        description: For readers of the page.
        places: Names of the places on the level axis, which lie at equal distances.
        axis_name: What that axis is.
        panels: The charts, which share their axes.
    """

    def draw(layout: Layout) -> Child:
        own = HALF if len(panels) > 1 and not layout.is_narrow else layout
        charts = [_draw(panel, description, places, axis_name, own) for panel in panels]
        return element("div", charts, class_="pairs") if own is HALF else charts

    return for_all_pages(draw)


def _draw(panel: LinePanel, description: str, places: Sequence[str], axis_name: str, layout: Layout) -> Markup:
    title, lines = panel.title, panel.lines
    left, right, top, bottom = 44.0, 20.0, 30.0, 44.0
    width, tall = layout.width - left - right, HEIGHT - top - bottom
    column = width / len(places)

    def y(share: float) -> float:
        return top + tall * (1.0 - min(max(share, 0.0), 1.0))

    content: list[Child] = [element("text", panel.heading, x=left, y=14.0, class_="panel-heading")]
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        style = "grid" if share else "zero"
        content.append(element("line", x1=left, x2=layout.width - right, y1=y(share), y2=y(share), class_=style))
        text = f"{share * 100:.0f}%"
        content.append(element("text", text, x=left - 8.0, y=y(share) + 4.0, class_="tick", text_anchor="end"))
    room = column / CHARACTER_WIDTH
    every = max(1, math.ceil(28.0 / column))
    for number, place in enumerate(places):
        if number % every == 0:
            x = left + column * (number + 0.5)
            text = element("title", place)
            name = shortened(place, max(room * every, 3.0))
            content.append(
                element("text", text, name, x=x, y=HEIGHT - bottom + 18.0, class_="tick", text_anchor="middle")
            )
    middle = left + width / 2.0
    content.append(element("text", axis_name, x=middle, y=HEIGHT - 6.0, class_="tick", text_anchor="middle"))
    for number, line in enumerate(lines):
        # Lines lie a little beside each other, so that their intervals do not hide one another.
        shift = (number - (len(lines) - 1) / 2.0) * min(7.0, column * 0.5 / len(lines))
        content.append(_line(line, [left + column * (place + 0.5) + shift for place in range(len(places))], y))
    return figure(layout.width, HEIGHT, title, description, content)


def _line(line: Line, xs: Sequence[float], y: _Height) -> Markup:
    shown = [(x, estimate) for x, estimate in zip(xs, line.estimates, strict=True) if not math.isnan(estimate.value)]
    points = " ".join(f"{x:.1f},{y(estimate.value):.1f}" for x, estimate in shown)
    style = f"line {line.style}" + (" dashed" if line.is_dashed else "")
    parts: list[Child] = [element("polyline", points=points, class_=style)] if len(shown) > 1 else []
    for x, estimate in shown:
        if not math.isnan(estimate.low):
            parts.append(
                element("line", x1=x, x2=x, y1=y(estimate.low), y2=y(estimate.high), class_=f"interval {line.style}")
            )
        tooltip = f"{line.name}: {format_percent(estimate.value)}% {format_interval(estimate)}"
        hollow = " hollow" if line.is_dashed else ""
        parts.append(
            element(
                "circle",
                element("title", tooltip),
                cx=x,
                cy=y(estimate.value),
                r=4.0,
                class_=f"dot {line.style}{hollow}",
            )
        )
    return element("g", parts)
