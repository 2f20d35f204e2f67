"""A trained policy at work: in Conversation-v0, and as a planner that says what it would call if every call succeeded.

It sees what it was trained to read: an episode of Workflow-v0 (`Mirror`) is kept beside the conversation or the plan.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
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
from resilisim.policies.base import FINISH_TEXT, WAIT_TEXT, call_message, is_closing, search_message
from resilisim.policies.ppo import split_look_ahead
from resilisim.policies.ppo.checkpoint import DEFAULT_CHECKPOINT, LoadedPolicy, load_checkpoint
from resilisim.policies.ppo.network import WorkflowActor, torch_threads
from resilisim.policies.ppo.states.look_ahead import LookAhead
from resilisim.policies.ppo.states.transition import States, Transition
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


STATES_AT_ONCE = 128  # that a policy looks at when it looks ahead in a conversation
# Statuses that failures show, by their codes; all others are FAILED.
FAILURE_STATUSES = {"TIMEOUT": spaces.STATUS_TIMEOUT, DEPENDENCY_ERROR: spaces.STATUS_DEPENDENCY_FAILED}


def reads_laws(loaded: LoadedPolicy) -> bool:
    """Return whether a policy sees the parts of laws."""
    return bool(loaded.description.network.arguments.get("law_parts"))


def reads_details(loaded: LoadedPolicy) -> bool:
    """Return whether a policy sees what the success of each tool serves."""
    return bool(loaded.description.network.arguments.get("detailed"))


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

    def __init__(self, actor: WorkflowActor) -> None:
        self._actor = actor

    @property
    def reads_state_alone(self) -> bool:
        """Whether it acts the same wherever the same can follow."""
        return self._actor.reads_state_alone

    def judgements(self, observation: dict[str, NDArray[Any]], mask: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return the probability of every action, 0 for illegal ones, and the values of the states, (N,)."""
        known, meant = benchmark_actions(mask)
        probabilities, values = self._actor.judgements(observation, known)
        of_meant = np.zeros_like(probabilities)
        np.add.at(of_meant, (np.arange(len(meant))[:, None], meant), probabilities)
        return of_meant, values

    def act(self, observation: dict[str, NDArray[Any]], mask: NDArray[Any]) -> NDArray[np.int64]:
        """Return an action for each observation: int64 (N,)."""
        known, meant = benchmark_actions(mask)
        actions = self._actor.act(observation, known)
        chosen: NDArray[np.int64] = meant[np.arange(len(actions)), actions]
        return chosen


def actor_of(loaded: LoadedPolicy) -> WorkflowActor | LawBlindActor | LookAhead:
    """Return what plays a policy in Workflow-v0 under any law but the training law."""
    actor = WorkflowActor(loaded.network)
    judging = actor if reads_laws(loaded) else LawBlindActor(actor)
    return LookAhead(judging, loaded.look_ahead) if loaded.look_ahead else judging


@dataclass(frozen=True, slots=True)
class Moment:
    """What has become of an episode of a mirror: the bytes of its records, and whether it has ended."""

    episode: bytes
    sections: bytes
    ended: bool


class Mirror:
    """Episodes that a trained policy looks at, one at a time, of some tasks.

    Attributes:
        ended: Whether the present one has ended.
    """

    def __init__(
        self, loaded: LoadedPolicy, tasks: Sequence[Task], library: ToolLibrary, law: Law, rules: EndRules
    ) -> None:
        check_library(loaded, library)
        self._actor = WorkflowActor(loaded.network)
        self._reads_law = reads_laws(loaded)
        options = observation_options(loaded, library)
        law_options = law.to_mapping() if law.is_plain else {"law": law}
        self._env = WorkflowEnv(options.with_options({"tasks": list(tasks), **law_options, **asdict(rules)}))
        self._env.set_patterns(patterns_of(loaded, library))
        self._num_tools = len(library)
        looking, patterns = actor_of(loaded), patterns_of(loaded, library)
        self._look_ahead = looking if isinstance(looking, LookAhead) else None
        if self._look_ahead is not None:
            self._transition = Transition(tasks, self._env.core.options, patterns, num_envs=STATES_AT_ONCE)
        self.restart()

    def restart(self, task: str | int = 0) -> None:
        """Begin an episode of a task, by its id or its place."""
        self._observation: Observation = self._env.reset(seed=0, options={"task": task, "episode_seed": 0})[0]
        self.ended = False
        self._moment: Moment | None = None

    @property
    def state(self) -> EpisodeState:
        """The state of the episode."""
        return self._env.episode_state()

    @property
    def moment(self) -> Moment:
        """What has become of the episode, to which `return_to` leads back."""
        if self._moment is None:
            core = self._env.core
            self._moment = Moment(core.episodes.tobytes(), core.sections.tobytes(), self.ended)
        return self._moment

    def return_to(self, moment: Moment) -> None:
        """Go back to a moment of this episode, or on to one of another."""
        if moment is self._moment:
            return
        core = self._env.core
        core.episodes.view(np.uint8)[:] = np.frombuffer(moment.episode, dtype=np.uint8)
        core.sections.view(np.uint8)[:] = np.frombuffer(moment.sections, dtype=np.uint8)
        self._observation = core.converted({name: array[0].copy() for name, array in core.observation.items()})
        self.ended, self._moment = moment.ended, moment

    def preferences(self) -> list[Preference]:
        """Return the legal calls, the most probable first; equal ones in the order of the actions."""
        mask, meant, probabilities = (rows[0] for rows in self._looked_at([self._observation]))
        legal = np.flatnonzero(mask)
        best_first: list[int] = legal[np.argsort(-probabilities[legal], kind="stable")].tolist()
        listed = [
            Preference(tool_of(action, self._num_tools), float(probabilities[action]), int(meant[action]))
            for action in best_first
        ]
        return [preference for preference in listed if preference.tool >= 0]

    def _looked_at(
        self, observations: Sequence[Observation]
    ) -> tuple[NDArray[Any], NDArray[np.int64], NDArray[np.float32]]:
        """Return legal actions, what these mean, and their probabilities, all (num_observations, num_actions).

        To a policy that does not read laws the legal actions are those of the benchmark.
        """
        batch = {name: np.stack([shown[name] for shown in observations]) for name in observations[0]}
        mask = batch["action_mask"]
        meant = np.tile(np.arange(mask.shape[1]), (len(mask), 1))
        if not self._reads_law:
            mask, meant = benchmark_actions(mask)
        return mask, meant, self._actor.probabilities(batch, mask)

    def best_messages(self, moments: Sequence[Moment]) -> list[tuple[int, Message | None]]:
        """Return the preferred action at each moment, and what it is in a conversation; None if it helps nobody."""
        if self._look_ahead is not None:
            actions: list[int] = self._look_ahead.act_in(self._transition, self._states(moments)).tolist()
        else:
            observations = []
            for moment in moments:
                self.return_to(moment)
                observations.append(self._observation)
            mask, meant, probabilities = self._looked_at(observations)
            best = np.where(mask != 0, probabilities, -1.0).argmax(axis=1)  # the first of equals
            actions = meant[np.arange(len(best)), best].tolist()
        messages: list[tuple[int, Message | None]] = []
        for moment, action in zip(moments, actions, strict=True):
            self.return_to(moment)
            messages.append((action, self._env.message(action)))
        return messages

    def _states(self, moments: Sequence[Moment]) -> States:
        """Return the states of the episode at some moments."""
        several = []
        for moment in moments:
            self.return_to(moment)
            several.append(States.of(self._env).copy())
        return States.joined(several)

    def follow(self, action: int, info: Info, hidden: Sequence[int]) -> None:
        """Let an action happen as the last message of a conversation did, before which `hidden` was hidden."""
        if not self.ended:
            execution = info.get("execution") or {}
            failed = FAILURE_STATUSES.get(str(execution.get("error")), spaces.STATUS_FAILED)
            result = info.get("result") or ("success" if execution.get("success") else "failure")
            forced = (result, failed, info.get("seconds") or 0.0, hidden)
            self._moment = None
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
            self._moment = None
            self._observation, _, self.ended, _, _ = self._env.step_with_outcome(action, status)


def observation_options(loaded: LoadedPolicy, library: ToolLibrary | None = None) -> WorkflowOptions:
    """Return how Workflow-v0 has to show itself to a policy: as in its training, required list and filters alike."""
    training = loaded.description.training
    required, filters = training.get("required", "shown"), training.get("filters", ())
    try:
        return WorkflowOptions(library=library, required=required, filters=filters, detailed=reads_details(loaded))
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
TRAINED_WORDING = Wording(
    left_out="the trained policy does not run {} first", unexplained="but called by the trained policy"
)


class PolicyPlanner(KeepingPlanner[Task]):
    """Plans by a trained policy: the calls that it prefers along the path on which every call succeeds.

    The policy sees Workflow-v0's observations under the given law and end rules. A step is a tool to run until it has
    succeeded, so each tool is a step once: where the policy would rather call a tool that has succeeded, its best other
    call is taken. The plan ends when all required tools are steps, or with as many steps as there are turns; so every
    policy gives a plan, a bad one perhaps one that cannot succeed. Its steps outside the required list get limits, or
    are left out, so that the plan succeeds as often as it can (`simulator.exact.plan_following.best_limits`).

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
        if self._loaded.look_ahead:
            raise InvalidInputError(
                f"planner 'policy:{checkpoint}': what looks ahead chooses call by call: expected policy:"
                f"{split_look_ahead(str(checkpoint))[0]}"
            )
        check_library(self._loaded, self.library)
        self._mirror: Mirror | None = None
        self._expected: frozenset[Task] = frozenset()

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_mirror": None}

    def expect(self, tasks: Sequence[Task]) -> Mirror:
        """Make one environment for tasks whose plans will be asked for, which takes less time than one for each."""
        self._expected = frozenset(tasks)
        self._mirror = Mirror(self._loaded, tasks, self.library, self.law, self.rules)
        return self._mirror

    def _key(self, task: Task) -> Task:
        return task  # not its required list, as under the exact planner: the policy reads the task's text, too

    def _make(self, key: Task) -> tuple[tuple[Step, ...], float]:
        problem = build_problem(self.library, key.required_tools, self.law, self.rules)
        mirror = self._mirror
        if mirror is None or key not in self._expected:
            mirror = self.expect([key])
        calls = all_success_calls(mirror, key, problem)
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
            reason=reason(problem, tools, place, TRAINED_WORDING),
            requires=tuple(tool.dependencies),
            alternatives=alternatives,
            expected_outcome=expected_outcome(tool),
            confidence=round(min(options[0].probability, 1.0), CONFIDENCE_DECIMALS),
            chosen_by="semantics" if name in problem.required_tools else "policy",
        )


def all_success_calls(mirror: Mirror, task: Task, problem: Problem) -> list[list[Preference]]:
    """Return, for each call of a policy when every call succeeds, the calls of new tools that it considers, best first.

    An episode of the task, whose problem it is, is begun and played to the end.
    """
    mirror.restart(task.instance_id)
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
    reads_words = True  # which error a failure shows

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
        # The environment of the last task, which goes back to its start when the same task comes again. Copies of the
        # policy share it, so each keeps the moment at which its own episode stands.
        self._mirror: Mirror | None = None
        self._moment: Moment | None = None
        self._of: tuple[Task, Problem] | None = None
        self._called = False
        # The action behind the last message, whether it waits, and what was hidden before it.
        self._action, self._waits, self._hidden = -1, False, ()

    def reset(self, observation: str, info: Info) -> None:
        """Begin an episode, unless the policy was trained for another library."""
        self._mirror = self._begin(info)
        self._moment = self._mirror.moment
        self._called = False

    def memory_beside_state(self) -> Hashable | None:
        """Its messages depend on what it was shown and did (`base.memory_of`).

        Where only validators tell wrong outputs, what they find is read from what is hidden: there nobody can say.
        """
        law = self._of[1].law if self._of is not None else None
        if law is not None and law.corrupt is not None and law.corrupt.shows == "validators":
            return None
        return self._moment, self._action, self._called

    def act(self, observation: str, info: Info) -> str | None:
        """Return the preferred call, or the completion signal once there is nothing left to call."""
        return self.act_together([self], [observation], [info])[0]

    @staticmethod
    @torch_threads(1)
    def act_together(
        policies: Sequence[TrainedPolicy], observations: Sequence[str], infos: Sequence[Info]
    ) -> list[str | None]:
        """Return what `act` says, for copies of one policy in episodes of the same task: the network is asked once."""
        messages: list[str | None] = [FINISH_TEXT] * len(policies)
        shown = zip(policies, observations, infos, strict=True)
        at = [policy._catch_up(observation, info) for policy, observation, info in shown]
        asked = [number for number, (_, moment) in enumerate(at) if not (moment.ended or is_closing(infos[number]))]
        if asked:
            best = at[asked[0]][0].best_messages([at[number][1] for number in asked])
            for number, (action, message) in zip(asked, best, strict=True):
                messages[number] = policies[number]._said(action, message, infos[number])
        return messages

    def _catch_up(self, observation: str, info: Info) -> tuple[Mirror, Moment]:
        """Enter what came of the last message; return what its episode is looked at in, and where it stands."""
        if self._mirror is None or self._moment is None:
            self.reset(observation, info)
            return self._catch_up(observation, info)
        if self._called:
            self._mirror.return_to(self._moment)
            is_followed = info.get("execution") is not None or self._waits
            self._mirror.follow(self._action if is_followed else self._mirror.useless, info, self._hidden)
            self._moment, self._called = self._mirror.moment, False
        return self._mirror, self._moment

    def _said(self, action: int, message: Message | None, info: Info) -> str:
        """Return an action as a message, and keep what it was."""
        self._action, self._called, self._hidden = action, True, info["state"].hidden
        self._waits = message is not None and message.kind == "wait"
        if self._waits:
            return WAIT_TEXT
        if message is None or message.kind == "finish":
            return search_message("anything else") if message is None else FINISH_TEXT
        # Parameters that say nothing, so that the call is accepted in strict mode too.
        tool = info["problem"].library[message.tool or ""]
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
        self._mirror = Mirror(self._loaded, [task], problem.library, problem.law, problem.rules)
        return self._mirror
