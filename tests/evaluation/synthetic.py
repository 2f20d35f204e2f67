"""Episode records that nobody played, yet consistent: every step obeys Q = E[V after it], and the identity holds."""

import itertools

from resilisim.evaluation.episode.record import RECORD_SCHEMA, EpisodeRecord, StepRecord, fitting_ceiling
from resilisim.seeding import Draws

TASK_TYPES = ("basic_file_processing", "complex_network_integration", "advanced_computation_pipeline")
TOOLS = ("file_operations_reader", "data_processing_parser", "data_processing_aggregator", "file_operations_writer")
MISTAKES = ("missing_dependency_first", "wrong_order", "unneeded_tool", "information", "gave_up_early")


def synthetic_steps(draws, optimum, carelessness):
    """Walk from V* = optimum to 0 or 1: a call loses a share of V with some chance, then luck moves it fairly."""
    steps = []
    value = optimum
    while 0.0 < value < 1.0:
        turn = len(steps) + 1
        careless = draws.uniform() < carelessness
        action_value = value * 0.7 if careless else value
        # Two possible next values, 0 <= low < Q < high <= 1, weighted so that their mean is Q exactly.
        last = turn >= 6
        high = 1.0 if last else min(1.0, action_value + 0.2 * (1.0 - action_value) + 0.05)
        low = 0.0 if last else action_value * 0.5
        probability = (action_value - low) / (high - low)
        success = draws.uniform() < probability
        after = high if success else low
        steps.append(
            StepRecord(
                turn=turn,
                message=f"<tool_call>{TOOLS[turn % len(TOOLS)]}</tool_call>",
                kind="execute",
                tool=TOOLS[turn % len(TOOLS)],
                attempt=1,
                success=success,
                error=None if success else "OPERATION_FAILED",
                success_probability=probability,
                value=value,
                action_value=action_value,
                regret=value - action_value,
                luck=after - action_value,
                label=draws.choice(MISTAKES) if careless else None,
            )
        )
        value = after
    return steps, value


def synthetic_record(index, policy, prompt_type, task, seed, carelessness, manifest="0" * 64):
    """Return one record; the same arguments give the same record."""
    optimum = 0.55 + 0.4 * Draws("task", task).uniform()
    steps, outcome = synthetic_steps(Draws("episode", policy, prompt_type, task, seed), optimum, carelessness)
    losses = {}
    for step in steps:
        if step["label"] is not None:
            losses[step["label"]] = losses.get(step["label"], 0.0) + step["regret"]
    level = "full_success" if outcome == 1.0 else ("partial_success" if seed % 3 == 0 else "failure")
    ended_by = "completion" if outcome == 1.0 else "turns"
    finds_tools = fitting_ceiling(prompt_type, privileged=policy == "exact-optimum") == "optimum_after_searches"
    return EpisodeRecord(
        schema=RECORD_SCHEMA,
        index=index,
        policy=policy,
        privileged=policy == "exact-optimum",
        prompt_type=prompt_type,
        planner="exact" if prompt_type == "optimal" else None,
        flaw=None,
        protocol="text",
        instance_id=f"task_{task:08x}",
        task_type=TASK_TYPES[task % len(TASK_TYPES)],
        complexity=("easy", "medium", "hard")[task % 3],
        required_tools=list(TOOLS[: 1 + task % len(TOOLS)]),
        required_outputs=[],
        seed=seed,
        steps=steps,
        ended_by=ended_by,
        score={"level": level, "coverage": 1.0 if outcome else 0.5, "ended_by": ended_by},
        outcome=int(outcome),
        optimum=optimum,
        optimum_gap=0.0,
        optimum_after_searches=0.75 * optimum if finds_tools else None,
        searches_needed=2 if finds_tools else None,
        no_search_ceiling=None,
        regret=sum(step["regret"] for step in steps),
        luck=sum(step["luck"] for step in steps),
        losses=losses,
        law={"base": 0.8, "not_executed": 0.5, "failed": 0.7, "history": 0.9},
        rules={"max_turns": 10, "max_consecutive_failures": 5, "loop_length": 4},
        salt="resilisim/evaluation",
        manifest=manifest,
    )


CARELESSNESS = {"exact-optimum": 0.0, "repairing-follower": 0.15, "plan-follower": 0.3, "random": 0.9}


def synthetic_run(
    policies=tuple(CARELESSNESS), prompts=("baseline", "optimal"), num_tasks=30, num_seeds=4, manifest="0" * 64
):
    """Yield a run's records in the order of its plan: task, policy, prompt, seed."""
    plan = itertools.product(range(num_tasks), policies, prompts, range(num_seeds))
    for index, (task, policy, prompt_type, seed) in enumerate(plan):
        yield synthetic_record(index, policy, prompt_type, task, seed, CARELESSNESS.get(policy, 0.2), manifest)
