"""The network's inputs: the small integers of an observation as one-hot codes and scaled numbers.

Every column of `columns` holds an integer from 0 to 255, so whatever a network wants to know about it is a row of a
table with 256 rows. The tables of all columns stand in one constant matrix, and the features of a tool are the sum of
the rows that its columns name, each column filling features of its own. That is one `embedding_bag`, a single pass over
memory, where comparing with `arange` would take one pass for each group. Nothing here is learned.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from resilisim.envs.workflow import columns

NUM_VALUES = 256  # values of a column
PLACES = 9  # codes of a place: none, 1 to 7, 8 or later
STEPS_PER_EPISODE = 20  # the longest episode of the two laws; later steps saturate
LARGEST_SCALED = 2.0  # counts beyond twice their scale no longer differ

# Columns that `expand_tools` and `expand_task` append to those of an observation.
AGE = columns.NUM_TOOL_COLUMNS  # steps since the tool was last selected, 0: by the latest step; 255: never
SLACK = columns.NUM_TASK_COLUMNS  # STEPS_LEFT - NUM_DUE + SLACK_OFFSET, from 0: steps that may fail
SLACK_OFFSET = 4


@dataclass(frozen=True)
class Group:
    """The features of one column x.

    Attributes:
        column: Index of the column.
        codes: Number of one-hot features: x = 0, x = 1, ..., x >= codes - 1; 0 for none.
        positive: Whether there is a feature x > 0.
        scale: Divisor of a feature min(x / scale, LARGEST_SCALED); 0 for none.
    """

    column: int
    codes: int = 0
    positive: bool = False
    scale: float = 0.0

    @property
    def size(self) -> int:
        """The number of features."""
        return self.codes + self.positive + (self.scale > 0)

    def table(self) -> np.ndarray:
        """Return the features of every value: float32 (NUM_VALUES, size)."""
        values = np.arange(NUM_VALUES)
        parts = [np.minimum(values, self.codes - 1)[:, None] == np.arange(self.codes)] if self.codes else []
        if self.positive:
            parts.append(values[:, None] > 0)
        if self.scale:
            parts.append(np.minimum(values / self.scale, LARGEST_SCALED)[:, None])
        return np.concatenate(parts, axis=1, dtype=np.float32)


TOOL_GROUPS = (
    Group(columns.STATUS, codes=len(columns.STATUSES)),
    # DUE says which tool is next; PLACE adds only whether a tool that has succeeded was required, and roughly where.
    Group(columns.PLACE, scale=8),
    Group(columns.DUE, codes=PLACES, scale=8),
    Group(columns.EXECUTIONS, scale=4),
    # The constraint filter and the fallback look at up to three failures.
    Group(columns.RETRIES, codes=4),
    Group(columns.NUM_NOT_EXECUTED, positive=True, scale=4),
    Group(columns.NUM_FAILED, positive=True, scale=4),
    Group(columns.CLEAN_PROBABILITY, scale=255),
    Group(columns.NUM_DEPENDENTS_DUE, scale=4),
    Group(columns.FIRST_DEPENDENT_DUE, codes=PLACES),
    Group(columns.FIRST_DESCENDANT_DUE, codes=PLACES),
    Group(columns.LEVEL, scale=8),
    Group(columns.NUM_DEPENDENCIES, scale=4),
    Group(columns.OPERATION_TYPE, codes=6),
    Group(columns.SIMILARITY, scale=255),
    Group(columns.CONFIDENCE, scale=255),
    Group(columns.IS_CANDIDATE, scale=1),
    Group(columns.LAST_STEP, scale=STEPS_PER_EPISODE),
    Group(columns.SUCCESS_ORDER, positive=True, scale=8),
    # Selected by the latest step, by the one before it, or earlier: what a repeated choice costs depends on it.
    Group(AGE, codes=3),
)
TASK_GROUPS = (
    *(Group(column, scale=255) for column in range(columns.NUM_TASK_FEATURES)),
    Group(columns.PROGRESS, scale=255),
    Group(columns.STEPS_USED, positive=True, scale=STEPS_PER_EPISODE),
    Group(columns.STEPS_LEFT, codes=STEPS_PER_EPISODE + 1, scale=STEPS_PER_EPISODE),
    Group(columns.NUM_REQUIRED, scale=8),
    Group(columns.NUM_DUE, codes=PLACES, scale=8),
    Group(columns.MILESTONES, scale=4),
    Group(columns.MILESTONES_EXPECTED, scale=4),
    Group(columns.TOTAL_FAILURES, positive=True, scale=8),
    Group(columns.CONSECUTIVE_FAILURES, codes=4, scale=8),
    Group(columns.HISTORY_FACTOR, scale=255),
    Group(columns.ORDER_BROKEN, scale=1),
    Group(columns.LOOP_COUNT, positive=True, scale=4),
    Group(columns.BASE_PROBABILITY, scale=255),
    Group(columns.PHASE, scale=1),
    Group(columns.STAGE, codes=5),
    Group(columns.HAS_CHECKPOINT, scale=1),
    Group(columns.NUM_RUNNING, positive=True, scale=4),
    Group(columns.DATA_FLOW, codes=5),
    # How many more steps there are than required tools left decides whether a risk is worth taking.
    Group(SLACK, codes=SLACK_OFFSET + 9, scale=STEPS_PER_EPISODE),
)
# 64, which is worth keeping: matrix products with a multiple of the processor's vector length are faster.
NUM_TOOL_FEATURES = sum(group.size for group in TOOL_GROUPS)
NUM_TASK_INPUTS = sum(group.size for group in TASK_GROUPS)


# 0 for the columns of the task that the network does not read.
READ_COLUMNS = tuple(int(column not in (columns.PHASE, columns.STAGE)) for column in range(columns.NUM_TASK_COLUMNS))


def lookup_table(groups: Sequence[Group]) -> Tensor:
    """Return the constant matrix for `groups`, one for each column in the columns' order.

    Returns:
        float32 (len(groups) * NUM_VALUES, sum of the sizes); row `column * NUM_VALUES + value` has the features of the
        value at their place and 0 everywhere else.
    """
    width = sum(group.size for group in groups)
    table = np.zeros((len(groups), NUM_VALUES, width), dtype=np.float32)
    start = 0
    for group in groups:
        table[group.column, :, start : start + group.size] = group.table()
        start += group.size
    return torch.from_numpy(table.reshape(len(groups) * NUM_VALUES, width))


def expand_tools(tools: Tensor, task: Tensor) -> Tensor:
    """Return the columns of the tools with AGE.

    Args:
        tools: (B, T, NUM_TOOL_COLUMNS) integers, int32.
        task: (B, NUM_TASK_COLUMNS) integers, int32.

    Returns:
        int32 (B, T, NUM_TOOL_COLUMNS + 1).
    """
    last = tools[..., columns.LAST_STEP]
    age = (task[:, columns.STEPS_USED, None] - last).clamp(0, NUM_VALUES - 1)
    return torch.cat([tools, age.masked_fill(last == 0, NUM_VALUES - 1)[..., None]], dim=-1)


def expand_task(task: Tensor) -> Tensor:
    """Return the columns of the task with SLACK: int32 (B, NUM_TASK_COLUMNS) to int32 (B, NUM_TASK_COLUMNS + 1).

    Phase and stage are the trainer's and mean nothing where a policy is used, so the network sees them as 0.
    """
    task = task * task.new_tensor(READ_COLUMNS)
    slack = task[:, columns.STEPS_LEFT] - task[:, columns.NUM_DUE] + SLACK_OFFSET
    return torch.cat([task, slack.clamp(0, NUM_VALUES - 1)[:, None]], dim=-1)


class ColumnFeatures(nn.Module):
    """Turns the columns of an observation into features; has no parameters, and its constants are not saved."""

    tool_table: Tensor
    task_table: Tensor
    tool_offsets: Tensor
    task_offsets: Tensor

    def __init__(self) -> None:
        super().__init__()
        for name, groups in (("tool", TOOL_GROUPS), ("task", TASK_GROUPS)):
            offsets = torch.arange(len(groups), dtype=torch.int32) * NUM_VALUES
            self.register_buffer(f"{name}_table", lookup_table(groups), persistent=False)
            self.register_buffer(f"{name}_offsets", offsets, persistent=False)

    def forward(self, tools: Tensor, task: Tensor) -> tuple[Tensor, Tensor]:
        """Return the features of every tool and of the task.

        Args:
            tools: (B, T, NUM_TOOL_COLUMNS), whole numbers from 0 to 255 of any type.
            task: (B, NUM_TASK_COLUMNS), the same.

        Returns:
            float32 (B, T, NUM_TOOL_FEATURES) and float32 (B, NUM_TASK_INPUTS).
        """
        task = task.to(torch.int32)
        tools = expand_tools(tools.to(torch.int32), task)
        batch, num_tools, width = tools.shape
        rows = (tools + self.tool_offsets).view(batch * num_tools, width)
        tool_features = nn.functional.embedding_bag(rows, self.tool_table, mode="sum")
        task_features = nn.functional.embedding_bag(expand_task(task) + self.task_offsets, self.task_table, mode="sum")
        return tool_features.view(batch, num_tools, NUM_TOOL_FEATURES), task_features
