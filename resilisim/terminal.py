"""The one way to a terminal: text from anywhere is shown as it stands, never obeyed, and without secrets."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from resilisim.redaction import fit_to_show, without_secrets, without_steering


class SafeConsole(Console):
    """rich's console, for which no text is a command: what steers a terminal is an escape wherever it stands.

    Styles and the movements of live displays are rich's own, and are kept.
    """

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Yield the segments of something to be shown."""
        for segment in super().render(renderable, options):
            safe = segment.text if segment.control else without_steering(without_secrets(segment.text))
            yield segment if safe is segment.text else Segment(safe, segment.style, segment.control)


def plain(text: str, style: Any = "") -> Text:
    """Return text to be shown as it stands: no markup, no emoji codes, no control characters, no secrets."""
    return Text(fit_to_show(text), style)
