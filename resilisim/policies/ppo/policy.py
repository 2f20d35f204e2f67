"""A trained policy in Conversation-v0."""

from __future__ import annotations

from pathlib import Path

from resilisim.envs.workflow import columns
from resilisim.policies.base import Info
from resilisim.policies.ppo.checkpoint import DEFAULT_CHECKPOINT, load_checkpoint
from resilisim.policies.ppo.mirror import Mirror, check_library, observation_options
from resilisim.policies.scripted import messages
from resilisim.simulator.problem import Problem
from resilisim.tasks import Task
from resilisim.tool_library import DEPENDENCY_ERROR, ToolLibrary
from resilisim.workflows.steps import step_parameters

TIMEOUT_ERROR = "TIMEOUT"


class TrainedPolicy:
    """Sends the call that a trained network prefers, and reports completion when all is done.

    It is privileged: it is told the task, the problem (law, end rules, required list) and what came of each call, which
    it enters into an episode of Workflow-v0 of its own, for the network sees the observations of that environment only.

    Args:
        checkpoint: Folder of the policy, or "default" for the one that ships.
        library: Tool library that it will meet, to refuse a policy that was trained for another one at once.
        name: What results are shown under.

    Raises:
        InvalidInputError: There is no such checkpoint, it is broken, or it was trained for another library.
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

    def reset(self, observation: str, info: Info) -> None:
        """Begin an episode.

        Raises:
            InvalidInputError: The policy was trained for another library.
            MissingExtraError: The task's similarities have to be computed, and the extra `retrieval` is not installed.
        """
        self._mirror = self._begin(info)
        self._called = False

    def act(self, observation: str, info: Info) -> str | None:
        """Return the preferred call, or the completion signal once there is nothing left to call."""
        mirror, problem = self._mirror or self._begin(info), info["problem"]
        if self._called:
            _enter_last_message(mirror, problem, info)
        if mirror.ended or messages.is_closing(info):
            return messages.FINISH
        self._called = True
        options = mirror.preferences()
        if not options:
            return messages.search("anything else")
        tool = problem.library[options[0].tool]
        # Parameters that say nothing, so that the call is accepted in strict mode too.
        return messages.call(tool.name, step_parameters(tool, {}, None))

    def _begin(self, info: Info) -> Mirror:
        task, problem = info["task"], info["problem"]
        if self._mirror is not None and self._of == (task, problem):
            self._mirror.restart()
            return self._mirror
        self._of = (task, problem)
        self._mirror = Mirror(self._loaded, task, problem.library, problem.law, problem.rules)
        return self._mirror


def _enter_last_message(mirror: Mirror, problem: Problem, info: Info) -> None:
    execution = info.get("execution")
    if execution is None:
        mirror.waste()
        return
    if execution["success"]:
        status = columns.SUCCESS
    elif execution["error"] == DEPENDENCY_ERROR:
        status = columns.DEPENDENCY_FAILED
    else:
        status = columns.TIMEOUT if execution["error"] == TIMEOUT_ERROR else columns.FAILED
    mirror.execute(problem.library.index(execution["tool"]), status)
