"""RP-ReAct as a policy: a planner with a clean conversation, and executors that do the work."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from resilisim.chat import ChatMessage, ChatModel, RoleModels
from resilisim.chat.middleware import PriceTable
from resilisim.policies.llm.agents.react import LoopResult, loop_tools, react_loop
from resilisim.policies.llm.conversation import CONVERSATION_TOOLS
from resilisim.policies.llm.options import AgentOptions, limit, number, text
from resilisim.policies.llm.policy import LlmPolicy
from resilisim.policies.llm.reading import Finish, Unreadable, excerpt
from resilisim.policies.llm.rp_react.history import NOTHING, History
from resilisim.policies.llm.rp_react.marks import STOP, Query, read_move, result_block, written
from resilisim.policies.llm.rp_react.team import Executor, addressed, checked_specs, offloaded_tools, read_team
from resilisim.policies.llm.rp_react.toolbox import ExecutorToolbox, Offloading, describe_variable
from resilisim.policies.llm.rp_react.variables import Variables
from resilisim.policies.llm.run import AgentRun
from resilisim.policies.llm.sandbox import Sandbox, SandboxLimits
from resilisim.policies.llm.templates import NO_EXAMPLES, PromptTexts
from resilisim.policies.llm.tools import ToolSpec

PLANNER: Final = "planner"
EXECUTOR: Final = "executor"
LONGEST_RESULT: Final = 8_000  # characters of an executor's answer that the planner is given
_EXAMPLE_OF = "example_{}"  # the template with the executors' example of a tool


@dataclass(frozen=True, slots=True, kw_only=True)
class RPReActOptions(AgentOptions):
    """Options of RP-ReAct."""

    temperature: float | None = number(
        0.6, "sampling temperature; none leaves it to the model", least=0.0, most=2.0, optional=True
    )
    top_p: float | None = number(
        1.0, "nucleus sampling; none leaves it to the model", least=0.0, most=1.0, optional=True
    )
    steps: int = limit(10, "replies of the planner", least=1)
    subquestions: int = limit(10, "sub-questions in one task", least=1)
    executor_steps: int = limit(10, "steps of an executor for one sub-question", least=1)
    executors: str = text("all", "all: one with every tool; or NAME:TOOL+TOOL;NAME:TOOL, each with its own")
    offload_tokens: int = limit(1_000, "tokens beyond which an output is stored in a variable", least=1)
    preview_tokens: int = limit(100, "tokens that are shown of an output that is stored", least=1)
    offload_tools: str = text("all", "tools whose long outputs are stored: all that return data, or TOOL+TOOL")
    # All that the limits above may take: planner's replies, and executors' steps, each with a second try.
    max_llm_calls: int = limit(250, "calls of the model in one episode; the next one ends the episode", least=1)
    block_seconds: float = number(5.0, "running time of Python code in seconds", least=0.01)
    memory_mib: int = limit(64, "memory of Python code in MiB", least=8)


class RPReAct(LlmPolicy[RPReActOptions]):
    """A reasoner-planner that supervises ReAct executors (Molinari and Ciravegna, 2026).

    The planner asks one sub-question after the other, each answered by an executor with a ReAct loop of its own. Long
    outputs of tools are stored in variables that live for the whole task; executor and planner see their beginning.

    Args:
        models: Who answers: one model, or one for each component.
        prices: Prices of models, for the record.
        tools: What the toolbox of its episodes offers, by which the options that name tools are checked.
        **options: The agent's options, by name; values or their texts.

    Raises:
        InvalidInputError: There is no model, an option is unknown or out of range, or one names an unknown tool.
    """

    name = "rp-react"
    options_class = RPReActOptions
    components = (PLANNER, EXECUTOR)

    def __init__(
        self,
        models: RoleModels | ChatModel | None = None,
        *,
        prices: PriceTable | None = None,
        tools: Iterable[ToolSpec] = CONVERSATION_TOOLS,
        **options: object,
    ) -> None:
        super().__init__(models, prices=prices, **options)
        specs = checked_specs(tools)
        self._team = read_team(self.options.executors)
        for executor in self._team:
            executor.specs(specs)
        offloaded_tools(self.options.offload_tools, specs)

    async def play(self, run: AgentRun) -> str | None:
        """Let the planner ask until it gives a final answer."""
        task = _Task(self.options, self.prompts, run, self._team)
        limits = SandboxLimits(seconds=self.options.block_seconds, memory_mib=self.options.memory_mib)
        async with Sandbox(limits) as box:
            try:
                return await task.solve(Variables(box))
            finally:
                # The episode may also end inside any call while the planner makes a failure good.
                task.put_down_open_failure()


class _Task:
    """One task: the planner's conversation and the executors' work."""

    def __init__(
        self, options: RPReActOptions, prompts: PromptTexts, run: AgentRun, team: tuple[Executor, ...]
    ) -> None:
        self._options = options
        self._prompts = prompts
        self._run = run
        self._team = team
        self._specs = {executor.name: executor.specs(run.tools.specs) for executor in team}
        self._history = History(run.structure)
        self._offload_tools = offloaded_tools(options.offload_tools, run.tools.specs)
        self._open_failure: str | None = None  # of an executor, the first that no later sub-question has made good

    async def solve(self, variables: Variables) -> str | None:
        run = self._run
        messages = [ChatMessage("system", self._planner_instructions()), ChatMessage("user", run.task)]
        for step in range(1, self._options.steps + 1):
            reply = await run.ask(PLANNER, messages, stop=STOP)
            move = read_move(reply.text)
            if isinstance(move, Finish):
                return move.answer
            if isinstance(move, Unreadable):
                move = run.unreadable(PLANNER, reply, move)
            answer = await self._react_to(move, variables)
            messages.append(ChatMessage("assistant", written(move, reply)))
            messages.append(ChatMessage("user", f"{answer}\n\n{self._remaining(step)}"))
        self.put_down_open_failure()
        run.fail(PLANNER, f"no final answer within {self._options.steps} steps")
        return None

    def put_down_open_failure(self) -> None:
        """Put what becomes of the episode down to an executor's failure, if there is one that was not made good."""
        if self._open_failure is not None:
            self._run.fail(EXECUTOR, self._open_failure)
            self._open_failure = None

    async def _react_to(self, move: Query | Unreadable, variables: Variables) -> str:
        """Return what the planner is told: a result between its marks, or why there is none."""
        if isinstance(move, Unreadable):
            return self._prompts.fill("invalid_format", problem=move.problem)
        found = addressed(move.question, self._team)
        if isinstance(found, str):
            self._run.note("malformed_reply", PLANNER, found, excerpt=move.question)
            self._run.count("malformed_replies")
            return self._prompts.fill("invalid_format", problem=found)
        executor, question = found
        refusal = self._refusal(executor, question)
        if refusal is not None:
            self._run.note("invalid_action", PLANNER, refusal, excerpt=question)
            self._run.count("refused_subquestions")
            return self._prompts.fill("refused", problem=refusal)
        result = await self._answered(executor, question, variables)
        return result_block(result) if result else f"{result_block('')}\n{self._prompts.fill('failed')}"

    def _refusal(self, executor: Executor, question: str) -> str | None:
        earlier = self._history.number_of(question, executor.name)
        if earlier is not None:
            return f"this is the same as sub-question {earlier}, whose result you have"
        if len(self._history.asked) >= self._options.subquestions:
            return f"all {self._options.subquestions} sub-questions are used"
        return None

    async def _answered(self, executor: Executor, question: str, variables: Variables) -> str:
        """Let an executor answer; empty if it does not."""
        specs, options = self._specs[executor.name], self._options
        offloading = Offloading(options.offload_tokens, options.preview_tokens, self._offload_tools)
        toolbox = ExecutorToolbox(self._run, specs, variables, offloading, self._prompts)
        system = self._executor_instructions(specs, toolbox, variables)
        self._run.note("subquestion", PLANNER, question, executor=executor.name)
        self._run.count("subquestions")
        self._history.begin(question, executor.name)
        outcome = await react_loop(
            self._run,
            role=EXECUTOR,
            system=system,
            question=question,
            tools=toolbox,
            steps=options.executor_steps,
            native=False,
            limit_is_failure=False,  # the planner may make it good
            on_step=self._history.add_step,
        )
        result = excerpt(outcome.result.strip(), LONGEST_RESULT)
        if result:
            # The planner is told of stored outputs whatever the executor says of them.
            stored = [describe_variable(variable, self._prompts) for variable in toolbox.stored]
            result = "\n\n".join([result, *stored])
        self._judge(result, outcome)
        self._history.end(result)
        return result

    def _judge(self, result: str, outcome: LoopResult) -> None:
        """Hold an executor's failure until a later sub-question succeeds."""
        if result:
            self._open_failure = None
            return
        limit = f"no finish within {self._options.executor_steps} steps"
        problem = limit if outcome.answer is None else "finish with an empty answer"
        self._run.note("warning", EXECUTOR, problem)
        if self._open_failure is None:
            self._open_failure = problem

    def _planner_instructions(self) -> str:
        return self._prompts.fill(
            "planner",
            capabilities=self._capabilities(),
            address=self._address(),
            facts=self._run.facts,
            subquestions=str(self._options.subquestions),
            examples=self._prompts.examples(),
        )

    def _address(self) -> str:
        return f"\n{self._prompts.fill('address', first=self._team[0].name)}\n" if len(self._team) > 1 else ""

    def _capabilities(self) -> str:
        """Return what executors can be asked for, in plain English."""
        python = "- run Python code that you describe, on numbers that you give or on variables that hold long outputs"
        parts = []
        for executor in self._team:
            lines = [f"- {spec.description[:1].lower()}{spec.description[1:]}" for spec in self._specs[executor.name]]
            heading = [f"Executor `{executor.name}`:"] if len(self._team) > 1 else []
            parts.append("\n".join([*heading, *lines, python]))
        return "\n\n".join(parts)

    def _executor_instructions(
        self, specs: tuple[ToolSpec, ...], toolbox: ExecutorToolbox, variables: Variables
    ) -> str:
        kept = [f"- {stored.name} ({stored.kind}, from {stored.tool})" for stored in variables.stored]
        return self._prompts.fill(
            "executor",
            tools=loop_tools(toolbox),
            facts=self._run.facts,
            examples=self._executor_examples(toolbox),
            variables="\n".join(kept) or NOTHING,
            history=self._history.to_text(self._options.offload_tokens),
        )

    def _executor_examples(self, toolbox: ExecutorToolbox) -> str:
        """Return one example for each tool that has one."""
        if self._options.examples == NO_EXAMPLES:
            return ""
        names = [_EXAMPLE_OF.format(spec.name) for spec in toolbox.specs]
        texts = [self._prompts.fill(name) for name in names if name in self._prompts.texts]
        return "\n\n".join(texts)

    def _remaining(self, step: int) -> str:
        """Return what is left, which the planner cannot see otherwise."""
        steps = f"You have {self._options.steps - step} more replies."
        turns = self._run.turns_left
        return steps if turns is None else f"{steps} The tools can be used {turns} more times."
