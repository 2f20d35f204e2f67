"""CodeAct as a policy: thought, then a block of Python, then what it printed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from resilisim.chat import ChatMessage
from resilisim.policies.llm.code_act.functions import PRELUDE, Finished, ToolFunctions, describe_functions
from resilisim.policies.llm.code_act.reading import Block, Proposal, call_as_proposal, read_proposal, words_of
from resilisim.policies.llm.options import AgentOptions, limit, number
from resilisim.policies.llm.policy import LlmPolicy
from resilisim.policies.llm.reading import Finish, Unreadable, excerpt
from resilisim.policies.llm.run import AgentRun
from resilisim.policies.llm.sandbox import CodeResult, Sandbox, SandboxLimits

LONGEST_RECORDED: Final = 4_000  # characters of a block that the agent's structure repeats; the reply is kept whole


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeActOptions(AgentOptions):
    """Options of CodeAct."""

    steps: int = limit(20, "blocks of code, and replies without one", least=1)
    output_chars: int = limit(2_000, "characters of output that are shown of a block", least=100)
    block_seconds: float = number(5.0, "running time of a block in seconds; tools do not count", least=0.01)
    memory_mib: int = limit(64, "memory of the code in MiB", least=8)


class CodeAct(LlmPolicy[CodeActOptions]):
    """Acts by writing Python that calls the tools (Wang et al., 2024).

    The namespace lasts for the episode. Each call of a tool is a turn of the environment; Python itself is free. Code
    runs in a sandbox and never in this process. Its calls are counted under "agent".
    """

    name = "code-act"
    options_class = CodeActOptions
    components = ("agent",)
    finish_form = "finish(answer) in a block"

    async def play(self, run: AgentRun) -> str | None:
        """Run block after block until the code, or a reply, finishes; the answer is what finish was given."""
        functions = ToolFunctions(run.tools)
        messages = [ChatMessage("system", self._instructions(run)), ChatMessage("user", run.task)]
        blocks: list[dict[str, Any]] = []
        run.structure["blocks"] = blocks
        async with Sandbox(self._limits(), functions.by_name, PRELUDE) as box:
            for _ in range(self.options.steps):
                proposal, words = await self._propose(run, messages)
                if isinstance(proposal, Finish):
                    return proposal.answer
                try:
                    observation = await self._observe(run, box, proposal, blocks)
                except Finished as finished:
                    blocks[-1]["finished"] = True
                    return finished.answer
                progress = f"\n\n{functions.progress}" if functions.progress else ""
                messages += [ChatMessage("assistant", words), ChatMessage("user", observation + progress)]
        run.fail("agent", f"no finish within {self.options.steps} steps")
        return None

    async def _propose(self, run: AgentRun, messages: list[ChatMessage]) -> tuple[Proposal, str]:
        """Ask for the next block, a second time for the code alone; also return the reply as it is to be kept."""
        proposal, words = await self._ask(run, messages)
        if not isinstance(proposal, Unreadable):
            return proposal, words
        run.count("asked_for_code_alone")
        retry = self.prompts.fill("retry", problem=proposal.problem)
        again, second_words = await self._ask(
            run, [*messages, ChatMessage("assistant", words), ChatMessage("user", retry)]
        )
        return again, second_words

    async def _ask(self, run: AgentRun, messages: list[ChatMessage]) -> tuple[Proposal, str]:
        reply = await run.ask("agent", messages)
        proposal = read_proposal(reply.text, is_cut=reply.is_cut)
        if not isinstance(proposal, Block) and not reply.is_cut:
            call = call_as_proposal(reply.text, run.tools)
            # An end that is made up behind a call is none.
            if isinstance(proposal, Unreadable) or (
                isinstance(call, Block) and isinstance(read_proposal(call.thought), Unreadable)
            ):
                proposal = call or proposal
        if isinstance(proposal, Unreadable):
            proposal = run.unreadable("agent", reply, proposal)
        return proposal, _kept(proposal, reply.text)

    async def _observe(
        self, run: AgentRun, box: Sandbox, proposal: Block | Unreadable, blocks: list[dict[str, Any]]
    ) -> str:
        """Run a block and return what the model is told."""
        if isinstance(proposal, Unreadable):
            return self.prompts.fill("reminder", problem=proposal.problem)
        # Written down before it runs: the episode may end inside any call of a tool.
        blocks.append({"thought": proposal.thought, "code": excerpt(proposal.code, LONGEST_RECORDED)})
        result = await box.run(proposal.code)
        blocks[-1].update(output=result.output, error=result.error, restarted=result.restarted, calls=result.calls)
        _note(run, result)
        return self.prompts.fill("observation", output=result.observation)

    def _instructions(self, run: AgentRun) -> str:
        return self.prompts.fill(
            "system",
            functions=describe_functions(run.tools),
            facts=run.facts,
            shown=f"{self.options.output_chars:,}",
            examples=self.prompts.examples(),
        )

    def _limits(self) -> SandboxLimits:
        return SandboxLimits(
            seconds=self.options.block_seconds,
            memory_mib=self.options.memory_mib,
            shown_characters=self.options.output_chars,
        )


def _note(run: AgentRun, result: CodeResult) -> None:
    reason = "" if result.error is None else result.error.rpartition("\n")[2]
    run.note("code", "agent", excerpt(reason), calls=result.calls, restarted=result.restarted)
    run.count("blocks")
    if result.error is not None:
        run.count("block_errors")
    if result.restarted:
        run.count("sandbox_restarts")
        run.note("warning", "sandbox", f"the sandbox was stopped: {excerpt(reason)}")


def _kept(proposal: Proposal, text: str) -> str:
    """Return a reply as it stays in the conversation: put together anew, without what follows the first block."""
    if not isinstance(proposal, Block):
        return words_of(text)
    thought = f"{proposal.thought}\n\n" if proposal.thought else ""
    return f"{thought}```python\n{proposal.code}\n```"
