"""ReAct (Yao et al., 2023): thought, action, observation; the agent, and the loop that other agents have as a part."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal

from resilisim.chat import ChatMessage, ChatReply, ToolCall
from resilisim.envs.session import EpisodeEnded
from resilisim.policies.llm.options import AgentOptions, limit
from resilisim.policies.llm.policy import LlmPolicy
from resilisim.policies.llm.reading import Action, Finish, Unreadable, excerpt, read_action, read_arguments, visible
from resilisim.policies.llm.run import AgentRun
from resilisim.policies.llm.templates import DEFAULT_EXAMPLES, NO_EXAMPLES, PromptTexts, load_prompts, packaged_prompts
from resilisim.policies.llm.tools import Toolbox, ToolSpec, describe_tools

FINISH: Final = ToolSpec(
    "finish",
    "Ends the work and gives the answer.",
    {"type": "object", "properties": {"answer": {"type": "string"}}, "required": ["answer"]},
)
FINISH_FORM: Final = 'Action: finish {"answer": "..."}'  # what a text agent that is one loop writes at the end
NO_PROBLEM: Final = ("", "none", "null", "no", "n/a", "false")
LONGEST_OBSERVATION: Final = 20_000  # characters of an observation that the model is shown
STOP: Final = ("\nObservation:",)
MOST_CALLS_KEPT: Final = 8  # of one reply; only the first one is carried out
LONGEST_WORDS: Final = 2_000  # characters that are kept of a reply without an action
LONGEST_NAME: Final = 64  # endpoints take no longer names of functions
IGNORED: Final = "Ignored: only the first call of a reply is carried out."
_NOT_IN_NAMES = re.compile(r"[^a-zA-Z0-9_-]")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReActOptions(AgentOptions):
    """Options of ReAct."""

    steps: int = limit(20, "steps of the loop; 100 is the control for runs that hit their limit", least=1)
    observation_chars: int = limit(LONGEST_OBSERVATION, "characters after which an observation is cut", least=100)


class ReAct(LlmPolicy[ReActOptions]):
    """Thought, action, observation, until it finishes or has used its steps (Yao et al., 2023).

    Its calls are counted under "agent". With native calls the model's words beside a call are its thought.
    """

    name = "react"
    options_class = ReActOptions
    components = ("agent",)
    uses_native_calls = True
    finish_form = FINISH_FORM

    async def play(self, run: AgentRun) -> str | None:
        """Run the loop on the task; the answer is what finish was given."""
        taken: list[dict[str, Any]] = []
        run.structure["steps"] = taken

        def keep(step: LoopStep) -> None:
            taken.append(step.to_mapping())

        result = await react_loop(
            run,
            role="agent",
            system=loop_instructions(run, self.prompts),
            question=run.task,
            tools=run.tools,
            steps=self.options.steps,
            prompts=self.prompts,
            longest_observation=self.options.observation_chars,
            on_step=keep,
        )
        return result.answer


Ending = Literal["finish", "steps", "stopped"]


@dataclass(frozen=True, slots=True)
class LoopStep:
    """One step of the loop.

    Attributes:
        thought: What the model wrote before its action.
        action: The tool that it named; None if none could be read.
        arguments: What it passed; None if that could not be read.
        observation: What it was shown in reply; empty for finish.
        error: None if the action succeeded, else what went wrong, on one line.
    """

    thought: str
    action: str | None
    arguments: Mapping[str, Any] | None = field(hash=False)
    observation: str = ""
    error: str | None = None

    def to_mapping(self) -> dict[str, Any]:
        """Return the step as JSON values."""
        return {
            "thought": self.thought,
            "action": self.action,
            "arguments": None if self.arguments is None else dict(self.arguments),
            "observation": self.observation,
            "error": self.error,
        }

    def to_text(self) -> str:
        """Return the step as the model would read it."""
        given = "" if self.arguments is None else " " + json.dumps(dict(self.arguments), ensure_ascii=False)
        lines = [f"Thought: {self.thought}"] if self.thought else []
        lines.append(f"Action: {self.action}{given}" if self.action else "(no action could be read)")
        lines += [f"Observation: {self.observation}"] if self.observation else []
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class LoopResult:
    """What a loop came to.

    Attributes:
        answer: What finish was given; None if the loop ended without it, or with a problem.
        steps: All steps, finish included.
        ended_by: "finish"; "steps", the limit; or "stopped", by the caller's `stop_when`.
        problem: Why it could not be done, if finish was given that instead of an answer.
    """

    answer: str | None
    steps: tuple[LoopStep, ...]
    ended_by: Ending
    problem: str | None = None

    @property
    def result(self) -> str:
        """The answer; where finish was given none at all, what was said with it and what the last call brought."""
        if self.answer is None or self.answer.strip() or self.steps[-1].arguments:
            return self.answer or ""
        brought = (step.observation for step in reversed(self.steps[:-1]) if step.error is None)
        return "\n".join(part for part in (self.steps[-1].thought, next(brought, "")) if part)

    def trajectory(self) -> str:
        """Return all steps as one text."""
        return "\n".join(step.to_text() for step in self.steps)


@functools.cache
def loop_prompts() -> PromptTexts:
    """Return the packaged texts that the loop needs by itself: `retry`, `retry_native` and `invalid`."""
    return load_prompts(packaged_prompts(__name__), None, NO_EXAMPLES)


async def react_loop(
    run: AgentRun,
    *,
    role: str,
    system: str,
    question: str,
    tools: Toolbox,
    steps: int,
    native: bool | None = None,
    prompts: PromptTexts | None = None,
    longest_observation: int = LONGEST_OBSERVATION,
    limit_is_failure: bool = True,
    may_fail: bool = False,
    stop_when: Callable[[], bool] | None = None,
    on_step: Callable[[LoopStep], None] | None = None,
) -> LoopResult:
    """Let a model think and act until it finishes or has used its steps.

    Every step is one call of the model, or two where the first reply held no action. An action that is none, or whose
    arguments cannot be read, uses a step, and its observation says which ones there are. Only what the model wrote is
    read for actions; observations go into the conversation as they are.

    Args:
        run: The episode.
        role: Which component asks: "agent", or "executor" inside another agent.
        system: The instructions. They describe the tools (`loop_tools`), and in text how to write actions: lines
            `Thought: ...` and `Action: NAME {json}`.
        question: What there is to do.
        tools: The tools, the caller's own ones included; finish is added.
        steps: The limit.
        native: Whether the model calls tools natively; None takes that from the run.
        prompts: Texts `retry`, `retry_native` and `invalid`; None takes the packaged ones.
        longest_observation: Characters after which an observation is cut, with a mark.
        limit_is_failure: Whether the limit is put down as the component's failure; not if the caller can make it good.
        may_fail: Whether finish can be given a `problem` instead of an answer, as the instructions then say.
        stop_when: Asked before each step; True ends the loop.
        on_step: Told each step as soon as it is over, so that a record is up to date when the episode ends.

    Returns:
        The answer, if there is one, and the steps.

    Raises:
        EpisodeEnded: The environment ended the episode inside a call.
        StopAgent: A limit of the agent is reached.
    """
    texts = prompts or loop_prompts()
    specs = (*tools.specs, FINISH)
    functions = [spec.to_function() for spec in specs] if (run.native if native is None else native) else []
    dialogue = Dialogue(system, question)
    done: list[LoopStep] = []

    def keep(step: LoopStep) -> None:
        done.append(step)
        if on_step is not None:
            on_step(step)

    while len(done) < steps:
        if stop_when is not None and stop_when():
            return LoopResult(None, tuple(done), "stopped")
        turn = await ask_for_turn(run, role, dialogue, specs, functions, texts)
        wish = turn.wish
        if not isinstance(wish, Unreadable) and wish.name == FINISH.name:
            problem = _problem(wish.arguments) if may_fail else None
            answer = finish_answer(wish.arguments) if problem is None else None
            keep(LoopStep(turn.thought, wish.name, wish.arguments, error=problem))
            return LoopResult(answer, tuple(done), "finish", problem)
        try:
            step = await _carry_out(run, role, turn, tools, specs, texts, longest_observation)
        except EpisodeEnded as end:
            keep(_last_step(turn, end, longest_observation))
            raise
        keep(step)
        dialogue.add(turn, step.observation)
    if limit_is_failure:
        run.fail(role, f"no finish within {steps} steps")
    return LoopResult(None, tuple(done), "steps")


def loop_tools(tools: Toolbox) -> str:
    """Return the list of tools for the loop's instructions, finish included."""
    return describe_tools((*tools.specs, FINISH))


def loop_instructions(run: AgentRun, prompts: PromptTexts) -> str:
    """Return the instructions of an agent that is one loop, with examples in the form in which it calls.

    Args:
        run: The episode.
        prompts: Holds `system`, and `system_native` and `examples_native` for native calls. Examples from a file of
            the user's are shown as they are.
    """
    if not run.native:
        return prompts.fill("system", tools=loop_tools(run.tools), facts=run.facts, examples=prompts.examples())
    is_default = run.options.examples == DEFAULT_EXAMPLES
    examples = prompts.fill("examples_native") if is_default else prompts.examples()
    return prompts.fill("system_native", facts=run.facts, examples=examples)


async def _carry_out(
    run: AgentRun,
    role: str,
    turn: Turn,
    tools: Toolbox,
    specs: tuple[ToolSpec, ...],
    texts: PromptTexts,
    longest_observation: int,
) -> LoopStep:
    """Do what the model wants, or say why it cannot be done."""
    wish, thought = turn.wish, turn.thought
    offered = describe_tools(specs)
    if isinstance(wish, Unreadable):
        run.note("invalid_action", role, wish.problem, excerpt=wish.excerpt)
        run.count("invalid_actions")
        return LoopStep(
            thought, wish.name, None, texts.fill("invalid", problem=wish.problem, tools=offered), wish.problem
        )
    result = await tools.call(wish.name, wish.arguments)
    observation = result.observation
    if result.error is not None and not observation.strip():
        observation = f"Error: {result.error}"
    if result.error is not None and not result.progress and all(spec.name != wish.name for spec in specs):
        # No such tool, and nothing was sent to the environment.
        run.note("invalid_action", role, result.error, excerpt=wish.name)
        run.count("invalid_actions")
        observation = texts.fill("invalid", problem=result.error, tools=offered)
    return LoopStep(thought, wish.name, wish.arguments, _shortened(observation, longest_observation), result.error)


def _last_step(turn: Turn, end: EpisodeEnded, longest: int) -> LoopStep:
    """Return the step in which the environment ended the episode."""
    observation = "" if end.reply is None else _shortened(end.reply.text, longest)
    arguments = None if isinstance(turn.wish, Unreadable) else turn.wish.arguments
    return LoopStep(turn.thought, turn.wish.name, arguments, observation, "the episode ended")


def _shortened(text: str, longest: int) -> str:
    if not text.strip():
        return "(no output)"
    if len(text) <= longest:
        return text
    return f"{text[:longest]}\n[cut: {len(text) - longest:,} more characters]"


def read_end(text: str) -> Finish | None:
    """Return the end that a reply says in any of the forms that end an agent, for agents that have one of their own."""
    end = read_action(text, (FINISH,))
    if isinstance(end, Unreadable) or end.name != FINISH.name:
        return None
    return Finish(finish_answer(end.arguments) or end.thought)


def finish_answer(arguments: Mapping[str, Any]) -> str:
    """Return the answer that finish was given: `answer`, or the only argument under another name."""
    values = list(arguments.values())
    value = arguments.get("answer", values[0] if len(values) == 1 else "")
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _problem(arguments: Mapping[str, Any]) -> str | None:
    """Return the problem that finish was given; words for "none" are none."""
    value = arguments.get("problem")
    words = value if isinstance(value, str) else "" if value is None else json.dumps(value, ensure_ascii=False)
    return None if words.strip(" .").lower() in NO_PROBLEM else words.strip()


@dataclass(frozen=True, slots=True)
class Turn:
    """What the model wrote in one step.

    Attributes:
        thought: Its words before the action.
        wish: The action, or why none could be read.
        words: The reply without thoughts, cut; what is kept where there is no action.
        calls: Its native calls, as they are kept.
    """

    thought: str
    wish: Action | Unreadable
    words: str
    calls: tuple[ToolCall, ...] = ()


class Dialogue:
    """The messages of a loop so far."""

    def __init__(self, system: str, question: str) -> None:
        self.messages = [ChatMessage("system", system), ChatMessage("user", question)]

    def add(self, turn: Turn, observation: str) -> None:
        """Add a step: what the model wrote, and what came of it."""
        if turn.calls:
            self.messages.append(ChatMessage("assistant", turn.thought, tool_calls=turn.calls))
            replies = [observation, *(IGNORED for _ in turn.calls[1:])]
            for call, reply in zip(turn.calls, replies, strict=True):
                self.messages.append(ChatMessage("tool", reply, tool_call_id=call.id))
            return
        self.messages.append(ChatMessage("assistant", _written(turn)))
        self.messages.append(ChatMessage("user", f"Observation: {observation}"))


async def ask_for_turn(
    run: AgentRun,
    role: str,
    dialogue: Dialogue,
    specs: Sequence[ToolSpec],
    functions: Sequence[Mapping[str, Any]],
    texts: PromptTexts,
) -> Turn:
    """Ask for the next action; where the reply holds none, ask once more for the action alone."""
    turn = await _ask(run, role, dialogue.messages, specs, functions)
    if not isinstance(turn.wish, Unreadable) or turn.wish.name is not None:
        return turn
    run.count("asked_for_action_alone")
    retry = texts.fill("retry_native" if functions else "retry", problem=turn.wish.problem)
    again = [ChatMessage("assistant", _written(turn)), ChatMessage("user", retry)]
    second = await _ask(run, role, [*dialogue.messages, *again], specs, functions)
    return Turn(turn.thought or second.thought, second.wish, second.words or turn.words, second.calls)


async def _ask(
    run: AgentRun,
    role: str,
    messages: Sequence[ChatMessage],
    specs: Sequence[ToolSpec],
    functions: Sequence[Mapping[str, Any]],
) -> Turn:
    reply = await run.ask(role, messages, stop=() if functions else STOP, tools=functions)
    turn = _native_turn(reply) if functions and reply.tool_calls else _text_turn(reply.text, specs)
    if isinstance(turn.wish, Unreadable):
        return replace(turn, wish=run.unreadable(role, reply, turn.wish))
    return turn


def _text_turn(text: str, specs: Sequence[ToolSpec]) -> Turn:
    wish = read_action(text, specs)
    return Turn(wish.thought, wish, excerpt(visible(text), LONGEST_WORDS))


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


def _native_turn(reply: ChatReply) -> Turn:
    """Read the first call of a reply; the others are kept, since each wants an answer."""
    kept = kept_calls(reply.tool_calls)
    thought = excerpt(visible(reply.text), LONGEST_WORDS)
    name = excerpt(reply.tool_calls[0].name.strip(), 200)
    arguments = read_arguments(reply.tool_calls[0].arguments)
    if isinstance(arguments, Unreadable):
        problem = f"the arguments of {name} cannot be read: {arguments.problem}"
        return Turn(thought, Unreadable(problem, arguments.excerpt, name or "(no name)", thought), thought, kept)
    return Turn(thought, Action(name, arguments, thought), thought, kept)


def _function_name(name: str) -> str:
    # Endpoints refuse a conversation in which a function has another name than they allow.
    return _NOT_IN_NAMES.sub("_", name.strip())[:LONGEST_NAME] or "unnamed"


def _kept_arguments(raw: str) -> str:
    # Some endpoints read the arguments of earlier calls and fail where these are no JSON.
    given = read_arguments(raw)
    return json.dumps({"unreadable": given.excerpt} if isinstance(given, Unreadable) else given, ensure_ascii=False)


def _written(turn: Turn) -> str:
    """Return a step as the model should have written it; its own words, cut, where it wanted nothing."""
    if isinstance(turn.wish, Unreadable):
        return turn.words or "(an empty reply)"
    thought = f"Thought: {turn.thought}\n" if turn.thought else ""
    return f"{thought}Action: {turn.wish.name} {json.dumps(turn.wish.arguments, ensure_ascii=False)}"
