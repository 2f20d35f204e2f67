"""Lessons of the exact optimum for any library and law: states that can come about, each once, and what is best there.

Nothing is played. From the starts of some lists all results of some actions are followed at once (`transition`): of
what the optimum does, of what the network would do, whose mistakes it has to see (DAgger, Ross, Gordon and Bagnell
2011, arXiv:1011.0686), and of another action that concerns the list. So one sweep meets states on the best path and off
it, likely ones and others, and none twice, where episodes meet the first few again and again. The solver that solved
the list for its start knows what each of these states is worth.

Of a large library a state is taught with the tools nearest to what is due and some of the others: weights do not depend
on how many tools there are, and attention is spent on no more.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from resilisim.envs.random_libraries import MAX_KEPT_STATES, MAX_KEPT_UNDER_PARTS
from resilisim.envs.workflow import spaces
from resilisim.envs.workflow.options import WorkflowOptions, resolve_tasks
from resilisim.envs.workflow.spaces import INVOKE_TOOL, NUM_ACTION_TYPES, RETRY_TOOL, action_index, num_tools_of
from resilisim.policies.ppo.imitation import Batch, label_states
from resilisim.policies.ppo.network import nearness
from resilisim.policies.ppo.states.transition import Actor, States, Transition, merge_places

STATES_OF_A_STEP = 64  # of all lists of a lesson after one number of messages
MOST_TOOLS, NUM_OTHERS = 40, 4  # of a library that are shown, and how many of them are drawn from all
# How likely an action that is taken is the optimum's, the network's, or another one.
SHARE_OF_ACTION = {"best": 0.5, "learner": 0.3, "other": 0.2}


def make_lesson(options: WorkflowOptions, generator: np.random.Generator, learner: Actor | None = None) -> Batch:
    """Return states of the tasks of some options with what the optimum does in them, if it could be solved for any.

    Args:
        options: Tasks, library, law and turns; the tasks have to be such that can be solved.
        generator: Draws which states are kept and which actions are tried.
        learner: The network as it is; its choices are followed, too.
    """
    tasks = resolve_tasks(options.tasks, options.resolved_library())
    transition = Transition(tasks, options, by_state=True, num_envs=4 * STATES_OF_A_STEP)
    states = transition.starts(np.arange(len(tasks)))
    weights: NDArray[np.float64] = np.ones(len(tasks))
    taught: list[Batch] = []
    while len(weights):
        # The likelier the more probable, but not in proportion: what is unlikely has to be known, too.
        order = np.argsort(np.log(generator.random(len(weights))) / np.sqrt(weights))[::-1][:STATES_OF_A_STEP]
        states, weights = states[order], weights[order]
        following, shares = [], []
        for part in transition.parts(len(weights)):
            batch, is_choosing = _labelled(transition, states[part])
            if is_choosing.any():
                taught.append(with_nearest({name: array[is_choosing] for name, array in batch.items()}, generator))
            goes_on = is_choosing & (batch["targets"].sum(axis=1) > 0)  # else nothing can succeed any more
            if not goes_on.any():
                continue
            some, own = states[part][goes_on], weights[part][goes_on]
            batch = {name: array[goes_on] for name, array in batch.items()}
            for kind, actions in _tried(batch, generator, learner).items():
                reached = transition.after(some, actions)
                following.append(reached.states[reached.is_open])
                shares.append((SHARE_OF_ACTION[kind] * own[reached.parents] * reached.chances)[reached.is_open])
        if not following:
            break
        states, weights = States.joined(following), np.concatenate(shares)
        if len(weights):
            first, place = merge_places(transition, states)
            states, weights = states[first], np.bincount(place, weights, len(first)).astype(np.float64)
    if not taught:  # nothing could be solved after all, beside what else is kept
        return {"values": np.zeros(0, dtype=np.float32)}
    return {name: np.concatenate([batch[name] for batch in taught]) for name in taught[0]}


def _labelled(transition: Transition, states: States) -> tuple[Batch, NDArray[np.bool_]]:
    """Return states with their targets, and in which of them something is left to choose."""
    shown, _ = transition.show(states)
    most = MAX_KEPT_UNDER_PARTS if transition.envs.core.law.has_sections else MAX_KEPT_STATES
    return label_states(transition.envs, {name: array.copy() for name, array in shown.items()}, most)


def _tried(batch: Batch, generator: np.random.Generator, learner: Actor | None) -> dict[str, NDArray[np.int64]]:
    """Return the actions that are followed in states with targets, by kind."""
    mask, targets = batch["action_mask"] != 0, batch["targets"]
    num_tools = num_tools_of(mask.shape[1])
    concerns = (batch["tools"][:, :, spaces.TOOL_DUE] > 0) | (
        batch["tools"][:, :, spaces.TOOL_FIRST_DESCENDANT_DUE] > 0
    )
    if "tool_parts" in batch:
        for column in (spaces.PART_IS_VALIDATOR, spaces.PART_IS_OPENER):
            concerns |= batch["tool_parts"][:, :, column] > 0
    likely = np.ones(mask.shape)  # of actions without a tool
    likely[:, : NUM_ACTION_TYPES * (num_tools + 1)] = 0.02
    for kind in (INVOKE_TOOL, RETRY_TOOL):
        first = action_index(kind, 0, num_tools)
        likely[:, first : first + num_tools] = np.where(concerns, 1.0, 0.02)
    tried = {"best": _drawn(targets, generator), "other": _drawn(mask * likely, generator)}
    if learner is not None:
        shown = {name: array for name, array in batch.items() if name not in ("targets", "values")}
        tried["learner"] = np.asarray(learner.act(shown, mask), dtype=np.int64)
    return tried


def _drawn(weights: NDArray[np.generic], generator: np.random.Generator) -> NDArray[np.int64]:
    """Return a column for each row, drawn by weights, of which some are positive."""
    sums = np.cumsum(weights, axis=1, dtype=np.float64)
    threshold = generator.random(len(weights)) * sums[:, -1] * (1.0 - 1e-12)
    drawn: NDArray[np.int64] = (sums <= threshold[:, None]).sum(axis=1)
    return drawn


def with_nearest(batch: Batch, generator: np.random.Generator, most: int = MOST_TOOLS) -> Batch:
    """Return the states with at most so many tools each: targets, the nearest to what is due, and a few of the others.

    The tools of a state keep their order.
    """
    tools = batch["tools"]
    number, num_tools = tools.shape[:2]
    if num_tools <= most:
        return batch
    parts = batch.get("tool_parts")
    near = nearness(torch.from_numpy(tools), None if parts is None else torch.from_numpy(parts)).numpy().astype(float)
    by_type, rest = _by_type(batch["targets"], num_tools)
    is_target = by_type[:, :, :num_tools].sum(axis=1) > 0
    near += near.max() * (is_target & (is_target.cumsum(axis=1) <= most - 2 * NUM_OTHERS))
    others = generator.integers(num_tools, size=(number, NUM_OTHERS))
    np.put_along_axis(near, others, np.inf, axis=1)
    kept = np.sort(np.argpartition(-near, most - 1, axis=1)[:, :most], axis=1)
    picked: Batch = {
        name: np.take_along_axis(batch[name], kept[:, :, None], axis=1)
        for name in ("tools", "tool_parts")
        if name in batch
    }
    actions = np.concatenate([kept, np.full((number, 1), num_tools)], axis=1)[:, None, :]
    for name in ("action_mask", "targets"):
        by_type, rest = _by_type(batch[name], num_tools)
        own = np.take_along_axis(by_type, actions, axis=2).reshape(number, -1)
        picked[name] = np.concatenate([own, rest], axis=1)
    share = picked["targets"].sum(axis=1, keepdims=True)
    picked["targets"] = (picked["targets"] / np.where(share > 0, share, 1.0)).astype(np.float32)
    return {**batch, **picked}


def _by_type(actions: NDArray[np.generic], num_tools: int) -> tuple[NDArray[np.generic], NDArray[np.generic]]:
    """Split columns of actions into those of types, (number, NUM_ACTION_TYPES, num_tools + 1), and the others."""
    size = NUM_ACTION_TYPES * (num_tools + 1)
    return actions[:, :size].reshape(len(actions), NUM_ACTION_TYPES, num_tools + 1), actions[:, size:]
