"""The ablation of the Transformer: one multilayer perceptron over all tools at once."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from resilisim.envs.workflow.actions import num_actions
from resilisim.errors import InvalidInputError
from resilisim.policies.ppo.features import NUM_TASK_INPUTS, NUM_TOOL_FEATURES, ColumnFeatures

OUTPUT_STD = 0.01  # logits and value start near 0


class WorkflowMLP(nn.Module):
    """Scores all actions and the state's value from the features of all tools, side by side.

    Nothing is shared between tools: the weights serve a library of this size and order only.

    Args:
        num_tools: Tools in the library, T.
        width: Size of each of the two hidden layers.
        autocast: Compute in bfloat16 where the weights lie on a CUDA device.

    Raises:
        InvalidInputError: If a number is below 1.
    """

    def __init__(self, num_tools: int, width: int = 256, autocast: bool = False) -> None:
        super().__init__()
        for name, number in (("num_tools", num_tools), ("width", width)):
            if number < 1:
                raise InvalidInputError(f"{name} {number}: expected at least 1")
        self.num_tools = num_tools
        self.num_actions = num_actions(num_tools)
        self.autocast = autocast
        self.features = ColumnFeatures()
        self.hidden = nn.Linear(num_tools * NUM_TOOL_FEATURES + NUM_TASK_INPUTS, width)
        self.hidden_2 = nn.Linear(width, width)
        self.output = nn.Linear(width, self.num_actions + 1)
        nn.init.normal_(self.output.weight, std=OUTPUT_STD)
        nn.init.zeros_(self.output.bias)

    def forward(self, tools: Tensor, task: Tensor) -> Tensor:
        """Return the logits of all actions, in the layout of `actions`, and the value.

        Args:
            tools: (B, T, NUM_TOOL_COLUMNS), whole numbers from 0 to 255 of any type.
            task: (B, NUM_TASK_COLUMNS), the same.

        Returns:
            float32 (B, num_actions + 1), the value last.
        """
        enabled = self.autocast and tools.device.type == "cuda"
        with torch.autocast("cuda", dtype=torch.bfloat16, enabled=enabled):
            tool_features, task_features = self.features(tools, task)
            inputs = torch.cat([tool_features.flatten(1), task_features], dim=-1)
            hidden = nn.functional.relu(self.hidden(inputs))
            output: Tensor = self.output(nn.functional.relu(self.hidden_2(hidden)))
        return output.float()
