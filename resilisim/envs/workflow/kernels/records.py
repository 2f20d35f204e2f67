"""The records that compiled code of Workflow-v0 reads and writes: each field with its type, and its shape by axes.

Axes are named by `Layout`. Compiled code is made for one layout, so every length is rounded up to a few sizes:
libraries of up to 32 tools and episodes of up to 31 steps share one compilation, under every law. Padded entries are
never read, and never shown.

Records are passed as pointers, which is what makes the kernels fast: handed on as dozens of arrays, the same functions
were fifty times slower. Fields that are copied together lie together, and a further field names the whole block as
64-bit words.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Protocol, TypeAlias, get_type_hints

import numpy as np
from numpy.typing import NDArray

from resilisim.envs.workflow.spaces import (
    NUM_LAW_COLUMNS,
    NUM_PART_COLUMNS,
    NUM_TASK_COLUMNS,
    NUM_TOOL_COLUMNS,
    num_actions,
)
from resilisim.simulator.compiled import scalar
from resilisim.simulator.rulebook.drawn_results import LuckTables
from resilisim.simulator.rulebook.rules import Rulebook, Tables
from resilisim.simulator.state import LOOP_SIGNATURE, NO_LOOP, NUM_COUNTERS

Int: TypeAlias = NDArray[np.int64]
Words: TypeAlias = NDArray[np.uint32]
Bytes: TypeAlias = NDArray[np.uint8]
Floats: TypeAlias = NDArray[np.floating[Any]]
Small: TypeAlias = NDArray[np.signedinteger[Any]]  # integers of as few bytes as they need
Records: TypeAlias = NDArray[Any]  # (number,) of one of the records below

PATTERN_LENGTHS = (2, 3)  # tools of a pattern
MAX_PATTERNS = 4096  # that a record has room for
WORD_BYTES = 8
LINE_BYTES = 64  # of a processor's caches; records and their observations begin with a line

# Fields that name a block of others, so they are no state of their own.
BLOCKS = ("observation", "state", "identity", "outcome")


class Episode(Protocol):
    """One environment's episode, of small numbers: a step takes as long as fetching them."""

    # Block `observation`, kept up to date; what every step changes comes first, in two lines.
    task_columns: Annotated[Bytes, "uint8", NUM_TASK_COLUMNS]
    action_mask: Annotated[Small, "int8", "actions"]
    tools: Annotated[Bytes, "uint8", "tools", NUM_TOOL_COLUMNS]
    # Block `state`: what every episode begins with alike, copied from `start_state` of the world.
    counters: Annotated[Small, "int32", NUM_COUNTERS]  # simulator.state
    progress: Annotated[float, "float64"]
    episode_return: Annotated[float, "float64"]
    sequence_length: Annotated[int, "int32"]
    places_length: Annotated[int, "int32"]
    num_done: Annotated[int, "int32"]  # places of the required list with an output that is not known to be corrupt
    types_reached: Annotated[int, "int32"]  # bit mask of operation types of required tools that have succeeded; without
    # a list of these, of any tools, as far as the type of the task has steps of that type
    milestones: Annotated[int, "int32"]  # how many these are, and one more if an output is among them
    fallback: Annotated[int, "int32"]  # which line of Algorithm 1 made the mask, or NO_FALLBACK
    last_type: Annotated[int, "int32"]  # type of the last action, or -1
    running: Annotated[int, "int32"]  # tool started by PARALLEL_EXECUTE, or -1
    checkpoint_row: Annotated[int, "int64"]  # consecutive failures at the checkpoint, or -1
    needs_reset: Annotated[int, "int64"]  # 1: the episode has ended
    status: Annotated[Small, "int8", "tools"]  # NOT_EXECUTED, FAILED or SUCCEEDED of simulator.tool_status
    executions: Annotated[Small, "count", "tools"]
    retries: Annotated[Small, "count", "tools"]  # TOOL_RETRIES
    successes: Annotated[Small, "count", "tools"]  # successful executions
    places: Annotated[Small, "int16", "required"]  # of the required tools, in the order of their first successes
    sequence: Annotated[Small, "int16", "steps"]  # tools of the successful executions, in order, then -1
    checkpoint: Annotated[Small, "count", "tools"]  # retries at the checkpoint, or -1
    validated: Annotated[Small, "int8", "tools"]
    # Block `identity`, one line: which episode it is, and what the last step did.
    task: Annotated[int, "int64"]  # task index
    seed: Annotated[int, "int64"]  # episode seed
    key0: Annotated[int, "int64"]  # luck key of the episode
    key1: Annotated[int, "int64"]
    max_turns: Annotated[int, "int32"]  # steps that the episode may take, by its stage
    stage: Annotated[int, "int32"]  # stage of the curriculum when the episode began
    reward: Annotated[float, "float64"]
    tool: Annotated[int, "int32"]  # executed tool, or -1
    pattern: Annotated[float, "float32"]  # score of the best pattern that the executed tool extends
    tool_success: Annotated[bool, "bool"]
    terminated: Annotated[bool, "bool"]
    # What only some steps need.
    running_success: Annotated[float, "float64"]  # the trainer's running success rate when the episode began
    seed0: Annotated[int, "int64"]  # words from which the environment's sequence of episodes is drawn
    seed1: Annotated[int, "int64"]
    episode: Annotated[int, "int64"]  # episodes begun since the environment was seeded
    # Block `outcome`: how the latest episode that ended came out.
    success: Annotated[bool, "bool"]  # in the law's sense
    full_success: Annotated[bool, "bool"]
    score: Annotated[float, "float32"]  # final progress
    coverage: Annotated[float, "float32"]
    order: Annotated[float, "float32"]  # longest ascending run of required places / number required
    steps: Annotated[int, "int64"]
    ended: Annotated[int, "int64"]  # code of simulator.state
    total: Annotated[float, "float32"]  # sum of rewards
    final_task: Annotated[int, "int64"]
    final_sequence: Annotated[Small, "int16", "steps"]


class EpisodeBlocks(Episode, Protocol):
    """The same, with its blocks of words."""

    observation: Int
    state: Int
    identity: Int
    outcome: Int


class Sections(Protocol):
    """What an episode has beside under a law whose rulebook has sections, or where they are shown all the same."""

    # Block `observation`, kept up to date.
    tool_parts: Annotated[Bytes, "uint8", "tools", NUM_PART_COLUMNS]
    law: Annotated[Bytes, "uint8", NUM_LAW_COLUMNS]
    # More than the sections of `Rulebook` can take: rate keys, groups twice, tools four times, time.
    parts: Annotated[Int, "int64", "parts"]
    hidden: Annotated[Int, "int64", "hidden"]
    variant: Annotated[Small, "int8", "tools"]  # which of its two sets of parameters a tool was called with last
    standing: Annotated[Floats, "float64", "tools"]  # chance that a call comes to a draw that it can win
    weight: Annotated[Floats, "float64", "tools"]  # PART_SERVES_WEIGHT, before it is halved and rounded
    scratch: Annotated[Int, "int64", "tools", 2]


class SectionsBlocks(Sections, Protocol):
    """The same, with its block of words."""

    observation: Int


class TaskRecord(Protocol):
    """One task, which is the goal of its episodes; -1 pads lists."""

    # Block `start_observation`: what is shown when an episode begins.
    task_columns: Annotated[Bytes, "uint8", NUM_TASK_COLUMNS]
    action_mask: Annotated[Small, "int8", "actions"]
    tools: Annotated[Bytes, "uint8", "tools", NUM_TOOL_COLUMNS]
    # What every step reads, in one line.
    num_required: Annotated[int, "int32"]
    closure_size: Annotated[int, "int32"]
    types: Annotated[int, "int32"]  # bit mask of the operation types that are milestones
    fallback: Annotated[int, "int32"]  # of the first mask
    place: Annotated[Small, "place", "tools"]  # place in the required list, or -1
    word0: Annotated[int, "int64"]  # hash words of salt and instance id, for the luck
    word1: Annotated[int, "int64"]
    required: Annotated[Small, "int16", "closure"]  # tools that can fill the places, by place: the list, and stand-ins
    closure: Annotated[Small, "int16", "closure"]  # required tools and all their dependencies
    candidates: Annotated[Small, "int16", "tools"]  # retrieved candidates, the most similar first
    similarity: Annotated[Floats, "float32", "tools"]
    static_confidence: Annotated[Floats, "float32", "tools"]  # composite confidence without its pattern part
    task_confidence: Annotated[Floats, "float32", "tools"]  # c_task
    end: Annotated[int, "int64"]


class TaskBlocks(TaskRecord, Protocol):
    """The same, with its blocks of words."""

    start_observation: Int
    numbers: Int


class World(Protocol):
    """What all environments share: options (flags are 0 or 1), law, library, patterns."""

    training_law: Annotated[int, "int64"]
    two_phase: Annotated[int, "int64"]  # reward
    printed_rules: Annotated[int, "int64"]
    semantic_filter: Annotated[int, "int64"]
    dependency_filter: Annotated[int, "int64"]
    constraint_filter: Annotated[int, "int64"]
    hidden: Annotated[int, "int64"]  # required flags and places are not shown
    without_list: Annotated[int, "int64"]  # progress and rewards are those of a task without required tools
    rewrites_mask: Annotated[int, "int64"]  # training law or a filter: any step can change the whole mask
    counts_every_step: Annotated[int, "int64"]  # training law or printed rules: any step can change the progress
    has_sections: Annotated[int, "int64"]  # 1: episodes have `Sections`, which are shown
    detailed: Annotated[int, "int64"]  # 1: they show what tools serve
    # Set by a trainer between rollouts.
    running_success: Annotated[float, "float64"]
    stage: Annotated[int, "int64"]
    max_turns: Annotated[int, "int64"]  # at most those of the rulebook
    num_patterns: Annotated[int, "int64"]
    pattern_keys: Annotated[Int, "int64", MAX_PATTERNS]  # `mask.pattern_key`, ascending
    pattern_scores: Annotated[Floats, "float32", MAX_PATTERNS]
    # Actions, by number.
    action_type: Annotated[Small, "int16", "actions"]
    action_tool: Annotated[Small, "int16", "actions"]  # -1: none
    # Library.
    dependents: Annotated[Small, "int16", "tools", "dependents"]  # padded with -1
    descends: Annotated[Bytes, "uint8", "tools", "tools"]  # the second depends on the first, also indirectly
    operation_type: Annotated[Bytes, "uint8", "tools"]  # TOOL_OPERATION_TYPE
    tool_word0: Annotated[Int, "int64", "tools"]  # hash words of the tool names, for the luck
    tool_word1: Annotated[Int, "int64", "tools"]
    num_errors: Annotated[Int, "int64", "tools"]  # documented errors that an execution can show
    timeout_error: Annotated[Int, "int64", "tools"]  # which of these is TIMEOUT, or -1
    # Under a law that weighs them: the uniforms from which on, and below which, the code is TIMEOUT.
    weighs_errors: Annotated[Int, "int64", "tools"]
    timeout_from: Annotated[Floats, "float64", "tools"]
    timeout_below: Annotated[Floats, "float64", "tools"]
    digests: Annotated[Int, "int64", "tools", 2]  # what stands for a tool's two sets of parameters
    # Law, as columns show it: of `tables` without failures, and TASK_HISTORY_FACTOR for each number of failures.
    shown_probability: Annotated[Bytes, "uint8", "rows", "counts", "counts"]
    history_factor: Annotated[Bytes, "uint8", "steps"]
    # How episodes begin: their block `state`, and what of their sections is the same for every task.
    start_state: Annotated[Int, "int64", "state_words"]
    start_sections: Annotated[Int, "int64", "sections_words"]
    start_standing: Annotated[Floats, "float64", "tools"]
    # The law: records of their own, with the rulebook's places left to the tasks.
    rules: Rulebook
    tables: Tables
    luck: LuckTables


def _rounded(length: int, unit: int) -> int:
    """Return the smallest of unit, 2 unit, 4 unit, ... that is not below `length`."""
    size = unit
    while size < length:
        size *= 2
    return size


@dataclass(frozen=True, slots=True)
class Layout:
    """Lengths of the records' fields, rounded up when they are given (`LAYOUT_UNITS`)."""

    tools: int
    dependencies: int  # of a tool, at most
    dependents: int  # of a tool, at most
    required: int
    closure: int
    steps: int
    rows: int  # of the law's tables
    errors: int  # of a tool, at most

    def __post_init__(self) -> None:
        """Round up."""
        for name, unit in LAYOUT_UNITS.items():
            object.__setattr__(self, name, _rounded(getattr(self, name), unit))

    def length(self, axis: str | int) -> int:
        """Return the length of an axis by its name, or the length itself."""
        return axis if isinstance(axis, int) else int(getattr(self, axis))

    @property
    def actions(self) -> int:
        """Actions, of the rounded number of tools."""
        return num_actions(self.tools)

    @property
    def counts(self) -> int:
        """Numbers of dependencies, 0 among them."""
        return self.dependencies + 1

    @property
    def parts(self) -> int:
        """Length of `Sections.parts`."""
        return 8 * self.tools

    @property
    def hidden(self) -> int:
        """Length of `Sections.hidden`."""
        return 3 * self.tools

    @property
    def state_words(self) -> int:
        """Words of an episode's block `state`."""
        return int(episode_dtype(self)["state"].shape[0])

    @property
    def sections_words(self) -> int:
        """Words of what is shown of sections."""
        return int(sections_dtype(self)["observation"].shape[0])


LAYOUT_UNITS = {
    "tools": 32,
    "dependencies": 4,
    "dependents": 16,
    "required": 16,
    "closure": 32,
    "steps": 32,
    "rows": 128,  # four reliabilities that drift for 31 turns
    "errors": 8,
}


def _fields(record: type, layout: Layout) -> list[tuple[Any, ...]]:
    """Return the fields of a record as NumPy wants them."""
    kinds = {"count": _smallest(layout.steps), "place": _smallest(layout.required)}
    fields = []
    for name, hint in get_type_hints(record, include_extras=True).items():
        if hasattr(hint, "__metadata__"):
            kind, *axes = hint.__metadata__
            fields.append((name, kinds.get(kind, kind), tuple(map(layout.length, axes))))
    return fields


def _smallest(largest: int) -> str:
    """Return the smallest type of integers that holds numbers up to one, and their negatives."""
    return next(kind for kind in ("int8", "int16", "int32") if largest <= np.iinfo(kind).max)


def _of_lines(fields: list[tuple[Any, ...]], num_shown: int, block: str = "observation") -> np.dtype[Any]:
    """Return a record type of whole lines; those of its first fields, which are shown, are named as a block."""
    shown, rest = fields[:num_shown], fields[num_shown:]
    padding = ("unused", np.uint8, (-np.dtype(shown).itemsize % LINE_BYTES,))
    record = np.dtype([*shown, padding, *rest], align=True)
    entries: Mapping[str, Any] = record.fields or {}
    whole = np.dtype(
        {
            "names": [*entries],
            "formats": [kind for kind, *_ in entries.values()],
            "offsets": [int(place) for _, place, *_ in entries.values()],
            "itemsize": record.itemsize + -record.itemsize % LINE_BYTES,
        }
    )
    return _with_block(whole, block, shown[0][0], rest[0][0])


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


def episode_dtype(layout: Layout) -> np.dtype[Any]:
    """Return the type of `Episode`."""
    record = _with_block(_of_lines(_fields(Episode, layout), 3), "state", "counters", "task")
    return _with_block(
        _with_block(record, "identity", "task", "running_success"), "outcome", "success", "final_sequence"
    )


def outcome_dtype(record: np.dtype[Any]) -> np.dtype[Any]:
    """Return the type of the block `outcome` of records of episodes, with the fields that it consists of."""
    places: Mapping[str, Any] = record.fields or {}
    block, first = places["outcome"][0], int(places["success"][1])
    own = {name: (kind, place - first) for name, (kind, place, *_) in places.items() if name not in BLOCKS}
    inside = {name: entry for name, entry in own.items() if 0 <= entry[1] < block.itemsize}
    formats, offsets = zip(*inside.values(), strict=True)
    return np.dtype({"names": [*inside], "formats": formats, "offsets": offsets, "itemsize": block.itemsize})


def sections_dtype(layout: Layout) -> np.dtype[Any]:
    """Return the type of `Sections`."""
    return _of_lines(_fields(Sections, layout), 2)


def observation_dtype(shown: np.dtype[Any], num_shown: int) -> np.dtype[Any]:
    """Return the type of a record of what episodes or sections show, as `words`, the first fields of their type."""
    fields = [(name, shown[name]) for name in (shown.names or ())[:num_shown]]
    return _of_lines([*fields, ("end", np.int64)], num_shown, "words")


def task_dtype(layout: Layout) -> np.dtype[Any]:
    """Return the type of `TaskRecord`."""
    record = _of_lines(_fields(TaskRecord, layout), 3, "start_observation")
    return _with_block(record, "numbers", "num_required", "word0")


def world_dtype(layout: Layout, **law: np.dtype[Any]) -> np.dtype[Any]:
    """Return the type of `World`; the records of the law have types of their own."""
    return np.dtype([*_fields(World, layout), *law.items()], align=True)


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
