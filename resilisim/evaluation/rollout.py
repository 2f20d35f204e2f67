"""One episode: a policy plays, the exact optimum judges every message, the record keeps both."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from resilisim.envs.conversation import ConversationEnv, public_info
from resilisim.evaluation.attribution import IDENTITY_TOLERANCE, Attribution, attribute, identity_error
from resilisim.evaluation.records import RECORD_SCHEMA, EpisodeRecord, StepRecord
from resilisim.policies.base import Policy, is_privileged, policy_name
from resilisim.simulator import Problem, rescore
from resilisim.simulator.exact import solve
from resilisim.tasks import Task
from resilisim.workflows.prompts import Prompt


def play_episode(
    env: ConversationEnv,
    policy: Policy,
    task: Task,
    prompt: str | Prompt,
    seed: int,
    *,
    index: int = 0,
    name: str | None = None,
    salt: str = "",
    manifest: str = "",
) -> EpisodeRecord:
    """Play one episode to its end.

    An ordinary policy gets the public view of each info, a privileged one all of it except the seed: nobody is told
    what decides the luck.

    Args:
        env: The environment; it is reset.
        policy: The policy; it is reset.
        task: The task.
        prompt: Prompt type, or a rendered prompt.
        seed: Episode seed.
        index: Place of the episode in the plan of its run.
        name: Name of the policy in the record; its own if omitted.
        salt: Salt of the environment's luck, for the record.
        manifest: Hash of the run's arguments, for the record.

    Returns:
        The record; the identity of the attribution has been checked.

    Raises:
        ExactLimitError: The task is too large to be solved exactly.
        Exception: Whatever the policy raises.
    """
    privileged = is_privileged(policy)

    def view(info: Mapping[str, Any]) -> Mapping[str, Any]:
        if not privileged:
            return public_info(info)
        return {name: value for name, value in info.items() if name != "seed"}

    observation, info = env.reset(seed=seed, options={"task": task, "prompt": prompt})
    problem: Problem = info["problem"]
    optimum = solve(problem)
    # A flawed plan does not say what to do, so looking for it is information there, as without a plan.
    plan_in_prompt = info["planner"] is not None and info["flaw"] is None
    steps: list[StepRecord] = []
    policy.reset(observation, view(info))
    terminated, used_native_calls = False, False
    value: float | None = None
    while not terminated:
        before = info["state"]
        action: Any = policy.act(observation, view(info))
        if isinstance(action, Mapping):  # an assistant message with native calls; the record keeps its text
            action = json.dumps(action)
        observation, _, terminated, _, info = env.stop() if action is None else env.step(action)
        used_native_calls = used_native_calls or info["message"].native
        worth = attribute(optimum, before, info["message"], info["state"], plan_in_prompt, value)
        value = worth.value_after
        steps.append(_step_record(len(steps) + 1, action or "", info, worth))
    losses: dict[str, float] = {}
    for step in steps:
        if step["label"] is not None:
            losses[step["label"]] = losses.get(step["label"], 0.0) + step["regret"]
    score = info["score"]
    record = EpisodeRecord(
        schema=RECORD_SCHEMA,
        index=index,
        policy=name if name is not None else policy_name(policy),
        privileged=privileged,
        prompt_type=info["prompt_type"],
        planner=info["planner"],
        flaw=None if info["flaw"] is None else dict(info["flaw"]),
        protocol="native" if used_native_calls else "text",
        instance_id=task.instance_id,
        task_type=task.task_type,
        complexity=task.complexity,
        required_tools=list(task.required_tools),
        required_outputs=sorted(problem.library.outputs.intersection(task.required_tools)),
        seed=seed,
        steps=steps,
        ended_by=score["ended_by"],
        score=score,
        outcome=int(score["level"] == "full_success"),
        optimum=steps[0]["value"],
        optimum_gap=optimum.gap,
        regret=sum(step["regret"] for step in steps),
        luck=sum(step["luck"] for step in steps),
        losses=losses,
        law=problem.law.to_mapping(),
        rules=problem.rules.to_mapping(),
        salt=salt,
        manifest=manifest,
    )
    error = identity_error(record)
    if error > IDENTITY_TOLERANCE:
        raise AssertionError(f"the attribution of {task.instance_id}, seed {seed}, misses its identity by {error:.3g}")
    return record


def _step_record(turn: int, action: str, info: Mapping[str, Any], worth: Attribution) -> StepRecord:
    execution = info.get("execution")
    return StepRecord(
        turn=turn,
        message=action,
        kind=info["event"],
        tool=execution["tool"] if execution else info["message"].tool,
        attempt=execution["attempt"] if execution else None,
        success=execution["success"] if execution else None,
        error=execution["error"] if execution else None,
        success_probability=execution["success_probability"] if execution else None,
        value=worth.value,
        action_value=worth.action_value,
        regret=worth.regret,
        luck=worth.luck,
        label=worth.label,
    )


def rescore_record(record: EpisodeRecord) -> dict[str, Any]:
    """Return the score of a saved episode, computed again from its record alone."""
    return rescore(dict(record)).to_mapping()
