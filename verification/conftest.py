"""Options, the shared error rate, and the table of all findings below pytest's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from verification import small_problems
from verification.findings import FAMILY_WISE_ERROR_RATE, Finding


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add what other luck and longer runs need."""
    group = parser.getgroup("verification")
    group.addoption("--shift", type=int, default=0, help="shift of all seeds: the same checks under other luck (0)")
    number = small_problems.NUM_PROBLEMS
    group.addoption("--problems", type=int, default=number, help=f"random small problems ({number})")


def statistical_tests(item: pytest.Item) -> int:
    """Return how many statistical tests a check says that it makes."""
    marker = item.get_closest_marker("statistical")
    return int(marker.args[0]) if marker else 0


@pytest.fixture
def num_tests(request: pytest.FixtureRequest) -> int:
    """How many statistical tests share the error rate: those of all checks that this run makes."""
    return sum(statistical_tests(item) for item in request.session.items)


@pytest.fixture
def verdict(request: pytest.FixtureRequest, num_tests: int) -> Callable[[list[Finding]], None]:
    """Fail if a finding does not pass, or if there are more or fewer statistical tests than the check has said."""

    def judge(findings: list[Finding]) -> None:
        failed = []
        for finding in findings:
            passed = finding.passes(num_tests)
            request.node.user_properties.append(("finding", finding.to_text(passed)))
            if not passed:
                failed.append(finding.test)
        assert failed == []
        assert sum(finding.is_statistical for finding in findings) == statistical_tests(request.node)

    return judge


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Show every finding with its statistic, p-value and verdict."""
    reports = [
        report
        for outcome in ("passed", "failed")
        for report in terminalreporter.stats.get(outcome, [])
        if report.when == "call"
    ]
    for report in sorted(reports, key=lambda report: report.nodeid):
        texts = [text for name, text in report.user_properties if name == "finding"]
        if texts:
            terminalreporter.section(report.nodeid.partition("::")[2])
            terminalreporter.write_line("\n".join(texts))
    terminalreporter.write_line(f"statistical tests share a family-wise error rate of {FAMILY_WISE_ERROR_RATE:g}")
