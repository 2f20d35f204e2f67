"""The report of a run: one HTML file that needs nothing else, readable by people who were not there."""

from __future__ import annotations

import string
from importlib import resources
from pathlib import Path

from resilisim.evaluation.accumulate import RunSums
from resilisim.evaluation.report.examples import ExamplePicker
from resilisim.evaluation.report.facts import RunFacts
from resilisim.evaluation.report.frame import report_title
from resilisim.evaluation.report.markup import render
from resilisim.evaluation.report.sections import report_body
from resilisim.evaluation.store import read_manifest, read_records
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
    manifest = read_manifest(directory)
    sums, examples = RunSums(), ExamplePicker()
    for record in read_records(directory):
        sums.add(record)
        examples.add(record)
    facts = RunFacts(manifest, sums, examples.chosen)
    folder = resources.files(__package__)
    page = string.Template(folder.joinpath("page.html").read_text(encoding="utf-8"))
    text = page.substitute(
        title=render(report_title(facts)),
        style=folder.joinpath("style.css").read_text(encoding="utf-8"),
        body=report_body(facts),
    )
    target = Path(path) if path is not None else Path(directory) / REPORT_NAME
    write_file_atomically(target, text.encode("utf-8"))
    return target
