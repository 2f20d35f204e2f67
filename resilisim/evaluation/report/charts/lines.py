"""Charts with an upright axis of shares: over tries or models, along the axes of a profile, and during one episode."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from resilisim.evaluation.episode.record import EpisodeRecord
from resilisim.evaluation.report.charts import (
    CHARACTER_WIDTH,
    HALF,
    NAME_WIDTH,
    WIDE,
    Child,
    Layout,
    box,
    dot,
    element,
    figure,
    for_all_pages,
    level_line,
    shortened,
    tail,
    upright_axis,
    upright_line,
    words,
)
from resilisim.evaluation.report.page import say, signed_points
from resilisim.evaluation.table.summary import format_interval, format_percent
from resilisim.statistics import Estimate

NO_ESTIMATE = Estimate(math.nan, math.nan, math.nan, math.nan, 0, 0)
HEIGHT = 280.0  # of a chart of lines
PANEL_WIDTH, PANEL_HEIGHT = 330.0, 232.0  # of a small chart
LEFT, RIGHT, TOP, BOTTOM = 40.0, 10.0, 26.0, 40.0  # margins of a small chart
TICK_ROOM = 26.0  # least distance of two numbers below an axis


@dataclass(frozen=True, slots=True)
class Series:
    """Estimates at the places of an axis, to be drawn in one style."""

    name: str
    style: str  # CSS class ("series-0")
    estimates: Sequence[Estimate]  # one for each place; NaN leaves a place out
    raw: Sequence[Estimate] = ()  # from raw outcomes, drawn as small dots without intervals
    hollow: bool = False  # marks of privileged policies, or of the second of two kinds of a series


@dataclass(frozen=True, slots=True)
class Level:
    """A reference that is known exactly: its values at the places of an axis, a CSS class, and what it is."""

    values: Sequence[float]
    style: str
    name: str


def _estimate_text(estimate: Estimate) -> str:
    return f"{format_percent(estimate.value)}% {format_interval(estimate)}"


def _estimate(estimate: Estimate, x: float, y: Callable[[float], float], style: str, tooltip: str) -> list[Child]:
    """Draw an estimate with its interval; of none nothing."""
    parts: list[Child] = []
    if not math.isnan(estimate.low):
        parts.append(upright_line(x, y(estimate.low), y(estimate.high), f"interval {style.removesuffix(' hollow')}"))
    if not math.isnan(estimate.value):
        text = f"{tooltip}: {_estimate_text(estimate)}"
        parts.append(dot(x, y(estimate.value), f"dot {style}", text, 4.0))
    return parts


def _polyline(
    xs: Sequence[float], values: Sequence[float], y: Callable[[float], float], style: str, name: str = ""
) -> Child:
    """Draw a line through the values that there are, if they are at least two."""
    points = [f"{x:.1f},{y(value):.1f}" for x, value in zip(xs, values, strict=True) if not math.isnan(value)]
    if len(points) < 2:
        return ()
    return element("polyline", element("title", name) if name else (), points=" ".join(points), class_=style)


@dataclass(frozen=True, slots=True)
class LinePanel:
    """One chart of lines, of which hollow ones are dashed: a title for readers of the page, a heading in few words."""

    title: str
    heading: str
    lines: Sequence[Series]


def line_charts(description: str, places: Sequence[str], axis_name: str, panels: Sequence[LinePanel]) -> Markup:
    """Draw lines through estimates with their intervals, on an upright axis from 0 to 100%; two charts side by side.

    The places on the level axis lie at equal distances; the description is for readers of the page.
    """

    def draw(layout: Layout) -> Child:
        own = HALF if len(panels) > 1 and not layout.is_narrow else layout
        charts = [_lines(panel, description, places, axis_name, own) for panel in panels]
        return element("div", charts, class_="pairs") if own is HALF else charts

    return for_all_pages(draw)


def _lines(panel: LinePanel, description: str, places: Sequence[str], axis_name: str, layout: Layout) -> Markup:
    left, right, top, bottom = 44.0, 20.0, 30.0, 44.0
    width, tall = layout.width - left - right, HEIGHT - top - bottom
    column = width / len(places)

    def y(share: float) -> float:
        return top + tall * (1.0 - min(max(share, 0.0), 1.0))

    content: list[Child] = [
        words(left, 14.0, panel.heading, "panel-heading"),
        upright_axis(left, layout.width - right, y),
    ]
    every = max(1, math.ceil(28.0 / column))
    for number, place in list(enumerate(places))[::every]:
        name = shortened(place, max(column / CHARACTER_WIDTH * every, 3.0))
        content.append(words(left + column * (number + 0.5), HEIGHT - bottom + 18.0, name, "tick", "middle", place))
    content.append(words(left + width / 2.0, HEIGHT - 6.0, axis_name, "tick", "middle"))
    for number, line in enumerate(panel.lines):
        # Lines lie a little beside each other, so that their intervals do not hide one another.
        shift = (number - (len(panel.lines) - 1) / 2.0) * min(7.0, column * 0.5 / len(panel.lines))
        xs = [left + column * (place + 0.5) + shift for place in range(len(places))]
        style = f"line {line.style}" + " dashed" * line.hollow
        content.append(_polyline(xs, [estimate.value for estimate in line.estimates], y, style))
        for x, estimate in zip(xs, line.estimates, strict=True):
            content += _estimate(estimate, x, y, line.style + " hollow" * line.hollow, line.name)
    return figure(layout.width, HEIGHT, panel.title, description, content)


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

    `places` ascend along the axis and are written by `label`; that of the standard setting is marked.
    """
    first, span = places[0], places[-1] - places[0]
    room = PANEL_WIDTH - LEFT - RIGHT

    def x(place: float) -> float:
        return LEFT + 8.0 + (room - 16.0) * ((place - first) / span if span else 0.5)

    xs, names = [x(place) for place in places], [label(place) for place in places]
    content = _panel_frame(heading)
    free_from = -math.inf
    for place, name in zip(xs, names, strict=True):
        if place >= free_from:
            content.append(_below(place, name))
            free_from = place + max(TICK_ROOM, CHARACTER_WIDTH * len(name) + 4.0)
    content.append(upright_line(x(standard), TOP, PANEL_HEIGHT - BOTTOM, "standard"))
    content.append(words(LEFT + room / 2.0, PANEL_HEIGHT - 5.0, axis_name, "tick", "middle"))
    for other in others:
        content.append(_polyline(xs, [estimate.value for estimate in other.estimates], _y, "curve other"))
    for level in levels:
        content.append(_polyline(xs, level.values, _y, f"curve {level.style}", level.name))
        if len(places) == 1:
            content.append(_exact(xs[0], 10.0, level, 0))
    values = [estimate.value for estimate in series.estimates]
    content.append(_polyline(xs, values, _y, f"curve line {series.style}"))
    for number, place in enumerate(xs):
        content += _marks(series, number, place, names[number])
    described = ", ".join(
        f"{name}: {_estimate_text(estimate)}" for name, estimate in zip(names, series.estimates, strict=True)
    )
    return figure(PANEL_WIDTH, PANEL_HEIGHT, f"{heading}: success by {axis_name}", described, content)


def group_panel(
    heading: str, groups: Sequence[str], levels: Sequence[Level], series: Sequence[Series], summary: str
) -> Markup:
    """Draw groups of dots side by side, each with the references of its group as ticks across it.

    References and series have one value for each group; `summary` says what the chart shows to readers of the page.
    """
    width = (PANEL_WIDTH - LEFT - RIGHT) / len(groups)
    middles = [LEFT + width * (number + 0.5) for number in range(len(groups))]
    content = _panel_frame(heading)
    for x, group in zip(middles, groups, strict=True):
        content.append(_below(x, shortened(group, width / CHARACTER_WIDTH + 1.0)))
    for level in levels:
        content += [_exact(middle, width / 2.0 - 3.0, level, number) for number, middle in enumerate(middles)]
    step = min(13.0, (width - 12.0) / max(len(series), 1))
    for place, one in enumerate(series):
        shift = step * (place - (len(series) - 1) / 2.0)
        for number, middle in enumerate(middles):
            content += _marks(one, number, middle + shift, groups[number])
    return figure(PANEL_WIDTH, PANEL_HEIGHT, heading, summary, content)


def _y(share: float) -> float:
    return TOP + (PANEL_HEIGHT - TOP - BOTTOM) * (1.0 - min(max(share, 0.0), 1.0))


def _panel_frame(heading: str) -> list[Child]:
    name = tail(heading, (PANEL_WIDTH - 4.0) / NAME_WIDTH)
    axis = upright_axis(LEFT, PANEL_WIDTH - RIGHT, _y, gap=6.0)
    return [words(2.0, 13.0, name, "policy", tooltip=heading), axis]


def _below(x: float, name: str) -> Markup:
    return words(x, PANEL_HEIGHT - BOTTOM + 17.0, name, "tick", "middle")


def _exact(middle: float, half: float, level: Level, number: int) -> Child:
    value = level.values[number]
    if math.isnan(value):
        return ()
    tooltip = f"{level.name}: {format_percent(value)}%"
    return level_line(middle - half, middle + half, _y(value), f"curve {level.style}", tooltip)


def _marks(series: Series, number: int, x: float, where: str) -> list[Child]:
    parts: list[Child] = []
    if series.raw and not math.isnan(series.raw[number].value):
        raw = series.raw[number]
        parts.append(dot(x, _y(raw.value), "raw-dot", f"{series.name}, {where}, raw: {_estimate_text(raw)}", 2.2))
    style = series.style + " hollow" * series.hollow
    return parts + _estimate(series.estimates[number], x, _y, style, f"{series.name}, {where}")


def trace_chart(record: EpisodeRecord, most_steps: int) -> Markup:
    """Draw the chance of success under best play after each message: steps down in red are regret, the rest is luck."""
    steps = record["steps"][:most_steps]
    width, height, left, top, bottom = WIDE.width, 170.0, 44.0, 14.0, 26.0
    column = (width - left - 8.0) / max(len(steps) + 1, 8)
    bar = min(16.0, column * 0.4)

    def y(value: float) -> float:
        return top + (height - top - bottom) * (1.0 - value)

    def change(x: float, start: float, end: float, style: str, tooltip: str) -> Markup:
        return box(x - bar / 2.0, min(y(start), y(end)), bar, abs(y(end) - y(start)), style, tooltip)

    x = left + column * 0.5
    content: list[Child] = [
        upright_axis(left, width - 8.0, y, (0.0, 0.5, 1.0)),
        words(x, height - 8.0, "start", "tick", "middle"),
        dot(x, y(record["optimum"]), "dot trace", radius=4.0),
    ]
    for number, step in enumerate(steps, start=1):
        before, x = x, left + column * (number + 0.5)
        value, action_value, luck = step["value"], step["action_value"], step["luck"]
        content.append(level_line(before, x, y(value), "trace-level"))
        if step["regret"] > 0.0005:
            text = f"turn {step['turn']}: regret {signed_points(step['regret'])} points"
            content.append(change(x, value, action_value, "regret", text))
        if abs(luck) > 0.0005:
            text = f"turn {step['turn']}: luck {signed_points(luck)} points"
            style = "good-luck" if luck > 0 else "bad-luck"
            content.append(change(x, action_value, action_value + luck, style, text))
        content.append(dot(x, y(action_value + luck), "dot trace", radius=4.0))
        content.append(words(x, height - 8.0, str(step["turn"]), "tick", "middle"))
    return figure(
        width,
        height,
        f"Chance of success during one episode of {record['policy']}",
        say("trace_chart"),
        content,
    )
