"""Asking for plans: the first one, and continuations after failures."""

from __future__ import annotations

from collections.abc import Iterable

from resilisim.chat import ChatMessage
from resilisim.policies.llm.kpi_chain.asking import NeverReadable, ask_until_read
from resilisim.policies.llm.kpi_chain.merging import kept_tasks
from resilisim.policies.llm.kpi_chain.options import KpiChainOptions
from resilisim.policies.llm.kpi_chain.outcomes import Failed
from resilisim.policies.llm.kpi_chain.plan_checks import PlanRules
from resilisim.policies.llm.kpi_chain.plan_reading import read_plan
from resilisim.policies.llm.kpi_chain.state import ChainState
from resilisim.policies.llm.kpi_chain.types import PENDING, Plan, PlanTask
from resilisim.policies.llm.kpi_chain.yaml_text import dump_yaml
from resilisim.policies.llm.run import AgentRun
from resilisim.policies.llm.templates import DEFAULT_EXAMPLES, PromptTexts
from resilisim.policies.llm.tools import describe_tools

_INTERPOLATION = {
    True: "A single text or number may also be written into a longer text: `<JSON_PATH>T1.name</JSON_PATH> parents`.",
    False: "A reference stands alone in its value, never within a longer text.",
}


def _listed(ids: Iterable[str]) -> str:
    return ", ".join(ids) or "none"


class Planners:
    """Planner and replanner of one episode.

    Args:
        run: The episode.
        options: The agent's options.
        prompts: The agent's prompts.
    """

    def __init__(self, run: AgentRun, options: KpiChainOptions, prompts: PromptTexts) -> None:
        self._run = run
        self._options = options
        self._prompts = prompts

    async def first_plan(self) -> tuple[Plan, tuple[str, ...]] | NeverReadable:
        """Ask for a plan of the whole task; it comes with warnings."""
        rules = self._rules()
        system = self._prompts.fill("planner", plan_format=self._plan_format(), examples=self._examples())
        request = self._prompts.fill(
            "planner_request", tools=self._tools(), facts=self._run.facts, query=self._run.task
        )
        return await ask_until_read(
            self._run,
            "planner",
            (ChatMessage("system", system), ChatMessage("user", request)),
            lambda text: read_plan(text, rules),
            self._options.retries,
        )

    async def continuation(
        self, state: ChainState, failed: PlanTask, outcome: Failed
    ) -> tuple[Plan, tuple[str, ...]] | NeverReadable:
        """Ask for the tasks that lead from a failure to the answer; they come with warnings."""
        kept = kept_tasks(state.plan, failed.task_id)
        rules = self._rules(kept, state.counts.used_ids)
        request = self._prompts.fill(
            "replanner_request",
            tools=self._tools(),
            facts=self._run.facts,
            query=self._run.task,
            plan=dump_yaml(state.plan_for_prompt()),
            failed_task=failed.task_id,
            used_ids=", ".join(state.counts.used_ids),
            kept_ids=_listed(task.task_id for task in kept if task.status == PENDING),
            removed_ids=_listed(task.task_id for task in state.plan.tasks if task not in kept),
            feedback=outcome.feedback,
        )
        system = self._prompts.fill("replanner", plan_format=self._plan_format())
        return await ask_until_read(
            self._run,
            "replanner",
            (ChatMessage("system", system), ChatMessage("user", request)),
            lambda text: read_plan(text, rules),
            self._options.retries,
        )

    def _rules(self, kept: tuple[PlanTask, ...] = (), used_ids: tuple[str, ...] = ()) -> PlanRules:
        return PlanRules(
            specs=self._run.tools.specs,
            interpolation=self._options.interpolation,
            entities=self._options.entities,
            memory=self._options.memory,
            kept=kept,
            used_ids=used_ids,
        )

    def _plan_format(self) -> str:
        name = "plan_format" if self._options.entities else "plan_format_text"
        return self._prompts.fill(name, interpolation=_INTERPOLATION[self._options.interpolation])

    def _examples(self) -> str:
        if self._options.entities or self._options.examples != DEFAULT_EXAMPLES:
            return self._prompts.examples()
        return self._prompts.fill("examples_text")

    def _tools(self) -> str:
        return describe_tools(self._run.tools.specs)
