"""What all charts share: images that say what they show, layouts for wide and narrow pages, row labels, axes.

Every chart has a title and a description for those who cannot see it; sections put a table with the same numbers beside
it. Colours are CSS classes, so the page decides what they are in light and in dark.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from resilisim.evaluation.report.markup import Child, Markup, element
from resilisim.provenance import content_hash

AXIS_HEIGHT = 30.0
CHARACTER_WIDTH = 6.6  # of the 12.5 pixel text, on average
NAME_WIDTH = 7.8  # of its bold form
HEADING_CHARACTER_WIDTH = 7.8
LABEL_GAP = 16.0
LEAST_LABEL_WIDTH, MOST_LABEL_WIDTH, MOST_PROMPT_WIDTH = 130.0, 380.0, 220.0
TICK_WIDTH = 46.0  # what a tick's number needs
NUM_SERIES = 8  # colours of series that lie in one chart


@dataclass(frozen=True, slots=True)
class Layout:
    """How a chart makes use of its page.

    Attributes:
        width: Width in pixels of the text's own size.
        label_width: Room for the labels of rows at the left; 0 where labels stand above their rows.
        label_height: Room for a label above its row; 0 where it stands at the left.
        prompt_width: How much of the room for a label its prompt type may take.
    """

    width: float
    label_width: float
    label_height: float
    prompt_width: float

    @property
    def is_narrow(self) -> bool:
        """Whether labels stand above their rows."""
        return self.label_height > 0.0


WIDE = Layout(1040.0, 262.0, 0.0, 110.0)
NARROW = Layout(350.0, 0.0, 17.0, 170.0)
HALF = Layout(506.0, 0.0, 0.0, 0.0)
CHART_WIDTH = WIDE.width


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


def figure(width: float, height: float, title: str, description: str, *content: Child) -> Markup:
    """Return an SVG image that scales with the page and says what it shows."""
    name = f"chart-{content_hash([title, description, width])[:10]}"
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


def for_all_pages(draw: Callable[[Layout], Child], labels: Sequence[RowLabel] = ()) -> Markup:
    """Return a chart in two layouts, of which the page shows the one that fits it.

    Args:
        draw: Draws the chart in a layout.
        labels: Labels of its rows, which decide how much room they get.
    """
    wide, narrow = draw(_fitted(WIDE, labels)), draw(NARROW)
    return Markup(element("div", wide, class_="wide-page") + element("div", narrow, class_="narrow-page"))


def _fitted(layout: Layout, labels: Sequence[RowLabel]) -> Layout:
    """Return a layout with room for labels, within reason."""
    policy = max((len(label.policy) + 2 * label.privileged for label in labels), default=0) * NAME_WIDTH
    prompt = min(max((len(label.prompt_type) for label in labels), default=0) * CHARACTER_WIDTH, MOST_PROMPT_WIDTH)
    width = policy + prompt + LABEL_GAP * (2 if prompt else 1) + 1.0
    return replace(layout, label_width=min(max(width, LEAST_LABEL_WIDTH), MOST_LABEL_WIDTH), prompt_width=prompt)


def row_labels(labels: Sequence[RowLabel], layout: Layout, top: float, row_height: float) -> Markup:
    """Draw the labels of rows that begin at `top` and are all `row_height` high."""
    draw = _label_above if layout.is_narrow else _label_beside
    several_prompts = any(label.prompt_type for label in labels)
    parts: list[Child] = []
    for row, label in enumerate(labels):
        edge = top + row_height * row
        if row > 0 and label.policy and several_prompts:
            parts.append(element("line", x1=0, x2=layout.width, y1=edge, y2=edge, class_="row-rule"))
        parts.append(draw(label, layout, edge, row_height, several_prompts))
    return element("g", parts)


def _label_beside(label: RowLabel, layout: Layout, edge: float, row_height: float, several_prompts: bool) -> Child:
    y = edge + row_height / 2.0 + 4.0
    room = layout.label_width - LABEL_GAP - (layout.prompt_width + LABEL_GAP if several_prompts else 0.0)
    name = f"{label.policy} *" if label.privileged and label.policy else label.policy
    title = element("title", label.full_name)
    parts = [element("text", title, tail(name, room / NAME_WIDTH), x=0, y=y, class_="policy")]
    if label.prompt_type:
        text = tail(label.prompt_type, layout.prompt_width / CHARACTER_WIDTH + 0.5)
        parts.append(element("text", text, x=layout.label_width - 14.0, y=y, class_="prompt", text_anchor="end"))
    return parts


def _label_above(label: RowLabel, layout: Layout, edge: float, row_height: float, several_prompts: bool) -> Child:
    y = edge + 13.0
    name = f"{label.policy} *" if label.privileged and label.policy else label.policy
    parts: list[Child] = []
    if name:
        room = layout.width - LABEL_GAP - min(layout.prompt_width, len(label.prompt_type) * CHARACTER_WIDTH)
        text = tail(name, room / NAME_WIDTH)
        parts.append(element("text", element("title", label.full_name), text, x=0, y=y, class_="policy"))
    if label.prompt_type:
        text = tail(label.prompt_type, layout.prompt_width / CHARACTER_WIDTH)
        parts.append(element("text", text, x=layout.width, y=y, class_="prompt", text_anchor="end"))
    return parts


def panel_heading(lines: Sequence[str], left: float) -> Markup:
    """Draw the heading of a panel, one line under the other."""
    return element(
        "g",
        [
            element("text", line, x=left, y=12.0 + 16.0 * number, class_="panel-heading")
            for number, line in enumerate(lines)
        ],
    )


def share_axis(
    left: float, width: float, top: float, bottom: float, span: float, step: float, percent: bool = True
) -> Markup:
    """Draw an axis of shares from 0 to `span` with its grid."""
    parts: list[Child] = []
    is_tight = width * step / span < TICK_WIDTH  # then every second tick has its number
    for number in range(round(span / step) + 1):
        x = left + width * number * step / span
        parts.append(element("line", x1=x, x2=x, y1=top, y2=bottom, class_="zero" if number == 0 else "grid"))
        if number % 2 == 0 or not is_tight:
            text = f"{number * step * 100:.0f}" + ("%" if percent else "")
            at_end = number * step >= span - 1e-9 and x + 18.0 > left + width and span >= 1.0
            anchor = "end" if at_end else "start" if number == 0 else "middle"
            parts.append(element("text", text, x=x, y=top - 7.0, class_="tick", text_anchor=anchor))
    return element("g", parts)


def points_axis(left: float, width: float, top: float, bottom: float, span: float, marks: int = 1) -> Markup:
    """Draw an axis of points of either sign from -span to +span with `marks` lines on each side of 0."""
    parts: list[Child] = []
    for number in range(-marks, marks + 1):
        share = number / marks
        x = left + width / 2.0 * (1.0 + share)
        text = f"{'+' if share > 0 else '−' if share < 0 else ''}{abs(share) * span * 100:.3g}"
        parts.append(element("line", x1=x, x2=x, y1=top, y2=bottom, class_="grid" if number else "zero"))
        parts.append(element("text", text, x=x, y=top - 7.0, class_="tick", text_anchor="middle"))
    return element("g", parts)


def nice_step(span: float, most: int = 5) -> float:
    """Return a round distance of at most `most` ticks over a span (1, 2 or 5 times a power of ten)."""
    if span <= 0.0:
        return 1.0
    rough = span / most
    power = 10.0 ** math.floor(math.log10(rough))
    return next(factor * power for factor in (1.0, 2.0, 5.0, 10.0) if factor * power >= rough * (1.0 - 1e-9))


def series_style(number: int) -> str:
    """Return the CSS class of the n-th series of a chart."""
    return f"series-{number % NUM_SERIES}"


def wrapped(text: str, characters: float) -> list[str]:
    """Return a text in at most three lines."""
    lines = [""]
    for word in text.replace("_", " ").split():
        candidate = f"{lines[-1]} {word}".strip()
        if len(candidate) <= characters or not lines[-1]:
            lines[-1] = candidate
        else:
            lines.append(word)
    return [shortened(line, characters) for line in lines[:3]]


def shortened(text: str, characters: float) -> str:
    """Return a text cut at its end."""
    return text if len(text) <= characters else text[: max(1, int(characters) - 1)] + "…"


def tail(text: str, characters: float) -> str:
    """Return a name cut at its beginning: of `package.module:Class` the end tells most."""
    return text if len(text) <= characters else "…" + text[-max(1, int(characters) - 1) :]
