"""The records that the kernel of Workflow-v0 reads and writes, each field with its shape.

T tools, A actions (`actions.num_actions`), R places of the longest required list, D direct dependencies at most, E
direct dependents at most, C tools of the largest dependency closure, L executions that an episode can hold, P patterns.

Compiled code is made for one layout of the records, so every length is rounded up to a few sizes: libraries of up to 32
tools and episodes of up to 31 steps share one compilation. Padded entries are never read, and never shown.

Records are passed as pointers, which is what makes the kernel fast: handed on as dozens of arrays, the same functions
were fifty times slower. Fields that are copied together lie together, and a further field names the whole block as
64-bit words.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from resilisim.envs.workflow.actions import num_actions
from resilisim.envs.workflow.columns import NUM_TASK_COLUMNS, NUM_TOOL_COLUMNS
from resilisim.simulator.compiled import scalar
from resilisim.simulator.state import LOOP_SIGNATURE, NO_LOOP, NUM_COUNTERS

Int: TypeAlias = NDArray[np.int64]
Bytes: TypeAlias = NDArray[np.uint8]

# One record of the types below; Numba reads its fields as attributes, and so does NumPy.
Episode: TypeAlias = Any
TaskRecord: TypeAlias = Any
World: TypeAlias = Any
Records: TypeAlias = NDArray[Any]  # (number,) of one of these

MAX_PATTERNS = 4096  # the most frequent ones are kept (`policies.ppo.parts`)
WORD_BYTES = 8
LINE_BYTES = 64  # of a processor's caches; records and their observations begin with a line

# Fields that name a block of others, so they are no state of their own.
EPISODE_BLOCKS = ("observation", "state", "identity")


def _whole_lines(record: np.dtype[Any]) -> np.dtype[Any]:
    """Return a record type with as much room behind its fields as makes whole lines."""
    fields: Mapping[str, Any] = record.fields or {}
    size = record.itemsize + -record.itemsize % LINE_BYTES
    return np.dtype(
        {
            "names": [*fields],
            "formats": [kind for kind, *_ in fields.values()],
            "offsets": [int(place) for _, place, *_ in fields.values()],
            "itemsize": size,
        }
    )


def _with_block(record: np.dtype[Any], name: str, first: str, until: str) -> np.dtype[Any]:
    """Return a record type with one more field: the words (int64) from field `first` up to field `until`."""
    offsets = {field: int(record.fields[field][1]) for field in record.names or ()} if record.fields else {}
    size = offsets[until] - offsets[first]
    if offsets[first] % WORD_BYTES or size % WORD_BYTES:
        raise ValueError(f"the fields from {first!r} to {until!r} are not whole words")
    names = record.names or ()
    formats = [*(record[field] for field in names), (np.int64, (size // WORD_BYTES,))]
    places = [*(offsets[field] for field in names), offsets[first]]
    return np.dtype({"names": [*names, name], "formats": formats, "offsets": places, "itemsize": record.itemsize})


def _rounded(length: int, unit: int) -> int:
    """Return the smallest of unit, 2 unit, 4 unit, ... that is not below `length`."""
    size = unit
    while size < length:
        size *= 2
    return size


@dataclass(frozen=True, slots=True)
class Layout:
    """Lengths of the records' fields, rounded up when they are given (`LAYOUT_UNITS`)."""

    tools: int  # T
    dependencies: int  # D
    dependents: int  # E
    required: int  # R
    closure: int  # C
    steps: int  # L
    bases: int  # distinct base probabilities

    def __post_init__(self) -> None:
        """Round up."""
        for name, unit in LAYOUT_UNITS.items():
            object.__setattr__(self, name, _rounded(getattr(self, name), unit))

    @property
    def actions(self) -> int:
        """A, of the rounded T."""
        return num_actions(self.tools)


LAYOUT_UNITS = {
    "tools": 32,
    "dependencies": 4,
    "dependents": 16,
    "required": 16,
    "closure": 32,
    "steps": 32,
    "bases": 4,
}


def observation_fields(layout: Layout) -> list[tuple[Any, ...]]:
    """Return the fields of an observation, which begin a record; as words they are copied as one block."""
    shown = [
        ("tools", np.uint8, (layout.tools, NUM_TOOL_COLUMNS)),
        ("task_columns", np.uint8, (NUM_TASK_COLUMNS,)),
        ("action_mask", np.int8, (layout.actions,)),
    ]
    return [*shown, ("unused", np.uint8, (-np.dtype(shown).itemsize % LINE_BYTES,))]


def block_of_lines(shown: list[tuple[Any, ...]], rest: list[tuple[Any, ...]]) -> np.dtype[Any]:
    """Return a record type that begins with whole lines of what is shown, which `observation` names as a block."""
    padding = ("unused", np.uint8, (-np.dtype(shown).itemsize % LINE_BYTES,))
    record = _whole_lines(np.dtype([*shown, padding, *rest], align=True))
    return _with_block(record, "observation", shown[0][0], rest[0][0])


def episode_dtype(layout: Layout) -> np.dtype[Any]:
    """Return the record of one environment's episode, of small numbers: a step takes as long as fetching them."""
    tools = (layout.tools,)
    count = np.int8 if layout.steps <= np.iinfo(np.int8).max else np.int16 if layout.steps <= 2**15 else np.int32
    record = np.dtype(
        [
            *observation_fields(layout),  # block `observation`, kept up to date
            # Block `state`: what every episode begins with alike, copied from `start_state` of the world.
            ("counters", np.int32, (NUM_COUNTERS,)),  # simulator.state
            ("progress", np.float64),
            ("episode_return", np.float64),
            ("sequence_length", np.int32),
            ("places_length", np.int32),
            ("types_reached", np.int32),  # bit mask of operation types of required tools that have succeeded
            ("milestones", np.int32),  # how many these are, and one more if a required output has succeeded
            ("last_type", np.int32),  # type of the last action, or -1
            ("running", np.int32),  # tool started by PARALLEL_EXECUTE, or -1
            ("checkpoint_row", np.int32),  # consecutive failures at the checkpoint, or -1
            ("needs_reset", np.int32),  # 1: the episode has ended
            ("status", np.int8, tools),  # NOT_EXECUTED, FAILED or SUCCEEDED of simulator.law
            ("executions", count, tools),
            ("successes", count, tools),  # successful executions
            ("retries", count, tools),  # columns.RETRIES
            ("sequence", np.int16, (layout.steps,)),  # tools of the successful executions, in order, then -1
            ("places", np.int16, (layout.required,)),  # of the required tools, in the order of their first successes
            ("checkpoint", count, tools),  # retries at the checkpoint, or -1
            ("validated", np.int8, tools),
            # Which episode it is.
            ("task", np.int64),  # task index
            ("seed", np.int64),  # episode seed
            ("key0", np.int64),  # luck key of the episode
            ("key1", np.int64),
            ("stage", np.int64),  # stage of the curriculum when the episode began
            ("running_success", np.float64),  # the trainer's running success rate when the episode began
            ("seed0", np.int64),  # words from which the environment's sequence of episodes is drawn
            ("seed1", np.int64),
            ("episode", np.int64),  # episodes begun since the environment was seeded
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
            ("ended", np.int64),  # code of simulator.state, or dynamics.DEADLOCK
            ("total", np.float32),  # sum of rewards
            ("final_task", np.int64),
            ("final_sequence", np.int16, (layout.steps,)),
        ],
        align=True,
    )
    record = _with_block(_whole_lines(record), "observation", "tools", "counters")
    record = _with_block(record, "state", "counters", "task")
    return _with_block(record, "identity", "task", "steps")


def observation_dtype(layout: Layout) -> np.dtype[Any]:
    """Return the record of an observation alone, as long as the block `observation` of an episode."""
    shown = np.dtype([*observation_fields(layout), ("end", np.int64)], align=True)
    return _with_block(shown, "words", "tools", "end")


def task_dtype(layout: Layout) -> np.dtype[Any]:
    """Return the record of one task; -1 pads lists."""
    tools = (layout.tools,)
    record = np.dtype(
        [
            *observation_fields(layout),  # block `start_observation`: what is shown when an episode begins
            ("word0", np.int64),  # hash words of salt and instance id, for the luck
            ("word1", np.int64),
            ("num_required", np.int64),
            ("closure_size", np.int64),
            ("place", np.int16, tools),  # place in the required list, or -1
            ("required", np.int16, (layout.required,)),  # tools in the required order
            ("closure", np.int16, (layout.closure,)),  # required tools and all their dependencies
            ("candidates", np.int16, tools),  # retrieved candidates, the most similar first
            ("similarity", np.float32, tools),
            ("static_confidence", np.float32, tools),  # composite confidence without its pattern part
            ("task_confidence", np.float32, tools),  # c_task
            ("end", np.int64),
        ],
        align=True,
    )
    record = _with_block(_whole_lines(record), "start_observation", "tools", "word0")
    return _with_block(record, "numbers", "word0", "end")


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
            ("rewrites_mask", np.int64),  # training law or a filter: any step can change the whole mask
            ("max_steps", np.int64),
            ("max_consecutive_failures", np.int64),  # benchmark law; 0 is off
            ("loop_length", np.int64),  # benchmark law; 0 is off
            # Set by a trainer between rollouts.
            ("running_success", np.float64),
            ("stage", np.int64),
            ("num_patterns", np.int64),
            ("pattern_keys", np.int64, (MAX_PATTERNS,)),  # `actions.pattern_key`, ascending
            ("pattern_scores", np.float32, (MAX_PATTERNS,)),
            # Actions, by number.
            ("action_type", np.int16, (layout.actions,)),
            ("action_tool", np.int16, (layout.actions,)),  # -1: none
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
            # Under a law that weighs them: the uniforms from which on, and below which, the code is TIMEOUT.
            ("weighs_errors", np.int64, tools),
            ("timeout_from", np.float64, tools),
            ("timeout_below", np.float64, tools),
            # Law: simulator.law.LawTable, and the column HISTORY_FACTOR for each number of failures.
            ("probability", np.float64, law),
            ("threshold", np.int64, law),
            ("shown_probability", np.uint8, law[:3]),  # `probability` without failures, as columns show it
            ("history_factor", np.uint8, (layout.steps,)),
            # The block `state` of an episode that begins.
            ("start_state", np.int64, episode_dtype(layout)["state"].shape),
        ],
        align=True,
    )


def make_episodes(num_envs: int, layout: Layout) -> Records:
    """Return the records of `num_envs` environments, all waiting for a reset."""
    episodes = make_records(num_envs, episode_dtype(layout))
    episodes["counters"][:, LOOP_SIGNATURE] = NO_LOOP
    for field in ("last_type", "running", "checkpoint_row", "sequence", "checkpoint", "tool"):
        episodes[field] = -1
    episodes["needs_reset"] = 1
    return episodes


def make_records(number: int, record: np.dtype[Any]) -> Records:
    """Return records of zeros, (number,), each with its fields as attributes.

    Written at once, so that NumPy can ask for large pages; a `recarray` costs Numba several times as long in each call.
    """
    size = number * record.itemsize
    memory = np.empty(size + LINE_BYTES, dtype=np.uint8)
    memory[:] = 0
    start = -memory.ctypes.data % LINE_BYTES
    return memory[start : start + size].view(np.dtype((np.record, record)))


def copy_records(records: Records) -> Records:
    """Return records with the same content in memory of their own, laid out as `make_records` does."""
    copied = make_records(len(records), records.dtype)
    copied.view(np.uint8)[:] = np.ascontiguousarray(records).view(np.uint8)
    return copied


@scalar
def copy_words(target: Int, source: Int) -> None:
    """Copy `source` to `target`, both int64 (num_words,), where `target[:] = source` is several times as slow."""
    for word in range(len(target)):
        target[word] = source[word]
