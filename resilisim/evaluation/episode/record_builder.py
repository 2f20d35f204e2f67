"""Builds the records of episodes: a step of each message as it is judged, and the whole at the end.

Nothing else puts steps and records together: judged sessions, functions under `resilisim.inject` and re-judging all
build theirs here, whatever drives the episode.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypedDict, Unpack, cast

from resilisim.errors import CheckFailed, one_line
from resilisim.evaluation.episode.attribution import IDENTITY_TOLERANCE, identity_error
from resilisim.evaluation.episode.record import (
    RECORD_SCHEMA,
    EpisodeFacts,
    EpisodeRecord,
    StepRecord,
    Totals,
    Worth,
)
from resilisim.simulator import Problem

PROBLEM_LENGTH = 300  # characters of a problem in a record


class Happened(TypedDict, total=False):
    """What a message came to, as its step holds it (`StepRecord`); what is left out did not happen."""

    attempt: int | None
    success: bool | None
    error: str | None
    success_probability: float | None
    real: bool
    forced: bool
    result: str
    seconds: float


class RecordBuilder:
    """Builds the record of one episode.

    Attributes:
        steps: The messages so far.
    """

    def __init__(self) -> None:
        self.steps: list[StepRecord] = []

    def add(self, text: str, kind: str, tool: str | None, worth: Worth, **happened: Unpack[Happened]) -> StepRecord:
        """Add the step of a message, and return it: its text and kind, what it asked for, its worth, what it did."""
        fields = {
            "turn": len(self.steps) + 1,
            "message": text,
            "kind": kind,
            "tool": tool,
            "attempt": happened.get("attempt"),
            "success": happened.get("success"),
            "error": happened.get("error"),
            "success_probability": happened.get("success_probability"),
            **{name: True for name in ("real", "forced") if happened.get(name)},
            **{name: value for name, value in happened.items() if name in ("result", "seconds")},
            **worth,
        }
        step = cast("StepRecord", fields)
        self.steps.append(step)
        return step

    def judged(self, score: Mapping[str, Any], required_outputs: Iterable[str], totals: Totals) -> dict[str, Any]:
        """Return the fields of the record that follow from what happened."""
        return {
            "required_outputs": sorted(required_outputs),
            "steps": self.steps,
            "ended_by": score["ended_by"],
            "score": score,
            "outcome": int(score["level"] == "full_success"),
            **totals,
        }

    def record(
        self,
        facts: EpisodeFacts,
        problem: Problem,
        score: Mapping[str, Any],
        required_outputs: Iterable[str],
        totals: Totals,
    ) -> EpisodeRecord:
        """Return the record of the episode, which has ended.

        Args:
            facts: What was given.
            problem: The task under its law and end rules.
            score: The score.
            required_outputs: Output tools among the required ones.
            totals: What the steps come to (`totals_of`).

        Raises:
            CheckFailed: 1 - outcome = (1 - optimum) + regret - luck does not hold: a bug.
        """
        judged = self.judged(score, required_outputs, totals)
        law = {"law": problem.law.to_mapping(), "rules": problem.rules.to_mapping()}
        fields: dict[str, Any] = {"schema": RECORD_SCHEMA, **facts, **judged, **law}
        record = cast("EpisodeRecord", {name: fields[name] for name in _ORDER if name in fields})
        error = identity_error(record)
        if error > IDENTITY_TOLERANCE:
            raise CheckFailed(
                f"the attribution of {record['instance_id']}, seed {record['seed']}, misses its identity by {error:.3g}"
            )
        return record


# Fields in the order in which records are written; what an episode lacks is left out.
_ORDER = (
    *("schema", "index", "policy", "privileged", "prompt_type", "planner", "flaw", "protocol"),
    *("instance_id", "task_type", "complexity", "required_tools", "required_outputs", "seed"),
    *("steps", "ended_by", "score", "outcome"),
    *("optimum", "optimum_gap", "optimum_after_searches", "searches_needed", "no_search_ceiling"),
    *("regret", "luck", "losses", "no_ceiling", "optimum_knowledge"),
    *("law", "rules", "salt", "search", "errors", "goal", "world", "answer", "manifest", "texts", "agent"),
)


def first_problem(problems: Iterable[str]) -> str | None:
    """Return why a message was not obeyed, as its agent was told; None if there was nothing to say."""
    return one_line(next(iter(problems), ""), PROBLEM_LENGTH) or None
