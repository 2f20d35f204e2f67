"""The shape of an episode's record: one JSON line that holds everything needed to judge, re-score and replay it."""

from __future__ import annotations

from typing import Any, Final, TypedDict

RECORD_SCHEMA: Final = "resilisim-episode-1"

# What a lost point can be put down to, in the order in which reports show it. The text completes "points lost by ...".
LOSS_LABELS: Final[dict[str, str]] = {
    "missing_dependency_first": "running a tool before its dependencies had succeeded",
    "wrong_order": "running a required tool before an earlier required one",
    "unneeded_tool": "running a tool that the task does not need",
    "repeated_success": "running again a tool that had already succeeded",
    "suboptimal_choice": "another call than the best one, for none of the other reasons",
    "wasted_turn": "searching or asking although the prompt held a plan",
    "format_error": "a message that could not be read",
    "rejected_call": "a call with an unknown tool or refused parameters",
    "gave_up_early": "stopping before the task was done",
    "no_completion_signal": "not saying that the task was done",
    "information": "finding out which tools to use, which the prompt did not say (a price, not a blame)",
}

# Below this a regret is rounding error of the solver and gets no label.
REGRET_TOLERANCE: Final = 1e-12


class StepRecord(TypedDict):
    """One message of an agent and what it cost.

    `value` is V* before the message, `action_value` is Q* of the message, regret = value - action_value,
    luck = V* after the message - action_value. The five fields from `tool` to `success_probability` are None unless the
    message executed a tool (`tool` also names what was asked for or rejected).
    """

    turn: int
    message: str
    kind: str
    tool: str | None
    attempt: int | None
    success: bool | None
    error: str | None
    success_probability: float | None
    value: float
    action_value: float
    regret: float
    luck: float
    label: str | None


class EpisodeRecord(TypedDict):
    """One episode; the identity 1 - outcome = (1 - optimum) + regret - luck holds to 1e-9.

    `index` is the episode's place in the plan of its run, `manifest` the hash of the run's arguments, `optimum` is V*
    of the start, `regret` and `luck` are sums over the steps, `losses` splits `regret` by label. `required_outputs` are
    the output tools among the required ones: with them an episode can be scored again without its library.
    """

    schema: str
    index: int
    policy: str
    privileged: bool
    prompt_type: str
    planner: str | None
    protocol: str
    instance_id: str
    task_type: str
    complexity: str
    required_tools: list[str]
    required_outputs: list[str]
    seed: int
    steps: list[StepRecord]
    ended_by: str
    score: dict[str, Any]
    outcome: int
    optimum: float
    regret: float
    luck: float
    losses: dict[str, float]
    law: dict[str, float]
    rules: dict[str, int]
    salt: str
    manifest: str
