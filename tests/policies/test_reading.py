"""Which clauses of a work order are taken for steps."""

from __future__ import annotations

import pytest

from resilisim.policies.scripted import ordered_steps
from resilisim.tasks.benchmark import benchmark_tasks


@pytest.mark.parametrize(
    ("work_order", "steps"),
    [
        (
            "Owner: Ada. It was late.\n1. Read the weights.\n2. Please check them; then send them\nThanks, Ada",
            ["Read the weights", "Please check them", "then send them"],
        ),
        ("Dear all, the file is broken. It lies in /data.", ["Dear all, the file is broken", "It lies in /data"]),
        ("Readings are late. Read-outs differ. READ the log", ["READ the log"]),
        ("", []),
    ],
)
def test_orders_are_told_from_background(work_order, steps):
    assert ordered_steps(work_order) == steps


def test_the_steps_of_most_benchmark_tasks_are_found():
    tasks = benchmark_tasks()[::20]
    exact = sum(len(ordered_steps(task.description)) == len(task.required_tools) for task in tasks)
    assert exact / len(tasks) > 0.8
