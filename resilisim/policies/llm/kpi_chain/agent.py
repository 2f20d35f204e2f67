"""KPI-Chain as a policy: a plan whose tasks say what they must find, tested task by task, continued where one fails."""

from __future__ import annotations

from resilisim.policies.llm.kpi_chain.asking import NeverReadable
from resilisim.policies.llm.kpi_chain.memory import Memory
from resilisim.policies.llm.kpi_chain.options import KpiChainOptions
from resilisim.policies.llm.kpi_chain.outcomes import Done, Failed
from resilisim.policies.llm.kpi_chain.planning import Planners
from resilisim.policies.llm.kpi_chain.state import ChainState
from resilisim.policies.llm.kpi_chain.types import PlanTask
from resilisim.policies.llm.kpi_chain.worker import Worker, as_text
from resilisim.policies.llm.policy import LlmPolicy
from resilisim.policies.llm.run import AgentRun


class KpiChain(LlmPolicy[KpiChainOptions]):
    """Planning with typed entities as the test of every task, and continuation after failures ("KPI-Chain").

    The planner writes tasks, each with the entities that it has to find. A tool task calls its tool, the extractor
    reads the entities out of the output, and they are remembered if all are there, of their types, and sure enough; a
    reasoning task is one call of the reasoner. Later tasks refer to what is remembered. When a task fails, the
    replanner is told why and writes the tasks that lead from there to the answer.
    """

    name = "kpi-chain"
    options_class = KpiChainOptions
    components = ("planner", "replanner", "extractor", "reasoner")

    async def play(self, run: AgentRun) -> str | None:
        """Plan, carry out, replan; the answer is the `final_answer` of the last task."""
        memory = Memory(keeps_entities=self.options.memory and self.options.entities)
        state = ChainState(run, memory, self.options.replans)
        planners = Planners(run, self.options, self.prompts)
        worker = Worker(run, self.options, self.prompts, state)
        try:
            first = await planners.first_plan()
            if isinstance(first, NeverReadable):
                state.give_up_by("planner", first.problem)
                return None
            state.start(*first)
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
        continuation = await planners.continuation(state, task, outcome)
        if isinstance(continuation, NeverReadable):
            state.give_up_by("replanner", continuation.problem, after=task)
            return False
        state.go_on(task, *continuation)
        return True
