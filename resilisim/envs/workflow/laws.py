"""How likely an execution succeeds in Workflow-v0, under the benchmark law or the training law (appendix D.4.1).

The benchmark law is read from its table (`simulator.law`). The training law is p = base x 0.8^(unmet dependencies) x
0.95^retries x (1 + 0.3 c_task), at most 1; its base depends on the running success rate that the trainer measured.
"""

from __future__ import annotations

import math

from resilisim.envs.workflow.arrays import Episode, TaskRecord, World
from resilisim.seeding import UNIFORM_BITS
from resilisim.simulator.compiled import scalar
from resilisim.simulator.law import SUCCEEDED, count_failed_dependencies, count_not_executed
from resilisim.simulator.state import NUM_FAILURES

# How an episode of the training law can end, besides the codes of simulator.state.
DEADLOCK = 6

LOW_SUCCESS = 0.1  # below it the training law and the error penalty are at their mildest
ADAPTATION_THRESHOLD = 0.3  # theta_adapt: the sequence phase begins
BASES = (0.95, 0.90, 0.85)
UNMET_DEPENDENCY = 0.8
RETRY = 0.95
ALIGNMENT = 0.3  # g = 1 + ALIGNMENT * c_task

TWO_TO_THE_BITS = 2.0**UNIFORM_BITS

# Patterns have two or three tools; a key has 20 bits for each, counted from 1, so that 0 means none.
PATTERN_TOOL_BITS = 20


@scalar
def training_base(running_success: float) -> float:
    """Return the base probability of the training law at a running success rate."""
    if running_success < LOW_SUCCESS:
        return BASES[0]
    if running_success < ADAPTATION_THRESHOLD:
        return BASES[1]
    return BASES[2]


@scalar
def phase_of(running_success: float) -> int:
    """Return the phase of the reward: 0 coverage, 1 sequence."""
    return 1 if running_success >= ADAPTATION_THRESHOLD else 0


@scalar
def training_probability(base: float, num_unmet: int, num_retries: int, task_confidence: float) -> float:
    """Return the training law's success probability."""
    value = base * (1.0 + ALIGNMENT * task_confidence)
    for _ in range(num_unmet):
        value *= UNMET_DEPENDENCY
    for _ in range(num_retries):
        value *= RETRY
    return min(1.0, max(0.0, value))


@scalar
def count_unmet(episode: Episode, tool: int, world: World) -> int:
    """Return how many direct dependencies of a tool have not succeeded."""
    count = 0
    for dependency in world.dependencies[tool]:
        if dependency < 0:
            break
        count += 1 if episode.status[dependency] != SUCCEEDED else 0
    return count


@scalar
def thresholds(episode: Episode, tool: int, task: TaskRecord, world: World) -> tuple[int, int]:
    """Return the integers below which an execution's 53 luck bits succeed, and would with all dependencies in place."""
    if world.training_law:
        base = training_base(episode.running_success)
        confidence = float(task.task_confidence[tool])
        retries = int(episode.retries[tool])
        chance = training_probability(base, count_unmet(episode, tool, world), retries, confidence)
        clean = training_probability(base, 0, retries, confidence)
        return math.ceil(chance * TWO_TO_THE_BITS), math.ceil(clean * TWO_TO_THE_BITS)
    dependencies = world.dependencies[tool]
    status = episode.status
    row = world.base_index[tool]
    failures = episode.counters[NUM_FAILURES]
    num_not_executed = count_not_executed(status, dependencies)
    num_failed = count_failed_dependencies(status, dependencies)
    return world.threshold[row, num_not_executed, num_failed, failures], world.threshold[row, 0, 0, failures]


@scalar
def pattern_key(first: int, second: int, third: int) -> int:
    """Return the key of a pattern of three tools, or of two (`first` is -1)."""
    return ((first + 1) << (2 * PATTERN_TOOL_BITS)) | ((second + 1) << PATTERN_TOOL_BITS) | (third + 1)


@scalar
def pattern_score(key: int, world: World) -> float:
    """Return the score of a pattern, 0 if it was never mined."""
    low, high = 0, world.num_patterns
    while low < high:
        middle = (low + high) // 2
        if world.pattern_keys[middle] < key:
            low = middle + 1
        else:
            high = middle
    if low < world.num_patterns and world.pattern_keys[low] == key:
        return float(world.pattern_scores[low])
    return 0.0


@scalar
def pattern_confidence(episode: Episode, tool: int, world: World) -> float:
    """Return c_pattern: the best score of a pattern that a tool would extend after the latest successful tools."""
    length = episode.sequence_length
    if world.num_patterns == 0 or length == 0:
        return 0.0
    last = int(episode.sequence[length - 1])
    best = pattern_score(pattern_key(-1, last, tool), world)
    if length > 1:
        best = max(best, pattern_score(pattern_key(int(episode.sequence[length - 2]), last, tool), world))
    return best
