"""Carrying out one task: references resolved, tool called or reasoner asked, entities extracted, the test made."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeVar

from resilisim.chat import ChatMessage
from resilisim.chat.types import BYTES_PER_TOKEN, estimated_tokens
from resilisim.policies.llm.kpi_chain.chain_plan import TOOL_CALL, PlanTask, Reference, resolve
from resilisim.policies.llm.kpi_chain.entities import (
    DICT,
    EntitySpec,
    Finding,
    evaluate_kpi,
    is_missing,
    merge_findings,
    wanted_value,
)
from resilisim.policies.llm.kpi_chain.yaml_text import UnreadableReplyError, dump_yaml, yaml_with
from resilisim.policies.llm.options import AgentOptions, flag, limit, number
from resilisim.policies.llm.reading import Unreadable, excerpt, visible
from resilisim.policies.llm.run import AgentRun
from resilisim.policies.llm.templates import PromptTexts
from resilisim.policies.llm.tools import error_of

Component = Literal["tool", "extractor", "reasoner", "planner"]
Reading = TypeVar("Reading")

_MAX_REPEATED: Final = 4_000  # characters of a reply that is shown again to be put right
_MAX_REASONS: Final = 2_000  # characters of a component's own words that the replanner is told
_MAX_RAW_RESPONSE: Final = 8_000
_CONFIDENCES: Final = ("confidence_score", "confidence_scores")


@dataclass(frozen=True, slots=True, kw_only=True)
class KpiChainOptions(AgentOptions):
    """What KPI-Chain can be told; the defaults are the paper's."""

    theta: float = number(0.7, "confidence that is enough for an entity", least=0.0, most=1.0)
    replans: int = limit(3, "how often a task and its successors (T3, T3a, T3b) may be planned anew")
    retries: int = limit(3, "how often a component is asked again after a reply that cannot be read")
    chunk_tokens: int = limit(3000, "tokens after which an output is extracted piece by piece", least=1)
    interpolation: bool = flag(True, "whether a reference may stand within a longer text")
    unite_arrays: bool = flag(False, "whether arrays found in several pieces are put together")
    raw_response_to_replanner: bool = flag(False, "whether the replanner sees the tool's response")
    entities: bool = flag(True, "false: tasks pass on their output as text, with no test (Plan-and-Execute)")
    replanning: bool = flag(True, "false: the first failed task ends the episode")
    memory: bool = flag(True, "false: later tasks get the whole outputs of earlier ones instead of entities")


@dataclass(frozen=True, slots=True)
class Done:
    """A task succeeded: who brought the result (extractor, reasoner or the tool itself), what, and the whole output."""

    component: str
    entities: Mapping[str, Any] = field(hash=False)
    output: str = ""


@dataclass(frozen=True, slots=True)
class Failed:
    """A task failed: which part of the agent, why on one line, and what the replanner is told."""

    component: Component
    reason: str
    feedback: str


async def ask_until_read(
    run: AgentRun, role: str, messages: Sequence[ChatMessage], read: Callable[[str], Reading], retries: int
) -> Reading:
    """Return what a component wrote, as `read` understands it.

    A reply that cannot be read is shown to the component again with what is wrong; only the last one, so that a
    conversation does not grow.

    Raises:
        UnreadableReplyError: No reply could be read; it is what was wrong with the last one.
    """
    conversation = list(messages)
    problem = ""
    for attempt in range(retries + 1):
        if attempt:
            run.count(f"{role}_retries")
        reply = await run.ask(role, conversation)
        text = visible(reply.text)
        try:
            return read(text)
        except UnreadableReplyError as error:
            problem = str(error)
        problem = run.unreadable(role, reply, Unreadable(problem, excerpt(reply.text))).problem
        again = (
            f"Your reply could not be used: {problem}\n\nWrite the whole reply again, in the form that was asked for."
        )
        shown = ChatMessage("assistant", shortened(text, _MAX_REPEATED) or "(empty)")
        conversation = [*messages, shown, ChatMessage("user", again)]
    raise UnreadableReplyError(problem)


class Worker:
    """Does the tasks of one episode; `lookup` returns what a reference stands for, or raises `UnresolvedError`."""

    def __init__(
        self, run: AgentRun, options: KpiChainOptions, prompts: PromptTexts, lookup: Callable[[Reference], Any]
    ) -> None:
        self._run = run
        self._options = options
        self._prompts = prompts
        self._lookup = lookup

    async def carry_out(self, task: PlanTask) -> Done | Failed:
        """Do a task whose turn it is; inputs that are null are left out."""
        values = {given.name: given.value for given in task.inputs if given.value is not None}
        resolution = resolve(values, self._lookup)
        if resolution.problems:
            self._run.note("warning", "agent", f"{task.task_id}: no call, as a reference could not be resolved")
            head = f"Task {task.task_id} was not carried out: what it refers to could not be resolved."
            return Failed("planner", "; ".join(resolution.problems), _feedback(head, resolution.problems))
        if resolution.interpolated:
            paths = list(resolution.interpolated)
            self._run.note("resolution", "agent", f"{task.task_id}: written into a text", interpolated=paths)
        if task.task_type == TOOL_CALL:
            return await self._call_tool(task, resolution.value)
        return await self._reason(task, resolution.value)

    async def _call_tool(self, task: PlanTask, arguments: dict[str, Any]) -> Done | Failed:
        result = await self._run.tools.call(task.tool_name, arguments)
        error = error_of(result)
        if error is not None:
            head = f"Task {task.task_id} failed: the tool {task.tool_name!r} returned an error."
            return Failed("tool", _one_line(f"{task.tool_name}: {error}"), _feedback(head, (), "Error", error))
        if not self._options.entities:
            return Done("tool", {task.entities[0].name: result.text}, result.text)
        extracted = await self._extracted(task, result.text)
        if isinstance(extracted, Failed) and self._options.raw_response_to_replanner:
            response = shortened(result.text, _MAX_RAW_RESPONSE)
            feedback = f"{extracted.feedback}\nThe tool's response:\n{response}"
            return Failed(extracted.component, extracted.reason, feedback)
        return extracted

    async def _extracted(self, task: PlanTask, response: str) -> Done | Failed:
        chunks = chunks_of(response, self._options.chunk_tokens)
        pieces, summaries = [], []
        for place, chunk in enumerate(chunks, start=1):
            request = self._prompts.fill(
                "extractor_request",
                response=chunk,
                piece=f" (piece {place} of {len(chunks)})" if len(chunks) > 1 else "",
                description=task.description,
                entities=dump_yaml([entity.model_dump() for entity in task.entities]),
            )
            try:
                findings, summary = await self._ask("extractor", request, task, read_extraction)
            except UnreadableReplyError as problem:
                return _never_readable(task, "extractor", problem)
            pieces.append(findings)
            if summary:
                summaries.append(f"piece {place}: {summary}" if len(chunks) > 1 else summary)
        theta = self._options.theta
        merged = merge_findings(task.entities, pieces, theta, self._options.unite_arrays)
        entities, problems = evaluate_kpi(task.entities, merged, theta)
        found = {name: {"value": one.value, "confidence": one.confidence} for name, one in merged.items()}
        verdict = "failed" if problems else "passed"
        self._run.note("extraction", "extractor", verdict, task=task.task_id, pieces=len(pieces), candidates=found)
        if not problems:
            return Done("extractor", entities, response)
        tool = f"the tool {task.tool_name!r} answered, but the test of its entities failed."
        feedback = _feedback(
            f"Task {task.task_id} failed: {tool}", problems, "The extractor says", "\n".join(summaries)
        )
        return Failed("extractor", _one_line("; ".join(problems)), feedback)

    async def _reason(self, task: PlanTask, values: dict[str, Any]) -> Done | Failed:
        inputs = [
            {"name": given.name, "type": given.type or "any", "value": values.get(given.name)} for given in task.inputs
        ]
        request = {
            "task_description": task.description,
            "input_parameters": inputs,
            "expected_output_entities": [entity.model_dump() for entity in task.entities],
        }
        filled = self._prompts.fill("reasoner_request", task=dump_yaml(request))
        try:
            reasoned = await self._ask("reasoner", filled, task, read_reasoning)
        except UnreadableReplyError as problem:
            return _never_readable(task, "reasoner", problem)
        entities, problems = evaluate_kpi(task.entities, reasoned.findings, self._options.theta)
        if not reasoned.completed:
            problems = ["the status is failed", *problems]
        if not problems:
            return Done("reasoner", entities, as_text(entities))
        head = f"Task {task.task_id} failed: the reasoning did not bring what was expected."
        feedback = _feedback(head, problems, "The reasoner says", "\n".join(reasoned.steps))
        return Failed("reasoner", _one_line("; ".join(problems)), feedback)

    async def _ask(
        self, role: str, request: str, task: PlanTask, read: Callable[[str, Sequence[EntitySpec]], Reading]
    ) -> Reading:
        messages = (ChatMessage("system", self._prompts.fill(role)), ChatMessage("user", request))
        return await ask_until_read(
            self._run, role, messages, lambda text: read(text, task.entities), self._options.retries
        )


def as_text(entities: Mapping[str, Any]) -> str:
    """Return what a task found as a text: a single text as it is, the rest as YAML."""
    values = list(entities.values())
    single = values[0] if len(values) == 1 else dict(entities)
    return single if isinstance(single, str) else dump_yaml(single)


def shortened(text: str, length: int = _MAX_REASONS) -> str:
    """Return a text that is not longer than it may be, with a mark where it was cut."""
    return text if len(text) <= length else f"{text[:length]} [cut: {len(text) - length:,} more characters]"


def _one_line(text: str) -> str:
    return shortened(" ".join(text.split()), 500)


def _feedback(head: str, problems: Sequence[str], who: str = "", words: str = "") -> str:
    """Return what the replanner is told: what failed, what is wrong, and somebody's own words."""
    said = [f"{who}: {shortened(words)}"] if words.strip() else []
    return "\n".join([head, *(f"- {problem}" for problem in problems), *said])


def _never_readable(task: PlanTask, component: Component, problem: UnreadableReplyError) -> Failed:
    head = f"Task {task.task_id} failed: no reply of the {component} could be read."
    feedback = _feedback(head, (), "The last one", str(problem))
    return Failed(component, _one_line(f"no readable reply: {problem}"), feedback)


def chunks_of(text: str, max_tokens: int) -> tuple[str, ...]:
    """Return a text in pieces of at most about `max_tokens`, by estimate; put together again they are the text.

    Cuts are made behind line ends where possible, else behind spaces, else anywhere between two characters. An empty
    text is one empty piece.
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
    for mark in ("\n", " "):
        place = text.rfind(mark, middle, end)
        if place >= 0:
            return place + 1
    return end


def read_extraction(text: str, expected: Sequence[EntitySpec]) -> tuple[dict[str, Finding], str]:
    """Return what the extractor found in one piece of an output, by entity, and why it thinks so.

    Confidence is either one number for all entities or one for each. Entities that were not asked for are passed over.

    Raises:
        UnreadableReplyError: It does not have the form that was asked for.
    """
    reply = yaml_with(text, "extracted_entities", (*_CONFIDENCES, "entities_summary"))
    values = reply["extracted_entities"] or {}
    if not isinstance(values, dict):
        raise UnreadableReplyError("'extracted_entities' has to be a mapping from entity name to value")
    stated = next((reply[name] for name in _CONFIDENCES if name in reply), None)
    findings = {entity.name: _finding(entity, values.get(entity.name), stated) for entity in expected}
    summary = reply.get("entities_summary")
    return findings, summary.strip() if isinstance(summary, str) else ""


def _finding(entity: EntitySpec, value: Any, stated: Any) -> Finding:
    is_rated = isinstance(value, dict) and entity.type != DICT and len(value) == 2 and "value" in value
    if is_rated and (value.keys() & {"confidence", "confidence_score"}):
        stated = value.get("confidence", value.get("confidence_score"))
        value = value["value"]
    is_null = is_missing(value)
    if isinstance(stated, dict):
        stated = stated.get(entity.name, 0.0 if is_null else None)
    confidence = _confidence(stated, entity.name)
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

    Raises:
        UnreadableReplyError: It does not have the form that was asked for.
    """
    reply = yaml_with(text, "execution_result")
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
    details = reply.get("execution_details")
    steps = details.get("reasoning_steps") if isinstance(details, dict) else None
    return ReasonerReply(
        status == "completed",
        {entity.name: Finding(wanted_value(outputs.get(entity.name), entity.type)) for entity in expected},
        tuple(map(str, steps)) if isinstance(steps, list) else (),
    )
