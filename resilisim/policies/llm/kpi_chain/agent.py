"""KPI-Chain as a policy: a plan whose tasks say what they must find, tested task by task, continued where one fails."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from resilisim.chat import ChatMessage
from resilisim.policies.llm.kpi_chain.chain_plan import (
    PENDING,
    ChainPlan,
    Memory,
    PlanTask,
    Reference,
    ReplanCounts,
)
from resilisim.policies.llm.kpi_chain.plan_reading import PlanRules, read_plan
from resilisim.policies.llm.kpi_chain.worker import (
    Done,
    Failed,
    KpiChainOptions,
    Worker,
    as_text,
    ask_until_read,
    shortened,
)
from resilisim.policies.llm.kpi_chain.yaml_text import UnreadableReplyError, dump_yaml
from resilisim.policies.llm.policy import LlmPolicy
from resilisim.policies.llm.run import AgentRun
from resilisim.policies.llm.templates import DEFAULT_EXAMPLES, PromptTexts
from resilisim.policies.llm.tools import describe_tools

_INTERPOLATION = {
    True: "A single text or number may also be written into a longer text: `<JSON_PATH>T1.name</JSON_PATH> parents`.",
    False: "A reference stands alone in its value, never within a longer text.",
}
_MAX_SHOWN: Final = 2_000  # characters of one text among the results that the replanner sees


class KpiChain(LlmPolicy[KpiChainOptions]):
    """Planning with typed entities as the test of every task, and continuation after failures ("KPI-Chain").

    The planner writes tasks, each with the entities that it has to find. A tool task calls its tool, the extractor
    reads the entities out of the output, and they are remembered if all are there, of their types, and sure enough; a
    reasoning task is one call of the reasoner. Later tasks refer to what is remembered. When a task fails, the
    replanner is told why and writes the tasks that lead from there to the answer::

        policy = KpiChain(models=RoleModels(large, {"extractor": small}), theta=0.8)
    """

    name = "kpi-chain"
    options_class = KpiChainOptions
    components = ("planner", "replanner", "extractor", "reasoner")

    async def play(self, run: AgentRun) -> str | None:
        """Plan, carry out, replan; the answer is the `final_answer` of the last task."""
        state = ChainState(run, self.options)
        planners = Planners(run, self.options, self.prompts)
        worker = Worker(run, self.options, self.prompts, state.lookup)
        try:
            try:
                state.start(*await planners.first_plan())
            except UnreadableReplyError as problem:
                run.fail("planner", str(problem))
                return None
            while (task := state.plan.next_task()) is not None:
                outcome = await worker.carry_out(task)
                if isinstance(outcome, Done):
                    state.succeed(task, outcome)
                elif not await self._recovers(planners, state, task, outcome):
                    return None
            state.conclude()
            return as_text(state.plan.tasks[-1].result)
        finally:
            # The episode may end inside any call while a failure is being made good.
            state.put_down_open_failure()

    async def _recovers(self, planners: Planners, state: ChainState, task: PlanTask, outcome: Failed) -> bool:
        """Replan after a failure; return whether there is a way on."""
        state.fail(task, outcome)
        if not self.options.replanning or not state.counts.left(task.task_id):
            state.give_up(task)
            return False
        state.spend_replan(task)
        try:
            state.go_on(task, *await planners.continuation(state, task, outcome))
        except UnreadableReplyError as problem:
            state.give_up(task)
            state.run.fail("replanner", str(problem))
            return False
        return True


class Planners:
    """Planner and replanner of one episode; what they write comes with warnings about what was put right."""

    def __init__(self, run: AgentRun, options: KpiChainOptions, prompts: PromptTexts) -> None:
        self._run = run
        self._options = options
        self._prompts = prompts
        self._tools = describe_tools(run.tools.specs)

    async def first_plan(self) -> tuple[ChainPlan, tuple[str, ...]]:
        """Ask for a plan of the whole task, or raise `UnreadableReplyError`."""
        is_default = self._options.examples == DEFAULT_EXAMPLES
        of_texts = is_default and not self._options.entities
        examples = self._prompts.fill("examples_text") if of_texts else self._prompts.examples()
        system = self._prompts.fill("planner", plan_format=self._plan_format(), examples=examples)
        request = self._prompts.fill("planner_request", tools=self._tools, facts=self._run.facts, query=self._run.task)
        return await self._ask("planner", system, request)

    async def continuation(
        self, state: ChainState, failed: PlanTask, outcome: Failed
    ) -> tuple[ChainPlan, tuple[str, ...]]:
        """Ask for the tasks that lead from a failure to the answer, or raise `UnreadableReplyError`."""
        kept = state.plan.kept_after(failed.task_id)
        used_ids = state.counts.used_ids
        request = self._prompts.fill(
            "replanner_request",
            tools=self._tools,
            facts=self._run.facts,
            query=self._run.task,
            plan=dump_yaml(state.plan_for_prompt()),
            failed_task=failed.task_id,
            used_ids=", ".join(used_ids),
            kept_ids=_listed(task.task_id for task in kept if task.status == PENDING),
            removed_ids=_listed(task.task_id for task in state.plan.tasks if task not in kept),
            feedback=outcome.feedback,
        )
        system = self._prompts.fill("replanner", plan_format=self._plan_format())
        return await self._ask("replanner", system, request, kept, used_ids)

    async def _ask(
        self, role: str, system: str, request: str, kept: tuple[PlanTask, ...] = (), used_ids: tuple[str, ...] = ()
    ) -> tuple[ChainPlan, tuple[str, ...]]:
        options = self._options
        rules = PlanRules(
            self._run.tools.specs, options.interpolation, options.entities, options.memory, kept, used_ids
        )
        messages = (ChatMessage("system", system), ChatMessage("user", request))
        return await ask_until_read(
            self._run, role, messages, lambda text: read_plan(text, rules), self._options.retries
        )

    def _plan_format(self) -> str:
        name = "plan_format" if self._options.entities else "plan_format_text"
        return self._prompts.fill(name, interpolation=_INTERPOLATION[self._options.interpolation])


def _listed(ids: Iterable[str]) -> str:
    return ", ".join(ids) or "none"


class ChainState:
    """Plan and memory of one episode; every change is written into the record at once."""

    def __init__(self, run: AgentRun, options: KpiChainOptions) -> None:
        self.run = run
        self.plan = ChainPlan()
        self.counts = ReplanCounts(options.replans)
        self._memory = Memory(keeps_entities=options.memory and options.entities)
        self._open_failures: dict[str, Failed] = {}
        self._publish()

    def lookup(self, reference: Reference) -> Any:
        """Return what a reference stands for now, or raise `UnresolvedError`."""
        return self._memory.lookup(reference, self.plan)

    def start(self, plan: ChainPlan, warnings: Sequence[str]) -> None:
        """Take up the first plan."""
        self.plan = plan
        self._take_up("plan", "planner", plan, warnings)

    def succeed(self, task: PlanTask, outcome: Done) -> None:
        """Remember what a task found."""
        self.plan = self.plan.done(task.task_id, outcome.entities)
        self._memory.store(task.task_id, outcome.entities, outcome.output)
        self._open_failures.pop(self.counts.lineage(task.task_id), None)
        self._publish()
        self.run.note("task_done", outcome.component, task.task_id, task=task.task_id)
        self.run.note("memory", "agent", task.task_id, task=task.task_id, entities=dict(outcome.entities))

    def fail(self, task: PlanTask, outcome: Failed) -> None:
        """Write down that a task failed; the first failure of a lineage is what its end would be put down to."""
        self.plan = self.plan.failed(task.task_id, outcome.reason)
        self._open_failures.setdefault(self.counts.lineage(task.task_id), outcome)
        self._publish()
        self.run.note("task_failed", outcome.component, outcome.reason, task=task.task_id)

    def go_on(self, failed: PlanTask, continuation: ChainPlan, warnings: Sequence[str]) -> None:
        """Put a continuation into the plan."""
        before = {task.task_id for task in self.plan.tasks}
        self.plan = self.plan.continued(failed.task_id, continuation)
        removed = sorted(before - {task.task_id for task in self.plan.tasks})
        self._take_up("replan", "replanner", continuation, warnings, failed=failed.task_id, removed=removed)

    def spend_replan(self, task: PlanTask) -> None:
        """Count one more plan for a task's lineage."""
        self.counts.spend(task.task_id)
        self.run.count("replans")
        self._publish()

    def give_up(self, task: PlanTask) -> None:
        """Put the end of the episode down to what failed first in a task's lineage."""
        first = self._open_failures.pop(self.counts.lineage(task.task_id))
        self._open_failures.clear()
        self.run.fail(first.component, first.reason)

    def put_down_open_failure(self) -> None:
        """If the episode ends while a failure is being made good, put its end down to that."""
        if self._open_failures:
            last = next(reversed(self._open_failures.values()))
            self._open_failures.clear()
            self.run.fail(last.component, last.reason)

    def conclude(self) -> None:
        """There is an answer: what failed on the way was made good."""
        self._open_failures.clear()

    def plan_for_prompt(self) -> dict[str, Any]:
        """Return the plan with statuses and what is remembered, long texts cut."""
        remembered = self._memory.to_mapping()
        return {
            "tasks": [
                {**task.to_mapping(), "execution_result": _cut(remembered.get(task.task_id, {}))}
                for task in self.plan.tasks
            ]
        }

    def _take_up(self, kind: str, component: str, plan: ChainPlan, warnings: Sequence[str], **details: Any) -> None:
        ids = [task.task_id for task in plan.tasks]
        self.counts.register(ids)
        self._publish()
        self.run.note(kind, component, ", ".join(ids), tasks=ids, **details)
        for warning in warnings:
            self.run.note("warning", component, warning)

    def _publish(self) -> None:
        self.run.structure["plan"] = self.plan.to_mapping()
        self.run.structure["memory"] = self._memory.to_mapping()
        self.run.structure["replans"] = self.counts.to_mapping()


def _cut(value: Any) -> Any:
    if isinstance(value, str):
        return shortened(value, _MAX_SHOWN)
    if isinstance(value, Mapping):
        return {name: _cut(item) for name, item in value.items()}
    return [_cut(item) for item in value] if isinstance(value, list) else value
