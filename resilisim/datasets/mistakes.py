"""Mistakes on purpose: messages that cost something in a state, worded like the right one that they stand beside."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from resilisim.datasets.demonstrator import MISTAKEN_REASONS, Demonstrator, purpose
from resilisim.datasets.rollout import Stage
from resilisim.envs.reply import Info
from resilisim.evaluation.episode.attribution import has_sound_plan, loss_label
from resilisim.evaluation.episode.record import REGRET_TOLERANCE
from resilisim.policies.base import FINISH_TEXT, call_message, search_message
from resilisim.seeding import Draws
from resilisim.simulator import Message, Problem
from resilisim.simulator.exact import solve
from resilisim.simulator.exact.values import Values
from resilisim.simulator.messages import execution
from resilisim.simulator.problem import is_done
from resilisim.simulator.state import EpisodeState
from resilisim.tasks import Task
from resilisim.tool_library import Tool, ToolLibrary
from resilisim.tool_library.parameters import check_parameters
from resilisim.workflows.templating import escape_line, inline_json

# Announcements: {tool} is the tool's name, {given} its parameters with the words before them, or nothing.
_ANNOUNCEMENTS = (
    "Next I will run {tool}{given}.",
    "I run {tool} now{given}.",
    "The next step is {tool}{given}.",
    "Now it is the turn of {tool}{given}; I wait for its result.",
    "To go on with the work order I call the tool {tool}{given} and look at what it returns.",
)
_QUERIES = ("other tools for {words}", "{purpose}", "a tool that is better than {words} for this: {purpose}")
_MISNAMED = ("{name}_value", "input_{name}", "{name}s")  # what somebody who remembers badly could write


def mistaken_texts(
    stage: Stage,
    problem: Problem,
    state: EpisodeState,
    parameters_of: Callable[[str], Mapping[str, Any]],
    said: Message,
    draws: Draws,
) -> Iterator[str]:
    """Yield messages that give up, search, announce a call, or make one that is refused.

    All but giving up needs a call beside it, which the agent has `said` in that state; `parameters_of` is what it
    passes to a tool.
    """
    if not is_done(problem, state):
        yield FINISH_TEXT
    if said.kind != "execute" or said.tool is None:
        return
    tool, parameters = stage.library[said.tool], parameters_of(said.tool)
    words = {"words": _words(tool.name), "purpose": escape_line(purpose(tool))}
    yield search_message(draws.choice(_QUERIES).format_map(words))
    yield _announcement(tool, parameters, stage, draws)
    # Beside a call that leaves out what the tool requires, a refused one would not be wrong for what it changes alone.
    if not check_parameters(tool, parameters, "strict"):
        yield call_message(_unknown_name(tool.name, stage.library), parameters)
        yield call_message(tool.name, _with_a_flaw(tool, parameters, draws))
        if stage.parameters == "strict" and parameters:
            left_out = draws.choice(list(parameters))
            yield call_message(tool.name, {name: value for name, value in parameters.items() if name != left_out})


def _announcement(tool: Tool, parameters: Mapping[str, Any], stage: Stage, draws: Draws) -> str:
    """Return a text that means to be a call and is none: words alone, or a call without its tags."""
    arguments = inline_json(parameters) if parameters else ""
    bare = f"{tool.name} {arguments}".rstrip()
    forms = [text.format(tool=tool.name, given=f" with {arguments}" if arguments else "") for text in _ANNOUNCEMENTS]
    forms.append(bare)
    if stage.protocol == "text":
        forms += [f"<tool_call>{bare}", f"<call>{bare}</call>"]
    return draws.choice(forms)


def _with_a_flaw(tool: Tool, parameters: Mapping[str, Any], draws: Draws) -> dict[str, Any]:
    """Return parameters of which one has another name than the tool's, is of another type, or is one too many."""
    taken = {parameter.name for parameter in tool.parameters}
    if not parameters:
        return {_free_name("input", taken): _words(tool.name)}
    changed = draws.choice(list(parameters))
    flaw = draws.choice(("name", "type", "surplus"))
    if flaw == "name":
        wrong = _free_name(draws.choice(_MISNAMED).format(name=changed), taken)
        return {wrong if name == changed else name: value for name, value in parameters.items()}
    if flaw == "type":
        wrapped = {name: [value] if name == changed else value for name, value in parameters.items()}
        if check_parameters(tool, wrapped, "lenient"):
            return wrapped
    return {**parameters, _free_name(draws.choice(_MISNAMED).format(name=changed), taken): parameters[changed]}


def _free_name(wanted: str, taken: set[str]) -> str:
    while wanted in taken:
        wanted += "_value"
    return wanted


def _unknown_name(tool: str, library: ToolLibrary) -> str:
    """Return a name that nobody has and that somebody who remembers badly could write."""
    guess = "_".join(reversed(tool.split("_")))
    while library.resolve(guess) is not None:
        guess += "_tool"
    return guess


def _words(tool: str) -> str:
    return " ".join(re.findall(r"[^\W_]+", tool))


NUM_OUTSIDERS = 4  # tools that the task has nothing to do with, tried in each state


@dataclass(frozen=True, slots=True)
class Alternative:
    """A message that is worse than the best one, its Q*, and why it is worse (a key of `LOSS_LABELS`).

    For one that executes nothing, the message's `text` is what to send.
    """

    message: Message
    action_value: float
    label: str


def worse_alternatives(
    stage: Stage, optimum: Values, info: Info, agent: Demonstrator, said: Message, draws: Draws
) -> list[Alternative]:
    """Return messages that cost something in a state, in an order that never changes.

    Looking for tools is left out where the prompt has no sound plan: it has a price there, and is no mistake. What
    executes nothing is made to look like what the agent has `said` there.
    """
    problem, state = optimum.problem, info["state"]
    is_told = has_sound_plan(info["planner"], info["flaw"])
    value = optimum.value(state)
    beside = said.tool if said.kind == "execute" else None
    calls = [
        # Under a law with parts it can matter what a call is filled in with.
        execution(name, agent.parameters_like(name, beside or name) if problem.dynamics.has_sections else None)
        for name in _tools_to_try(problem, agent.known_tools, draws)
    ]
    texts = mistaken_texts(stage, problem, state, agent.parameters, said, draws)
    worse: list[Alternative] = []
    for message in (*calls, *map(stage.read, texts)):
        action_value = optimum.action_value(state, message)
        if value - action_value > REGRET_TOLERANCE:
            label = loss_label(problem, state, message, plan_in_prompt=is_told)
            if label != "information":
                worse.append(Alternative(message, action_value, label))
    return worse


def draw_alternative(alternatives: Sequence[Alternative], draws: Draws) -> Alternative:
    """Draw a reason first and one of its messages then, so that rare reasons are drawn as often as common ones."""
    label = draws.choice(sorted({alternative.label for alternative in alternatives}))
    return draws.choice([alternative for alternative in alternatives if alternative.label == label])


def preferring_named(alternatives: Sequence[Alternative], named: Collection[str]) -> list[Alternative]:
    """Return alternatives without calls of tools that the conversation has not named, if others call one that it has.

    Right calls are calls of named tools, so a name that was never read would give a wrong one away.
    """
    calls = [alternative for alternative in alternatives if alternative.message.kind == "execute"]
    if not any(call.message.tool in named for call in calls):
        return list(alternatives)
    return [option for option in alternatives if option.message.kind != "execute" or option.message.tool in named]


def _tools_to_try(problem: Problem, known: Collection[str], draws: Draws) -> list[str]:
    names = problem.library.names
    near = {names[tool] for tool in problem.closure}.union(known)
    drawn = {draws.choice(names) for _ in range(NUM_OUTSIDERS)}
    return [name for name in names if name in near or name in drawn]


def text_of(alternative: Alternative, said: Message, agent: Demonstrator, info: Info) -> str:
    """Return the text of a message; a call is filled in as the one that it stands beside."""
    message, tool = alternative.message, alternative.message.tool
    text = message.text
    if message.kind == "execute" and tool is not None:
        beside = said.tool if said.kind == "execute" and said.tool is not None else tool
        text = call_message(tool, dict(message.parameters) or agent.parameters_like(tool, beside))
    return agent.explain(lambda: MISTAKEN_REASONS[alternative.label], text, info)


class MistakenDemonstrator(Demonstrator):
    """A demonstrator a share of whose messages are wrong calls, drawn by the reason for which they are wrong.

    So its episodes lead through states off the best path, and back. It plays one episode, to which the draws belong.
    """

    def __init__(
        self,
        stage: Stage,
        task: Task,
        search: bool,
        pass_parameters: bool,
        plan_margin: float,
        *,
        share: float,
        draws: Draws,
    ) -> None:
        super().__init__(stage, task, search, pass_parameters, plan_margin)
        self._share, self._draws = share, draws
        # Without searching, right calls name tools that were never read of, and wrong ones may as well.
        self._named = None if search else frozenset(stage.library.names)

    def act(self, observation: str, info: Info) -> str:
        """Return the next message: the best one, or in its place a wrong call."""
        text = super().act(observation, info)
        said, optimum = self._stage.read(text), solve(info["problem"])
        if self._draws.uniform() >= self._share or optimum.value(info["state"]) <= 0.0:
            return text
        worse = worse_alternatives(self._stage, optimum, info, self, said, self._draws)
        return mistake(worse, said, self, info, self._named or self.known_tools, self._draws) or text


def mistake(
    worse: Sequence[Alternative], said: Message, agent: Demonstrator, info: Info, named: Collection[str], draws: Draws
) -> str | None:
    """Return a wrong call as a text, drawn by its reason; None where no call is wrong."""
    calls = [alternative for alternative in worse if alternative.message.kind == "execute"]
    return text_of(draw_alternative(preferring_named(calls, named), draws), said, agent, info) if calls else None
