"""Plan-and-Execute as a policy: plan, carry out a step, look again at what is left."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from resilisim.policies.llm.options import AgentOptions, choice, flag, limit
from resilisim.policies.llm.plan_execute.executors import DirectExecutor, ReActExecutor, StepExecutor
from resilisim.policies.llm.plan_execute.failures import FailureNotes, OpenFailures
from resilisim.policies.llm.plan_execute.plan import Plan, PlanStep, StepOutcome
from resilisim.policies.llm.plan_execute.planning import Planning
from resilisim.policies.llm.policy import LlmPolicy
from resilisim.policies.llm.reading import Unreadable
from resilisim.policies.llm.run import AgentRun


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanAndExecuteOptions(AgentOptions):
    """Options of Plan-and-Execute."""

    executor: str = choice("react", "who does a step: a sub-agent, or the tool that it names", ("react", "direct"))
    steps: int = limit(20, "steps of a sub-agent for one step of the plan", least=1)
    replans: int = limit(10, "times that the replanner may change the plan")
    replan: str = choice(
        "step", "when the replanner is asked: after every step, or after failures", ("step", "failure")
    )
    restart: bool = flag(False, "whether to begin from scratch after a failure")
    restarts: int = limit(3, "times that it may begin from scratch, where restart is on", least=1)
    result_chars: int = limit(6_000, "characters of a step's result that later prompts repeat", least=100)


class PlanAndExecute(LlmPolicy[PlanAndExecuteOptions]):
    """A planner writes the steps, an executor does them one by one, a replanner says what is left or gives the answer.

    A plan with neither steps nor answer is a failure, and so is a failed step once no replan is left. Where the
    replanner is not asked, or must not change the plan any more, the result of the last step is the answer.
    """

    name = "plan-and-execute"
    options_class = PlanAndExecuteOptions
    components = ("planner", "executor", "extractor", "replanner")

    async def play(self, run: AgentRun) -> str | None:
        """Try once, or until an answer is found if failures begin from scratch."""
        failures = FailureNotes(run)
        try:
            return await self._tried(run, failures)
        finally:
            # The episode may end inside any call while a failure is being made good.
            failures.write_down()

    async def _tried(self, run: AgentRun, failures: FailureNotes) -> str | None:
        attempts: list[dict[str, Any]] = []
        run.structure["attempts"] = attempts
        for number in range(1 + (self.options.restarts if self.options.restart else 0)):
            if number:
                run.note("warning", "planner", f"beginning from scratch, time {number}")
                run.count("restarts_from_scratch")
            attempts.append({})
            planning, executor = self._planning(run), self._executor(run)
            answer = await _Attempt(run, self.options, planning, executor, failures, attempts[-1]).answer()
            if answer is not None:
                return answer
            if run.turns_left == 0:
                return None
        return None

    def _planning(self, run: AgentRun) -> Planning:
        return Planning(run, self.prompts, self.options.executor == "direct", self.options.result_chars)

    def _executor(self, run: AgentRun) -> StepExecutor:
        if self.options.executor == "direct":
            return DirectExecutor(run, self.prompts, self.options.result_chars)
        return ReActExecutor(run, self.prompts, self.options.steps, self.options.result_chars)


class _Attempt:
    """One plan from its beginning, however often it is changed on the way.

    Args:
        run: The episode.
        options: The agent's options.
        planning: The planner and the replanner.
        executor: Does the steps.
        failures: Where is kept what the attempt failed by.
        record: Where plan and steps are written down.
    """

    def __init__(
        self,
        run: AgentRun,
        options: PlanAndExecuteOptions,
        planning: Planning,
        executor: StepExecutor,
        failures: FailureNotes,
        record: dict[str, Any],
    ) -> None:
        self._run = run
        self._options = options
        self._planning = planning
        self._executor = executor
        self._failures = failures
        self._record = record
        self._first = Plan(())
        self._remaining: list[PlanStep] = []
        self._done: dict[int, StepOutcome] = {}
        self._replans = 0
        self._open = OpenFailures(run.task)

    async def answer(self) -> str | None:
        """Return the answer, or None if the attempt failed."""
        try:
            answer = await self._answer()
            if answer is not None:
                self._failures.forget()
            return answer
        finally:
            self._put_down_open_failure()

    async def _answer(self) -> str | None:
        plan = await self._planning.plan()
        if isinstance(plan, Unreadable):
            self._failures.add("planner", f"no plan could be read: {plan.problem}")
            return None
        if not plan.steps:
            if plan.answer is None:
                self._failures.add("planner", "the plan is empty")
            return plan.answer
        if plan.answer is not None:
            self._run.note("warning", "planner", "an answer beside steps that are still to be done was passed over")
        self._first = plan
        self._take("plan", "planner", plan)
        return await self._carry_out()

    async def _carry_out(self) -> str | None:
        while True:
            step = self._remaining[0]
            outcome = await self._executor.carry_out(step, self._done)
            self._remaining.pop(0)
            self._keep(outcome)
            if outcome.ok and self._options.replan == "failure":
                if not self._remaining:
                    return outcome.result
                continue
            answer = await self._look_again(outcome)
            if answer is not None or not self._remaining:
                return answer

    def _keep(self, outcome: StepOutcome) -> None:
        step = outcome.step
        self._done[step.number] = outcome
        self._open.see(outcome)
        error = outcome.error
        if error is None:
            self._run.note("task_done", "executor", f"step {step.number}", step=step.number)
        else:
            details = {"step": step.number, "error": error.kind, "excerpt": error.excerpt}
            self._run.note("task_failed", error.component, error.message, **details)
            self._run.note("warning", error.component, error.message)
            self._run.count("failed_steps")
        self._write_down()

    def _put_down_open_failure(self) -> None:
        """Keep the first failure of a step that no later one made good, before what followed from it."""
        error, self._open = self._open.first(), OpenFailures(self._run.task)
        if error is not None:
            self._failures.add(error.component, error.message, error.excerpt)

    async def _look_again(self, outcome: StepOutcome) -> str | None:
        """Ask the replanner after a step.

        Returns:
            The answer, if there is one. Without it, and without steps that remain, the attempt has failed.
        """
        if self._replans >= self._options.replans:
            return self._go_on(outcome, "replanner", f"{self._replans} replans were not enough")
        plan = await self._planning.replan(self._first, list(self._done.values()), self._remaining)
        if isinstance(plan, Unreadable):
            return self._go_on(outcome, "replanner", f"no plan could be read: {plan.problem}")
        if not plan.steps:
            self._remaining = []
            self._write_down()
            if plan.answer is None:
                self._put_down_open_failure()
                self._failures.add("replanner", "the replanner gave neither steps nor an answer")
            return plan.answer
        if plan.answer is not None:
            self._run.note("warning", "replanner", "an answer beside steps that are still to be done was passed over")
        if not self._is_unchanged(plan):
            self._open.replan(plan.steps, self._remaining, list(self._done.values()))
            self._replans += 1
            self._run.count("replans")
            self._take("replan", "replanner", plan)
        return None

    def _go_on(self, outcome: StepOutcome, component: str, problem: str) -> str | None:
        """Keep to the present plan because there is no other; after a failed step that is the end."""
        if not outcome.ok:
            self._remaining = []
            self._put_down_open_failure()
            self._failures.add(component, problem)
            return None
        self._run.note("warning", component, f"{problem}: keeping to the plan")
        return outcome.result if not self._remaining else None

    def _is_unchanged(self, plan: Plan) -> bool:
        if len(plan.steps) != len(self._remaining):
            return False
        pairs = list(zip(plan.steps, self._remaining, strict=True))
        renamed = {new.number: old.number for new, old in pairs}
        return all(new.does_the_same_as(old) and new.needs_the_same_as(old, renamed) for new, old in pairs)

    def _take(self, kind: str, component: str, plan: Plan) -> None:
        self._remaining = list(plan.steps)
        steps = [step.to_mapping() for step in plan.steps]
        self._run.note(kind, component, f"{len(plan.steps)} steps", steps=steps)
        self._write_down()

    def _write_down(self) -> None:
        pending = [{**step.to_mapping(), "status": "pending"} for step in self._remaining]
        self._record["plan"] = [*(outcome.to_mapping() for outcome in self._done.values()), *pending]
        self._record["replans"] = self._replans
