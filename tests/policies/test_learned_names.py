"""A policy that has learned the names of tools beats searches, which is why a plan of searches is no ceiling."""

from __future__ import annotations

import pytest

from resilisim import evaluate
from resilisim.policies import make_policy
from resilisim.policies.learned_names import training_memory
from resilisim.tasks.benchmark import benchmark_tasks
from resilisim.tasks.split import split_of
from resilisim.tool_library import ToolLibrary


@pytest.mark.long
def test_words_name_the_tools_of_tasks_that_were_never_read() -> None:
    held_out = [task for task in benchmark_tasks() if split_of(task.required_tools) == "test"]
    right = sum(training_memory().names(task.description) == task.required_tools for task in held_out)
    assert right / len(held_out) > 0.95
    assert len(held_out) == 698


@pytest.mark.long
def test_it_reaches_more_than_the_plan_of_searches_and_never_searches() -> None:
    tasks = [task for task in benchmark_tasks() if split_of(task.required_tools) == "test"][::15]
    run = evaluate("learned-names", tasks, "baseline", seeds=1)
    records = list(run.records())
    assert all(step["tool"] is not None for record in records for step in record["steps"][:-1])
    reached = run.rows[0].luck_adjusted
    assert reached is not None
    assert reached.value > run.rows[0].ceiling.value + 0.05  # the optimum itself is a fifth above the searches
    assert reached.value < run.rows[0].optimum.value + 0.03


def test_nothing_is_called_that_a_library_does_not_have() -> None:
    library = ToolLibrary.from_json('{"tools": [{"name": "own_tool", "description": "Does it."}]}', source="own")
    policy = make_policy("learned-names", library=library)
    policy.reset("Read the orders from the file on disk.", {})
    assert policy.act("Read the orders from the file on disk.", {"turns_left": 10}) is None
