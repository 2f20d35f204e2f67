"""A language model as the judge of answers: strict about its verdict, which is one word or does not count."""

from __future__ import annotations

import asyncio
import functools
import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from resilisim.chat import ChatMessage, ChatModel, ChatRequest, ContextOverflowError
from resilisim.errors import InvalidInputError
from resilisim.evaluation.episode.record import EpisodeRecord
from resilisim.evaluation.run.store import read_manifest, read_own_records, refuse_explored
from resilisim.policies.llm.reply_reading import visible
from resilisim.policies.llm.templates import NO_EXAMPLES, PromptTexts, load_prompts, packaged_prompts
from resilisim.provenance import without_surrogates
from resilisim.tasks import Task
from resilisim.worlds import load_world
from resilisim.worlds.base import world_task

JUDGE_ROLE: Final = "judge"  # of its calls; no component of an agent


class Verdict(StrEnum):
    """What a judge says of an answer."""

    CORRECT = "correct"
    INCORRECT = "incorrect"
    UNREADABLE = "unreadable"


_READABLE: Final = (Verdict.CORRECT, Verdict.INCORRECT)


@dataclass(frozen=True, slots=True)
class JudgedAccuracy:
    """The accuracy that a judge finds.

    Attributes:
        accuracy: Share of correct answers among those with a readable verdict; NaN if there is none.
        num_readable: Answers with a readable verdict.
        num_unreadable: Answers without one, which count neither as right nor as wrong.
    """

    accuracy: float
    num_readable: int
    num_unreadable: int


async def judge(
    model: ChatModel, question: str, expected: str, answer: str, *, max_tokens: int | None = None
) -> Verdict:
    """Let a model say whether an answer means the same as the expected one.

    The comparison of meanings by a model is that of the KPI-Chain papers; the strictness is ours. Only a reply that is
    the word `correct` or `incorrect` and nothing else, thoughts in `<think>` and space around it aside, is a verdict.
    It is asked once, at temperature 0. Question and answers stand in the prompt as JSON, so that an answer cannot pass
    for instructions that surround it.

    Args:
        model: The judge.
        question: What was asked.
        expected: The right answer.
        answer: The answer to be judged.
        max_tokens: Longest reply, thoughts included; None leaves it to the model.

    Returns:
        The verdict. Unreadable is also a reply that was cut, and a question that is too long for the judge.

    Raises:
        InfrastructureError: The endpoint is down.
        InvalidInputError: The endpoint refuses key, model or request.
    """
    texts = {"question": question, "expected": expected, "answer": answer}
    case = without_surrogates(json.dumps(texts, ensure_ascii=False, indent=1))
    prompts = _prompts()
    messages = (
        ChatMessage("system", prompts.fill("judge")),
        ChatMessage("user", prompts.fill("judge_case", case=case)),
    )
    request = ChatRequest(messages=messages, role=JUDGE_ROLE, temperature=0.0, max_tokens=max_tokens)
    try:
        reply = await model.complete(request)
    except ContextOverflowError:
        return Verdict.UNREADABLE
    word = visible(reply.text)
    return Verdict(word) if word in ("correct", "incorrect") and reply.finish_reason != "length" else Verdict.UNREADABLE


def judged_accuracy(verdicts: Iterable[Verdict]) -> JudgedAccuracy:
    """Return the accuracy over readable verdicts, and how many are unreadable."""
    judged = list(verdicts)
    readable = [verdict for verdict in judged if verdict is not Verdict.UNREADABLE]
    accuracy = readable.count(Verdict.CORRECT) / len(readable) if readable else math.nan
    return JudgedAccuracy(accuracy, len(readable), len(judged) - len(readable))


@dataclass(frozen=True, slots=True)
class JudgeAgreement:
    """How far a judge says what the exact score says, over the answers with a readable verdict.

    Attributes:
        agreement: Share of answers on which both agree; NaN if no verdict is readable.
        kappa: Cohen's kappa: agreement beyond what both accuracies alone would give, as a share of what is left above
            it; NaN where that is nothing, as when both say the same of every answer.
        num_both: Answers that both find right.
        num_judge_only: Answers that only the judge finds right: other words for it, or too lenient a judge.
        num_exact_only: Answers that only the exact score finds right.
        num_neither: Answers that both find wrong.
        num_unreadable: Answers without a readable verdict, which are in none of the above.
    """

    agreement: float
    kappa: float
    num_both: int
    num_judge_only: int
    num_exact_only: int
    num_neither: int
    num_unreadable: int


def judge_agreement(verdicts: Sequence[Verdict], exact: Sequence[bool]) -> JudgeAgreement:
    """Compare a judge's verdicts with the exact score of the same answers (`resilisim.worlds.answers`).

    Args:
        verdicts: What the judge says of each answer.
        exact: Whether the exact score finds each right, in the same order.

    Raises:
        InvalidInputError: There are not as many of the one as of the other.
    """
    if len(verdicts) != len(exact):
        raise InvalidInputError(f"{len(verdicts)} verdicts and {len(exact)} exact scores: expected one for each answer")
    pairs = [(one is Verdict.CORRECT, score) for one, score in zip(verdicts, exact, strict=True) if one in _READABLE]
    total = len(pairs)
    both, judge_only = pairs.count((True, True)), pairs.count((True, False))
    exact_only, neither = pairs.count((False, True)), pairs.count((False, False))
    by_chance = (both + judge_only) * (both + exact_only) + (neither + judge_only) * (neither + exact_only)
    agreed = both + neither
    return JudgeAgreement(
        agreement=agreed / total if total else math.nan,
        kappa=(agreed * total - by_chance) / (total**2 - by_chance) if total**2 > by_chance else math.nan,
        num_both=both,
        num_judge_only=judge_only,
        num_exact_only=exact_only,
        num_neither=neither,
        num_unreadable=len(verdicts) - total,
    )


@dataclass(frozen=True, slots=True)
class JudgedAnswer:
    """The answer of one episode, by the exact score and by a judge.

    Attributes:
        index: Place of the episode in its run.
        policy: Who gave the answer.
        instance_id: The question.
        seed: Seed of the episode.
        answer: What was answered; None where nothing was, which is incorrect without anybody being asked.
        exact: Whether the world's exact score finds it right.
        verdict: What the judge says.
    """

    index: int
    policy: str
    instance_id: str
    seed: int
    answer: str | None
    exact: bool
    verdict: Verdict

    def to_mapping(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return {**asdict(self), "verdict": str(self.verdict)}


async def judge_run(
    directory: Path | str, model: ChatModel, *, concurrency: int = 8, told: Callable[[], None] | None = None
) -> list[JudgedAnswer]:
    """Let a judge read the answers of a run in a world, which have their exact scores already.

    The judge sees the whole question, all right answers and what was answered; of a list or a conversation everything
    has to be right. The same answer to the same question is judged once.

    Args:
        directory: Folder of the run.
        model: The judge.
        concurrency: How many answers are judged at once.
        told: Called after each answer.

    Raises:
        InvalidInputError: The run was played in no world, or was explored, or a task is not there any more.
        InfrastructureError: The endpoint is down.
        StoreError: It is not a folder of results.

    Example:
        >>> import asyncio
        >>> from resilisim.chat import ScriptedChatModel
        >>> from resilisim.evaluation import evaluate, judge_run
        >>> results = evaluate("random", 2)
        >>> asyncio.run(judge_run(results.directory, ScriptedChatModel([])))
        Traceback (most recent call last):
        ...
        resilisim.errors.InvalidInputError: ... was played in no world: expected a run whose episodes end with answers
    """
    manifest = read_manifest(directory)
    refuse_explored(directory, manifest["arguments"], "agreement is counted over episodes that are all alike")
    name = manifest["arguments"].get("environment", {}).get("world")
    if name is None:
        raise InvalidInputError(f"{directory} was played in no world: expected a run whose episodes end with answers")
    world = load_world(name)
    slots = asyncio.Semaphore(concurrency)
    known: dict[tuple[str, str], asyncio.Task[Verdict]] = {}

    async def verdict(task: Task, answer: str) -> Verdict:
        async with slots:
            return await judge(model, task.description, str(task.metadata["answers"][0]), answer)

    async def judged(answer: JudgedAnswer) -> JudgedAnswer:
        with_verdict = answer
        if answer.answer is not None and answer.answer.strip():
            key = (answer.instance_id, answer.answer)
            if key not in known:
                known[key] = asyncio.create_task(verdict(world_task(world, answer.instance_id), answer.answer))
            with_verdict = replace(answer, verdict=await known[key])
        if told is not None:
            told()
        return with_verdict

    try:
        async with asyncio.TaskGroup() as group:
            begun = [group.create_task(judged(_given(record))) for record in read_own_records(directory, manifest)]
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None
    finally:
        for asked in known.values():
            asked.cancel()
    return sorted((task.result() for task in begun), key=lambda one: one.index)


def _given(record: EpisodeRecord) -> JudgedAnswer:
    """Return the answer of an episode before anybody has judged it."""
    is_right = record["score"].get("grade", {}).get("correct", False)
    facts = (record["index"], record["policy"], record["instance_id"], record["seed"], record.get("answer"))
    return JudgedAnswer(*facts, exact=bool(is_right), verdict=Verdict.INCORRECT)


@functools.cache
def _prompts() -> PromptTexts:
    return load_prompts(packaged_prompts(__name__), None, NO_EXAMPLES)
