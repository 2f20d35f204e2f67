"""What comes after a trial: a verdict, and where it is a failure, a few lines on why and what to do instead."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from resilisim.chat import ChatMessage
from resilisim.policies.llm.react.loop import LoopResult
from resilisim.policies.llm.reading import Unreadable, excerpt, read_json, visible
from resilisim.policies.llm.run import AgentRun
from resilisim.policies.llm.templates import PromptTexts

ATTEMPTS: Final = 2
MOST_LINES: Final = 3  # of a reflection
LONGEST_LINE: Final = 400
NO_VERDICT: Final = "no verdict could be read"
NO_REFLECTION: Final = "it wrote nothing"
_WORDS: Final = {"true": True, "false": False}
_MARK: Final = re.compile(r"\[(SUCCESS|FAILURE)\]", re.IGNORECASE)  # how other implementations ask for a verdict


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
        """Judge a trial.

        Args:
            run: The episode.
            trial: Its number, from 1.
            result: What happened in it.
        """
        ...


class LlmJudge:
    """A model judges by what it reads of the trial.

    Args:
        prompts: Holds `evaluator` and `evaluator_again`.
        longest: Characters of the trial that it reads.
    """

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
    """Somebody who knows judges; this is no measure of the agent alone.

    Args:
        oracle: Says whether the task is done.
    """

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

    Args:
        run: The episode.
        prompts: Holds `reflector`.
        trial: The trial's number, from 1.
        result: What happened in it.
        verdict: Why it failed.
        earlier: The reflections before.
        longest: Characters of the trial that the model reads.
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
