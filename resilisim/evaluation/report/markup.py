"""HTML and SVG as values: text is escaped unless it was built here, so nothing from a record can become markup."""

from __future__ import annotations

import html
from collections.abc import Iterable
from typing import TypeAlias

VOID_ELEMENTS = frozenset({"br", "hr", "img", "meta", "col"})

AttributeValue: TypeAlias = "str | int | float | bool | None"


class Markup(str):
    """Text that is markup already; plain strings are escaped when they become part of it."""

    __slots__ = ()


Child: TypeAlias = "Markup | str | int | Iterable[Child] | None"


def render(child: Child) -> Markup:
    """Return any child as markup: escaped if it is plain text, joined if it is several, nothing if it is None."""
    if child is None:
        return Markup("")
    if isinstance(child, Markup):
        return child
    if isinstance(child, str):
        return Markup(html.escape(printable(child)))
    if isinstance(child, int):
        return Markup(str(child))
    return Markup("".join(render(part) for part in child))


def element(name: str, *children: Child, **attributes: AttributeValue) -> Markup:
    """Return an element.

    Args:
        name: Tag name.
        *children: What stands inside.
        **attributes: Attributes; a trailing underscore is dropped and others become hyphens (`class_`, `stroke_width`),
            None and False leave the attribute out, True gives it without a value, floats get two decimals at most.
    """
    parts = [name]
    for key, value in attributes.items():
        if value is None or value is False:
            continue
        attribute = key.rstrip("_").replace("_", "-") if key != "viewBox" else key
        parts.append(attribute if value is True else f'{attribute}="{html.escape(printable(_plain(value)))}"')
    opening = f"<{' '.join(parts)}>"
    if name in VOID_ELEMENTS:
        return Markup(opening)
    return Markup(f"{opening}{render(children)}</{name}>")


def _plain(value: str | int | float) -> str:
    if isinstance(value, float):
        text = f"{value:.2f}".rstrip("0").rstrip(".")
        return "0" if text == "-0" else text
    return str(value)


def printable(text: str) -> str:
    """Replace what no HTML file may hold: control characters and lone surrogates."""
    if text.isprintable():  # as nearly all texts are
        return text
    return "".join(
        character
        if character in "\n\t"
        or (ord(character) >= 32 and not 0x7F <= ord(character) <= 0x9F and not 0xD800 <= ord(character) <= 0xDFFF)
        else "\N{REPLACEMENT CHARACTER}"
        for character in text
    )
