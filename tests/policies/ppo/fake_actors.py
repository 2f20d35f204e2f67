"""Checkpoints for tests, and actors that know what to do without having been trained."""

from __future__ import annotations

import numpy as np
import torch

from resilisim.envs.workflow import columns
from resilisim.envs.workflow.actions import INVOKE_TOOL, RETRY_TOOL
from resilisim.policies.ppo.checkpoint import describe_policy, save_checkpoint
from resilisim.policies.ppo.network import make_network
from resilisim.tool_library import default_library

SMALL = {"width": 8, "layers": 1, "heads": 2, "attention_tokens": 6}


def save_random(folder, seed=0, library=None, kind="transformer", options=None, scale=40.0, **training):
    """Save an untrained network whose preferences differ clearly, and return the folder."""
    library = library or default_library()
    torch.manual_seed(seed)
    options = (SMALL if kind == "transformer" else {"width": 8}) if options is None else options
    network = make_network(kind, len(library), options)
    with torch.no_grad():
        head = network.tool_head if kind == "transformer" else network.output
        head.weight.mul_(scale)
    save_checkpoint(folder, network, describe_policy(network, library, training, {}, {}))
    return folder


class FakeActor:
    """An actor whose scores come from a function of the tools' columns; put in the place of `WorkflowActor`.

    Args:
        score: int (num_tools, NUM_TOOL_COLUMNS) -> float (num_tools,), the logits of executing each tool.
    """

    def __init__(self, score):
        self.score = score

    def __call__(self, network):
        return self

    def probabilities(self, observation, mask):
        (tools,), (legal,) = observation["tools"].astype(int), mask
        num_tools = len(tools)
        logits = np.full(legal.shape, -np.inf)
        for kind in (INVOKE_TOOL, RETRY_TOOL):
            logits[kind * (num_tools + 1) : kind * (num_tools + 1) + num_tools] = self.score(tools)
        logits[legal == 0] = -np.inf
        chances = np.exp(logits - logits.max())
        return (chances / chances.sum()).astype(np.float32)[None]


def next_required(tools):
    """Prefer the next required tool, nine to one against all others together."""
    return np.where(tools[:, columns.DUE] == 1, np.log(9.0 * (len(tools) - 1)), 0.0)


def dependencies_first(tools):
    """Prefer a tool that the next required one depends on and that can do without more, then that one."""
    is_helper = (tools[:, columns.FIRST_DESCENDANT_DUE] == 1) & (tools[:, columns.STATUS] != columns.SUCCESS)
    is_required = tools[:, columns.PLACE] > 0
    ready = (tools[:, columns.NUM_NOT_EXECUTED] + tools[:, columns.NUM_FAILED]) == 0
    return np.where(is_helper & ready & ~is_required, 8.0, np.where(tools[:, columns.DUE] == 1, 4.0, 0.0))


def first_tool_for_ever(tools):
    """Prefer tools in the order of the library, whether they have succeeded or not."""
    return -np.arange(len(tools)).astype(float)
