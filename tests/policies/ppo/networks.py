"""What the tests of networks and policies share: observations, checkpoints, and actors that were never trained."""

from __future__ import annotations

import numpy as np
import torch

from resilisim.envs.workflow import spaces
from resilisim.envs.workflow.spaces import INVOKE_TOOL, RETRY_TOOL, meta_action_index, num_actions
from resilisim.policies.ppo.checkpoint import describe_policy, save_checkpoint
from resilisim.policies.ppo.network import make_network
from resilisim.tool_library import default_library


def observation(batch: int, num_tools: int, seed: int = 0, distinct: bool = False) -> dict[str, np.ndarray]:
    """Return random columns in plausible ranges; with `distinct`, no two tools of a row are equally relevant."""
    rng = np.random.default_rng(seed)
    tools = rng.integers(0, 5, (batch, num_tools, spaces.NUM_TOOL_COLUMNS))
    some = rng.random((batch, num_tools, spaces.NUM_TOOL_COLUMNS)) < 0.3
    for column in (spaces.TOOL_STATUS, spaces.TOOL_DUE, spaces.TOOL_FIRST_DESCENDANT_DUE, spaces.TOOL_EXECUTIONS):
        tools[..., column] *= some[..., column]
    for column in (spaces.TOOL_CLEAN_PROBABILITY, spaces.TOOL_SIMILARITY, spaces.TOOL_CONFIDENCE):
        tools[..., column] = rng.integers(0, 256, (batch, num_tools))
    if distinct:
        tools[..., spaces.TOOL_CONFIDENCE] = rng.permuted(np.tile(np.arange(num_tools), (batch, 1)), axis=1)
    task = rng.integers(0, 20, (batch, spaces.NUM_TASK_COLUMNS))
    mask = rng.random((batch, num_actions(num_tools))) < 0.1
    mask[:, meta_action_index(0, num_tools)] = True
    return {"tools": tools.astype(np.uint8), "task": task.astype(np.uint8), "action_mask": mask.astype(np.int8)}


def tensors(seen: dict[str, np.ndarray]) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.from_numpy(seen["tools"]), torch.from_numpy(seen["task"])


def outputs(network: torch.nn.Module, seen: dict[str, np.ndarray]) -> torch.Tensor:
    with torch.no_grad():
        return network(*tensors(seen))


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
    return np.where(tools[:, spaces.TOOL_DUE] == 1, np.log(9.0 * (len(tools) - 1)), 0.0)


def dependencies_first(tools):
    """Prefer a tool that the next required one depends on and that can do without more, then that one."""
    is_helper = (tools[:, spaces.TOOL_FIRST_DESCENDANT_DUE] == 1) & (
        tools[:, spaces.TOOL_STATUS] != spaces.STATUS_SUCCESS
    )
    is_required = tools[:, spaces.TOOL_PLACE] > 0
    ready = (tools[:, spaces.TOOL_NUM_NOT_EXECUTED] + tools[:, spaces.TOOL_NUM_FAILED]) == 0
    return np.where(is_helper & ready & ~is_required, 8.0, np.where(tools[:, spaces.TOOL_DUE] == 1, 4.0, 0.0))


def first_tool_for_ever(tools):
    """Prefer tools in the order of the library, whether they have succeeded or not."""
    return -np.arange(len(tools)).astype(float)
