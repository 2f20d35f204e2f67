"""The checks themselves: what they count, small enough for the test suite, and that they can fail."""

from __future__ import annotations

import dataclasses

import pytest

from resilisim.seeding import Draws
from resilisim.simulator import EndRules, Law, build_problem, start_state
from resilisim.simulator.exact import solve
from resilisim.simulator.exact.optimum import start_optimum
from resilisim.tool_library import default_library
from tests.simulator.brute_force import BruteForce
from verification import brute_force, failure_models, law, law_fit, references, score
from verification.findings import failing

pytest_plugins = ["pytester"]


def test_the_formula_is_the_one_of_the_specification():
    cell = ("benchmark", 0.8, 2, 1, 3)
    assert law.formula(Law(), cell) == pytest.approx(0.8 * 0.5**2 * 0.7 * 0.9**3, rel=1e-15)


@pytest.fixture
def tally(monkeypatch):
    monkeypatch.setattr(law, "EXECUTIONS", 16_000)
    return law.work((0, 0, 0))


def test_the_law_is_counted_without_exceptions(tally):
    assert (tally.wrong_probabilities, tally.wrong_lists) == (0, 0)
    assert sum(sum(counts) for counts in tally.cells.values()) >= 2000
    assert {cell[1] for cell in tally.cells} == {0.8}
    assert {cell[2] for cell in tally.cells} == {0, 1, 2}


def test_a_simulator_with_another_law_is_found_out(monkeypatch):
    # The same simulation under a law whose constants are not the ones that its counts are compared with.
    honest = law.settings()[0]
    monkeypatch.setattr(law, "EXECUTIONS", 80_000)
    monkeypatch.setattr(law, "settings", lambda: (dataclasses.replace(honest, law=Law(not_executed=0.4)),))
    tallies = [law.work((0, 0, 0))]
    monkeypatch.setattr(law, "settings", lambda: (honest,))
    assert [test for test in failing(law.judge(tallies)) if test.startswith("successes (benchmark")]


def test_a_probability_that_is_told_wrong_is_found_out(monkeypatch):
    monkeypatch.setattr(law, "formula", lambda law_, cell: 0.5)
    monkeypatch.setattr(law, "EXECUTIONS", 800)
    assert law.work((0, 0, 0)).wrong_probabilities > 50


def test_own_rules_agree_with_the_simulators_transition():
    # Two readings of the specification: the verification's, and the simulator's own under a recursion of its own.
    draws = Draws("test of the verification")
    for _ in range(4):
        problem = brute_force.random_problem(draws, 3, 5)
        rules = brute_force.Rules(problem)
        expected = BruteForce(problem).value(start_state(problem))
        assert brute_force.Definition(rules).value(rules.start) == pytest.approx(expected, abs=1e-12)
        assert start_optimum(problem) == pytest.approx(expected, abs=1e-12)


@pytest.mark.long
def test_comparison_with_the_definition_fails_for_other_values(monkeypatch):
    honest = brute_force._compare_values(Draws("small"), 0)
    assert honest.largest_error < brute_force.TOLERANCE
    monkeypatch.setattr(brute_force, "solve", _solve_a_better_law)
    assert brute_force._compare_values(Draws("small"), 0).largest_error > 1e-3


def _solve_a_better_law(problem):
    law_ = problem.law
    better = Law(
        base=law_.base, not_executed=law_.not_executed, failed=law_.failed, history=min(1.0, law_.history + 0.05)
    )
    return solve(build_problem(problem.library, problem.required_tools, better, problem.rules))


def test_trying_everything_with_known_luck():
    library = default_library()
    problem = build_problem(
        library, ["file_operations_reader"], rules=EndRules(max_turns=2, max_consecutive_failures=2)
    )
    rules = brute_force.Rules(problem)
    reader, bad, good = library.index("file_operations_reader"), [0.99, 0.99], [0.75, 0.1]
    luck_of = [[0.99, 0.99] for _ in library]
    assert not brute_force.some_sequence_succeeds(rules, luck_of)
    luck_of[reader] = bad
    assert not brute_force.some_sequence_succeeds(rules, luck_of)
    luck_of[reader] = good
    assert brute_force.some_sequence_succeeds(rules, luck_of)


def test_samples_hold_every_type_and_no_list_twice():
    for tasks in (score.tasks(), references.tasks()):
        assert len({task.required_tools for task in tasks}) == len(tasks)
        assert len({task.task_type for task in tasks}) == 5


CHECK = """
import pytest
from verification.findings import Finding

@pytest.mark.statistical({said})
def test_own(verdict, pytestconfig):
    shift = pytestconfig.getoption("--shift")
    verdict([Finding("t", "SPEC", str(shift), {p_value}), Finding("c", "SPEC", "s", 0.0, control=True)])
"""


@pytest.mark.parametrize(("p_value", "said", "passes"), [(0.5, 1, True), (1e-9, 1, False), (0.5, 2, False)])
def test_a_check_passes_or_fails_and_shows_what_it_found(pytester, p_value, said, passes):
    """It fails, too, if it makes more or fewer tests than it says, for then others would share the rate wrongly."""
    pytester.makeconftest("from verification.conftest import *")
    pytester.makepyfile(CHECK.format(p_value=p_value, said=said))
    result = pytester.runpytest_inprocess("--shift", "3")
    result.assert_outcomes(passed=int(passes), failed=int(not passes))
    result.stdout.fnmatch_lines(["t * p = *", "* 3 *", "c * rejected, as it must be"])


def test_every_closed_form_holds_and_every_control_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failure_models, "EPISODES", 60)
    brought = [failure_models.work(job) for job in failure_models.jobs(0)]
    findings = failure_models.judge(brought)
    assert failing(findings) == []
    assert sum(finding.control for finding in findings) == len(failure_models.CASES)


@pytest.mark.long
def test_intervals_hold_what_was_drawn_and_a_wrong_number_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(law_fit, "FITS", 12)
    monkeypatch.setattr(law_fit, "LAWS", law_fit.LAWS[1:2])
    monkeypatch.setattr(law_fit, "PIECES", 1)
    findings = law_fit.judge([law_fit.work((0, 0, 0))])
    assert failing(findings) == []
    assert sum(finding.control for finding in findings) == 1
    # A fit of another law's calls is found out.
    monkeypatch.setattr(law_fit, "truth", lambda law: {"store_parser": dataclasses.replace(law, base=0.75).base})
    monkeypatch.setattr(law_fit, "LAWS", (law_fit.LAWS[0],))
    other = law_fit.Counted(0, *(3 * [law_fit.Counter(store_parser=12)]))
    other_findings = law_fit.judge([other])
    assert other_findings[0].test in failing(other_findings)
