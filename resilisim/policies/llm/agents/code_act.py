"""CodeAct: thought, then a block of Python that calls the tools as functions, then what it printed."""

from __future__ import annotations

import json
import re
import textwrap
from dataclasses import dataclass
from typing import Annotated, Any, Final

from annotated_types import Ge

from resilisim.chat import ChatMessage
from resilisim.chat.json_answers import LONGEST_READ
from resilisim.envs.protocol.completion_signal import has_finish_mark
from resilisim.options import option
from resilisim.policies.llm.agent_options import AgentOptions
from resilisim.policies.llm.agent_run import AgentRun
from resilisim.policies.llm.agents.react import FINISH_TOOL, finish_answer
from resilisim.policies.llm.conversation_toolbox import CONVERSATION_TOOLS
from resilisim.policies.llm.policy import LlmPolicy
from resilisim.policies.llm.reply_reading import (
    LONGEST_WORDS,
    Action,
    Finish,
    Unreadable,
    excerpt,
    kept_words,
    read_action,
    visible,
)
from resilisim.policies.llm.tools import Toolbox, ToolSpec, value_for_code
from resilisim.sandbox import CodeResult, HostCallError, HostFunction, JsonValue, Sandbox, SandboxLimits

LONGEST_RECORDED: Final = 4_000  # characters of a block that the agent's structure repeats; the reply is kept whole
PRELUDE: Final = "ToolError = RuntimeError"  # what a failed tool raises, by a name that says so

_LANGUAGES = ("python", "python3", "py")
_NO_LANGUAGE = ""
_FENCE = re.compile(r"```(?P<language>[\w+-]{0,20})[^\S\n]*")
_OPENING = re.compile(rf"<execute>|{_FENCE.pattern}", re.IGNORECASE)
_FENCE_END = re.compile(r"^[^\S\n]*```", re.MULTILINE)
_NEXT_FENCE = re.compile(r"[^\S\n]*```\w")  # with a language it opens a block, also where it closes the one before
_TAG_END = re.compile(r"</execute>", re.IGNORECASE)
_FINISH = re.compile(r"<finish>", re.IGNORECASE)
_CLOSED_FINISH = re.compile(r"<finish>((?:(?!</?finish>).)*)</finish>", re.IGNORECASE | re.DOTALL)
_CODE_MARK = re.compile(
    r"(?:```tool_code[^\S\n]*\n|<\|python_tag\|>|<\|python_start\|>)(.*?)(?:```|<\|(?:eom_id|eot_id|python_end)\|>|\Z)",
    re.DOTALL,
)
_NOT_IN_NAMES = re.compile(r"\W")
_KINDS: Final = {
    "string": "str",
    "integer": "int",
    "number": "float",
    "boolean": "bool",
    "object": "dict",
    "array": "list",
}


@dataclass(frozen=True, slots=True)
class Block:
    """A block of code, and what the model wrote before it."""

    code: str
    thought: str = ""


Proposal = Block | Finish | Unreadable


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeActOptions(AgentOptions):
    """Options of CodeAct."""

    steps: Annotated[int, Ge(1)] = option(20, "blocks of code, and replies without one")
    output_chars: Annotated[int, Ge(100)] = option(2_000, "characters of output that are shown of a block")
    block_seconds: Annotated[float, Ge(0.01)] = option(5.0, "running time of a block in seconds; tools do not count")
    memory_mib: Annotated[int, Ge(8)] = option(64, "memory of the code in MiB")


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
        limits = SandboxLimits(
            seconds=self.options.block_seconds,
            memory_mib=self.options.memory_mib,
            shown_characters=self.options.output_chars,
        )
        async with Sandbox(limits, functions.by_name, PRELUDE) as box:
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
        run.fail("agent", f"no finish within {self.options.steps} steps", limit="steps")
        return None

    async def _propose(self, run: AgentRun, messages: list[ChatMessage]) -> tuple[Proposal, str]:
        """Ask for the next block, a second time for the code alone; also return the reply as it is to be kept."""
        proposal, words = await self._ask(run, messages)
        if not isinstance(proposal, Unreadable):
            return proposal, words
        run.count("asked_for_code_alone")
        retry = self.prompts.fill("retry", problem=proposal.problem)
        return await self._ask(run, [*messages, ChatMessage("assistant", words), ChatMessage("user", retry)])

    async def _ask(self, run: AgentRun, messages: list[ChatMessage]) -> tuple[Proposal, str]:
        reply = await run.ask("agent", messages)
        proposal = read_proposal(reply.text, is_cut=reply.is_cut)
        if not isinstance(proposal, Block) and not reply.is_cut:
            call = call_as_proposal(reply.text, run.tools) or marked_code(reply.text)
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
        counters = ["blocks"] if result.error is None else ["blocks", "block_errors"]
        note_code(run, "agent", result, excerpt(result.reason or ""), *counters, calls=result.calls)
        return self.prompts.fill("observation", output=result.observation)

    def _instructions(self, run: AgentRun) -> str:
        return self.prompts.fill(
            "system", functions=describe_functions(run.tools), facts=run.facts, shown=f"{self.options.output_chars:,}"
        )


def note_code(run: AgentRun, component: str, result: CodeResult, reason: str, *counters: str, **details: Any) -> None:
    """Write down that a component ran code, and that its sandbox was stopped if it was."""
    run.note("code", component, reason, **details, restarted=result.restarted)
    for name in counters:
        run.count(name)
    if result.restarted:
        run.count("sandbox_restarts")
        run.note("warning", "sandbox", f"the sandbox was stopped: {reason}")


def _kept(proposal: Proposal, text: str) -> str:
    """Return a reply as it stays in the conversation: put together anew, without what follows the first block."""
    if not isinstance(proposal, Block):
        return kept_words(text)
    thought = f"{proposal.thought}\n\n" if proposal.thought else ""
    return f"{thought}```python\n{proposal.code}\n```"


class Finished(Exception):
    """The code called finish, with the answer; it goes no further."""

    def __init__(self, answer: str) -> None:
        super().__init__(answer)
        self.answer = answer


class ToolFunctions:
    """Tools as functions, `finish` among them; `progress` is what the environment said last about turns, if it did."""

    def __init__(self, tools: Toolbox) -> None:
        # Also where tools have functions of their own, code may call one by its name, as the packaged example does.
        specs = (*CONVERSATION_TOOLS, *tools.specs)
        self.by_name: dict[str, HostFunction] = {python_name(spec): self._function(tools, spec) for spec in specs}
        self.by_name["finish"] = _finish
        self.progress = ""

    def _function(self, tools: Toolbox, spec: ToolSpec) -> HostFunction:
        async def call(positional: list[JsonValue], named: dict[str, JsonValue]) -> Any:
            result = await tools.call(spec.name, bound(spec, positional, named))
            self.progress = result.progress or self.progress
            if result.error is not None:
                raise HostCallError(result.error)
            return value_for_code(spec.name, result)

        return call


def python_name(spec: ToolSpec) -> str:
    """Return the name of a tool's function."""
    return _NOT_IN_NAMES.sub("_", spec.name)


def bound(spec: ToolSpec, positional: list[JsonValue], named: dict[str, JsonValue]) -> dict[str, Any]:
    """Return the arguments of a call by the names of the tool's parameters, or raise `HostCallError`.

    Named values that the tool does not have go into its parameter that is an object, if it has one such:
    `tool_call("reader", source="x")` is `tool_call("reader", {"source": "x"})`.
    """
    names = spec.parameter_names
    if len(positional) > len(names):
        raise HostCallError(f"{len(positional)} values without a name are too many: {spec.signature()}")
    arguments: dict[str, Any] = dict(zip(names, positional, strict=False))
    twice = [name for name in named if name in arguments]
    if twice:
        raise HostCallError(f"{twice[0]!r} is given twice: {spec.signature()}")
    arguments.update({name: value for name, value in named.items() if name in names})
    others = {name: value for name, value in named.items() if name not in names}
    return _with_others(spec, arguments, others) if others else arguments


def _with_others(spec: ToolSpec, arguments: dict[str, Any], others: dict[str, Any]) -> dict[str, Any]:
    properties = spec.parameters.get("properties", {})
    objects = [name for name, schema in properties.items() if _kind(schema) == "dict"]
    own = arguments.get(objects[0]) if len(objects) == 1 else None
    if len(objects) != 1 or not (own is None or isinstance(own, dict)):
        raise HostCallError(f"there is no parameter {next(iter(others))!r}: {spec.signature()}")
    return {**arguments, objects[0]: {**(own or {}), **others}}


async def _finish(positional: list[JsonValue], named: dict[str, JsonValue]) -> Any:
    values = [*positional, *named.values()]
    answer = "" if not values else values[0] if len(values) == 1 else values
    raise Finished(answer if isinstance(answer, str) else json.dumps(answer, ensure_ascii=False))


def describe_functions(tools: Toolbox) -> str:
    """Return the list of functions for a prompt."""
    lines = [f"- {_python_signature(spec)}: {spec.description}" for spec in tools.specs]
    return "\n".join([*lines, "- finish(answer): Ends the work and gives the answer."])


def _python_signature(spec: ToolSpec) -> str:
    properties = spec.parameters.get("properties", {})
    needed = [f"{name}: {_kind(schema)}" for name, schema in properties.items() if name in spec.required]
    optional = [f"{name}: {_kind(schema)} = None" for name, schema in properties.items() if name not in spec.required]
    return f"{python_name(spec)}({', '.join([*needed, *optional])})"


def _kind(schema: Any) -> str:
    return _KINDS.get(str(schema.get("type")), "object") if isinstance(schema, dict) else "object"


def read_proposal(text: str, is_cut: bool = False) -> Proposal:
    """Find the first block of a reply; only where there is none, `<finish>` counts.

    A fence without a language is a block only where no fence with one and no `<execute>` stands in the reply: beside
    those it quotes something, often the output of a tool. A `<finish>` that is never closed is a word, and a block that
    is never closed lacks its rest where the reply ended at its limit of tokens (`is_cut`).
    """
    shown = visible(text)[:LONGEST_READ]
    block = _first_block(shown)
    if block is None:
        closed = _CLOSED_FINISH.search(shown)
        if closed is not None or has_finish_mark(shown):
            return Finish("" if closed is None else closed[1].strip())
        opened = ", and its <finish> is never closed" if _FINISH.search(shown) else ""
        problem = f"the reply holds no block of code{opened}" if shown else "the reply is empty"
        return Unreadable(problem, excerpt(shown))
    start, code, is_closed = block
    if not is_closed and is_cut:
        return Unreadable("the block of code is cut off", excerpt(shown[start:]))
    code = textwrap.dedent(code).strip("\n")
    if not code.strip():
        return Unreadable("the block of code is empty", excerpt(shown[start:]))
    return Block(code, excerpt(shown[:start].strip(), LONGEST_WORDS))


def call_as_proposal(text: str, tools: Toolbox) -> Block | Finish | None:
    """Return the code of a single call that a reply makes in another form than code; None if it makes none.

    Models that were trained to call tools by JSON do so here, too.
    """
    action = read_action(text, (*tools.specs, FINISH_TOOL))
    if not isinstance(action, Action):
        return None
    if action.name == FINISH_TOOL.name:
        return Finish(finish_answer(action.arguments))
    spec = next((spec for spec in tools.specs if spec.name == action.name), None)
    return None if spec is None else Block(f"print({python_name(spec)}(**{action.arguments!r}))", action.thought)


def marked_code(text: str) -> Block | None:
    """Return the code behind a mark with which some models begin code as well as calls; None if there is none."""
    shown = visible(text)[:LONGEST_READ]
    mark = _CODE_MARK.search(shown)
    code = "" if mark is None else textwrap.dedent(mark.group(1)).strip("\n")
    return (
        None if mark is None or not code.strip() else Block(code, excerpt(shown[: mark.start()].strip(), LONGEST_WORDS))
    )


def _first_block(text: str, opening: re.Pattern[str] = _OPENING) -> tuple[int, str, bool] | None:
    """Return where the first block begins, its code, and whether it is closed."""
    unlabelled: tuple[int, str, bool] | None = None
    position = 0
    while (opened := opening.search(text, position)) is not None:
        language = opened.group("language")
        if language is None:
            return _tagged(text, opened.start(), opened.end())
        start, end, following = _fence_content(text, opened.end())
        block = opened.start(), text[start:end], following is not None
        if language.lower() in _LANGUAGES:
            return block
        if language == _NO_LANGUAGE and unlabelled is None:
            unlabelled = block
        if following is None:
            break
        position = following
    return unlabelled


def _tagged(text: str, opened: int, start: int) -> tuple[int, str, bool]:
    """Return the block between the tags `<execute>`, which may hold a fence."""
    closed = _TAG_END.search(text, start)
    inner = text[start : closed.start() if closed else len(text)]
    fenced = _first_block(inner, _FENCE)
    return opened, fenced[1] if fenced else inner, closed is not None


def _fence_content(text: str, start: int) -> tuple[int, int, int | None]:
    """Return the beginning and end of what is fenced, and where the text goes on; None if the fence is not closed."""
    inline = text.find("```", start)
    if inline >= 0 and text.find("\n", start, inline) < 0:
        return start, inline, inline + 3
    closed = _FENCE_END.search(text, start)
    if closed is None:
        return start, len(text), None
    is_next = _NEXT_FENCE.match(text, closed.start()) is not None
    return start, closed.start(), closed.start() if is_next else closed.end()
