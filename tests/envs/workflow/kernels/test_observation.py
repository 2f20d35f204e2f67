"""Every column of an observation, computed again in plain Python from what happened in the episode."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from resilisim.envs.workflow import spaces
from resilisim.envs.workflow.core import decode_action
from resilisim.envs.workflow.env import WorkflowEnv
from resilisim.envs.workflow.spaces import (
    INVOKE_TOOL,
    META_NO_OP,
    STATUS_SUCCESS,
    TOOL_CONFIDENCE,
    action_index,
    meta_action_index,
    num_actions,
)
from resilisim.envs.workflow.vector import WorkflowVectorEnv
from resilisim.errors import InvalidInputError
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
        assert shown[0]["task"][spaces.TASK_STEPS_USED] > 3


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


@pytest.fixture(scope="module")
def env():
    return WorkflowEnv(tasks="validation")


def test_a_required_tool_decodes_to_its_call(env):
    env.reset(options={"task": 0})
    task = env.core.tasks[0]
    tool = env.core.library.index(task.required_tools[0])
    decoded = decode_action(env.core, action_index(INVOKE_TOOL, tool, 30))
    assert (decoded.type, decoded.tool) == ("INVOKE_TOOL", task.required_tools[0])
    record = env.core.records[0]
    assert decoded.semantic.score == pytest.approx(max(0.0, float(record.similarity[tool])))
    assert decoded.confidence == pytest.approx(float(record.static_confidence[tool]))
    assert len(decoded.semantic.alternatives) == 3
    assert decoded.tool not in decoded.semantic.alternatives
    required = [parameter.name for parameter in env.core.library[decoded.tool].parameters if parameter.required]
    assert set(required) <= set(decoded.parameters)


def test_patterns_are_named_as_the_source(env):
    names = env.core.library.names
    env.set_patterns({(names[0], names[29]): 1.0})
    try:
        env.reset(options={"task": 0})
        before = decode_action(env.core, action_index(INVOKE_TOOL, 29, 30))
        env.step_with_outcome(action_index(INVOKE_TOOL, 0, 30), STATUS_SUCCESS)
        after = decode_action(env.core, action_index(INVOKE_TOOL, 29, 30))
    finally:
        env.set_patterns({})
    assert after.semantic.source == "pattern" != before.semantic.source
    assert after.confidence == pytest.approx(before.confidence + 0.25)


def test_a_meta_action_has_no_tool(env):
    env.reset(options={"task": 0})
    decoded = decode_action(env.core, meta_action_index(META_NO_OP, 30))
    assert (decoded.type, decoded.tool, decoded.semantic, decoded.confidence) == ("NO_OP", None, None, 1.0)
    with pytest.raises(InvalidInputError, match="action 283: expected 0 to 282"):
        decode_action(env.core, num_actions(30))


def confidence_shown_and_decoded(env, tool):
    shown = int(env.core.observation["tools"][0, tool, TOOL_CONFIDENCE])
    return shown, int(255 * decode_action(env.core, tool).confidence + 0.5)


def test_running_episodes_follow_new_patterns():
    env = WorkflowEnv(tasks="validation", filters=("semantic",))
    names = env.core.library.names
    env.reset(seed=0)
    legal = int(env.action_masks()[:30].argmax())
    env.step_with_outcome(legal, STATUS_SUCCESS)
    plain = confidence_shown_and_decoded(env, 29)
    env.set_patterns({(names[legal], names[29]): 1.0})
    raised = confidence_shown_and_decoded(env, 29)
    assert plain[0] == plain[1]
    assert raised[0] == raised[1]
    assert raised[0] - plain[0] in (63, 64)  # a quarter of 255, between two roundings
    assert env.action_masks()[29]
    env.set_patterns({})
    assert confidence_shown_and_decoded(env, 29) == plain
