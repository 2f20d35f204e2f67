"""Small charts side by side: a policy's success along an axis of numbers, and what each flaw does to all policies."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from resilisim.evaluation.report.drawing import CHARACTER_WIDTH, NAME_WIDTH, figure, shortened, tail
from resilisim.evaluation.report.markup import Child, Markup, element
from resilisim.evaluation.summary import format_interval, format_percent
from resilisim.statistics import Estimate

WIDTH, HEIGHT = 330.0, 232.0
LEFT, RIGHT, TOP, BOTTOM = 40.0, 10.0, 26.0, 40.0
TICK_ROOM = 26.0  # least distance of two numbers below an axis


@dataclass(frozen=True, slots=True)
class Series:
    """One policy's estimates at the places of an axis, to be drawn in one style.

    Attributes:
        name: Whose they are.
        style: CSS class ("series-0").
        estimates: One for each place; NaN leaves a place out.
        raw: The same from raw outcomes, drawn as small dots without intervals; empty draws none.
        hollow: Whether the marks are hollow, which privileged policies have.
    """

    name: str
    style: str
    estimates: Sequence[Estimate]
    raw: Sequence[Estimate] = ()
    hollow: bool = False


@dataclass(frozen=True, slots=True)
class Level:
    """A reference that is known exactly: its values at the places of an axis, a CSS class, and what it is."""

    values: Sequence[float]
    style: str
    name: str


def panels(charts: Sequence[Markup]) -> Markup:
    """Return charts beside each other, as many as the page has room for."""
    return element("div", charts, class_="panels")


def curve_panel(
    heading: str,
    places: Sequence[float],
    axis_name: str,
    label: Callable[[float], str],
    levels: Sequence[Level],
    others: Sequence[Series],
    series: Series,
    standard: float,
) -> Markup:
    """Draw one policy's curve between the references, with those of the others faintly behind it.

    Args:
        heading: What stands above it.
        places: Places on the axis, ascending.
        axis_name: What the axis is.
        label: How a place is written.
        levels: References, drawn as curves.
        others: Curves to compare with.
        series: The curve.
        standard: The place of the standard setting, which is marked.
    """
    first, last = places[0], places[-1]
    span = last - first

    def x(place: float) -> float:
        room = WIDTH - LEFT - RIGHT - 16.0
        return LEFT + 8.0 + room * ((place - first) / span if span else 0.5)

    xs = [x(place) for place in places]
    content: list[Child] = [_heading(heading), _shares(), _place_names(xs, [label(place) for place in places])]
    content.append(element("line", x1=x(standard), x2=x(standard), y1=TOP, y2=HEIGHT - BOTTOM, class_="standard"))
    middle = LEFT + (WIDTH - LEFT - RIGHT) / 2.0
    content.append(element("text", axis_name, x=middle, y=HEIGHT - 5.0, class_="tick", text_anchor="middle"))
    content += [_polyline(xs, [estimate.value for estimate in other.estimates], "curve other") for other in others]
    for level in levels:
        content.append(_polyline(xs, level.values, f"curve {level.style}", level.name))
        if len(places) == 1:
            content.append(_tick(xs[0], 10.0, level.values[0], level.style, level.name))
    content.append(_polyline(xs, [estimate.value for estimate in series.estimates], f"curve line {series.style}"))
    for number, place in enumerate(xs):
        content.append(_marks(series, number, place, label(places[number])))
    described = ", ".join(
        f"{label(place)}: {format_percent(estimate.value)}% {format_interval(estimate)}"
        for place, estimate in zip(places, series.estimates, strict=True)
    )
    return figure(WIDTH, HEIGHT, f"{heading}: success by {axis_name}", described, content)


def group_panel(
    heading: str, groups: Sequence[str], levels: Sequence[Level], series: Sequence[Series], summary: str
) -> Markup:
    """Draw groups of dots side by side, each with the references of its group as ticks across it.

    Args:
        heading: What stands above it.
        groups: Names of the groups.
        levels: References, one value for each group.
        series: The dots, one for each group.
        summary: What the chart shows, for readers of the page.
    """
    width = (WIDTH - LEFT - RIGHT) / len(groups)
    middles = [LEFT + width * (number + 0.5) for number in range(len(groups))]
    names = [shortened(group, width / CHARACTER_WIDTH + 1.0) for group in groups]
    content: list[Child] = [_heading(heading), _shares()]
    content += [
        element("text", name, x=x, y=HEIGHT - BOTTOM + 17.0, class_="tick", text_anchor="middle")
        for x, name in zip(middles, names, strict=True)
    ]
    for level in levels:
        for middle, value in zip(middles, level.values, strict=True):
            content.append(_tick(middle, width / 2.0 - 3.0, value, level.style, level.name))
    step = min(13.0, (width - 12.0) / max(len(series), 1))
    for place, one in enumerate(series):
        shift = step * (place - (len(series) - 1) / 2.0)
        for number, middle in enumerate(middles):
            content.append(_marks(one, number, middle + shift, groups[number]))
    return figure(WIDTH, HEIGHT, heading, summary, content)


def key(entries: Sequence[tuple[Markup, str]]) -> Markup:
    """Return the key of charts: a symbol and its meaning each."""
    return element("ul", [element("li", symbol, text) for symbol, text in entries], class_="legend")


def dot_symbol(style: str, hollow: bool = False) -> Markup:
    """Return the symbol of an estimate with its interval."""
    line = element("line", x1=6, x2=6, y1=0.5, y2=12.5, class_=f"interval {style}")
    return _symbol(12, line, element("circle", cx=6, cy=6.5, r=4.0, class_=_dot_style(style, hollow)))


def raw_symbol() -> Markup:
    """Return the symbol of a raw rate."""
    return _symbol(12, element("circle", cx=6, cy=6.5, r=2.2, class_="raw-dot"))


def line_symbol(style: str) -> Markup:
    """Return the symbol of a curve or tick."""
    return _symbol(24, element("line", x1=1, x2=23, y1=6.5, y2=6.5, class_=f"curve {style}"))


def _symbol(width: int, *content: Child) -> Markup:
    drawn = element("svg", *content, width=width, height=13, viewBox=f"0 0 {width} 13", aria_hidden="true")
    return element("span", drawn, class_="chart-symbol")


def _y(share: float) -> float:
    return TOP + (HEIGHT - TOP - BOTTOM) * (1.0 - min(max(share, 0.0), 1.0))


def _heading(text: str) -> Markup:
    room = (WIDTH - 4.0) / NAME_WIDTH
    return element("text", element("title", text), tail(text, room), x=2, y=13, class_="policy")


def _shares() -> Markup:
    parts: list[Child] = []
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        style = "grid" if share else "zero"
        parts.append(element("line", x1=LEFT, x2=WIDTH - RIGHT, y1=_y(share), y2=_y(share), class_=style))
        text = f"{share * 100:.0f}%"
        parts.append(element("text", text, x=LEFT - 6.0, y=_y(share) + 4.0, class_="tick", text_anchor="end"))
    return element("g", parts)


def _place_names(xs: Sequence[float], names: Sequence[str]) -> Markup:
    parts: list[Child] = []
    free_from = -math.inf
    for x, name in zip(xs, names, strict=True):
        if x >= free_from:
            parts.append(element("text", name, x=x, y=HEIGHT - BOTTOM + 17.0, class_="tick", text_anchor="middle"))
            free_from = x + max(TICK_ROOM, CHARACTER_WIDTH * len(name) + 4.0)
    return element("g", parts)


def _polyline(xs: Sequence[float], values: Sequence[float], style: str, name: str = "") -> Markup | None:
    points = [f"{x:.1f},{_y(value):.1f}" for x, value in zip(xs, values, strict=True) if not math.isnan(value)]
    if len(points) < 2:
        return None
    return element("polyline", element("title", name) if name else None, points=" ".join(points), class_=style)


def _tick(middle: float, half: float, value: float, style: str, name: str) -> Markup | None:
    if math.isnan(value):
        return None
    title = element("title", f"{name}: {format_percent(value)}%")
    return element(
        "line", title, x1=middle - half, x2=middle + half, y1=_y(value), y2=_y(value), class_=f"curve {style}"
    )


def _marks(series: Series, number: int, x: float, where: str) -> Markup | None:
    estimate = series.estimates[number]
    parts: list[Child] = []
    if series.raw and not math.isnan(series.raw[number].value):
        raw = series.raw[number]
        title = element("title", f"{series.name}, {where}, raw: {format_percent(raw.value)}% {format_interval(raw)}")
        parts.append(element("circle", title, cx=x, cy=_y(raw.value), r=2.2, class_="raw-dot"))
    if not math.isnan(estimate.low):
        low, high = _y(estimate.low), _y(estimate.high)
        parts.append(element("line", x1=x, x2=x, y1=low, y2=high, class_=f"interval {series.style}"))
    if not math.isnan(estimate.value):
        title = element(
            "title", f"{series.name}, {where}: {format_percent(estimate.value)}% {format_interval(estimate)}"
        )
        style = _dot_style(series.style, series.hollow)
        parts.append(element("circle", title, cx=x, cy=_y(estimate.value), r=4.0, class_=style))
    return element("g", parts) if parts else None


def _dot_style(style: str, hollow: bool) -> str:
    return f"dot {style}{' hollow' if hollow else ''}"
