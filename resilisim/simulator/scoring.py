"""The score of an episode, from its record alone (SPEC section 4), so that saved episodes can be re-scored."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal

from resilisim.simulator.goal import Goal
from resilisim.simulator.rulebook.rules import RESULTS, UNANSWERED, UNANSWERED_LATE
from resilisim.tasks.task import minimum_for_partial
from resilisim.worlds.base import Grade

Level = Literal["full_success", "partial_success", "failure"]

# An agent that stops by itself has nothing more to say: its stop counts as its completion signal (docs/decisions).
_COMPLETION_ENDS = frozenset({"completion", "stopped"})
_HOPELESS_ENDS = frozenset({"consecutive_failures", "loop", "agent_error"})
LOST_ANSWERS = (RESULTS[UNANSWERED], RESULTS[UNANSWERED_LATE])  # results of calls that have run all the same
PARTIAL_GRADE = 0.5  # of a world, from which on an episode counts as partial success


@dataclass(frozen=True, slots=True)
class Score:
    """How good an episode was, and which criteria held.

    Attributes:
        level: full_success, partial_success or failure.
        coverage: Share of the required tools that succeeded, 0 to 1; where effects count those that have run.
        minimum: Whether enough of them succeeded for a partial success.
        order: Whether their first successes came in the required order (also if there were none, or any order will do).
        output: Whether a required output tool succeeded (also if the list has none).
        completion: Whether completion was signalled.
        ended_by: completion, turns, time, consecutive_failures, loop, stopped or agent_error.
        ran_once: Whether no tool has run twice that may run only once.
    """

    level: Level
    coverage: float
    minimum: bool
    order: bool
    output: bool
    completion: bool
    ended_by: str
    ran_once: bool = True

    def to_mapping(self) -> dict[str, Any]:
        """Return the score as it stands in `info["score"]` and in records, which say it if a tool ran twice."""
        mapping = {name: getattr(self, name) for name in self.__slots__}
        if self.ran_once:
            del mapping["ran_once"]
        return mapping


def score_episode(
    goal: Goal | Sequence[str],
    required_outputs: Collection[str],
    task_type: str,
    executions: Iterable[tuple[str, bool, str | None]],
    ended_by: str,
    law: Mapping[str, Any] = MappingProxyType({}),
    ran_once: bool = True,
) -> Score:
    """Score an ended episode: the one place where that is done, while it is played and from its record.

    Args:
        goal: The goal, or the required tools in the required order.
        required_outputs: Those among them that are output tools (writer, poster, notifier, exporter).
        task_type: Type of the task; it sets the minimum for a partial success.
        executions: Every execution in time order: tool name, whether it reported success, and the event's `result`.
        ended_by: What ended the episode.
        law: The law, as records hold it.
        ran_once: Whether no tool has run twice that the goal lets run only once.
    """
    goal = goal if isinstance(goal, Goal) else Goal(tuple(goal))
    required_tools = goal.required
    if goal.counts == "effects":  # what ran has done its work, whatever it said of it, and whether or not it was heard
        executions = [(tool, success or result in LOST_ANSWERS, None) for tool, success, result in executions]
    counted = counted_executions(executions, required_tools, law)
    first_successes = list(dict.fromkeys(tool for tool, success in counted if success))
    succeeded = [tool for tool in first_successes if tool in required_tools]
    places = [required_tools.index(tool) for tool in succeeded]
    order = not goal.ordered or places == sorted(places)
    output_succeeded = any(tool in required_outputs for tool in succeeded)
    minimum = len(succeeded) >= minimum_for_partial(task_type, len(required_tools))
    completion = ended_by in _COMPLETION_ENDS
    output = output_succeeded or not required_outputs
    level: Level = "failure"
    if len(succeeded) == len(required_tools) and order and output and completion and ran_once:
        level = "full_success"
    elif ended_by not in _HOPELESS_ENDS and minimum and (output_succeeded or (order and len(succeeded) >= 2)):
        level = "partial_success"
    return Score(level, len(succeeded) / len(required_tools), minimum, order, output, completion, ended_by, ran_once)


def counted_executions(
    executions: Iterable[tuple[str, bool, str | None]], required_tools: Sequence[str], law: Mapping[str, Any]
) -> list[tuple[str, bool]]:
    """Return executions as they count under a law: tool name, and whether it succeeded.

    A tool counts as the required one that it stands in for, and only if at the end one of those that do has a sound
    output; each call of a tool replaces its output by a new one.

    Args:
        executions: Every execution in time order: tool name, whether it reported success, and the event's `result`.
        required_tools: Required tools in the required order.
        law: The law, as records hold it.
    """
    executions = list(executions)
    equivalents = law.get("equivalents", {})
    if not equivalents and "corrupt" not in {result for _, _, result in executions}:
        return [(tool, success) for tool, success, _ in executions]
    stands_for = {other: tool for tool in reversed(required_tools) for other in equivalents.get(tool, ())}
    stands_for |= {tool: tool for tool in required_tools}
    listed = [(stands_for.get(tool, tool), tool, success, result) for tool, success, result in executions]
    outputs = {(name, tool): result for name, tool, success, result in listed if success}
    sound = {name for (name, _), result in outputs.items() if result != "corrupt"}
    return [(name, success and name in sound) for name, _, success, _ in listed]


def graded_score(score: Score, grade: Grade) -> dict[str, Any]:
    """Return a score as it stands in records, with the level by a world's grade: what was right, not which names ran.

    Full success needs completion, too; partial success is a grade of at least one half.
    """
    full = grade.correct and score.completion
    level: Level = "full_success" if full else "partial_success" if grade.score >= PARTIAL_GRADE else "failure"
    return {**score.to_mapping(), "level": level, "grade": grade.to_mapping()}


def rescore(record: Mapping[str, Any], ran_once: bool = True) -> Score:
    """Score a saved episode again from its record; `ran_once` as in `score_episode`."""
    executions = [
        (step["tool"], step["success"], step.get("result"))
        for step in record["steps"]
        if step["kind"] == "execute" and step["success"] is not None
    ]
    return score_episode(
        Goal.recorded(record["required_tools"], record.get("goal", {})),
        record["required_outputs"],
        record["task_type"],
        executions,
        record["ended_by"],
        record.get("law", {}),
        ran_once,
    )
