"""A run against another one: the differences that the statistics give, drawn and in tables."""

from __future__ import annotations

from pathlib import Path

import pytest

from resilisim.errors import InvalidInputError, StoreError
from resilisim.evaluation.report import comparison, write_report
from resilisim.evaluation.report.page import Cell, signed_interval, signed_points
from resilisim.evaluation.table.comparing import compare_runs
from resilisim.evaluation.table.facts import read_facts
from resilisim.statistics import METHODS
from tests.evaluation.report.pages import check, text_of, write_run
from tests.evaluation.synthetic import synthetic_record, synthetic_run

POLICIES = ("plan-follower", "repairing-follower")
RECORDS = list(synthetic_run(POLICIES, num_tasks=8, num_seeds=3))


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    """Return two runs of the same policies, of which the second is more careless and has fewer seeds."""
    careless = [
        synthetic_record(record["index"], record["policy"], record["prompt_type"], task, record["seed"], 0.8)
        for record in RECORDS
        if record["seed"] < 2
        for task in [int(record["instance_id"].removeprefix("task_"), 16)]
    ]
    return write_run(tmp_path / "a", RECORDS), write_run(tmp_path / "b", careless)


def test_every_method_of_every_match_stands_in_the_tables(folders: tuple[Path, Path]) -> None:
    compared = compare_runs(*folders)
    main, methods = comparison.differences_table(compared), comparison.methods_table(compared)
    assert len(main.rows) == len(compared.comparisons) + 1 == 5
    assert len(methods.rows) == len(METHODS) * 5
    corrected = compared.holm_p_values("paired_luck_adjusted")
    for place, (row, one) in enumerate(zip(main.rows, compared.comparisons, strict=False)):
        best = one.differences["paired_luck_adjusted"]
        assert isinstance(row[5], Cell)
        assert (row[5].text, row[5].detail) == (signed_points(best.difference), signed_interval(*best.interval))
        assert [text_of(cell) for cell in row[6:]] == [comparison.p_text(p) for p in (best.p_value, corrected[place])]
        for step, method in enumerate(comparison.METHOD_NAMES):
            shown = methods.rows[len(METHODS) * place + step]
            assert text_of(shown[4]) == signed_points(one.differences[method].difference)
            assert text_of(shown[6]) == comparison.p_text(one.differences[method].p_value)
    tasks = comparison.tasks_table(read_facts(folders[0]), compared)
    assert tasks is not None
    sizes = [abs(float(text_of(row[-1]).replace("−", "-"))) for row in tasks.rows]
    assert sizes == sorted(sizes, reverse=True)
    assert {text_of(row[2]) for row in tasks.rows} == {"8"}  # 2 policies, 2 prompts, 2 common seeds


def test_the_page_and_the_text_show_the_comparison(folders: tuple[Path, Path], tmp_path: Path) -> None:
    page = check(write_report(folders[0], tmp_path / "page.html", folders[1], markdown=tmp_path / "page.md"))
    assert "comparison" in page.ids
    for text in ("Compared with another run", "32 episodes of A and 0 of B have", "Differences between the two runs"):
        assert text in page.text
    assert "## Compared with another run" in (tmp_path / "page.md").read_text(encoding="utf-8")
    assert "comparison" not in check(write_report(folders[0], tmp_path / "alone.html")).ids


def test_a_run_compared_with_its_own_copy_differs_nowhere(folders: tuple[Path, Path], tmp_path: Path) -> None:
    compared = compare_runs(folders[0], write_run(tmp_path / "copy", RECORDS))
    assert comparison.tasks_table(read_facts(folders[0]), compared) is None
    assert {text_of(row[5]) for row in comparison.differences_table(compared).rows} == {"0.0"}


def test_runs_that_cannot_be_compared_are_refused_at_once(folders: tuple[Path, Path], tmp_path: Path) -> None:
    others = write_run(tmp_path / "others", list(synthetic_run(("random",), num_tasks=2, num_seeds=1)))
    with pytest.raises(InvalidInputError, match="none of this run's policies"):
        write_report(folders[0], tmp_path / "page.html", others)
    salted = write_run(tmp_path / "salted", RECORDS, environment={"salt": "mine"})
    with pytest.raises(InvalidInputError, match="cannot be compared"):
        write_report(folders[0], tmp_path / "page.html", salted)
    with pytest.raises(StoreError, match="no folder of results"):
        write_report(folders[0], tmp_path / "page.html", tmp_path / "nowhere")
    assert not (tmp_path / "page.html").exists()


def test_one_policy_each_is_compared_whatever_the_names(tmp_path: Path) -> None:
    a, b = (
        write_run(tmp_path / policy, list(synthetic_run((policy,), ("optimal",), num_tasks=5, num_seeds=2)))
        for policy in POLICIES
    )
    text = check(write_report(a, tmp_path / "page.html", b)).text
    for which, policy in zip(("A is this run", "B is another one"), POLICIES, strict=True):
        assert f"{which} ({policy}, {policy})" in text
