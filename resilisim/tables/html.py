"""A table as HTML, as pages and notebooks show it; whatever is no markup is escaped."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any

from jinja2 import BaseLoader, Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from resilisim.redaction import STEERING, without_secrets

# What no page should hold: control characters but line ends and tabs, and halves of characters.
_UNPRINTABLE = re.compile(f"[{STEERING}\ud800-\udfff]")


def printable(text: str) -> str:
    """Return a text without secrets, with a mark in place of whatever cannot be printed."""
    text = without_secrets(text)
    if text.isprintable():  # as nearly all texts are
        return text
    return _UNPRINTABLE.sub("\N{REPLACEMENT CHARACTER}", text)


def escaping_environment(finish: Callable[[str], str], loader: BaseLoader) -> Environment:
    """Return an environment of templates that makes each plain text that one of them writes fit for its file."""

    def finalize(value: Any) -> Any:
        if isinstance(value, float):  # a place in a chart
            return f"{round(value, 2) + 0.0:.2f}".rstrip("0").rstrip(".")
        return finish(value) if isinstance(value, str) and not isinstance(value, Markup) else value

    return Environment(
        loader=loader,
        autoescape=True,
        undefined=StrictUndefined,
        finalize=finalize,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def table_html(table: object) -> Markup:
    """Return the markup of a `Table` with its notes."""
    macros: Any = _environment().get_template("table.html").module
    return Markup(macros.table(table))


@functools.cache
def _environment() -> Environment:
    return escaping_environment(printable, PackageLoader("resilisim.tables"))
