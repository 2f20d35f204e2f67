"""The charts of the report as inline SVG, drawn by small functions from plain numbers.

Every chart has a title and a description for those who cannot see it; sections put a table with the same numbers beside
it. Colours are CSS classes, so the page decides what they are in light and in dark.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from resilisim.evaluation.report.markup import Child, Markup, element
from resilisim.evaluation.statistics import Estimate
from resilisim.evaluation.summary import format_interval, format_percent
from resilisim.provenance import content_hash

CHART_WIDTH = 1040.0
LABEL_WIDTH = 236.0
ROW_HEIGHT = 27.0
AXIS_HEIGHT = 30.0
CHARACTER_WIDTH = 6.6  # of the 12.5 pixel text, on average
HEADING_CHARACTER_WIDTH = 7.8


@dataclass(frozen=True, slots=True)
class RowLabel:
    """What stands left of a row: the policy, and the prompt type where a run has several.

    Attributes:
        policy: Name of the policy; empty where it repeats the row above.
        prompt_type: Prompt type, or empty.
        privileged: Whether the policy saw the state.
        full_name: Both, for tooltips and readers of the page.
    """

    policy: str
    prompt_type: str
    privileged: bool
    full_name: str


@dataclass(frozen=True, slots=True)
class Mark:
    """An estimate drawn as a dot with its interval.

    Attributes:
        estimate: The number and its interval.
        style: CSS class of the mark ("raw", "adjusted", "privileged").
        name: What it is, for the tooltip.
    """

    estimate: Estimate
    style: str
    name: str


@dataclass(frozen=True, slots=True)
class Segment:
    """A part of a stacked bar: a CSS class, its size as a share, and what it is."""

    style: str
    size: float
    name: str


def figure(width: float, height: float, title: str, description: str, *content: Child) -> Markup:
    """Return an SVG image that scales with the page and says what it shows."""
    name = f"chart-{content_hash([title, description])[:10]}"
    return element(
        "svg",
        element("title", title, id=f"{name}-title"),
        element("desc", description, id=f"{name}-desc"),
        content,
        class_="chart",
        viewBox=f"0 0 {width:.0f} {height:.0f}",
        role="img",
        aria_labelledby=f"{name}-title {name}-desc",
        xmlns="http://www.w3.org/2000/svg",
    )


def dot_chart(
    title: str,
    description: str,
    labels: Sequence[RowLabel],
    panels: Sequence[tuple[str, Sequence[Sequence[Mark]], Sequence[float]]],
    num_columns: int = 1,
) -> Markup:
    """Draw rows of dots with intervals on an axis from 0 to 100%, in one panel or several beside each other.

    Args:
        title: For readers of the page.
        description: For readers of the page.
        labels: One per row.
        panels: For each panel its heading, the marks of each row (one below the other where there are several) and the
            ceiling V* of each row (NaN draws none).
        num_columns: Panels that fit beside each other; charts of one series share it, so that their panels are alike.
    """
    gap = 34.0
    num_columns = max(num_columns, len(panels))
    panel_width = (CHART_WIDTH - LABEL_WIDTH - 18.0 - gap * (num_columns - 1)) / num_columns
    headings = [_wrapped(heading, panel_width / HEADING_CHARACTER_WIDTH) for heading, _, _ in panels]
    top = AXIS_HEIGHT + 16.0 * max((len(lines) for lines in headings if lines != [""]), default=0)
    most_marks = max((len(marks) for _, rows, _ in panels for marks in rows), default=1)
    row_height = ROW_HEIGHT + 11.0 * (most_marks - 1)
    height = top + row_height * len(labels) + 8.0
    content: list[Child] = [_row_labels(labels, top, row_height)]
    for number, (_, rows, ceilings) in enumerate(panels):
        left = LABEL_WIDTH + number * (panel_width + gap)
        content.append(_panel_heading(headings[number], left))
        content.append(_axis(left, panel_width, top, height - 8.0, 1.0, 0.25 if panel_width < 400 else 0.1))
        for row, (marks, ceiling) in enumerate(zip(rows, ceilings, strict=True)):
            middle = top + row_height * (row + 0.5)
            content.append(_dot_row(left, panel_width, middle, row_height, marks, ceiling))
    return figure(CHART_WIDTH, height, title, description, content)


def stacked_chart(
    title: str,
    description: str,
    labels: Sequence[RowLabel],
    bars: Sequence[Sequence[Segment]],
    luck: Sequence[Estimate],
) -> Markup:
    """Draw one stacked bar of lost points per row, and beside it the row's luck, which may have either sign."""
    luck_width, luck_gap = 170.0, 46.0
    width = CHART_WIDTH - LABEL_WIDTH - luck_width - luck_gap - 12.0
    top = AXIS_HEIGHT + 16.0
    height = top + ROW_HEIGHT * len(labels) + 8.0
    longest = max((sum(segment.size for segment in bar) for bar in bars), default=0.0)
    span = max(0.1, math.ceil(longest * 10.0 - 1e-9) / 10.0)
    step = 0.1 if span > 0.3 else 0.05
    luck_left = LABEL_WIDTH + width + luck_gap
    largest = max((abs(bound) for e in luck for bound in (e.value, e.low, e.high) if math.isfinite(bound)), default=0.0)
    luck_span = max(0.05, math.ceil(largest * 20.0 - 1e-9) / 20.0)
    content: list[Child] = [
        _row_labels(labels, top, ROW_HEIGHT),
        _panel_heading(["points lost of 100, luck apart"], LABEL_WIDTH),
        _panel_heading(["won or lost by luck"], luck_left),
        _axis(LABEL_WIDTH, width, top, height - 8.0, span, step, percent=False),
        _luck_axis(luck_left, luck_width, top, height - 8.0, luck_span),
    ]
    for row, (bar, estimate) in enumerate(zip(bars, luck, strict=True)):
        middle = top + ROW_HEIGHT * (row + 0.5)
        content.append(_bar(LABEL_WIDTH, width / span, middle, bar))
        content.append(_luck_bar(luck_left + luck_width / 2.0, luck_width / 2.0 / luck_span, middle, estimate))
    return figure(CHART_WIDTH, height, title, description, content)


def _row_labels(labels: Sequence[RowLabel], top: float, row_height: float) -> Markup:
    several_prompts = any(label.prompt_type for label in labels)
    parts: list[Child] = []
    for row, label in enumerate(labels):
        middle = top + row_height * (row + 0.5)
        if row > 0 and label.policy and several_prompts:
            edge = top + row_height * row
            parts.append(element("line", x1=0, x2=CHART_WIDTH, y1=edge, y2=edge, class_="row-rule"))
        room = 128.0 if several_prompts else 226.0
        name = f"{label.policy} *" if label.privileged and label.policy else label.policy
        parts.append(
            element(
                "text",
                element("title", label.full_name),
                _tail(name, room / CHARACTER_WIDTH),
                x=0,
                y=middle + 4.0,
                class_="policy",
            )
        )
        if several_prompts:
            text = _shortened(label.prompt_type, 90.0 / CHARACTER_WIDTH)
            parts.append(
                element("text", text, x=LABEL_WIDTH - 14.0, y=middle + 4.0, class_="prompt", text_anchor="end")
            )
    return element("g", parts)


def _panel_heading(lines: Sequence[str], left: float) -> Markup:
    return element(
        "g",
        [
            element("text", line, x=left, y=12.0 + 16.0 * number, class_="panel-heading")
            for number, line in enumerate(lines)
        ],
    )


def _axis(
    left: float, width: float, top: float, bottom: float, span: float, step: float, percent: bool = True
) -> Markup:
    parts: list[Child] = []
    for number in range(round(span / step) + 1):
        x = left + width * number * step / span
        parts.append(element("line", x1=x, x2=x, y1=top, y2=bottom, class_="zero" if number == 0 else "grid"))
        if round(number * step * 100) % 5 == 0 and (step != 0.1 or number % 2 == 0 or span <= 0.6):
            text = f"{number * step * 100:.0f}" + ("%" if percent else "")
            parts.append(element("text", text, x=x, y=top - 7.0, class_="tick", text_anchor="middle"))
    return element("g", parts)


def _luck_axis(left: float, width: float, top: float, bottom: float, span: float) -> Markup:
    parts: list[Child] = []
    for share in (-1.0, 0.0, 1.0):
        x = left + width / 2.0 * (1.0 + share)
        text = f"{'+' if share > 0 else '−' if share < 0 else ''}{abs(share) * span * 100:.0f}"
        parts.append(element("line", x1=x, x2=x, y1=top, y2=bottom, class_="grid" if share else "zero"))
        parts.append(element("text", text, x=x, y=top - 7.0, class_="tick", text_anchor="middle"))
    return element("g", parts)


def _dot_row(
    left: float, width: float, middle: float, row_height: float, marks: Sequence[Mark], ceiling: float
) -> Markup:
    parts: list[Child] = []
    if not math.isnan(ceiling):
        x = left + width * ceiling
        half = row_height / 2.0 - 4.0
        tick = element("title", f"ceiling V*: {format_percent(ceiling)}%")
        parts.append(element("line", tick, x1=x, x2=x, y1=middle - half, y2=middle + half, class_="ceiling"))
    for number, mark in enumerate(marks):
        estimate = mark.estimate
        if math.isnan(estimate.value):
            continue
        y = middle + 11.0 * (number - (len(marks) - 1) / 2.0)
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


def _bar(left: float, scale: float, middle: float, segments: Sequence[Segment]) -> Markup:
    parts: list[Child] = []
    x = left
    for segment in segments:
        size = segment.size * scale
        text = format_percent(segment.size)
        tooltip = element("title", f"{segment.name}: {text} points")
        parts.append(
            element("rect", tooltip, x=x, y=middle - 9.0, width=size, height=18.0, class_=f"bar {segment.style}")
        )
        if size > 32.0:
            parts.append(
                element(
                    "text",
                    text,
                    x=x + size / 2.0,
                    y=middle + 4.0,
                    class_=f"on-bar on-{segment.style}",
                    text_anchor="middle",
                )
            )
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


def _wrapped(text: str, characters: float) -> list[str]:
    lines = [""]
    for word in text.replace("_", " ").split():
        candidate = f"{lines[-1]} {word}".strip()
        if len(candidate) <= characters or not lines[-1]:
            lines[-1] = candidate
        else:
            lines.append(word)
    return [_shortened(line, characters) for line in lines[:3]]


def _shortened(text: str, characters: float) -> str:
    return text if len(text) <= characters else text[: max(1, int(characters) - 1)] + "…"


def _tail(text: str, characters: float) -> str:
    """Shorten a name from its beginning: of `package.module:Class` the end tells most."""
    return text if len(text) <= characters else "…" + text[-max(1, int(characters) - 1) :]
