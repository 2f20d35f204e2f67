"""What the tests of the network and of the policy share: observations of random columns."""

import numpy as np
import torch

from resilisim.envs.workflow import columns
from resilisim.envs.workflow.actions import meta_action_index, num_actions


def observation(batch: int, num_tools: int, seed: int = 0, distinct: bool = False) -> dict[str, np.ndarray]:
    """Return random columns in plausible ranges; with `distinct`, no two tools of a row are equally relevant."""
    rng = np.random.default_rng(seed)
    tools = rng.integers(0, 5, (batch, num_tools, columns.NUM_TOOL_COLUMNS))
    some = rng.random((batch, num_tools, columns.NUM_TOOL_COLUMNS)) < 0.3
    for column in (columns.STATUS, columns.DUE, columns.FIRST_DESCENDANT_DUE, columns.EXECUTIONS):
        tools[..., column] *= some[..., column]
    for column in (columns.CLEAN_PROBABILITY, columns.SIMILARITY, columns.CONFIDENCE):
        tools[..., column] = rng.integers(0, 256, (batch, num_tools))
    if distinct:
        tools[..., columns.CONFIDENCE] = rng.permuted(np.tile(np.arange(num_tools), (batch, 1)), axis=1)
    task = rng.integers(0, 20, (batch, columns.NUM_TASK_COLUMNS))
    mask = rng.random((batch, num_actions(num_tools))) < 0.1
    mask[:, meta_action_index(0, num_tools)] = True
    return {"tools": tools.astype(np.uint8), "task": task.astype(np.uint8), "action_mask": mask.astype(np.int8)}


def tensors(seen: dict[str, np.ndarray]) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.from_numpy(seen["tools"]), torch.from_numpy(seen["task"])


def outputs(network: torch.nn.Module, seen: dict[str, np.ndarray]) -> torch.Tensor:
    with torch.no_grad():
        return network(*tensors(seen))
