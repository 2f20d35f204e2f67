"""Prompts with a flawed plan for episodes: which flaw it is, is drawn for each episode."""

from __future__ import annotations

from collections.abc import Sequence

from resilisim.envs.conversation import ConversationEnv
from resilisim.seeding import Draws
from resilisim.tasks import Task
from resilisim.tool_library.retrieval import ToolRetriever
from resilisim.workflows import Planner, Prompt
from resilisim.workflows.flaws import Flaw, FlawedWorkflow, Perturber, tool_similarity


class FlawedPrompts:
    """Draws flawed plans.

    Args:
        environment: Where the episodes are played.
        planner: Makes the sound plans.
        retriever: Compares tools for flaws that put one in the place of another.
    """

    def __init__(
        self,
        environment: ConversationEnv,
        planner: Planner,
        retriever: ToolRetriever,
    ) -> None:
        self._environment = environment
        self._planner = planner
        self._perturber = Perturber(environment.library, environment.rules, lambda: tool_similarity(retriever))

    def draw(
        self, task: Task, seed: int, flaws: Sequence[str], severities: Sequence[str], method: str | None = None
    ) -> tuple[Prompt, Flaw] | None:
        """Return a prompt with a flawed plan and the flaw; None where the plan can carry none of the flaws.

        Args:
            task: The task.
            seed: Seed of the episode.
            flaws: Flaw types to draw from.
            severities: Severities to draw from.
            method: Method of the one flaw type that is given; None draws it.
        """
        draws = Draws("resilisim/datasets/flaw", task.instance_id, seed)
        severity = draws.choice(severities)
        sound = self._planner.plan(task)
        drawn = draws.shuffled(flaws)
        flawed = self._perturber.first_carried(sound, task.required_tools, drawn, severity, method, seed)
        if not isinstance(flawed, FlawedWorkflow):
            return None
        return self._environment.render_prompt(task, "flawed", flawed.workflow), flawed.flaw
