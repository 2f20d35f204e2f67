"""Every column, mask, reward and end of Workflow-v0 against a plain model that recomputes them from the history."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

from resilisim.envs.workflow import spaces
from resilisim.envs.workflow.env import WorkflowEnv
from resilisim.envs.workflow.options import FILTERS
from resilisim.envs.workflow.spaces import ACTION_TYPES, NUM_ACTION_TYPES, RETRY_TOOL, action_index, action_type_of
from resilisim.seeding import EVALUATION_SALT
from tests.envs.workflow.cases import (
    LARGE,
    LARGE_TASKS,
    LARGE_TURNS,
    TASKS,
    TOY,
    assert_same,
    every_filter,
    random_actions,
    reference_of,
    toy_task,
)
from tests.envs.workflow.reference import Reference, longest_ascending

# (running success, stage) of the trainer: every base, phase and error penalty.
TRAINERS = ((0.0, 0), (0.1, 1), (0.2, 2), (0.3, 3), (0.9, 4))
PATTERNS = {
    ("data_processing_parser", "data_processing_validator"): 0.9,
    ("file_operations_reader", "data_processing_parser"): 0.7,
    ("file_operations_reader", "data_processing_parser", "data_processing_validator"): 1.0,
}


def play(
    keywords: dict[str, Any],
    episodes: int,
    trainer: tuple[float, int] = (0.0, 0),
    most_steps: int = 1000,
    **more: Any,
) -> set[str]:
    """Play some episodes beside the model; return the action types and statuses that were met."""
    seen: set[str] = set()
    env = WorkflowEnv(**keywords)
    env.set_running_success(trainer[0])
    env.set_stage(trainer[1])
    if "patterns" in more:
        env.set_patterns(more["patterns"])
    generator = np.random.default_rng(3)
    shown, _ = env.reset(seed=11)
    for episode in range(episodes):
        model = reference_of(env, running_success=trainer[0], stage=trainer[1], **more)
        assert_same(shown, model.observation(), (keywords, episode, "start"))
        ended = False
        while not ended and model.steps < most_steps:
            # Successes in order are rare at random, so half of the episodes go for the required tools.
            wanted = shown["tools"][:, spaces.TOOL_FIRST_DESCENDANT_DUE] + shown["tools"][:, spaces.TOOL_DUE]
            mask = shown["action_mask"].copy()
            if episode % 2 == 0 and generator.random() < 0.8:
                for tool in np.flatnonzero(wanted == 0):
                    mask[tool : NUM_ACTION_TYPES * (len(wanted) + 1) : len(wanted) + 1] = 0
            chosen = mask if mask.any() else shown["action_mask"]
            action = int(random_actions(chosen[None], generator, illegal=0.1)[0])
            shown, reward, ended, truncated, info = env.step(action)
            expected_reward, expected_end = model.step(action)
            where = (keywords, episode, model.steps, action)
            seen.add(ACTION_TYPES[action_type_of(action, len(wanted))])
            seen |= {spaces.STATUSES[status] for status in np.unique(shown["tools"][:, spaces.TOOL_STATUS])}
            assert not truncated
            assert shown["action_mask"].any(), where
            assert ended == expected_end, where
            assert reward == pytest.approx(expected_reward, abs=1e-4), where
            assert_same(shown, model.observation(), where)
        if ended:
            assert_end(info, model)
        shown, _ = env.reset()
    return seen


def assert_end(info: dict[str, Any], model: Reference) -> None:
    assert info["ended_by"] == model.ended
    assert info["success"] == model.success()
    assert info["full_success"] == model.full_success()
    assert info["score"] == pytest.approx(model.progress)
    assert info["coverage"] == pytest.approx(model.coverage())
    assert info["sequence"] == pytest.approx(longest_ascending(model.required_places()) / len(model.required))
    assert info["steps"] == model.steps
    assert info["episode_return"] == pytest.approx(model.total, rel=1e-5, abs=1e-3)


@pytest.mark.parametrize(("law", "reward"), list(product(("benchmark", "training"), ("full_success", "two_phase"))))
def test_laws_and_rewards(law: Any, reward: Any) -> None:
    seen = {name for trainer in TRAINERS for name in play({"tasks": TASKS, "law": law, "reward": reward}, 10, trainer)}
    if law == "training":
        assert seen == {*ACTION_TYPES, *spaces.STATUSES}


@pytest.mark.parametrize("law", ["benchmark", "training"])
def test_printed_rules(law: Any) -> None:
    for trainer in TRAINERS:
        play({"tasks": TASKS, "law": law, "reward": "two_phase", "printed_rules": True}, 5, trainer)


@pytest.mark.long
@pytest.mark.parametrize("law", ["benchmark", "training"])
def test_filters(law: Any) -> None:
    for filters in every_filter():
        play({"tasks": TASKS, "law": law, "filters": filters, "reward": "two_phase"}, 4, (0.2, 1))


@pytest.mark.parametrize("law", ["benchmark", "training"])
def test_patterns_and_filters(law: Any) -> None:
    for filters in ((), ("semantic",), ("semantic", "dependency", "constraint")):
        play({"tasks": TASKS, "law": law, "filters": filters, "reward": "two_phase"}, 8, patterns=PATTERNS)


def test_hidden_list() -> None:
    for law, filters in product(("benchmark", "training"), ((), ("semantic", "constraint"))):
        keywords: dict[str, Any] = {"tasks": TASKS, "law": law, "filters": filters, "required": "hidden"}
        play(keywords, 6)


def test_without_a_list_of_required_tools() -> None:
    for reward, printed, filters in (
        ("full_success", False, ()),
        ("two_phase", False, FILTERS),
        ("two_phase", True, ()),
    ):
        keywords: dict[str, Any] = {"tasks": TASKS, "law": "training", "required": "none", "reward": reward}
        for trainer in TRAINERS[2:]:
            play({**keywords, "printed_rules": printed, "filters": filters}, 5, trainer)


def test_without_retrieval() -> None:
    for filters in every_filter():
        play({"tasks": TASKS, "law": "training", "filters": filters, "similarity": None}, 3)
        play({"tasks": TASKS, "filters": filters, "similarity": None, "max_turns": 14, "loop_length": 0}, 3)


def test_other_rules_and_constants() -> None:
    for more in (
        {"max_turns": 3},
        {"max_turns": 31, "max_consecutive_failures": 0, "loop_length": 0},
        {"max_consecutive_failures": 2, "loop_length": 2},
        {"base": 0.95, "not_executed": 0.25, "failed": 0.9, "history": 1.0},
        {"salt": EVALUATION_SALT},
    ):
        keywords: dict[str, Any] = {"tasks": TASKS, **more}
        play(keywords, 6)


@pytest.mark.parametrize("law", ["benchmark", "training"])
def test_small_library(law: Any) -> None:
    tasks = [toy_task(TOY, "write"), toy_task(TOY, "read", "parse", "write"), toy_task(TOY, "write", "parse")]
    for filters in ((), ("dependency", "constraint")):
        keywords: dict[str, Any] = {"tasks": tasks, "library": TOY, "law": law, "filters": filters, "similarity": None}
        play(keywords | {"reward": "two_phase"}, 12)


@pytest.mark.parametrize("law", ["benchmark", "training"])
def test_large_library(law: Any) -> None:
    for filters in ((), ("dependency", "constraint")):
        keywords: dict[str, Any] = {
            "tasks": LARGE_TASKS,
            "library": LARGE,
            "law": law,
            "filters": filters,
            "similarity": None,
        }
        play(keywords | {"reward": "two_phase", "max_turns": LARGE_TURNS}, 4, most_steps=40)


def test_counts_saturate() -> None:
    keywords: dict[str, Any] = {
        "tasks": LARGE_TASKS,
        "library": LARGE,
        "similarity": None,
        "max_turns": LARGE_TURNS,
        "max_consecutive_failures": 0,
        "loop_length": 0,
    }
    env = WorkflowEnv(**keywords)
    env.reset(seed=0)
    model = reference_of(env)
    for _ in range(LARGE_TURNS - 1):
        action = next(call for call in (0, action_index(RETRY_TOOL, 0, 45)) if model.mask()[call])
        shown, _, ended, _, _ = env.step(action)
        assert not ended
        model.step(action)
    assert shown["tools"][0, spaces.TOOL_EXECUTIONS] == 255
    assert shown["task"][spaces.TASK_STEPS_USED] == 255
    assert shown["task"][spaces.TASK_LOOP_COUNT] == 255
    assert shown["task"][spaces.TASK_STEPS_LEFT] == 1
    assert_same(shown, model.observation())
    _, _, ended, _, info = env.step(action)
    assert ended
    assert info["steps"] == LARGE_TURNS
