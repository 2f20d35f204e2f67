"""The five templates of tasks: how many, how hard, which steps in which order, and how many tools (SPEC, section 2)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SkeletonStep:
    """One operation of a template's skeleton.

    Attributes:
        operation: Its name in the skeleton.
        semantic_type: The role that a tool for it should have; tools without a role may stand in.
        query: What retrieval is asked; a bare word such as "input" would retrieve noise.
    """

    operation: str
    semantic_type: str
    query: str


@dataclass(frozen=True, slots=True)
class TaskTemplate:
    """One type of task.

    Attributes:
        task_type: Name of the type.
        complexity: "easy", "medium" or "hard".
        share: Number of tasks of this type among 5,040; other counts keep the proportions.
        steps: The skeleton.
        num_tools: For each number of tools that a task may have, how often that number is drawn (any scale).
        minimum_for_partial: Required tools that must succeed before a failure counts as partial success.
    """

    task_type: str
    complexity: str
    share: int
    steps: tuple[SkeletonStep, ...]
    num_tools: Mapping[int, float]
    minimum_for_partial: int


_INPUT = SkeletonStep(
    "input", "sources", "bring the input in: read a file, fetch from a remote address, or scan a folder"
)
_READ = SkeletonStep(
    "read", "sources", "read the raw input: open it from disk, look for it in a folder, or fetch it from the network"
)
_FETCH = SkeletonStep(
    "fetch", "sources", "fetch data from an external system: open a connection, sign in, and download from its API"
)
_PROCESS = SkeletonStep(
    "process",
    "processors",
    "process data records: parse, filter, transform, map, validate, analyze or calculate with their values",
)
_PARSE = SkeletonStep("parse", "processors", "parse raw content into structured records")
_VALIDATE = SkeletonStep(
    "validate",
    "processors",
    "validate data: check records against a schema, or a network response against its contract",
)
_TRANSFORM = SkeletonStep(
    "transform",
    "processors",
    "transform records: reshape and normalize fields, map fields between systems, or convert the file format",
)
_COMPUTE = SkeletonStep(
    "compute", "processors", "compute numerical results: calculate, analyze statistics, predict, simulate or optimize"
)
_AGGREGATE = SkeletonStep(
    "aggregate", "aggregators", "aggregate and combine many records: filter them and sum them up by group"
)
_WRITE = SkeletonStep(
    "write", "outputs", "write the result out: save it to a file, post it to an API, or notify the team by message"
)
_POST = SkeletonStep(
    "post",
    "outputs",
    "post the result: send it to a remote endpoint, route messages, queue them for another system, or notify people",
)
_OUTPUT = SkeletonStep(
    "output",
    "outputs",
    "output the final result: write a file, post it to an API, queue it for another system, or notify people",
)

TEMPLATES: tuple[TaskTemplate, ...] = (
    TaskTemplate("basic_file_processing", "easy", 1200, (_INPUT, _PROCESS), {2: 0.4, 3: 0.6}, 1),
    TaskTemplate("simple_data_transformation", "easy", 320, (_READ, _PROCESS, _OUTPUT), {1: 0.25, 2: 0.25, 3: 0.5}, 1),
    TaskTemplate(
        "complex_validation_pipeline",
        "medium",
        1520,
        (_READ, _VALIDATE, _TRANSFORM, _AGGREGATE, _WRITE),
        {4: 0.35, 5: 0.65},
        3,
    ),
    TaskTemplate(
        "complex_network_integration",
        "medium",
        1360,
        (_FETCH, _PARSE, _VALIDATE, _TRANSFORM, _POST),
        {3: 0.2, 4: 0.3, 5: 0.5},
        3,
    ),
    TaskTemplate(
        "advanced_computation_pipeline",
        "hard",
        640,
        (_READ, _VALIDATE, _TRANSFORM, _COMPUTE, _AGGREGATE, _WRITE),
        {5: 0.2, 6: 0.4, 7: 0.4},
        4,
    ),
)

TEMPLATE_OF_TYPE: Mapping[str, TaskTemplate] = {template.task_type: template for template in TEMPLATES}
SHARES: tuple[int, ...] = tuple(template.share for template in TEMPLATES)


def quotas(count: int, weights: Sequence[int] = SHARES) -> tuple[int, ...]:
    """Divide `count` places in proportion to the weights, by largest remainder (ties go to the earlier one).

    Args:
        count: Number of places, 0 or more.
        weights: One positive integer for each party.

    Returns:
        One number for each weight; they add up to `count`.
    """
    total = sum(weights)
    result = [count * weight // total for weight in weights]
    by_remainder = sorted(range(len(weights)), key=lambda place: (-(count * weights[place] % total), place))
    for place in by_remainder[: count - sum(result)]:
        result[place] += 1
    return tuple(result)
