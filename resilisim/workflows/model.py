"""Workflows: what a planner says should be done, step by step, with its reasons, and what a reader takes from it."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Self

from resilisim.errors import InvalidInputError, unknown_name

# Who put a tool into a plan: semantic matching, which made the task's required list, or the planner itself.
CHOSEN_BY = ("semantics", "policy")

# Far above the turns of any episode; every reader of plans takes numbers of so many digits.
HIGHEST_LIMIT = 999_999_999

# Values in messages, the long ones cut: workflows are also read from texts of strangers.
_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 100


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a workflow: a tool to run until it has succeeded, or until one of the step's limits is reached.

    To follow a plan to the letter means: before each message, a step is left for the next one if its tool has succeeded
    in this step, if `max_tries` calls of this step have not succeeded, or if the message about to be written is number
    `skip_from` or a later one. Messages are counted as the agent counts them: its first one is number 1, whatever it
    holds, and the closing message is number `max_turns` + 1. A step that is left is not taken up again. Limits are
    meant for steps whose tool the task does not ask for.

    Attributes:
        tool: Name of the tool.
        parameters: What to pass to it; empty where the task says nothing about them.
        reason: One line on why the step stands here.
        requires: The tool's direct dependencies, whether or not they are steps themselves.
        alternatives: Similar tools, the most similar first.
        expected_outcome: One line on what the step gives when it succeeds.
        confidence: Chance that one execution succeeds when every earlier step has, 0 to 1; in a trained policy's plan
            the probability that it gave to the call.
        semantic_match: Highest cosine similarity of the tool's text and a clause of the task's description, -1 to 1;
            None if it was not computed.
        chosen_by: One of `CHOSEN_BY`: "semantics" for a tool of the task's required list, "policy" for one that the
            planner added because it raises the chance of success.
        max_tries: Calls of this step that may fail (refused ones count) before the next step is taken, at least 1; None
            for no such limit.
        skip_from: Number of the first message, at least 1, that is not spent on this step any more; None for no such
            limit.
    """

    tool: str
    parameters: Mapping[str, Any] = field(default_factory=dict)
    reason: str = ""
    requires: tuple[str, ...] = ()
    alternatives: tuple[str, ...] = ()
    expected_outcome: str = ""
    confidence: float = 1.0
    semantic_match: float | None = None
    chosen_by: str = "semantics"
    max_tries: int | None = None
    skip_from: int | None = None

    @property
    def is_limited(self) -> bool:
        """Whether the step may be left without success."""
        return self.max_tries is not None or self.skip_from is not None

    def to_mapping(self) -> dict[str, Any]:
        """Return the step as plain JSON values."""
        return {
            "tool": self.tool,
            "parameters": dict(self.parameters),
            "reason": self.reason,
            "requires": list(self.requires),
            "alternatives": list(self.alternatives),
            "expected_outcome": self.expected_outcome,
            "confidence": self.confidence,
            "semantic_match": self.semantic_match,
            "chosen_by": self.chosen_by,
            "max_tries": self.max_tries,
            "skip_from": self.skip_from,
        }

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any]) -> Self:
        """Build a step from what `to_mapping` gives.

        Raises:
            InvalidInputError: A field is unknown, missing, or of the wrong kind.
        """
        _check_fields(mapping, {entry.name for entry in fields(cls)}, {"tool"}, "a workflow step")
        where = f"step {_SHORT.repr(mapping['tool'])}"
        return cls(
            tool=_text(mapping, "tool", where),
            parameters=_object(mapping, "parameters", where),
            reason=_text(mapping, "reason", where),
            requires=_names(mapping, "requires", where),
            alternatives=_names(mapping, "alternatives", where),
            expected_outcome=_text(mapping, "expected_outcome", where),
            confidence=_number(mapping, "confidence", where, 0.0, 1.0, default=1.0),
            semantic_match=_similarity(mapping, where),
            chosen_by=_choice(mapping, where),
            max_tries=_limit(mapping, "max_tries", where),
            skip_from=_limit(mapping, "skip_from", where),
        )


@dataclass(frozen=True, slots=True)
class Workflow:
    """A plan for one task.

    Attributes:
        instance_id: The task that it was made for.
        steps: The steps, in the order in which to do them.
        planner: Name of the planner that made it.
        predicted_success_probability: The chance of full success of following the plan to the letter, as computed by
            the planner; under "exact-path" V*.
    """

    instance_id: str
    steps: tuple[Step, ...]
    planner: str
    predicted_success_probability: float

    @property
    def tools(self) -> tuple[str, ...]:
        """The tools of the steps, in order."""
        return tuple(step.tool for step in self.steps)

    def to_mapping(self) -> dict[str, Any]:
        """Return the workflow as plain JSON values."""
        return {
            "instance_id": self.instance_id,
            "steps": [step.to_mapping() for step in self.steps],
            "planner": self.planner,
            "predicted_success_probability": self.predicted_success_probability,
        }

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any]) -> Self:
        """Build a workflow from what `to_mapping` gives.

        Raises:
            InvalidInputError: A field is unknown, missing, or of the wrong kind.
        """
        names = {entry.name for entry in fields(cls)}
        _check_fields(mapping, names, names, "a workflow")
        where = f"workflow of {_SHORT.repr(mapping['instance_id'])}"
        steps = mapping["steps"]
        if not isinstance(steps, (list, tuple)) or not all(isinstance(step, Mapping) for step in steps):
            raise InvalidInputError(f"field 'steps' of {where}: expected a list of objects")
        return cls(
            instance_id=_text(mapping, "instance_id", where),
            steps=tuple(Step.from_mapping(step) for step in steps),
            planner=_text(mapping, "planner", where),
            predicted_success_probability=_number(mapping, "predicted_success_probability", where, 0.0, 1.0),
        )


@dataclass(frozen=True, slots=True)
class PlannedStep:
    """One step as a reader finds it in a prompt.

    Attributes:
        tool: The tool to run.
        requires: The tools that the prompt says it depends on; None if it says nothing.
        parameters: Parameters to pass, as the prompt gives them; None if it gives none that can be read.
        problem: Why the parameters that it gives cannot be read, with their words; None if they can, or there are none.
        max_tries: Failed tries after which to go on (`Step.max_tries`); None if the prompt names no such limit.
        skip_from: Message from which to leave the step (`Step.skip_from`); None if the prompt names no such limit.
    """

    tool: str
    requires: tuple[str, ...] | None = None
    parameters: Mapping[str, Any] | None = None
    problem: str | None = None
    max_tries: int | None = None
    skip_from: int | None = None

    def is_left(self, failed_tries: int, message: int) -> bool:
        """Return whether its limits say to go on to the next step.

        Args:
            failed_tries: Calls of this step so far; none of them succeeded.
            message: Number of the message about to be written, from 1.
        """
        return (self.max_tries is not None and failed_tries >= self.max_tries) or (
            self.skip_from is not None and message >= self.skip_from
        )


def _check_fields(mapping: Mapping[str, Any], known: set[str], needed: set[str], what: str) -> None:
    for name in mapping:
        if name not in known:
            raise unknown_name("field", name, sorted(known), what)
    for name in sorted(needed):
        if name not in mapping:
            raise InvalidInputError(f"{what} has no field {name!r}: expected {', '.join(sorted(needed))}")


def _text(mapping: Mapping[str, Any], name: str, where: str) -> str:
    value = mapping.get(name, "")
    if not isinstance(value, str):
        raise InvalidInputError(f"field {name!r} of {where} is {_SHORT.repr(value)}: expected a text")
    return value


def _object(mapping: Mapping[str, Any], name: str, where: str) -> dict[str, Any]:
    value = mapping.get(name, {})
    if not isinstance(value, Mapping):
        raise InvalidInputError(f"field {name!r} of {where} is {_SHORT.repr(value)}: expected an object")
    return dict(value)


def _names(mapping: Mapping[str, Any], name: str, where: str) -> tuple[str, ...]:
    value = mapping.get(name, ())
    if not isinstance(value, (list, tuple)) or not all(isinstance(entry, str) for entry in value):
        raise InvalidInputError(f"field {name!r} of {where} is {_SHORT.repr(value)}: expected a list of tool names")
    return tuple(value)


def _number(
    mapping: Mapping[str, Any], name: str, where: str, lowest: float, highest: float, default: float = 0.0
) -> float:
    value = mapping.get(name, default)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not lowest <= value <= highest:
        raise InvalidInputError(
            f"field {name!r} of {where} is {_SHORT.repr(value)}: expected a number from {lowest:g} to {highest:g}"
        )
    return float(value)


def _similarity(mapping: Mapping[str, Any], where: str) -> float | None:
    if mapping.get("semantic_match") is None:
        return None
    return _number(mapping, "semantic_match", where, -1.0, 1.0)


def _limit(mapping: Mapping[str, Any], name: str, where: str) -> int | None:
    value = mapping.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= HIGHEST_LIMIT:
        raise InvalidInputError(
            f"field {name!r} of {where} is {_SHORT.repr(value)}: expected an integer from 1 to {HIGHEST_LIMIT:,}, or "
            "null for no limit"
        )
    return value


def _choice(mapping: Mapping[str, Any], where: str) -> str:
    value = mapping.get("chosen_by", CHOSEN_BY[0])
    if value not in CHOSEN_BY:
        raise unknown_name("value", str(value)[:100], CHOSEN_BY, f"field 'chosen_by' of {where}")
    return str(value)


def critical_tools(steps: Sequence[Step]) -> tuple[str, ...]:
    """Return the tools of a plan that another step depends on directly, in plan order.

    Where a flaw put that step first does not matter: a plan claims of itself that it is sound.
    """
    required = {name for step in steps for name in step.requires}
    return tuple(dict.fromkeys(step.tool for step in steps if step.tool in required))


def mean_semantic_match(steps: Sequence[Step]) -> float | None:
    """Return the mean semantic match of the steps that have one; None if none has."""
    matches = [step.semantic_match for step in steps if step.semantic_match is not None]
    return sum(matches) / len(matches) if matches else None


def share_chosen_by(steps: Sequence[Step], chooser: str) -> float | None:
    """Return the share of steps whose tool one chooser put into the plan; None for a plan without steps."""
    return sum(step.chosen_by == chooser for step in steps) / len(steps) if steps else None
