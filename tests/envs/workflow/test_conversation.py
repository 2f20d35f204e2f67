"""Under the benchmark law Workflow-v0 is Conversation-v0 without the words."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from resilisim.envs.conversation import ConversationEnv
from resilisim.envs.workflow import spaces
from resilisim.envs.workflow.env import WorkflowEnv
from resilisim.envs.workflow.spaces import INVOKE_TOOL, RETRY_TOOL, action_index
from resilisim.seeding import EVALUATION_SALT
from resilisim.simulator.exact.optimum import solve
from resilisim.simulator.messages import Message
from resilisim.simulator.problem import is_done, next_state, start_state, success_probability
from tests.envs.workflow.cases import TASKS

# What a call that failed shows for each documented error; every other error is FAILED.
SHOWN = {"TIMEOUT": spaces.STATUS_TIMEOUT, "DEPENDENCY_ERROR": spaces.STATUS_DEPENDENCY_FAILED}
HARDER: dict[str, Any] = {
    "base": 0.6,
    "not_executed": 0.7,
    "failed": 0.6,
    "history": 0.95,
    "max_consecutive_failures": 3,
}


def call_of(shown: dict[str, Any], tool: int) -> int:
    failed = shown["tools"][tool, spaces.TOOL_STATUS] in (
        spaces.STATUS_FAILED,
        spaces.STATUS_TIMEOUT,
        spaces.STATUS_DEPENDENCY_FAILED,
    )
    return action_index(RETRY_TOOL if failed else INVOKE_TOOL, tool, 30)


@pytest.mark.parametrize("constants", [{}, HARDER])
def test_same_calls_same_episode(constants: dict[str, Any]) -> None:
    workflow = WorkflowEnv(tasks=TASKS, salt=EVALUATION_SALT, **constants)
    conversation = ConversationEnv(**constants)
    names = workflow.core.library.names
    generator = np.random.default_rng(0)
    ends = set()
    for episode in range(100):
        task = TASKS[episode % len(TASKS)]
        shown, _ = workflow.reset(options={"task": task.instance_id, "episode_seed": episode})
        conversation.reset(seed=episode, options={"task": task, "prompt": "baseline"})
        problem = workflow.problem()
        state = start_state(problem)
        assert workflow.episode_state() == state
        closure = [workflow.core.library.index(name) for name in workflow.core.library.closure(task.required_tools)]
        ended, step = False, 0
        while not ended:
            if episode % 3 == 0:  # the plan: required tools in their order until each has succeeded
                due = shown["tools"][:, spaces.TOOL_DUE]
                tool = int(np.where(due == 0, 256, due.astype(np.int64)).argmin())
            else:
                tool = int(generator.choice(closure if generator.random() < 0.8 else 30))
            chance = success_probability(problem, state, tool)
            shown, reward, ended, _, info = workflow.step(call_of(shown, tool))
            _, said, over, _, heard = conversation.step(f"<tool_call>{names[tool]}</tool_call>")
            step += 1
            execution = heard["execution"]
            assert info["execution"]["tool"] == execution["tool"]
            assert info["execution"]["success"] == execution["success"]
            assert chance == execution["success_probability"]
            if not execution["success"] and shown["tools"][tool, spaces.TOOL_STATUS] != spaces.STATUS_SUCCESS:
                assert shown["tools"][tool, spaces.TOOL_STATUS] == SHOWN.get(execution["error"], spaces.STATUS_FAILED)
            state = next_state(problem, state, Message("execute", tool=names[tool]), execution["success"])
            if is_done(problem, state):  # Workflow-v0 implies the completion signal
                assert info["ended_by"] == "completion"
                assert (reward, ended, over) == (1.0, True, False)
                _, said, over, _, heard = conversation.step("<finish/>")
                assert said == 1.0
            elif ended and info["ended_by"] == "turns":  # the closing message is not a step of Workflow-v0
                assert step == 10
                assert not over
                _, said, over, _, heard = conversation.step("I give up.")
            else:
                assert workflow.episode_state() == heard["state"] == state
            assert ended == over
            if ended:
                assert heard["state"].ended_by == info["ended_by"]
                assert bool(said) == info["full_success"] == info["success"] == bool(reward)
                assert (heard["score"]["level"] == "full_success") == info["full_success"]
                assert heard["score"]["coverage"] == pytest.approx(info["coverage"])
                ends.add(info["ended_by"])
    assert ends >= {"completion", "consecutive_failures"}


def test_the_best_action_is_always_legal() -> None:
    """Without filters the mask never hides what the exact optimum would do, whatever happened before."""
    env = WorkflowEnv(tasks=TASKS[::4])
    generator = np.random.default_rng(5)
    checked = 0
    for episode in range(60):
        shown, _ = env.reset(seed=episode)
        optimum = solve(env.problem())
        ended = False
        while not ended:
            best = optimum.best_action(env.episode_state())
            if best.kind != "execute":  # what is not a call only says that nothing can be won any more
                break
            action = call_of(shown, env.core.library.index(best.tool or ""))
            assert shown["action_mask"][action] == 1
            checked += 1
            tool = int(generator.integers(30))
            shown, _, ended, _, _ = env.step(action if generator.random() < 0.6 else call_of(shown, tool))
    assert checked > 200
