"""What became of a task that a language model was to enhance: a value, whatever the model wrote."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from resilisim.chat import ChatReply, TokenUsage
from resilisim.errors import ResiliSimError
from resilisim.tasks.types import Task

Outcome = Literal["enhanced", "refused", "failed"]

# Why an answer was refused; results count them by these words.
REFUSALS = (
    "cut_off",  # the model reached its limit of tokens
    "not_json",  # no answer, no JSON object, or one without the fields that were asked for
    "wrong_fields",  # a field of the wrong type
    "too_long",
    "not_text",  # control characters, halves of characters
    "markup",  # tags, which could pass for the protocol's
    "names_tool",  # a tool's name stands in the description, so that nothing is left to be found
    "unchanged",
    "lost_value",  # a path, an address or a number of the task's data no longer stands in the description
    "not_solvable",  # retrieval does not find a required tool by the description, or not in the required order
    "unknown_tool",
    "wrong_number_of_tools",
    "wrong_steps",  # the tools do not carry out the steps of such a task
    "wrong_inputs",
    "wrong_outputs",
    "duplicate",  # the same task was designed before
)
MAX_DETAIL_LENGTH = 300  # characters; details may repeat what a model wrote


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why an answer cannot be used.

    Attributes:
        kind: One of `REFUSALS`.
        detail: The reason in words, fit to be told to the model.
    """

    kind: str
    detail: str


@dataclass(frozen=True, slots=True)
class CallCount:
    """Calls of a model and their tokens; those from a cache are counted apart, for nobody pays them."""

    calls: int = 0
    cached_calls: int = 0
    usage: TokenUsage = field(default_factory=TokenUsage)

    def __add__(self, other: CallCount) -> CallCount:
        """Return the sum."""
        return CallCount(self.calls + other.calls, self.cached_calls + other.cached_calls, self.usage + other.usage)

    @classmethod
    def of(cls, reply: ChatReply) -> CallCount:
        """Return the count of one call."""
        return cls(0, 1) if reply.from_cache else cls(1, 0, reply.usage)


@dataclass(frozen=True, slots=True)
class Enhancement:
    """A task and what became of it.

    Attributes:
        task: The better task, or the original; either way its metadata says which under `enhancement`.
        original: The task as it was given.
        outcome: "enhanced", "refused" (no answer of the model could be used), "failed" (the endpoint gave none).
        reason: Of a refusal its kind, of a failure "endpoint"; None for an enhanced task.
        count: What it took.
        error: The endpoint's failure.
    """

    task: Task
    original: Task
    outcome: Outcome
    reason: str | None = None
    count: CallCount = CallCount()
    error: ResiliSimError | None = None


def enhanced(task: Task, original: Task, made_by: Mapping[str, Any], count: CallCount) -> Enhancement:
    """Return the outcome of an answer that was used.

    Args:
        task: What was made of the answer.
        original: The task as it was given.
        made_by: Mode and model, for the metadata.
        count: What it took.
    """
    facts = {**made_by, "outcome": "enhanced", "reason": None, "detail": None}
    return Enhancement(
        _with_metadata(task, {"llm_generated": True, "enhancement": facts}), original, "enhanced", None, count
    )


def refused(original: Task, refusal: Refusal, made_by: Mapping[str, Any], count: CallCount) -> Enhancement:
    """Return the outcome of answers of which none could be used: the original, with the reason of the last one."""
    facts = {**made_by, "outcome": "refused", "reason": refusal.kind, "detail": _short(refusal.detail)}
    return Enhancement(_with_metadata(original, {"enhancement": facts}), original, "refused", refusal.kind, count)


def failed(original: Task, error: ResiliSimError, made_by: Mapping[str, Any], count: CallCount) -> Enhancement:
    """Return the outcome of an endpoint that did not answer: the original, and that nothing was said about it."""
    status = getattr(error, "status", None)
    detail = "no answer" if status is None else f"status {status}"
    facts = {**made_by, "outcome": "failed", "reason": "endpoint", "detail": detail}
    task = _with_metadata(original, {"enhancement": facts})
    return Enhancement(task, original, "failed", "endpoint", count, error)


@dataclass(slots=True)
class EnhancementTotals:
    """Counts over many tasks.

    Attributes:
        outcomes: Tasks by outcome.
        refusals: Refused tasks by reason.
        count: Calls and tokens of this run; tasks that an earlier run finished add nothing to it.
    """

    outcomes: Counter[str] = field(default_factory=Counter)
    refusals: Counter[str] = field(default_factory=Counter)
    count: CallCount = CallCount()

    def add(self, enhancement: Enhancement) -> None:
        """Count one task."""
        self.add_written(enhancement.task.metadata)
        self.count = self.count + enhancement.count

    def add_written(self, metadata: Mapping[str, Any]) -> None:
        """Count one task that a file holds, by its metadata."""
        facts = metadata.get("enhancement")
        outcome = facts.get("outcome") if isinstance(facts, Mapping) else None
        self.outcomes[str(outcome)] += 1
        if isinstance(facts, Mapping) and outcome == "refused":
            self.refusals[str(facts.get("reason"))] += 1

    def to_mapping(self) -> dict[str, Any]:
        """Return the counts as JSON values."""
        return {
            "tasks": self.outcomes.total(),
            **{outcome: self.outcomes[outcome] for outcome in ("enhanced", "refused", "failed")},
            "refusals": {kind: self.refusals[kind] for kind in REFUSALS if self.refusals[kind]},
            "calls": self.count.calls,
            "cached_calls": self.count.cached_calls,
            **dataclasses.asdict(self.count.usage),
        }


def _with_metadata(task: Task, more: Mapping[str, Any]) -> Task:
    return dataclasses.replace(task, metadata={**task.metadata, **more})


def _short(text: str) -> str:
    """Return a detail that every file can hold: valid Unicode, on one line, not long."""
    line = " ".join(text.split()).encode("utf-8", "replace").decode("utf-8")
    return line if len(line) <= MAX_DETAIL_LENGTH else line[: MAX_DETAIL_LENGTH - 3] + "..."
