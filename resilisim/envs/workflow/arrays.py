"""The records that the kernel of Workflow-v0 reads and writes, each field with its shape.

T tools, A actions (`actions.num_actions`), R places of the longest required list, D direct dependencies at most, E
direct dependents at most, C tools of the largest dependency closure, L executions that an episode can hold, P patterns.

Compiled code is made for one layout of the records, so every length is rounded up to a few sizes: libraries of up to 32
tools and episodes of up to 31 steps share one compilation. Padded entries are never read, and never shown.

Records are passed as pointers, which is what makes the kernel fast: handed on as dozens of arrays, the same functions
were fifty times slower.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from resilisim.envs.workflow.actions import num_actions
from resilisim.envs.workflow.columns import NUM_TASK_COLUMNS, NUM_TOOL_COLUMNS
from resilisim.simulator.transition import NUM_COUNTERS

Int: TypeAlias = NDArray[np.int64]
Bytes: TypeAlias = NDArray[np.uint8]

# One record of the types below; Numba reads its fields as attributes, and so does NumPy.
Episode: TypeAlias = Any
TaskRecord: TypeAlias = Any
World: TypeAlias = Any

MAX_PATTERNS = 4096  # the most frequent ones are kept (`policies.ppo.patterns`)


def _rounded(length: int, unit: int) -> int:
    """Return the smallest of unit, 2 unit, 4 unit, ... that is not below `length`."""
    size = unit
    while size < length:
        size *= 2
    return size


@dataclass(frozen=True, slots=True)
class Layout:
    """Lengths of the records' fields, rounded up.

    Attributes:
        tools: T.
        actions: A, of the rounded T.
        dependencies: D.
        dependents: E.
        required: R.
        closure: C.
        steps: L.
        bases: Distinct base probabilities.
    """

    tools: int
    actions: int
    dependencies: int
    dependents: int
    required: int
    closure: int
    steps: int
    bases: int


def layout_for(
    tools: int, dependencies: int, dependents: int, required: int, closure: int, steps: int, bases: int
) -> Layout:
    """Return the layout that holds what is asked for."""
    rounded = _rounded(tools, 32)
    return Layout(
        tools=rounded,
        actions=num_actions(rounded),
        dependencies=_rounded(dependencies, 4),
        dependents=_rounded(dependents, 16),
        required=_rounded(required, 16),
        closure=_rounded(closure, 32),
        steps=_rounded(steps + 1, 32),
        bases=_rounded(bases, 4),
    )


def episode_dtype(layout: Layout) -> np.dtype[Any]:
    """Return the record of one environment's episode. Its first three fields are the observation, kept up to date."""
    tools = (layout.tools,)
    return np.dtype(
        [
            ("tools", np.uint8, (layout.tools, NUM_TOOL_COLUMNS)),
            ("task_columns", np.uint8, (NUM_TASK_COLUMNS,)),
            ("action_mask", np.int8, (layout.actions,)),
            ("status", np.int8, tools),  # NOT_EXECUTED, FAILED or SUCCEEDED of simulator.law
            ("executions", np.int16, tools),
            ("successes", np.int16, tools),  # successful executions
            ("retries", np.int16, tools),  # columns.RETRIES
            ("validated", np.int8, tools),
            ("checkpoint", np.int16, tools),  # retries at the checkpoint, or -1
            ("sequence", np.int16, (layout.steps,)),  # tools of the successful executions, in order, then -1
            ("places", np.int16, (layout.required,)),  # of the required tools, in the order of their first successes
            ("counters", np.int64, (NUM_COUNTERS,)),  # simulator.transition
            ("task", np.int64),  # task index
            ("seed", np.int64),  # episode seed
            ("key0", np.int64),  # luck key of the episode
            ("key1", np.int64),
            ("seed0", np.int64),  # words from which the environment's sequence of episodes is drawn
            ("seed1", np.int64),
            ("episode", np.int64),  # episodes begun since the environment was seeded
            ("needs_reset", np.int64),  # 1: the episode has ended
            ("stage", np.int64),  # stage of the curriculum when the episode began
            ("running_success", np.float64),  # the trainer's running success rate when the episode began
            ("sequence_length", np.int64),
            ("places_length", np.int64),
            ("types_reached", np.int64),  # bit mask of operation types of required tools that have succeeded
            ("output_reached", np.int64),  # 1: a required output has succeeded
            ("last_type", np.int64),  # type of the last action, or -1
            ("running", np.int64),  # tool started by PARALLEL_EXECUTE, or -1
            ("checkpoint_row", np.int64),  # consecutive failures at the checkpoint, or -1
            ("progress", np.float64),
            ("episode_return", np.float64),
            # What the last step did.
            ("reward", np.float64),
            ("terminated", np.bool_),
            ("tool", np.int64),  # executed tool, or -1
            ("tool_success", np.bool_),
            ("named_similarity", np.float32),  # of the tool that the action names
            ("pattern", np.float32),  # score of the best pattern that the executed tool extends
            # How the latest episode that ended came out.
            ("success", np.bool_),  # in the law's sense
            ("full_success", np.bool_),
            ("score", np.float32),  # final progress
            ("coverage", np.float32),
            ("order", np.float32),  # longest ascending run of required places / number required
            ("steps", np.int64),
            ("ended", np.int64),  # code of simulator.transition, or laws.DEADLOCK
            ("total", np.float32),  # sum of rewards
            ("final_task", np.int64),
            ("final_sequence", np.int16, (layout.steps,)),
            ("final_tools", np.uint8, (layout.tools, NUM_TOOL_COLUMNS)),
            ("final_task_columns", np.uint8, (NUM_TASK_COLUMNS,)),
            ("final_mask", np.int8, (layout.actions,)),
        ],
        align=True,
    )


def task_dtype(layout: Layout) -> np.dtype[Any]:
    """Return the record of one task; -1 pads lists."""
    tools = (layout.tools,)
    return np.dtype(
        [
            ("word0", np.int64),  # hash words of salt and instance id, for the luck
            ("word1", np.int64),
            ("num_required", np.int64),
            ("closure_size", np.int64),
            ("expected_types", np.int64),  # bit mask of the operation types of the required tools
            ("required", np.int16, (layout.required,)),  # tools in the required order
            ("closure", np.int16, (layout.closure,)),  # required tools and all their dependencies
            ("place", np.int16, tools),  # place in the required list, or -1
            ("candidates", np.int16, tools),  # retrieved candidates, the most similar first
            ("similarity", np.float32, tools),
            ("static_confidence", np.float32, tools),  # composite confidence without its pattern part
            ("task_confidence", np.float32, tools),  # c_task
            ("start_tools", np.uint8, (layout.tools, NUM_TOOL_COLUMNS)),  # the observation at the start of an episode,
            ("start_task", np.uint8, (NUM_TASK_COLUMNS,)),  # at stage 0 of the coverage phase
        ],
        align=True,
    )


def world_dtype(layout: Layout) -> np.dtype[Any]:
    """Return the record of what all environments share: options (flags are 0 or 1), library, law, patterns."""
    tools = (layout.tools,)
    law = (layout.bases, layout.dependencies + 1, layout.dependencies + 1, layout.steps)
    return np.dtype(
        [
            ("num_tools", np.int64),
            ("training_law", np.int64),
            ("two_phase", np.int64),  # reward
            ("printed_rules", np.int64),
            ("semantic_filter", np.int64),
            ("dependency_filter", np.int64),
            ("constraint_filter", np.int64),
            ("hidden", np.int64),  # required flags and places are not shown
            ("max_steps", np.int64),
            ("max_consecutive_failures", np.int64),  # benchmark law; 0 is off
            ("loop_length", np.int64),  # benchmark law; 0 is off
            # Set by a trainer between rollouts.
            ("running_success", np.float64),
            ("stage", np.int64),
            ("num_patterns", np.int64),
            ("pattern_keys", np.int64, (MAX_PATTERNS,)),  # `laws.pattern_key`, ascending
            ("pattern_scores", np.float32, (MAX_PATTERNS,)),
            # Library.
            ("dependencies", np.int16, (layout.tools, layout.dependencies)),  # padded with -1
            ("dependents", np.int16, (layout.tools, layout.dependents)),  # padded with -1
            ("descends", np.uint8, (layout.tools, layout.tools)),  # the second depends on the first, also indirectly
            ("operation_type", np.uint8, tools),  # columns.OPERATION_TYPE
            ("base_index", np.int64, tools),  # row of the tool's base probability in the law's table
            ("tool_word0", np.int64, tools),  # hash words of the tool names, for the luck
            ("tool_word1", np.int64, tools),
            ("num_errors", np.int64, tools),  # documented errors that an execution can show
            ("timeout_error", np.int64, tools),  # which of these is TIMEOUT, or -1
            # Law: simulator.law.LawTable, and the column HISTORY_FACTOR for each number of failures.
            ("probability", np.float64, law),
            ("threshold", np.int64, law),
            ("history_factor", np.uint8, (layout.steps,)),
        ],
        align=True,
    )


def make_episodes(num_envs: int, layout: Layout) -> np.recarray[Any, Any]:
    """Return the records of `num_envs` environments, all waiting for a reset."""
    episodes = np.zeros(num_envs, dtype=episode_dtype(layout)).view(np.recarray)
    episodes["needs_reset"] = 1
    return episodes
