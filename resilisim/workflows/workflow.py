"""Workflows: what a planner says should be done, step by step, with its reasons, and what a reader takes from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal, Self, get_args

from annotated_types import Interval
from pydantic import Strict

from resilisim.inputs import validated

# Who put a tool into a plan: semantic matching, which made the task's required list, or the planner itself.
Chooser = Literal["semantics", "policy"]
CHOSEN_BY: tuple[Chooser, ...] = get_args(Chooser)

# Far above the turns of any episode; every reader of plans takes numbers of so many digits.
HIGHEST_LIMIT = 999_999_999

Text = Annotated[str, Strict()]
Probability = Annotated[float, Strict(), Interval(ge=0.0, le=1.0)]
Similarity = Annotated[float, Strict(), Interval(ge=-1.0, le=1.0)]
Limit = Annotated[int, Strict(), Interval(ge=1, le=HIGHEST_LIMIT)]

_NO_OTHER_FIELDS: Mapping[str, str] = {"extra": "forbid"}


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

    Example:
        >>> from resilisim.workflows import Step
        >>> Step("data_processing_parser", {"source": "orders.csv"}, max_tries=2).is_limited
        True
    """

    tool: Text
    parameters: Mapping[str, Any] = field(default_factory=dict)
    reason: Text = ""
    requires: tuple[Text, ...] = ()
    alternatives: tuple[Text, ...] = ()
    expected_outcome: Text = ""
    confidence: Probability = 1.0
    semantic_match: Similarity | None = None
    chosen_by: Chooser = "semantics"
    max_tries: Limit | None = None
    skip_from: Limit | None = None

    __pydantic_config__: ClassVar[Mapping[str, str]] = _NO_OTHER_FIELDS

    @property
    def is_limited(self) -> bool:
        """Whether the step may be left without success."""
        return self.max_tries is not None or self.skip_from is not None

    def to_mapping(self) -> dict[str, Any]:
        """Return the step as plain JSON values."""
        lists = {"requires": list(self.requires), "alternatives": list(self.alternatives)}
        return {name: getattr(self, name) for name in self.__slots__} | {"parameters": dict(self.parameters)} | lists

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any]) -> Self:
        """Build a step from what `to_mapping` gives.

        Raises:
            InvalidInputError: A field is unknown, missing, or of the wrong kind.
        """
        return validated(cls, mapping, "workflow step", strict=False)


@dataclass(frozen=True, slots=True)
class Workflow:
    """A plan for one task.

    Attributes:
        instance_id: The task that it was made for.
        steps: The steps, in the order in which to do them.
        planner: Name of the planner that made it.
        predicted_success_probability: The chance of full success of following the plan to the letter, as computed by
            the planner; under "exact-path" V*.

    Example:
        >>> from resilisim.workflows import Step, Workflow
        >>> plan = Workflow("task_1", (Step("network_fetcher"), Step("data_processing_parser")), "mine", 0.9)
        >>> plan.tools
        ('network_fetcher', 'data_processing_parser')
        >>> Workflow.from_mapping(plan.to_mapping()) == plan
        True
    """

    instance_id: Text
    steps: tuple[Step, ...]
    planner: Text
    predicted_success_probability: Probability

    __pydantic_config__: ClassVar[Mapping[str, str]] = _NO_OTHER_FIELDS

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
        return validated(cls, mapping, "workflow", strict=False)


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

    Example:
        >>> from resilisim.workflows import PlannedStep
        >>> PlannedStep("network_fetcher", max_tries=2).is_left(failed_tries=2, message=3)
        True
    """

    tool: str
    requires: tuple[str, ...] | None = None
    parameters: Mapping[str, Any] | None = None
    problem: str | None = None
    max_tries: int | None = None
    skip_from: int | None = None

    def is_left(self, failed_tries: int, message: int) -> bool:
        """Return whether its limits say to go on, after failed tries and before a message, numbered from 1."""
        return (self.max_tries is not None and failed_tries >= self.max_tries) or (
            self.skip_from is not None and message >= self.skip_from
        )


def critical_tools(steps: Sequence[Step]) -> tuple[str, ...]:
    """Return the tools of a plan that any other step depends on directly, in plan order: plans claim to be sound."""
    required = {name for step in steps for name in step.requires}
    return tuple(dict.fromkeys(step.tool for step in steps if step.tool in required))


def mean_semantic_match(steps: Sequence[Step]) -> float | None:
    """Return the mean semantic match of the steps that have one; None if none has."""
    matches = [step.semantic_match for step in steps if step.semantic_match is not None]
    return sum(matches) / len(matches) if matches else None


def share_chosen_by(steps: Sequence[Step], chooser: str) -> float | None:
    """Return the share of steps whose tool one chooser put into the plan; None for a plan without steps."""
    return sum(step.chosen_by == chooser for step in steps) / len(steps) if steps else None
