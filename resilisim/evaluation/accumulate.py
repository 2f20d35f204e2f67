"""Sums over episodes, added one record at a time: memory grows with tasks and policies, never with episodes."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from resilisim.evaluation.agent_sums import AgentSums
from resilisim.evaluation.episode.record import EpisodeRecord, ceiling_of, lacks_ceiling, tries_again
from resilisim.statistics import NUM_FOLDS, FloatArray, FoldSums, fold_of


@dataclass(frozen=True, slots=True)
class TaskFacts:
    """What sums are grouped by: the traits of one task.

    Attributes:
        instance_id: The task's id.
        task_type: Its type.
        complexity: Its complexity.
        required_tools: Its required list.
        fold: Its fold in the cross-fitting of beta.
    """

    instance_id: str
    task_type: str
    complexity: str
    required_tools: tuple[str, ...]
    fold: int


class TaskVector:
    """One sum per task, in the order in which tasks were first met; tasks not reached yet count as 0."""

    __slots__ = ("_values",)

    def __init__(self) -> None:
        self._values = array("d")

    def add(self, task: int, amount: float) -> None:
        """Add to the sum of a task."""
        values = self._values
        if task >= len(values):
            values.extend([0.0] * (task + 1 - len(values)))
        values[task] += amount

    def get(self, task: int) -> float:
        """Return the sum of a task."""
        return self._values[task] if task < len(self._values) else 0.0

    def to_array(self, num_tasks: int) -> FloatArray:
        """Return the sums, shape (num_tasks,)."""
        result = np.zeros(num_tasks, dtype=np.float64)
        result[: len(self._values)] = self._values
        return result


@dataclass(slots=True)
class GroupSums:
    """Sums over the episodes of one policy under one prompt type.

    Attributes:
        policy: Name of the policy.
        prompt_type: Prompt type.
        privileged: Whether the policy saw the state, or asked an oracle, in any episode.
        tries_again: Whether it may try again in fresh episodes, so that neither ceiling nor luck are comparable.
        planner: Who made the plan in the prompt, or None.
        architecture: Of an LLM agent, its architecture; None for other policies.
        model: Of an LLM agent, the model that it asks; several are joined by " + ". None for other policies.
        count: Episodes per task.
        outcome: Full successes per task.
        partial: Partial successes per task.
        optimum: Sum of V*(start) per task.
        ceiling: Sum of the ceilings that fit what the agent was told (`records.ceiling_of`) per task.
        luck: Sum of luck per task.
        turns: Messages per task.
        losses: For each label the sum of regret per task.
        folds: (NUM_FOLDS,) sums that beta is fitted on.
        ended_by: Episodes by what ended them.
        optimum_gap: By how much any V* of its tasks may be too low.
        num_after_search: Episodes whose ceiling is `known_after_search`.
        num_without_ceiling: Episodes whose tools had to be found, and of which only V* is known.
    """

    policy: str
    prompt_type: str
    privileged: bool
    planner: str | None
    count: TaskVector = field(default_factory=TaskVector)
    outcome: TaskVector = field(default_factory=TaskVector)
    partial: TaskVector = field(default_factory=TaskVector)
    optimum: TaskVector = field(default_factory=TaskVector)
    ceiling: TaskVector = field(default_factory=TaskVector)
    luck: TaskVector = field(default_factory=TaskVector)
    turns: TaskVector = field(default_factory=TaskVector)
    losses: dict[str, TaskVector] = field(default_factory=dict)
    folds: list[FoldSums] = field(default_factory=lambda: [FoldSums() for _ in range(NUM_FOLDS)])
    ended_by: Counter[str] = field(default_factory=Counter)
    optimum_gap: float = 0.0
    num_after_search: int = 0
    num_without_ceiling: int = 0
    tries_again: bool = False
    architecture: str | None = None
    model: str | None = None

    def add(self, task: int, fold: int, record: EpisodeRecord) -> None:
        """Add one episode of a task."""
        outcome, optimum, luck = record["outcome"], record["optimum"], record["luck"]
        self.count.add(task, 1.0)
        self.outcome.add(task, outcome)
        self.partial.add(task, 1.0 if record["score"]["level"] == "partial_success" else 0.0)
        self.optimum.add(task, optimum)
        self.ceiling.add(task, ceiling_of(record))
        self.num_after_search += record.get("known_after_search") is not None
        self.num_without_ceiling += lacks_ceiling(record)
        self.luck.add(task, luck)
        self.turns.add(task, len(record["steps"]))
        for label, amount in record["losses"].items():
            vector = self.losses.get(label)
            if vector is None:
                vector = self.losses[label] = TaskVector()
            vector.add(task, amount)
        self.folds[fold] = self.folds[fold] + FoldSums.of(outcome, optimum, luck)
        self.ended_by[record["ended_by"]] += 1
        self.privileged = self.privileged or record["privileged"]
        self.optimum_gap = max(self.optimum_gap, record["optimum_gap"])
        self.tries_again = self.tries_again or tries_again(record)
        if "agent" in record:
            self._add_agent(record["agent"])

    def _add_agent(self, agent: Mapping[str, Any]) -> None:
        if self.architecture is None:
            self.architecture = agent["architecture"]
            self.model = " + ".join(sorted(set(agent["models"].values()))) or None


class RunSums:
    """All sums of a run, by policy and prompt type.

    Attributes:
        tasks: Traits of the tasks met so far; their place is their number in every `TaskVector`.
        agents: Sums of LLM agents, keyed in the same way.
        groups: The sums, keyed by (policy, prompt type), in the order in which they were first met.
        num_episodes: Episodes added.
        largest_identity_error: Largest deviation from 1 - outcome = (1 - optimum) + regret - luck seen so far.
    """

    def __init__(self) -> None:
        self.tasks: list[TaskFacts] = []
        self.groups: dict[tuple[str, str], GroupSums] = {}
        self.agents: dict[tuple[str, str], AgentSums] = {}
        self.num_episodes = 0
        self.largest_identity_error = 0.0
        self._task_numbers: dict[str, int] = {}

    @classmethod
    def of(cls, records: Iterable[EpisodeRecord]) -> RunSums:
        """Return the sums over records, which are read once."""
        sums = cls()
        for record in records:
            sums.add(record)
        return sums

    def add(self, record: EpisodeRecord) -> None:
        """Add one episode."""
        task = self.task_number(record)
        key = (record["policy"], record["prompt_type"])
        group = self.groups.get(key)
        if group is None:
            group = self.groups[key] = GroupSums(*key, record["privileged"], record["planner"])
        group.add(task, self.tasks[task].fold, record)
        if "agent" in record:
            self.agents.setdefault(key, AgentSums(*key)).add(record)
        self.num_episodes += 1
        error = abs((record["optimum"] - record["outcome"]) - (record["regret"] - record["luck"]))
        self.largest_identity_error = max(self.largest_identity_error, error)

    def tasks_where(self, **traits: object) -> NDArray[np.bool_]:
        """Return which tasks have all given traits (names of `TaskFacts` fields); shape (num_tasks,)."""
        chosen = [all(getattr(task, name) == value for name, value in traits.items()) for task in self.tasks]
        return np.array(chosen, dtype=np.bool_)

    def task_number(self, record: EpisodeRecord) -> int:
        """Return the number of a record's task in every `TaskVector`; one that was not met before gets the next."""
        instance_id = record["instance_id"]
        number = self._task_numbers.get(instance_id)
        if number is None:
            number = self._task_numbers[instance_id] = len(self.tasks)
            self.tasks.append(
                TaskFacts(
                    instance_id,
                    record["task_type"],
                    record["complexity"],
                    tuple(record["required_tools"]),
                    fold_of(instance_id),
                )
            )
        return number
