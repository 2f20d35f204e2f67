"""Messages that are worse than the best one in a state, each with its Q* and with the reason why it is worse."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from resilisim.datasets.rollout import Stage
from resilisim.evaluation.attribution import loss_label
from resilisim.evaluation.records import REGRET_TOLERANCE
from resilisim.policies.scripted import messages
from resilisim.seeding import Draws
from resilisim.simulator import Message, Problem
from resilisim.simulator.exact import Optimum
from resilisim.simulator.messages import execution
from resilisim.simulator.state import EpisodeState, is_done
from resilisim.tool_library import ToolLibrary

NUM_OUTSIDERS = 4  # tools that the task has nothing to do with, tried in each state


@dataclass(frozen=True, slots=True)
class Alternative:
    """A message that is worse than the best one.

    Attributes:
        message: The message; for one that executes nothing, its `text` is what to send.
        action_value: Its Q*.
        label: Why it is worse (a key of `records.LOSS_LABELS`).
    """

    message: Message
    action_value: float
    label: str


def worse_alternatives(
    stage: Stage, optimum: Optimum, state: EpisodeState, known: Collection[str], plan_in_prompt: bool, draws: Draws
) -> list[Alternative]:
    """Return messages that cost something in a state, in an order that never changes.

    Looking for tools is left out where the prompt names none: it has a price there, and is no mistake.

    Args:
        stage: Where the episode is played.
        optimum: The solved problem.
        state: A running state.
        known: Tools that the agent has read of.
        plan_in_prompt: Whether the prompt named the tools to use.
        draws: Draws the outsiders.
    """
    problem = optimum.problem
    value = optimum.value(state)
    best = optimum.best_action(state)
    found: list[Alternative] = []
    for message in (
        *(execution(name) for name in _tools_to_try(problem, known, draws)),
        *(stage.read(text) for text in _other_texts(stage, problem, state, best)),
    ):
        action_value = optimum.action_value(state, message)
        if value - action_value > REGRET_TOLERANCE:
            label = loss_label(problem, state, message, plan_in_prompt)
            if label != "information":
                found.append(Alternative(message, action_value, label))
    return found


def draw_alternative(alternatives: Sequence[Alternative], draws: Draws) -> Alternative:
    """Draw a reason first and one of its messages then, so that rare reasons are drawn as often as common ones."""
    label = draws.choice(sorted({alternative.label for alternative in alternatives}))
    return draws.choice([alternative for alternative in alternatives if alternative.label == label])


def _tools_to_try(problem: Problem, known: Collection[str], draws: Draws) -> list[str]:
    names = problem.library.names
    near = {names[tool] for tool in problem.closure}.union(known)
    drawn = {draws.choice(names) for _ in range(NUM_OUTSIDERS)}
    return [name for name in names if name in near or name in drawn]


def _other_texts(stage: Stage, problem: Problem, state: EpisodeState, best: Message) -> Iterator[str]:
    """Yield messages that execute nothing: giving up, searching, announcing a call, and calls that are refused."""
    if not is_done(problem, state):
        yield messages.FINISH
    if best.kind != "execute" or best.tool is None:
        return
    yield messages.search(f"other tools for {_words(best.tool)}")
    yield f"Next I will run {best.tool}."
    yield messages.call(_unknown_name(best.tool, stage.library))
    yield _refused_call(best.tool, stage)


def _unknown_name(tool: str, library: ToolLibrary) -> str:
    """Return a name that nobody has and that somebody who remembers badly could write."""
    guess = "_".join(reversed(tool.split("_")))
    while library.resolve(guess) is not None:
        guess += "_tool"
    return guess


def _refused_call(tool: str, stage: Stage) -> str:
    """Return a call with a parameter that the tool does not have, or a bare one where it has to have some."""
    parameters = stage.library[tool].parameters
    if stage.parameters == "strict" and any(parameter.required for parameter in parameters):
        return messages.call(tool)
    made_up = "input"
    while made_up in {parameter.name for parameter in parameters}:
        made_up += "_value"
    return messages.call(tool, {made_up: _words(tool)})


def _words(tool: str) -> str:
    return " ".join(re.findall(r"[^\W_]+", tool))
