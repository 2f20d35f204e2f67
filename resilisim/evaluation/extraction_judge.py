"""Whether what KPI-Chain's components found is right, by what a world knows, and what another threshold would do.

Nothing is played again: records hold every candidate with its confidence, whether its task passed or not.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, Literal, TypeAlias

from resilisim.errors import check_share
from resilisim.evaluation.episode.record import EpisodeRecord
from resilisim.policies.agent_record import AgentRecord
from resilisim.policies.llm.kpi_chain.entities import FINAL_ANSWER, EntitySpec, Finding, evaluate_kpi, fits, is_missing
from resilisim.statistics import Estimate
from resilisim.statistics.estimates import clustered_proportion
from resilisim.tasks import Task
from resilisim.worlds import World, load_world
from resilisim.worlds.answers import normalized
from resilisim.worlds.base import reference_calls

JUDGED_AGENT: Final = "kpi-chain"
DEFAULT_THETAS: Final = (0.5, 0.6, 0.7, 0.8, 0.9)
_WITHIN_A_TASK: Final = ("malformed_reply", "cut_reply")  # events that come while a task's output is read


@dataclass(frozen=True, slots=True)
class JudgedEntity:
    """What a component brought for one entity of a task, and whether it is right.

    Attributes:
        instance_id: The question.
        component: "extractor" or "reasoner".
        confidence: What it stated, 0 to 1; None if it stated nothing, which passes every threshold.
        is_value: Whether there is a value, of the type that the plan wants.
        is_right: Whether that is the right one.
        is_present: Whether the right one could be found in what was read.
    """

    instance_id: str
    component: str
    confidence: float | None
    is_value: bool
    is_right: bool
    is_present: bool


@dataclass(frozen=True, slots=True)
class ThresholdPoint:
    """What a threshold does.

    Attributes:
        theta: The threshold.
        accepted: Entities with a value and enough confidence.
        correct: Those of them that are right.
        present: Entities that could be found.
        precision: correct / accepted, with questions as the units that vary; NaN if nothing is accepted.
        recall: Those that are correct and could be found / present; NaN if nothing is present.
    """

    theta: float
    accepted: int
    correct: int
    present: int
    precision: Estimate
    recall: Estimate


def threshold_sweep(
    judged: Iterable[JudgedEntity], thetas: Iterable[float] = DEFAULT_THETAS
) -> tuple[ThresholdPoint, ...]:
    """Return precision and recall at each threshold, to choose KPI-Chain's option `theta` by.

    Args:
        judged: Entities of any number of questions.
        thetas: Thresholds; an entity is accepted at its confidence and below, as in the test of a task.

    Raises:
        InvalidInputError: A threshold or a confidence is not within 0 to 1.
    """
    by_question: dict[str, list[JudgedEntity]] = {}
    for entity in judged:
        if entity.confidence is not None:
            check_share("confidence", entity.confidence)
        by_question.setdefault(entity.instance_id, []).append(entity)
    questions = [by_question[instance_id] for instance_id in sorted(by_question)]
    return tuple(_point(questions, theta) for theta in thetas)


def _point(questions: list[list[JudgedEntity]], theta: float) -> ThresholdPoint:
    check_share("theta", theta)
    counts = []
    for entities in questions:
        accepted = [e for e in entities if e.is_value and (e.confidence is None or e.confidence >= theta)]
        correct = [entity for entity in accepted if entity.is_right]
        recalled = sum(entity.is_present for entity in correct)
        counts.append((len(accepted), len(correct), recalled, sum(entity.is_present for entity in entities)))
    num_accepted, num_correct, num_recalled, num_present = zip(*counts, strict=True) if counts else ((),) * 4
    return ThresholdPoint(
        theta,
        sum(num_accepted),
        sum(num_correct),
        sum(num_present),
        _share(num_correct, num_accepted),
        _share(num_recalled, num_present),
    )


def _share(parts: Iterable[int], wholes: Iterable[int]) -> Estimate:
    """Return the sum of the parts over that of the wholes; questions without any are no units."""
    pairs = [(part, whole) for part, whole in zip(parts, wholes, strict=True) if whole]
    if not pairs:
        return Estimate.nothing()
    return clustered_proportion([part for part, _ in pairs], [whole for _, whole in pairs])


class ExtractionJudge:
    """Says of what KPI-Chain's components found whether it is right.

    The final answer is right if the world grades it so. Anything else that was extracted is right if it stands, word
    for word, in the sentences on which the answer rests (`evidence` of the task), or is one of the answers, or the name
    of a page of the reference solution; of an array, if all its elements are. It could be found if one of those
    sentences stands in what the extractor read. Where a task has no evidence, final answers alone are judged, and so
    they are of what was reasoned.

    Args:
        world: Name of the world of the records.

    Raises:
        InvalidInputError: There is no such world, or it cannot be made (any more).
    """

    def __init__(self, world: str) -> None:
        self._world = load_world(world)
        self._questions = {task.instance_id: _Question(self._world, task) for task in self._world.tasks()}

    def hops(self, instance_id: str) -> int | None:
        """Return how many calls the reference solution of a question has; None if it is not known."""
        question = self._questions.get(instance_id)
        return (len(reference_calls(question.task)) or None) if question is not None else None

    def judged(self, record: EpisodeRecord) -> list[JudgedEntity]:
        """Return every entity of an episode of which it can be said whether it is right."""
        question = self._questions.get(record["instance_id"])
        agent = record.get("agent")
        if question is None or agent is None or agent["architecture"] != JUDGED_AGENT:
            return []
        return list(_judged(question, agent)) if agent["options"].get("entities", True) else []


def _judged(question: _Question, agent: AgentRecord) -> Iterator[JudgedEntity]:
    kinds = {task: {entity.name: entity.type for entity in specs} for task, specs in _expected(agent).items()}
    begun = 0
    for event in agent["events"]:
        if event["kind"] == "extraction":
            read = question.normalized_text(_read(agent, begun, event["call"]))
            for name, candidate in event["details"]["candidates"].items():
                value, component = candidate["value"], event["component"]
                is_final = name == FINAL_ANSWER
                if not is_final and (component != "extractor" or not question.evidence):
                    continue
                kind = kinds.get(event["details"]["task"], {}).get(name)
                is_value = not is_missing(value) and kind is not None and fits(value, kind)
                yield JudgedEntity(
                    question.task.instance_id,
                    component,
                    candidate["confidence"],
                    is_value,
                    is_value and (question.is_answer(value) if is_final else question.holds(value)),
                    component != "extractor" or question.is_told_in(read),
                )
        if event["kind"] not in _WITHIN_A_TASK:
            begun = event["call"]


def _expected(agent: AgentRecord) -> dict[str, list[EntitySpec]]:
    """Return what each task of the plan had to find."""
    tasks = agent["structure"].get("plan", {}).get("tasks", [])
    return {
        task["task_id"]: [EntitySpec(**entity) for entity in task.get("expected_output_entities", [])] for task in tasks
    }


def _read(agent: AgentRecord, first: int, last: int) -> str:
    """Return what the extractor was shown in the calls that belong to one task."""
    shown = [
        agent["messages"][call["messages"][1]] for call in agent["calls"][first:last] if call["role"] == "extractor"
    ]
    return "\n".join(str(message["content"]) for message in shown)


class _Question:
    """What a world knows of a question, its texts as answers are compared."""

    def __init__(self, world: World, task: Task) -> None:
        self.world, self.task = world, task

    @cached_property
    def evidence(self) -> tuple[str, ...]:
        """The sentences on which the answer rests."""
        sentences = [sentence for of_page in self.task.metadata.get("evidence", ()) for sentence in of_page]
        return tuple(filter(None, map(normalized, sentences)))

    @cached_property
    def names(self) -> frozenset[str]:
        """The answers, and the names of the pages on which they are found."""
        answers = [*_leaves(self.task.metadata.get("right", [])), *self.task.metadata["answers"]]
        searches = [text for call in reference_calls(self.task) for text in _leaves(dict(call.parameters))]
        return frozenset(map(normalized, [*answers, *searches]))

    def is_answer(self, value: Any) -> bool:
        """Return whether a final answer is right."""
        answer = value if isinstance(value, str) else "; ".join(_leaves(value))
        return self.world.grade(self.task, answer, ()).correct

    def holds(self, value: Any) -> bool:
        """Return whether all that a value names is a part of the solution."""
        texts = [normalized(text) for text in _leaves(value)]
        return bool(texts) and all(
            text and (text in self.names or any(_is_within(text, sentence) for sentence in self.evidence))
            for text in texts
        )

    def normalized_text(self, text: str) -> str:
        """Return what was read as answers are compared; outputs are JSON, whose line ends are two characters."""
        return normalized(text.replace("\\n", " "))

    def is_told_in(self, read: str) -> bool:
        """Return whether something of the solution stands in what was read."""
        return any(_is_within(text, read) for text in self.evidence or self.names if text)


def _is_within(text: str, longer: str) -> bool:
    return f" {text} " in f" {longer} "


def _leaves(value: Any) -> list[str]:
    """Return the texts and numbers of a JSON value, as texts."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, Mapping):
        return [text for item in value.values() for text in _leaves(item)]
    if isinstance(value, list | tuple):
        return [text for item in value for text in _leaves(item)]
    return [] if value is None else [json.dumps(value)]


Course: TypeAlias = Literal["same", "lost", "unknown"]


def course_at(record: EpisodeRecord, theta: float) -> Course:
    """Return what an episode would have come to at another threshold, as far as its record says so.

    It goes the same way if each task passes or fails as it did. Without replanning it is lost if the first one that
    does not fails. What replanning would have made of a test that comes out otherwise nobody knows, nor how arrays of
    several pieces had been united.

    Args:
        record: An episode of KPI-Chain with its texts.
        theta: The threshold.
    """
    options = record["agent"]["options"]
    expected = _expected(record["agent"])
    for event in record["agent"]["events"]:
        if event["kind"] != "extraction":
            continue
        details = event["details"]
        if options.get("unite_arrays", False) and details.get("pieces", 1) > 1 and theta != options["theta"]:
            return "unknown"
        specs = expected[details["task"]]
        candidates = details["candidates"].items()
        findings = {name: Finding(candidate["value"], candidate["confidence"]) for name, candidate in candidates}
        passed, passes = (not evaluate_kpi(specs, findings, limit)[1] for limit in (options["theta"], theta))
        is_given_up = passed and event["text"] == "failed"  # by the reasoner itself
        if passes != passed and not is_given_up:
            return "unknown" if passes or options.get("replanning", True) else "lost"
    return "same"
