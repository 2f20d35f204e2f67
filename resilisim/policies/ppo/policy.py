"""A trained policy at work: in Conversation-v0, and as a planner that says what it would call if every call succeeded.

It sees what it was trained to read: an episode of Workflow-v0 (`Mirror`) is kept beside the conversation or the plan.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from resilisim.envs.reply import Info
from resilisim.envs.workflow import spaces
from resilisim.envs.workflow.env import Observation, WorkflowEnv
from resilisim.envs.workflow.options import WorkflowOptions
from resilisim.envs.workflow.spaces import INVOKE_TOOL, RETRY_TOOL, action_index, num_tools_of, tool_of
from resilisim.errors import InvalidInputError
from resilisim.policies.base import FINISH, WAIT, call_message, is_closing, search_message
from resilisim.policies.ppo.checkpoint import DEFAULT_CHECKPOINT, LoadedPolicy, load_checkpoint
from resilisim.policies.ppo.network import WorkflowActor
from resilisim.policies.ppo.validation import Actor
from resilisim.simulator.end_rules import EndRules
from resilisim.simulator.exact.plan_following import best_limits
from resilisim.simulator.law import Law
from resilisim.simulator.messages import Message
from resilisim.simulator.problem import Problem, build_problem
from resilisim.simulator.state import EpisodeState
from resilisim.simulator.tool_status import SUCCEEDED
from resilisim.tasks import Task
from resilisim.tool_library import ToolLibrary
from resilisim.tool_library.parameters import changed_parameters
from resilisim.tool_library.tool import DEPENDENCY_ERROR
from resilisim.workflows.planner import NUM_ALTERNATIVES, KeepingPlanner, SimilarTools, limited_steps
from resilisim.workflows.steps import (
    SemanticMatch,
    Wording,
    expected_outcome,
    reason,
    step_parameters,
)
from resilisim.workflows.workflow import Step


@dataclass(frozen=True, slots=True)
class Preference:
    """A call that a policy may make now: the index of its tool, and the probability that the policy gives to it."""

    tool: int
    probability: float
    action: int = -1


# Statuses that failures show, by their codes; all others are FAILED.
FAILURE_STATUSES = {"TIMEOUT": spaces.STATUS_TIMEOUT, DEPENDENCY_ERROR: spaces.STATUS_DEPENDENCY_FAILED}


def reads_laws(loaded: LoadedPolicy) -> bool:
    """Return whether a policy sees the parts of laws."""
    return bool(loaded.description.network.arguments.get("law_parts"))


def benchmark_actions(mask: NDArray[Any]) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Return the actions that a policy of the benchmark law knows among those legal under a law with parts.

    Both are (num_envs, num_actions): the mask, in which only executions are left, each once (where nothing can be
    executed, whatever is legal), and the actions that these mean: where the input of a tool was refused, another one,
    because as it was the call would surely fail.
    """
    num_tools = num_tools_of(mask.shape[1])
    first = [action_index(kind, 0, num_tools) for kind in (INVOKE_TOOL, RETRY_TOOL)]
    invoke, retry = (slice(start, start + num_tools) for start in first)
    known, meant = np.zeros_like(mask), np.tile(np.arange(mask.shape[1]), (len(mask), 1))
    refused = (mask[:, invoke] != 0) & (mask[:, retry] != 0)
    known[:, invoke], known[:, retry] = np.where(refused, 0, mask[:, invoke]), mask[:, retry]
    known[~known.any(axis=1)] = mask[~known.any(axis=1)]  # nothing to execute: whatever is legal
    meant[:, retry] = np.where(refused, meant[:, invoke], meant[:, retry])
    return known, meant


class LawBlindActor:
    """Plays a network of the benchmark law under laws with parts, without seeing what is special about them."""

    def __init__(self, actor: Actor) -> None:
        self._actor = actor

    def act(self, observation: dict[str, NDArray[Any]], mask: NDArray[Any]) -> NDArray[np.int64]:
        """Return an action for each observation: int64 (N,)."""
        known, meant = benchmark_actions(mask)
        actions = self._actor.act(observation, known)
        return meant[np.arange(len(actions)), actions]


def actor_of(loaded: LoadedPolicy) -> Actor:
    """Return what plays a policy in Workflow-v0 under any law but the training law."""
    actor = WorkflowActor(loaded.network)
    return actor if reads_laws(loaded) else LawBlindActor(actor)


class Mirror:
    """One episode that a trained policy looks at."""

    def __init__(self, loaded: LoadedPolicy, task: Task, library: ToolLibrary, law: Law, rules: EndRules) -> None:
        check_library(loaded, library)
        self._actor = WorkflowActor(loaded.network)
        self._reads_law = reads_laws(loaded)
        options = observation_options(loaded, library)
        law_options = law.to_mapping() if law.is_plain else {"law": law}
        self._env = WorkflowEnv(options.with_options({"tasks": [task], **law_options, **asdict(rules)}))
        self._env.set_patterns(patterns_of(loaded, library))
        self._num_tools = len(library)
        self.restart()

    def restart(self) -> None:
        """Go back to the start of the episode."""
        self._observation: Observation = self._env.reset(seed=0, options={"task": 0, "episode_seed": 0})[0]
        self.ended = False

    @property
    def state(self) -> EpisodeState:
        """The state of the episode."""
        return self._env.episode_state()

    def preferences(self) -> list[Preference]:
        """Return the legal calls, the most probable first; equal ones in the order of the actions."""
        return [preference for preference in self._preferences() if preference.tool >= 0]

    def _preferences(self) -> list[Preference]:
        """Return the legal actions likewise; to a policy that does not read laws they are those of the benchmark."""
        mask, meant = self._observation["action_mask"], np.arange(self._env.core.action_space.n)
        if not self._reads_law:
            (mask,), (meant,) = benchmark_actions(mask[None])
        batch = {name: array[None] for name, array in self._observation.items()}
        probabilities: NDArray[np.float32] = self._actor.probabilities(batch, mask[None])[0]
        legal = np.flatnonzero(mask)
        best_first: list[int] = legal[np.argsort(-probabilities[legal], kind="stable")].tolist()
        return [
            Preference(tool_of(action, self._num_tools), float(probabilities[action]), int(meant[action]))
            for action in best_first
        ]

    def best_message(self) -> tuple[int, Message | None]:
        """Return the preferred action, and what it is in a conversation; None if it helps nobody."""
        best = self._preferences()[0].action
        return best, self._env.message(best)

    def follow(self, action: int, info: Info, hidden: Sequence[int]) -> None:
        """Let an action happen as the last message of a conversation did, before which `hidden` was hidden."""
        if not self.ended:
            execution = info.get("execution") or {}
            failed = FAILURE_STATUSES.get(str(execution.get("error")), spaces.STATUS_FAILED)
            result = info.get("result") or ("success" if execution.get("success") else "failure")
            forced = (result, failed, info.get("seconds") or 0.0, hidden)
            self._observation, _, self.ended, _, _ = self._env.follow(action, *forced)

    def execute(self, tool: int, status: int) -> None:
        """Let a tool be executed with this outcome: SUCCESS or one of the failures of `envs.workflow.spaces`."""
        invoke, retry = (action_index(kind, tool, self._num_tools) for kind in (INVOKE_TOOL, RETRY_TOOL))
        self._step(invoke if self._observation["action_mask"][invoke] else retry, status)

    @property
    def useless(self) -> int:
        """An action that the mask forbids."""
        return int(np.flatnonzero(self._observation["action_mask"] == 0)[0])

    def _step(self, action: int, status: int) -> None:
        if not self.ended:
            self._observation, _, self.ended, _, _ = self._env.step_with_outcome(action, status)


def observation_options(loaded: LoadedPolicy, library: ToolLibrary | None = None) -> WorkflowOptions:
    """Return how Workflow-v0 has to show itself to a policy: as in its training, required list and filters alike."""
    training = loaded.description.training
    required, filters = training.get("required", "shown"), training.get("filters", ())
    try:
        return WorkflowOptions(library=library, required=required, filters=filters)
    except InvalidInputError as error:
        raise InvalidInputError(f"checkpoint {str(loaded.folder)!r:.200}: training: {error!s:.200}") from error


def patterns_of(loaded: LoadedPolicy, library: ToolLibrary) -> dict[tuple[str, ...], float]:
    """Return the patterns that were mined in a policy's training, those of tools that the library has."""
    listed = loaded.description.training.get("pattern_scores", [])
    try:
        scores = {tuple(str(name) for name in names): float(score) for names, score in listed}
    except (TypeError, ValueError) as error:
        raise InvalidInputError(
            f"checkpoint {str(loaded.folder)!r:.200}: training.pattern_scores: expected pairs of tool names and a score"
        ) from error
    return {names: score for names, score in scores.items() if all(name in library for name in names)}


def check_library(loaded: LoadedPolicy, library: ToolLibrary) -> None:
    """Refuse a library for which a policy's weights say nothing.

    A transformer without embeddings of single tools knows them by their columns only, so it works with any library.
    """
    network, trained_for = loaded.description.network, loaded.description.library
    general = network.kind == "transformer" and not network.arguments["tool_embeddings"]
    if not general and trained_for != library.content_hash:
        raise InvalidInputError(
            f"checkpoint {str(loaded.folder)!r:.200} was trained for the tool library {trained_for[:12]}, "
            f"got {library.content_hash[:12]}: expected the same, or a transformer without tool_embeddings"
        )


# Probabilities come from 32 bit arithmetic, whose last bits differ between machines; plans should not.
CONFIDENCE_DECIMALS = 4
WORDING = Wording(left_out="the trained policy does not run {} first", unexplained="but called by the trained policy")


class PolicyPlanner(KeepingPlanner[Task]):
    """Plans by a trained policy: the calls that it prefers along the path on which every call succeeds.

    The policy sees Workflow-v0's observations under the given law and end rules. A step is a tool to run until it has
    succeeded, so each tool is a step once: where the policy would rather call a tool that has succeeded, its best other
    call is taken. The plan ends when all required tools are steps, or with as many steps as there are turns; so every
    policy gives a plan, a bad one perhaps one that cannot succeed. Its steps outside the required list get limits, or
    are left out, so that the plan succeeds as often as it can (`simulator.exact.best_limits`).

    A step's confidence is the probability that the policy gave to the call. The predicted success probability is not
    the policy's opinion: it is the computed chance of full success of following this plan to the letter, and so at most
    V*. Alternatives of a tool are what `similar` names; without it they are the policy's next most probable calls.
    """

    def __init__(
        self,
        checkpoint: Path | str,
        library: ToolLibrary | None = None,
        law: Law | None = None,
        rules: EndRules | None = None,
        similar: SimilarTools | None = None,
        match: SemanticMatch | None = None,
    ) -> None:
        super().__init__(f"policy:{checkpoint}", library, law, rules, similar, match)
        self._loaded = load_checkpoint(checkpoint)
        check_library(self._loaded, self.library)

    def _key(self, task: Task) -> Task:
        return task  # not its required list, as under the exact planner: the policy reads the task's text, too

    def _make(self, key: Task) -> tuple[tuple[Step, ...], float]:
        problem = build_problem(self.library, key.required_tools, self.law, self.rules)
        mirror = Mirror(self._loaded, key, self.library, self.law, self.rules)
        calls = all_success_calls(mirror, problem)
        limits = best_limits(problem, [options[0].tool for options in calls])
        calls = [calls[place] for place in limits.kept]
        tools = [self.library.names[options[0].tool] for options in calls]
        steps = [self._step(problem, tools, place, options) for place, options in enumerate(calls)]
        return limited_steps(steps, limits.limits), limits.success

    def _step(self, problem: Problem, tools: list[str], place: int, options: list[Preference]) -> Step:
        name = tools[place]
        tool = self.library[name]
        if self.similar is not None:
            alternatives = tuple(self.similar(name))
        else:
            alternatives = tuple(self.library.names[option.tool] for option in options[1 : 1 + NUM_ALTERNATIVES])
        return Step(
            tool=name,
            reason=reason(problem, tools, place, WORDING),
            requires=tuple(tool.dependencies),
            alternatives=alternatives,
            expected_outcome=expected_outcome(tool),
            confidence=round(min(options[0].probability, 1.0), CONFIDENCE_DECIMALS),
            chosen_by="semantics" if name in problem.required_tools else "policy",
        )


def all_success_calls(mirror: Mirror, problem: Problem) -> list[list[Preference]]:
    """Return, for each call of a policy when every call succeeds, the calls of new tools that it considers, best first.

    The episode, of the task of the problem, is at its start and is played to the end.
    """
    calls: list[list[Preference]] = []
    missing = set(problem.required)
    while missing and not mirror.ended and len(calls) < problem.rules.max_turns:
        status = mirror.state.status
        options = [option for option in mirror.preferences() if status[option.tool] != SUCCEEDED]
        if not options:  # filters or a library without another tool
            break
        calls.append(options)
        mirror.execute(options[0].tool, spaces.STATUS_SUCCESS)
        missing.discard(options[0].tool)
    return calls


class TrainedPolicy:
    """Sends the call that a trained network prefers, and reports completion when all is done.

    It is privileged: it is told the task, the problem (law, end rules, required list) and what came of each call, which
    it enters into an episode of Workflow-v0 of its own, for the network sees the observations of that environment only.
    A policy that was trained for another library than the one it will meet is refused at once.
    """

    privileged = True

    def __init__(
        self,
        checkpoint: Path | str = DEFAULT_CHECKPOINT,
        library: ToolLibrary | None = None,
        name: str = "trained",
    ) -> None:
        self.name = name
        self._loaded = load_checkpoint(checkpoint)
        observation_options(self._loaded)
        if library is not None:
            check_library(self._loaded, library)
        # The environment of the last task, which goes back to its start when the same task comes again.
        self._mirror: Mirror | None = None
        self._of: tuple[Task, Problem] | None = None
        self._called = False
        # The action behind the last message, whether it waits, and what was hidden before it.
        self._action, self._waits, self._hidden = -1, False, ()

    def reset(self, observation: str, info: Info) -> None:
        """Begin an episode, unless the policy was trained for another library."""
        self._mirror = self._begin(info)
        self._called = False

    def act(self, observation: str, info: Info) -> str | None:
        """Return the preferred call, or the completion signal once there is nothing left to call."""
        mirror, problem = self._mirror or self._begin(info), info["problem"]
        if self._called:
            is_followed = info.get("execution") is not None or self._waits
            mirror.follow(self._action if is_followed else mirror.useless, info, self._hidden)
        if mirror.ended or is_closing(info):
            return FINISH
        self._called, self._hidden = True, info["state"].hidden
        self._action, message = mirror.best_message()
        self._waits = message is not None and message.kind == "wait"
        if self._waits:
            return WAIT
        if message is None or message.kind == "finish":
            return search_message("anything else") if message is None else FINISH
        # Parameters that say nothing, so that the call is accepted in strict mode too.
        tool = problem.library[message.tool or ""]
        parameters = step_parameters(tool, {}, None)
        if message.parameters:
            parameters = changed_parameters(tool, parameters)
        return call_message(tool.name, parameters)

    def _begin(self, info: Info) -> Mirror:
        task, problem = info["task"], info["problem"]
        if self._mirror is not None and self._of == (task, problem):
            self._mirror.restart()
            return self._mirror
        self._of = (task, problem)
        self._mirror = Mirror(self._loaded, task, problem.library, problem.law, problem.rules)
        return self._mirror
