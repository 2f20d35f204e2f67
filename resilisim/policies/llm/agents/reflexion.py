"""Reflexion (2023): a ReAct trial, a verdict, and after a failure a few lines on what went wrong before the next."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final

from annotated_types import Ge

from resilisim.chat import ChatMessage
from resilisim.envs.reply import CallResult
from resilisim.errors import InvalidInputError
from resilisim.options import option
from resilisim.policies.llm.agent_options import AgentOptions, length
from resilisim.policies.llm.agent_run import AgentRun
from resilisim.policies.llm.agents.react import FINISH_FORM, LoopResult, loop_instructions, react_loop
from resilisim.policies.llm.policy import LlmPolicy
from resilisim.policies.llm.reply_reading import Unreadable, excerpt, read_json, visible

MOST_LINES: Final = 3  # of a reflection
LONGEST_LINE: Final = 400
NO_VERDICT: Final = "no verdict could be read"
NO_REFLECTION: Final = "it wrote nothing"
_WORDS: Final = {"true": True, "false": False}
_MARK: Final = re.compile(r"\[(SUCCESS|FAILURE)\]", re.IGNORECASE)  # how other implementations ask for a verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class ReflexionOptions(AgentOptions):
    """Options of Reflexion."""

    steps: Annotated[int, Ge(1)] = option(20, "steps of one trial")
    reflections: Annotated[int, Ge(0)] = option(3, "reflections, each followed by one more trial")
    evaluator: str = option("llm", "who judges a trial; results with the oracle are marked", choices=("llm", "oracle"))
    trials: str = option(
        "shared", "whether trials share one episode or each has a fresh one", choices=("shared", "fresh")
    )
    observation_chars: Annotated[int, Ge(100)] | None = length(
        "observation_chars", "characters after which an observation is cut"
    )
    trajectory_chars: Annotated[int, Ge(100)] | None = length(
        "trajectory_chars", "characters of a trial that evaluator and reflector read"
    )


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
        """Try until a trial is accepted, or nothing more can be tried."""
        oracle = run.oracle if self.options.evaluator == "oracle" else None
        if self.options.evaluator == "oracle" and oracle is None:
            raise InvalidInputError("option evaluator=oracle: what plays this episode offers no oracle")
        if self.options.trials == "fresh" and run.hooks.restart is None:
            raise InvalidInputError("option trials=fresh: what plays this episode cannot begin fresh ones")
        with run.open_failures() as failures:
            return await self._tried(run, oracle, failures)

    async def _tried(
        self, run: AgentRun, oracle: Callable[[], bool] | None, failures: dict[Any, tuple[str, ...]]
    ) -> str | None:
        """Run the trials; `failures` gets the components that did not do their part and have not done it since."""
        run.fresh_trials = self.options.trials == "fresh"
        reflections: list[str] = []
        records: list[dict[str, Any]] = []
        run.structure["trials"] = records
        answer: str | None = None
        for number in range(1, self.options.reflections + 2):
            if number > 1 and run.fresh_trials:
                await run.restart()
            record: dict[str, Any] = {"steps": [], "answer": None, "success": None}
            records.append(record)
            result = await self._try(run, reflections, record)
            answer = answer if result.answer is None else result.answer
            run.kept_answer = answer
            if number > self.options.reflections or (run.turns_left == 0 and not run.fresh_trials):
                break
            verdict = await self._judged(run, result) if oracle is None else _verdict_of(oracle)
            by = "llm" if oracle is None else "oracle"
            run.note("verdict", "evaluator", verdict.reason, trial=number, success=verdict.success, by=by)
            record |= {"success": verdict.success, "reason": verdict.reason}
            _keep_failure(failures, "evaluator", NO_VERDICT if verdict is _MISSING else None)
            if verdict.success:
                failures.clear()
                return answer or ""
            reflection = await self._reflection(run, number, result, verdict, reflections)
            record["reflection"] = reflection
            _keep_failure(failures, "reflector", None if reflection else NO_REFLECTION)
            reflections += [reflection] if reflection else []
        if answer is None:
            failures["agent"] = "agent", f"no finish in {len(records)} trials", "", "steps"
        return answer

    async def _try(self, run: AgentRun, reflections: list[str], record: dict[str, Any]) -> LoopResult:
        tools = _WhileTurnsLast(run)
        lessons = "\n\n".join(f"After trial {number}:\n{text}" for number, text in enumerate(reflections, start=1))
        template = "trial_fresh" if run.fresh_trials else "trial"
        result = await react_loop(
            run,
            role="agent",
            system=loop_instructions(run, self.prompts),
            question=self.prompts.fill(template, task=run.task, reflections=lessons) if lessons else run.task,
            tools=tools,
            steps=self.options.steps,
            stop_when=lambda: tools.refused or run.is_over,
            record=record["steps"],
        )
        record["answer"] = result.answer
        return result

    async def _judged(self, run: AgentRun, result: LoopResult) -> Verdict:
        """Have the model judge what it reads of a trial; one without an answer has failed anyway."""
        if result.answer is None:
            return Verdict(False, f"the trial ended without finish after {len(result.steps)} steps")
        request = self.prompts.fill(
            "evaluator", task=run.task, trajectory=_latest(result, run.length("trajectory_chars")), answer=result.answer
        )
        verdict = await run.ask_until_read(
            "evaluator",
            [ChatMessage("user", request)],
            _read_verdict,
            lambda problem: self.prompts.fill("evaluator_again", problem=problem),
            counter="unreadable_verdicts",
        )
        if isinstance(verdict, Verdict):
            return verdict
        run.note("warning", "evaluator", NO_VERDICT)
        return _MISSING

    async def _reflection(
        self, run: AgentRun, trial: int, result: LoopResult, verdict: Verdict, earlier: list[str]
    ) -> str:
        """Return what the model makes of a failed trial, at most three lines; empty if it has nothing to say."""
        request = self.prompts.fill(
            "reflector",
            task=run.task,
            trajectory=_latest(result, run.length("trajectory_chars")),
            answer="(none)" if result.answer is None else result.answer,
            reason=verdict.reason,
            reflections="\n\n".join(earlier) or "(none)",
        )
        reply = await run.ask("reflector", [ChatMessage("user", request)])
        written = [line.strip() for line in visible(reply.text).splitlines() if line.strip()]
        if not written:
            run.note("malformed_reply", "reflector", "the reflection is empty", excerpt=excerpt(reply.text))
            run.note("warning", "reflector", NO_REFLECTION)
            return ""
        if len(written) > MOST_LINES:
            run.note("warning", "reflector", f"{len(written)} lines: the first {MOST_LINES} are kept")
        text = "\n".join(excerpt(line, LONGEST_LINE) for line in written[:MOST_LINES])
        run.note("reflection", "reflector", text, trial=trial)
        run.count("reflections")
        return text


def _latest(result: LoopResult, longest: int) -> str:
    """Return the steps of a trial as text; of a long one the end, which says how it came out."""
    text = "\n".join(step.to_text() for step in result.steps)
    return text if len(text) <= longest else f"[cut: {len(text) - longest:,} characters]\n{text[-longest:]}"


def _keep_failure(failures: dict[Any, tuple[str, ...]], component: str, reason: str | None) -> None:
    """Keep the first failure of a component, until it does its part again."""
    if reason is None:
        failures.pop(component, None)
    else:
        failures.setdefault(component, (component, reason))


class _WhileTurnsLast:
    """The tools of an episode, which refuse what could only end it: calls when no turns are left.

    The environment would take such a call for the closing message, and an answer that was kept back would be lost.
    """

    def __init__(self, run: AgentRun) -> None:
        self.specs = run.tools.specs
        self.refused = False
        self._run = run

    async def call(self, name: str, arguments: Mapping[str, Any]) -> CallResult:
        """Call a tool if a turn is left."""
        if self._run.turns_left == 0:
            self.refused = True
            return CallResult.refused("no turns are left, so nothing was called")
        return await self._run.tools.call(name, arguments)


@dataclass(frozen=True, slots=True)
class Verdict:
    """A judgement of a trial: whether the task is done, and why, in a few words."""

    success: bool
    reason: str


_MISSING: Final = Verdict(False, NO_VERDICT)  # stands in for a judgement that could not be read


def _verdict_of(oracle: Callable[[], bool]) -> Verdict:
    """Ask somebody who knows whether the task is done; this is no measure of the agent alone."""
    return Verdict(True, "the task is done") if oracle() else Verdict(False, "the task is not done")


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
