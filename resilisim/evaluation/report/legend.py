"""The keys of the charts: the same marks and colours, small, with their meaning."""

from __future__ import annotations

from resilisim.evaluation.records import LOSS_LABELS
from resilisim.evaluation.report.markup import Child, Markup, element


def loss_style(label: str) -> str:
    """Return the CSS class of a cause of lost points."""
    return label.replace("_", "-") if label in LOSS_LABELS else "other-loss"


def success_legend(any_privileged: bool) -> Markup:
    """Return the key of charts that show success."""
    return element(
        "ul",
        element("li", _dot("raw"), "success, 95% interval"),
        element("li", _dot("privileged"), "privileged policy *") if any_privileged else None,
        element("li", _ceiling(), "ceiling V*"),
        class_="legend",
    )


def luck_legend() -> Markup:
    """Return the key of the chart of raw and adjusted success."""
    return element(
        "ul",
        element("li", _dot("raw-beside"), "raw success"),
        element("li", _dot("adjusted"), "luck-adjusted, with fitted β"),
        element("li", _ceiling(), "ceiling V*"),
        class_="legend",
    )


def losses_legend(labels: list[str]) -> Markup:
    """Return the key of the chart of lost points."""
    items: list[Child] = [_square("unavoidable", "unavoidable", "what no agent could have had: 1 − V*")]
    items += [_square(loss_style(label), label.replace("_", " "), LOSS_LABELS.get(label)) for label in labels]
    items.append(_square("luck", "luck", "what the draws brought, with mean zero"))
    return element("ul", items, class_="legend")


def _square(style: str, name: str, explanation: str | None) -> Markup:
    square = element("rect", x=0, y=0, width=13, height=13, rx=2, class_=f"bar {style}")
    return element("li", _symbol(13, square), name, title=explanation)


def _dot(style: str) -> Markup:
    line = element("line", x1=2, x2=28, y1=6.5, y2=6.5, class_=f"interval {style}")
    return _symbol(30, line, element("circle", cx=15, cy=6.5, r=4.5, class_=f"dot {style}"))


def _ceiling() -> Markup:
    return _symbol(6, element("line", x1=3, x2=3, y1=0, y2=13, class_="ceiling"))


def _symbol(width: int, *content: Child) -> Markup:
    return element("svg", *content, width=width, height=13, viewBox=f"0 0 {width} 13", aria_hidden="true")
