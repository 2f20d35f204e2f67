"""What the policy networks of Workflow-v0 read: the small integers of an observation as one-hot codes and numbers.

Every column of an observation holds an integer from 0 to 255, so whatever a network wants to know about it is a row of
a table with 256 rows. The tables of all columns stand in one constant matrix, and the features of a tool are the sum of
the rows that its columns name, each column filling features of its own. That is one `embedding_bag`, a single pass over
memory, where comparing with `arange` would take one pass for each group. Nothing of this is learned.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np
import torch
from torch import Tensor, nn

from resilisim.envs.workflow import spaces

NUM_VALUES = 256  # values of a column
_PLACES = 9  # codes of a place: none, 1 to 7, 8 or later
STEPS_PER_EPISODE = 20  # the longest episode of the two laws; later steps saturate
LARGEST_SCALED = 2.0  # counts beyond twice their scale no longer differ

# Columns that `expand_tools` and `expand_task` append to those of an observation.
AGE = spaces.NUM_TOOL_COLUMNS  # steps since the tool was last selected, 0: by the latest step; 255: never
SLACK = spaces.NUM_TASK_COLUMNS  # STEPS_LEFT - NUM_DUE + SLACK_OFFSET, from 0: steps that may fail
SLACK_OFFSET = 4


@dataclass(frozen=True)
class Group:
    """The features of one column x."""

    column: int
    codes: int = 0  # number of one-hot features: x = 0, x = 1, ..., x >= codes - 1
    positive: bool = False  # whether there is a feature x > 0
    scale: float = 0.0  # divisor of a feature min(x / scale, LARGEST_SCALED); 0 for none
    bits: int = 0  # number of features that are the lowest bits of x

    @property
    def size(self) -> int:
        """The number of features."""
        return self.codes + self.positive + (self.scale > 0) + self.bits

    def to_mapping(self) -> dict[str, int | float | bool]:
        """Return the fields, `bits` only where there are some: a hash of layouts that ship was made without it."""
        fields = asdict(self)
        return fields if self.bits else {name: value for name, value in fields.items() if name != "bits"}

    def table(self) -> np.ndarray:
        """Return the features of every value: float32 (NUM_VALUES, size)."""
        values = np.arange(NUM_VALUES)
        parts = [np.minimum(values, self.codes - 1)[:, None] == np.arange(self.codes)] if self.codes else []
        if self.positive:
            parts.append(values[:, None] > 0)
        if self.scale:
            parts.append(np.minimum(values / self.scale, LARGEST_SCALED)[:, None])
        if self.bits:
            parts.append(values[:, None] >> np.arange(self.bits) & 1)
        return np.concatenate(parts, axis=1, dtype=np.float32)


TOOL_GROUPS = (
    Group(spaces.TOOL_STATUS, codes=len(spaces.STATUSES)),
    # DUE says which tool is next; PLACE adds only whether a tool that has succeeded was required, and roughly where.
    Group(spaces.TOOL_PLACE, scale=8),
    Group(spaces.TOOL_DUE, codes=_PLACES, scale=8),
    Group(spaces.TOOL_EXECUTIONS, scale=4),
    # The constraint filter and the fallback look at up to three failures.
    Group(spaces.TOOL_RETRIES, codes=4),
    Group(spaces.TOOL_NUM_NOT_EXECUTED, positive=True, scale=4),
    Group(spaces.TOOL_NUM_FAILED, positive=True, scale=4),
    Group(spaces.TOOL_CLEAN_PROBABILITY, scale=255),
    Group(spaces.TOOL_NUM_DEPENDENTS_DUE, scale=4),
    Group(spaces.TOOL_FIRST_DEPENDENT_DUE, codes=_PLACES),
    Group(spaces.TOOL_FIRST_DESCENDANT_DUE, codes=_PLACES),
    Group(spaces.TOOL_LEVEL, scale=8),
    Group(spaces.TOOL_NUM_DEPENDENCIES, scale=4),
    Group(spaces.TOOL_OPERATION_TYPE, codes=6),
    Group(spaces.TOOL_SIMILARITY, scale=255),
    Group(spaces.TOOL_CONFIDENCE, scale=255),
    Group(spaces.TOOL_IS_CANDIDATE, scale=1),
    Group(spaces.TOOL_LAST_STEP, scale=STEPS_PER_EPISODE),
    Group(spaces.TOOL_SUCCESS_ORDER, positive=True, scale=8),
    # Selected by the latest step, by the one before it, or earlier: what a repeated choice costs depends on it.
    Group(AGE, codes=3),
)
TASK_GROUPS = (
    *(Group(column, scale=255) for column in range(spaces.NUM_TASK_FEATURES)),
    Group(spaces.TASK_PROGRESS, scale=255),
    Group(spaces.TASK_STEPS_USED, positive=True, scale=STEPS_PER_EPISODE),
    Group(spaces.TASK_STEPS_LEFT, codes=STEPS_PER_EPISODE + 1, scale=STEPS_PER_EPISODE),
    Group(spaces.TASK_NUM_REQUIRED, scale=8),
    Group(spaces.TASK_NUM_DUE, codes=_PLACES, scale=8),
    Group(spaces.TASK_MILESTONES, scale=4),
    Group(spaces.TASK_MILESTONES_EXPECTED, scale=4),
    Group(spaces.TASK_TOTAL_FAILURES, positive=True, scale=8),
    Group(spaces.TASK_CONSECUTIVE_FAILURES, codes=4, scale=8),
    Group(spaces.TASK_HISTORY_FACTOR, scale=255),
    Group(spaces.TASK_ORDER_BROKEN, scale=1),
    Group(spaces.TASK_LOOP_COUNT, positive=True, scale=4),
    Group(spaces.TASK_BASE_PROBABILITY, scale=255),
    Group(spaces.TASK_PHASE, scale=1),
    Group(spaces.TASK_STAGE, codes=5),
    Group(spaces.TASK_HAS_CHECKPOINT, scale=1),
    Group(spaces.TASK_NUM_RUNNING, positive=True, scale=4),
    Group(spaces.TASK_DATA_FLOW, codes=5),
    # How many more steps there are than required tools left decides whether a risk is worth taking.
    Group(SLACK, codes=SLACK_OFFSET + 9, scale=STEPS_PER_EPISODE),
)
# What a law with parts adds; under other laws there is none of it, and nothing is added.
PART_GROUPS = (
    Group(spaces.PART_CHANCE, scale=255),
    Group(spaces.PART_BLOCK, codes=3),
    Group(spaces.PART_SOUNDNESS, codes=4),
    Group(spaces.PART_CORRUPT_CHANCE, scale=255),
    Group(spaces.PART_FREE_IN, codes=5, scale=8),
    Group(spaces.PART_RATE_CALLS_MADE, bits=8),
    Group(spaces.PART_GROUP_SEEN, codes=3),
    Group(spaces.PART_SEEN_AGO, codes=3, scale=STEPS_PER_EPISODE),
    Group(spaces.PART_CHANCE_DOWN, scale=255),
    Group(spaces.PART_CHANCE_BROKEN, scale=255),
    Group(spaces.PART_INPUT_SHARE, scale=255),
    Group(spaces.PART_ACCESS_SHARE, scale=255),
    Group(spaces.PART_IS_VALIDATOR, scale=1),
    Group(spaces.PART_IS_OPENER, scale=1),
    Group(spaces.PART_RATE_NUM_DUE, codes=4, scale=4),
    Group(spaces.PART_RATE_FIRST_DUE, codes=_PLACES),
    Group(spaces.PART_GROUP_NUM_DUE, codes=4, scale=4),
    Group(spaces.PART_GROUP_FIRST_DUE, codes=_PLACES),
)
LAW_GROUPS = (
    Group(spaces.LAW_CAN_WAIT, scale=1),
    Group(spaces.LAW_FINISH_CHANCE, scale=255),
    Group(spaces.LAW_TIME_LEFT, scale=255),
    Group(spaces.LAW_CALL_TIME, scale=255),
    Group(spaces.LAW_CHANCE_SLOW, scale=255),
    Group(spaces.LAW_RATE_CALLS, codes=4, scale=8),
    Group(spaces.LAW_RATE_WINDOW, scale=8),
    Group(spaces.LAW_OUTAGE_BEGINS, positive=True, scale=255),
    Group(spaces.LAW_OUTAGE_ENDS, scale=255),
    Group(spaces.LAW_RISES, positive=True, scale=255),
    Group(spaces.LAW_OPENED, scale=1),
    Group(spaces.LAW_NOT_EXECUTED_FACTOR, scale=255),
    Group(spaces.LAW_FAILED_FACTOR, scale=255),
    Group(spaces.LAW_FALLS, positive=True, scale=255),
)
# What is shown beside with `detailed=True`.
SERVING_GROUPS = (
    Group(spaces.PART_SERVES_DUE, codes=_PLACES),
    Group(spaces.PART_SERVES_DISTANCE, codes=5),
    Group(spaces.PART_SERVES_NUM, codes=4, scale=4),
    Group(spaces.PART_SERVES_CHANCE, scale=255),
    Group(spaces.PART_SERVES_WEIGHT, scale=255),
)
DETAILED_LAW_GROUPS = (Group(spaces.LAW_HISTORY_FACTOR, scale=255),)
# 64, which is worth keeping: matrix products with a multiple of the processor's vector length are faster.
NUM_TOOL_FEATURES = sum(group.size for group in TOOL_GROUPS)
NUM_TASK_INPUTS = sum(group.size for group in TASK_GROUPS)


# 0 for the columns of the task that the network does not read.
READ_COLUMNS = tuple(
    int(column not in (spaces.TASK_PHASE, spaces.TASK_STAGE)) for column in range(spaces.NUM_TASK_COLUMNS)
)


# What decides what comes after, and nothing of how it came to that: a network that reads these columns alone plays the
# same wherever the same can follow, whatever the task's words, so it has less to learn, and its success rates are
# computed from few states (`exact_rates`).
STATE_TOOL_COLUMNS = (
    spaces.TOOL_STATUS,  # as far as `STATE_STATUS` tells statuses apart
    spaces.TOOL_PLACE,
    spaces.TOOL_DUE,
    spaces.TOOL_NUM_NOT_EXECUTED,
    spaces.TOOL_NUM_FAILED,
    spaces.TOOL_CLEAN_PROBABILITY,
    spaces.TOOL_NUM_DEPENDENTS_DUE,
    spaces.TOOL_FIRST_DEPENDENT_DUE,
    spaces.TOOL_FIRST_DESCENDANT_DUE,
    spaces.TOOL_LEVEL,
    spaces.TOOL_NUM_DEPENDENCIES,
)
STATE_TASK_COLUMNS = (
    spaces.TASK_STEPS_LEFT,
    spaces.TASK_NUM_REQUIRED,
    spaces.TASK_NUM_DUE,
    spaces.TASK_TOTAL_FAILURES,
    spaces.TASK_CONSECUTIVE_FAILURES,
    spaces.TASK_HISTORY_FACTOR,
    spaces.TASK_ORDER_BROKEN,
    spaces.TASK_LOOP_COUNT,
)
# A failure is a failure: what its error was says nothing that the columns of laws with parts do not say better.
STATE_STATUS = tuple(
    status if status in (spaces.STATUS_NOT_ATTEMPTED, spaces.STATUS_SUCCESS) else spaces.STATUS_FAILED
    for status in range(len(spaces.STATUSES))
)
# What one tool is to another, as columns that hold the same place of the list: of the tool that is looked at, and of
# the one that looks. Stand-ins; dependencies and dependents, also indirect ones; then, under laws with parts, what
# shares a limit, and a group of outages, with the same tool that is due.
TOOL_RELATIONS = (
    (spaces.TOOL_DUE, spaces.TOOL_DUE),
    (spaces.TOOL_FIRST_DEPENDENT_DUE, spaces.TOOL_DUE),
    (spaces.TOOL_DUE, spaces.TOOL_FIRST_DEPENDENT_DUE),
    (spaces.TOOL_FIRST_DESCENDANT_DUE, spaces.TOOL_DUE),
    (spaces.TOOL_DUE, spaces.TOOL_FIRST_DESCENDANT_DUE),
)
PART_RELATIONS = (
    (spaces.PART_RATE_FIRST_DUE, spaces.PART_RATE_FIRST_DUE),
    (spaces.PART_GROUP_FIRST_DUE, spaces.PART_GROUP_FIRST_DUE),
)
NUM_RELATIONS = len(TOOL_RELATIONS) + len(PART_RELATIONS)


def groups_of_parts(detailed: bool) -> tuple[tuple[Group, ...], tuple[Group, ...]]:
    """Return the groups of `tool_parts` and of `law` that a network reads."""
    if not detailed:
        return PART_GROUPS, LAW_GROUPS
    return (*PART_GROUPS, *SERVING_GROUPS), (*LAW_GROUPS, *DETAILED_LAW_GROUPS)


def lookup_table(groups: Sequence[Group]) -> Tensor:
    """Return the constant matrix for `groups`, one for each column: (len(groups) * NUM_VALUES, sum of the sizes).

    Row `column * NUM_VALUES + value` has the features of the value at their place and 0 everywhere else.
    """
    width = sum(group.size for group in groups)
    table = np.zeros((len(groups), NUM_VALUES, width), dtype=np.float32)
    start = 0
    for group in groups:
        table[group.column, :, start : start + group.size] = group.table()
        start += group.size
    return torch.from_numpy(table.reshape(len(groups) * NUM_VALUES, width))


def expand_tools(tools: Tensor, task: Tensor) -> Tensor:
    """Return the columns of the tools with AGE: int32 (B, T, NUM_TOOL_COLUMNS) to (B, T, NUM_TOOL_COLUMNS + 1)."""
    last = tools[..., spaces.TOOL_LAST_STEP]
    age = (task[:, spaces.TASK_STEPS_USED, None] - last).clamp(0, NUM_VALUES - 1)
    return torch.cat([tools, age.masked_fill(last == 0, NUM_VALUES - 1)[..., None]], dim=-1)


def expand_task(task: Tensor, read: Tensor) -> Tensor:
    """Return the columns of the task with SLACK: int32 (B, NUM_TASK_COLUMNS) to int32 (B, NUM_TASK_COLUMNS + 1).

    Phase and stage are the trainer's and mean nothing where a policy is used, so the network sees them as 0: `read` is
    READ_COLUMNS where the task lies.
    """
    task = task * read
    slack = task[:, spaces.TASK_STEPS_LEFT] - task[:, spaces.TASK_NUM_DUE] + SLACK_OFFSET
    return torch.cat([task, slack.clamp(0, NUM_VALUES - 1)[:, None]], dim=-1)


class ColumnFeatures(nn.Module):
    """Turns the columns of an observation into features; has no parameters, and its constants are not saved."""

    tool_table: Tensor
    task_table: Tensor
    tool_offsets: Tensor
    task_offsets: Tensor
    read: Tensor
    read_tools: Tensor
    statuses: Tensor

    def __init__(self, by_state: bool = False) -> None:
        super().__init__()
        self.by_state = by_state
        columns = [int(column in STATE_TASK_COLUMNS) for column in range(spaces.NUM_TASK_COLUMNS)]
        tool_columns = [int(column in STATE_TOOL_COLUMNS) for column in range(spaces.NUM_TOOL_COLUMNS)]
        # Beside the weights, as a constant from Python would be copied to a GPU at each call.
        read = columns if by_state else READ_COLUMNS
        for name, numbers in (("read", read), ("read_tools", tool_columns), ("statuses", STATE_STATUS)):
            self.register_buffer(name, torch.tensor(numbers, dtype=torch.int32), persistent=False)
        for name, groups in (("tool", TOOL_GROUPS), ("task", TASK_GROUPS)):
            offsets = torch.arange(len(groups), dtype=torch.int32) * NUM_VALUES
            self.register_buffer(f"{name}_table", lookup_table(groups), persistent=False)
            self.register_buffer(f"{name}_offsets", offsets, persistent=False)

    def columns_of(self, tools: Tensor) -> Tensor:
        """Return the columns of the tools that are read, those that are not as 0: int32 (B, T, NUM_TOOL_COLUMNS)."""
        tools = tools.to(torch.int32)
        if not self.by_state:
            return tools
        tools = tools * self.read_tools
        tools[..., spaces.TOOL_STATUS] = self.statuses[tools[..., spaces.TOOL_STATUS]]
        return tools

    def forward(self, tools: Tensor, task: Tensor) -> tuple[Tensor, Tensor]:
        """Return the features of every tool, (B, T, NUM_TOOL_FEATURES), and of the task, (B, NUM_TASK_INPUTS)."""
        task = task.to(torch.int32)
        tools = expand_tools(self.columns_of(tools), task)
        batch, num_tools, width = tools.shape
        rows = (tools + self.tool_offsets).view(batch * num_tools, width)
        tool_features = nn.functional.embedding_bag(rows, self.tool_table, mode="sum")
        task_rows = expand_task(task, self.read) + self.task_offsets
        task_features = nn.functional.embedding_bag(task_rows, self.task_table, mode="sum")
        return tool_features.view(batch, num_tools, NUM_TOOL_FEATURES), task_features


class PartFeatures(nn.Module):
    """Does the same for `tool_parts` and `law`, the columns of laws with parts; with `detailed` for all of them."""

    part_table: Tensor
    law_table: Tensor
    part_offsets: Tensor
    law_offsets: Tensor

    def __init__(self, detailed: bool = False) -> None:
        super().__init__()
        self.part_groups, self.law_groups = groups_of_parts(detailed)
        for name, groups in (("part", self.part_groups), ("law", self.law_groups)):
            offsets = torch.arange(len(groups), dtype=torch.int32) * NUM_VALUES
            self.register_buffer(f"{name}_table", lookup_table(groups), persistent=False)
            self.register_buffer(f"{name}_offsets", offsets, persistent=False)

    def forward(self, tool_parts: Tensor, law: Tensor) -> tuple[Tensor, Tensor]:
        """Return the features of every tool, (B, T, num_tool_features), and of the law, (B, num_law_features)."""
        tool_parts, law = tool_parts[..., : len(self.part_groups)], law[:, : len(self.law_groups)]
        batch, num_tools, width = tool_parts.shape
        rows = (tool_parts.to(torch.int32) + self.part_offsets).view(batch * num_tools, width)
        tools = nn.functional.embedding_bag(rows, self.part_table, mode="sum")
        features = nn.functional.embedding_bag(law.to(torch.int32) + self.law_offsets, self.law_table, mode="sum")
        return tools.view(batch, num_tools, self.num_tool_features), features

    @property
    def num_tool_features(self) -> int:
        """Features of a tool."""
        return sum(group.size for group in self.part_groups)

    @property
    def num_law_features(self) -> int:
        """Features of a law."""
        return sum(group.size for group in self.law_groups)
