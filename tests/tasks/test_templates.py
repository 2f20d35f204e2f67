"""The shares of the five types and the order in which types follow each other."""

from __future__ import annotations

import math
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resilisim.tasks.generation import type_sequence
from resilisim.tasks.model import SHARES, TEMPLATES, quotas


def test_the_five_templates() -> None:
    rows = [
        (
            template.task_type,
            template.share,
            template.complexity,
            " ".join(step.operation for step in template.steps),
            min(template.num_tools),
            max(template.num_tools),
            template.minimum_for_partial,
        )
        for template in TEMPLATES
    ]
    assert rows == [
        ("basic_file_processing", 1200, "easy", "input process", 2, 3, 1),
        ("simple_data_transformation", 320, "easy", "read process output", 1, 3, 1),
        ("complex_validation_pipeline", 1520, "medium", "read validate transform aggregate write", 4, 5, 3),
        ("complex_network_integration", 1360, "medium", "fetch parse validate transform post", 3, 5, 3),
        ("advanced_computation_pipeline", 640, "hard", "read validate transform compute aggregate write", 5, 7, 4),
    ]


@given(st.integers(0, 10_000), st.lists(st.integers(1, 500), min_size=1, max_size=8))
def test_quotas_are_largest_remainders(count: int, weights: list[int]) -> None:
    total = sum(weights)
    result = quotas(count, weights)
    assert sum(result) == count
    exact = [count * weight / total for weight in weights]
    assert all(
        math.floor(share + 1e-9) <= got <= math.ceil(share - 1e-9) for got, share in zip(result, exact, strict=True)
    )
    raised = [share % 1 for got, share in zip(result, exact, strict=True) if got > share]
    lowered = [share % 1 for got, share in zip(result, exact, strict=True) if got < share]
    assert not raised or not lowered or min(raised) >= max(lowered) - 1e-9


def test_quotas_of_known_counts() -> None:
    assert quotas(5040) == SHARES == (1200, 320, 1520, 1360, 640)
    assert quotas(63) == (15, 4, 19, 17, 8)
    assert quotas(1) == (0, 0, 1, 0, 0)
    assert quotas(0) == (0, 0, 0, 0, 0)


@pytest.mark.parametrize("count", [1, 2, 10, 63, 100, 5040])
def test_the_sequence_meets_the_quotas_and_every_beginning_is_balanced(count: int) -> None:
    sequence = [template.task_type for template in type_sequence(count)]
    wanted = dict(zip((template.task_type for template in TEMPLATES), quotas(count), strict=True))
    assert Counter(sequence) == Counter(wanted)
    seen: Counter[str] = Counter()
    for place, task_type in enumerate(sequence, start=1):
        seen[task_type] += 1
        for name, number in wanted.items():
            assert abs(seen[name] - number * place / count) < 1.5
