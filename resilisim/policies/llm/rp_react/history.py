"""What was asked and done so far in a task: for the executors' prompt and for the record."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from resilisim.policies.llm.agents.react import LoopStep
from resilisim.policies.llm.rp_react.marks import identity
from resilisim.policies.llm.rp_react.variables import first_tokens

NOTHING = "(none)"


@dataclass(slots=True)
class SubQuestion:
    """A sub-question under way or over.

    Attributes:
        question: Its words.
        executor: Who was asked.
        steps: What the executor did so far.
        result: What the planner was given; None while it is under way, empty after a failure.
    """

    question: str
    executor: str
    steps: list[LoopStep] = field(default_factory=list)
    result: str | None = None

    def to_mapping(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return {
            "question": self.question,
            "executor": self.executor,
            "steps": [step.to_mapping() for step in self.steps],
            "result": self.result,
        }

    def to_text(self, tokens: int) -> str:
        """Return it as an executor reads it later: the question, each action with the beginning of what it brought."""
        lines = [f"Question: {self.question}"]
        for step in self.steps:
            if step.action is None or step.action == "finish":
                continue
            given = json.dumps(dict(step.arguments or {}), ensure_ascii=False)
            brought = " ".join(first_tokens(step.observation, tokens).split())
            lines.append(f"Action: {step.action} {given}\n  brought: {brought}")
        lines.append(f"Result: {self.result}" if self.result else "Result: (the executor failed)")
        return "\n".join(lines)


class History:
    """The sub-questions of one task, in order.

    Args:
        structure: The agent's structure in the record, which is kept up to date.
    """

    def __init__(self, structure: dict[str, Any]) -> None:
        self.asked: list[SubQuestion] = []
        self._mappings: list[dict[str, Any]] = []
        structure["subquestions"] = self._mappings

    def begin(self, question: str, executor: str) -> SubQuestion:
        """Add a sub-question."""
        asked = SubQuestion(question, executor)
        self.asked.append(asked)
        self._mappings.append(asked.to_mapping())
        return asked

    def add_step(self, step: LoopStep) -> None:
        """Add a step of the executor to the last sub-question."""
        self.asked[-1].steps.append(step)
        self._mappings[-1]["steps"].append(step.to_mapping())

    def end(self, result: str) -> None:
        """Say what the planner is given for the last sub-question."""
        self.asked[-1].result = result
        self._mappings[-1]["result"] = result

    def number_of(self, question: str, executor: str) -> int | None:
        """Return the number of the same sub-question to the same executor if it was asked before."""
        wanted = identity(question)
        for number, asked in enumerate(self.asked, start=1):
            if identity(asked.question) == wanted and asked.executor == executor:
                return number
        return None

    def to_text(self, tokens: int) -> str:
        """Return everything that is over."""
        over = [asked.to_text(tokens) for asked in self.asked if asked.result is not None]
        return "\n\n".join(over) or NOTHING
