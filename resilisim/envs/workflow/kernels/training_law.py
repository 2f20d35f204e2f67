"""The law that Workflow-v0 trains under (appendix D.4.1), and the stages of a curriculum (Table 12).

The training law is p = base x 0.8^(unmet dependencies) x 0.95^retries x (1 + 0.3 c_task), at most 1; its base depends
on the running success rate that the trainer measured, as does the phase of the reward (`rewards`).
"""

from __future__ import annotations

from dataclasses import dataclass

from resilisim.simulator.compiled import scalar

LOW_SUCCESS = 0.1  # below it the training law and the error penalty are at their mildest
ADAPTATION_THRESHOLD = 0.3  # theta_adapt: the sequence phase begins
BASES = (0.95, 0.90, 0.85)
UNMET_DEPENDENCY = 0.8
RETRY = 0.95
ALIGNMENT = 0.3  # g = 1 + ALIGNMENT * c_task

# What `phase_of` returns and the column PHASE shows.
COVERAGE_PHASE = 0
SEQUENCE_PHASE = 1


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
    """Return the phase of the reward."""
    return SEQUENCE_PHASE if running_success >= ADAPTATION_THRESHOLD else COVERAGE_PHASE


@scalar
def training_probability(base: float, num_unmet: int, num_retries: int, task_confidence: float) -> float:
    """Return the training law's success probability."""
    value = base * (1.0 + ALIGNMENT * task_confidence)
    for _ in range(num_unmet):
        value *= UNMET_DEPENDENCY
    for _ in range(num_retries):
        value *= RETRY
    return min(1.0, max(0.0, value))


@dataclass(frozen=True, slots=True)
class Stage:
    """What an episode must reach at a stage of the curriculum to count as a success, and how long it may take.

    Attributes:
        min_progress: Least final progress.
        max_errors: Most failed executions in all; one more in a row ends the episode.
        required_coverage: Share of the required tools that must have succeeded, in whole tools, rounded down, but one
            at least.
        max_turns: Most steps (k_max of D.4.1).
    """

    min_progress: float
    max_errors: int
    required_coverage: float
    max_turns: int


# Table 12, and k_max, which the paper calls adaptive without a value (docs/decisions). Its last row, "4+", is as far as
# stages go.
STAGES = (
    Stage(min_progress=0.1, max_errors=50, required_coverage=0.2, max_turns=20),
    Stage(min_progress=0.3, max_errors=30, required_coverage=0.4, max_turns=22),
    Stage(min_progress=0.5, max_errors=20, required_coverage=0.7, max_turns=24),
    Stage(min_progress=0.7, max_errors=15, required_coverage=0.9, max_turns=26),
    Stage(min_progress=0.7, max_errors=10, required_coverage=1.0, max_turns=28),
)
MAX_STAGE = len(STAGES) - 1
