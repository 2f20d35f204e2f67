"""Charts with an upright axis of shares: over tries or models, along the axes of a profile, and during one episode."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from markupsafe import Markup

from resilisim.evaluation.episode.record import EpisodeRecord
from resilisim.reporting.charts import (
    CHARACTER_WIDTH,
    NAME_WIDTH,
    WIDE,
    Axis,
    Figure,
    Layout,
    Shape,
    Tick,
    box,
    dot,
    estimate_text,
    for_all_pages,
    line,
    line_through,
    shortened,
    tail,
    words,
)
from resilisim.reporting.page import draw, say
from resilisim.statistics import Estimate
from resilisim.tables.numbers import signed_points

HALF_WIDTH = 506.0  # of a chart that has another one beside it
TICK_ROOM = 28.0  # least distance of two names below an axis
LONGEST_NAME = 40.0  # that is never cut, in pixels
GRID_SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)
SHOWN_CHANGE = 0.0005  # less than this prints as 0.0 points


class Series(NamedTuple):
    """Estimates at the places of an axis, to be drawn in one style."""

    name: str
    style: str  # CSS class ("series-0")
    estimates: Sequence[Estimate]  # one for each place; NaN leaves a place out
    raw: Sequence[Estimate] = ()  # from raw outcomes, drawn as small dots without intervals
    hollow: bool = False  # marks of privileged policies, or of the second of two kinds of a series: its line is dashed

    @property
    def values(self) -> list[float]:
        """The estimates without their intervals."""
        return [estimate.value for estimate in self.estimates]


class Level(NamedTuple):
    """A reference that is known exactly: its values at the places of an axis, a CSS class, and what it is."""

    values: Sequence[float]
    style: str
    name: str


@dataclass(frozen=True, slots=True)
class LinePanel:
    """A chart of shares at the places of a level axis: one of several that stand beside each other."""

    title: str  # for readers of the page
    heading: str  # in few words
    places: Sequence[str]  # what stands below the axis
    series: Sequence[Series]  # which lie a little beside each other
    description: str = ""  # for readers of the page; the numbers, if it is omitted
    axis_name: str = ""
    is_joined: bool = True  # whether a line goes through the values of a series or level
    levels: Sequence[Level] = ()
    behind: Sequence[Series] = ()  # drawn as faint lines
    numbers: Sequence[float] = ()  # where on the axis the places lie; at equal distances if omitted
    standard: float | None = None  # the number that is marked


@dataclass(frozen=True, slots=True)
class _Frame:
    """The size of a chart, its margins, and how far series may lie beside each other."""

    width: float
    height: float
    left: float
    right: float
    top: float
    bottom: float
    shift: float = 0.0  # in pixels
    most_shift: float = 0.0  # as a share of the room of a place

    @property
    def axis(self) -> Axis:
        """The axis of shares."""
        return Axis(self.height - self.bottom, self.top + self.bottom - self.height)

    @property
    def room(self) -> float:
        """How long the level axis is."""
        return self.width - self.left - self.right

    def grid(self, shares: Sequence[float] = GRID_SHARES) -> Iterator[Shape]:
        """Draw the grid of the axis of shares."""
        ticks = [Tick(share, f"{share * 100:.0f}%") for share in shares]
        return self.axis.grid(ticks, self.left, self.width - self.right)


_PANEL = _Frame(330.0, 232.0, 40.0, 10.0, 26.0, 40.0, 13.0, 0.8)


def panels(charts: Sequence[LinePanel]) -> Markup:
    """Draw small charts, as many beside each other as there is room for."""
    return draw("beside", [_figure(chart, _PANEL) for chart in charts], "panels")


def line_charts(charts: Sequence[LinePanel]) -> Markup:
    """Draw charts of lines, two side by side."""

    def figures(layout: Layout) -> list[Figure]:
        width = HALF_WIDTH if len(charts) > 1 and not layout.is_narrow else layout.width
        frame = _Frame(width, 280.0, 44.0, 20.0, 30.0, 44.0, 7.0, 0.5)
        return [_figure(chart, frame) for chart in charts]

    return for_all_pages(figures)


def _figure(panel: LinePanel, frame: _Frame) -> Figure:
    axis, bottom, column = frame.axis, frame.height - frame.bottom, frame.room / len(panel.places)
    xs = [frame.left + column * (place + 0.5) for place in range(len(panel.places))]
    if panel.numbers:
        xs = [_place(panel, number, frame) for number in panel.numbers]
    heading = tail(panel.heading, frame.room / NAME_WIDTH)
    shapes = [
        words(frame.left, 14.0, heading, "panel-heading", tooltip=panel.heading),
        *frame.grid(),
        *_names(panel.places, xs, max(column, LONGEST_NAME), bottom + 18.0),
    ]
    if panel.axis_name:
        shapes.append(words(frame.left + frame.room / 2.0, frame.height - 6.0, panel.axis_name, "tick", "middle"))
    if panel.standard is not None:
        x = _place(panel, panel.standard, frame)
        shapes.append(line(x, frame.top, x, bottom, "standard"))
    for one in panel.behind:
        shapes += line_through(xs, map(axis.at, one.values), "curve other")
    is_joined = panel.is_joined and len(xs) > 1
    for level in panel.levels:
        if is_joined:
            shapes += line_through(xs, map(axis.at, level.values), f"curve {level.style}", level.name)
            continue
        for x, value in zip(xs, level.values, strict=True):
            half = min(column / 2.0 - 3.0, 40.0)
            shapes += axis.exact(value, x, half, f"curve {level.style}", level.name)
    step = min(frame.shift, column * frame.most_shift / max(len(panel.series), 1))
    for number, one in enumerate(panel.series):
        shift = step * (number - (len(panel.series) - 1) / 2.0)
        own = [x + shift for x in xs]
        if is_joined:
            shapes += line_through(own, map(axis.at, one.values), f"line {one.style}" + " dashed" * one.hollow)
        for place, x in enumerate(own):
            shapes += _marks(one, place, axis, x, f"{one.name}, {panel.places[place]}")
    numbers = [
        f"{one.name}: " + ", ".join(map("{} {}".format, panel.places, map(estimate_text, one.estimates)))
        for one in panel.series
    ]
    return Figure(frame.width, frame.height, panel.title, panel.description or "; ".join(numbers), shapes)


def _place(panel: LinePanel, number: float, frame: _Frame) -> float:
    """Return where a number lies on the level axis."""
    first, last = panel.numbers[0], panel.numbers[-1]
    return frame.left + 8.0 + (frame.room - 16.0) * ((number - first) / (last - first) if last > first else 0.5)


def _names(names: Sequence[str], xs: Sequence[float], room: float, y: float) -> Iterator[Shape]:
    """Write the names of places below them, as far as they do not run into each other."""
    free_from = -math.inf
    for x, name in zip(xs, names, strict=True):
        text = shortened(name, room / CHARACTER_WIDTH)
        if x >= free_from:
            yield words(x, y, text, "tick", "middle", name if text != name else "")
            free_from = x + max(TICK_ROOM, CHARACTER_WIDTH * len(text))


def _marks(series: Series, place: int, axis: Axis, x: float, name: str) -> Iterator[Shape]:
    if series.raw and not math.isnan(series.raw[place].value):
        raw = series.raw[place]
        yield dot(x, axis.at(raw.value), "raw-dot", f"{name}, raw: {estimate_text(raw)}", 2.2)
    estimate = series.estimates[place]
    style = series.style + " hollow" * series.hollow
    yield from axis.estimate(estimate, x, style, f"{name}: {estimate_text(estimate)}", 4.0)


def trace_chart(record: EpisodeRecord, most_steps: int) -> Markup:
    """Draw the chance of success under best play after each message: steps down in red are regret, the rest is luck."""
    steps = record["steps"][:most_steps]
    frame = _Frame(WIDE.width, 170.0, 44.0, 8.0, 14.0, 26.0)
    axis, column = frame.axis, frame.room / max(len(steps) + 1, 8)
    bar = min(16.0, column * 0.4)

    def point(x: float, value: float, name: str) -> list[Shape]:
        text = words(x, frame.height - 8.0, name, "tick", "middle")
        return [dot(x, axis.at(value), "dot trace", radius=4.0), text]

    x = frame.left + column * 0.5
    shapes = [*frame.grid((0.0, 0.5, 1.0)), *point(x, record["optimum"], "start")]
    for step in steps:
        before, x = x, x + column
        value, action_value, regret, luck = (step[name] for name in ("value", "action_value", "regret", "luck"))
        shapes.append(axis.line((value, value), (before, x), "trace-level"))
        changes = (
            ("regret", regret, value, action_value, "regret"),
            ("luck", luck, action_value, action_value + luck, "good-luck" if luck > 0 else "bad-luck"),
        )
        for what, points, start, end, style in changes:
            if abs(points) > SHOWN_CHANGE:
                top, bottom = sorted(map(axis.at, (start, end)))
                tooltip = f"turn {step['turn']}: {what} {signed_points(points)} points"
                shapes.append(box(x - bar / 2.0, top, bar, bottom - top, style, tooltip))
        shapes += point(x, action_value + luck, str(step["turn"]))
    title = f"Chance of success during one episode of {record['policy']}"
    return draw("chart", Figure(frame.width, frame.height, title, say("trace_chart"), shapes))
