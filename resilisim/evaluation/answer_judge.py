"""A language model as the judge of answers: strict about its verdict, which is one word or does not count."""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from resilisim.chat import ChatMessage, ChatModel, ChatRequest, ContextOverflowError
from resilisim.errors import InvalidInputError
from resilisim.policies.llm.reading import visible
from resilisim.policies.llm.templates import NO_EXAMPLES, PromptTexts, load_prompts, packaged_prompts
from resilisim.provenance import without_surrogates

JUDGE_ROLE: Final = "judge"  # of its calls; no component of an agent


class Verdict(StrEnum):
    """What a judge says of an answer.

    Example:
        >>> from resilisim.evaluation import Verdict
        >>> list(map(str, Verdict))
        ['correct', 'incorrect', 'unreadable']
    """

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

    Example:
        >>> from resilisim.evaluation import Verdict, judged_accuracy
        >>> judged_accuracy([Verdict.CORRECT, Verdict.INCORRECT, Verdict.UNREADABLE])
        JudgedAccuracy(accuracy=0.5, num_readable=2, num_unreadable=1)
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

    Example:
        >>> import asyncio
        >>> from resilisim.chat import ScriptedChatModel
        >>> from resilisim.evaluation import judge
        >>> model = ScriptedChatModel(["correct"])
        >>> asyncio.run(judge(model, "How many moons has Mars?", expected="two", answer="2"))
        <Verdict.CORRECT: 'correct'>
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
    """Return the accuracy over readable verdicts, and how many are unreadable.

    Example:
        >>> from resilisim.evaluation import Verdict, judged_accuracy
        >>> judged_accuracy([Verdict.CORRECT, Verdict.CORRECT, Verdict.INCORRECT, Verdict.CORRECT]).accuracy
        0.75
    """
    given = list(verdicts)
    readable = [verdict for verdict in given if verdict is not Verdict.UNREADABLE]
    accuracy = readable.count(Verdict.CORRECT) / len(readable) if readable else math.nan
    return JudgedAccuracy(accuracy, len(readable), len(given) - len(readable))


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

    Example:
        >>> from resilisim.evaluation import Verdict, judge_agreement
        >>> judge_agreement([Verdict.CORRECT, Verdict.INCORRECT], [True, True]).num_exact_only
        1
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

    Example:
        >>> from resilisim.evaluation import Verdict, judge_agreement
        >>> judge_agreement([Verdict.CORRECT, Verdict.CORRECT, Verdict.INCORRECT], [True, False, False]).kappa
        0.4
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


@functools.cache
def _prompts() -> PromptTexts:
    return load_prompts(packaged_prompts(__name__), None, NO_EXAMPLES)
