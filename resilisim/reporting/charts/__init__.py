"""Charts as values: shapes with their places in pixels, which `templates/charts.html` writes as SVG.

Every chart has a title and a description for those who cannot see it; sections put a table with the same numbers beside
it. Colours are CSS classes, so the page decides what they are in light and in dark.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from markupsafe import Markup

from resilisim.provenance import content_hash
from resilisim.reporting import page
from resilisim.statistics import Estimate
from resilisim.tables.numbers import interval_text, percent

CHARACTER_WIDTH = 6.6  # of the 12.5 pixel text, on average
NAME_WIDTH = 7.8  # of its bold form, and of headings
LABEL_GAP = 16.0
LEAST_LABEL_WIDTH, MOST_LABEL_WIDTH, MOST_PROMPT_WIDTH = 130.0, 380.0, 220.0
TICK_WIDTH = 46.0  # what a tick's number needs
NUM_SERIES = 8  # colours of series that lie in one chart


class Shape(NamedTuple):
    """An element of an image, what it says when one points at it, and its text, the end of which may be fainter."""

    name: str
    attributes: Mapping[str, str | float]
    tooltip: str = ""
    text: str = ""
    detail: str = ""


def line(x1: float, y1: float, x2: float, y2: float, style: str, tooltip: str = "") -> Shape:
    """Draw a straight line."""
    return Shape("line", {"x1": x1, "y1": y1, "x2": x2, "y2": y2, "class": style}, tooltip)


def line_through(xs: Iterable[float], ys: Iterable[float], style: str, tooltip: str = "") -> list[Shape]:
    """Draw a line through the points that there are (NaN is none), if they are at least two."""
    points = [f"{x:.1f},{y:.1f}" for x, y in zip(xs, ys, strict=True) if not math.isnan(y)]
    if len(points) < 2:
        return []
    return [Shape("polyline", {"points": " ".join(points), "class": style}, tooltip)]


def dot(x: float, y: float, style: str, tooltip: str = "", radius: float = 4.5) -> Shape:
    """Draw a dot."""
    return Shape("circle", {"cx": x, "cy": y, "r": radius, "class": style}, tooltip)


def box(x: float, y: float, width: float, height: float, style: str, tooltip: str = "") -> Shape:
    """Draw a part of a bar."""
    place = {"x": x, "y": y, "width": width, "height": height}
    return Shape("rect", {**place, "class": f"bar {style}"}, tooltip)


def words(x: float, y: float, text: str, style: str, anchor: str = "start", tooltip: str = "") -> Shape:
    """Write a text; the anchor says which of its ends (or its "middle") stands there."""
    return Shape("text", {"x": x, "y": y, "class": style, "text-anchor": anchor}, tooltip, text)


class Tick(NamedTuple):
    """A value with a line across an axis, its number (none where it has no room) and how that is aligned."""

    value: float
    text: str
    anchor: str = "middle"


@dataclass(frozen=True, slots=True)
class Axis:
    """An axis: its values lie on `length` pixels from `start` on, upwards if that is negative, and end at its ends."""

    start: float
    length: float
    high: float = 1.0
    low: float = 0.0

    @property
    def end(self) -> float:
        """Where the highest value lies."""
        return self.start + self.length

    def at(self, value: float) -> float:
        """Return where a value lies; what is beyond an end lies there."""
        inside = value if math.isnan(value) else min(max(value, self.low), self.high)
        return self.start + self.length * (inside - self.low) / (self.high - self.low)

    def line(self, values: tuple[float, float], across: tuple[float, float], style: str, tooltip: str = "") -> Shape:
        """Draw a line from one value to another, at two distances across the axis."""
        (first, last), (near, other) = map(self.at, values), across
        ends = (first, near, last, other) if self.length > 0.0 else (near, first, other, last)
        return line(*ends, style, tooltip)

    def exact(self, value: float, across: float, half: float, style: str, name: str) -> list[Shape]:
        """Draw a number without uncertainty as a tick that reaches half as far to both sides; of NaN nothing."""
        ends = (across - half, across + half)
        tooltip = f"{name}: {percent(value)}%"
        return [] if math.isnan(value) else [self.line((value, value), ends, style, tooltip)]

    def estimate(
        self, estimate: Estimate, across: float, style: str, tooltip: str, radius: float = 4.5
    ) -> Iterator[Shape]:
        """Draw an estimate as a dot with its interval; of none nothing."""
        if not math.isnan(estimate.low):
            ends = (estimate.low, estimate.high)
            yield self.line(ends, (across, across), f"interval {style.removesuffix(' hollow')}")
        if not math.isnan(estimate.value):
            x, y = (self.at(estimate.value), across) if self.length > 0.0 else (across, self.at(estimate.value))
            yield dot(x, y, f"dot {style}", tooltip, radius)

    def grid(self, ticks: Iterable[Tick], first: float, last: float) -> Iterator[Shape]:
        """Draw the grid of an axis between two distances across it, with its numbers before the first."""
        for value, text, anchor in ticks:
            yield self.line((value, value), (first, last), "grid" if value else "zero")
            if text and self.length > 0.0:
                yield words(self.at(value), first - 7.0, text, "tick", anchor)
            elif text:
                yield words(first - 7.0, self.at(value) + 4.0, text, "tick", "end")


def estimate_text(estimate: Estimate) -> str:
    """Return an estimate in percent with its interval, for a tooltip."""
    return f"{percent(estimate.value)}% {interval_text(estimate)}"


def share_ticks(axis: Axis, step: float, unit: str = "%") -> list[Tick]:
    """Return the ticks of shares from 0 on; where they are close, every second one has its number."""
    is_tight = abs(axis.length) * step / axis.high < TICK_WIDTH
    ticks = []
    for number in range(round(axis.high / step) + 1):
        value = number * step
        is_last = value >= axis.high - 1e-9 and axis.high >= 1.0
        text = "" if is_tight and number % 2 else f"{value * 100:.0f}{unit}"
        ticks.append(Tick(value, text, "end" if is_last else "middle" if number else "start"))
    return ticks


def nice_step(span: float, most: int) -> float:
    """Return a round distance of at most `most` ticks over a span (1, 2 or 5 times a power of ten)."""
    if span <= 0.0:
        return 1.0
    rough = span / most
    power = 10.0 ** math.floor(math.log10(rough))
    return next(factor * power for factor in (1.0, 2.0, 5.0, 10.0) if factor * power >= rough * (1.0 - 1e-9))


class Figure(NamedTuple):
    """An image: its size, what it shows in words, and its shapes."""

    width: float
    height: float
    title: str
    description: str
    shapes: Sequence[Shape]

    @property
    def name(self) -> str:
        """What it is called within the page."""
        return f"chart-{content_hash([self.title, self.description, self.width])[:10]}"


@dataclass(frozen=True, slots=True)
class Layout:
    """How a chart makes use of its page, in pixels of the text's own size."""

    width: float
    label_width: float  # room for the labels of rows at the left; 0 where they stand above their rows
    label_height: float  # room for a label above its row; 0 where it stands at the left
    prompt_width: float  # how much of the room for a label its prompt type may take

    @property
    def is_narrow(self) -> bool:
        """Whether labels stand above their rows."""
        return self.label_height > 0.0


WIDE = Layout(1040.0, 262.0, 0.0, 110.0)
NARROW = Layout(350.0, 0.0, 17.0, 170.0)


class RowLabel(NamedTuple):
    """What stands left of a row: the policy, and the prompt type where a run has several."""

    policy: str  # empty where it repeats the row above
    prompt_type: str
    privileged: bool
    full_name: str  # both, for tooltips and readers of the page

    @property
    def name(self) -> str:
        """The policy, with a star if it is privileged."""
        return f"{self.policy} *" if self.privileged and self.policy else self.policy


def row_labels(names: Iterable[tuple[str, str]]) -> list[RowLabel]:
    """Return labels of policies and prompt types (empty where a run has one), none of them privileged."""
    labels: list[RowLabel] = []
    previous = None
    for policy, prompt in names:
        labels.append(RowLabel("" if policy == previous else policy, prompt, False, f"{policy} {prompt}".strip()))
        previous = policy
    return labels


def for_all_pages(draw: Callable[[Layout], Sequence[Figure]], labels: Sequence[RowLabel] = ()) -> Markup:
    """Return charts in two layouts, of which the page shows the one that fits it.

    The labels of their rows decide how much room they get.
    """
    policy = max((len(label.policy) + 2 * label.privileged for label in labels), default=0) * NAME_WIDTH
    prompt = max((len(label.prompt_type) for label in labels), default=0) * CHARACTER_WIDTH
    prompt = min(prompt, MOST_PROMPT_WIDTH)
    width = policy + prompt + LABEL_GAP * (2 if prompt else 1) + 1.0
    fitted = min(max(width, LEAST_LABEL_WIDTH), MOST_LABEL_WIDTH)
    wide = draw(replace(WIDE, label_width=fitted, prompt_width=prompt))
    return page.draw("for_all_pages", wide, draw(NARROW))


def shortened(text: str, characters: float) -> str:
    """Return a text cut at its end."""
    return text if len(text) <= characters else text[: max(1, int(characters) - 1)] + "…"


def tail(text: str, characters: float) -> str:
    """Return a name cut at its beginning: of `package.module:Class` the end tells most."""
    return text if len(text) <= characters else "…" + text[-max(1, int(characters) - 1) :]


class Entry(NamedTuple):
    """An entry of a key: the symbol, what it means, and a tooltip.

    Symbols are "square" (a part of a bar), "dot" (an estimate with its interval), "raw" (one without), "tick" (an exact
    number among rows) and "line".
    """

    symbol: str
    style: str
    meaning: str
    tooltip: str = ""


def legend(*entries: Entry) -> Markup:
    """Return the key of a chart."""
    return page.draw("legend", entries)


def series_style(number: int) -> str:
    """Return the CSS class of the n-th series of a chart."""
    return f"series-{number % NUM_SERIES}"


def series_entries(symbol: str, names: Iterable[str]) -> list[Entry]:
    """Return the entries of a key that has a colour for each name."""
    return [Entry(symbol, series_style(number), name) for number, name in enumerate(names)]
