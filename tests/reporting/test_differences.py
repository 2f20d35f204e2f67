"""The section on agents of one run that met the same draws, and what a report says it is of."""

import pytest

from resilisim.evaluation import compare_runs, evaluate
from resilisim.evaluation.table.facts import read_facts
from resilisim.reporting.body import build_page
from resilisim.reporting.differences import differences_section
from resilisim.reporting.groups import PromptPools
from resilisim.tables.numbers import signed_interval, signed_points


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return the folder of a run of two agents and the optimum under two prompts."""
    folder = tmp_path_factory.mktemp("differences") / "nightly"
    policies = ["plan-follower", "repairing-follower", "exact-optimum"]
    evaluate(policies, 12, ["optimal", "flawed"], 2, out=folder, progress=False)
    return folder


def test_differences_are_those_of_a_comparison(folder):
    section = differences_section(PromptPools(read_facts(folder)), folder)
    *verdicts, table = section.blocks
    for row in table.rows:
        a, b, prompt = (str(cell) for cell in row[:3])
        best = compare_runs(folder, folder, a, b, prompt).pooled.best
        cell = row[6]
        assert (cell.text, cell.detail) == (signed_points(best.difference), signed_interval(*best.interval))
    assert {str(row[2]) for row in table.rows} == {"optimal", "flawed"}
    assert not any("exact-optimum" in str(cell) for row in table.rows for cell in row)
    assert len(verdicts) == 2
    assert all("plan-follower" in verdict and "repairing-follower" in verdict for verdict in verdicts)


def test_one_agent_has_nothing_to_differ_from(tmp_path):
    evaluate(["plan-follower", "exact-optimum"], 3, ["optimal"], 1, out=tmp_path, progress=False)
    assert differences_section(PromptPools(read_facts(tmp_path)), tmp_path) is None


def test_a_report_says_what_it_is_of(folder):
    page = build_page(read_facts(folder), folder)
    assert page.title == "nightly: plan-follower, repairing-follower, exact-optimum"
    assert page.name == "nightly"
    began, policies, law = page.facts.split(" · ")
    assert began.endswith(" UTC")
    assert policies == "plan-follower, repairing-follower, exact-optimum"
    assert law == "benchmark law"
