"""What is better and what is worse in each state of an episode, by the exact optimum.

Worse messages are calls and, some of them, messages that execute nothing where a call is due; these are worded and
filled in like the call that they stand beside.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

from resilisim.datasets.demonstrator import Demonstrator
from resilisim.datasets.mistakes import (
    Alternative,
    draw_alternative,
    mistake,
    preferring_named,
    text_of,
    worse_alternatives,
)
from resilisim.datasets.rollout import RolloutSpec, Stage
from resilisim.envs.reply import Info
from resilisim.seeding import Draws
from resilisim.simulator import Message
from resilisim.simulator.exact import solve
from resilisim.simulator.exact.values import TIE_TOLERANCE
from resilisim.tasks import Task


@dataclass(frozen=True, slots=True)
class Pair:
    """A best message's Q*, and a worse message with its text."""

    best: float
    rejected: Alternative
    rejected_text: str


class Pairs(Protocol):
    """The pairs along one episode; `pair` is asked before `mistake`, once for each message."""

    @property
    def gap(self) -> float:
        """By how much values may be too low."""

    def value(self, info: Info) -> float:
        """Return the value of the present state; where it is 0 there is nothing left to compare."""

    def act(self, observation: str, info: Info) -> str:
        """Return the next message of whoever shows how it is done."""

    def pair(self, said: Message, info: Info) -> Pair | None:
        """Return that message with a worse one; None where it is no best one, or none is worse by the margin."""

    def mistake(self, said: Message, info: Info, share: float) -> str | None:
        """Draw whether a mistake on purpose takes its place, and which."""

    def follow(self, said: Message, info: Info) -> None:
        """Take in what the message brought."""


class OptimumPairs:
    """The pairs along an episode of the demonstrator.

    There is none where the best message would call a tool that it has not read of.
    """

    def __init__(
        self, stage: Stage, task: Task, spec: RolloutSpec, seed: int, min_margin: float, info: Info, observation: str
    ) -> None:
        self._stage, self._spec, self._min_margin = stage, spec, min_margin
        self._agent = Demonstrator(stage, task, spec.search, spec.pass_parameters)
        self._agent.reset(observation, info)
        self._optimum = solve(info["problem"])
        self._worse: list[Alternative] = []  # beside the last message
        self._draws = Draws(
            "resilisim/datasets/preferences", stage.settings.salt, task.instance_id, info["prompt_type"], seed
        )

    @property
    def gap(self) -> float:
        """By how much values that were asked for so far may be too low: it grows with the states that are met."""
        return self._optimum.gap

    def value(self, info: Info) -> float:
        """Return V* of the present state."""
        return self._optimum.value(info["state"])

    def act(self, observation: str, info: Info) -> str:
        """Return the demonstrator's message."""
        return self._agent.act(observation, info)

    def pair(self, said: Message, info: Info) -> Pair | None:
        """Return the demonstrator's message, if it is a best one and no search, with a worse one."""
        self._worse = worse_alternatives(self._stage, self._optimum, info, self._agent, said, self._draws)
        if said.kind not in ("execute", "finish"):
            return None
        best = self._optimum.action_value(info["state"], said)
        if self.value(info) - best > TIE_TOLERANCE:
            return None
        rejected = self._draw_rejected(best)
        if rejected is None:
            return None
        text = text_of(rejected, said, self._agent, info)
        # In strict mode a call that should be executed may be refused, where no plan knows parameters that fit.
        return Pair(best, rejected, text) if self._stage.read(text).kind == rejected.message.kind else None

    def mistake(self, said: Message, info: Info, share: float) -> str | None:
        """Draw a mistake."""
        if self._draws.uniform() >= share:
            return None
        return mistake(self._worse, said, self._agent, info, self._named, self._draws)

    def follow(self, said: Message, info: Info) -> None:
        """Nothing is to be kept: the state holds all."""

    @property
    def _named(self) -> Collection[str]:
        # Without searching, right calls name tools that were never read of, and wrong ones may as well.
        return self._agent.known_tools if self._spec.search else frozenset(self._stage.library.names)

    def _draw_rejected(self, best: float) -> Alternative | None:
        """Draw among the messages that are worse by the margin, also if every value is wrong by the optimum's gap."""
        least = max(self._min_margin, self.gap)
        enough: Sequence[Alternative] = [
            alternative for alternative in self._worse if best - alternative.action_value >= least
        ]
        return draw_alternative(preferring_named(enough, self._named), self._draws) if enough else None
