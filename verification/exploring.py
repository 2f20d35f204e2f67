"""Check (k): agents that are explored, against recursion over all that can happen, and against samples.

Random small problems under random parts of a law, half of them with goals, and agents that do at random, but always the
same in one state, what a hash of the state says. Their success rates come from a recursion over the states, which knows
nothing of branches. Explored with few plays, the bracket has to hold the rate and the estimate to be right on average;
with as many as there are branches, both are the rate.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from resilisim.evaluation.episode.record import EpisodeRecord
from resilisim.exploration.exploring import ExplorationLimits, ExploredRow, Exploring
from resilisim.seeding import Draws
from resilisim.simulator import FINISH, EndRules, Episode, Message, Problem, build_problem, execution
from resilisim.simulator.draws import Draws as WhereDrawsComeFrom
from resilisim.simulator.draws import Keyed
from resilisim.simulator.exact import Judge
from resilisim.simulator.exact.judging import Judgement
from resilisim.simulator.problem import branches, outcome, start_state
from resilisim.simulator.state import EpisodeState
from verification.findings import Finding
from verification.small_problems import random_problem
from verification.statistics import at_least_rate, clustered_mean_is, normal_score

SOURCE = "exact agents"
NUM_PROBLEMS, BLOCK = 1000, 20
MOST_TURNS = 5  # so that recursion and branches stay few
FEW_PLAYS = (1, 4, 16)
DRAWING_PLAYS, TIMES = 24, 8  # explorations that cannot play everything, with other draws from the rest
MOST_PLAYS = 100_000
SAMPLED = 100  # episodes by the key: 10^5 of all problems
TOLERANCE = 1e-9


class StateAgent:
    """Sends what a hash of the state says: mostly the next required tool, now and then another one or the end.

    What it sends in a state, and what that was worth, is remembered: the same states come up in many plays.
    """

    def __init__(self, name: object, problem: Problem) -> None:
        self._name, self._problem, self._values = name, problem, Judge(problem).values
        self._messages: dict[EpisodeState, Message] = {}
        self._worths: dict[tuple[EpisodeState, EpisodeState], Judgement] = {}

    def message(self, state: EpisodeState) -> Message:
        """Return what it sends in a state."""
        if state not in self._messages:
            self._messages[state] = self._choice(state)
        return self._messages[state]

    def _worth(self, state: EpisodeState, after: EpisodeState) -> Judgement:
        if (state, after) not in self._worths:
            self._worths[state, after] = Judge(self._problem).judge(state, self.message(state), after)
        return self._worths[state, after]

    def _choice(self, state: EpisodeState) -> Message:
        known = state.status, state.counters, state.executions, self._told(state)
        choices = Draws("verification/agent", self._name, *known)
        required, names = self._problem.required_tools, self._problem.library.names
        kind = choices.uniform()
        if kind < 0.06 or (kind < 0.8 and state.counters[3] >= len(required)):
            return FINISH
        tool = required[min(state.counters[3], len(required) - 1)] if kind < 0.8 else choices.choice(names)
        return execution(tool, {} if choices.uniform() < 0.8 else {"how": "otherwise"})

    def _told(self, state: EpisodeState) -> tuple[int, ...]:
        """Return what was seen, but for what validators found of outputs that are not required.

        The recursion does not tell those apart, as to the optimum they are all the same.
        """
        rules, parts = self._problem.dynamics.rules, list(state.parts)
        for tool in range(rules.num_tools if rules.at_sound >= 0 else 0):
            if rules.place[tool] < 0:
                parts[rules.at_sound + tool] = 0
        return tuple(parts)

    def rate(self, state: EpisodeState, known: dict[EpisodeState, float]) -> float:
        """Return its success rate from a state on."""
        if state.ended_by is not None:
            ended_well = state.ended_by in ("completion", "stopped")
            return self._problem.dynamics.chance_done(state) if ended_well else 0.0
        if state not in known:
            after = branches(self._problem, state, self.message(state))
            known[state] = sum(chance * self.rate(each, known) for chance, each in after)
        return known[state]

    def play(self, draws: WhereDrawsComeFrom, seed: int = 0) -> EpisodeRecord:
        """Play an episode, and return of its record what is read of one that is explored."""
        episode = Episode(self._problem, "small problem", seed, "verification", draws=draws)
        steps: list[dict[str, Any]] = []
        while episode.ended_by is None:
            before, message = episode.state, self.message(episode.state)
            episode.apply(message)
            worth = self._worth(before, episode.state)
            label = "lost" if worth.regret > 0.0 else None
            steps.append({"message": str(message), "regret": worth.regret, "luck": worth.luck, "label": label,
                          "action_value": worth.action_value, "value": worth.value, "kind": message.kind})  # fmt: skip
        record = {
            "steps": steps,
            "outcome": outcome(self._problem, episode.state),
            "luck": sum(step["luck"] for step in steps),
            "losses": {"lost": sum(step["regret"] for step in steps)},
            "optimum": steps[0]["value"],
            "optimum_gap": self._values.gap,
            "optimum_knowledge": self._values.knowledge,
        }
        return cast("EpisodeRecord", record)


@dataclass(frozen=True, slots=True)
class Explored:
    """What one problem and agent brought.

    Attributes:
        outside: By how much the rate is outside of a bracket, at most.
        wrong: By how much the rate of all branches is wrong, or what was lost does not add up.
        plays: Branches that there are.
        errors: (TIMES,) of estimates with few plays; empty if they suffice for everything.
        middle: By how much the middle of the bracket is off where estimates are.
        held: How many of their intervals hold the rate.
        score: Of SAMPLED episodes by the key, standardised by the rate: 0 where nothing is left to chance.
        control: By how much the rate is above what has succeeded with few plays, at most.
    """

    outside: float
    wrong: float
    plays: int
    errors: tuple[float, ...]
    middle: float
    held: int
    score: float
    control: float


def small_problem(draws: Draws, with_goal: bool) -> Problem:
    """Return a random problem that an agent who sees what agents see can be judged in, of few turns."""
    while True:
        problem = random_problem(draws, with_goal)
        rules = problem.rules
        turns = min(rules.max_turns, MOST_TURNS)
        problem = build_problem(
            problem.library,
            problem.goal,
            problem.law,
            EndRules(turns, rules.max_consecutive_failures, rules.loop_length),
        )
        if Judge(problem).values.knowledge == "observing":
            return problem


def explored(agent: StateAgent, name: object, plays: int) -> tuple[ExploredRow, int]:
    """Return what exploring says, and how many episodes were drawn from the rest."""
    exploring = Exploring("agent", str(name), "none", 0, ExplorationLimits(plays=plays))
    while (play := exploring.next()) is not None:
        exploring.enter(agent.play(play.branch))
    row = exploring.row()
    return row, row.drawn


def compare(number: int, shift: int) -> Explored:
    """Explore an agent in a random problem."""
    draws = Draws("verification/exploring", number, shift)
    problem = small_problem(draws, number % 2 == 1)
    agent = StateAgent((number, shift), problem)
    rate = agent.rate(start_state(problem), {})
    whole, _ = explored(agent, "whole", MOST_PLAYS)
    outside, control = max(whole.low - rate, rate - whole.high), 0.0
    for plays in FEW_PLAYS:
        row, _ = explored(agent, plays, plays)
        outside, control = max(outside, row.low - rate, rate - row.high), max(control, rate - row.low)
    wrong = abs(whole.estimate - rate)
    if whole.optimum is not None and not Judge(problem).values.gap:
        wrong = max(wrong, abs(whole.optimum - rate - sum(whole.losses.values())))
    errors: list[float] = []
    middle, held = 0.0, 0
    for time in range(TIMES if whole.plays > 2 * DRAWING_PLAYS else 0):
        row, drawn = explored(agent, (number, time), DRAWING_PLAYS)
        if not drawn:
            break
        errors.append(row.estimate - rate)
        middle = (row.low + row.high) / 2.0 - rate
        held += row.interval[0] - TOLERANCE <= rate <= row.interval[1] + TOLERANCE
    seeds = range(number * SAMPLED, (number + 1) * SAMPLED)  # tools of one name have common luck under one seed
    won = sum(agent.play(Keyed(), seed)["outcome"] for seed in seeds)
    spread = (SAMPLED * rate * (1.0 - rate)) ** 0.5
    score = (won - SAMPLED * rate) / spread if spread > TOLERANCE else 0.0
    return Explored(outside, wrong, whole.plays, tuple(errors), middle, held, score, control)


def jobs(shift: int, number: int = NUM_PROBLEMS) -> list[tuple[int, int, int]]:
    """Return the first problem of each block, that of the next one, and the shift."""
    return [(first, min(first + BLOCK, number), shift) for first in range(0, number, BLOCK)]


def work(job: tuple[int, int, int]) -> list[Explored]:
    """Explore the agents of a block."""
    first, end, shift = job
    return [compare(number, shift) for number in range(first, end)]


def judge(blocks: Sequence[Sequence[Explored]]) -> list[Finding]:
    """Report brackets, rates, estimates, intervals and samples."""
    found = [one for block in blocks for one in block]
    outside, wrong = max(one.outside for one in found), max(one.wrong for one in found)
    drawn = [one for one in found if len(one.errors) == TIMES]
    scores = np.array([one.score for one in found if one.score])
    unbiased = clustered_mean_is([one.errors for one in drawn])
    covered = at_least_rate(sum(one.held for one in drawn), TIMES * len(drawn), 0.95)
    sampled = normal_score(float(scores.sum()) / max(len(scores), 1) ** 0.5)
    biased = clustered_mean_is([(one.middle,) for one in drawn])
    control = max(one.control for one in found)
    plays = sum(one.plays for one in found)
    return [
        Finding(
            f"brackets hold the rate of {len(found)} random agents",
            SOURCE,
            f"at most {outside:.1e} outside",
            exact=outside < TOLERANCE,
        ),
        Finding(
            f"rates and losses of all {plays:,} branches", SOURCE, f"at most {wrong:.1e} off", exact=wrong < TOLERANCE
        ),
        Finding(f"estimates with {DRAWING_PLAYS} plays are unbiased", SOURCE, unbiased.text, unbiased.p_value),
        Finding("their 95% intervals hold the rate", SOURCE, covered.text, covered.p_value),
        Finding(f"samples of {SAMPLED} episodes agree", SOURCE, sampled.text, sampled.p_value),
        Finding(
            "control: the middle of a bracket is no unbiased estimate",
            SOURCE,
            biased.text,
            biased.p_value,
            control=True,
        ),
        Finding(
            "control: brackets that end where what has succeeded ends",
            SOURCE,
            f"at most {control:.1e} outside",
            exact=control < TOLERANCE,
            control=True,
        ),
    ]
