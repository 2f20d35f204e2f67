"""KPI-Chain as a policy: a plan whose tasks say what they must find, tested task by task, continued where one fails."""

from __future__ import annotations

import copy
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeVar

from resilisim.chat import ChatMessage
from resilisim.policies.llm.agent_run import AgentRun
from resilisim.policies.llm.given_plan import OF_PROMPT, chain_plan_of, given_steps
from resilisim.policies.llm.kpi_chain.entities import (
    EntitySpec,
    Finding,
    chunks_of,
    evaluate_kpi,
    merge_findings,
    read_extraction,
    read_reasoning,
)
from resilisim.policies.llm.kpi_chain.kpi_plan import (
    DONE,
    OUTPUT,
    PENDING,
    TASK_FAILED,
    TOOL_CALL,
    ChainPlan,
    KpiChainOptions,
    PlanRules,
    PlanTask,
    Reference,
    UnresolvedError,
    read_plan,
    resolve,
)
from resilisim.policies.llm.kpi_chain.model_yaml import UnreadableReplyError, dump_yaml
from resilisim.policies.llm.policy import LlmPolicy
from resilisim.policies.llm.reply_reading import Unreadable, excerpt, visible
from resilisim.policies.llm.templates import DEFAULT_EXAMPLES
from resilisim.policies.llm.tools import describe_tools, error_of

Component = Literal["tool", "extractor", "reasoner", "planner"]
Reading = TypeVar("Reading")

_INTERPOLATION = {
    True: "A single text or number may also be written into a longer text: `<JSON_PATH>T1.name</JSON_PATH> parents`.",
    False: "A reference stands alone in its value, never within a longer text.",
}
# Without memory (the ablation) the planner has to know what its references bring.
_WITHOUT_MEMORY: Final = (
    " Whichever entity is named, the reference stands for the whole output of its task, as text: where a task needs a "
    "single value out of it, a `Reasoning` task before it has to find the value."
)
_CONFIDENCE_LINE: Final = "  confidence_score: 0.0\n"  # in the form of the reasoner's reply
_MAX_SHOWN: Final = 2_000  # characters of one text among the results, or of a component's own words
_MAX_REPEATED: Final = 4_000  # characters of a reply that is shown again to be put right
_MAX_RAW_RESPONSE: Final = 8_000

# Letters and number at the beginning of an id: T3 in T3a, T3b, T3_retry and T3a2, but not in T31.
_NUMBERED = re.compile(r"([A-Za-z_-]*?[0-9]+)(?![0-9]).*\Z")
_SEPARATED = re.compile(r"[_-]")


class KpiChain(LlmPolicy[KpiChainOptions]):
    """Planning with typed entities as the test of every task, and continuation after failures ("KPI-Chain").

    The planner writes tasks, each with the entities that it has to find. A tool task calls its tool, the extractor
    reads the entities out of the output, and they are remembered if all are there, of their types, and sure enough; a
    reasoning task is one call of the reasoner. Later tasks refer to what is remembered. When a task fails, the
    replanner is told why and writes the tasks that lead from there to the answer. Each component can have a model of
    its own: `RoleModels(large, {"extractor": small})`.
    """

    name = "kpi-chain"
    options_class = KpiChainOptions
    components = ("planner", "replanner", "extractor", "reasoner")

    async def play(self, run: AgentRun) -> str | None:
        """Plan, carry out, replan; the answer is the `final_answer` of the last task."""
        state = ChainState(run, self.options)
        components = Components(self, run, state)
        steps = given_steps(run) if self.options.first_plan == OF_PROMPT else []
        if steps:
            run.given["planner"] = [dump_yaml(chain_plan_of(steps, run))]
        try:
            try:
                state.start(*await components.first_plan())
            except UnreadableReplyError as problem:
                run.fail("planner", str(problem))
                return None
            while (task := state.plan.next_task()) is not None:
                outcome = await components.carry_out(task)
                if isinstance(outcome, Done):
                    state.succeed(task, outcome)
                elif not await self._recovers(components, state, task, outcome):
                    return None
            state.open_failures.clear()  # there is an answer: what failed on the way was made good
            return _as_text(state.plan.tasks[-1].result)
        finally:
            # The episode may end inside any call while a failure is being made good.
            state.put_down_open_failure()

    async def _recovers(self, components: Components, state: ChainState, task: PlanTask, outcome: Failed) -> bool:
        """Replan after a failure; return whether there is a way on."""
        state.fail(task, outcome)
        if not self.options.replanning or not state.replans_left(task):
            state.give_up(task)
            return False
        state.spend_replan(task)
        try:
            state.go_on(task, *await components.continuation(task, outcome))
        except UnreadableReplyError as problem:
            state.give_up(task)
            state.run.fail("replanner", str(problem))
            return False
        return True


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


class ChainState:
    """Plan, memory and replans of one episode; every change is written into the record at once.

    What a task found is remembered by task and entity, in its type. Without memory or entities (the ablations) a
    reference stands for the whole output of its task, as text. Ids change with every continuation, so replans are
    counted by lineage; of each lineage the first failure that was not made good is what its end would be put down to.
    """

    def __init__(self, run: AgentRun, options: KpiChainOptions) -> None:
        self.run = run
        self.plan = ChainPlan()
        self.open_failures: dict[str, Failed] = {}
        self._keeps_entities = options.memory and options.entities
        self._memory: dict[str, dict[str, Any]] = {}
        self._lineages: dict[str, str] = {}
        self._most_replans = options.replans
        self._replans: Counter[str] = Counter()
        self._publish()

    @property
    def used_ids(self) -> tuple[str, ...]:
        """Every id of any plan so far, in the order in which they came."""
        return tuple(self._lineages)

    def lookup(self, reference: Reference) -> Any:
        """Return what a reference stands for now; plans are read so that its task is done by then."""
        entities = self._memory.get(reference.task_id, {})
        name = reference.entity if self._keeps_entities else OUTPUT
        if name not in entities:
            names = ", ".join(entities) or "nothing"
            raise UnresolvedError(f"{reference} refers to task {reference.task_id}, which found only: {names}")
        return copy.deepcopy(entities[name])

    def start(self, plan: ChainPlan, warnings: Sequence[str]) -> None:
        """Take up the first plan, whose tasks descend from themselves."""
        self.plan = plan
        self._lineages = {task.task_id: task.task_id for task in plan.tasks}
        self._take_up("plan", "planner", plan, warnings)

    def succeed(self, task: PlanTask, outcome: Done) -> None:
        """Remember what a task found; its raw output only where nothing else is remembered."""
        entities = dict(outcome.entities)
        self.plan = self.plan.with_task(task.task_id, status=DONE, result=entities)
        self._memory[task.task_id] = entities if self._keeps_entities else {OUTPUT: outcome.output}
        self.open_failures.pop(self._lineages[task.task_id], None)
        self._publish()
        self.run.note("task_done", outcome.component, task.task_id, task=task.task_id)
        self.run.note("memory", "agent", task.task_id, task=task.task_id, entities=entities)

    def fail(self, task: PlanTask, outcome: Failed) -> None:
        """Write down that a task failed."""
        self.plan = self.plan.with_task(task.task_id, status=TASK_FAILED, failure=outcome.reason)
        self.open_failures.setdefault(self._lineages[task.task_id], outcome)
        self._publish()
        self.run.note("task_failed", outcome.component, outcome.reason, task=task.task_id)

    def replans_left(self, task: PlanTask) -> int:
        """Return how often the task's lineage may still be planned anew."""
        return max(0, self._most_replans - self._replans[self._lineages[task.task_id]])

    def spend_replan(self, task: PlanTask) -> None:
        """Count one more plan for a task's lineage."""
        self._replans[self._lineages[task.task_id]] += 1
        self.run.count("replans")
        self._publish()

    def go_on(self, failed: PlanTask, continuation: ChainPlan, warnings: Sequence[str]) -> None:
        """Put a continuation into the plan: what stays, then what is new."""
        before = {task.task_id for task in self.plan.tasks}
        self.plan = ChainPlan((*self.plan.kept_after(failed.task_id), *continuation.tasks))
        removed = sorted(before - {task.task_id for task in self.plan.tasks})
        earlier = dict(self._lineages)
        self._lineages |= {task.task_id: lineage_of(task.task_id, earlier) for task in continuation.tasks}
        self._take_up("replan", "replanner", continuation, warnings, failed=failed.task_id, removed=removed)

    def give_up(self, task: PlanTask) -> None:
        """Put the end of the episode down to what failed first in a task's lineage."""
        first = self.open_failures[self._lineages[task.task_id]]
        self.open_failures.clear()
        self.run.fail(first.component, first.reason)

    def put_down_open_failure(self) -> None:
        """If the episode ends while a failure is being made good, put its end down to that."""
        for last in list(self.open_failures.values())[-1:]:
            self.run.fail(last.component, last.reason)

    def plan_for_prompt(self) -> dict[str, Any]:
        """Return the plan with statuses and what is remembered, long texts cut."""
        return {
            "tasks": [
                {**task.to_mapping(), "execution_result": _cut(self._memory.get(task.task_id, {}))}
                for task in self.plan.tasks
            ]
        }

    def _take_up(self, kind: str, component: str, plan: ChainPlan, warnings: Sequence[str], **details: Any) -> None:
        ids = [task.task_id for task in plan.tasks]
        self._publish()
        self.run.note(kind, component, ", ".join(ids), tasks=ids, **details)
        for warning in warnings:
            self.run.note("warning", component, warning)

    def _publish(self) -> None:
        self.run.structure["plan"] = self.plan.to_mapping()
        self.run.structure["memory"] = dict(self._memory)
        self.run.structure["replans"] = dict(self._replans)


def lineage_of(task_id: str, earlier: Mapping[str, str]) -> str:
    """Return what a task of a continuation descends from.

    It inherits from the longest earlier id that its own extends: `T3a` from `T3`, `T1_2_retry` from `T1_2`,
    `find_film_again` from `find_film`. If it extends none, letters and number at its beginning are the lineage, or
    without a number the whole id. `earlier` has the ids of tasks of earlier plans, with their lineages.
    """
    extended = [known for known in earlier if task_id == known or _extends(task_id, known)]
    if extended:
        return earlier[max(extended, key=len)]
    numbered = _NUMBERED.match(task_id)
    return task_id if numbered is None else numbered[1]


def _extends(task_id: str, earlier: str) -> bool:
    rest = task_id.removeprefix(earlier)
    if not rest or rest == task_id:
        return False
    if _NUMBERED.match(earlier) is None:  # of words, only a whole word more is an extension
        return _SEPARATED.match(rest) is not None
    return not (earlier[-1].isdigit() and rest[0].isdigit())


class Components:
    """Planner, replanner, extractor and reasoner of one episode."""

    def __init__(self, agent: KpiChain, run: AgentRun, state: ChainState) -> None:
        self._options = agent.options
        self._prompts = agent.prompts
        self._run = run
        self._state = state
        self._tools = describe_tools(run.tools.specs)

    async def first_plan(self) -> tuple[ChainPlan, tuple[str, ...]]:
        """Ask for a plan of the whole task, which comes with warnings, or raise `UnreadableReplyError`."""
        is_default = self._options.examples == DEFAULT_EXAMPLES
        of_texts = is_default and not self._options.entities
        examples = self._prompts.fill("examples_text") if of_texts else self._prompts.examples
        system = self._prompts.fill("planner", plan_format=self._plan_format(), examples=examples)
        request = self._prompts.fill("planner_request", tools=self._tools, facts=self._run.facts, query=self._run.task)
        rules = PlanRules(self._options, self._run.tools.specs)
        return await self._ask("planner", system, request, lambda text: read_plan(text, rules))

    async def continuation(self, failed: PlanTask, outcome: Failed) -> tuple[ChainPlan, tuple[str, ...]]:
        """Ask for the tasks that lead from a failure to the answer, or raise `UnreadableReplyError`."""
        plan, used_ids = self._state.plan, self._state.used_ids
        kept = plan.kept_after(failed.task_id)
        request = self._prompts.fill(
            "replanner_request",
            tools=self._tools,
            facts=self._run.facts,
            query=self._run.task,
            plan=dump_yaml(self._state.plan_for_prompt()),
            failed_task=failed.task_id,
            used_ids=", ".join(used_ids),
            kept_ids=", ".join(task.task_id for task in kept if task.status == PENDING) or "none",
            removed_ids=", ".join(task.task_id for task in plan.tasks if task not in kept) or "none",
            feedback=outcome.feedback,
        )
        system = self._prompts.fill("replanner", plan_format=self._plan_format())
        rules = PlanRules(self._options, self._run.tools.specs, kept, used_ids)
        return await self._ask("replanner", system, request, lambda text: read_plan(text, rules))

    def _plan_format(self) -> str:
        name = "plan_format" if self._options.entities else "plan_format_text"
        interpolation = _INTERPOLATION[self._options.interpolation]
        if self._options.entities and not self._options.memory:
            interpolation += _WITHOUT_MEMORY
        return self._prompts.fill(name, interpolation=interpolation)

    async def _ask(self, role: str, system: str, request: str, read: Callable[[str], Reading]) -> Reading:
        """Return what a component wrote, as `read` understands it, or raise `UnreadableReplyError`."""

        def reading(text: str) -> Reading | Unreadable:
            try:
                return read(visible(text))
            except UnreadableReplyError as error:
                return Unreadable(str(error), excerpt(text))

        def again(problem: str) -> str:
            self._run.count(f"{role}_retries")
            wanted = "Write the whole reply again, in the form that was asked for."
            return f"Your reply could not be used: {problem}\n\n{wanted}"

        parsed = await self._run.ask_until_read(
            role,
            [ChatMessage("system", system), ChatMessage("user", request)],
            reading,
            again,
            attempts=1 + self._options.retries,
            shown=lambda text: _shortened(visible(text), _MAX_REPEATED) or "(empty)",
        )
        if isinstance(parsed, Unreadable):
            raise UnreadableReplyError(parsed.problem)
        return parsed

    async def carry_out(self, task: PlanTask) -> Done | Failed:
        """Do a task whose turn it is; inputs that are null are left out."""
        values = {parameter.name: parameter.value for parameter in task.inputs if parameter.value is not None}
        resolution = resolve(values, self._state.lookup)
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
            response = _shortened(result.text, _MAX_RAW_RESPONSE)
            feedback = f"{extracted.feedback}\nThe tool's response:\n{response}"
            return Failed(extracted.component, extracted.reason, feedback)
        return extracted

    async def _extracted(self, task: PlanTask, response: str) -> Done | Failed:
        chunks = chunks_of(response, self._options.chunk_tokens)
        pieces: list[Mapping[str, Finding]] = []
        summaries = []
        for place, chunk in enumerate(chunks, start=1):
            request = self._prompts.fill(
                "extractor_request",
                response=chunk,
                piece=f" (piece {place} of {len(chunks)})" if len(chunks) > 1 else "",
                description=task.description,
                entities=dump_yaml([entity.model_dump() for entity in task.entities]),
            )
            system = self._prompts.fill("extractor", confidences=self._confidences)
            try:
                findings, summary = await self._ask_for(task, "extractor", system, request, read_extraction)
            except UnreadableReplyError as problem:
                return _never_readable(task, "extractor", problem)
            pieces.append(findings)
            if summary:
                summaries.append(f"piece {place}: {summary}" if len(chunks) > 1 else summary)
        theta = self._options.theta
        merged = merge_findings(task.entities, pieces, theta, self._options.unite_arrays)
        entities, problems = evaluate_kpi(task.entities, merged, theta)
        self._note_candidates("extractor", task, merged, not problems, pieces=len(pieces))
        if not problems:
            return Done("extractor", entities, response)
        tool = f"the tool {task.tool_name!r} answered, but the test of its entities failed."
        head = f"Task {task.task_id} failed: {tool}"
        feedback = _feedback(head, problems, "The extractor says", "\n".join(summaries))
        return Failed("extractor", _one_line("; ".join(problems)), feedback)

    async def _reason(self, task: PlanTask, values: dict[str, Any]) -> Done | Failed:
        inputs = [
            {"name": parameter.name, "type": parameter.type or "any", "value": values.get(parameter.name)}
            for parameter in task.inputs
        ]
        request = {
            "task_description": task.description,
            "input_parameters": inputs,
            "expected_output_entities": [entity.model_dump() for entity in task.entities],
        }
        filled = self._prompts.fill("reasoner_request", task=dump_yaml(request))
        is_rated = self._options.reasoner_confidence and self._options.entities
        rule = self._prompts.fill("reasoner_confidence", confidences=self._confidences)
        system = self._prompts.fill(
            "reasoner",
            confidence_rule=f"{rule}\n" if is_rated else "",
            confidence_line=_CONFIDENCE_LINE if is_rated else "",
        )
        try:
            reasoned = await self._ask_for(task, "reasoner", system, filled, read_reasoning)
        except UnreadableReplyError as problem:
            return _never_readable(task, "reasoner", problem)
        findings = reasoned.findings
        if not is_rated:
            findings = {name: Finding(finding.value) for name, finding in findings.items()}
        entities, problems = evaluate_kpi(task.entities, findings, self._options.theta)
        if not reasoned.completed:
            problems = ["the status is failed", *problems]
        if self._options.entities:
            self._note_candidates("reasoner", task, findings, not problems)
        if not problems:
            return Done("reasoner", entities, _as_text(entities))
        head = f"Task {task.task_id} failed: the reasoning did not bring what was expected."
        feedback = _feedback(head, problems, "The reasoner says", "\n".join(reasoned.steps))
        return Failed("reasoner", _one_line("; ".join(problems)), feedback)

    @property
    def _confidences(self) -> str:
        """What confidences mean, with the spaces before it that its list has."""
        return self._prompts.texts["confidences"].rstrip()

    def _note_candidates(
        self, component: str, task: PlanTask, findings: Mapping[str, Finding], has_passed: bool, **details: Any
    ) -> None:
        """Write down what a task has brought, from which precision and recall at any theta are read off later."""
        candidates = {
            name: {"value": finding.value, "confidence": finding.confidence} for name, finding in findings.items()
        }
        verdict = "passed" if has_passed else "failed"
        self._run.note("extraction", component, verdict, task=task.task_id, **details, candidates=candidates)

    async def _ask_for(
        self,
        task: PlanTask,
        role: str,
        system: str,
        request: str,
        read: Callable[[str, Sequence[EntitySpec]], Reading],
    ) -> Reading:
        return await self._ask(role, system, request, lambda text: read(text, task.entities))


def _as_text(entities: Mapping[str, Any]) -> str:
    """Return what a task found as a text: a single text as it is, the rest as YAML."""
    values = list(entities.values())
    single = values[0] if len(values) == 1 else dict(entities)
    return single if isinstance(single, str) else dump_yaml(single)


def _cut(value: Any) -> Any:
    if isinstance(value, str):
        return _shortened(value)
    if isinstance(value, Mapping):
        return {name: _cut(item) for name, item in value.items()}
    return [_cut(item) for item in value] if isinstance(value, list) else value


def _shortened(text: str, length: int = _MAX_SHOWN) -> str:
    """Return a text that is not longer than it may be, with a mark where it was cut."""
    return text if len(text) <= length else f"{text[:length]} [cut: {len(text) - length:,} more characters]"


def _one_line(text: str) -> str:
    return _shortened(" ".join(text.split()), 500)


def _feedback(head: str, problems: Sequence[str], who: str = "", words: str = "") -> str:
    """Return what the replanner is told: what failed, what is wrong, and somebody's own words."""
    said = [f"{who}: {_shortened(words)}"] if words.strip() else []
    return "\n".join([head, *(f"- {problem}" for problem in problems), *said])


def _never_readable(task: PlanTask, component: Component, problem: UnreadableReplyError) -> Failed:
    head = f"Task {task.task_id} failed: no reply of the {component} could be read."
    feedback = _feedback(head, (), "The last one", str(problem))
    return Failed(component, _one_line(f"no readable reply: {problem}"), feedback)
