"""ReAct (Yao et al., 2023): thought, action, observation; the agent, and the loop that other agents have as a part."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Annotated, Any, Final

from annotated_types import Ge

from resilisim.chat import ChatMessage, ToolCall
from resilisim.envs.session import EpisodeEnded
from resilisim.options import option
from resilisim.policies.llm.agent_options import AgentOptions, length
from resilisim.policies.llm.agent_run import AgentRun
from resilisim.policies.llm.policy import LlmPolicy
from resilisim.policies.llm.reply_reading import (
    LONGEST_WORDS,
    NO_WORDS,
    Action,
    Finish,
    Unreadable,
    excerpt,
    read_action,
    read_arguments,
    visible,
)
from resilisim.policies.llm.templates import DEFAULT_EXAMPLES, NO_EXAMPLES, PromptTexts, load_prompts, packaged_prompts
from resilisim.policies.llm.tools import Toolbox, ToolSpec, describe_tools

FINISH_TOOL: Final = ToolSpec(
    "finish",
    "Ends the work and gives the answer.",
    {"type": "object", "properties": {"answer": {"type": "string"}}, "required": ["answer"]},
)
FINISH_FORM: Final = 'Action: finish {"answer": "..."}'  # what a text agent that is one loop writes at the end
NO_PROBLEM: Final = ("", "none", "null", "no", "n/a", "false")
_STOP_TEXTS: Final = ("\nObservation:",)
OBSERVED: Final = "Observation: "  # what stands before what an action brought
MOST_CALLS_KEPT: Final = 8  # of one reply; only the first one is carried out
LONGEST_NAME: Final = 64  # endpoints take no longer names of functions
IGNORED: Final = "Ignored: only the first call of a reply is carried out."
_NOT_IN_NAMES = re.compile(r"[^a-zA-Z0-9_-]")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReActOptions(AgentOptions):
    """Options of ReAct."""

    steps: Annotated[int, Ge(1)] = option(
        20, "steps of the loop; 100, with max_llm_calls=250, is the control for runs that hit their limit"
    )
    observation_chars: Annotated[int, Ge(100)] | None = length(
        "observation_chars", "characters after which an observation is cut"
    )


class ReAct(LlmPolicy[ReActOptions]):
    """Thought, action, observation, until it finishes or has used its steps (Yao et al., 2023).

    Its calls are counted under "agent". With native calls the model's words beside a call are its thought. Under
    a terse prompt its instructions are as short.
    """

    name = "react"
    options_class = ReActOptions
    components = ("agent",)
    uses_native_calls = True
    finish_form = FINISH_FORM

    async def play(self, run: AgentRun) -> str | None:
        """Run the loop on the task; the answer is what finish was given."""
        record: list[dict[str, Any]] = []
        run.structure["steps"] = record
        result = await react_loop(
            run,
            role="agent",
            system=terse_instructions() if run.terse else loop_instructions(run, self.prompts),
            question=run.task,
            tools=run.tools,
            steps=self.options.steps,
            prompts=self.prompts,
            record=record,
        )
        if result.answer is None:
            run.fail("agent", f"no finish within {self.options.steps} steps", limit="steps")
        return result.answer


@dataclass(frozen=True, slots=True)
class LoopStep:
    """One step of the loop.

    `action` and `arguments` are None if they could not be read, `observation` is empty for finish, and `error` is None
    if the action succeeded, else what went wrong, on one line.
    """

    thought: str
    action: str | None
    arguments: Mapping[str, Any] | None = field(hash=False)
    observation: str = ""
    error: str | None = None

    def to_text(self) -> str:
        """Return the step as the model would read it."""
        arguments = "" if self.arguments is None else " " + json.dumps(dict(self.arguments), ensure_ascii=False)
        lines = [f"Thought: {self.thought}"] if self.thought else []
        lines.append(f"Action: {self.action}{arguments}" if self.action else "(no action could be read)")
        lines += [f"Observation: {self.observation}"] if self.observation else []
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class LoopResult:
    """What a loop came to: all steps, finish included, and what finish was given: an answer, or a problem instead.

    Both are None if the loop ended without it.
    """

    answer: str | None
    steps: tuple[LoopStep, ...]
    problem: str | None = None

    @property
    def result(self) -> str:
        """The answer; where finish was given none at all, what was said with it and what the last call brought."""
        if self.answer is None or self.answer.strip() or self.steps[-1].arguments:
            return self.answer or ""
        brought = (step.observation for step in reversed(self.steps[:-1]) if step.error is None)
        return "\n".join(part for part in (self.steps[-1].thought, next(brought, "")) if part)


@functools.cache
def loop_prompts() -> PromptTexts:
    """Return the packaged texts that the loop needs by itself: `retry`, `retry_native` and `invalid`."""
    return load_prompts(packaged_prompts(__name__), None, NO_EXAMPLES)


def terse_instructions() -> str:
    """Return the instructions under a terse prompt."""
    return loop_prompts().fill("system_terse")


def written_action(name: str, arguments: Mapping[str, Any]) -> str:
    """Return an action as the model should write it."""
    return f"Action: {name} {json.dumps(arguments, ensure_ascii=False)}"


async def react_loop(
    run: AgentRun,
    *,
    role: str,
    system: str,
    question: str,
    tools: Toolbox,
    steps: int,
    prompts: PromptTexts | None = None,
    may_fail: bool = False,
    stop_when: Callable[[], bool] | None = None,
    record: list[dict[str, Any]] | None = None,
) -> LoopResult:
    """Let a model think and act until it finishes or has used its steps, or the caller ends it before one.

    Every step is one call of the model, or two where the first reply held no action. An action that is none, or whose
    arguments cannot be read, uses a step, and its observation says which ones there are. Only what the model wrote is
    read for actions; observations go into the conversation as they are, cut behind `observation_chars`.

    The `system` message describes the tools, to which finish is added, and how to write actions (`loop_instructions`);
    of `prompts` the texts `retry`, `retry_native` and `invalid` are used. Where the loop `may_fail`, finish can be
    given a `problem` instead of an answer. The `record` gets each step as JSON values as soon as it is over, so that it
    is up to date when the episode ends.
    """
    longest_observation = run.length("observation_chars")
    loop = _Loop(run, role, tools, prompts or loop_prompts(), longest_observation)
    messages = [ChatMessage("system", system), ChatMessage("user", question)]
    done: list[LoopStep] = []

    def keep(step: LoopStep) -> None:
        done.append(step)
        if record is not None:
            record.append(asdict(step))

    while len(done) < steps and not (stop_when is not None and stop_when()):
        turn = await loop.turn(messages)
        wish = turn.wish
        if isinstance(wish, Action) and wish.name == FINISH_TOOL.name:
            problem = _problem(wish.arguments) if may_fail else None
            answer = finish_answer(wish.arguments) if problem is None else None
            keep(LoopStep(wish.thought, wish.name, wish.arguments, error=problem))
            return LoopResult(answer, tuple(done), problem)
        try:
            keep(await loop.carried_out(wish))
        except EpisodeEnded as end:
            observation = "" if end.reply is None else _shortened(end.reply.text, longest_observation)
            arguments = wish.arguments if isinstance(wish, Action) else None
            keep(LoopStep(wish.thought, wish.name, arguments, observation, "the episode ended"))
            raise
        messages += turn.exchange(done[-1].observation)
    return LoopResult(None, tuple(done))


@dataclass(frozen=True, slots=True)
class _Turn:
    """What the model wrote in one step: what it wants, the reply without thoughts, cut, and its native calls."""

    wish: Action | Unreadable
    words: str
    calls: tuple[ToolCall, ...] = ()

    def exchange(self, observation: str) -> list[ChatMessage]:
        """Return the messages of a step: what the model wrote, and what came of it."""
        if self.calls:
            return answered_calls(self.wish.thought, self.calls, observation)
        return [ChatMessage("assistant", self.written()), ChatMessage("user", OBSERVED + observation)]

    def written(self) -> str:
        """Return a step as the model should have written it; its own words, cut, where it wanted nothing."""
        if isinstance(self.wish, Unreadable):
            return self.words or NO_WORDS
        thought = f"Thought: {self.wish.thought}\n" if self.wish.thought else ""
        return thought + written_action(self.wish.name, self.wish.arguments)


@dataclass(frozen=True, slots=True)
class _Loop:
    """What stays the same throughout a loop."""

    run: AgentRun
    role: str
    tools: Toolbox
    texts: PromptTexts
    longest_observation: int

    @property
    def specs(self) -> tuple[ToolSpec, ...]:
        """The tools and finish."""
        return (*self.tools.specs, FINISH_TOOL)

    async def turn(self, messages: Sequence[ChatMessage]) -> _Turn:
        """Ask for the next action; where the reply holds none, ask once more for the action alone."""
        turn = await self._ask(messages)
        if isinstance(turn.wish, Action) or turn.wish.name is not None:
            return turn
        self.run.count("asked_for_action_alone")
        retry = self.texts.fill("retry_native" if self.run.native else "retry", problem=turn.wish.problem)
        again = [ChatMessage("assistant", turn.written()), ChatMessage("user", retry)]
        second = await self._ask([*messages, *again])
        wish = replace(second.wish, thought=turn.wish.thought or second.wish.thought)
        return _Turn(wish, second.words or turn.words, second.calls)

    async def _ask(self, messages: Sequence[ChatMessage]) -> _Turn:
        functions = [spec.to_function() for spec in self.specs] if self.run.native else []
        reply = await self.run.ask(self.role, messages, stop=() if functions else _STOP_TEXTS, tools=functions)
        words = excerpt(visible(reply.text), LONGEST_WORDS)
        calls = reply.tool_calls if functions else ()
        wish = _wish_of(calls[0], words) if calls else read_action(reply.text, self.specs)
        if isinstance(wish, Unreadable):
            wish = self.run.unreadable(self.role, reply, wish)
        return _Turn(wish, words, kept_calls(calls))

    async def carried_out(self, wish: Action | Unreadable) -> LoopStep:
        """Do what the model wants, or say why it cannot be done."""
        if isinstance(wish, Unreadable):
            return LoopStep(wish.thought, wish.name, None, self._invalid(wish.problem, wish.excerpt), wish.problem)
        result = await self.tools.call(wish.name, wish.arguments)
        observation = str(result)
        if result.error is not None and not observation.strip():
            observation = f"Error: {result.error}"
        if result.error is not None and not result.was_made and all(spec.name != wish.name for spec in self.specs):
            observation = self._invalid(result.error, wish.name)
        observation = _shortened(observation, self.longest_observation)
        return LoopStep(wish.thought, wish.name, wish.arguments, observation, result.error)

    def _invalid(self, problem: str, words: str) -> str:
        self.run.note("invalid_action", self.role, problem, excerpt=words)
        self.run.count("invalid_actions")
        return self.texts.fill("invalid", problem=problem, tools=describe_tools(self.specs))


def loop_tools(tools: Toolbox) -> str:
    """Return the list of tools for the loop's instructions, finish included."""
    return describe_tools((*tools.specs, FINISH_TOOL))


def loop_instructions(run: AgentRun, prompts: PromptTexts) -> str:
    """Return the instructions of an agent that is one loop, with examples in the form in which it calls.

    `prompts` hold `system`, and for native calls `system_native` and `examples_native`. Examples from a file of the
    user's are shown as they are.
    """
    if not run.native:
        return prompts.fill("system", tools=loop_tools(run.tools), facts=run.facts)
    is_default = run.options.examples == DEFAULT_EXAMPLES
    examples = prompts.fill("examples_native") if is_default else prompts.examples
    return prompts.fill("system_native", facts=run.facts, examples=examples)


def _shortened(text: str, longest: int) -> str:
    if not text.strip():
        return "(no output)"
    if len(text) <= longest:
        return text
    return f"{text[:longest]}\n[cut: {len(text) - longest:,} more characters]"


def read_end(text: str) -> Finish | None:
    """Return the end that a reply says in any of the forms that end an agent, for agents that have one of their own."""
    end = read_action(text, (FINISH_TOOL,))
    if isinstance(end, Unreadable) or end.name != FINISH_TOOL.name:
        return None
    return Finish(finish_answer(end.arguments) or end.thought)


def finish_answer(arguments: Mapping[str, Any]) -> str:
    """Return the answer that finish was given: `answer`, or the only argument under another name."""
    values = list(arguments.values())
    return _as_text(arguments.get("answer", values[0] if len(values) == 1 else ""))


def _problem(arguments: Mapping[str, Any]) -> str | None:
    """Return the problem that finish was given; words for "none" are none."""
    words = _as_text(arguments.get("problem"))
    return None if words.strip(" .").lower() in NO_PROBLEM else words.strip()


def _as_text(value: Any) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _wish_of(call: ToolCall, thought: str) -> Action | Unreadable:
    """Read a native call."""
    name = excerpt(call.name.strip(), 200)
    arguments = read_arguments(call.arguments)
    if isinstance(arguments, Unreadable):
        problem = f"the arguments of {name} cannot be read: {arguments.problem}"
        return Unreadable(problem, arguments.excerpt, name or "(no name)", thought)
    return Action(name, arguments, thought)


def kept_calls(calls: Sequence[ToolCall]) -> tuple[ToolCall, ...]:
    """Return native calls as a conversation can keep them, so that no endpoint refuses it later.

    The first ones are kept, with ids that differ, names made of permitted characters, and arguments that are JSON.
    """
    kept = calls[:MOST_CALLS_KEPT]
    ids = [call.id for call in kept]
    usable = all(ids) and len(set(ids)) == len(ids)
    return tuple(
        ToolCall(call.id if usable else f"call_{number}", _function_name(call.name), _kept_arguments(call.arguments))
        for number, call in enumerate(kept, start=1)
    )


def answered_calls(words: str, calls: Sequence[ToolCall], observation: str) -> list[ChatMessage]:
    """Return native calls with an answer for each, since each wants one; what was observed is that of the first."""
    answers = [observation, *(IGNORED for _ in calls[1:])]
    results = [ChatMessage("tool", text, tool_call_id=call.id) for call, text in zip(calls, answers, strict=True)]
    return [ChatMessage("assistant", words, tool_calls=tuple(calls)), *results]


def _function_name(name: str) -> str:
    return _NOT_IN_NAMES.sub("_", name.strip())[:LONGEST_NAME] or "unnamed"


def _kept_arguments(raw: str) -> str:
    # Some endpoints read the arguments of earlier calls and fail where these are no JSON.
    arguments = read_arguments(raw)
    return json.dumps(
        {"unreadable": arguments.excerpt} if isinstance(arguments, Unreadable) else arguments, ensure_ascii=False
    )
