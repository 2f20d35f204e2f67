"""Steps a second of Workflow-v0, scalar and batched, beside environments of Gymnasium."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import VectorEnv
from numpy.typing import NDArray

import resilisim  # registers the environment
from benchmarks.measurement import Measurement
from resilisim.envs.workflow import spaces
from resilisim.envs.workflow.spaces import (
    INVOKE_TOOL,
    NUM_ACTION_TYPES,
    NUM_META_ACTIONS,
    RETRY_TOOL,
    action_index,
)
from resilisim.envs.workflow.vector import WorkflowVectorEnv
from resilisim.simulator import Law

BATCHED_PEER, SCALAR_PEER = "CartPole-v1", "Taxi-v4"
NUM_ENVS, BATCHED_STEPS, SCALAR_STEPS, RUNS = 4096, 40, 5000, 15
TARGET_COPIED, TARGET_IN_PLACE, TARGET_SCALAR = 0.5, 1.0, 0.3
NUM_TOOLS, PEER_ACTIONS = 30, 6  # scalar actions: calls of any tool; those of Taxi

# Chooses actions (num_envs,) for an environment.
Policy = Callable[[WorkflowVectorEnv], NDArray[np.int64]]


def random_legal() -> Policy:
    """Return a policy that draws among the legal actions."""
    generator = np.random.default_rng(0)

    def choose(env: WorkflowVectorEnv) -> NDArray[np.int64]:
        mask = env.core.observation["action_mask"]
        drawn: NDArray[np.int64] = (generator.random(mask.shape, dtype=np.float32) * mask).argmax(axis=1)
        return drawn

    return choose


def sensible(env: WorkflowVectorEnv) -> NDArray[np.int64]:
    """Return what is most likely to succeed now, of the next required tool and the missing tools that lead to it.

    Among equals the required tool, then the order of the library. Missing dependencies therefore always run first.
    """
    observation = env.core.observation
    tools = observation["tools"].astype(np.int64)
    required = tools[:, :, spaces.TOOL_DUE] == 1
    helps = (tools[:, :, spaces.TOOL_FIRST_DESCENDANT_DUE] == 1) & (tools[:, :, spaces.TOOL_PLACE] == 0)
    useful = required | (helps & (tools[:, :, spaces.TOOL_STATUS] != spaces.STATUS_SUCCESS))
    score = np.where(useful, 2 * tools[:, :, spaces.TOOL_CLEAN_PROBABILITY] + required, -1)
    return _execution(score.argmax(axis=1), observation["action_mask"])


def _execution(tools: NDArray[np.int64], mask: NDArray[Any]) -> NDArray[np.int64]:
    """Return the legal execution of each tool, (num_envs,): RETRY_TOOL after a failure, else INVOKE_TOOL."""
    num_tools = (mask.shape[1] - NUM_META_ACTIONS) // NUM_ACTION_TYPES - 1
    retry = np.array([action_index(RETRY_TOOL, int(tool), num_tools) for tool in tools])
    invoke = np.array([action_index(INVOKE_TOOL, int(tool), num_tools) for tool in tools])
    is_retry = mask[np.arange(len(tools)), retry] != 0
    return np.where(is_retry, retry, invoke)


def batched(
    copy: bool, threads: int | None, num_envs: int = NUM_ENVS, law: Law | str = "benchmark"
) -> WorkflowVectorEnv:
    """Return environments of all tasks under a law."""
    made = gymnasium.make_vec(
        resilisim.WORKFLOW_ID,
        num_envs=num_envs,
        vectorization_mode="vector_entry_point",
        tasks="all",
        copy=copy,
        threads=threads,
        law=law,
    ).unwrapped
    if not isinstance(made, WorkflowVectorEnv):
        raise TypeError(f"{resilisim.WORKFLOW_ID} is not batched by its own class")
    return made


def _time(env: VectorEnv, actions: list[NDArray[np.int64]], clock: Callable[[], float]) -> float:
    """Return the seconds of some steps, with the resets among them."""
    start = clock()
    for chosen in actions:
        env.step(chosen)
    return clock() - start


def _batched_ratios(policy: Policy, copy: bool, is_threaded: bool) -> tuple[list[float], float]:
    """Return CartPole's time / ours of several runs in which both take turns, and our best rate in steps a second.

    On one thread the time is the processor's; on as many as the environment takes by itself it is the clock's.
    """
    ours = batched(copy, None if is_threaded else 1)
    clock = time.perf_counter if is_threaded else time.process_time
    peer = gymnasium.make_vec(BATCHED_PEER, num_envs=NUM_ENVS, vectorization_mode="vector_entry_point")
    peer.reset(seed=0)
    ours.reset(seed=0)
    actions = []
    for _ in range(BATCHED_STEPS):
        chosen = policy(ours)
        actions.append(chosen)
        ours.step(chosen)
    peer_actions = [peer.action_space.sample() for _ in range(BATCHED_STEPS)]
    _time(peer, peer_actions, clock)
    ratios, best = [], float("inf")
    for _ in range(RUNS):
        other = _time(peer, peer_actions, clock)
        ours.reset(seed=0)  # the episodes for which the actions were chosen
        taken = _time(ours, actions, clock)
        best = min(best, taken)
        ratios.append(other / taken)
    return ratios, NUM_ENVS * BATCHED_STEPS / best


def _scalar_rate(name: str, actions: list[int]) -> float:
    """Return steps a second by CPU time, resets included."""
    env = gymnasium.make(name)
    env.reset(seed=0)
    start = time.process_time()
    for action in actions:
        _, _, terminated, truncated, _ = env.step(action)
        if terminated or truncated:
            env.reset()
    return len(actions) / (time.process_time() - start)


def measure(long: bool) -> list[Measurement]:
    """Measure batched steps with full observation and mask, copied and in place, and scalar steps."""
    found = []
    for policy_name, policy in (("random legal", random_legal()), ("sensible", sensible)):
        ways = ((True, TARGET_COPIED), (False, TARGET_IN_PLACE))
        for (copy, target), is_threaded in itertools.product(ways, (False, True)):
            ratios, rate = _batched_ratios(policy, copy, is_threaded)
            how = ("copied" if copy else "in place") + (", a thread for each core" if is_threaded else "")
            found.append(
                Measurement(
                    f"Workflow-v0 / {BATCHED_PEER}, {NUM_ENVS:,} envs, {policy_name} actions, {how}",
                    "x as fast",
                    ratios,
                    target,
                    "higher",
                    note=f"at best {rate:,.0f} steps/s" + ("" if is_threaded else " of CPU time"),
                )
            )
    generator = np.random.default_rng(0)
    ours, peer = (generator.integers(size, size=SCALAR_STEPS).tolist() for size in (NUM_TOOLS, PEER_ACTIONS))
    _scalar_rate(resilisim.WORKFLOW_ID, ours[:100])
    rates = [(_scalar_rate(resilisim.WORKFLOW_ID, ours), _scalar_rate(SCALAR_PEER, peer)) for _ in range(RUNS)]
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else float("nan")
    found.append(
        Measurement(
            f"Workflow-v0 / {SCALAR_PEER}, both by gym.make",
            "x as fast",
            [own / other for own, other in rates],
            TARGET_SCALAR,
            "higher",
            note=f"at best {max(own for own, _ in rates):,.0f} steps/s of CPU time (load average {load:.1f})",
        )
    )
    return found
