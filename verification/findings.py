"""What a check finds, and when a finding passes, at one family-wise error rate."""

from __future__ import annotations

from dataclasses import dataclass

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

    @property
    def is_statistical(self) -> bool:
        """Whether this is one of the tests that share the error rate: controls are none of them."""
        return self.p_value is not None and not self.control

    def passes(self, num_tests: int) -> bool:
        """Return the verdict where so many statistical tests share the error rate.

        Each is rejected at the rate divided by their number (Bonferroni), so all of them pass exactly when Holm's
        procedure rejects none. A control has to be rejected at that level. A p-value that is NaN shows nothing: it
        fails.
        """
        if self.p_value is None:
            return bool(self.exact) is not self.control
        level = FAMILY_WISE_ERROR_RATE / max(num_tests, 1)
        return self.p_value <= level if self.control else self.p_value > level

    def to_text(self, passed: bool) -> str:
        """Return the finding and its verdict in two lines."""
        p_value = "exact" if self.p_value is None else f"p = {self.p_value:.3g}"
        verdict = "pass" if passed else "FAIL"
        if self.control:
            verdict = "rejected, as it must be" if passed else "FAIL: was not rejected"
        return f"{self.test:<74} {p_value:<13} {verdict}\n    {self.statistic}   [{self.source}]"


def failing(findings: list[Finding]) -> list[str]:
    """Return which of the findings of one check alone do not pass."""
    num_tests = sum(finding.is_statistical for finding in findings)
    return [finding.test for finding in findings if not finding.passes(num_tests)]
