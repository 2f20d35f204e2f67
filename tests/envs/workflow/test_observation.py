"""Every column of an observation, computed again in plain Python from what happened in the episode."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from resilisim.envs.workflow import columns
from resilisim.envs.workflow.env import WorkflowEnv
from resilisim.envs.workflow.vector import WorkflowVectorEnv
from resilisim.tasks.benchmark import benchmark_tasks
from tests.envs.workflow.cases import random_actions

TASKS = benchmark_tasks()[:60]
NUM_TOOLS = 30


def test_hidden_tasks_that_differ_in_the_required_list_only_look_the_same():
    """Under equal outcomes; the text, type, inputs and outputs are the same, so nothing else may give the list away."""
    task = TASKS[0]
    other = replace(task, required_tools=(*reversed(task.required_tools), "network_router"))
    for law in ("benchmark", "training"):
        options = {"law": law, "required": "hidden", "filters": ("dependency",), "max_turns": 20}
        pair = [WorkflowEnv(tasks=[one], **options) for one in (task, other)]
        assert pair[0].core.tasks[0].required_tools != pair[1].core.tasks[0].required_tools
        shown = [env.reset(options={"task": 0, "episode_seed": 5})[0] for env in pair]
        generator = np.random.default_rng(0)
        ended = [False, False]
        for _ in range(20):
            for name, array in shown[0].items():
                np.testing.assert_array_equal(array, shown[1][name], err_msg=name)
            if any(ended):
                break
            action = random_actions(shown[0]["action_mask"][None], generator)[0]
            stepped = [env.step(action) for env in pair]
            shown, ended = [step[0] for step in stepped], [step[2] for step in stepped]
        assert shown[0]["task"][columns.STEPS_USED] > 3


def test_observations_do_not_change_later_unless_views_are_asked_for():
    for copy in (True, False):
        envs = WorkflowVectorEnv(8, tasks=TASKS, autoreset_mode="SAME_STEP", copy=copy)
        observations, _ = envs.reset(seed=0)
        handed_out = [observations]
        kept = [{name: array.copy() for name, array in observations.items()}]
        for step in range(25):
            observations, *_ = envs.step(np.full(8, step))
            handed_out.append(observations)
            kept.append({name: array.copy() for name, array in observations.items()})
        for given, copied in zip(handed_out[:-1], kept[:-1], strict=True):
            same = all(np.array_equal(given[name], copied[name]) for name in given)
            assert same == copy
            assert all(np.shares_memory(given[name], envs.core.episodes) != copy for name in given)
    env = WorkflowEnv(tasks=TASKS)
    first, _ = env.reset(seed=0)
    kept_first = {name: array.copy() for name, array in first.items()}
    env.step(0)
    assert all(np.array_equal(first[name], kept_first[name]) for name in first)
