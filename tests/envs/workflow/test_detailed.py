"""What `detailed=True` shows of tools: against a reference that asks for every way through the dependencies anew."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from resilisim.envs.random_libraries import random_settings
from resilisim.envs.workflow import WorkflowEnv, WorkflowOptions, spaces
from resilisim.envs.workflow.spaces import quantised
from resilisim.envs.workflow.vector import WorkflowVectorEnv
from resilisim.errors import InvalidInputError
from resilisim.simulator.tool_status import FAILED, SUCCEEDED

SERVING = slice(spaces.PART_SERVES_DUE, spaces.PART_SERVES_WEIGHT + 1)


def ways_of(tool: int, due: Any, status: Any, dependencies: Any) -> list[tuple[int, int, int]]:
    """Return (due, number of dependencies, first tool) of every way from a tool to one that is due."""
    if status[tool] == SUCCEEDED:
        return []
    found = []
    for user, needed in enumerate(dependencies):
        if tool not in needed:
            continue
        if due[user]:
            found.append((due[user], 1, user))
        else:
            found += [(end, steps + 1, user) for end, steps, _ in ways_of(user, due, status, dependencies)]
    return found


def expected_rows(env: WorkflowEnv, observation: Any) -> np.ndarray:
    problem, status = env.problem(), env.episode_state().status
    due = [int(row[spaces.TOOL_DUE]) for row in observation["tools"]]
    clean = [int(row[spaces.TOOL_CLEAN_PROBABILITY]) for row in observation["tools"]]
    # As the observation has them.
    kept = {
        kind: quantised(factor) / 255 for kind, factor in ((FAILED, problem.law.failed), (0, problem.law.not_executed))
    }
    weights: dict[int, float] = {}

    def weight(tool: int) -> float:
        if tool not in weights:
            users = [user for user, needed in enumerate(problem.dependencies) if tool in needed and is_wanted(user)]
            lost = 0.0 if status[tool] == SUCCEEDED else 1.0 - kept[status[tool]]
            weights[tool] = float(due[tool] > 0) + sum(weight(user) * lost for user in users)
        return weights[tool]

    def is_wanted(tool: int) -> bool:
        return due[tool] > 0 or bool(ways_of(tool, due, status, problem.dependencies))

    rows = np.zeros((problem.num_tools, SERVING.stop - SERVING.start), dtype=np.uint8)
    for tool in problem.closure:
        ways = ways_of(tool, due, status, problem.dependencies)
        if not ways:
            continue
        end, steps, _ = min(ways)
        firsts = {user for *way, user in ways if way == [end, steps]}
        users = [user for user, needed in enumerate(problem.dependencies) if tool in needed and is_wanted(user)]
        shown = int(observation["tool_parts"][tool, spaces.PART_SERVES_CHANCE])
        assert shown in {clean[user] for user in firsts}
        rows[tool] = (end, steps, len(users), shown, quantised(0.5 * weight(tool)))
    return rows


@pytest.mark.parametrize("parts", [(), ("corrupt",), ("error_kinds",), ("rate_limit",), ("drift",)])
def test_what_tools_serve_is_shown_in_every_state(parts: tuple[str, ...]) -> None:
    rng, most = np.random.default_rng(0), 0
    for number in range(3):
        drawn = random_settings("detailed", number, 2, num_tools=20, parts=parts)
        options = drawn.options.with_options({"detailed": True})
        env, plain = WorkflowEnv(options), WorkflowEnv(drawn.options)
        for seed in range(3):
            shown, _ = env.reset(seed=seed)
            other, _ = plain.reset(seed=seed)
            ended = False
            while not ended:
                expected = expected_rows(env, shown)
                np.testing.assert_array_equal(shown["tool_parts"][:, SERVING], expected)
                assert shown["law"][spaces.LAW_HISTORY_FACTOR] == quantised(env.problem().law.history)
                assert all(np.array_equal(shown[name], other[name]) for name in ("tools", "task", "action_mask"))
                if parts:
                    assert not other["tool_parts"][:, SERVING].any()
                most = max(most, int(expected[:, 1].max()))
                action = int(rng.choice(np.flatnonzero(shown["action_mask"])))
                shown, reward, ended, *_ = env.step(action)
                other, other_reward, other_ended, *_ = plain.step(action)
                assert (reward, ended) == (other_reward, other_ended)
    assert most > 1


def test_environments_side_by_side_show_the_same() -> None:
    drawn = random_settings("detailed", 0, 2, num_tools=20, parts=())
    options = drawn.options.with_options({"detailed": True})
    many, one = WorkflowVectorEnv(3, settings=options), WorkflowEnv(options)
    tasks, seeds = np.array([0, 1, 0]), np.array([5, 6, 7])
    shown, _ = many.reset(seed=0, options={"tasks": tasks, "seeds": seeds})
    assert many.single_observation_space.contains({name: array[0] for name, array in shown.items()})
    alone, _ = one.reset(seed=0, options={"task": 1, "episode_seed": 6})
    for _ in range(4):
        assert all(np.array_equal(shown[name][1], array) for name, array in alone.items())
        action = int(np.flatnonzero(alone["action_mask"])[0])
        alone, _, ended, *_ = one.step(action)
        shown, *_ = many.step(np.full(3, action))
        if ended:
            break


def test_a_hidden_list_stays_hidden_and_the_training_law_is_refused() -> None:
    drawn = random_settings("detailed", 0, 2, num_tools=20, parts=())
    env = WorkflowEnv(drawn.options.with_options({"detailed": True, "required": "hidden"}))
    shown, _ = env.reset(seed=0)
    assert not shown["tool_parts"][:, SERVING].any()
    with pytest.raises(InvalidInputError, match="detailed=True under the training law"):
        WorkflowOptions(law="training", detailed=True)
