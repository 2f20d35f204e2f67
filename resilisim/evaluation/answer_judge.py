"""A language model as the judge of answers: strict about its verdict, which is one word or does not count."""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from resilisim.chat import ChatMessage, ChatModel, ChatRequest, ContextOverflowError
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


@functools.cache
def _prompts() -> PromptTexts:
    return load_prompts(packaged_prompts(__name__), None, NO_EXAMPLES)
