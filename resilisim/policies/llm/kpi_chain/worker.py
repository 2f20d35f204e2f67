"""Carrying out one task: references resolved, tool called or reasoner asked, entities extracted, the test made."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from resilisim.chat import ChatMessage
from resilisim.policies.llm.kpi_chain.asking import NeverReadable, ask_until_read
from resilisim.policies.llm.kpi_chain.chunking import chunks_of
from resilisim.policies.llm.kpi_chain.extraction import (
    ChunkExtraction,
    joined_summaries,
    merge_extractions,
    read_extraction,
)
from resilisim.policies.llm.kpi_chain.feedback import (
    extraction_feedback,
    reasoning_feedback,
    reference_feedback,
    shortened,
    tool_feedback,
    unreadable_feedback,
    with_raw_response,
)
from resilisim.policies.llm.kpi_chain.kpi import evaluate_kpi
from resilisim.policies.llm.kpi_chain.options import KpiChainOptions
from resilisim.policies.llm.kpi_chain.outcomes import Done, Failed
from resilisim.policies.llm.kpi_chain.reasoning import ReasoningResult, read_reasoning
from resilisim.policies.llm.kpi_chain.references import Resolution, resolve
from resilisim.policies.llm.kpi_chain.state import ChainState
from resilisim.policies.llm.kpi_chain.types import TOOL_CALL, PlanTask
from resilisim.policies.llm.kpi_chain.yaml_text import dump_yaml
from resilisim.policies.llm.run import AgentRun
from resilisim.policies.llm.templates import PromptTexts
from resilisim.policies.llm.tool_errors import error_of


class Worker:
    """Does the tasks of one episode.

    Args:
        run: The episode.
        options: The agent's options.
        prompts: The agent's prompts.
        state: Plan and memory, which are only read.
    """

    def __init__(self, run: AgentRun, options: KpiChainOptions, prompts: PromptTexts, state: ChainState) -> None:
        self._run = run
        self._options = options
        self._prompts = prompts
        self._state = state

    async def carry_out(self, task: PlanTask) -> Done | Failed:
        """Do a task whose turn it is."""
        resolution = self._resolve(task)
        if resolution.problems:
            return Failed("planner", "; ".join(resolution.problems), reference_feedback(task, resolution.problems))
        if task.task_type == TOOL_CALL:
            return await self._call_tool(task, resolution.value)
        return await self._reason(task, resolution.value)

    def _resolve(self, task: PlanTask) -> Resolution:
        """Return the values of a task's inputs by name; those that are null are left out."""
        values = {given.name: given.value for given in task.inputs if given.value is not None}
        plan, memory = self._state.plan, self._state.memory
        resolution = resolve(values, lambda reference: memory.lookup(reference, plan))
        if resolution.problems:
            self._run.note("warning", "agent", f"{task.task_id}: no call, as a reference could not be resolved")
        elif resolution.interpolated:
            paths = list(resolution.interpolated)
            self._run.note("resolution", "agent", f"{task.task_id}: written into a text", interpolated=paths)
        return resolution

    async def _call_tool(self, task: PlanTask, arguments: dict[str, Any]) -> Done | Failed:
        if not task.tool_name:
            reason = f"task {task.task_id} names no tool, so nothing was called"
            return Failed("planner", reason, reference_feedback(task, [reason]))
        result = await self._run.tools.call(task.tool_name, arguments)
        error = error_of(result)
        if error is not None:
            return Failed("tool", _one_line(f"{task.tool_name}: {error}"), tool_feedback(task, error))
        if not self._options.entities:
            return Done("tool", {task.entities[0].name: result.text}, result.text)
        return await self._extract(task, result.text)

    async def _extract(self, task: PlanTask, response: str) -> Done | Failed:
        pieces = await self._extract_pieces(task, chunks_of(response, self._options.chunk_tokens))
        if isinstance(pieces, NeverReadable):
            feedback = self._with_response(unreadable_feedback(task, "extractor", pieces.problem), response)
            return Failed("extractor", _one_line(f"no readable reply: {pieces.problem}"), feedback)
        theta = self._options.theta
        candidates = merge_extractions(task.entities, pieces, theta, self._options.unite_arrays)
        kpi = evaluate_kpi(task.entities, candidates, theta)
        found = {
            name: {"value": candidate.value, "confidence": candidate.confidence}
            for name, candidate in candidates.items()
        }
        verdict = "passed" if kpi.passed else "failed"
        self._run.note("extraction", "extractor", verdict, task=task.task_id, pieces=len(pieces), candidates=found)
        if kpi.passed:
            return Done("extractor", kpi.entities, response)
        feedback = self._with_response(extraction_feedback(task, kpi.problems, joined_summaries(pieces)), response)
        return Failed("extractor", _one_line("; ".join(kpi.problems)), feedback)

    async def _extract_pieces(
        self, task: PlanTask, chunks: Sequence[str]
    ) -> tuple[ChunkExtraction, ...] | NeverReadable:
        pieces = []
        for number, chunk in enumerate(chunks, start=1):
            request = self._prompts.fill(
                "extractor_request",
                response=chunk,
                piece=f" (piece {number} of {len(chunks)})" if len(chunks) > 1 else "",
                description=task.description,
                entities=dump_yaml([entity.to_mapping() for entity in task.entities]),
            )
            piece = await ask_until_read(
                self._run,
                "extractor",
                (ChatMessage("system", self._prompts.fill("extractor")), ChatMessage("user", request)),
                lambda text: read_extraction(text, task.entities),
                self._options.retries,
            )
            if isinstance(piece, NeverReadable):
                return piece
            pieces.append(piece)
        return tuple(pieces)

    async def _reason(self, task: PlanTask, values: dict[str, Any]) -> Done | Failed:
        result = await ask_until_read(
            self._run,
            "reasoner",
            (
                ChatMessage("system", self._prompts.fill("reasoner")),
                ChatMessage("user", self._prompts.fill("reasoner_request", task=dump_yaml(_request(task, values)))),
            ),
            lambda text: read_reasoning(text, task.entities),
            self._options.retries,
        )
        if isinstance(result, NeverReadable):
            feedback = unreadable_feedback(task, "reasoner", result.problem)
            return Failed("reasoner", _one_line(f"no readable reply: {result.problem}"), feedback)
        return self._reasoned(task, result)

    def _reasoned(self, task: PlanTask, result: ReasoningResult) -> Done | Failed:
        kpi = evaluate_kpi(task.entities, result.candidates, self._options.theta)
        problems = kpi.problems if result.completed else ("the status is failed", *kpi.problems)
        if problems:
            feedback = reasoning_feedback(task, problems, result.steps)
            return Failed("reasoner", _one_line("; ".join(problems)), feedback)
        return Done("reasoner", kpi.entities, as_text(kpi.entities))

    def _with_response(self, feedback: str, response: str) -> str:
        return with_raw_response(feedback, response) if self._options.raw_response_to_replanner else feedback


def as_text(entities: Any) -> str:
    """Return what a task found as a text: a single text as it is, the rest as YAML."""
    values = list(entities.values())
    single = values[0] if len(values) == 1 else dict(entities)
    return single if isinstance(single, str) else dump_yaml(single)


def _request(task: PlanTask, values: dict[str, Any]) -> dict[str, Any]:
    inputs = [
        {"name": given.name, "type": given.type or "any", "value": values.get(given.name)} for given in task.inputs
    ]
    return {
        "task_description": task.description,
        "input_parameters": inputs,
        "expected_output_entities": [entity.to_mapping() for entity in task.entities],
    }


def _one_line(text: str) -> str:
    return shortened(" ".join(text.split()), 500)
