"""What the extractor writes, and how the findings in the pieces of one output become one finding for each entity."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeGuard

from resilisim.policies.llm.kpi_chain.entity_types import ARRAY, DICT, as_written, is_missing
from resilisim.policies.llm.kpi_chain.kpi import Candidate
from resilisim.policies.llm.kpi_chain.types import EntitySpec
from resilisim.policies.llm.kpi_chain.yaml_text import UnreadableReplyError, yaml_with

_CONFIDENCE_NAMES = ("confidence_score", "confidence_scores")


@dataclass(frozen=True, slots=True)
class ChunkExtraction:
    """What the extractor found in one piece of an output.

    Attributes:
        candidates: Entity -> value and confidence, every entity that was asked for.
        summary: Why the extractor thinks so.
    """

    candidates: Mapping[str, Candidate] = field(hash=False)
    summary: str = ""


def read_extraction(text: str, expected: Sequence[EntitySpec]) -> ChunkExtraction:
    """Return what a reply of the extractor says.

    Confidence is either one number for all entities or one for each.

    Args:
        text: The visible part of the reply.
        expected: The entities that were asked for; others in the reply are passed over.

    Raises:
        UnreadableReplyError: It does not have the form that was asked for.
    """
    beside = (*_CONFIDENCE_NAMES, "entities_summary")
    typed, written = yaml_with(text, "extracted_entities", beside)
    values = typed["extracted_entities"] or {}
    texts = written["extracted_entities"] or {}
    if not isinstance(values, dict):
        raise UnreadableReplyError("'extracted_entities' has to be a mapping from entity name to value")
    confidences = next((typed[name] for name in _CONFIDENCE_NAMES if name in typed), None)
    candidates = {}
    for entity in expected:
        value = values.get(entity.name)
        text_of_value = texts.get(entity.name) if isinstance(texts, dict) else None
        confidence = confidences
        if _is_rated(value, entity) and isinstance(text_of_value, dict):
            confidence = value.get("confidence", value.get("confidence_score"))
            value, text_of_value = value["value"], text_of_value["value"]
        candidates[entity.name] = _candidate(entity, value, text_of_value, confidence)
    summary = typed.get("entities_summary")
    return ChunkExtraction(candidates, summary.strip() if isinstance(summary, str) else "")


def _is_rated(value: Any, entity: EntitySpec) -> TypeGuard[dict[str, Any]]:
    """Return whether a value is written as `{value: ..., confidence: ...}`."""
    if not isinstance(value, dict) or "value" not in value or entity.type == DICT:
        return False
    return set(value) in ({"value", "confidence"}, {"value", "confidence_score"})


def _candidate(entity: EntitySpec, value: Any, text: Any, stated: Any) -> Candidate:
    is_null = is_missing(value)
    if isinstance(stated, dict):
        stated = stated.get(entity.name)
        if stated is None and is_null:
            stated = 0.0
    confidence = _confidence(stated, entity.name)
    return Candidate(None, confidence) if is_null else Candidate(as_written(value, text, entity.type), confidence)


def _confidence(stated: Any, name: str) -> float:
    try:
        confidence = -1.0 if isinstance(stated, bool) else float(stated)
    except (TypeError, ValueError):
        confidence = -1.0
    if not 0.0 <= confidence <= 1.0:
        raise UnreadableReplyError(
            f"'confidence_score' has to be a number from 0.0 to 1.0; for {name!r} it is {str(stated)[:50]!r}"
        )
    return confidence


def merge_extractions(
    expected: Sequence[EntitySpec], pieces: Sequence[ChunkExtraction], theta: float, unite_arrays: bool = False
) -> dict[str, Candidate]:
    """Return one candidate for each entity.

    The most confident one counts, the earliest of several. An entity is null only if it is null in every piece; its
    confidence is then the highest that was stated.

    Args:
        expected: The entities.
        pieces: What was found in each piece, in order; at least one.
        theta: The lowest confidence that is enough.
        unite_arrays: Whether the arrays that were found with enough confidence are put together, each element once;
            the confidence of the union is the lowest among them.
    """
    merged = {}
    for entity in expected:
        candidates = [piece.candidates[entity.name] for piece in pieces]
        found = [candidate for candidate in candidates if candidate.value is not None] or candidates
        merged[entity.name] = max(found, key=_rank)  # the first of equals
        sure = [item for item in found if isinstance(item.value, list) and _rank(item) >= theta]
        if unite_arrays and entity.type == ARRAY and len(sure) > 1:
            merged[entity.name] = Candidate(_union([item.value for item in sure]), min(map(_rank, sure)))
    return merged


def _rank(candidate: Candidate) -> float:
    return 0.0 if candidate.confidence is None else candidate.confidence


def _union(arrays: Sequence[list[Any]]) -> list[Any]:
    united: list[Any] = []
    for item in (item for array in arrays for item in array):
        if not any(item == other and type(item) is type(other) for other in united):
            united.append(item)
    return united


def joined_summaries(pieces: Sequence[ChunkExtraction]) -> str:
    """Return what the extractor said about each piece."""
    if len(pieces) == 1:
        return pieces[0].summary
    return "\n".join(f"piece {number}: {piece.summary}" for number, piece in enumerate(pieces, 1) if piece.summary)
