"""Every check; each says how many statistical tests it adds to those that share the error rate."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from verification import (
    brute_force,
    comparison,
    coverage,
    exploring,
    failure_models,
    fitted_luck,
    gate,
    law,
    law_fit,
    luck,
    obedience,
    references,
    score,
    small_problems,
    workflow,
)
from verification.findings import Finding


def check(module: Any, num_statistical: int) -> Any:
    """Return a check as a parameter, with the number of its statistical tests."""
    name = module.__name__.rpartition(".")[2]
    return pytest.param(module, id=name, marks=pytest.mark.statistical(num_statistical))


@pytest.mark.parametrize(
    "module",
    [
        check(law, 12),
        check(luck, 38),
        check(score, 21),
        check(comparison, 19),
        check(coverage, 11),
        check(fitted_luck, 4),
        check(gate, 6),
        check(references, 10),
        check(obedience, 11),
        check(brute_force, 0),
        check(exploring, 3),
        check(failure_models, 8),
        check(law_fit, 18),
        check(workflow, 4),
    ],
)
def test_simulation_does_what_the_specification_says(
    module: Any, request: pytest.FixtureRequest, verdict: Callable[[list[Finding]], None]
) -> None:
    """Each check's findings are judged together with those of all others."""
    jobs = module.jobs(request.config.getoption("--shift"))
    verdict(module.judge([module.work(job) for job in jobs]))


def test_values_of_random_small_problems(
    request: pytest.FixtureRequest, verdict: Callable[[list[Finding]], None]
) -> None:
    """`--problems 3000` for an hour."""
    shift, number = request.config.getoption("--shift"), request.config.getoption("--problems")
    verdict(small_problems.judge([small_problems.work(job) for job in small_problems.jobs(shift, number)]))
