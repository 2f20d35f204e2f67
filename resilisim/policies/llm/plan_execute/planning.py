"""Asking for plans: the first one, and after each step what is still to be done."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from resilisim.chat import ChatMessage
from resilisim.policies.llm.plan_execute.plan import Plan, PlanStep, StepOutcome
from resilisim.policies.llm.plan_execute.plan_reading import read_plan
from resilisim.policies.llm.reading import Unreadable, excerpt, visible
from resilisim.policies.llm.run import AgentRun
from resilisim.policies.llm.templates import PromptTexts
from resilisim.policies.llm.tools import ToolSpec, describe_tools

ATTEMPTS = 2


@dataclass(frozen=True, slots=True)
class Planning:
    """The planner and the replanner of one episode.

    Attributes:
        run: The episode.
        prompts: Holds `planner`, `replanner`, their formats and `plan_again`.
        steps_name_tools: Whether each step of a plan is a call of a tool, with arguments.
        longest_result: Characters of a result that the replanner is shown.
    """

    run: AgentRun
    prompts: PromptTexts
    steps_name_tools: bool
    longest_result: int

    async def plan(self) -> Plan | Unreadable:
        """Ask for a plan of the whole task."""
        request = self.prompts.fill(
            "planner",
            objective=self.run.task,
            tools=describe_tools(self.run.tools.specs),
            format=self._format(),
            facts=self.run.facts,
            examples=self.prompts.examples(),
        )
        return await self._ask("planner", request)

    async def replan(
        self, first: Plan, past: Sequence[StepOutcome], remaining: Sequence[PlanStep]
    ) -> Plan | Unreadable:
        """Ask what is still to be done after some steps, or for the answer.

        Args:
            first: The plan that was made in the beginning.
            past: The steps done so far, in order.
            remaining: The steps that the present plan still has.
        """
        done = frozenset(outcome.step.number for outcome in past)
        following = 1 + max(done | {step.number for step in remaining})
        request = self.prompts.fill(
            "replanner",
            objective=self.run.task,
            tools=describe_tools(self.run.tools.specs),
            format=self._format(),
            plan=_lines(first.steps),
            past="\n".join(outcome.to_text(self.longest_result) for outcome in past),
            remaining=_lines(remaining),
            first_number=str(following),
            facts=self.run.facts,
        )
        return await self._ask("replanner", request, done)

    def _format(self) -> str:
        return self.prompts.fill("format_direct" if self.steps_name_tools else "format_react")

    async def _ask(self, role: str, request: str, taken: Collection[int] = ()) -> Plan | Unreadable:
        """Ask, and once more with what was wrong if the reply cannot be read."""
        tools: Sequence[ToolSpec] = self.run.tools.specs if self.steps_name_tools else ()
        messages = [ChatMessage("user", request)]
        for attempt in range(1, ATTEMPTS + 1):
            reply = await self.run.ask(role, messages)
            read = read_plan(reply.text, tools, taken)
            if isinstance(read, Plan):
                return read
            read = self.run.unreadable(role, reply, read)
            if attempt < ATTEMPTS:
                words = excerpt(visible(reply.text), 2_000) or "(an empty reply)"
                again = self.prompts.fill("plan_again", problem=read.problem)
                messages = [*messages, ChatMessage("assistant", words), ChatMessage("user", again)]
        return read


def _lines(steps: Sequence[PlanStep]) -> str:
    return "\n".join(step.to_line() for step in steps) or "(none)"
