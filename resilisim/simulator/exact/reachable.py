"""The exact optimum under laws with parts: values of the states that are asked for, and of what they hang on.

They are searched for under a bound (`lookahead`), and kept. A state that the best policy never meets, because an agent
called what it should not have, is searched for when it is asked for. Where there are more states than have room, the
search is given a tolerance, and values are known within a stated gap; no question is refused once a problem is solved.

*Observing* values are those of an agent that knows the law and what it saw: what is hidden counts by its chance given
that, which is a function of `parts`. *Informed* values see what is hidden, too; they bound the former from above.
"""

from __future__ import annotations

import itertools
import math
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from resilisim.errors import ExactLimitError, InvalidInputError
from resilisim.simulator.exact.lookahead import (
    CUTS,
    NUM_OF_BEST,
    NUM_OF_OUTCOME,
    NUM_OF_TREE,
    STOPS,
    Frames,
    Guide,
    Memo,
    look_ahead,
    move_memo,
)
from resilisim.simulator.exact.phases import FLAWED_OUTPUTS, OUTAGES, make_phases
from resilisim.simulator.exact.relaxation import NOT_CHARGED, NUM_TOKENS, Relaxation, check_turns, relax
from resilisim.simulator.exact.search_kernels import FINISHED, MEMORY_FULL
from resilisim.simulator.exact.simplification import REFUSED_INPUT
from resilisim.simulator.exact.stage import (
    Neutral,
    Stage,
    enumerated_tools,
    failing_helps,
    make_stage,
    most_tools,
    most_up,
    neutral_tools,
    told_apart,
    undominated,
)
from resilisim.simulator.exact.values import TIE_TOLERANCE, Choices, Knowledge, Values
from resilisim.simulator.messages import FINISH, WAIT, Message, execution
from resilisim.simulator.problem import Problem, branches, is_awaiting_closing, next_required, outcome, start_state
from resilisim.simulator.rulebook.dynamics import parameter_digest
from resilisim.simulator.rulebook.lost_answers import chance_run_well
from resilisim.simulator.rulebook.possible_results import most_results
from resilisim.simulator.rulebook.rules import CLOSED, NUM_RESULTS, OPEN, chance_broken
from resilisim.simulator.state import (
    COMPLETION,
    ENDED,
    LOOP_COUNT,
    LOOP_SIGNATURE,
    NEXT_PLACE,
    NO_LOOP,
    NUM_COUNTERS,
    RUNNING,
    STOPPED,
    EpisodeState,
)
from resilisim.simulator.tool_status import SUCCEEDED
from resilisim.tool_library.parameters import changed_parameters

MAX_STATES = 150_000  # of one problem: 10 to 30 seconds
FIRST_CAPACITY = 1 << 10
# Tolerances, of which the first one that fits is taken, and the share of these states that each may take.
TOLERANCES = {0.0: 1.0, 0.05: 0.3, 0.2: 0.3, math.inf: 0.3}
# Tools outside the list that may be told apart to close a gap, and the share of the states that this may take.
MAX_JOINED, SHARE_OF_JOINED = 8, 0.3
SHARE_OF_GUIDED = 0.4  # of the states, for a search that another one has guided, and bounds if this one has no room
MAX_OUTCOMES = 4_000_000  # results of a call that are looked at together, times the turns

# Where a state's sections begin, as fields of `Rulebook`.
_SECTIONS = (
    *("at_evidence", "at_block", "at_sound", "at_rate", "at_outage", "at_time", "at_ran"),
    *("at_down", "at_broken", "at_unsound", "at_lost"),
)


class Reachable:
    """Values of reachable states, for one stage and one kind of knowledge, found when they are asked for.

    Args:
        problem: The task's numbers.
        stage: The tools that are told apart.
        informed: Whether what is hidden is known.
        max_states: States that may be kept.
        may_bound: Whether values are bounded where there is no room for all states; else they are refused.
        guide: Values that are not below these, for the same tools and sections; they bound the search.

    Attributes:
        tolerance: Share of the best value that a call has to gain to be tried; 0 as long as everything has room.
    """

    def __init__(
        self,
        problem: Problem,
        stage: Stage,
        informed: bool,
        max_states: int = MAX_STATES,
        may_bound: bool = True,
        guide: Reachable | None = None,
    ) -> None:
        self.problem, self.stage, self.informed, self.max_states = problem, stage, informed, max_states
        self._may_bound = may_bound
        self.tolerance = 0.0
        # Reading a field of a record takes a microsecond, and states are asked for by the thousand.
        self._places = {name: int(getattr(stage.rules, name)) for name in (*_SECTIONS, "num_parts", "num_hidden")}
        self._full_places = {name: int(getattr(problem.dynamics.rules, name)) for name in _SECTIONS}
        self._num_neutral = int(stage.rules.num_tools) - len(stage.tools)
        # What others have opened counts as opened by one that is told apart, not required, and that nothing depends on.
        openers = [tool for tool in problem.dynamics.rules.openers if tool >= 0]
        needed = {tool for dependent in stage.tools for tool in problem.dependencies[dependent]}
        spare = [number for number, tool in enumerate(stage.tools) if tool in openers and tool not in needed]
        self._other_openers = [tool for tool in openers if tool not in stage.tools]
        self._spare_opener = next((number for number in spare if stage.tools[number] not in problem.closure), -1)
        self._guide = guide
        self._relaxation: Relaxation = _relaxed(problem, stage, informed) if guide is None else guide._relaxation
        self._frames = _make_frames(problem, stage, informed)
        self._memo = _make_memo(FIRST_CAPACITY, stage.width)
        self._lock = threading.Lock()

    @property
    def num_states(self) -> int:
        """How many states have a value of their own."""
        return int(self._memo.used[0])

    @property
    def nbytes(self) -> int:
        """Size of what is kept."""
        beside = self._relaxation.bound.nbytes if self._guide is None else self._guide.nbytes
        return beside + sum(array.nbytes for array in self._memo)

    @property
    def gap(self) -> float:
        """How far the value of any state that was met may lie below the optimum."""
        return float(self._frames.result[2])

    def values(self, state: EpisodeState) -> tuple[float, float]:
        """Return what V* of a running state surely reaches, and what it does not exceed: the same where it is exact.

        For the informed, what is hidden must be known.
        """
        chance = self._chance_of_case(state)
        with self._lock:
            low, high = self._search(state, tells_choices=False)
        return chance * low, chance * high

    def choices(self, state: EpisodeState) -> NDArray[np.float64]:
        """Return Q* of each choice in a running state: of calling each tool of the stage, of waiting, of finishing.

        It is float64 (num_tools + 2,), and -1 for a call that another choice is surely as good as, and for all of them
        where there is nothing left to choose.
        """
        with self._lock:
            self._frames.choices[:] = -1.0
            self._search(state, tells_choices=True)
            values = self._frames.choices.copy()
        values[values > 0.0] *= self._chance_of_case(state)
        return values

    def has_room_for(self, state: EpisodeState) -> bool:
        """Return whether all that a state leads to has room, without a tolerance."""
        with self._lock:
            return self._searched(state, tells_choices=False, is_whole=False) is not None

    def bounds_after(self, state: EpisodeState) -> Guide:
        """Return bounds of the states that one leads to, as far as there is room to find them."""
        self.has_room_for(state)
        return Guide(self.stage.rules, self._memo)

    def _search(self, state: EpisodeState, tells_choices: bool) -> tuple[float, float]:
        low, high = self._searched(state, tells_choices) or (0.0, 1.0)
        return low, high

    def _searched(self, state: EpisodeState, tells_choices: bool, is_whole: bool = True) -> tuple[float, float] | None:
        is_fresh, when_full, most_apart = self.num_states == 0, STOPS, float(self._frames.result[2])
        guide = Guide(self.stage.rules, _make_memo(1, self.stage.width))  # one that knows nothing
        if self._guide is not None:
            guide = self._guide.bounds_after(state)
        while True:
            self._enter(state)
            code = look_ahead(
                self.stage.rules,
                self.stage.tables,
                self.informed,
                self._relaxation,
                guide,
                self._memo,
                self._frames,
                self.tolerance,
                math.ceil(self.max_states * TOLERANCES[self.tolerance]),
                when_full,
                tells_choices,
            )
            if code == FINISHED:
                return float(self._frames.result[0]), float(self._frames.result[1])
            if code == MEMORY_FULL:
                larger = _make_memo(2 * len(self._memo.low), self.stage.width)
                move_memo(self._memo, larger)
                self._memo = larger
                continue
            if not is_whole:
                return None
            if not self._may_bound:
                raise ExactLimitError(f"the exact optimum needs more than {self.max_states:,} states")
            # What this state leads to has no room: beside what is kept, or at all.
            self._frames.result[2] = most_apart
            self._memo = _make_memo(FIRST_CAPACITY, self.stage.width)
            if not is_fresh:
                is_fresh = True
            elif self.tolerance < math.inf:
                self.tolerance = min(more for more in TOLERANCES if more > self.tolerance)
            else:
                when_full = CUTS

    def _chance_of_case(self, state: EpisodeState) -> float:
        """Return the chance that the tools work that the values take to work, and others have not run too often."""
        dynamics, chance = self.problem.dynamics, 1.0
        rules = dynamics.rules
        if rules.at_ran >= 0:
            for tool, once in enumerate(rules.is_once):
                if once and tool not in self.stage.tools:
                    chance *= chance_run_well(rules, state.parts, state.hidden, bool(state.hidden), tool)
        if rules.at_evidence < 0:
            return chance
        for tool in self.stage.alone:
            if self.informed and state.hidden:
                chance *= 1.0 - state.hidden[dynamics.rules.at_broken + tool]
            else:
                chance *= 1.0 - chance_broken(dynamics.rules, state.status, state.parts, tool)
        return chance

    def _enter(self, state: EpisodeState) -> None:
        """Write a state into the first row of the frames."""
        stage, at, full = self.stage, self._places, self._full_places
        tools, num_tools = stage.tools, len(stage.tools) + self._num_neutral
        status = np.zeros(num_tools, dtype=np.int64)
        status[: len(tools)] = [state.status[tool] for tool in tools]
        if self._spare_opener >= 0 and any(state.status[tool] == SUCCEEDED for tool in self._other_openers):
            status[self._spare_opener] = SUCCEEDED
        counters = np.array(state.counters, dtype=np.int64)
        if counters[LOOP_SIGNATURE] not in tools:  # of a search, say: another one can always be sent
            counters[LOOP_SIGNATURE], counters[LOOP_COUNT] = NO_LOOP, 0
        else:
            counters[LOOP_SIGNATURE] = tools.index(counters[LOOP_SIGNATURE])
        parts = np.zeros(max(at["num_parts"], 1), dtype=np.int64)
        for name in ("at_evidence", "at_sound", "at_ran"):
            first = at[name]
            if first >= 0:
                parts[first : first + len(tools)] = [state.parts[full[name] + tool] for tool in tools]
        if at["at_block"] >= 0:
            blocks = [state.parts[full["at_block"] + tool] for tool in tools]
            is_digest = [block not in (OPEN, CLOSED) for block in blocks]
            parts[at["at_block"] : at["at_block"] + len(tools)] = np.where(is_digest, REFUSED_INPUT, 0) + [
                0 if digest else block for digest, block in zip(is_digest, blocks, strict=True)
            ]
        if at["at_rate"] >= 0:
            for number, key in enumerate(stage.rate_keys.tolist()):
                parts[at["at_rate"] + number] = state.parts[full["at_rate"] + key]
        hidden = np.zeros(max(at["num_hidden"], 1), dtype=np.int64)
        for number, group in enumerate(stage.groups.tolist()):
            seen, first = full["at_outage"] + 2 * group, at["at_outage"] + 2 * number
            parts[first : first + 2] = state.parts[seen : seen + 2]
            if self.informed:
                hidden[at["at_down"] + number] = state.hidden[full["at_down"] + group]
        if at["at_time"] >= 0:
            parts[at["at_time"]] = state.parts[full["at_time"]]
        for name in ("at_broken", "at_unsound", "at_lost") if self.informed else ():
            first = at[name]
            if first >= 0:
                hidden[first : first + len(tools)] = [state.hidden[full[name] + tool] for tool in tools]
        if self.informed and at["at_broken"] >= 0:
            for number, tool in enumerate(tools):
                hidden[at["at_broken"] + number] *= tool not in stage.alone
        frames = self._frames
        frames.status[0], frames.counters[0], frames.parts[0], frames.hidden[0] = status, counters, parts, hidden


def _make_memo(capacity: int, width: int) -> Memo:
    used = np.zeros(1, dtype=np.int64)
    return Memo(np.zeros((capacity, width), dtype=np.int64), np.full(capacity, -1.0), np.zeros(capacity), used)


def check_room(problem: Problem) -> None:
    """Refuse a problem whose values could not even be bounded; nothing is solved for it.

    Raises:
        ExactLimitError: There are too many turns, too many tools to be told apart, or too many results of one call.
    """
    tools = told_apart(problem)
    there, bounding = neutral_tools(problem, tools, informed=False)
    stage = make_stage(problem, tools, [*there, *bounding], len(there), informed=False)
    check_turns(problem, int(stage.rules.num_phases))
    _check_results(problem, stage, informed=False)


def _check_results(problem: Problem, stage: Stage, informed: bool) -> None:
    if not _has_room_for_results(problem, stage, informed):
        raise ExactLimitError(
            f"the exact optimum of {len(problem.required)} required tools under law "
            f"{problem.dynamics.numbers.law.name} would have to look at {most_results(stage.rules, informed):,} "
            f"results of one call: expected at most {MAX_OUTCOMES // _num_frames(problem):,}; use a shorter list"
        )


def _has_room_for_results(problem: Problem, stage: Stage, informed: bool) -> bool:
    return _num_frames(problem) * most_results(stage.rules, informed) <= MAX_OUTCOMES


def _num_frames(problem: Problem) -> int:
    return problem.rules.max_turns + 2


def _make_frames(problem: Problem, stage: Stage, informed: bool) -> Frames:
    rules, rows = stage.rules, _num_frames(problem)
    num_tools = int(rules.num_tools)
    _check_results(problem, stage, informed)
    outcomes = most_results(rules, informed)
    numbers = {
        "status": num_tools,
        "counters": NUM_COUNTERS,
        "parts": max(int(rules.num_parts), 1),
        "hidden": max(int(rules.num_hidden), 1),
        "rows": stage.width,
        "actions": 2 * num_tools + 1,
        "tree": NUM_OF_TREE,
    }
    return Frames(
        **{name: np.zeros((rows, size), dtype=np.int64) for name, size in numbers.items()},
        bounds=np.zeros((rows, 2 * num_tools + 1)),
        outcomes=np.zeros((rows, outcomes + 1, NUM_OF_OUTCOME)),
        best=np.zeros((rows, NUM_OF_BEST)),
        marks=np.zeros((3, 2 * num_tools), dtype=np.int64),
        choices=np.zeros(num_tools + 2),
        chances=np.zeros(NUM_RESULTS),
        tokens=np.zeros(NUM_TOKENS, dtype=np.int64),
        seen=tuple(
            np.zeros(numbers[name], dtype=np.int64) for name in ("status", "counters", "parts", "hidden", "rows")
        ),
        result=np.zeros(3),
    )


def _relaxed(problem: Problem, stage: Stage, informed: bool) -> Relaxation:
    """Solve the relaxed plain problem with chances that no tool of the stage exceeds, whatever was seen.

    * A group that an agent cannot look into is up with no more than the chance after it was just seen, up or down.
      Of the required tool that is due, and of what else parts do to it, the phases say more (`exact.phases`).
    * A tool that may be broken works with no more than its first chance until it has succeeded.
    * A call takes too long with at least the chance that it is over the timeout.
    * Where effects count and answers can be lost, it is known at once which failures were runs.
    """
    numbers = problem.dynamics.numbers
    law, probability, num_turns = numbers.law, numbers.tables.probability, problem.rules.max_turns + 1
    kind, num_phases = int(stage.rules.phase_kind), int(stage.rules.num_phases)
    is_effects = problem.goal.counts == "effects"
    costs_turns = law.corrupt is not None and not is_effects and kind != FLAWED_OUTPUTS
    up, in_time = 1.0, 1.0
    if not informed:
        up = most_up(problem)
    if law.latency is not None and law.latency.timeout is not None:
        late = [one.probability for one in law.latency.distribution if one.seconds > law.latency.timeout]
        in_time = 1.0 - min(sum(late), 1.0)

    def clean(tool: int) -> NDArray[np.float64]:
        row = numbers.facts[tool].first_row
        rows = probability[row : row + num_turns] if law.drift is not None else probability[row : row + 1]
        found: NDArray[np.float64] = np.broadcast_to(rows[:, 0, 0, 0] * in_time, num_turns)
        # The relaxed problem takes turns from outputs that are corrupt, so its clock is not exact then.
        return np.full(num_turns, found.max()) if costs_turns else found

    chance, unheard = np.array([clean(tool) for tool in stage.tools]), np.ones((len(stage.tools), 2))
    for number, tool in enumerate(stage.tools):
        facts, reach = numbers.facts[tool], 1.0
        if facts.group is not None and (kind != OUTAGES or problem.place[tool] < 0):  # else the phase knows it
            reach *= up
        if not informed and tool not in stage.alone:
            reach *= 1.0 - facts.broken_prior
        chance[number] *= reach
        unheard[number] = reach, facts.lost_share
    rows_known = 0 if costs_turns else problem.rules.max_consecutive_failures
    firsts = {(one.first_row, one.group is not None): tool for tool, one in enumerate(numbers.facts)}
    breaks = np.max([clean(tool) * (up if is_grouped else 1.0) for (_, is_grouped), tool in firsts.items()], axis=0)
    of_use = [
        float(chance[number].max())
        for number, tool in enumerate(stage.tools)
        if (problem.place[tool] >= 0 if kind == FLAWED_OUTPUTS else numbers.facts[tool].is_opener)
    ]
    phases = make_phases(problem, kind, num_phases, max(of_use, default=0.0))
    is_lost = is_effects and law.lost_answer is not None
    relaxation = relax(problem, stage.tools, chance, breaks, rows_known, phases, unheard if is_lost else None)
    neutral = int(stage.rules.num_tools) - len(stage.tools)
    return relaxation._replace(
        kind=np.append(relaxation.kind, np.zeros(neutral, dtype=np.int64)),
        charge=np.append(relaxation.charge, np.full(neutral, NOT_CHARGED)),
        through=np.append(relaxation.through, np.full(neutral, -1)),
    )


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class ReachableOptimum(Values):
    """The solved problem under a law with parts; the same questions as to an `Optimum`.

    Attributes:
        problem: The problem.
        knowledge: "observing" or "informed".
        states: The values.
        neutral: The calls of outside tools that are taken to be there.
        start_gap: How far V*(start) may lie below the optimum; the states with the largest gaps are mostly far from the
            best path.
    """

    problem: Problem
    knowledge: Knowledge
    states: Reachable
    neutral: tuple[Neutral, ...]
    start_gap: float

    @property
    def gap(self) -> float:
        """How far any value that was asked for so far may lie below the optimum; 0 where all are exact."""
        return self.states.gap

    @property
    def num_states(self) -> int:
        """How many states have a value of their own."""
        return self.states.num_states

    @property
    def nbytes(self) -> int:
        """Size of what is kept."""
        return self.states.nbytes

    def value(self, state: EpisodeState) -> float:
        """Return V*(state), the highest probability of full success by what is known.

        Raises:
            InvalidInputError: The informed optimum was asked about a state that leaves open what is hidden, after the
                first execution.
        """
        state = self._as_known(state)
        if state.counters[ENDED] != RUNNING:
            return self._outcome(state)
        return sum(chance * self.states.values(known)[0] for chance, known in self._possible(state))

    def bound(self, state: EpisodeState) -> float:
        """Return what V* of a running state is surely not above."""
        return sum(chance * self.states.values(known)[1] for chance, known in self._possible(self._as_known(state)))

    def _possible(self, state: EpisodeState) -> list[tuple[float, EpisodeState]]:
        """Return with their chances the states that one can be which leaves open what the informed see, else itself."""
        if self.knowledge == "observing" or state.hidden or not self._hides:
            return [(1.0, state)]
        if any(state.executions):
            raise InvalidInputError("the informed optimum has to know what is hidden: expected a state of an episode")
        return first_states(self.problem, state, self.states)

    @property
    def _hides(self) -> bool:
        return self.problem.dynamics.rules.num_hidden > 0

    def _as_known(self, state: EpisodeState) -> EpisodeState:
        is_open = self.knowledge == "observing" and state.hidden and state.counters[ENDED] == RUNNING
        return replace(state, hidden=()) if is_open else state

    def _outcome(self, state: EpisodeState) -> float:
        if self._hides and not state.hidden:
            ended_well = state.counters[ENDED] in (COMPLETION, STOPPED)
            return ended_well * self.problem.dynamics.chance_done(state)
        return float(outcome(self.problem, state))

    def tells_apart(self, tool: int) -> bool:
        """Return whether more than a tool's chance and whether it has succeeded decides what calling it is worth."""
        return tool in self.states.stage.tools

    def action_value(self, state: EpisodeState, message: Message) -> float:
        """Return Q*(state, message): the highest probability of full success if this message is sent next."""
        return sum(
            chance * share * self.value(after)
            for share, known in self._possible(self._as_known(state))
            for chance, after in branches(self.problem, known, message)
        )

    def best_choices(self, state: EpisodeState) -> Choices:
        """Return the best choices in a running state, which takes much less time than asking for each Q*."""
        tools, possible = self.states.stage.tools, self._possible(self._as_known(state))
        values = np.sum([share * self.states.choices(known) for share, known in possible], axis=0).tolist()
        best = max(values)
        if best <= TIE_TOLERANCE:
            return Choices(0.0)
        is_best = [value >= best - TIE_TOLERANCE for value in values]
        return Choices(
            best,
            tuple(tool for tool, chosen in zip(tools, is_best, strict=False) if chosen),
            tuple(one.tools for one, chosen in zip(self.neutral, is_best[len(tools) :], strict=False) if chosen),
            waits=is_best[-2],
            finishes=is_best[-1],
        )

    def _candidates(self, state: EpisodeState) -> Iterable[Message]:
        """Return the signal where it can succeed, calls, and waiting where time can help."""
        known, problem = self._as_known(state), self.problem
        is_done = known.counters[NEXT_PLACE] == len(problem.required) or problem.dynamics.chance_done(known) > 0.0
        messages = [FINISH] if is_done else []
        if is_awaiting_closing(problem, known):
            return messages or [FINISH]
        # Of equals what is needed, then what has not succeeded: else a plan would call what has for as long as it can.
        told_apart = sorted(
            self.states.stage.tools, key=lambda tool: (known.status[tool] == SUCCEEDED, tool not in problem.closure)
        )
        tools = [next_required(problem, known), *told_apart]
        tools += [tool for one in self.neutral for tool in self._spares(known, one.tools)]
        messages += [self.call(known, tool) for tool in dict.fromkeys(tools)]
        return [*messages, WAIT] if self.states.stage.rules.waiting_is_productive else messages

    def _spares(self, state: EpisodeState, tools: tuple[int, ...]) -> list[int]:
        """Return a few of the tools that are as good as each other, the least called first."""
        return sorted(tools, key=lambda tool: state.executions[tool])[:2]

    def call(self, state: EpisodeState, tool: int) -> Message:
        """Return a call of a tool, with a changed parameter if it was refused for its input."""
        dynamics, described = self.problem.dynamics, self.problem.library[tool]
        message = execution(described.name)
        if dynamics.rules.at_block >= 0 and state.parts[dynamics.rules.at_block + tool] == parameter_digest(
            described, {}
        ):
            return execution(described.name, changed_parameters(described, {}))
        return message


def first_states(problem: Problem, state: EpisodeState, states: Reachable) -> list[tuple[float, EpisodeState]]:
    """Return what can be hidden before anything was executed, as far as it makes a difference, with probabilities."""
    dynamics = problem.dynamics
    rules, hidden = dynamics.rules, [0] * dynamics.rules.num_hidden
    places = [(rules.at_down + int(group), rules.share_down) for group in states.stage.groups]
    if rules.at_broken >= 0:
        places += [(rules.at_broken + tool, rules.broken_prior[tool]) for tool in states.stage.tools]
    places = [(place, share) for place, share in places if share > 0.0]
    found = []
    for combination in itertools.product((0, 1), repeat=len(places)):
        chance = 1.0
        for (place, share), value in zip(places, combination, strict=True):
            chance *= share if value else 1.0 - share
            hidden[place] = value
        if chance > 0.0:
            found.append((chance, replace(state, hidden=tuple(hidden))))
    return found


def solve_reachable(
    problem: Problem, knowledge: Knowledge = "observing", max_states: int = MAX_STATES, may_bound: bool = True
) -> ReachableOptimum:
    """Solve a problem under a law with parts; keeps nothing.

    Where neutral calls are surely there (`stage`), few tools are told apart. Else a small library is enumerated, every
    tool told apart; of a larger one those that others outside the list are no better than, if they are few. In all of
    these cases values are exact as long as there is room for the states; what is too large for that is bounded from
    both sides, and the gap between them stated.

    Args:
        problem: The problem.
        knowledge: What the best agent knows: what agents can see, or everything.
        max_states: States that may be kept.
        may_bound: Whether values are bounded where there is no room for more.

    Raises:
        ExactLimitError: There are too many tools to be told apart, or too many results of one call, or no room for the
            states where nothing may be bounded.
    """
    informed, tools = knowledge == "informed", told_apart(problem)
    there, bounding = neutral_tools(problem, tools, informed)
    every = enumerated_tools(problem)
    if every and (bounding or failing_helps(problem)):
        stage = make_stage(problem, every, (), informed=informed, is_enumerated=True)
        optimum = _solved(problem, Reachable(problem, stage, informed, max_states, may_bound), knowledge, ())
        if optimum.states.tolerance == 0.0 or failing_helps(problem):
            return optimum
    optimum = _bracketed(problem, tools, there, bounding, knowledge, max_states, may_bound)
    if optimum.start_gap > 0.0 and optimum.states.tolerance > 0.0:  # with fewer calls aside there may be room
        fewer = neutral_tools(problem, tools, informed, by_group=False)
        if fewer != (there, bounding) and len(tools) + sum(map(len, fewer)) <= most_tools(problem):
            other = _bracketed(problem, tools, *fewer, knowledge, max_states, may_bound)
            optimum = min(optimum, other, key=lambda one: one.start_gap)
    joined = joined_tools(problem, tools) if optimum.gap > 0.0 and may_bound else ()
    if joined:
        stage = make_stage(problem, joined, (), informed=informed, is_enumerated=True)
        if _has_room_for_results(problem, stage, informed):
            states = Reachable(problem, stage, informed, math.ceil(max_states * SHARE_OF_JOINED))
            enumerated = _solved(problem, states, knowledge, ())
            if enumerated.gap == 0.0:
                return enumerated
    return optimum


def _bracketed(
    problem: Problem,
    tools: Sequence[int],
    there: Sequence[Neutral],
    bounding: Sequence[Neutral],
    knowledge: Knowledge,
    max_states: int,
    may_bound: bool,
) -> ReachableOptimum:
    """Solve a problem with neutral calls; the values enclose V*, and are it where these are all that can help."""
    first, *guided = bracketing_states(problem, tools, there, bounding, knowledge == "informed", max_states, may_bound)
    optimum = _solved(problem, first, knowledge, tuple(there))
    for states in guided if optimum.start_gap > 0.0 and first.tolerance == 0.0 else ():
        if states.has_room_for(start_state(problem)):
            optimum = _solved(problem, states, knowledge, tuple(there))
    return optimum


def bracketing_states(
    problem: Problem,
    tools: Sequence[int],
    there: Sequence[Neutral],
    bounding: Sequence[Neutral],
    informed: bool,
    max_states: int = MAX_STATES,
    may_bound: bool = True,
) -> list[Reachable]:
    """Return stages that tell few tools apart, not yet searched: a wide one, if there is any, guides the next.

    The values of each enclose V*, whatever the size of the library.
    """
    states: list[Reachable] = []
    for is_wide in (True, False) if any(one.guides for one in bounding) else (False,):
        stage = make_stage(problem, tools, [*there, *bounding], len(there), informed=informed, is_wide=is_wide)
        room = math.ceil(max_states * SHARE_OF_GUIDED) if states else max_states
        states.append(Reachable(problem, stage, informed, room, may_bound, states[0] if states else None))
    return states


def joined_tools(problem: Problem, tools: Sequence[int]) -> tuple[int, ...]:
    """Return tools with those outside that can be the best one to break a row or to look at a group; none if many."""
    outside = undominated(problem, [tool for tool in range(problem.num_tools) if tool not in tools], 2)
    library = problem.library
    joined = library.closure(library.names[tool] for tool in sorted({*tools, *outside}))
    most = min(len(tools) + MAX_JOINED, most_tools(problem))
    return tuple(map(library.index, joined)) if len(joined) <= most else ()


def _solved(
    problem: Problem, states: Reachable, knowledge: Knowledge, neutral: tuple[Neutral, ...]
) -> ReachableOptimum:
    start = start_state(problem)
    possible = [(1.0, start)]
    if states.informed and problem.dynamics.rules.num_hidden > 0:
        possible = first_states(problem, start, states)
    values = [(chance, *states.values(state)) for chance, state in possible]
    start_gap = sum(chance * (high - low) for chance, low, high in values)
    return ReachableOptimum(problem, knowledge, states, neutral, start_gap)
