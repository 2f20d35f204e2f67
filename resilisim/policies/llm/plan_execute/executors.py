"""Who carries out a step: a ReAct sub-agent, or the step's own tool called directly."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from resilisim.chat import ChatMessage
from resilisim.policies.llm.agents.react import loop_tools, react_loop
from resilisim.policies.llm.plan_execute.plan import PlanStep, StepOutcome, failed, unusable_step
from resilisim.policies.llm.plan_execute.references import references_in
from resilisim.policies.llm.plan_execute.resolving import Unresolved, resolve
from resilisim.policies.llm.reading import Unreadable, excerpt, read_json, visible
from resilisim.policies.llm.run import AgentRun
from resilisim.policies.llm.templates import PromptTexts
from resilisim.policies.llm.tool_errors import error_of
from resilisim.policies.llm.tools import Toolbox, ToolResult, ToolSpec


class StepExecutor(Protocol):
    """Carries out steps; the least that is one has this method."""

    async def carry_out(self, step: PlanStep, done: Mapping[int, StepOutcome]) -> StepOutcome:
        """Carry out a step.

        Args:
            step: The step.
            done: What became of the steps before it, by number.
        """
        ...


class ReActExecutor:
    """Each step is done by a ReAct sub-agent, which is shown the results that the step needs and has all tools.

    Args:
        run: The episode.
        prompts: Holds `executor` and `executor_task`.
        steps: Limit of each sub-agent.
        longest_result: Characters of a result that a later step is shown.
    """

    def __init__(self, run: AgentRun, prompts: PromptTexts, steps: int, longest_result: int) -> None:
        self._run = run
        self._prompts = prompts
        self._steps = steps
        self._longest_result = longest_result

    async def carry_out(self, step: PlanStep, done: Mapping[int, StepOutcome]) -> StepOutcome:
        """Run the sub-agent; its answer is the step's result."""
        unusable = unusable_step(step, step.needs or (), done)
        if unusable is not None:
            return unusable
        results = results_for(step, done, self._longest_result)
        question = self._prompts.fill(
            "executor_task",
            objective=self._run.task,
            task=_instruction(step),
            results=results,
            facts=self._run.facts,
        )
        loop = await react_loop(
            self._run,
            role="executor",
            system=self._prompts.fill("executor", tools=loop_tools(self._run.tools)),
            question=question,
            tools=_CheckedTools(self._run, results),
            steps=self._steps,
            limit_is_failure=False,
            may_fail=True,
        )
        if loop.problem is not None:
            return failed(step, "executor", f"the executor could not do it: {excerpt(loop.problem, 200)}", loop.problem)
        if loop.answer is None:
            last = next(
                (past.error for past in reversed(loop.steps) if past.error is not None and past.arguments is not None),
                None,
            )
            why = "" if last is None else f"; the last error of a tool was: {excerpt(last, 200)}"
            return failed(step, "executor", f"the executor did not finish within {self._steps} steps{why}")
        if not loop.result.strip():
            return failed(step, "executor", "the executor finished without a result")
        return StepOutcome(step, loop.result)


class _CheckedTools(Toolbox):
    """The tools of an episode, which refuse wrong arguments and references before anything is called.

    A sub-agent is shown results and passes on values. What stands in its task and in what it was shown is data, also if
    it looks like a reference.

    Args:
        run: The episode.
        results: Results of earlier steps that the sub-agent was shown.
    """

    def __init__(self, run: AgentRun, results: str) -> None:
        self._run = run
        self._data = [run.task, results]

    @property
    def specs(self) -> tuple[ToolSpec, ...]:
        """The episode's tools."""
        return self._run.tools.specs

    async def call(self, name: str, arguments: Mapping[str, Any]) -> ToolResult:
        """Call a tool if it takes the arguments, and if all of them are values."""
        left = next(iter(references_in(arguments, self._data).words), None)
        if left is not None:
            return _refused(f"{excerpt(left, 100)} only stands for a result: write the value itself")
        checked = checked_arguments(self.specs, name, arguments)
        if isinstance(checked, str):
            return _refused(checked)
        result = await self._run.tools.call(name, checked)
        self._data.append(result.text)
        return result


def checked_arguments(specs: Iterable[ToolSpec], name: str, arguments: Mapping[str, Any]) -> Mapping[str, Any] | str:
    """Return arguments as a tool takes them, or what is wrong; a tool that is not listed is left to the toolbox."""
    spec = next((spec for spec in specs if spec.name == name), None)
    return arguments if spec is None else spec.checked(arguments)


def _refused(problem: str) -> ToolResult:
    return ToolResult(f"Error: {problem}", problem)


class DirectExecutor:
    """Each step is one call of its tool; references in its arguments are turned into values first.

    A step without a tool is worked out by the model from earlier results; nothing that the plan expects of it counts.

    Args:
        run: The episode.
        prompts: Holds `resolver`, `resolver_again` and `conclusion`.
        longest_result: Characters of a result that the model is shown.
    """

    def __init__(self, run: AgentRun, prompts: PromptTexts, longest_result: int) -> None:
        self._run = run
        self._prompts = prompts
        self._longest_result = longest_result

    async def carry_out(self, step: PlanStep, done: Mapping[int, StepOutcome]) -> StepOutcome:
        """Call the tool, if everything that it is to be passed is there."""
        if step.problem is not None:
            message = f"the arguments of step {step.number} cannot be read: {step.problem.problem}"
            return failed(step, "arguments", message, step.problem.excerpt)
        references = references_in(step.arguments, (self._run.task,))
        if references.unclear:
            words = ", ".join(references.unclear)
            return failed(step, "reference", f"step {step.number}: {excerpt(words, 100)} names no step", words)
        unusable = unusable_step(step, references.numbers | set(step.needs or ()), done)
        if unusable is not None:
            return unusable
        if step.tool is None:
            return await self._conclude(step, done)
        arguments = dict(step.arguments)
        if references:
            needed = {number: done[number] for number in references.numbers}
            resolved = await resolve(self._run, self._prompts, step, needed, self._longest_result)
            if isinstance(resolved, Unresolved):
                message = f"the references of step {step.number} could not be resolved: {resolved.problem}"
                return failed(step, resolved.kind, message, resolved.excerpt)
            arguments = resolved
        return await self._call(step, step.tool, arguments)

    async def _call(self, step: PlanStep, tool: str, arguments: Mapping[str, object]) -> StepOutcome:
        if self._run.turns_left == 0:
            return failed(step, "turns", f"step {step.number}: no turns are left, so {tool} was not called")
        checked = checked_arguments(self._run.tools.specs, tool, arguments)
        if isinstance(checked, str):
            words = json.dumps(dict(arguments), ensure_ascii=False, default=str)
            return failed(step, "arguments", f"step {step.number}: {checked}", words)
        result = await self._run.tools.call(tool, checked)
        error = error_of(result)
        if error is not None:
            return failed(step, "tool", f"{tool}: {error}", result.text)
        return StepOutcome(step, result.text)

    async def _conclude(self, step: PlanStep, done: Mapping[int, StepOutcome]) -> StepOutcome:
        """Have a step without a tool worked out from the results before it."""
        results = results_for(step, done, self._longest_result)
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


def _instruction(step: PlanStep) -> str:
    """Return what a sub-agent is told to do; some plans name a tool although they need not."""
    if step.tool is None:
        return step.task
    given = json.dumps(dict(step.arguments), ensure_ascii=False) if step.problem is None else step.problem.excerpt
    return f"{step.task}\nThe plan suggests: {step.tool} {given}"


def results_for(step: PlanStep, done: Mapping[int, StepOutcome], longest: int) -> str:
    """Return the results that a step is shown: those it needs, or all there are if the plan does not say."""
    numbers = [number for number, outcome in done.items() if outcome.ok] if step.needs is None else list(step.needs)
    shown = [f"Step {n} ({done[n].step.task}):\n{excerpt(done[n].result, longest)}" for n in sorted(set(numbers))]
    return "\n\n".join(shown) or "(none)"
