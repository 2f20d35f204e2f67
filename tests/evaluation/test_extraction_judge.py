"""What a threshold of confidence does: exact values, and what an episode's record says of others."""

from __future__ import annotations

import math
from typing import Any

import pytest

from resilisim.errors import InvalidInputError
from resilisim.evaluation.extraction_judge import JudgedEntity, course_at, threshold_sweep
from resilisim.policies.agent_record import empty_part
from resilisim.statistics.estimates import clustered_proportion


def judged(question: str, confidence: float | None, found: str) -> JudgedEntity:
    """An entity that is right, wrong, or missing; or one that was found though there was nothing to find."""
    return JudgedEntity(
        question, "extractor", confidence, found != "missing", found == "right", found != "nothing there"
    )


JUDGED = [
    judged("a", 0.95, "right"),
    judged("a", 0.9, "right"),
    judged("b", 0.8, "wrong"),
    judged("b", 0.7, "right"),
    judged("c", 0.6, "nothing there"),
    judged("c", 0.5, "right"),
    judged("d", 0.4, "right"),
    judged("d", 0.99, "missing"),
]


def test_exact_values_at_each_threshold() -> None:
    points = threshold_sweep(JUDGED)
    assert [(point.theta, point.accepted, point.correct, point.present) for point in points] == [
        (0.5, 6, 4, 7),
        (0.6, 5, 3, 7),
        (0.7, 4, 3, 7),
        (0.8, 3, 2, 7),
        (0.9, 2, 2, 7),
    ]
    assert [point.precision.value for point in points] == pytest.approx([4 / 6, 3 / 5, 3 / 4, 2 / 3, 1.0])
    assert [point.recall.value for point in points] == pytest.approx([4 / 7, 3 / 7, 3 / 7, 2 / 7, 2 / 7])
    # Intervals have questions as the units that vary: at 0.5 they are a, b and c, at 0.9 only a has any.
    assert points[0].precision == clustered_proportion([2, 1, 1], [2, 2, 2])
    assert points[-1].precision.num_clusters == 1


def test_what_states_no_confidence_passes_and_nothing_to_divide_by_is_nan() -> None:
    (point,) = threshold_sweep([judged("a", None, "right"), judged("a", 0.1, "right")], [1.0])
    assert (point.accepted, point.precision.value, point.recall.value) == (1, 1.0, 0.5)
    (point,) = threshold_sweep([judged("a", 0.1, "nothing there")], [0.5])
    assert math.isnan(point.precision.value)
    assert math.isnan(point.recall.value)
    assert math.isnan(threshold_sweep([], [0.5])[0].precision.value)


@pytest.mark.parametrize("value", [-0.1, 1.1, math.nan])
def test_numbers_out_of_range(value: float) -> None:
    with pytest.raises(InvalidInputError, match=r"theta is .*: expected (at least 0 and at most 1|a number)"):
        threshold_sweep(JUDGED, [value])
    with pytest.raises(InvalidInputError, match="confidence"):
        threshold_sweep([judged("a", value, "right")])


def record(*tests: tuple[str, float | None, str], **options: Any) -> Any:
    """An episode at theta 0.7 whose tasks each had one entity, found with a confidence, and passed or failed."""
    names = [f"T{number}" for number in range(len(tests))]
    entity = {"name": "name", "type": "string", "description": ""}
    part = empty_part("kpi-chain")
    part["options"] = {"theta": 0.7, **options}
    part["structure"] = {"plan": {"tasks": [{"task_id": name, "expected_output_entities": [entity]} for name in names]}}
    for name, (value, confidence, verdict) in zip(names, tests, strict=True):
        details = {"task": name, "pieces": 2, "candidates": {"name": {"value": value, "confidence": confidence}}}
        part["events"].append(
            {"kind": "extraction", "component": "extractor", "text": verdict, "call": 0, "turn": 0, "details": details}
        )
    return {"agent": part}


@pytest.mark.parametrize(
    ("tests", "options", "courses"),
    [
        # at 0.5, 0.7, 0.8 and 0.95
        ([("Kim", 0.9, "passed")], {}, ("same", "same", "same", "unknown")),
        ([("Kim", 0.9, "passed")], {"replanning": False}, ("same", "same", "same", "lost")),
        ([("Kim", 0.6, "failed")], {"replanning": False}, ("unknown", "same", "same", "same")),
        ([("Kim", 0.75, "passed"), ("Lee", 0.6, "failed")], {"replanning": False}, ("unknown", "same", "lost", "lost")),
        ([(None, 0.9, "failed")], {}, ("same",) * 4),
        ([("Kim", None, "passed")], {}, ("same",) * 4),
        # The reasoner itself gave up, whatever theta says.
        ([("Kim", 0.9, "failed")], {}, ("same",) * 4),
        ([("Kim", 0.9, "passed")], {"unite_arrays": True}, ("unknown", "same", "unknown", "unknown")),
    ],
)
def test_what_an_episode_would_have_come_to(tests: Any, options: Any, courses: tuple[str, ...]) -> None:
    assert tuple(course_at(record(*tests, **options), theta) for theta in (0.5, 0.7, 0.8, 0.95)) == courses
