"""Success rates of policies that are functions of the state: states take the place of branches.

A policy that says what its messages depend on (`policies.base.memory_of`) is a Markov chain. Its states are followed
message by message: in each of them it is asked once, every result of its call leads on with the law's probability, and
states from which all goes on alike are one. A state from which nobody can succeed ends.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from resilisim.envs.conversation import ConversationEnv
from resilisim.envs.reply import public_info
from resilisim.envs.session import as_text
from resilisim.errors import CheckFailed
from resilisim.evaluation.episode.attribution import Attribution
from resilisim.evaluation.episode.play import flaw_with_plan
from resilisim.evaluation.run.plan import PlannedEpisode
from resilisim.exploration.exploring import NO_WORTH, WEIGHT_TOLERANCE, WIDTH_ROUNDING, ExplorationLimits, ExploredRow
from resilisim.exploration.rates import Played, Rest, rate_of
from resilisim.policies.base import (
    Contender,
    Policy,
    SessionAgent,
    act_together,
    is_ours,
    is_privileged,
    memory_of,
)
from resilisim.simulator.draws import Branch
from resilisim.simulator.exact.values import Values
from resilisim.simulator.problem import Problem
from resilisim.simulator.state import EpisodeState

ASKED_TOGETHER = 256  # situations; the last ones in vain, where plays or width end it


@dataclass(slots=True)
class _Situation:
    """A state of an episode and what the policy keeps in it, and how likely it is that it comes about.

    Attributes:
        env: The episode, its last answer given.
        policy: The policy, its last message sent.
        attribution: Says why messages cost what they did.
        observation: What the policy is told next.
        info: All that the environment says with it.
        worth: V* of the state.
        weight: Probability.
        luck: Luck so far, by weight.
        losses: By cause, what was lost so far, by weight.
    """

    env: ConversationEnv
    policy: Policy
    attribution: Attribution
    observation: str
    info: dict[str, Any]
    worth: float
    weight: float = 1.0
    luck: float = 0.0
    losses: dict[str, float] = field(default_factory=dict)

    @property
    def state(self) -> EpisodeState:
        """The state."""
        state: EpisodeState = self.info["state"]
        return state

    def add(self, other: _Situation) -> None:
        """Take in another way to get here."""
        self.weight += other.weight
        self.luck += other.luck
        for label, loss in other.losses.items():
            self.losses[label] = self.losses.get(label, 0.0) + loss


class StateChain:
    """Follows a policy on a task under a prompt from state to state.

    Args:
        env: The environment, in a twin of which an episode is begun.
        policy: The policy; a copy of it plays.

    Raises:
        ExactLimitError: The task is too large to be solved exactly.
    """

    def __init__(self, env: ConversationEnv, policy: Contender, episode: PlannedEpisode) -> None:
        self._episode = episode
        self._is_privileged, self._is_ours = is_privileged(policy), is_ours(policy)
        self._reads_words = bool(getattr(policy, "reads_words", False))
        self._start = self._begun(env, policy)
        self._ended, self._num_met = Played(), 0

    def row(self, name: str, limits: ExplorationLimits) -> ExploredRow | None:
        """Return what is known of the policy on the task; None if it has to be explored branch by branch.

        That is so for policies that do not say what their messages depend on, where they raise something, and wherever
        V* is not what every state is worth: in worlds, where arguments matter, and where only a bound is known.

        Args:
            name: Name of the policy.
            limits: Where to stop; states that were met count as plays.

        Raises:
            CheckFailed: The weights do not add up to 1, or the luck of all states is not 0: a bug.
        """
        start = self._start
        if start is None:
            return None
        optimum, layer, left = start.worth, [start], []
        open_worth = start.worth
        messages: Iterator[str | None] = iter(())
        while layer:
            following: dict[Hashable, _Situation] = {}
            layer.sort(key=lambda situation: -situation.weight * situation.worth)
            for place, situation in enumerate(layer):
                if self._num_met >= limits.plays or (self._num_met and open_worth <= limits.width - WIDTH_ROUNDING):
                    left.append(situation)
                    continue
                self._num_met += 1
                open_worth -= situation.weight * situation.worth
                try:
                    if place % ASKED_TOGETHER == 0:
                        messages = self._asked(layer[place : place + ASKED_TOGETHER])
                    message = next(messages)
                except _PolicyRaised:
                    return None
                for key, after in self._after(situation, message):
                    open_worth += after.weight * after.worth
                    if key in following:
                        following[key].add(after)
                    else:
                        following[key] = after
            layer = list(following.values())
        if not _is_exact(self._values):  # of some states it is known only once they were met
            return None
        return self._summed(name, optimum, left)

    def _begun(self, env: ConversationEnv, policy: Contender) -> _Situation | None:
        if isinstance(policy, SessionAgent) or env.world is not None or env.protocol != "text":
            return None
        if memory_of(policy) is None:
            return None
        episode = self._episode
        env = env.twin(Branch(as_agents_know=True))
        observation, info = env.reset(seed=episode.seed, options={"task": episode.task, "prompt": episode.prompt})
        self._problem: Problem = info["problem"]
        self._values = values = env.judged()
        if self._problem.arguments_matter or not _is_exact(values):
            return None
        policy = copy.copy(policy)
        policy.reset(observation, self._shown(info))
        if memory_of(policy) is None:  # under this law nobody can say
            return None
        worth = values.value(info["state"])
        flaw = flaw_with_plan(env, episode.task, episode.prompt, info["flaw"])
        return _Situation(env, policy, Attribution(values, info["planner"], flaw), observation, info, worth)

    def _shown(self, info: dict[str, Any]) -> dict[str, Any]:
        return (
            {name: value for name, value in info.items() if name != "seed"}
            if self._is_privileged
            else public_info(info)
        )

    def _asked(self, situations: Sequence[_Situation]) -> Iterator[str | None]:
        """Yield the next message in each of some situations."""
        try:
            yield from map(
                as_text,
                act_together(
                    [situation.policy for situation in situations],
                    [situation.observation for situation in situations],
                    [self._shown(situation.info) for situation in situations],
                ),
            )
        except Exception as error:
            if self._is_ours:
                raise
            raise _PolicyRaised from error

    def _after(self, situation: _Situation, message: str | None) -> Iterator[tuple[Hashable, _Situation]]:
        """Yield what follows a message, each with what tells it from others; what ends is entered."""
        memory = memory_of(situation.policy)
        first = Branch(as_agents_know=True)
        yield from self._sent(situation, message, memory, first)
        for point in first.points:
            for place, (_, draw) in enumerate(point.options):
                if place != point.taken:
                    yield from self._sent(situation, message, memory, Branch([draw], as_agents_know=True))

    def _sent(
        self, situation: _Situation, message: str | None, memory: Hashable, branch: Branch
    ) -> Iterator[tuple[Hashable, _Situation]]:
        """Yield what follows when the call that a message makes brings what a branch says."""
        env, attribution, before = situation.env.fork(branch), situation.attribution.fork(), situation.state
        observation, _, ended, _, info = env.stop() if message is None else env.step(message)
        judgement, chance = info["judgement"], branch.probability
        worth = attribution.worth(judgement, before, info["message"], info["state"])
        weight = situation.weight * chance
        losses = {label: loss * chance for label, loss in situation.losses.items()}
        if worth["label"] is not None:
            losses[worth["label"]] = losses.get(worth["label"], 0.0) + weight * worth["regret"]
        after = _Situation(
            env,
            copy.copy(situation.policy),
            attribution,
            observation,
            info,
            judgement.reached,
            weight,
            situation.luck * chance + weight * worth["luck"],
            losses,
        )
        if ended or after.worth <= NO_WORTH:
            # At the end V* is how likely it is to have been one that ended well, by what agents know.
            chance_won = after.worth if ended else 0.0
            for won, share in ((1, chance_won), (0, 1.0 - chance_won)):
                if share > 0.0:
                    luck = after.luck / weight + won - chance_won
                    self._ended.enter(
                        weight * share, won, luck, {label: loss / weight for label, loss in losses.items()}
                    )
            return
        state = after.state if self._reads_words else replace(after.state, executions=())
        results = tuple(point.draw.result for point in branch.points)
        yield (state, memory, message, results, attribution.memory), after

    def _summed(self, name: str, optimum: float, left: list[_Situation]) -> ExploredRow:
        ended, rest = self._ended, math.fsum(situation.weight for situation in left)
        total = ended.weight + rest
        if abs(total - 1.0) > WEIGHT_TOLERANCE:
            raise CheckFailed(f"the states of {name} on {self._episode.task.instance_id} add up to {total}, expected 1")
        if not left and abs(ended.luck) > WEIGHT_TOLERANCE:
            raise CheckFailed(f"the luck of all states of {name} is {ended.luck}, expected 0")
        open_worth = math.fsum(situation.weight * situation.worth for situation in left)
        rate = rate_of(ended, Rest(rest, open_worth, None), Played())
        losses = {label: ended.loss(label) for label in ended.losses}
        for situation in left:
            for label, loss in situation.losses.items():
                losses[label] = losses.get(label, 0.0) + loss
        return ExploredRow(
            policy=name,
            task=self._episode.task.instance_id,
            prompt=self._episode.prompt,
            low=rate.low,
            high=rate.high,
            estimate=rate.estimate,
            interval=rate.interval,
            plays=self._num_met,
            drawn=0,
            unplayed=rest,
            optimum=optimum,
            losses=losses,
        )


class _PolicyRaised(Exception):
    """Somebody else's policy raised something, which has lost it the episode."""


def _is_exact(values: Values) -> bool:
    """Return whether V* is what every state is worth to who knows what agents can know."""
    return values.is_ceiling and values.gap == 0.0 and values.knowledge == "observing"
