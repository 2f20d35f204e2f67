"""Which actions are legal: never none, never less than a way forward, and what each filter keeps out."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from resilisim.envs.workflow import columns
from resilisim.envs.workflow.actions import (
    INVOKE_TOOL,
    META_NO_OP,
    META_RECOVER_ERROR,
    PARALLEL_EXECUTE,
    RECOVER_ERROR,
    RETRY_TOOL,
    action_index,
    meta_action_index,
    num_actions,
)
from resilisim.envs.workflow.columns import FAILED, STATUS, SUCCESS
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


def unmet_dependencies(envs, observations):
    """Return how many direct dependencies of each tool have not succeeded, (num_envs, num_tools)."""
    return observations["tools"][:, :, columns.NUM_NOT_EXECUTED].astype(int) + observations["tools"][
        :, :, columns.NUM_FAILED
    ].astype(int)


def fallback_tools(envs, observations, steps_used):
    """Return what Algorithm 1 makes executable, bool (num_envs, num_tools), were it needed."""
    core = envs.core
    open_tools = observations["tools"][:, :, STATUS] != SUCCESS
    candidates = core.context.candidates[core.episodes["task"]] & open_tools
    similarity = np.where(candidates, core.context.similarity[core.episodes["task"]], -np.inf)
    best = np.argsort(-similarity, axis=1, kind="stable")[:, :2]
    chosen = np.zeros_like(candidates)
    np.put_along_axis(chosen, best, True, axis=1)
    chosen &= candidates
    roots = np.array([not core.library.dependencies(name) for name in core.library.names]) & open_tools
    return np.where(chosen.any(axis=1)[:, None], chosen, roots & (steps_used < 10)[:, None])


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


def test_without_filters_every_tool_can_be_executed_at_every_step():
    for _, observations in played():
        mask, status = observations["action_mask"], observations["tools"][:, :, STATUS]
        np.testing.assert_array_equal(of_type(mask, RETRY_TOOL) == 1, status >= FAILED)
        np.testing.assert_array_equal(of_type(mask, INVOKE_TOOL) == 1, status < FAILED)
        assert (mask.sum(axis=1) == NUM_TOOLS).all()


def test_the_exact_optimum_is_always_legal_without_filters():
    env = WorkflowEnv(tasks=TASKS[:12])
    for task in range(12):
        env.reset(options={"task": task, "episode_seed": task})
        optimum, ended = solve(env.core.problem(0)), False
        while not ended:
            best = optimum.best_action(env.core.episode_state(0))
            ended = env.step(execute(env, env.core.library.index(best.tool)))[2]


@pytest.mark.parametrize("law", ["benchmark", "training"])
def test_the_dependency_filter_lets_no_dependency_be_unmet(law):
    fallen_back = 0
    for envs, observations in played(law=law, filters=("dependency",)):
        legal = executions(observations["action_mask"])
        open_tools = observations["tools"][:, :, STATUS] != SUCCESS
        running = observations["tools"][:, :, STATUS] == columns.RUNNING
        passing = (unmet_dependencies(envs, observations) == 0) & ~running
        forward = (passing & open_tools).any(axis=1) | running.any(axis=1)
        np.testing.assert_array_equal(legal[forward], passing[forward])
        fallen_back += int((~forward).sum())
    assert fallen_back == 0  # the tools without dependencies always pass


def few_resemble(description, names):
    """A similarity that speaks for one tool of a task, weakly for two more, and against all others."""
    scores = np.full(len(names), -1.0)
    for factor, score in ((1, 0.9), (7, 0.12), (11, 0.15)):
        scores[factor * len(description) % len(names)] = score
    return scores


@pytest.mark.parametrize("law", ["benchmark", "training"])
@pytest.mark.parametrize("filters", [("semantic",), ("semantic", "dependency"), FILTERS])
@pytest.mark.parametrize("similarity", ["auto", few_resemble])
def test_filters_and_the_fallback_leave_what_their_definition_says(law, filters, similarity):
    """Which tools can be executed, recomputed from the observation and the context; Algorithm 1 where none is left."""
    descends = None
    fallen_back = 0
    for envs, observations in played(law=law, filters=filters, similarity=similarity, num_envs=512):
        core, tools = envs.core, observations["tools"]
        names = core.library.names
        if descends is None:
            descends = np.array([[a != b and a in core.library.closure((b,)) for b in names] for a in names])
        status = tools[:, :, STATUS]
        running = status == columns.RUNNING
        passing = core.context.static_confidence[core.episodes["task"]] > 0.3
        if "dependency" in filters:
            passing &= unmet_dependencies(envs, observations) == 0
        if "constraint" in filters:
            passing &= (status != SUCCESS) & (tools[:, :, columns.RETRIES] < 3)
            related = (running[:, :, None] & (descends | descends.T)[None]).any(axis=1)
            passing &= ~related
        passing &= ~running
        stuck = ~(passing & (status != SUCCESS)).any(axis=1) & ~running.any(axis=1)
        steps_used = observations["task"][:, columns.STEPS_USED]
        passing[stuck] |= fallback_tools(envs, observations, steps_used)[stuck]
        np.testing.assert_array_equal(executions(observations["action_mask"]), passing)
        fallen_back += int(stuck.sum())
    assert fallen_back > 0 or similarity == "auto"  # shipped similarities make the fallback rare


def test_patterns_open_the_semantic_filter():
    env = WorkflowEnv(tasks=TASKS, filters=("semantic",), similarity=None)
    names = env.core.library.names
    static = env.core.context.static_confidence
    task, tool = (int(index) for index in np.argwhere((static > 0.06) & (static <= 0.3))[0])
    first = int(np.flatnonzero(static[task] > 0.3)[0])
    env.set_patterns({(names[first], names[tool]): 1.0})
    env.reset(options={"task": task, "episode_seed": 0})
    action = action_index(INVOKE_TOOL, tool, NUM_TOOLS)
    assert not env.action_masks()[action]
    env.step_with_outcome(execute(env, first), SUCCESS)
    assert env.action_masks()[action]


def unlike_everything(description, names):
    """A similarity that speaks against every tool, so that there are no candidates and no tool passes the filter."""
    return np.full(len(names), -1.0)


@pytest.mark.parametrize("law", ["benchmark", "training"])
def test_algorithm_1_ends_with_recovery(law):
    """Without candidates: the tools without dependencies before step 10, then only what executes nothing."""
    env = WorkflowEnv(
        tasks=TASKS[:5],
        law=law,
        filters=("semantic",),
        similarity=unlike_everything,
        max_turns=20,
        max_consecutive_failures=0,
    )
    env.reset(options={"task": 0, "episode_seed": 0})
    library = env.core.library
    roots = [not library.dependencies(name) for name in library.names]
    tool = roots.index(True)
    for _ in range(10):
        mask = env.action_masks()[None]
        assert executions(mask)[0].tolist() == roots
        _, _, ended, _, info = env.step_with_outcome(execute(env, tool), FAILED)
    mask = env.action_masks()
    assert not executions(mask[None]).any()
    assert mask[NO_OP]
    assert mask[meta_action_index(META_RECOVER_ERROR, NUM_TOOLS)] == (law == "training")
    assert mask[action_index(RECOVER_ERROR, tool, NUM_TOOLS)] == (law == "training")
    assert ended == (law == "training")
    assert info.get("ended_by") == ("deadlock" if ended else None)
