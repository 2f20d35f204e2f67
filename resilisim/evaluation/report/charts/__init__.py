"""What all charts share: images that say what they show, their marks, layouts, row labels, axes and keys.

Every chart has a title and a description for those who cannot see it; sections put a table with the same numbers beside
it. Colours are CSS classes, so the page decides what they are in light and in dark. Texts are escaped unless they are
markup that was built here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from markupsafe import Markup, escape

from resilisim.evaluation.report.page import printable
from resilisim.provenance import content_hash

CHARACTER_WIDTH = 6.6  # of the 12.5 pixel text, on average
NAME_WIDTH = 7.8  # of its bold form, and of headings
LABEL_GAP = 16.0
LEAST_LABEL_WIDTH, MOST_LABEL_WIDTH, MOST_PROMPT_WIDTH = 130.0, 380.0, 220.0
TICK_WIDTH = 46.0  # what a tick's number needs
NUM_SERIES = 8  # colours of series that lie in one chart

Child: TypeAlias = "Markup | str | Iterable[Child]"
# Where a tick is, its number (none if it has no room), how that is aligned, and whether it is the tick of 0.
Tick: TypeAlias = tuple[float, str, str, bool]


def render(child: Child) -> Markup:
    """Return a child as markup: escaped if it is plain text, joined if it is several."""
    if isinstance(child, str):
        return child if isinstance(child, Markup) else escape(printable(child))
    return Markup("").join(map(render, child))


def element(name: str, *children: Child, **attributes: str | float | None) -> Markup:
    """Return an element of an image.

    Of the names of attributes a trailing underscore is dropped and others become hyphens (`class_`, `text_anchor`);
    None leaves one out, and floats get two decimals at most.
    """
    shown = Markup("")
    for key, value in attributes.items():
        if value is not None:
            attribute = key if key == "viewBox" else key.rstrip("_").replace("_", "-")
            shown += Markup(' {}="{}"').format(Markup(attribute), printable(_number(value)))
    return Markup(f"<{name}{shown}>{render(children)}</{name}>")


def _number(value: str | float) -> str:
    if not isinstance(value, float):
        return str(value)
    text = f"{value:.2f}".rstrip("0").rstrip(".")
    return "0" if text == "-0" else text


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


def _tooltip(text: str) -> Child:
    return element("title", text) if text else ()


def _line(x1: float, x2: float, y1: float, y2: float, style: str, tooltip: str) -> Markup:
    return element("line", _tooltip(tooltip), x1=x1, x2=x2, y1=y1, y2=y2, class_=style)


def level_line(x1: float, x2: float, y: float, style: str, tooltip: str = "") -> Markup:
    """Draw a level line: an interval, for instance."""
    return _line(x1, x2, y, y, style, tooltip)


def upright_line(x: float, y1: float, y2: float, style: str, tooltip: str = "") -> Markup:
    """Draw an upright line: the ceiling, for instance."""
    return _line(x, x, y1, y2, style, tooltip)


def dot(x: float, y: float, style: str, tooltip: str = "", radius: float = 4.5) -> Markup:
    """Draw the dot of an estimate."""
    return element("circle", _tooltip(tooltip), cx=x, cy=y, r=radius, class_=style)


def box(x: float, y: float, width: float, height: float, style: str, tooltip: str) -> Markup:
    """Draw a part of a bar."""
    return element("rect", _tooltip(tooltip), x=x, y=y, width=width, height=height, class_=f"bar {style}")


def words(x: float, y: float, text: Child, style: str, anchor: str | None = None, tooltip: str = "") -> Markup:
    """Write a text."""
    return element("text", _tooltip(tooltip), text, x=x, y=y, class_=style, text_anchor=anchor)


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
HALF = Layout(506.0, 0.0, 0.0, 0.0)


@dataclass(frozen=True, slots=True)
class RowLabel:
    """What stands left of a row: the policy, and the prompt type where a run has several."""

    policy: str  # empty where it repeats the row above
    prompt_type: str
    privileged: bool
    full_name: str  # both, for tooltips and readers of the page

    @property
    def name(self) -> str:
        """The policy, with a star if it is privileged."""
        return f"{self.policy} *" if self.privileged and self.policy else self.policy


def for_all_pages(draw: Callable[[Layout], Child], labels: Sequence[RowLabel] = ()) -> Markup:
    """Return a chart in two layouts, of which the page shows the one that fits it.

    The labels of its rows decide how much room they get.
    """
    policy = max((len(label.policy) + 2 * label.privileged for label in labels), default=0) * NAME_WIDTH
    prompt = min(max((len(label.prompt_type) for label in labels), default=0) * CHARACTER_WIDTH, MOST_PROMPT_WIDTH)
    width = policy + prompt + LABEL_GAP * (2 if prompt else 1) + 1.0
    fitted = replace(WIDE, label_width=min(max(width, LEAST_LABEL_WIDTH), MOST_LABEL_WIDTH), prompt_width=prompt)
    wide = element("div", draw(fitted), class_="wide-page")
    return wide + element("div", draw(NARROW), class_="narrow-page")


def row_labels(labels: Sequence[RowLabel], layout: Layout, top: float, row_height: float) -> Markup:
    """Draw the labels of rows that begin at `top` and are all `row_height` high."""
    several_prompts = any(label.prompt_type for label in labels)
    parts: list[Child] = []
    for row, label in enumerate(labels):
        edge = top + row_height * row
        if row > 0 and label.policy and several_prompts:
            parts.append(level_line(0.0, layout.width, edge, "row-rule"))
        parts.append(_row_label(label, layout, edge, row_height, several_prompts))
    return render(parts)


def _row_label(label: RowLabel, layout: Layout, edge: float, row_height: float, several_prompts: bool) -> Child:
    characters = layout.prompt_width / CHARACTER_WIDTH
    if layout.is_narrow:
        y, end = edge + 13.0, layout.width
        room = layout.width - LABEL_GAP - min(layout.prompt_width, len(label.prompt_type) * CHARACTER_WIDTH)
    else:
        y, end = edge + row_height / 2.0 + 4.0, layout.label_width - LABEL_GAP
        room = end - (layout.prompt_width + LABEL_GAP if several_prompts else 0.0)
        end, characters = end + 2.0, characters + 0.5
    parts: list[Child] = []
    if label.name:
        parts.append(words(0.0, y, tail(label.name, room / NAME_WIDTH), "policy", tooltip=label.full_name))
    if label.prompt_type:
        parts.append(words(end, y, tail(label.prompt_type, characters), "prompt", "end"))
    return parts


def level_axis(ticks: Iterable[Tick], top: float, bottom: float) -> Markup:
    """Draw the grid of a level axis, with its numbers above."""
    parts: list[Child] = []
    for x, number, anchor, is_zero in ticks:
        parts.append(upright_line(x, top, bottom, "zero" if is_zero else "grid"))
        if number:
            parts.append(words(x, top - 7.0, number, "tick", anchor))
    return render(parts)


def share_ticks(left: float, width: float, span: float, step: float, percent: bool = True) -> list[Tick]:
    """Return the ticks of shares from 0 to `span`."""
    is_tight = width * step / span < TICK_WIDTH  # then every second tick has its number
    ticks = []
    for number in range(round(span / step) + 1):
        x = left + width * number * step / span
        text = f"{number * step * 100:.0f}" + "%" * percent if number % 2 == 0 or not is_tight else ""
        at_end = number * step >= span - 1e-9 and x + 18.0 > left + width and span >= 1.0
        ticks.append((x, text, "end" if at_end else "start" if number == 0 else "middle", number == 0))
    return ticks


def upright_axis(
    left: float,
    right: float,
    y: Callable[[float], float],
    shares: Sequence[float] = (0.0, 0.25, 0.5, 0.75, 1.0),
    gap: float = 8.0,
) -> Markup:
    """Draw the grid of an upright axis of shares, with its numbers at the left."""
    parts: list[Child] = []
    for share in shares:
        parts.append(level_line(left, right, y(share), "grid" if share else "zero"))
        parts.append(words(left - gap, y(share) + 4.0, f"{share * 100:.0f}%", "tick", "end"))
    return render(parts)


def nice_step(span: float, most: int) -> float:
    """Return a round distance of at most `most` ticks over a span (1, 2 or 5 times a power of ten)."""
    if span <= 0.0:
        return 1.0
    rough = span / most
    power = 10.0 ** math.floor(math.log10(rough))
    return next(factor * power for factor in (1.0, 2.0, 5.0, 10.0) if factor * power >= rough * (1.0 - 1e-9))


def series_style(number: int) -> str:
    """Return the CSS class of the n-th series of a chart."""
    return f"series-{number % NUM_SERIES}"


def shortened(text: str, characters: float) -> str:
    """Return a text cut at its end."""
    return text if len(text) <= characters else text[: max(1, int(characters) - 1)] + "…"


def tail(text: str, characters: float) -> str:
    """Return a name cut at its beginning: of `package.module:Class` the end tells most."""
    return text if len(text) <= characters else "…" + text[-max(1, int(characters) - 1) :]


def legend(*entries: Sequence[str | None]) -> Markup:
    """Return the key of a chart: of each entry its symbol, its meaning and, if it has one, a tooltip."""
    items = [
        element("li", symbol or "", name or "", title=title[0] if title else None) for symbol, name, *title in entries
    ]
    return element("ul", items, class_="legend")


def square_symbol(style: str) -> Markup:
    """Return the symbol of a part of a bar."""
    return _symbol(13, element("rect", x=0, y=0, width=13, height=13, rx=2, class_=f"bar {style}"))


def dot_symbol(style: str) -> Markup:
    """Return the symbol of an estimate with its interval."""
    return _symbol(30, level_line(2, 28, 6.5, f"interval {style}"), dot(15, 6.5, f"dot {style}"))


def raw_symbol() -> Markup:
    """Return the symbol of a raw outcome beside an adjusted one."""
    return _symbol(12, dot(6, 6.5, "raw-dot", radius=2.2))


def upright_symbol(style: str) -> Markup:
    """Return the symbol of an exact number: the ceiling, for instance."""
    return _symbol(6, upright_line(3, 0, 13, style))


def line_symbol(style: str) -> Markup:
    """Return the symbol of a line."""
    return _symbol(30, level_line(2, 28, 6.5, style))


def series_legend(names: Sequence[str], symbol: Callable[[str], Markup] = dot_symbol) -> list[tuple[Markup, str]]:
    """Return the entries of a key that has a colour for each name."""
    return [(symbol(series_style(number)), name) for number, name in enumerate(names)]


def _symbol(width: int, *content: Child) -> Markup:
    return element("svg", *content, width=width, height=13, viewBox=f"0 0 {width} 13", aria_hidden="true")
