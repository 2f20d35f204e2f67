"""The keys of the charts: the same marks and colours, small, with their meaning."""

from __future__ import annotations

from collections.abc import Sequence

from resilisim.evaluation.episode.record import LOSS_LABELS
from resilisim.evaluation.report.drawing import series_style
from resilisim.evaluation.report.markup import Child, Markup, element


def loss_style(label: str) -> str:
    """Return the CSS class of a cause of lost points."""
    return label.replace("_", "-") if label in LOSS_LABELS else "other-loss"


FINDING_TOOLS = "finding-tools"  # CSS class of what the fewest searches cost that show the tools


def results_legend(labels: Sequence[str], any_privileged: bool, any_searching: bool) -> Markup:
    """Return the key of the chart of results."""
    return element(
        "ul",
        element("li", _dot("adjusted"), "share of the ceiling, 95% interval"),
        element("li", _dot("privileged"), "privileged policy *") if any_privileged else None,
        element("li", _upright("ceiling"), "ceiling"),
        _square("unavoidable", "unavoidable", "what no agent could have had: 1 − V*"),
        _square(FINDING_TOOLS, "finding the tools", "what the fewest searches cost") if any_searching else None,
        [_square(loss_style(label), label.replace("_", " "), LOSS_LABELS.get(label)) for label in labels],
        class_="legend",
    )


def flaws_legend(policies: Sequence[str], with_obey: bool) -> Markup:
    """Return the key of the chart of flaws: one colour per policy, and the two exact marks."""
    items: list[Child] = [element("li", _dot(series_style(number)), name) for number, name in enumerate(policies)]
    if with_obey:
        items.append(element("li", _upright("reference"), "obey: following the flawed plan to the letter"))
    items.append(element("li", _upright("ceiling"), "deviate: V*, without believing the plan"))
    return element("ul", items, class_="legend")


def lines_legend(names: Sequence[str], full: str = "", dashed: str = "") -> Markup:
    """Return the key of lines: one colour per name, and what full and dashed lines are."""
    items: list[Child] = [element("li", _dot(series_style(number)), name) for number, name in enumerate(names)]
    if full:
        items.append(element("li", _stroke("line"), full))
    if dashed:
        items.append(element("li", _stroke("line dashed"), dashed))
    return element("ul", items, class_="legend")


def styles_legend(names: Sequence[tuple[str, str]]) -> Markup:
    """Return the key of dots with intervals, from CSS classes with their meanings."""
    return element("ul", [element("li", _dot(style), name) for style, name in names], class_="legend")


def parts_legend(names: Sequence[str]) -> Markup:
    """Return the key of bars: one colour per part."""
    items: list[Child] = [_square(series_style(number), name, None) for number, name in enumerate(names)]
    return element("ul", items, class_="legend")


def _square(style: str, name: str, explanation: str | None) -> Markup:
    square = element("rect", x=0, y=0, width=13, height=13, rx=2, class_=f"bar {style}")
    return element("li", _symbol(13, square), name, title=explanation)


def _dot(style: str) -> Markup:
    line = element("line", x1=2, x2=28, y1=6.5, y2=6.5, class_=f"interval {style}")
    return _symbol(30, line, element("circle", cx=15, cy=6.5, r=4.5, class_=f"dot {style}"))


def _upright(style: str) -> Markup:
    return _symbol(6, element("line", x1=3, x2=3, y1=0, y2=13, class_=style))


def _stroke(style: str) -> Markup:
    return _symbol(30, element("line", x1=2, x2=28, y1=6.5, y2=6.5, class_=style))


def _symbol(width: int, *content: Child) -> Markup:
    return element("svg", *content, width=width, height=13, viewBox=f"0 0 {width} 13", aria_hidden="true")
