"""One episode: a policy plays, the exact optimum judges every message, the record keeps both."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, cast

from resilisim.envs.conversation import ConversationEnv
from resilisim.envs.session import Session
from resilisim.evaluation.episode.attribution import (
    IDENTITY_TOLERANCE,
    Attribution,
    Course,
    attribute,
    identity_error,
    total_losses,
)
from resilisim.evaluation.episode.record import (
    RECORD_SCHEMA,
    EpisodeRecord,
    FlawRecord,
    SpokenTexts,
    StepRecord,
    fitting_ceiling,
)
from resilisim.policies.base import Policy, is_privileged, play, policy_name
from resilisim.policies.llm.policy import LlmPolicy
from resilisim.policies.llm.run import Journal
from resilisim.provenance import content_hash
from resilisim.simulator import rescore
from resilisim.simulator.exact import solve
from resilisim.simulator.state import EpisodeState
from resilisim.tasks import Task
from resilisim.tasks.searches import Searches
from resilisim.workflows.prompts import Prompt

PROBLEM_LENGTH = 300  # of a problem in a record


class JudgedSession(Session):
    """An episode whose every message is judged by the exact optimum.

    Attributes:
        steps: What each message was worth.
        texts: All that the environment said.

    Raises:
        ExactLimitError: The task is too large to be solved exactly.
    """

    def _begun(self) -> None:
        self._optimum = solve(self.problem)
        self._flaw = self._flaw_with_plan()
        self._course = Course(self.problem, self._info["planner"], self._flaw)
        self.steps: list[StepRecord] = []
        self.texts = SpokenTexts(prompt=self.reply.observation, replies=[])
        self._used_native_calls = False
        self._value: float | None = None

    def _answered(self, text: str, before: EpisodeState) -> None:
        message = self._info["message"]
        self._used_native_calls = self._used_native_calls or message.native
        worth = attribute(self._optimum, before, message, self._info["state"], self._course, self._value)
        self._value = worth.value_after
        self.texts["replies"].append(self.reply.observation)
        self.steps.append(_step_record(len(self.steps) + 1, text, self._info, worth))

    def record(self, policy: str, index: int = 0, salt: str = "", manifest: str = "") -> EpisodeRecord:
        """Return the record of the episode that has ended; the identity of its attribution has been checked.

        Args:
            policy: Name of the policy.
            index: Place of the episode in the plan of its run.
            salt: Salt of the environment's luck.
            manifest: Hash of the run's arguments.
        """
        task, problem, steps, info = self._task, self.problem, self.steps, self._info
        score = info["score"]
        searches = Searches(None)
        if fitting_ceiling(info["prompt_type"], self._env.tools, self._privileged) == "known_after_search":
            searches = self._env.searches_needed(task)
        record = EpisodeRecord(
            schema=RECORD_SCHEMA,
            index=index,
            policy=policy,
            privileged=self._privileged,
            prompt_type=info["prompt_type"],
            planner=info["planner"],
            flaw=self._flaw,
            protocol="native" if self._used_native_calls else "text",
            instance_id=task.instance_id,
            task_type=task.task_type,
            complexity=task.complexity,
            required_tools=list(task.required_tools),
            required_outputs=sorted(problem.library.outputs.intersection(task.required_tools)),
            seed=self._seed,
            steps=steps,
            ended_by=score["ended_by"],
            score=score,
            outcome=int(score["level"] == "full_success"),
            optimum=steps[0]["value"],
            optimum_gap=self._optimum.gap,
            known_after_search=None if searches.fewest is None else self._optimum.after_search(searches.fewest),
            searches_needed=searches.fewest,
            no_search_ceiling=searches.reason,
            regret=sum(step["regret"] for step in steps),
            luck=sum(step["luck"] for step in steps),
            losses=total_losses(steps),
            law=problem.law.to_mapping(),
            rules=problem.rules.to_mapping(),
            salt=salt,
            manifest=manifest,
            texts=self.texts,
        )
        error = identity_error(record)
        if error > IDENTITY_TOLERANCE:
            raise AssertionError(
                f"the attribution of {task.instance_id}, seed {self._seed}, misses its identity by {error:.3g}"
            )
        return record

    def _flaw_with_plan(self) -> FlawRecord | None:
        """Return what is wrong with the plan in the prompt, together with the plan's tools and limits as shown."""
        flaw = self._info["flaw"]
        if flaw is None:
            return None
        prompt = self._prompt if isinstance(self._prompt, Prompt) else self._env.prompt(self._task, self._prompt)
        if prompt.workflow is None:
            return cast("FlawRecord", dict(flaw))
        steps = prompt.workflow.steps
        shown: dict[str, Any] = {"plan": [step.tool for step in steps]}
        if any(step.is_limited for step in steps):
            shown["limits"] = [[step.max_tries, step.skip_from] for step in steps]
        return cast("FlawRecord", {**flaw, **shown})


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
        The record; the identity of the attribution has been checked. That of an LLM agent has its part `agent`.

    Raises:
        ExactLimitError: The task is too large to be solved exactly.
        Exception: Whatever the policy raises.
    """
    shown = name if name is not None else policy_name(policy)
    if isinstance(policy, LlmPolicy):
        return asyncio.run(
            play_agent_episode(env, policy, task, prompt, seed, index=index, name=shown, salt=salt, manifest=manifest)
        )
    session = JudgedSession(env, task, prompt, seed, privileged=is_privileged(policy))
    play(policy, session)
    return session.record(shown, index, salt, manifest)


async def play_agent_episode(
    env: ConversationEnv,
    agent: LlmPolicy[Any],
    task: Task,
    prompt: str | Prompt,
    seed: int,
    *,
    index: int = 0,
    name: str | None = None,
    salt: str = "",
    manifest: str = "",
    journal: Journal | None = None,
) -> EpisodeRecord:
    """Play one episode of an LLM agent; many can be under way at once, each with its own environment and agent.

    Args:
        env: The environment; it is reset.
        agent: The agent.
        task: The task.
        prompt: Prompt type, or a rendered prompt.
        seed: Episode seed.
        index: Place of the episode in the plan of its run.
        name: Name of the policy in the record; its own if omitted.
        salt: Salt of the environment's luck, for the record.
        manifest: Hash of the run's arguments, for the record.
        journal: Keeps the model's replies while the episode is under way; None keeps none.

    Returns:
        The record with its part `agent`.

    Raises:
        InfrastructureError: An endpoint is down; what was answered so far is in the journal.
        Exception: Whatever else the agent raises.
    """
    session = JudgedSession(env, task, prompt, seed)
    identity = content_hash([task.instance_id, seed, salt, prompt if isinstance(prompt, str) else prompt.text])
    part = await agent.play_session(session, identity=identity, journal=journal)
    record = session.record(name if name is not None else policy_name(agent), index, salt, manifest)
    record["agent"] = part
    record["privileged"] = part["oracle"]  # it was told what no agent may know
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
        error=execution["error"] if execution else _first_problem(info),
        success_probability=execution["success_probability"] if execution else None,
        value=worth.value,
        action_value=worth.action_value,
        regret=worth.regret,
        luck=worth.luck,
        label=worth.label,
    )


def _first_problem(info: Mapping[str, Any]) -> str | None:
    """Return why a message was not obeyed, as the agent was told; None if there was nothing to say."""
    if info["event"] not in ("rejected", "format_error"):
        return None
    problem = " ".join(next(iter(info.get("problems", ())), "").split())
    return (problem if len(problem) <= PROBLEM_LENGTH else problem[: PROBLEM_LENGTH - 3] + "...") or None


def rescore_record(record: EpisodeRecord) -> dict[str, Any]:
    """Return the score of a saved episode, computed again from its record alone."""
    return rescore(dict(record)).to_mapping()
