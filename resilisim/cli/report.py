"""`resilisim report`: the summary table and the HTML report of a folder of results."""

from __future__ import annotations


def report() -> None:
    """Placeholder."""
