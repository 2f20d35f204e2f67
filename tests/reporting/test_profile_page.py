"""The page of a profile: well formed, nothing loaded, nothing of a name becomes markup, every number in a table."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from resilisim import benchmark_tasks, bound
from resilisim.errors import StoreError
from resilisim.evaluation.robustness.profile_result import RunState
from resilisim.evaluation.robustness.profiling import ProfileResult, profile
from resilisim.reporting.profile import write_profile_page
from resilisim.simulator import EndRules
from resilisim.tables.numbers import interval_text, percent
from tests.evaluation.toy_policies import Quitter, Reading, toy_tasks
from tests.reporting.pages import Checker


class Evil(Reading):
    """Has a name that is markup, and is privileged."""

    name = "<script>alert('x')</script>|&"
    privileged = True


def read(path: Path) -> Checker:
    """Read a page; the checker insists that its elements are nested properly."""
    return Checker(path.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> ProfileResult:
    """A profile of two policies."""
    return profile(
        [Evil, Quitter],
        toy_tasks(),
        2,
        out=tmp_path_factory.mktemp("profile"),
        bases=(0.5,),
        turns=(5, 6),
        flaws=("sequential_order", "redundant_operation"),
        severities=("light", "severe"),
        progress=False,
    )


def test_the_page_is_whole_and_needs_nothing(result: ProfileResult) -> None:
    path = write_profile_page(result)
    assert path == result.directory / "profile.html"
    page = read(path)
    links = page.values("href", "src")
    assert len(page.ids) == len(set(page.ids))
    assert {"summary", "reliability", "turns", "flaws", "runs", "reading", "provenance"} <= set(page.ids)
    assert all(link.startswith(("#", "data:")) for link in links)
    assert all(f"#{link}" in links for link in ("reliability", "turns", "flaws"))
    assert "<script></script>" in path.read_text(encoding="utf-8")
    assert page.scripts == [None]
    assert Evil.name in page.text
    assert "url(" not in path.read_text(encoding="utf-8")


def test_every_number_stands_in_a_table(result: ProfileResult) -> None:
    page = " ".join(read(write_profile_page(result)).text.split())
    for axis in result.axes:
        for value in (*axis.optimum, *axis.plan_following):
            assert percent(value) in page
        for curve in axis.curves:
            for point in curve.points:
                for estimate in (point.success, point.adjusted, point.share_of_ceiling):
                    assert f"{percent(estimate.value)} {interval_text(estimate)}" in page
    assert result.flaws is not None
    for policy in result.flaws.policies:
        for cell in policy.cells:
            assert f"{percent(cell.success.value)} {interval_text(cell.success)}" in page
            assert percent(cell.reference.obey) in page
    assert "sequential order (2 tasks)" in page  # left out: they have one tool


def test_markdown_has_the_same_tables(result: ProfileResult, tmp_path: Path) -> None:
    path = tmp_path / "profile.md"
    write_profile_page(result, tmp_path / "profile.html", markdown=path)
    text = path.read_text(encoding="utf-8")
    tables = [line for line in text.splitlines() if line.startswith("| ---")]
    # Key figures, two summaries, two tables for each of two axes, the flaws, two policies in detail, the runs.
    assert len(tables) == 1 + 2 + 4 + 1 + 2 + 1
    assert "<script>" not in text
    widths = {line.count("|") - line.count("\\|") for line in text.splitlines() if line.startswith("| quitter")}
    assert widths  # every row has a cell for every heading
    for axis in result.axes:
        assert f"| **optimum V\\*** | {' | '.join(percent(value) for value in axis.optimum)} |" in text


def test_where_tools_must_be_found_the_ceiling_is_what_searching_leaves(tmp_path: Path) -> None:
    tasks = benchmark_tasks()[:3]
    chosen = ["plan-follower", "exact-optimum"]
    found = profile(chosen, tasks, 1, out=tmp_path, prompts=["baseline"], axes=["turns"], turns=(7,), progress=False)
    (axis,) = found.axes
    for turns, optimum, after_search in zip(axis.values, axis.optimum, axis.after_search, strict=True):
        values = [bound(task, rules=EndRules(int(turns)), clairvoyant_seeds=0) for task in tasks]
        assert optimum == pytest.approx(sum(value["optimum"] for value in values) / 3)
        assert after_search == pytest.approx(sum(value["optimum_after_searches"] for value in values) / 3)
        assert after_search < optimum
    searching, told = axis.curves
    assert (searching.ceiling, told.ceiling) == ("optimum_after_searches", "optimum")
    for curve, ceilings in ((searching, axis.after_search), (told, axis.optimum)):
        successes = [point.success.value for point in curve.points]
        assert curve.area.raw.value == pytest.approx(sum(successes) / sum(ceilings))
        for point, ceiling in zip(curve.points, ceilings, strict=True):
            assert point.share_of_ceiling.value == pytest.approx(point.success.value / ceiling)
    row = " | ".join(percent(value) for value in axis.after_search)
    page = write_profile_page(found, markdown=tmp_path / "found.md")
    assert f"| **after search** | {row} |" in (tmp_path / "found.md").read_text("utf-8")
    assert "where tools must be found" in page.read_text(encoding="utf-8")


def test_runs_are_linked_once_they_have_a_report(result: ProfileResult) -> None:
    report = result.directory / "turns-05" / "report.html"
    try:
        report.write_text("a report", encoding="utf-8")
        links = read(write_profile_page(result)).values("href", "src")
    finally:
        report.unlink()
    assert [link for link in links if not link.startswith(("#", "data:"))] == ["turns-05/report.html"]


def test_an_unfinished_profile_says_so(result: ProfileResult, tmp_path: Path) -> None:
    run = result.runs[1]
    broken = RunState(run.name, run.title, run.num_tasks, 0, run.num_episodes - 3, run.num_planned, 3)
    unfinished = replace(result, runs=(result.runs[0], broken, *result.runs[2:]))
    text = write_profile_page(unfinished, tmp_path / "page.html").read_text(encoding="utf-8")
    assert "Not finished: 3 episodes of 1 run are missing" in text
    assert f"{run.num_episodes - 3} of {run.num_planned} episodes" in text


def test_bounds_that_are_not_exact_are_told(result: ProfileResult, tmp_path: Path) -> None:
    text = write_profile_page(replace(result, optimum_gap=0.0042), tmp_path / "page.html").read_text(encoding="utf-8")
    assert re.search(r"Some V\* are lower bounds, at most 0\.42 points too low", text)


def test_points_whose_optimum_is_informed_are_told(result: ProfileResult, tmp_path: Path) -> None:
    first, *others = result.axes
    seeing = replace(result, axes=(replace(first, informed=first.values[:2]), *others))
    text = write_profile_page(seeing, tmp_path / "page.html").read_text(encoding="utf-8")
    places = ", ".join(f"{value:.2f}" for value in first.values[:2])
    assert text.count(f"At {places} some V* are those of an agent that also sees") == 1
    assert "(informed)" not in write_profile_page(result, tmp_path / "page.html").read_text(encoding="utf-8")


def test_a_place_that_cannot_be_written_is_named(result: ProfileResult, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="cannot write"):
        write_profile_page(result, tmp_path / "missing" / "page.html")
