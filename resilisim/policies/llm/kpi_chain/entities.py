"""What a task has to find: types, what extractor and reasoner found, and its test.

The threshold of the test trades precision for recall; `resilisim.evaluation.extraction_judge` shows how.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Final

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    StringConstraints,
    ValidationInfo,
    field_validator,
    model_serializer,
)

from resilisim.chat.types import BYTES_PER_TOKEN, estimated_tokens
from resilisim.policies.llm.kpi_chain.model_yaml import UnreadableReplyError, yaml_with
from resilisim.yaml_text import Plain, typed

STRING: Final = "string"
NUMBER: Final = "number"
BOOLEAN: Final = "boolean"
ARRAY: Final = "array"
DICT: Final = "dict"
ANY_TYPE: Final = "any"

FINAL_ANSWER: Final = "final_answer"
_CONFIDENCES: Final = ("confidence_score", "confidence_scores")

_ALIASES: Final[dict[str, tuple[str, ...]]] = {
    STRING: ("string", "str", "text", "char", "date", "datetime", "time", "url", "email", "enum"),
    NUMBER: ("number", "int", "integer", "float", "double", "decimal", "numeric", "num"),
    BOOLEAN: ("boolean", "bool"),
    ARRAY: ("array", "list", "sequence", "tuple", "set"),
    DICT: ("dict", "dictionary", "object", "map", "mapping", "json"),
    ANY_TYPE: ("any",),
}
_CANONICAL: Final = {alias: kind for kind, aliases in _ALIASES.items() for alias in aliases}
# "array of strings", "list[str]", "array<string>", "string (optional)": the first word says what it is.
_FIRST_WORD = re.compile(r"\s*([A-Za-z]+)\s*(?:[\[<(,|].*|of\b.*)?\Z", re.DOTALL)

# Texts as models write them in plans: null is an empty one.
Text = Annotated[str, BeforeValidator(lambda text: "" if text is None else text)]
Name = Annotated[Text, StringConstraints(pattern=r"^[\w-]{1,100}$")]


def canonical_type(name: str) -> str | None:
    """Return the canonical name of a type, or None if the word is unknown.

    The types of the elements of arrays and of the values of dicts are not kept.
    """
    match = _FIRST_WORD.match(name)
    return _CANONICAL.get(match[1].lower()) if match else None


def type_of(value: Any) -> str:
    """Return the canonical type of a JSON value, "null" for None."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return BOOLEAN
    if isinstance(value, int | float):
        return NUMBER
    if isinstance(value, str):
        return STRING
    return ARRAY if isinstance(value, list) else DICT


def fits(value: Any, kind: str) -> bool:
    """Return whether a value is of a canonical type."""
    return kind == ANY_TYPE or type_of(value) == kind


def is_missing(value: Any) -> bool:
    """Return whether a value says that there is none: null, or the word for it in quotes."""
    return value is None or (isinstance(value, str) and value.strip().lower() in ("null", "none"))


def wanted_value(tree: Any, kind: str | None) -> Any:
    """Return a value of YAML in the type that is wanted where notation alone hides it.

    A year without quotes reads as a number; where a string is wanted, it is the text that was written.
    """
    return str(tree) if kind == STRING and isinstance(tree, Plain) else typed(tree)


class EntitySpec(BaseModel):
    """Something that a task has to find, as plans write it, with its canonical type.

    Later tasks refer to its name, the description guides the extraction, and unless it is `required`, which the final
    answer always is, the task does not fail without it.
    """

    model_config = ConfigDict(frozen=True, str_strip_whitespace=True)

    name: Name
    type: Text
    description: Text = ""
    required: bool = True

    @field_validator("type")
    @classmethod
    def _known_type(cls, stated: str) -> str:
        kind = canonical_type(stated)
        if kind is None:
            raise ValueError(f"is {stated[:50]!r}; expected string, number, boolean, array or dict")
        return kind

    @field_validator("required")
    @classmethod
    def _answer_is_required(cls, required: bool, info: ValidationInfo) -> bool:
        return required or info.data.get("name") == FINAL_ANSWER

    @model_serializer(mode="wrap")
    def _as_plans_write_it(self, fields: Callable[[EntitySpec], dict[str, Any]]) -> dict[str, Any]:
        mapping = fields(self)
        if self.required:
            del mapping["required"]
        return mapping


@dataclass(frozen=True, slots=True)
class Finding:
    """A JSON value that was found for an entity, None if none was, and with which confidence, where it is asked for."""

    value: Any = field(hash=False)
    confidence: float | None = None


def evaluate_kpi(
    expected: Sequence[EntitySpec], findings: Mapping[str, Finding], theta: float
) -> tuple[dict[str, Any], list[str]]:
    """Test what a task found: every entity is there, of its type, and found with a confidence of at least theta.

    Returned are what may be remembered, entity -> value, and what is wrong, a line for each entity.
    """
    entities: dict[str, Any] = {}
    problems: list[str] = []
    for entity in expected:
        finding = findings.get(entity.name, Finding(None))
        problem = _problem(entity, finding, theta)
        if problem is None:
            entities[entity.name] = finding.value
        elif entity.required:
            problems.append(problem)
    return entities, problems


def _problem(entity: EntitySpec, finding: Finding, theta: float) -> str | None:
    confidence = "" if finding.confidence is None else f" (confidence {finding.confidence:g})"
    if is_missing(finding.value):
        return f"entity {entity.name!r} was not found{confidence}"
    if not fits(finding.value, entity.type):
        kind = type_of(finding.value)
        return f"entity {entity.name!r} is of type {kind}, expected {entity.type}{confidence}"
    if finding.confidence is not None and finding.confidence < theta:
        return f"entity {entity.name!r} was found with confidence {finding.confidence:g}, below {theta:g}"
    return None


def merge_findings(
    expected: Sequence[EntitySpec], pieces: Sequence[Mapping[str, Finding]], theta: float, unite_arrays: bool = False
) -> dict[str, Finding]:
    """Return one finding for each entity from those in the pieces of an output.

    The most confident one counts, the earliest of several. An entity is null only if it is null in every piece; its
    confidence is then the highest that was stated.

    With `unite_arrays`, those found with a confidence of at least theta are put together, each element once; the
    confidence of the union is the lowest among them.
    """
    merged = {}
    for entity in expected:
        findings = [piece[entity.name] for piece in pieces]
        with_value = [finding for finding in findings if finding.value is not None] or findings
        merged[entity.name] = max(with_value, key=_rank)  # the first of equals
        sure = [finding for finding in with_value if isinstance(finding.value, list) and _rank(finding) >= theta]
        if unite_arrays and entity.type == ARRAY and len(sure) > 1:
            merged[entity.name] = Finding(_union(finding.value for finding in sure), min(map(_rank, sure)))
    return merged


def _rank(finding: Finding) -> float:
    return 0.0 if finding.confidence is None else finding.confidence


def _union(arrays: Iterable[list[Any]]) -> list[Any]:
    united: list[Any] = []
    for item in (item for array in arrays for item in array):
        if not any(item == other and type(item) is type(other) for other in united):
            united.append(item)
    return united


def chunks_of(text: str, max_tokens: int) -> tuple[str, ...]:
    """Return a text in pieces of at most about `max_tokens`, by estimate; put together again they are the text.

    Cuts are made behind line ends where possible (those within JSON too), else behind sentences, else behind spaces,
    else anywhere between two characters. An empty text is one empty piece.
    """
    if estimated_tokens(text) <= max_tokens:
        return (text,)
    return tuple(_pieces(text, max_tokens * BYTES_PER_TOKEN))


def _pieces(text: str, max_bytes: int) -> Iterator[str]:
    start = 0
    while start < len(text):
        window = text[start : start + max_bytes].encode("utf-8", "replace")  # a character has at least one byte
        end = start + max(1, len(window[:max_bytes].decode("utf-8", "ignore")))
        if end < len(text):
            end = _boundary(text, start, end)
        yield text[start:end]
        start = end


def _boundary(text: str, start: int, end: int) -> int:
    """Return the last good place to cut in the second half of a piece, or its end."""
    middle = start + (end - start) // 2
    for mark in ("\n", "\\n", ". ", " "):
        place = text.rfind(mark, middle, end)
        if place >= 0:
            return place + len(mark)
    return end


def read_extraction(text: str, expected: Sequence[EntitySpec]) -> tuple[dict[str, Finding], str]:
    """Return what the extractor found in one piece of an output, by entity, and why it thinks so.

    Confidence is either one number for all entities or one for each. Entities that were not asked for are passed over.
    A reply without the form that was asked for raises `UnreadableReplyError`, here and below.
    """
    reply = yaml_with(text, "extracted_entities", (*_CONFIDENCES, "entities_summary"))
    values = reply["extracted_entities"] or {}
    if not isinstance(values, dict):
        raise UnreadableReplyError("'extracted_entities' has to be a mapping from entity name to value")
    stated = next((reply[name] for name in _CONFIDENCES if name in reply), None)
    findings = {entity.name: _finding(entity, values.get(entity.name), stated) for entity in expected}
    summary = reply.get("entities_summary")
    return findings, summary.strip() if isinstance(summary, str) else ""


def _finding(entity: EntitySpec, value: Any, stated: Any, *, needs_confidence: bool = True) -> Finding:
    is_rated = isinstance(value, dict) and entity.type != DICT and len(value) == 2 and "value" in value
    if is_rated and (value.keys() & {"confidence", "confidence_score"}):
        stated = value.get("confidence", value.get("confidence_score"))
        value = value["value"]
    is_null = is_missing(value)
    if isinstance(stated, dict):
        stated = stated.get(entity.name, 0.0 if is_null and needs_confidence else None)
    confidence = None if stated is None and not needs_confidence else _confidence(stated, entity.name)
    return Finding(None if is_null else wanted_value(value, entity.type), confidence)


def _confidence(stated: Any, name: str) -> float:
    try:
        confidence = float(stated)
    except (TypeError, ValueError):
        confidence = -1.0
    if not 0.0 <= confidence <= 1.0:
        raise UnreadableReplyError(
            f"'confidence_score' has to be a number from 0.0 to 1.0; for {name!r} it is {str(stated)[:50]!r}"
        )
    return confidence


@dataclass(frozen=True, slots=True)
class ReasonerReply:
    """What the reasoner brought: whether it says that it could, entity -> value, and how it got there."""

    completed: bool
    findings: Mapping[str, Finding] = field(hash=False)
    steps: tuple[str, ...] = ()


def read_reasoning(text: str, expected: Sequence[EntitySpec]) -> ReasonerReply:
    """Return what a reply of the reasoner says; what stands before the line `execution_result:` is passed over.

    It may say how sure it is in the same words as the extractor, in the result or beside it, or not at all.
    """
    reply = yaml_with(text, "execution_result", _CONFIDENCES)
    result = reply["execution_result"]
    if not isinstance(result, dict):
        raise UnreadableReplyError("'execution_result' has to be a mapping with status and outputs")
    status = str(result.get("status")).strip().lower()
    if status not in ("completed", "failed"):
        raise UnreadableReplyError(f"'status' has to be completed or failed, not {status[:50]!r}")
    outputs = result.get("outputs")
    if outputs is None and status == "failed":
        outputs = {}
    if not isinstance(outputs, dict):
        raise UnreadableReplyError("'outputs' has to be a mapping from output name to value")
    stated = next((place[name] for place in (result, reply) for name in _CONFIDENCES if name in place), None)
    details = reply.get("execution_details")
    steps = details.get("reasoning_steps") if isinstance(details, dict) else None
    return ReasonerReply(
        status == "completed",
        {
            entity.name: _finding(entity, outputs.get(entity.name), stated, needs_confidence=False)
            for entity in expected
        },
        tuple(map(str, steps)) if isinstance(steps, list) else (),
    )
