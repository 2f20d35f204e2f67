"""Reflexion (2023): a ReAct trial, a verdict, and after a failure a few lines on what went wrong before the next."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from resilisim.chat import ChatMessage
from resilisim.errors import InvalidInputError
from resilisim.policies.llm.agents.react import (
    FINISH_FORM,
    LONGEST_OBSERVATION,
    LoopResult,
    LoopStep,
    loop_instructions,
    react_loop,
)
from resilisim.policies.llm.options import AgentOptions, choice, limit
from resilisim.policies.llm.policy import LlmPolicy
from resilisim.policies.llm.reading import Unreadable, excerpt, read_json, visible
from resilisim.policies.llm.run import AgentRun
from resilisim.policies.llm.templates import PromptTexts
from resilisim.policies.llm.tools import Toolbox, ToolResult, ToolSpec

ATTEMPTS: Final = 2
MOST_LINES: Final = 3  # of a reflection
LONGEST_LINE: Final = 400
NO_VERDICT: Final = "no verdict could be read"
NO_REFLECTION: Final = "it wrote nothing"
_WORDS: Final = {"true": True, "false": False}
_MARK: Final = re.compile(r"\[(SUCCESS|FAILURE)\]", re.IGNORECASE)  # how other implementations ask for a verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class ReflexionOptions(AgentOptions):
    """Options of Reflexion."""

    steps: int = limit(20, "steps of one trial", least=1)
    reflections: int = limit(3, "reflections, each followed by one more trial")
    evaluator: str = choice("llm", "who judges a trial; results with the oracle are marked", ("llm", "oracle"))
    trials: str = choice("shared", "whether trials share one episode or each has a fresh one", ("shared", "fresh"))
    observation_chars: int = limit(LONGEST_OBSERVATION, "characters after which an observation is cut", least=100)
    trajectory_chars: int = limit(12_000, "characters of a trial that evaluator and reflector read", least=100)


class Reflexion(LlmPolicy[ReflexionOptions]):
    """ReAct trials; after one that is judged a failure, a diagnosis and a plan stand before the next (Reflexion, 2023).

    By default all trials share the episode and its turns: what an earlier one did stays done, and its finish is kept
    back until the evaluator accepts it, or turns or trials are used up. The last answer is kept. Where each trial has a
    fresh episode, one that the environment ends is followed by the next all the same.
    """

    name = "reflexion"
    options_class = ReflexionOptions
    components = ("agent", "evaluator", "reflector")
    uses_native_calls = True
    finish_form = FINISH_FORM

    async def play(self, run: AgentRun) -> str | None:
        """Try until a trial is accepted, or nothing more can be tried.

        Raises:
            InvalidInputError: The options want an oracle or fresh episodes, and whoever plays offers none.
        """
        judge = self._judge(run)
        if self.options.trials == "fresh" and run.hooks.restart is None:
            raise InvalidInputError("option trials=fresh: whoever plays this episode cannot begin fresh ones")
        failures: dict[str, str] = {}
        try:
            return await self._tried(run, judge, failures)
        finally:
            # What nothing has made good, also where the episode ends in the midst of a trial.
            for component, reason in failures.items():
                run.fail(component, reason)

    async def _tried(self, run: AgentRun, judge: Judge, failures: dict[str, str]) -> str | None:
        """Run the trials; `failures` gets the components that did not do their part and have not done it since."""
        run.fresh_trials = self.options.trials == "fresh"
        reflections: list[str] = []
        records: list[dict[str, Any]] = []
        run.structure["trials"] = records
        answer: str | None = None
        for number in range(1, self.options.reflections + 2):
            if number > 1 and self.options.trials == "fresh":
                await run.restart()
            record: dict[str, Any] = {"steps": [], "answer": None, "success": None}
            records.append(record)
            result = await self._try(run, reflections, record)
            answer = answer if result.answer is None else result.answer
            run.kept_answer = answer
            if number > self.options.reflections or not self._can_try_again(run):
                break
            verdict = await judge.verdict(run, number, result)
            record |= {"success": verdict.success, "reason": verdict.reason}
            _keep_failure(failures, "evaluator", verdict.reason if verdict.is_missing else None)
            if verdict.success:
                failures.clear()
                return answer or ""
            record["reflection"] = await reflect(
                run, self.prompts, number, result, verdict, reflections, self.options.trajectory_chars
            )
            _keep_failure(failures, "reflector", None if record["reflection"] else NO_REFLECTION)
            if record["reflection"]:
                reflections.append(record["reflection"])
        if answer is None:
            failures["agent"] = f"no finish in {len(records)} trials"
        return answer

    def _judge(self, run: AgentRun) -> Judge:
        if self.options.evaluator == "llm":
            return LlmJudge(self.prompts, self.options.trajectory_chars)
        oracle = run.oracle
        if oracle is None:
            raise InvalidInputError("option evaluator=oracle: whoever plays this episode offers no oracle")
        return OracleJudge(oracle)

    def _can_try_again(self, run: AgentRun) -> bool:
        return self.options.trials == "fresh" or run.turns_left != 0

    async def _try(self, run: AgentRun, reflections: list[str], record: dict[str, Any]) -> LoopResult:
        def keep(step: LoopStep) -> None:
            record["steps"].append(step.to_mapping())

        tools = _WhileTurnsLast(run)
        lessons = "\n\n".join(f"After trial {number}:\n{text}" for number, text in enumerate(reflections, start=1))
        template = "trial_fresh" if self.options.trials == "fresh" else "trial"
        result = await react_loop(
            run,
            role="agent",
            system=loop_instructions(run, self.prompts),
            question=self.prompts.fill(template, task=run.task, reflections=lessons) if lessons else run.task,
            tools=tools,
            steps=self.options.steps,
            longest_observation=self.options.observation_chars,
            limit_is_failure=False,
            stop_when=lambda: tools.refused or run.is_over,
            on_step=keep,
        )
        record["answer"] = result.answer
        return result


def _keep_failure(failures: dict[str, str], component: str, reason: str | None) -> None:
    """Keep the first failure of a component, until it does its part again."""
    if reason is None:
        failures.pop(component, None)
    else:
        failures.setdefault(component, reason)


class _WhileTurnsLast(Toolbox):
    """The tools of an episode, which refuse what could only end it: calls when no turns are left.

    The environment would take such a call for the closing message, and an answer that was kept back would be lost.

    Attributes:
        refused: Whether a call was refused.
    """

    def __init__(self, run: AgentRun) -> None:
        self._run = run
        self.refused = False

    @property
    def specs(self) -> tuple[ToolSpec, ...]:
        """The episode's tools."""
        return self._run.tools.specs

    async def call(self, name: str, arguments: Mapping[str, Any]) -> ToolResult:
        """Call a tool if a turn is left."""
        if self._run.turns_left == 0:
            self.refused = True
            return ToolResult("", "no turns are left, so nothing was called")
        return await self._run.tools.call(name, arguments)


@dataclass(frozen=True, slots=True)
class Verdict:
    """A judgement of a trial.

    Attributes:
        success: Whether the task is done.
        reason: Why, in a few words.
        is_missing: Whether there is no judgement, so that this stands in for it.
    """

    success: bool
    reason: str
    is_missing: bool = False


class Judge(Protocol):
    """Whoever judges trials; the least that is one has this method."""

    async def verdict(self, run: AgentRun, trial: int, result: LoopResult) -> Verdict:
        """Judge what happened in a trial; trials are counted from 1."""
        ...


class LlmJudge:
    """A model judges by what it reads of the trial, at most `longest` characters."""

    def __init__(self, prompts: PromptTexts, longest: int) -> None:
        self._prompts = prompts
        self._longest = longest

    async def verdict(self, run: AgentRun, trial: int, result: LoopResult) -> Verdict:
        """Ask the model, once more if its verdict cannot be read; a trial without an answer has failed anyway."""
        verdict = await self._judged(run, result)
        run.note("verdict", "evaluator", verdict.reason, trial=trial, success=verdict.success, by="llm")
        return verdict

    async def _judged(self, run: AgentRun, result: LoopResult) -> Verdict:
        if result.answer is None:
            return Verdict(False, f"the trial ended without finish after {len(result.steps)} steps")
        request = self._prompts.fill(
            "evaluator", task=run.task, trajectory=latest(result, self._longest), answer=result.answer
        )
        messages = [ChatMessage("user", request)]
        for attempt in range(1, ATTEMPTS + 1):
            reply = await run.ask("evaluator", messages)
            read = _read_verdict(reply.text)
            if isinstance(read, Verdict):
                return read
            read = run.unreadable("evaluator", reply, read, "unreadable_verdicts")
            if attempt < ATTEMPTS:
                words = excerpt(visible(reply.text), 2_000) or "(an empty reply)"
                again = self._prompts.fill("evaluator_again", problem=read.problem)
                messages = [*messages, ChatMessage("assistant", words), ChatMessage("user", again)]
        run.note("warning", "evaluator", NO_VERDICT)
        return Verdict(False, NO_VERDICT, is_missing=True)


class OracleJudge:
    """Somebody who knows whether the task is done judges; this is no measure of the agent alone."""

    def __init__(self, oracle: Callable[[], bool]) -> None:
        self._oracle = oracle

    async def verdict(self, run: AgentRun, trial: int, result: LoopResult) -> Verdict:
        """Ask the oracle, whatever the trial's answer is."""
        success = bool(self._oracle())
        reason = "the task is done" if success else "the task is not done"
        run.note("verdict", "evaluator", reason, trial=trial, success=success, by="oracle")
        return Verdict(success, reason)


async def reflect(
    run: AgentRun,
    prompts: PromptTexts,
    trial: int,
    result: LoopResult,
    verdict: Verdict,
    earlier: Sequence[str],
    longest: int,
) -> str:
    """Return what the model makes of a failed trial, at most three lines; empty if it has nothing to say.

    Of the trial it reads at most `longest` characters, and all `earlier` reflections.
    """
    request = prompts.fill(
        "reflector",
        task=run.task,
        trajectory=latest(result, longest),
        answer="(none)" if result.answer is None else result.answer,
        reason=verdict.reason,
        reflections="\n\n".join(earlier) or "(none)",
    )
    reply = await run.ask("reflector", [ChatMessage("user", request)])
    written = [line.strip() for line in visible(reply.text).splitlines() if line.strip()]
    lines = [excerpt(line, LONGEST_LINE) for line in written[:MOST_LINES]]
    if not lines:
        run.note("malformed_reply", "reflector", "the reflection is empty", excerpt=excerpt(reply.text))
        run.note("warning", "reflector", NO_REFLECTION)
        return ""
    if len(written) > MOST_LINES:
        run.note("warning", "reflector", f"{len(written)} lines: the first {MOST_LINES} are kept")
    text = "\n".join(lines)
    run.note("reflection", "reflector", text, trial=trial)
    run.count("reflections")
    return text


def latest(result: LoopResult, longest: int) -> str:
    """Return the steps of a trial as text; of a long one the end, which says how it came out."""
    text = result.trajectory()
    return text if len(text) <= longest else f"[cut: {len(text) - longest:,} characters]\n{text[-longest:]}"


def _read_verdict(text: str) -> Verdict | Unreadable:
    read = read_json(text, ["success"])
    if isinstance(read, Unreadable):
        shown = visible(text)
        marks = {word.upper() == "SUCCESS" for word in _MARK.findall(shown)}
        return read if len(marks) != 1 else Verdict(marks.pop(), excerpt(_MARK.sub("", shown).strip(), LONGEST_LINE))
    success = read["success"]
    if isinstance(success, str):
        success = _WORDS.get(success.strip().lower())
    if not isinstance(success, bool):
        return Unreadable("'success' is neither true nor false", excerpt(visible(text)))
    return Verdict(success, excerpt(str(read.get("reason") or ""), LONGEST_LINE))
