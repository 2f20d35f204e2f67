"""The report of a run: one HTML file that needs nothing else, readable by people who were not there."""

from __future__ import annotations

from pathlib import Path

from markupsafe import Markup

from resilisim.evaluation.table.facts import RunFacts, read_facts
from resilisim.reporting.body import build_page
from resilisim.reporting.comparison_section import refuse_unlike_runs
from resilisim.reporting.page import Page, page_markdown, whole_page
from resilisim.reporting.papers import paper_tables
from resilisim.reporting.viewer import viewer_assets, viewer_section
from resilisim.reporting.viewer.packing import Packer
from resilisim.run_folder import write_file_atomically

__all__ = ["paper_tables", "write_report"]

REPORT_NAME = "report.html"


def write_report(
    directory: Path | str,
    path: Path | str | None = None,
    compare_with: Path | str | None = None,
    *,
    markdown: Path | str | None = None,
    facts: RunFacts | None = None,
    packer: Packer | None = None,
) -> Path:
    """Write the report of a folder of results, finished or not; its episodes are read once, one at a time.

    Args:
        directory: Folder of the results.
        path: Where to write; `report.html` in the folder if omitted.
        compare_with: Folder of another run, with which a section compares this one.
        markdown: Where to write the same tables as Markdown, if anywhere.
        facts: The run's facts, if they are known already.
        packer: Has taken in the same episodes as these; without both, they are read here.

    Returns:
        The path of the HTML file.

    Raises:
        StoreError: It is not a folder of results, or something cannot be read or written.
        InvalidInputError: The other run cannot be compared with this one.

    Example:
        >>> import tempfile
        >>> from resilisim import evaluate, write_report
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = evaluate(["random"], 3, ["baseline"], 1, out=folder, progress=False)
        ...     write_report(folder).name
        'report.html'
    """
    if facts is None or packer is None:
        packer = Packer()
        facts = read_facts(directory, packer.add)
    page, style, script = _page(directory, facts, packer, compare_with)
    target = Path(path) if path is not None else Path(directory) / REPORT_NAME
    write_file_atomically(target, whole_page(page, style, script))
    if markdown is not None:
        write_file_atomically(Path(markdown), page_markdown(page).encode("utf-8"))
    return target


def report_page(directory: Path | str, bar: Markup | None = None) -> bytes:
    """Return the report of a folder of results as HTML, with a `bar` above it that leads elsewhere.

    Raises:
        StoreError: It is not a folder of results, or cannot be read.
    """
    packer = Packer()
    facts = read_facts(directory, packer.add)
    page, style, script = _page(directory, facts, packer)
    return whole_page(page, style, script, bar)


def _page(
    directory: Path | str, facts: RunFacts, packer: Packer, compare_with: Path | str | None = None
) -> tuple[Page, str, str]:
    """Return the page of a report, and the style and the script of its viewer."""
    if compare_with is not None:
        refuse_unlike_runs(facts, directory, compare_with)
    policies = dict.fromkeys(row.policy for row in facts.rows)
    examples = [facts.examples[policy] for policy in policies]
    episodes = viewer_section(directory, packer, examples) if examples else None
    page = build_page(facts, directory, episodes, compare_with)
    return (page, *(viewer_assets() if episodes is not None else ("", "")))
