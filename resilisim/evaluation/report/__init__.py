"""The report of a run: one HTML file that needs nothing else, readable by people who were not there."""

from __future__ import annotations

import string
from importlib import resources
from pathlib import Path

from resilisim.evaluation.report.facts import RunFacts, read_facts
from resilisim.evaluation.report.frame import report_title
from resilisim.evaluation.report.markup import render
from resilisim.evaluation.report.sections import report_body
from resilisim.provenance import write_file_atomically

REPORT_NAME = "report.html"


def write_report(directory: Path | str, path: Path | str | None = None) -> Path:
    """Write the report of a folder of results, finished or not; episodes are read once, one at a time.

    Args:
        directory: Folder of the results.
        path: Where to write; `report.html` in the folder if omitted.

    Returns:
        The path of the report.

    Raises:
        StoreError: It is no folder of results, or something cannot be read or written.
    """
    return write_page(read_facts(directory), Path(path) if path is not None else Path(directory) / REPORT_NAME)


def write_page(facts: RunFacts, path: Path) -> Path:
    """Write the report of a run whose facts are known, and return its path.

    Raises:
        StoreError: It cannot be written.
    """
    folder = resources.files(__package__)
    page = string.Template(folder.joinpath("page.html").read_text(encoding="utf-8"))
    text = page.substitute(
        title=render(report_title(facts)),
        style=folder.joinpath("style.css").read_text(encoding="utf-8"),
        body=report_body(facts),
    )
    write_file_atomically(path, text.encode("utf-8"))
    return path
