"""What a plan is, and what becomes of its steps."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from resilisim.policies.llm.reading import EXCERPT_LENGTH, Unreadable, excerpt

# Why a step failed, and whose doing it is.
ErrorKind = Literal[
    "arguments",  # the plan's arguments could not be read, or are none that the tool takes
    "reference",  # it needs a step that failed, does not exist or comes later
    "resolution_unreadable",  # the reply that should have turned references into values could not be read
    "resolution_empty",  # it could be read, and held no value where one was needed
    "resolution_incomplete",  # it lacks an argument, or references are left in it
    "tool",  # the tool's error
    "turns",  # the environment runs nothing any more
    "executor",  # the executor came to no result
]
COMPONENT_OF_ERROR: Mapping[ErrorKind, str] = {
    "arguments": "planner",
    "reference": "planner",
    "resolution_unreadable": "extractor",
    "resolution_empty": "extractor",
    "resolution_incomplete": "extractor",
    "tool": "tool",
    "turns": "planner",
    "executor": "executor",
}


@dataclass(frozen=True, slots=True)
class PlanStep:
    """One step of a plan.

    Attributes:
        number: By which other steps refer to it; no two steps of an episode's attempt have the same.
        task: What there is to do.
        needs: Steps whose results it needs; None if the plan does not say, then it is given all there are.
        tool: The tool to call; None if the plan names none.
        arguments: What to pass, with references to results.
        problem: Why the plan's arguments could not be read; None if they could.
    """

    number: int
    task: str
    needs: tuple[int, ...] | None = None
    tool: str | None = None
    arguments: Mapping[str, Any] = field(default_factory=dict, hash=False)
    problem: Unreadable | None = None

    def does_the_same_as(self, other: PlanStep) -> bool:
        """Tell whether two steps have the same to do, whatever their numbers and the steps that they need."""
        return (self.task, self.tool, dict(self.arguments)) == (other.task, other.tool, dict(other.arguments))

    def needs_the_same_as(self, other: PlanStep, renamed: Mapping[int, int]) -> bool:
        """Tell whether two steps need the same ones.

        Args:
            other: The other step.
            renamed: Number of a step in this one's plan -> its number in the other's, where they differ.
        """
        if self.needs is None or other.needs is None:
            return self.needs is other.needs
        return {renamed.get(number, number) for number in self.needs} == set(other.needs)

    def to_mapping(self) -> dict[str, Any]:
        """Return the step as JSON values."""
        mapping: dict[str, Any] = {"step": self.number, "task": self.task}
        if self.needs is not None:
            mapping["needs"] = list(self.needs)
        if self.tool is not None:
            mapping |= {"tool": self.tool, "arguments": dict(self.arguments)}
        return mapping

    def to_line(self) -> str:
        """Return the step as one line for a prompt."""
        call = "" if self.tool is None else f" [{self.tool} {json.dumps(dict(self.arguments), ensure_ascii=False)}]"
        needs = "" if not self.needs else f" (needs {', '.join(map(str, self.needs))})"
        return f"{self.number}. {' '.join(self.task.split())}{call}{needs}"


@dataclass(frozen=True, slots=True)
class Plan:
    """What a planner or replanner wrote: steps still to do, or the answer.

    Attributes:
        steps: In the order in which they are done.
        answer: The answer to the whole task; None if there is none yet.
    """

    steps: tuple[PlanStep, ...]
    answer: str | None = None


@dataclass(frozen=True, slots=True)
class StepError:
    """Why a step has no result.

    Attributes:
        kind: Which kind of failure it is.
        message: What is wrong, on one line.
        excerpt: The words in question, as they were written; empty if there are none.
    """

    kind: ErrorKind
    message: str
    excerpt: str = ""

    @property
    def component(self) -> str:
        """The part of the agent that failed."""
        return COMPONENT_OF_ERROR[self.kind]


@dataclass(frozen=True, slots=True)
class StepOutcome:
    """What became of a step.

    Attributes:
        step: The step.
        result: What it brought; empty if it failed.
        error: Why it failed; None if it succeeded.
    """

    step: PlanStep
    result: str = ""
    error: StepError | None = None

    @property
    def ok(self) -> bool:
        """Whether it succeeded."""
        return self.error is None

    def to_mapping(self) -> dict[str, Any]:
        """Return step and outcome as JSON values."""
        mapping = {**self.step.to_mapping(), "status": "done" if self.ok else "failed"}
        if self.error is None:
            return {**mapping, "result": self.result}
        return {**mapping, "error": self.error.message, "kind": self.error.kind, "excerpt": self.error.excerpt}

    def to_text(self, longest: int) -> str:
        """Return step and outcome for a prompt, the result cut."""
        if self.error is not None:
            return f"{self.step.to_line()}\n   FAILED: {excerpt(self.error.message, longest)}"
        return f"{self.step.to_line()}\n   Result: {excerpt(self.result, longest)}"


def failed(step: PlanStep, kind: ErrorKind, message: str, words: str = "") -> StepOutcome:
    """Return the outcome of a step that failed."""
    return StepOutcome(step, error=StepError(kind, " ".join(message.split()), excerpt(words, EXCERPT_LENGTH)))


def unusable_step(step: PlanStep, references: Iterable[int], done: Mapping[int, StepOutcome]) -> StepOutcome | None:
    """Return the failure of a step that needs what is not there; None if all that it needs is there.

    Args:
        step: The step whose turn it is.
        references: Numbers of the steps whose results it needs.
        done: The steps so far.
    """
    problems = []
    for number in sorted(set(references)):
        outcome = done.get(number)
        if outcome is None:
            problems.append(f"step {number}, which has not been done: it does not exist or comes later")
        elif outcome.error is not None:
            problems.append(f"step {number}, which failed ({excerpt(outcome.error.message, 100)})")
    if not problems:
        return None
    return failed(step, "reference", f"step {step.number} needs " + "; and ".join(problems), step.to_line())
