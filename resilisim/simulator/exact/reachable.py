"""The exact optimum under laws with parts: values of the states that an episode can reach, and of no others.

Every message uses a turn, so the states after t messages lead to states after t + 1 only. They are enumerated layer by
layer from the start, equal ones once, and valued from the last layer back. A state that the best policy never meets,
because an agent called what it should not have, is added with what follows it when it is asked for.

*Observing* values are those of an agent that knows the law and what it saw: what is hidden counts by its chance given
that, which is a function of `parts`. *Informed* values see what is hidden, too; they bound the former from above.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from resilisim.errors import ExactLimitError, InvalidInputError
from resilisim.simulator.exact.stage import (
    Layer,
    Neutral,
    Stage,
    failing_helps,
    find_row,
    make_stage,
    neutral_tools,
    told_apart,
)
from resilisim.simulator.exact.sweep import ADD, CHOICES, NOT_KNOWN, REFUSED_INPUT, VALUE, compare, settle, sweep
from resilisim.simulator.messages import FINISH, WAIT, Message, execution
from resilisim.simulator.problem import Problem
from resilisim.simulator.rulebook.play import parameter_digest
from resilisim.simulator.rulebook.rules import CLOSED, OPEN, chance_broken
from resilisim.simulator.state import (
    ENDED,
    LOOP_COUNT,
    LOOP_SIGNATURE,
    NEXT_PLACE,
    NO_LOOP,
    RUNNING,
    TURNS_USED,
    EpisodeState,
    branches,
    is_awaiting_closing,
    next_state,
    outcome,
    start_state,
)
from resilisim.tool_library.parameters import changed_parameters

Knowledge = Literal["observing", "informed"]

MAX_STATES = 1_500_000  # together; about a gigabyte where beliefs about broken tools are part of them
# Of a small library of which every tool is told apart, before bounds are tried.
MAX_ENUMERATED_TOOLS = 12
MAX_ENUMERATED_STATES = 400_000
TIE_TOLERANCE = 1e-12

# Where a state's sections begin, as fields of `Rulebook`.
_SECTIONS = (
    *("at_evidence", "at_block", "at_sound", "at_rate", "at_outage", "at_time"),
    *("at_down", "at_broken", "at_unsound"),
)


class Reachable:
    """Values of reachable states, for one stage and one kind of knowledge."""

    def __init__(self, problem: Problem, stage: Stage, informed: bool, max_states: int = MAX_STATES) -> None:
        self.problem, self.stage, self.informed, self.max_states = problem, stage, informed, max_states
        self.layers = [Layer(stage.width) for _ in range(problem.rules.max_turns + 1)]
        # Reading a field of a record takes a microsecond, and states are asked for by the thousand.
        self._places = {name: int(getattr(stage.rules, name)) for name in (*_SECTIONS, "num_parts", "num_hidden")}
        self._full_places = {name: int(getattr(problem.dynamics.rules, name)) for name in _SECTIONS}
        self._num_neutral = int(stage.rules.num_tools) - len(stage.tools)

    @property
    def num_states(self) -> int:
        """How many states have a value of their own."""
        return sum(layer.size for layer in self.layers)

    def value(self, state: EpisodeState) -> float:
        """Return V* of a running state; for the informed, what is hidden must be known."""
        row = np.zeros(self.stage.width, dtype=np.int64)
        value = self._settle(state, row)
        if value == NOT_KNOWN:
            value = self.value_of_row(row, state.counters[TURNS_USED])
        return value * self._chance_of_case(state)

    def choices(self, state: EpisodeState) -> NDArray[np.float64]:
        """Return Q* of each choice in a running state: of calling each tool of the stage, of waiting, of finishing.

        It is float64 (num_tools + 2,), and -1 for a call that another choice is surely as good as, and for all of them
        where there is nothing left to choose.
        """
        values = np.full(int(self.stage.rules.num_tools) + 2, -1.0)
        row = np.zeros(self.stage.width, dtype=np.int64)
        turn = state.counters[TURNS_USED]
        if self._settle(state, row) == NOT_KNOWN:
            self.value_of_row(row, turn)  # adds what can follow
            layer = self.layers[turn]
            self._sweep(CHOICES, turn, find_row(row, layer.rows, layer.slots), values)
            values[values > 0.0] *= self._chance_of_case(state)
        return values

    def _chance_of_case(self, state: EpisodeState) -> float:
        """Return the chance that the tools work that the values take to work."""
        dynamics, chance = self.problem.dynamics, 1.0
        if dynamics.rules.at_evidence < 0:
            return chance
        for tool in self.stage.alone:
            if self.informed and state.hidden:
                chance *= 1.0 - state.hidden[dynamics.rules.at_broken + tool]
            else:
                chance *= 1.0 - chance_broken(dynamics.rules, state.status, state.parts, tool)
        return chance

    def value_of_row(self, row: NDArray[np.int64], turns_used: int) -> float:
        """Return V* of a packed state, which is added if need be."""
        layer = self.layers[turns_used]
        number = find_row(row, layer.rows, layer.slots)
        if number < 0:
            self.extend(row, turns_used)
            number = find_row(row, layer.rows, layer.slots)
        return float(layer.values[number])

    def extend(self, row: NDArray[np.int64], turns_used: int) -> None:
        """Add a state with all that can follow, and value them."""
        firsts = [layer.size for layer in self.layers]
        self.layers[turns_used].add(row)
        for turn in range(turns_used, len(self.layers) - 1):
            self._sweep(ADD, turn, firsts[turn])
        for turn in reversed(range(turns_used, len(self.layers) - 1)):
            self._sweep(VALUE, turn, firsts[turn])

    def distance_to(self, upper: Reachable) -> tuple[float, float]:
        """Return how far an upper bound lies above these values at most, in all states and in those of the start."""
        gap, start, row = np.zeros(1), 0.0, np.zeros(self.stage.width, dtype=np.int64)
        for turn, layer in enumerate(self.layers):
            first = 0
            while first < layer.size:
                above = upper.layers[turn]
                first = compare(
                    self.stage.rules,
                    upper.stage.rules,
                    self.informed,
                    turn,
                    layer.rows,
                    first,
                    layer.size,
                    layer.values,
                    above.rows,
                    above.slots,
                    above.values,
                    row,
                    gap,
                )
                if first < layer.size:
                    upper.extend(row, turn)
            start = float(gap[0]) if turn == 0 else start
        return float(gap[0]), start

    def _sweep(self, mode: int, turn: int, first: int, values: NDArray[np.float64] | None = None) -> None:
        here, following = self.layers[turn], self.layers[turn + 1]
        last = here.size if values is None else first + 1
        while first < last:
            first = sweep(
                mode,
                self.stage.rules,
                self.stage.tables.probability,
                self.stage.tables.evidence,
                self.informed,
                turn,
                here.rows,
                first,
                last,
                here.values if values is None else values,
                following.rows,
                following.slots,
                following.values,
                following.count,
            )
            if first < last:
                following.grow()
                if self.num_states > self.max_states:
                    raise ExactLimitError(
                        f"the exact optimum of {len(self.problem.required)} required tools and "
                        f"{self.problem.rules.max_turns} turns under law {self._law} needs more than "
                        f"{self.max_states:,} states: expected fewer; use fewer turns or a shorter list"
                    )

    @property
    def _law(self) -> str:
        return self.problem.dynamics.numbers.law.name

    def _settle(self, state: EpisodeState, row: NDArray[np.int64]) -> float:
        stage, at, full = self.stage, self._places, self._full_places
        tools, num_tools = stage.tools, len(stage.tools) + self._num_neutral
        status = np.zeros(num_tools, dtype=np.int64)
        status[: len(tools)] = [state.status[tool] for tool in tools]
        counters = np.array(state.counters, dtype=np.int64)
        if counters[LOOP_SIGNATURE] not in tools:  # of a search, say: another one can always be sent
            counters[LOOP_SIGNATURE], counters[LOOP_COUNT] = NO_LOOP, 0
        else:
            counters[LOOP_SIGNATURE] = tools.index(counters[LOOP_SIGNATURE])
        parts = np.zeros(max(at["num_parts"], 1), dtype=np.int64)
        for name in ("at_evidence", "at_sound"):
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
        for name in ("at_broken", "at_unsound") if self.informed else ():
            first = at[name]
            if first >= 0:
                hidden[first : first + len(tools)] = [state.hidden[full[name] + tool] for tool in tools]
        if self.informed and at["at_broken"] >= 0:
            for number, tool in enumerate(tools):
                hidden[at["at_broken"] + number] *= tool not in stage.alone
        scratch = np.zeros_like(status)
        return float(settle(stage.rules, status, counters, parts, hidden, self.informed, scratch, row))


@dataclass(frozen=True, slots=True)
class Choices:
    """The best that an agent can do in a state, but for calls that one of these is surely as good as.

    Attributes:
        value: V*, 0 if nothing can succeed any more; then there are no choices.
        tools: Library indices of tools whose call is best.
        outside: Kinds of outside tools to call, each by the library indices of the tools that it can be.
        waits: Whether waiting is best.
        finishes: Whether finishing is.
    """

    value: float
    tools: tuple[int, ...]
    outside: tuple[tuple[int, ...], ...]
    waits: bool
    finishes: bool


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class ReachableOptimum:
    """The solved problem under a law with parts; the same questions as to an `Optimum`.

    Attributes:
        problem: The problem.
        knowledge: "observing" or "informed".
        states: The values.
        neutral: The calls of outside tools that are taken to be there.
        gap: How far any value may lie below the optimum; 0 where all are exact.
        start_gap: How far V*(start) may; the states with the largest gaps are mostly far from the best path.

    Example:
        >>> from resilisim import default_library
        >>> from resilisim.simulator import ErrorKinds, Law, build_problem, start_state
        >>> from resilisim.simulator.exact import solve
        >>> law = Law(error_kinds=ErrorKinds())
        >>> optimum = solve(build_problem(default_library(), ["integration_connector"], law))
        >>> optimum.knowledge, round(optimum.value(start_state(optimum.problem)), 4)
        ('observing', 0.995)
    """

    problem: Problem
    knowledge: Knowledge
    states: Reachable
    neutral: tuple[Neutral, ...]
    gap: float
    start_gap: float

    def __repr__(self) -> str:
        """Return the problem and its value, without the states."""
        value = self.value(start_state(self.problem))
        return f"ReachableOptimum({self.problem}, {self.knowledge}, value={value:.6f}, gap={self.gap:.6f})"

    @property
    def num_states(self) -> int:
        """How many states have a value of their own."""
        return self.states.num_states

    @property
    def nbytes(self) -> int:
        """Size of what is kept."""
        return sum(layer.rows.nbytes + layer.values.nbytes + layer.slots.nbytes for layer in self.states.layers)

    def value(self, state: EpisodeState) -> float:
        """Return V*(state), the highest probability of full success by what is known.

        Raises:
            InvalidInputError: The informed optimum was asked about a state that leaves open what is hidden, after the
                first execution.
        """
        state = self._as_known(state)
        if state.counters[ENDED] != RUNNING:
            return self._outcome(state)
        return sum(chance * self.states.value(known) for chance, known in self._possible(state))

    def bound(self, state: EpisodeState) -> float:
        """Return what V* of a running state is surely not above; `gap` knows the states of the first solving only."""
        state = self._as_known(state)
        if self.gap == 0.0:
            return self.value(state)
        there, bounding = neutral_tools(self.problem, self.states.stage.tools, self.states.informed)
        stage = make_stage(self.problem, self.states.stage.tools, [*there, *bounding])
        upper = Reachable(self.problem, stage, self.states.informed, self.states.max_states)
        return sum(chance * upper.value(known) for chance, known in self._possible(state))

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
            ended_well = outcome(self.problem, replace(state, hidden=self._nothing_hidden()))
            return ended_well * self.problem.dynamics.chance_done(state)
        return float(outcome(self.problem, state))

    def _nothing_hidden(self) -> tuple[int, ...]:
        return (0,) * self.problem.dynamics.rules.num_hidden

    def tells_apart(self, tool: int) -> bool:
        """Return whether more than a tool's chance and whether it has succeeded decides what calling it is worth."""
        return tool in self.states.stage.tools

    def after_search(self, searches: int) -> float:
        """Return V* after so many different searches at the start, 0.0 to 1.0, as `Optimum.after_search` does."""
        state = start_state(self.problem)
        for number in range(min(searches, self.problem.rules.max_turns)):
            state = next_state(self.problem, state, Message("search", query=str(number)))
        return self.value(state)

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
            return Choices(0.0, (), (), waits=False, finishes=False)
        is_best = [value >= best - TIE_TOLERANCE for value in values]
        return Choices(
            best,
            tuple(tool for tool, chosen in zip(tools, is_best, strict=False) if chosen),
            tuple(one.tools for one, chosen in zip(self.neutral, is_best[len(tools) :], strict=False) if chosen),
            waits=is_best[-2],
            finishes=is_best[-1],
        )

    def judge(self, state: EpisodeState, message: Message, after: EpisodeState) -> tuple[float, float]:
        """Return Q*(state, message) and V*(after) of the state that the message led to."""
        return self.action_value(state, message), self.value(after)

    def best_action(self, state: EpisodeState) -> Message:
        """Return a message with the highest Q*; among equals the next required tool, then the order of the library."""
        known, names = self._as_known(state), self.problem.library.names
        counters, required = known.counters, self.problem.required
        candidates = [FINISH] if counters[NEXT_PLACE] == len(required) else []
        if not is_awaiting_closing(self.problem, known):
            tools = [required[min(counters[NEXT_PLACE], len(required) - 1)], *self.states.stage.tools]
            tools += [tool for one in self.neutral for tool in self._spares(known, one.tools)]
            candidates += [self.call(known, tool) for tool in dict.fromkeys(tools)]
            if self.states.stage.rules.waiting_is_productive:
                candidates.append(WAIT)
        best, best_value = FINISH, -1.0
        for message in candidates:
            value = self.action_value(known, message)
            if value > best_value + TIE_TOLERANCE:
                best, best_value = message, value
        assert best.tool is None or best.tool in names
        return best

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
    problem: Problem, knowledge: Knowledge | None = None, max_states: int = MAX_STATES
) -> ReachableOptimum:
    """Solve a problem under a law with parts; keeps nothing.

    Where neutral calls are surely there (`stage`), few tools are told apart and values are exact. Else a small library
    is enumerated, every tool told apart, and values are exact, too. What is too large for that is bounded.

    Args:
        problem: The problem.
        knowledge: What the best agent knows; if None, what agents can see, or, where that takes too many states,
            everything.
        max_states: States that it may take.

    Raises:
        ExactLimitError: It takes too many states.

    Example:
        >>> from resilisim import default_library
        >>> from resilisim.simulator import Broken, Law, build_problem, start_state
        >>> from resilisim.simulator.exact import solve_reachable
        >>> problem = build_problem(default_library(), ["network_fetcher"], Law(broken=Broken(0.1)))
        >>> round(solve_reachable(problem, "informed").value(start_state(problem)), 4)
        0.8965
    """
    if knowledge is None:
        try:
            return solve_reachable(problem, "observing", max_states)
        except ExactLimitError:
            return solve_reachable(problem, "informed", max_states)
    informed, tools = knowledge == "informed", told_apart(problem)
    there, bounding = neutral_tools(problem, tools, informed)
    is_small = problem.num_tools <= MAX_ENUMERATED_TOOLS
    if there == bounding and not (is_small and failing_helps(problem)):
        states = _solved(problem, make_stage(problem, tools, there), informed, max_states)
        return ReachableOptimum(problem, knowledge, states, tuple(there), 0.0, 0.0)
    if is_small:
        stage = make_stage(problem, range(problem.num_tools), (), is_enumerated=True)
        try:
            states = _solved(problem, stage, informed, min(max_states, MAX_ENUMERATED_STATES))
        except ExactLimitError:
            pass  # bounds need fewer states
        else:
            return ReachableOptimum(problem, knowledge, states, (), 0.0, 0.0)
    neutral = [*there, *bounding]
    states = _solved(problem, make_stage(problem, tools, neutral, len(there)), informed, max_states)
    upper = _solved(problem, make_stage(problem, tools, neutral), informed, max_states)
    gap, start_gap = (most if most > TIE_TOLERANCE else 0.0 for most in states.distance_to(upper))
    return ReachableOptimum(problem, knowledge, states, tuple(there), gap, start_gap)


def _solved(problem: Problem, stage: Stage, informed: bool, max_states: int) -> Reachable:
    states, start = Reachable(problem, stage, informed, max_states), start_state(problem)
    if informed and problem.dynamics.rules.num_hidden > 0:
        for _, known in first_states(problem, start, states):
            states.value(known)
    else:
        states.value(start)
    return states
