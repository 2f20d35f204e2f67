"""Messages that are worse than the best one in a state, each with its Q* and with the reason why it is worse."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from resilisim.datasets.demonstrator import Demonstrator
from resilisim.datasets.mistaken_texts import mistaken_texts
from resilisim.datasets.rollout import Stage
from resilisim.evaluation.episode.attribution import loss_label
from resilisim.evaluation.episode.record import REGRET_TOLERANCE
from resilisim.seeding import Draws
from resilisim.simulator import Message, Problem
from resilisim.simulator.exact import Optimum
from resilisim.simulator.messages import execution
from resilisim.simulator.state import EpisodeState

NUM_OUTSIDERS = 4  # tools that the task has nothing to do with, tried in each state


@dataclass(frozen=True, slots=True)
class Alternative:
    """A message that is worse than the best one.

    Attributes:
        message: The message; for one that executes nothing, its `text` is what to send.
        action_value: Its Q*.
        label: Why it is worse (a key of `LOSS_LABELS`).
    """

    message: Message
    action_value: float
    label: str


def worse_alternatives(
    stage: Stage,
    optimum: Optimum,
    state: EpisodeState,
    agent: Demonstrator,
    said: Message,
    plan_in_prompt: bool,
    draws: Draws,
) -> list[Alternative]:
    """Return messages that cost something in a state, in an order that never changes.

    Looking for tools is left out where the prompt names none: it has a price there, and is no mistake.

    Args:
        stage: Where the episode is played.
        optimum: The solved problem.
        state: A running state.
        agent: Who is in that state.
        said: Its message there; what executes nothing is made to look like it.
        plan_in_prompt: Whether the prompt named the tools to use.
        draws: Draws the outsiders, and how messages are worded.
    """
    problem = optimum.problem
    value = optimum.value(state)
    found: list[Alternative] = []
    for message in (
        *(execution(name) for name in _tools_to_try(problem, agent.known_tools, draws)),
        *(stage.read(text) for text in mistaken_texts(stage, problem, state, agent, said, draws)),
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


def preferring_named(alternatives: Sequence[Alternative], named: Collection[str]) -> list[Alternative]:
    """Return alternatives without calls of tools that the conversation has not named, if others call one that it has.

    Right calls are calls of named tools, so a name that was never read would give a wrong one away.
    """
    calls = [alternative for alternative in alternatives if alternative.message.kind == "execute"]
    if not any(alternative.message.tool in named for alternative in calls):
        return list(alternatives)
    return [
        alternative
        for alternative in alternatives
        if alternative.message.kind != "execute" or alternative.message.tool in named
    ]


def _tools_to_try(problem: Problem, known: Collection[str], draws: Draws) -> list[str]:
    names = problem.library.names
    near = {names[tool] for tool in problem.closure}.union(known)
    drawn = {draws.choice(names) for _ in range(NUM_OUTSIDERS)}
    return [name for name in names if name in near or name in drawn]
