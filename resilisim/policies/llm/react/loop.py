"""The loop of thought, action and observation, for ReAct itself and for every agent that has it as a part."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from resilisim.policies.llm.react.dialogue import Dialogue, Turn, ask_for_turn
from resilisim.policies.llm.reading import Finish, Unreadable, read_action
from resilisim.policies.llm.run import AgentRun, EpisodeEnded
from resilisim.policies.llm.templates import DEFAULT_EXAMPLES, NO_EXAMPLES, PromptTexts, load_prompts
from resilisim.policies.llm.tools import Toolbox, ToolSpec, describe_tools

FINISH: Final = ToolSpec(
    "finish",
    "Ends the work and gives the answer.",
    {"type": "object", "properties": {"answer": {"type": "string"}}, "required": ["answer"]},
)
FINISH_FORM: Final = 'Action: finish {"answer": "..."}'  # what a text agent that is one loop writes at the end
NO_PROBLEM: Final = ("", "none", "null", "no", "n/a", "false")
LONGEST_OBSERVATION: Final = 20_000  # characters of an observation that the model is shown

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
    return load_prompts("resilisim.policies.llm.react", None, NO_EXAMPLES)


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
    observation = "" if end.reply is None else _shortened(end.reply.observation, longest)
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
