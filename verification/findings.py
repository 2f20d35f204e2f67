"""What a check finds, and how findings become a verdict at one family-wise error rate."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

# The chance that a correct implementation fails at least one of all statistical tests, under other luck (`--shift`).
FAMILY_WISE_ERROR_RATE = 1e-3


@dataclass(frozen=True, slots=True)
class Finding:
    """The outcome of one test.

    Attributes:
        test: What was tested, in a few words.
        source: Section or equation of the specification that says what must hold.
        statistic: The statistic, as it is shown.
        p_value: How likely a statistic at least as extreme is if it holds; None where there is no chance in it.
        exact: For a test without chance: whether it holds; None for a statistical one.
        control: Whether the test compares with something that is wrong on purpose, and so has to be rejected.
    """

    test: str
    source: str
    statistic: str
    p_value: float | None = None
    exact: bool | None = None
    control: bool = False


@dataclass(frozen=True, slots=True)
class Check:
    """A family of tests on one simulation, in pieces that processes can share.

    Attributes:
        name: Name on the command line.
        jobs: Returns the pieces of work, for a shift of all seeds.
        work: Does one piece.
        judge: Turns what the pieces brought, in order, into findings.
    """

    name: str
    jobs: Callable[[int], Sequence[Any]]
    work: Callable[[Any], Any]
    judge: Callable[[Sequence[Any]], list[Finding]]


@dataclass(frozen=True, slots=True)
class Judged:
    """A finding with its verdict."""

    finding: Finding
    passed: bool


def holm(p_values: Sequence[float], error_rate: float) -> list[bool]:
    """Return for each test whether Holm's step-down procedure rejects it.

    The chance to reject at least one true hypothesis is at most `error_rate`, whatever the tests' dependence
    (S. Holm: "A simple sequentially rejective multiple test procedure", Scandinavian Journal of Statistics 6, 1979).
    A test whose p-value is NaN has shown nothing, and counts as rejected.
    """
    p_values = [0.0 if math.isnan(p_value) else p_value for p_value in p_values]
    rejected = [False] * len(p_values)
    for place, index in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        if p_values[index] > error_rate / (len(p_values) - place):
            break
        rejected[index] = True
    return rejected


def judge(findings: Sequence[Finding], error_rate: float = FAMILY_WISE_ERROR_RATE) -> list[Judged]:
    """Give every finding its verdict.

    Statistical tests are judged together by Holm's procedure. A control must be rejected at the level at which that
    procedure rejects whatever the other p-values are, the error rate divided by the number of tests.
    """
    family = [finding for finding in findings if finding.p_value is not None and not finding.control]
    p_values = [finding.p_value for finding in family if finding.p_value is not None]
    rejected = dict(zip(map(id, family), holm(p_values, error_rate), strict=True))
    strictest = error_rate / max(len(family), 1)
    judged = []
    for finding in findings:
        if finding.p_value is None:
            passed = bool(finding.exact) is not finding.control
        elif finding.control:
            passed = finding.p_value <= strictest
        else:
            passed = not rejected[id(finding)]
        judged.append(Judged(finding, passed))
    return judged
