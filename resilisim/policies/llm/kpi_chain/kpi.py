"""The test of a task: every entity that it had to bring is there, of its type, and found with enough confidence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from resilisim.policies.llm.kpi_chain.entity_types import fits, is_missing, type_of
from resilisim.policies.llm.kpi_chain.types import EntitySpec


@dataclass(frozen=True, slots=True)
class Candidate:
    """A value that was found for an entity.

    Attributes:
        value: JSON value; None if the entity was not found.
        confidence: 0 to 1; None where none is asked for, as from the reasoner.
    """

    value: Any = field(hash=False)
    confidence: float | None = None


@dataclass(frozen=True, slots=True)
class KpiResult:
    """How a task did.

    Attributes:
        entities: What may be remembered: entity -> value.
        problems: What is wrong, a line for each entity; empty if the task succeeded.
    """

    entities: Mapping[str, Any] = field(hash=False)
    problems: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether the task succeeded."""
        return not self.problems


def evaluate_kpi(expected: Sequence[EntitySpec], candidates: Mapping[str, Candidate], theta: float) -> KpiResult:
    """Test what a task found.

    Args:
        expected: What it had to find.
        candidates: What it found, by entity; one that is left out was not found.
        theta: The lowest confidence that is enough.
    """
    entities: dict[str, Any] = {}
    problems: list[str] = []
    for entity in expected:
        candidate = candidates.get(entity.name, Candidate(None))
        problem = _problem(entity, candidate, theta)
        if problem is None:
            entities[entity.name] = candidate.value
        elif entity.required:
            problems.append(problem)
    return KpiResult(entities, tuple(problems))


def _problem(entity: EntitySpec, candidate: Candidate, theta: float) -> str | None:
    confidence = "" if candidate.confidence is None else f" (confidence {candidate.confidence:g})"
    if is_missing(candidate.value):
        return f"entity {entity.name!r} was not found{confidence}"
    if not fits(candidate.value, entity.type):
        kind = type_of(candidate.value)
        return f"entity {entity.name!r} is of type {kind}, expected {entity.type}{confidence}"
    if candidate.confidence is not None and candidate.confidence < theta:
        return f"entity {entity.name!r} was found with confidence {candidate.confidence:g}, below {theta:g}"
    return None
