"""Prompts with a flawed plan for episodes: which flaw it is, is drawn for each episode."""

from __future__ import annotations

from collections.abc import Sequence

from resilisim.envs.conversation import ConversationEnv
from resilisim.evaluation.plan import EnvironmentSettings
from resilisim.seeding import Draws
from resilisim.tasks import Task
from resilisim.tool_library.retrieval import ToolRetriever
from resilisim.workflows import Prompt, render_prompt, resolve_planner
from resilisim.workflows.perturbation import Flaw, FlawedWorkflow, Perturber, tool_similarity


class FlawedPrompts:
    """Draws flawed plans.

    Args:
        environment: Where the episodes are played.
        settings: Its options.
        retriever: Compares tools for flaws that put one in the place of another.
        flaws: Flaw types to draw from.
        severities: Severities to draw from.
    """

    def __init__(
        self,
        environment: ConversationEnv,
        settings: EnvironmentSettings,
        retriever: ToolRetriever,
        flaws: Sequence[str],
        severities: Sequence[str],
    ) -> None:
        self._environment = environment
        self._settings = settings
        self._flaws = flaws
        self._severities = severities
        self._planner = resolve_planner(settings.planner, environment.library, environment.law, environment.rules)
        self._perturber = Perturber(environment.library, environment.rules, lambda: tool_similarity(retriever))

    def draw(self, task: Task, seed: int) -> tuple[Prompt, Flaw] | None:
        """Return a prompt with a flawed plan and the flaw; None where the plan can carry none of the flaws.

        Args:
            task: The task.
            seed: Seed of the episode.
        """
        draws = Draws("resilisim/datasets/flaw", task.instance_id, seed)
        severity = draws.choice(self._severities)
        sound = self._planner.plan(task)
        for flaw_type in draws.shuffled(self._flaws):
            flawed = self._perturber.perturb(sound, task.required_tools, flaw_type, severity, seed=seed)
            if isinstance(flawed, FlawedWorkflow):
                return self._render(task, flawed), flawed.flaw
        return None

    def _render(self, task: Task, flawed: FlawedWorkflow) -> Prompt:
        return render_prompt(
            task,
            "flawed",
            flawed.workflow,
            self._environment.library,
            tools_listed=self._settings.tools == "listed",
            rules=self._environment.rules,
            protocol=self._settings.protocol,
        )
