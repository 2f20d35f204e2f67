"""Workflow-v0 beside a plan or a conversation, so that a trained policy sees what it was trained to read.

A mirror is one episode of Workflow-v0 under the benchmark law, in which executions come out as they are told to: always
well along a plan, as they really came out in a conversation. Its own luck is never drawn.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from resilisim.envs.workflow import columns
from resilisim.envs.workflow.actions import INVOKE_TOOL, RETRY_TOOL, action_index, tool_of
from resilisim.envs.workflow.env import Observation, WorkflowEnv
from resilisim.envs.workflow.options import WorkflowKeywords, WorkflowOptions
from resilisim.errors import InvalidInputError
from resilisim.policies.ppo.checkpoint import LoadedPolicy
from resilisim.policies.ppo.network import WorkflowActor
from resilisim.simulator.law import BenchmarkLaw, EndRules
from resilisim.simulator.state import EpisodeState
from resilisim.tasks import Task
from resilisim.tool_library import ToolLibrary


@dataclass(frozen=True, slots=True)
class Preference:
    """A call that a policy may make now.

    Attributes:
        action: The action of Workflow-v0.
        tool: Index of the tool that it executes.
        probability: Probability that the policy gives to it, in [0, 1].
    """

    action: int
    tool: int
    probability: float


class Mirror:
    """One episode that a trained policy looks at.

    Args:
        loaded: The policy.
        task: The task.
        library: Its tool library.
        law: Success law.
        rules: End rules.

    Raises:
        InvalidInputError: The policy was trained for another library.
        MissingExtraError: The task's similarities have to be computed and the extra `retrieval` is not installed.
    """

    def __init__(
        self, loaded: LoadedPolicy, task: Task, library: ToolLibrary, law: BenchmarkLaw, rules: EndRules
    ) -> None:
        check_library(loaded, library)
        self._actor = WorkflowActor(loaded.network)
        options = observation_options(loaded)
        options["tasks"] = [task]
        options["library"] = library
        options["base"], options["not_executed"] = law.base, law.not_executed
        options["failed"], options["history"] = law.failed, law.history
        options["max_turns"] = rules.max_turns
        options["max_consecutive_failures"] = rules.max_consecutive_failures
        options["loop_length"] = rules.loop_length
        self._env = WorkflowEnv(**options)
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
        return self._env.core.episode_state(0)

    def preferences(self) -> list[Preference]:
        """Return the legal calls, the most probable first; equal ones in the order of the actions."""
        mask = self._observation["action_mask"]
        batch = {name: self._observation[name][None] for name in ("tools", "task")}
        probabilities: NDArray[np.float32] = self._actor.probabilities(batch, mask[None])[0]
        legal = np.flatnonzero(mask)
        best_first = legal[np.argsort(-probabilities[legal], kind="stable")]
        calls = ((int(action), tool_of(int(action), self._num_tools)) for action in best_first)
        return [Preference(action, tool, float(probabilities[action])) for action, tool in calls if tool >= 0]

    def execute(self, tool: int, status: int) -> None:
        """Let a tool be executed.

        Args:
            tool: Index of the tool.
            status: What comes of it: SUCCESS, FAILED, TIMEOUT or DEPENDENCY_FAILED of `envs.workflow.columns`.
        """
        invoke, retry = (action_index(kind, tool, self._num_tools) for kind in (INVOKE_TOOL, RETRY_TOOL))
        self._step(invoke if self._observation["action_mask"][invoke] else retry, status)

    def waste(self) -> None:
        """Let a turn pass in which nothing is executed."""
        illegal = int(np.flatnonzero(self._observation["action_mask"] == 0)[0])
        self._step(illegal, columns.FAILED)

    def _step(self, action: int, status: int) -> None:
        if not self.ended:
            self._observation, _, self.ended, _, _ = self._env.step_with_outcome(action, status)


def observation_options(loaded: LoadedPolicy) -> WorkflowKeywords:
    """Return how Workflow-v0 has to show itself to a policy: as in its training, required list and filters alike.

    Raises:
        InvalidInputError: The checkpoint names something that does not exist.
    """
    training = loaded.description.training
    options = WorkflowKeywords(required=training.get("required", "shown"), filters=training.get("filters", ()))
    try:
        WorkflowOptions.from_keywords(options)
    except (InvalidInputError, TypeError) as error:
        raise InvalidInputError(f"checkpoint {str(loaded.folder)!r:.200}: training: {error!s:.200}") from error
    return options


def patterns_of(loaded: LoadedPolicy, library: ToolLibrary) -> dict[tuple[str, ...], float]:
    """Return the patterns that were mined in a policy's training, those of tools that the library has.

    Raises:
        InvalidInputError: The checkpoint holds something else in their place.
    """
    found = loaded.description.training.get("pattern_scores", [])
    try:
        scores = {tuple(str(name) for name in names): float(score) for names, score in found}
    except (TypeError, ValueError) as error:
        raise InvalidInputError(
            f"checkpoint {str(loaded.folder)!r:.200}: training.pattern_scores: expected pairs of tool names and a score"
        ) from error
    return {names: score for names, score in scores.items() if all(name in library for name in names)}


def check_library(loaded: LoadedPolicy, library: ToolLibrary) -> None:
    """Refuse a library for which a policy's weights say nothing.

    A transformer without embeddings of single tools knows them by their columns only, so it works with any library.
    """
    description = loaded.description
    general = description.kind == "transformer" and not description.arguments["tool_embeddings"]
    if not general and description.library_hash != library.content_hash:
        raise InvalidInputError(
            f"checkpoint {str(loaded.folder)!r:.200} was trained for the tool library {description.library_hash[:12]}, "
            f"got {library.content_hash[:12]}: expected the same, or a transformer without tool_embeddings"
        )
