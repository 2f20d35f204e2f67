"""What retrieval knows of each task before the first step: the static part of Workflow-v0's observation.

It is made of the task's text, type, inputs and outputs only. The required list is never read, so with
`required="hidden"` this is the agent's only hint, and an honest one.

Appendix D.1's retrieval context is mapped so:

| D.1 | here |
|---|---|
| scores of tools for each semantic operation | `similarity`, and the task features 12 to 16 (the best of each type) |
| similarity of every tool | `similarity` (column SIMILARITY) |
| semantic confidence of every tool | `static_confidence` and the pattern part (column CONFIDENCE) |
| tool selection history | columns LAST_STEP, EXECUTIONS and SUCCESS_ORDER, kept by the environment |
| candidates of each capability type | `candidates`, `operation_type` (columns IS_CANDIDATE, OPERATION_TYPE) |
| data-flow state | column DATA_FLOW of the task, kept by the environment |

The composite confidence of D.2.1 is .25 c_rule + .30 c_embed + .25 c_pattern + .20 c_task; the pattern part depends on
the episode and is added there.

Similarities are shipped for the benchmark, else computed by retrieval. The score of a tool for a task is the highest
cosine similarity of the tool's text and a clause of the description, in [-1, 1], rounded to 1e-3
(`steps.semantic_match_by_retrieval`). For the tasks of the benchmark with the default library the scores by the
default model ship as a table, so that an environment starts without loading a model. The table is found by the
description itself: a task whose description was rewritten keeps its id, but gets scores of its own.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib import resources
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from resilisim.envs.workflow.spaces import (
    NUM_TASK_FEATURES,
    OUTPUT_TYPE,
    WEIGHT_EMBEDDING,
    WEIGHT_RULE,
    WEIGHT_TASK,
)
from resilisim.errors import InvalidInputError, MissingExtraError
from resilisim.provenance import content_hash
from resilisim.tasks.benchmark import BENCHMARK_VERSION, BENCHMARKS, benchmark_tasks, version_of
from resilisim.tasks.task import COMPLEXITIES, TASK_TYPES, TEMPLATE_OF_TYPE, Task
from resilisim.tasks.wording import clauses
from resilisim.tool_library import ToolLibrary
from resilisim.tool_library.retrieval import SCORE_DECIMALS, default_retriever
from resilisim.tool_library.tool import SEMANTIC_TYPES
from resilisim.workflows.steps import SemanticMatch

# "auto": the shipped table, else retrieval with the default model. "lexical": search by words. None: all scores 0.
SimilaritySource: TypeAlias = str | SemanticMatch | None

SIMILARITY_SCHEMA = "resilisim/similarity/v1"
THOUSANDTHS = 10**SCORE_DECIMALS
_CLAUSES_AT_ONCE = 2048  # texts embedded in one call


@dataclass(frozen=True, slots=True, eq=False)
class SimilarityTable:
    """Scores of every tool of one library for every task of one benchmark, in their orders."""

    benchmark: str  # SHA-256 of its bytes
    library: str  # content hash
    model: str  # name and version
    scores: NDArray[np.int16]  # (num_tasks, num_tools), thousandths

    @classmethod
    def from_bytes(cls, data: bytes, name: str = "a table of similarities") -> SimilarityTable:
        """Read what `benchmarks.shipped_data` wrote; an AssertionError tells that the bytes are not those."""
        line, _, payload = data.partition(b"\n")
        header = json.loads(line)
        if header["schema"] != SIMILARITY_SCHEMA or header["sha256"] != content_hash(payload):
            raise AssertionError(f"{name} is damaged: reinstall the package")
        scores = np.frombuffer(payload, dtype="<i2").reshape(header["shape"]).astype(np.int16)
        return cls(header["benchmark"], header["library"], header["model"], scores)


def resolve_similarity(
    similarity: SimilaritySource, library: ToolLibrary, tasks: Sequence[Task]
) -> NDArray[np.float32]:
    """Return the similarity of every tool to every task, float32 (num_tasks, num_tools) in [-1, 1]."""
    if similarity is None:
        return np.zeros((len(tasks), len(library)), dtype=np.float32)
    if callable(similarity):
        rows = [_checked_scores(similarity(task.description, library.names), library, task) for task in tasks]
        return np.array(rows, dtype=np.float32).reshape(len(tasks), len(library))
    if similarity == "lexical":
        return _from_thousandths(retrieved_scores(library, tuple(task.description for task in tasks), similarity))
    if similarity != "auto":
        expected = "expected 'auto', 'lexical', None or a function of a description and names of tools"
        raise InvalidInputError(f"similarity is {similarity!r}: {expected}")
    return _automatic_scores(library, tasks)


def similarity_file(version: str) -> str:
    """Return the place of the table of a version of the benchmark in this package."""
    return f"data/similarity-{version}.bin"


@cache
def shipped_table(version: str = BENCHMARK_VERSION) -> SimilarityTable:
    """Return the table that ships with the package for a version of the benchmark."""
    place = similarity_file(version)
    table = SimilarityTable.from_bytes(resources.files("resilisim.envs.workflow").joinpath(place).read_bytes(), place)
    if table.benchmark != BENCHMARKS[version]:
        raise AssertionError(f"{place} belongs to another version of the benchmark: reinstall the package")
    return table


def _checked_scores(scores: Sequence[float], library: ToolLibrary, task: Task) -> NDArray[np.float64]:
    where = f"similarity function, task {task.instance_id!r}"
    try:
        row = np.asarray(scores, dtype=np.float64)
    except (TypeError, ValueError):
        raise InvalidInputError(f"{where}: got {type(scores).__name__}, expected {len(library)} numbers") from None
    if row.shape != (len(library),):
        raise InvalidInputError(f"{where}: got scores of shape {row.shape}, expected ({len(library)},)")
    outside = row[~((row >= -1.0) & (row <= 1.0))]
    if len(outside):
        raise InvalidInputError(f"{where}: got the score {outside[0]}, expected a number in [-1, 1]")
    return row


def _automatic_scores(library: ToolLibrary, tasks: Sequence[Task]) -> NDArray[np.float32]:
    thousandths = np.zeros((len(tasks), len(library)), dtype=np.int16)
    new: list[int] = []
    for place, task in enumerate(tasks):
        scores = _shipped_scores(task, library)
        if scores is None:
            new.append(place)
        else:
            thousandths[place] = scores
    if new:
        thousandths[new] = retrieved_scores(library, tuple(tasks[place].description for place in new))
    return _from_thousandths(thousandths)


def _shipped_scores(task: Task, library: ToolLibrary) -> NDArray[np.int16] | None:
    """Return the scores that ship for a task's description and a library, int16 (num_tools,); None if none do."""
    version = version_of(task.instance_id)
    if version is None or library.content_hash != shipped_table(version).library:
        return None
    row = _shipped_rows(version).get(task.description)
    return None if row is None else shipped_table(version).scores[row]


def _from_thousandths(thousandths: NDArray[np.int16]) -> NDArray[np.float32]:
    scores: NDArray[np.float32] = (thousandths / THOUSANDTHS).astype(np.float32)
    return scores


@cache
def _shipped_rows(version: str) -> Mapping[str, int]:
    return {task.description: row for row, task in enumerate(benchmark_tasks(version))}


@lru_cache(maxsize=8)
def retrieved_scores(
    library: ToolLibrary, descriptions: tuple[str, ...], search: str = "semantic"
) -> NDArray[np.int16]:
    """Return thousandths of `semantic_match_by_retrieval`, (num_descriptions, num_tools), embedded together."""
    parts = [clauses(description) or [description] for description in descriptions]
    row_of = {clause: row for row, clause in enumerate(dict.fromkeys(clause for some in parts for clause in some))}
    distinct = list(row_of)
    retriever = default_retriever(library, search)
    try:
        of_clause = np.concatenate(
            [
                retriever.similarities(distinct[first : first + _CLAUSES_AT_ONCE])
                for first in range(0, len(distinct), _CLAUSES_AT_ONCE)
            ]
        )
    except MissingExtraError as error:
        ways = 'in Workflow-v0 give similarity="lexical", or None for an environment without retrieval'
        raise MissingExtraError(f"{error}; {ways}") from error
    scores = np.zeros((len(descriptions), len(library)), dtype=np.int16)
    for place, some in enumerate(parts):
        best = of_clause[[row_of[clause] for clause in some]].max(axis=0)
        scores[place] = [round(round(float(score), SCORE_DECIMALS) * THOUSANDTHS) for score in best]
    scores.setflags(write=False)  # the same array is returned again
    return scores


# Codes of `operation_type`: 0 for a tool without a semantic operation type, then the order of the seed's C.1.1.
OPERATION_TYPES = (None, *SEMANTIC_TYPES)

# Where the counts among the task features are 1.
MOST_INPUTS = 8
MOST_OUTPUTS = 8
MOST_WORDS = 200
MOST_CLAUSES = 20
NUM_HIGHEST = 5  # similarities averaged in a feature; what one search shows

TASK_FEATURES = (
    *(f"type_{task_type}" for task_type in TASK_TYPES),
    *(f"complexity_{complexity}" for complexity in COMPLEXITIES),
    "inputs",
    "expected_outputs",
    "words",
    "clauses",
    *(f"best_of_{operation_type}" for operation_type in SEMANTIC_TYPES),
    "best",
    "mean_of_highest",
    "best_minus_median",
)

# Similarities between which c_rule rises from 0 to 1: of two texts with nothing in common, and of a clause that says
# what the tool is for. In benchmark-v1 the median is 0.19 for tools that are not required and 0.48 for required ones.
UNRELATED = 0.1
RELATED = 0.5
UNKNOWN = 0.5  # c_task where the task's type or the tool's operation type is not known

CANDIDATES_PER_TYPE = 2  # of each semantic operation type
CANDIDATES_OVERALL = 8


@dataclass(frozen=True, slots=True, eq=False)
class TaskContext:
    """Static context of some tasks with one library; rows are tasks in their order, columns tools in the library's.

    Attributes:
        features: uint8 (num_tasks, NUM_TASK_FEATURES), `TASK_FEATURES` in [0, 1] as round(255 x).
        similarity: float32 (num_tasks, num_tools) in [-1, 1], best similarity of the tool's text and a clause of the
            description; 0 without retrieval.
        rule_confidence: float32 (num_tasks, num_tools) in [0, 1], c_rule: how clearly a clause asks for what the tool
            does, or for what a tool that depends on it does.
        task_confidence: float32 (num_tasks, num_tools) in [0, 1], c_task: 1 if the skeleton of the task's type has a
            step of the operation type of the tool or of one that depends on it, else 0; UNKNOWN where that cannot be
            said, and at the least without retrieval.
        static_confidence: float32 (num_tasks, num_tools) in [0, 0.75], the composite confidence without its pattern
            part.
        candidates: bool (num_tasks, num_tools), the tools with the highest positive similarities: of each operation
            type CANDIDATES_PER_TYPE, of all CANDIDATES_OVERALL.
        operation_type: uint8 (num_tools,), place in OPERATION_TYPES: 0 none, 1 source, 2 processor, 3 aggregator, 4
            output, 5 utility.
    """

    features: NDArray[np.uint8]
    similarity: NDArray[np.float32]
    rule_confidence: NDArray[np.float32]
    task_confidence: NDArray[np.float32]
    static_confidence: NDArray[np.float32]
    candidates: NDArray[np.bool_]
    operation_type: NDArray[np.uint8]


def build_context(library: ToolLibrary, tasks: Sequence[Task], similarity: SimilaritySource = "auto") -> TaskContext:
    """Compute the context of some tasks; `similarity` is as in `resolve_similarity`."""
    scores = resolve_similarity(similarity, library, tasks)
    operation_type = operation_types(library)
    rule = _rule_confidence(library, scores)
    task = _task_confidence(library, tasks, operation_type)
    task[~scores.any(axis=1)] = np.maximum(task[~scores.any(axis=1)], UNKNOWN)  # without retrieval nothing is ruled out
    static = WEIGHT_RULE * rule + WEIGHT_EMBEDDING * np.maximum(scores, 0.0) + WEIGHT_TASK * task
    return TaskContext(
        features=_features(tasks, scores, operation_type),
        similarity=scores,
        rule_confidence=rule.astype(np.float32),
        task_confidence=task.astype(np.float32),
        static_confidence=static.astype(np.float32),
        candidates=_candidates(scores, operation_type),
        operation_type=operation_type,
    )


def operation_types(library: ToolLibrary) -> NDArray[np.uint8]:
    """Return the code of each tool's semantic operation type, uint8 (num_tools,)."""
    return np.array([OPERATION_TYPES.index(tool.semantic_type) for tool in library], dtype=np.uint8)


def _features(
    tasks: Sequence[Task], similarity: NDArray[np.float32], operation_type: NDArray[np.uint8]
) -> NDArray[np.uint8]:
    """Return the task features as bytes, uint8 (num_tasks, NUM_TASK_FEATURES)."""
    known = np.zeros((len(tasks), NUM_TASK_FEATURES - len(SEMANTIC_TYPES) - 3))
    for row, task in enumerate(tasks):
        known[row] = [
            *(task.task_type == task_type for task_type in TASK_TYPES),
            *(task.complexity == complexity for complexity in COMPLEXITIES),
            len(task.inputs) / MOST_INPUTS,
            len(task.expected_outputs) / MOST_OUTPUTS,
            len(task.description.split()) / MOST_WORDS,
            len(clauses(task.description)) / MOST_CLAUSES,
        ]
    scores = similarity.astype(np.float64)
    best_of_type = np.stack(
        [
            np.where(operation_type == code, scores, 0.0).max(axis=1, initial=0.0)
            for code in range(1, len(OPERATION_TYPES))
        ],
        axis=1,
    )
    highest = np.sort(scores, axis=1)[:, ::-1]
    overall = np.stack(
        [highest[:, 0], highest[:, :NUM_HIGHEST].mean(axis=1), highest[:, 0] - np.median(scores, axis=1)], axis=1
    )
    features = np.clip(np.concatenate([known, best_of_type, overall], axis=1), 0.0, 1.0)
    stored: NDArray[np.uint8] = np.rint(255.0 * features).astype(np.uint8)
    return stored


def _rule_confidence(library: ToolLibrary, similarity: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return c_rule, float64 (num_tasks, num_tools), 1 without retrieval; prerequisites rise to what needs them."""
    rule: NDArray[np.float64] = np.clip((similarity.astype(np.float64) - UNRELATED) / (RELATED - UNRELATED), 0.0, 1.0)
    rule[~similarity.any(axis=1)] = 1.0
    return _raised_to_dependents(library, rule)


def _task_confidence(
    library: ToolLibrary, tasks: Sequence[Task], operation_type: NDArray[np.uint8]
) -> NDArray[np.float64]:
    """Return c_task, float64 (num_tasks, num_tools)."""
    preferences = np.full((len(TASK_TYPES) + 1, len(library)), UNKNOWN)  # the last row is that of unknown types
    for row, task_type in enumerate(TASK_TYPES):
        asked_for = types_of_skeleton(task_type)
        for tool, code in enumerate(operation_type):
            if code:
                preferences[row, tool] = float(int(code) in asked_for)
    preferences = _raised_to_dependents(library, preferences)
    rows = [TASK_TYPES.index(task.task_type) if task.task_type in TASK_TYPES else -1 for task in tasks]
    chosen: NDArray[np.float64] = preferences[np.array(rows, dtype=np.int64)]
    return chosen


def types_of_skeleton(task_type: str) -> set[int]:
    """Return the codes of the operation types of a task type's steps; of an unknown one those up to output."""
    if task_type not in TEMPLATE_OF_TYPE:
        return set(range(1, OUTPUT_TYPE + 1))
    return {OPERATION_TYPES.index(step.semantic_type) for step in TEMPLATE_OF_TYPE[task_type].steps}


def _raised_to_dependents(library: ToolLibrary, confidence: NDArray[np.float64]) -> NDArray[np.float64]:
    """Raise each tool's column (rows, num_tools) to the highest of the tools that depend on it, also indirectly."""
    raised = confidence.copy()
    by_level = sorted(range(len(library)), key=lambda tool: -library[tool].dependency_metadata.level)
    for tool in by_level:
        for name in library.dependencies(library.names[tool]):
            dependency = library.index(name)
            np.maximum(raised[:, dependency], raised[:, tool], out=raised[:, dependency])
    return raised


def _candidates(similarity: NDArray[np.float32], operation_type: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """Return the retrieved candidates, bool (num_tasks, num_tools); ties go to the earlier tool."""
    chosen = _highest(similarity, CANDIDATES_OVERALL)
    for code in range(1, len(OPERATION_TYPES)):
        of_type = np.flatnonzero(operation_type == code)
        chosen[:, of_type] |= _highest(similarity[:, of_type], CANDIDATES_PER_TYPE)
    return chosen & (similarity > 0.0)


def _highest(similarity: NDArray[np.float32], count: int) -> NDArray[np.bool_]:
    """Mark the `count` highest entries of each row, bool of the same shape."""
    order = np.argsort(-similarity, axis=1, kind="stable")[:, :count]
    marked = np.zeros(similarity.shape, dtype=np.bool_)
    np.put_along_axis(marked, order, True, axis=1)
    return marked
