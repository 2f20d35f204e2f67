"""Plan-and-Execute: a plan first, then its steps one by one, and a new plan where the old one does not hold."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from annotated_types import Ge

from resilisim.chat import ChatMessage
from resilisim.envs.reply import CallResult
from resilisim.options import option
from resilisim.policies.llm.agent_options import AgentOptions
from resilisim.policies.llm.agent_run import AgentRun
from resilisim.policies.llm.agents.react import loop_tools, react_loop
from resilisim.policies.llm.agents.step_plan import (
    PlanStep,
    StepOutcome,
    StepPlan,
    are_the_same,
    failed,
    fill_in,
    read_step_plan,
    step_references_in,
    unusable_step,
)
from resilisim.policies.llm.given_plan import OF_PROMPT, first_plan_option, given_steps, step_plan_of
from resilisim.policies.llm.policy import LlmPolicy
from resilisim.policies.llm.reply_reading import Unreadable, excerpt, read_json, visible
from resilisim.policies.llm.tools import ToolSpec, describe_tools, error_of


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanAndExecuteOptions(AgentOptions):
    """Options of Plan-and-Execute."""

    executor: str = option(
        "react", "who does a step: a sub-agent, or the tool that it names", choices=("react", "direct")
    )
    steps: Annotated[int, Ge(1)] = option(20, "steps of a sub-agent for one step of the plan")
    replans: Annotated[int, Ge(0)] = option(10, "times that the replanner may change the plan")
    replan: str = option(
        "step", "when the replanner is asked: after every step, or after failures", choices=("step", "failure")
    )
    first_plan: str = first_plan_option()
    restart: bool = option(False, "whether to begin from scratch after a failure")
    restarts: Annotated[int, Ge(1)] = option(3, "times that it may begin from scratch, where restart is on")
    result_chars: Annotated[int, Ge(100)] = option(6_000, "characters of a step's result that later prompts repeat")


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
        attempts: list[dict[str, Any]] = []
        run.structure["attempts"] = attempts
        steps = given_steps(run) if self.options.first_plan == OF_PROMPT else []
        if steps:
            run.given["planner"] = [step_plan_of(steps, run, names_tools=self.options.executor == "direct")]
        with run.open_failures() as kept:
            for number in range(1 + (self.options.restarts if self.options.restart else 0)):
                if number:
                    run.note("warning", "planner", f"beginning from scratch, time {number}")
                    run.count("restarts_from_scratch")
                attempts.append({})
                answer = await _Attempt(self, run, Failures(run.task, kept), attempts[-1]).answer()
                if answer is not None or run.turns_left == 0:
                    return answer
            return None


class _Attempt:
    """One plan from its beginning, however often it is changed on the way; `record` gets plan and steps."""

    def __init__(self, agent: PlanAndExecute, run: AgentRun, failures: Failures, record: dict[str, Any]) -> None:
        self._run = run
        self._options = agent.options
        self._prompts = agent.prompts
        self._failures = failures
        self._record = record
        self._first = StepPlan(())
        self._remaining: list[PlanStep] = []
        self._done: dict[int, StepOutcome] = {}
        self._replans = 0

    async def answer(self) -> str | None:
        """Return the answer, or None if the attempt failed."""
        try:
            answer = await self._answer()
            if answer is not None:  # which makes good what failed in earlier attempts
                self._failures.kept.clear()
            return answer
        finally:
            self._failures.put_down()

    async def _answer(self) -> str | None:
        plan = await self._ask_for_plan("planner", ())
        if isinstance(plan, Unreadable):
            self._failures.add("planner", f"no plan could be read: {plan.problem}")
            return None
        if not plan.steps:
            if plan.answer is None:
                self._failures.add("planner", "the plan is empty")
            return plan.answer
        self._first = plan
        self._take("plan", "planner", plan)
        while self._remaining:
            step = self._remaining[0]
            outcome = await (self._by_call(step) if self._options.executor == "direct" else self._by_sub_agent(step))
            del self._remaining[0]
            self._keep(outcome)
            if outcome.error is not None or self._options.replan == "step":
                answer = await self._look_again(outcome)
                if answer is not None:
                    return answer
            elif not self._remaining:
                return outcome.result
        return None

    def _keep(self, outcome: StepOutcome) -> None:
        number, error = outcome.step.number, outcome.error
        self._done[number] = outcome
        self._failures.see(outcome)
        if error is None:
            self._run.note("task_done", "executor", f"step {number}", step=number)
        else:
            details = {"step": number, "error": outcome.kind, "excerpt": outcome.excerpt}
            self._run.note("task_failed", outcome.component, error, **details)
            self._run.note("warning", outcome.component, error)
            self._run.count("failed_steps")
        self._write_down()

    async def _look_again(self, outcome: StepOutcome) -> str | None:
        """Ask the replanner; without an answer, and without steps that remain, the attempt has failed."""
        if self._replans >= self._options.replans:
            return self._keep_to_plan(outcome, f"{self._replans} replans were not enough")
        past = list(self._done.values())
        taken = frozenset(self._done)
        plan = await self._ask_for_plan(
            "replanner",
            taken,
            plan=_lines(self._first.steps),
            past="\n".join(outcome.to_text(self._options.result_chars) for outcome in past),
            remaining=_lines(self._remaining),
            first_number=str(1 + max(taken | {step.number for step in self._remaining})),
        )
        if isinstance(plan, Unreadable):
            return self._keep_to_plan(outcome, f"no plan could be read: {plan.problem}")
        if not plan.steps:
            self._remaining = []
            self._write_down()
            if plan.answer is None:
                self._failures.put_down()
                self._failures.add("replanner", "the replanner gave neither steps nor an answer")
            return plan.answer
        if are_the_same(plan.steps, self._remaining):
            self._pass_over_answer("replanner", plan)
        else:
            self._failures.replan(plan.steps, self._remaining, past)
            self._replans += 1
            self._run.count("replans")
            self._take("replan", "replanner", plan)
        return None

    def _keep_to_plan(self, outcome: StepOutcome, problem: str) -> str | None:
        """Keep to the present plan because there is no other; after a failed step that is the end."""
        if outcome.error is not None:
            self._remaining = []
            self._failures.put_down()
            self._failures.add("replanner", problem)
            return None
        self._run.note("warning", "replanner", f"{problem}: keeping to the plan")
        return outcome.result if not self._remaining else None

    def _take(self, kind: str, component: str, plan: StepPlan) -> None:
        self._pass_over_answer(component, plan)
        self._remaining = list(plan.steps)
        steps = [step.to_mapping() for step in plan.steps]
        self._run.note(kind, component, f"{len(plan.steps)} steps", steps=steps)
        self._write_down()

    def _pass_over_answer(self, component: str, plan: StepPlan) -> None:
        if plan.answer is not None:
            self._run.note("warning", component, "an answer beside steps that are still to be done was passed over")

    def _write_down(self) -> None:
        pending = [{**step.to_mapping(), "status": "pending"} for step in self._remaining]
        self._record["plan"] = [*(outcome.to_mapping() for outcome in self._done.values()), *pending]
        self._record["replans"] = self._replans

    async def _ask_for_plan(self, role: str, taken: Collection[int], **values: str) -> StepPlan | Unreadable:
        """Ask planner or replanner; `taken` are numbers that no step can have."""
        specs, names_tools = self._run.tools.specs, self._options.executor == "direct"
        request = self._prompts.fill(
            role,
            objective=self._run.task,
            tools=describe_tools(specs),
            format=self._prompts.fill("format_direct" if names_tools else "format_react"),
            facts=self._run.facts,
            **values,
        )
        return await self._run.ask_until_read(
            role,
            [ChatMessage("user", request)],
            lambda text: read_step_plan(text, specs if names_tools else (), taken),
            lambda problem: self._prompts.fill("plan_again", problem=problem),
        )

    async def _by_sub_agent(self, step: PlanStep) -> StepOutcome:
        """Have a ReAct sub-agent do a step; it is shown the results that the step needs and has all tools."""
        unusable = unusable_step(step, step.needs or (), self._done)
        if unusable is not None:
            return unusable
        run, results = self._run, self._results_for(step)
        loop = await react_loop(
            run,
            role="executor",
            system=self._prompts.fill("executor", tools=loop_tools(run.tools)),
            question=self._prompts.fill(
                "executor_task", objective=run.task, task=_instruction(step), results=results, facts=run.facts
            ),
            tools=_CheckedTools(run, results),
            steps=self._options.steps,
            may_fail=True,
        )
        if loop.problem is not None:
            return failed(step, "executor", f"the executor could not do it: {excerpt(loop.problem, 200)}", loop.problem)
        if loop.answer is None:
            errors = [past.error for past in loop.steps if past.error is not None and past.arguments is not None]
            why = f"; the last error of a tool was: {excerpt(errors[-1], 200)}" if errors else ""
            return failed(step, "executor", f"the executor did not finish within {self._options.steps} steps{why}")
        if not loop.result.strip():
            return failed(step, "executor", "the executor finished without a result")
        return StepOutcome(step, loop.result)

    def _results_for(self, step: PlanStep) -> str:
        """Return the results that a step is shown: those it needs, or all there are if the plan does not say."""
        done, longest = self._done, self._options.result_chars
        numbers = (
            [number for number, outcome in done.items() if outcome.error is None] if step.needs is None else step.needs
        )
        shown = [f"Step {n} ({done[n].step.task}):\n{excerpt(done[n].result, longest)}" for n in sorted(set(numbers))]
        return "\n\n".join(shown) or "(none)"

    async def _by_call(self, step: PlanStep) -> StepOutcome:
        """Call the tool of a step, references in its arguments turned into values, if all that it needs is there.

        A step without a tool is worked out by the model from earlier results; nothing that the plan expects of it
        counts.
        """
        if step.problem is not None:
            message = f"the arguments of step {step.number} cannot be read: {step.problem.problem}"
            return failed(step, "arguments", message, step.problem.excerpt)
        references = step_references_in(step.arguments, (self._run.task,))
        if references.unclear:
            words = ", ".join(references.unclear)
            return failed(step, "reference", f"step {step.number}: {excerpt(words, 100)} names no step", words)
        unusable = unusable_step(step, references.numbers | set(step.needs or ()), self._done)
        if unusable is not None:
            return unusable
        if step.tool is None:
            return await self._conclude(step)
        arguments = step.arguments
        if references:
            resolved = await self._resolved(step, {number: self._done[number].result for number in references.numbers})
            if isinstance(resolved, Unreadable):
                kind = resolved.kind if isinstance(resolved, _Unresolved) else "resolution_unreadable"
                message = f"the references of step {step.number} could not be resolved: {resolved.problem}"
                return failed(step, kind, message, resolved.excerpt)
            arguments = resolved
        if self._run.turns_left == 0:
            return failed(step, "turns", f"step {step.number}: no turns are left, so {step.tool} was not called")
        checked = _checked_arguments(self._run.tools.specs, step.tool, arguments)
        if isinstance(checked, str):
            words = json.dumps(dict(arguments), ensure_ascii=False, default=str)
            return failed(step, "arguments", f"step {step.number}: {checked}", words)
        result = await self._run.tools.call(step.tool, checked)
        error = error_of(result)
        if error is not None:
            return failed(step, "tool", f"{step.tool}: {error}", result.text)
        return StepOutcome(step, result.text)

    async def _resolved(self, step: PlanStep, results: Mapping[int, str]) -> dict[str, Any] | Unreadable:
        """Return a step's arguments with values in place of references to the results of these steps."""
        longest = self._options.result_chars
        request = self._prompts.fill(
            "resolver",
            task=step.task,
            tool=step.tool or "",
            arguments=json.dumps(dict(step.arguments), ensure_ascii=False),
            results="\n\n".join(f"Result of step {n}:\n{excerpt(results[n], longest)}" for n in sorted(results)),
        )

        def again(problem: str) -> str:
            self._run.count("resolution_retries")
            return self._prompts.fill("resolver_again", problem=problem)

        def read(text: str) -> dict[str, Any] | Unreadable:
            return _read_resolution(text, step, (self._run.task,), (self._run.task, *results.values()))

        resolution = await self._run.ask_until_read("extractor", [ChatMessage("user", request)], read, again)
        if not isinstance(resolution, Unreadable):
            self._run.note("resolution", "extractor", f"step {step.number}", step=step.number, arguments=resolution)
        return resolution

    async def _conclude(self, step: PlanStep) -> StepOutcome:
        """Have a step without a tool worked out from the results before it."""
        results = self._results_for(step)
        request = self._prompts.fill("conclusion", objective=self._run.task, task=step.task, results=results)
        reply = await self._run.ask("executor", [ChatMessage("user", request)])
        read = read_json(reply.text)
        if isinstance(read, Unreadable):
            read = self._run.unreadable("executor", reply, read)
            return failed(step, "executor", f"step {step.number} has no tool, and {read.problem}", visible(reply.text))
        result = read.get("result")
        if result is None or (isinstance(result, str) and not result.strip()):
            reason = excerpt(str(read.get("problem") or "the model gave no result"), 200)
            return failed(step, "executor", f"step {step.number} has no tool and no result: {reason}", reply.text)
        return StepOutcome(step, result if isinstance(result, str) else json.dumps(result, ensure_ascii=False))


class Failures:
    """What the failure of an attempt is put down to: its first failed step that nothing has made good.

    Steps that a replan brings in after a failure are there for its sake and belong to its line, and so does a step that
    does once more what failed, or that was not done because it needs what failed; every other step begins a line of its
    own. The success of a step makes good what failed in its line, and nothing else. `kept` is for the whole episode.
    """

    def __init__(self, task: str, kept: dict[Any, tuple[str, ...]]) -> None:
        self.kept = kept
        self._task = task
        self._lines: dict[int, int] = {}  # number of a step -> number of the step with which its line began
        self._open: dict[int, StepOutcome] = {}  # the first failure of each line

    def see(self, outcome: StepOutcome) -> None:
        """Take in what became of a step."""
        step = outcome.step
        if outcome.kind == "reference":
            needed = {*(step.needs or ()), *step_references_in(step.arguments, (self._task,)).numbers}
            cause = next((number for number in sorted(needed) if self._line(number) in self._open), step.number)
            self._lines[step.number] = self._line(cause)
        line = self._line(step.number)
        if outcome.error is None:
            self._open.pop(line, None)
        else:
            self._open.setdefault(line, outcome)

    def replan(self, steps: Iterable[PlanStep], before: Sequence[PlanStep], past: Sequence[StepOutcome]) -> None:
        """Say which lines the steps of a new plan belong to, by those that were still to be done, and by the past."""
        failed_steps = [outcome.step for outcome in reversed(past) if outcome.error is not None]
        latest = past[-1].step if past[-1].error is not None else None
        for step in steps:
            if any(step.number == other.number or step.does_the_same_as(other) for other in before):
                continue
            again = next((other for other in failed_steps if _is_repeated_by(other, step)), latest)
            if again is not None:
                self._lines[step.number] = self._line(again.number)

    def _line(self, number: int) -> int:
        return self._lines.get(number, number)

    def put_down(self) -> None:
        """Keep the first failure of the attempt that is open, before what followed from it."""
        for first in list(self._open.values())[:1]:
            self.add(first.component, first.error or "", first.excerpt)
        self._open = {}

    def add(self, component: str, message: str, words: str = "") -> None:
        """Keep a component's failure until the end of the episode."""
        self.kept[len(self.kept)] = component, message, words


def _is_repeated_by(step: PlanStep, other: PlanStep) -> bool:
    """Tell whether a step is done once more by another: the same call, or the same words without one."""
    return step.call == other.call and (other.tool is not None or step.task == other.task)


def _lines(steps: Sequence[PlanStep]) -> str:
    return "\n".join(step.to_line() for step in steps) or "(none)"


class _CheckedTools:
    """The tools of an episode, which refuse wrong arguments and references before anything is called.

    A sub-agent is shown results and passes on values. What stands in its task and in what it was shown is data, also if
    it looks like a reference.
    """

    def __init__(self, run: AgentRun, results: str) -> None:
        self.specs = run.tools.specs
        self._tools = run.tools
        self._data = [run.task, results]

    async def call(self, name: str, arguments: Mapping[str, Any]) -> CallResult:
        """Call a tool if it takes the arguments, and if all of them are values."""
        left = step_references_in(arguments, self._data).words
        checked = _checked_arguments(self.specs, name, arguments)
        if left:
            checked = f"{excerpt(left[0], 100)} only stands for a result: write the value itself"
        if isinstance(checked, str):
            return CallResult.refused(checked)
        result = await self._tools.call(name, checked)
        self._data.append(result.text)
        return result


def _checked_arguments(specs: Iterable[ToolSpec], name: str, arguments: Mapping[str, Any]) -> Mapping[str, Any] | str:
    """Return arguments as a tool takes them, or what is wrong; a tool that is not listed is left to the toolbox."""
    spec = next((spec for spec in specs if spec.name == name), None)
    return arguments if spec is None else spec.checked(arguments)


def _instruction(step: PlanStep) -> str:
    """Return what a sub-agent is told to do; some plans name a tool although they need not."""
    if step.tool is None:
        return step.task
    arguments = json.dumps(dict(step.arguments), ensure_ascii=False) if step.problem is None else step.problem.excerpt
    return f"{step.task}\nThe plan suggests: {step.tool} {arguments}"


@dataclass(frozen=True, slots=True)
class _Unresolved(Unreadable):
    """Why references could not be turned into values although the reply could be read."""

    kind: str = "resolution_incomplete"


def _read_resolution(
    text: str, step: PlanStep, of_plan: Sequence[str], of_values: Sequence[str]
) -> dict[str, Any] | Unreadable:
    """Read the values that a reply gives; a reply without any is another failure than one that cannot be read."""
    words = excerpt(visible(text))
    read = read_json(text)
    if isinstance(read, Unreadable):
        return read
    if not read:
        return _Unresolved("the object is empty", words, kind="resolution_empty")
    # Some models put the arguments under that name, as in a call.
    inner = read.get("arguments")
    if isinstance(inner, dict) and "arguments" not in step.arguments:
        read = inner
    filled, problems = fill_in(dict(step.arguments), read, of_plan, of_values)
    if not problems and step_references_in(filled, of_values):
        problems = ["a parameter's name: unresolved"]
    if not problems:
        return dict(filled)
    is_empty = all(problem.endswith(": empty") for problem in problems)
    kind = "resolution_empty" if is_empty else "resolution_incomplete"
    return _Unresolved("values of " + ", ".join(problems), words, kind=kind)
