"""A rule-based model that talks as language models do, for records and reports of a realistic size without any model.

It follows the plan in its prompt, repeats what failed, and gives reasons of some fifty words a turn, which name the
tools, the numbers and the words of its task, so that they are as hard to compress as those of a real model.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from resilisim.chat import ChatReply, ChatRequest, TokenUsage
from resilisim.policies.llm.agents.direct import Direct
from resilisim.policies.llm.agents.react import ReAct
from resilisim.seeding import Draws
from resilisim.workflows.prompts import parse_steps

_REASONS: Final = (
    "The work order mentions {word} and {other}, so {tool} has to come before anything that uses its result.",
    "So far {done} of the steps went through; {tool} is what the plan lists next, and nothing speaks against it.",
    "I keep {number} in mind, because the final report is expected to agree with it.",
    "That reply looks like a temporary fault. Repeating {tool} with the same parameters is cheaper than any detour.",
    "Before I go on, I check that {other} was covered: it was, as the output shows {number}.",
    "The customer insists on {word}; skipping {tool} would leave that open, and it cannot be made up for later.",
    "If {tool} fails twice in a row I should think about its dependencies instead of insisting.",
    "The output is shorter than I had hoped, yet it holds {word}, which is all that the following step needs.",
    "There are turns enough left for {left} more steps, so a retry is affordable here.",
    "Nothing in the last observation contradicts the plan, although {other} appears under another name than expected.",
    "I could look up what {tool} needs, but the plan already says it and a turn is worth more than the reassurance.",
    "With {number} settled, the remaining question is whether {word} ends up where it was asked for.",
)
_WORD: Final = re.compile(r"[a-z]{6,}")
_NUMBER: Final = re.compile(r"\d[\d,.]*\d")


class Talker:
    """The model.

    Args:
        react: Whether to write in the form of ReAct, else tags.
    """

    name = "talker"

    def __init__(self, react: bool) -> None:
        self._react = react

    async def complete(self, request: ChatRequest) -> ChatReply:
        """Answer."""
        contents = [message.content for message in request.messages[1:] or request.messages]
        steps = [step.tool for step in parse_steps(contents[0])]
        planned = len(steps)
        for content in contents[1:]:
            if steps and f"{steps[0]} executed successfully" in content:
                steps.pop(0)
        thought = _thought(contents, steps[0] if steps else "the last step", planned - len(steps))
        tokens = TokenUsage(sum(map(len, contents)) // 4, len(thought) // 4)
        if self._react:
            action = f'tool_call {{"name": "{steps[0]}"}}' if steps else 'finish {"answer": "all steps are done"}'
            return ChatReply(f"Thought: {thought}\nAction: {action}", usage=tokens)
        action = f"<tool_call>{steps[0]}</tool_call>" if steps else "<finish/>"
        return ChatReply(f"<think>{thought}</think>\n{action}", usage=tokens)

    async def aclose(self) -> None:
        """Nothing is open."""


def react() -> ReAct:
    """Return a ReAct agent that asks the model."""
    return ReAct(models=Talker(react=True))


def direct() -> Direct:
    """Return an agent that sends what the model writes."""
    return Direct(models=Talker(react=False))


def _thought(contents: Sequence[str], tool: str, done: int) -> str:
    draws = Draws("talker", contents[0], len(contents), contents[-1])
    words = _WORD.findall(contents[0].lower()) or ["nothing"]
    numbers = _NUMBER.findall(contents[-1]) or ["0"]
    return " ".join(
        draws.choice(_REASONS).format(
            tool=tool,
            done=done,
            word=draws.choice(words),
            other=f"{draws.choice(words)} {draws.choice(words)}",
            number=draws.choice(numbers),
            left=10 - done,
        )
        for _ in range(3)
    )
