"""What the reasoner writes: justifications, then the result, which is what is read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from resilisim.policies.llm.kpi_chain.entity_types import as_written
from resilisim.policies.llm.kpi_chain.kpi import Candidate
from resilisim.policies.llm.kpi_chain.types import EntitySpec
from resilisim.policies.llm.kpi_chain.yaml_text import UnreadableReplyError, yaml_with

_STATUSES = ("completed", "failed")


@dataclass(frozen=True, slots=True)
class ReasoningResult:
    """What the reasoner brought.

    Attributes:
        completed: Whether it says that it could.
        candidates: Entity -> value, without confidence.
        steps: How it got there.
    """

    completed: bool
    candidates: Mapping[str, Candidate] = field(hash=False)
    steps: tuple[str, ...] = ()


def read_reasoning(text: str, expected: Sequence[EntitySpec]) -> ReasoningResult:
    """Return what a reply of the reasoner says; what stands before the line `execution_result:` is passed over.

    Args:
        text: The visible part of the reply.
        expected: The entities that were asked for; others in the reply are passed over.

    Raises:
        UnreadableReplyError: It does not have the form that was asked for.
    """
    typed, written = yaml_with(text, "execution_result")
    result, raw = typed["execution_result"], written["execution_result"]
    if not isinstance(result, dict):
        raise UnreadableReplyError("'execution_result' has to be a mapping with status and outputs")
    status = result.get("status")
    status = status.strip().lower() if isinstance(status, str) else status
    if status not in _STATUSES:
        raise UnreadableReplyError(f"'status' has to be completed or failed, not {str(status)[:50]!r}")
    outputs = result.get("outputs")
    texts = raw.get("outputs")
    if outputs is None and status == "failed":
        outputs, texts = {}, {}
    if not isinstance(outputs, dict) or not isinstance(texts, dict):
        raise UnreadableReplyError("'outputs' has to be a mapping from output name to value")
    candidates = {
        entity.name: Candidate(as_written(outputs.get(entity.name), texts.get(entity.name), entity.type))
        for entity in expected
    }
    return ReasoningResult(status == "completed", candidates, _steps(typed.get("execution_details")))


def _steps(details: Any) -> tuple[str, ...]:
    steps = details.get("reasoning_steps") if isinstance(details, dict) else None
    return tuple(str(step) for step in steps) if isinstance(steps, list) else ()
