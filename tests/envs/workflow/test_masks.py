"""Which actions are legal: never none, never less than a way forward, and what each filter keeps out."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from resilisim.envs.workflow.actions import (
    INVOKE_TOOL,
    META_NO_OP,
    PARALLEL_EXECUTE,
    RETRY_TOOL,
    action_index,
    meta_action_index,
    num_actions,
)
from resilisim.envs.workflow.env import WorkflowEnv
from resilisim.envs.workflow.vector import WorkflowVectorEnv
from resilisim.simulator.exact import solve
from resilisim.tasks.benchmark import benchmark_tasks
from tests.envs.workflow.playing import execute, random_legal

FILTERS = ("semantic", "dependency", "constraint")
FILTER_SETS = [chosen for count in range(4) for chosen in itertools.combinations(FILTERS, count)]
NUM_TOOLS = 30
NO_OP = meta_action_index(META_NO_OP, NUM_TOOLS)
TASKS = benchmark_tasks()[:200]


def of_type(mask, action_type):
    """Return the part of masks (num_envs, num_actions) that is about executing or treating tools so, without 'none'."""
    start = action_index(action_type, 0, NUM_TOOLS)
    return mask[:, start : start + NUM_TOOLS]


def executions(mask):
    """Return which tools a mask lets be executed, bool (num_envs, num_tools)."""
    return (of_type(mask, INVOKE_TOOL) | of_type(mask, RETRY_TOOL) | of_type(mask, PARALLEL_EXECUTE)).astype(bool)


def played(num_envs=2048, num_steps=40, seed=0, **options):
    """Yield masks and observations of random legal play, from its first step on."""
    envs = WorkflowVectorEnv(num_envs, tasks=TASKS, autoreset_mode="SAME_STEP", copy=False, **options)
    generator = np.random.default_rng(seed)
    observations, _ = envs.reset(seed=seed)
    for _ in range(num_steps):
        yield envs, observations
        observations, *_ = envs.step(random_legal(observations["action_mask"], generator))
    yield envs, observations


@pytest.mark.parametrize("law", ["benchmark", "training"])
@pytest.mark.parametrize("filters", FILTER_SETS)
@pytest.mark.parametrize(("required", "printed"), [("shown", False), ("hidden", True)])
def test_a_mask_is_never_empty(law, filters, required, printed):
    """Over 2.6 million steps in all; neither are 'none' duplicates legal, nor types without a meaning under a law."""
    never = np.zeros(num_actions(NUM_TOOLS), dtype=bool)
    never[[action_index(kind, NUM_TOOLS, NUM_TOOLS) for kind in range(9)]] = True
    if law == "benchmark":
        never[:] = True
        for kind in (INVOKE_TOOL, RETRY_TOOL):
            never[action_index(kind, 0, NUM_TOOLS) : action_index(kind, NUM_TOOLS, NUM_TOOLS)] = False
        never[NO_OP] = False
    for _, observations in played(law=law, filters=filters, required=required, printed_rules=printed):
        mask = observations["action_mask"]
        assert mask.max() == 1
        assert mask.min() == 0
        legal = mask.any(axis=1)
        assert legal.all()
        assert not mask[:, never].any()
        if law == "benchmark":  # NO_OP is what remains, and only then
            assert (mask[:, NO_OP] == ~executions(mask).any(axis=1)).all()


def test_the_exact_optimum_is_always_legal_without_filters():
    env = WorkflowEnv(tasks=TASKS[:12])
    for task in range(12):
        env.reset(options={"task": task, "episode_seed": task})
        optimum, ended = solve(env.core.problem(0)), False
        while not ended:
            best = optimum.best_action(env.core.episode_state(0))
            ended = env.step(execute(env, env.core.library.index(best.tool)))[2]
