"""An upper bound on V* that forgets which helper is which: what the search for the exact optimum is guided by.

A *helper* is a tool that is not required but belongs to the dependency closure. In the relaxed problem a call of a
helper brings a *token* (of a success, or of a failure), and only when a required tool is called does the agent decide
what its tokens were: a token of a success stands for any one dependency as if it had succeeded, one of a failure as if
it had failed. Each helper is *charged* to one of its dependants; all its other dependants find it satisfied for
nothing. So what counts is how many tokens there are, and no longer of which tools, and the relaxed problem is a small
table. Nothing that the real agent can do is worth more than it is here (docs/decisions, the exact optimum at any size):

* it knows at every time how many of its helpers have succeeded, so it can hold the same tokens and lay each where it
  belongs; a helper's call fails as early, costs its turn and lowers all later chances as it does in reality;
* the chance of a helper's call is the highest of any helper of its kind that is left;
* a row of failures can always be broken by the most reliable tool.

Where the required tools may come in any order, helpers are worth nothing here, and each required tool has the chance of
the best of them: then it makes no difference which is called. Nor does it if later failures cost nothing: each tool
then takes a number of calls of its own, whatever the order. So no value is above that either, if those that are left
are the best ones, with the chances that the failures so far leave (`_Charges.most_in_any_order`).

Helpers come in three kinds with tokens of their own: *simple* ones, *compound* ones, whose own chance hangs on helpers
charged to them, and these *inner* ones. All others are charged to nobody and worth nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from resilisim.errors import ExactLimitError
from resilisim.simulator.compiled import kernel, scalar
from resilisim.simulator.exact.phases import Phases, plain_phases
from resilisim.simulator.problem import Problem
from resilisim.simulator.tool_status import FAILED, NOT_EXECUTED, SUCCEEDED, IntVector

MAX_ENTRIES = 64_000_000  # 512 MB, of which the part is used that can be reached: about a third
NOT_CHARGED = -1

# Kinds of helpers.
FREE = 0  # charged to nobody
SIMPLE = 1
COMPOUND = 2
INNER = 3

# Tokens, by the columns of an array of five numbers and the last axes of the table of bounds.
SIMPLE_TOKENS, COMPOUND_TOKENS, FAILED_TOKENS, INNER_TOKENS, FAILED_INNER_TOKENS = range(5)
NUM_TOKENS = 5


class Relaxation(NamedTuple):
    """The relaxed problem, solved.

    Attributes:
        kind: (num_members,) one of the codes above.
        charge: (num_members,) place of the required tool that a helper is charged to, directly or through a compound
            helper, or NOT_CHARGED.
        through: (num_members,) compound helper that an inner one is charged to, or -1.
        most_inner: (num_required + 1,) tokens of inner helpers that can be of use, by required tools done.
        all_spare: Turns to spare at the start: failures and turns to spare are never more together.
        bound: Upper bounds by required tools done, turns to spare with failures (`_pair`), consecutive failures (one
            entry if they are not told apart), phase, and the five kinds of tokens.
    """

    kind: NDArray[np.int64]
    charge: NDArray[np.int64]
    through: NDArray[np.int64]
    most_inner: NDArray[np.int64]
    all_spare: int
    bound: NDArray[np.float64]


@scalar
def _pair(spare: int, failures: int, all_spare: int) -> int:
    """Return the place of turns to spare and failures, which are at most `all_spare` together, in one row of pairs."""
    return spare * (all_spare + 1) - spare * (spare - 1) // 2 + failures


def relax(
    problem: Problem,
    members: Sequence[int],
    chance: NDArray[np.float64],
    break_chance: NDArray[np.float64],
    most_in_row: int,
    phases: Phases | None = None,
    unheard: NDArray[np.float64] | None = None,
) -> Relaxation:
    """Solve the relaxed problem, in as much detail as there is room for.

    Args:
        problem: The task's numbers.
        members: Library indices of the tools that the search tells apart, the closure among them.
        chance: (num_members, max_turns + 1) what the chance of a tool with nothing unmet and no failure before is not
            above, by turns used.
        break_chance: (max_turns + 1,) likewise of any tool that is called to break a row of failures.
        most_in_row: Failures in a row that end an episode; 0 if the bound need not know of them.
        phases: What is kept of a law's parts; the plain law's if None. In a phase a call is at least as likely to
            succeed as in any state that the phase stands for.
        unheard: (num_members, 2) where effects count and answers can be lost, what the chance of each tool is not above
            to come to the draw of success, and the share of failures after the run: such a call does what it is for,
            and counts as a failure.

    Raises:
        ExactLimitError: Even the coarsest table would be too large.
    """
    max_rows = max(most_in_row, 1)
    phases = phases or plain_phases(len(problem.required))
    for detail in (COMPOUND, SIMPLE, FREE) if problem.goal.ordered else (FREE,):
        charges = _Charges(problem, members, chance, detail)
        for rows in (max_rows, 1):
            shape = charges.shape(rows, len(phases.is_done))
            if np.prod(shape, dtype=float) <= MAX_ENTRIES:
                bound = np.zeros(shape)
                rows_end = most_in_row > 0 and rows == max_rows
                _fill(
                    charges.needed,
                    charges.left,
                    charges.base,
                    charges.inside,
                    charges.most_inner,
                    *charges.required_chances(unheard),
                    charges.most_in_any_order(unheard),
                    charges.factor(),
                    break_chance,
                    problem.law.history,
                    rows_end,
                    charges.spare,
                    phases,
                    bound,
                )
                return Relaxation(
                    charges.kind, charges.charge, charges.through, charges.most_inner, charges.spare, bound
                )
    raise _too_many_turns(problem)


def check_turns(problem: Problem, num_phases: int) -> None:
    """Refuse a problem whose coarsest table of bounds would be too large.

    Raises:
        ExactLimitError: There are too many turns.
    """
    spare = max(problem.rules.max_turns - len(problem.required), 0)
    if (len(problem.required) + 1) * (_pair(spare, 0, spare) + 1) * num_phases > MAX_ENTRIES:
        raise _too_many_turns(problem)


def _too_many_turns(problem: Problem) -> ExactLimitError:
    return ExactLimitError(
        f"the exact optimum of {len(problem.required)} required tools with {problem.rules.max_turns} turns is too "
        "large: use fewer turns"
    )


class _Charges:
    """To whom helpers are charged: each to the dependant that has the fewest so far."""

    def __init__(self, problem: Problem, members: Sequence[int], chance: NDArray[np.float64], detail: int) -> None:
        self.problem, self.members, self.chance = problem, members, chance
        num_required, size = len(problem.required), len(members)
        local = {tool: index for index, tool in enumerate(members)}
        self.kind = np.zeros(size, dtype=np.int64)
        self.charge = np.full(size, NOT_CHARGED, dtype=np.int64)
        self.through = np.full(size, -1, dtype=np.int64)
        self.needed = np.zeros((4, num_required), dtype=np.int64)  # helpers charged to a required tool, by kind
        dependants: list[list[int]] = [[] for _ in members]
        for tool in problem.closure:
            for dependency in problem.dependencies[tool]:
                dependants[local[dependency]].append(local[tool])
        helpers = [local[tool] for tool in problem.closure if problem.place[tool] < 0] if detail > FREE else []
        # A place that several tools can take may be taken by one that needs none of it.
        alone = [problem.place[y] if problem.place.count(problem.place[y]) == 1 else -1 for y in members]
        places = {x: [alone[y] for y in dependants[x]] for x in helpers}
        direct = sorted((x for x in helpers if max(places[x]) >= 0), key=lambda x: (len(places[x]), x))
        load = [0] * num_required
        for x in direct:
            place = min((place for place in places[x] if place >= 0), key=lambda place: (load[place], -place))
            load[place] += 1
            self.kind[x], self.charge[x] = SIMPLE, place
        inside = dict.fromkeys(direct, 0)  # inner helpers charged to each
        for x in helpers if detail == COMPOUND else []:
            users = [y for y in dependants[x] if y in inside]
            if x not in inside and users:
                user = min(users, key=lambda y: (inside[y], y))
                inside[user] += 1
                self.kind[x], self.charge[x], self.through[x] = INNER, self.charge[user], user
        for x in direct:
            if inside[x] > 0:
                self.kind[x] = COMPOUND
            self.needed[self.kind[x], self.charge[x]] += 1
        # From each place on: how many helpers of each kind are left, their best chances, the fewest inside of one.
        self.left = np.zeros((4, num_required + 1), dtype=np.int64)
        self.base = np.zeros((4, num_required, chance.shape[1]))
        self.inside = np.zeros(num_required, dtype=np.int64)
        self.most_inner = np.zeros(num_required + 1, dtype=np.int64)
        self.spare = spare = max(problem.rules.max_turns - num_required, 0)
        for place in range(num_required - 1, -1, -1):
            ahead = [x for x in helpers if self.charge[x] >= place]
            for kind in (SIMPLE, COMPOUND, INNER):
                of_kind = [x for x in ahead if self.kind[x] == kind]
                self.left[kind, place] = len(of_kind)
                self.base[kind, place] = chance[of_kind].max(axis=0, initial=0.0)
            self.inside[place] = min((inside[x] for x in ahead if self.kind[x] == COMPOUND), default=0)
            most = int(self.inside.max()) * int(self.left[COMPOUND, place])
            self.most_inner[place] = min(most, self.left[INNER, place], spare)

    def shape(self, rows: int, num_phases: int) -> tuple[int, ...]:
        """Return the shape of the table of bounds."""
        num_required, spare = len(self.problem.required), self.spare
        simple, compound = (min(int(self.left[kind, 0]), spare) for kind in (SIMPLE, COMPOUND))
        failed = min(int(self.left[SIMPLE, 0] + self.left[COMPOUND, 0]), spare)
        inner = int(self.most_inner[0])
        tokens = (simple + 1, compound + 1, failed + 1, inner + 1, inner + 1)
        return (num_required + 1, _pair(spare, 0, spare) + 1, rows, num_phases, *tokens)

    def required_chances(self, unheard: NDArray[np.float64] | None) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return for what can take each place the chance to answer, charged dependencies met, and to run unheard.

        Both (num_required, max_turns + 1, failures + 1): the law's factor for each failure is in them.
        """
        base, problem = self.required_base(), self.problem
        drop = np.cumprod(np.append(1.0, np.full(self.spare, problem.law.history)))
        answers = base[:, :, None] * drop
        runs = answers
        if unheard is not None:
            wanted = np.array([problem.place[tool] >= 0 for tool in self.members])
            reach, share = (column[:, None, None] for column in unheard[wanted].T)
            own = self.chance[wanted][:, :, None] * drop
            runs = np.maximum(answers, np.max(own + (reach - own) * share, axis=0))
        return answers, runs - answers

    def most_in_any_order(self, unheard: NDArray[np.float64] | None) -> NDArray[np.float64]:
        """Return by places taken and pairs (`_pair`) the chance to take the others if no further failure costs chances.

        It is 1 where there is an order. Those that are left are taken to be the best ones, so the worst come first.
        """
        problem, spare, num_required = self.problem, self.spare, len(self.problem.required)
        most = np.ones((num_required + 1, _pair(spare, 0, spare) + 1))
        if problem.goal.ordered:
            return most
        best = np.zeros((num_required, spare + 1))
        for number, tool in enumerate(self.members):
            if problem.place[tool] >= 0:
                own = self.chance[number].max() * problem.law.history ** np.arange(spare + 1)
                reach, share = (1.0, 0.0) if unheard is None else unheard[number]
                np.maximum(best[problem.place[tool]], own + (reach - own) * share, out=best[problem.place[tool]])
        best.sort(axis=0)
        for place in range(num_required - 1, -1, -1):
            for left in range(spare + 1):
                failures = np.arange(spare - left + 1)
                here, chance = _pair(left, 0, spare) + failures, best[place, : spare - left + 1]
                later = most[place, _pair(left - 1, 0, spare) + failures] if left > 0 else 0.0
                most[place, here] = chance * most[place + 1, here] + (1.0 - chance) * later
        return most

    def required_base(self) -> NDArray[np.float64]:
        """Return the chances of what can take each place, charged dependencies met, (num_required, max_turns + 1)."""
        problem = self.problem
        chances = np.zeros((len(problem.required), self.chance.shape[1]))
        if not problem.goal.ordered:
            wanted = [problem.place[tool] >= 0 for tool in self.members]
            chances[:] = self.chance[wanted].max(axis=0)
            return chances
        for tool, own in zip(self.members, self.chance, strict=True):
            place = problem.place[tool]
            if place >= 0:
                later = sum(problem.place[other] > place for other in problem.dependencies[tool])
                factor = max(problem.law.failed, problem.law.not_executed) ** later
                chances[place] = np.maximum(chances[place], own * factor)
        return chances

    def factor(self) -> NDArray[np.float64]:
        """Return what so many dependencies not executed and so many failed leave of a chance, (width, width)."""
        law = self.problem.law
        powers = np.arange(1 + int(self.needed.sum(axis=0).max()) + int(self.inside.max()))
        # Failed ones count at least as much as ones not executed, so that more tokens are never worth less.
        failed = max(law.failed, law.not_executed)
        factor: NDArray[np.float64] = law.not_executed ** powers[:, None] * failed ** powers[None, :]
        return factor


@scalar
def _required_call(
    place: int,
    here: int,
    phase: int,
    tokens: IntVector,
    needed: NDArray[np.int64],
    left: NDArray[np.int64],
    most_inner: NDArray[np.int64],
    base: float,
    factor: NDArray[np.float64],
    passes: float,
    closes: float,
    flaws: float,
    flawed_phase: int,
    failed: float,
    closed: float,
    blocked: float,
    lost: float,
    unheard: float,
    bound: NDArray[np.float64],
) -> float:
    """Return the best bound of calling the next required tool, its dependencies covered by some of the tokens.

    With the chance `lost` it has run and nobody hears of it, which is worth `unheard`.
    """
    best = 0.0
    bad_after_most = min(bound.shape[6] - 1, left[SIMPLE, place + 1] + left[COMPOUND, place + 1])
    inner = min(tokens[INNER_TOKENS], most_inner[place + 1])
    failed_inner = min(tokens[FAILED_INNER_TOKENS], most_inner[place + 1])
    for simple in range(min(tokens[SIMPLE_TOKENS], needed[SIMPLE, place]) + 1):
        for compound in range(min(tokens[COMPOUND_TOKENS], needed[COMPOUND, place]) + 1):
            uncovered = needed[SIMPLE, place] + needed[COMPOUND, place] - simple - compound
            for bad in range(min(tokens[FAILED_TOKENS], uncovered) + 1):
                chance = base * factor[uncovered - bad, bad]
                simple_after = min(tokens[SIMPLE_TOKENS] - simple, left[SIMPLE, place + 1])
                compound_after = min(tokens[COMPOUND_TOKENS] - compound, left[COMPOUND, place + 1])
                bad_after = min(tokens[FAILED_TOKENS] - bad, bad_after_most)
                won = bound[place + 1, here, 0, phase, simple_after, compound_after, bad_after, inner, failed_inner]
                if flaws > 0.0:
                    won = (1.0 - flaws) * won + flaws * bound[
                        place + 1, here, 0, flawed_phase, simple_after, compound_after, bad_after, inner, failed_inner
                    ]
                # Of the failures those that are not of dependencies can close the tool.
                shut = (1.0 - base) * closes
                value = chance * won + shut * closed + (1.0 - chance - shut) * failed
                if lost > 0.0:  # where no order is asked for, so nothing is charged
                    value += lost * (unheard - failed)
                best = max(best, passes * value + (1.0 - passes) * blocked)
    return best


@kernel
def _fill(
    needed: NDArray[np.int64],
    left: NDArray[np.int64],
    base: NDArray[np.float64],
    inside: NDArray[np.int64],
    most_inner: NDArray[np.int64],
    answers: NDArray[np.float64],
    lost_runs: NDArray[np.float64],
    most_by_place: NDArray[np.float64],
    factor: NDArray[np.float64],
    break_chance: NDArray[np.float64],
    history: float,
    rows_end: bool,
    all_spare: int,
    phases: Phases,
    bound: NDArray[np.float64],
) -> None:
    """Fill `bound`, zero on entry, as in `Relaxation`; the first arguments are fields of `_Charges`."""
    num_required, rows, num_phases = len(answers), bound.shape[2], bound.shape[3]
    passes, lost, blocked, won_phase, other = phases.passes, phases.lost, phases.blocked, phases.won, phases.other
    waited, looks, closes, closed, opened = phases.waited, phases.looks, phases.closes, phases.closed, phases.opened
    others_pass, flaws, flawed, repaired = phases.others_pass, phases.flaws, phases.flawed, phases.repaired
    contact, contact_share = phases.contact, phases.contact_share
    is_done, opens, repairs, flaws_again = phases.is_done, phases.opens, phases.repairs, phases.flaws_again
    tokens = np.zeros(NUM_TOKENS, dtype=np.int64)
    for phase in range(num_phases):
        if is_done[phase]:
            bound[num_required, :, :, phase] = 1.0
    for place in range(num_required, -1, -1):
        is_last = place == num_required
        most_simple = 0 if is_last else min(bound.shape[4] - 1, left[SIMPLE, place])
        most_compound = 0 if is_last else min(bound.shape[5] - 1, left[COMPOUND, place])
        most_bad = 0 if is_last else min(bound.shape[6] - 1, left[SIMPLE, place] + left[COMPOUND, place])
        most = 0 if is_last else most_inner[place]
        for spare in range(all_spare + 1):
            turn = min(all_spare - spare + place, len(break_chance) - 1)  # turns used, where there are enough
            drop = 1.0
            for failures in range(all_spare - spare + 1):
                # Each success of a helper and each failure has used up a turn to spare.
                budget = all_spare - spare - failures
                here = _pair(spare, failures, all_spare)
                after_won, after_lost = 0, 0
                if spare > 0:
                    after_won = _pair(spare - 1, failures, all_spare)
                    after_lost = after_won + 1
                for row in range(rows):
                    is_last_row = rows_end and row + 1 == rows
                    ends = spare == 0 or is_last_row
                    next_row = row + 1 if rows_end else 0
                    more_failures = min(failures + 1, all_spare - spare)  # no more are told apart there
                    after_unheard = _pair(spare, more_failures, all_spare)
                    for phase in range(num_phases):
                        if is_last and is_done[phase]:
                            continue
                        for simple in range(min(most_simple, budget) + 1):
                            for compound in range(min(most_compound, budget - simple) + 1):
                                for inner in range(min(most, budget - simple - compound) + 1):
                                    for bad in range(min(most_bad, failures) + 1):
                                        for bad_inner in range(min(most, failures - bad) + 1):
                                            tokens[SIMPLE_TOKENS], tokens[COMPOUND_TOKENS] = simple, compound
                                            tokens[FAILED_TOKENS], tokens[INNER_TOKENS] = bad, inner
                                            tokens[FAILED_INNER_TOKENS] = bad_inner
                                            best = 0.0
                                            if not is_last:
                                                own, shut, stopped, unheard = 0.0, 0.0, 0.0, 0.0
                                                lost_run = lost_runs[place, turn, failures]
                                                if lost_run > 0.0 and not is_last_row:
                                                    unheard = _entry(
                                                        bound, place + 1, after_unheard, next_row, phase, tokens
                                                    )
                                                if not ends:
                                                    own = _entry(
                                                        bound, place, after_lost, next_row, lost[place, phase], tokens
                                                    )
                                                    shut = _entry(
                                                        bound, place, after_lost, next_row, closed[phase], tokens
                                                    )
                                                    stopped = _entry(
                                                        bound,
                                                        place,
                                                        after_lost,
                                                        next_row,
                                                        blocked[place, phase],
                                                        tokens,
                                                    )
                                                best = _required_call(
                                                    place,
                                                    here,
                                                    won_phase[place, phase],
                                                    tokens,
                                                    needed,
                                                    left,
                                                    most_inner,
                                                    answers[place, turn, failures],
                                                    factor,
                                                    passes[place, phase],
                                                    closes[place],
                                                    flaws[place],
                                                    flawed[phase],
                                                    own,
                                                    shut,
                                                    stopped,
                                                    lost_run,
                                                    unheard,
                                                    bound,
                                                )
                                            if spare > 0:
                                                # A turn may pass: where time or a look is of use, it is.
                                                after = waited[place, phase]
                                                best = max(best, _entry(bound, place, after_won, row, after, tokens))
                                                if looks[place, phase, 0] >= 0:
                                                    up = _entry(
                                                        bound, place, after_won, row, looks[place, phase, 0], tokens
                                                    )
                                                    down = _entry(
                                                        bound, place, after_won, row, looks[place, phase, 1], tokens
                                                    )
                                                    seen = passes[place, phase]
                                                    best = max(best, seen * up + (1.0 - seen) * down)
                                                for use in range(2):
                                                    # To open what is closed, or to repair an output.
                                                    after = opened[phase] if use == 0 else repaired[phase]
                                                    if after >= 0:
                                                        chance = (opens if use == 0 else repairs) * drop
                                                        won = _entry(bound, place, after_won, 0, after, tokens)
                                                        if use == 1 and flaws_again > 0.0:
                                                            won *= 1.0 - flaws_again
                                                            won += flaws_again * _entry(
                                                                bound, place, after_won, 0, phase, tokens
                                                            )
                                                        same = 0.0
                                                        if not ends:
                                                            same = _entry(
                                                                bound, place, after_lost, next_row, phase, tokens
                                                            )
                                                        best = max(best, chance * won + (1.0 - chance) * same)
                                            for tells in range(2 if spare > 0 else 0):
                                                # A call of another tool, of which one may be refused on purpose.
                                                won_to, can = other[place, phase], drop
                                                if not others_pass[phase]:
                                                    won_to, can = blocked[place, phase], 0.0
                                                down_to, down = won_to, 0.0
                                                if tells == 1:
                                                    if contact[place, phase] < 0.0:
                                                        continue
                                                    won_to, down_to = looks[place, phase, 0], looks[place, phase, 1]
                                                    down = 1.0 - contact[place, phase]
                                                    can = drop * contact_share[place, phase]
                                                failed = 0.0
                                                if not ends:
                                                    up = _entry(bound, place, after_lost, next_row, won_to, tokens)
                                                    failed = up
                                                    if down > 0.0:
                                                        failed = down * _entry(
                                                            bound, place, after_lost, next_row, down_to, tokens
                                                        )
                                                        failed += (1.0 - down) * up
                                                if not is_last:
                                                    best = max(
                                                        best,
                                                        _helper_call(
                                                            place,
                                                            after_won,
                                                            after_lost,
                                                            next_row,
                                                            won_to,
                                                            down_to,
                                                            down,
                                                            ends,
                                                            tokens,
                                                            base[:, place, turn],
                                                            can,
                                                            inside[place],
                                                            factor,
                                                            most_simple,
                                                            most_compound,
                                                            most_bad,
                                                            most,
                                                            failed,
                                                            bound,
                                                        ),
                                                    )
                                                if row > 0:
                                                    chance = break_chance[turn] * can
                                                    won = _entry(bound, place, after_won, 0, won_to, tokens)
                                                    best = max(best, chance * won + (1.0 - chance) * failed)
                                            bound[place, here, row, phase, simple, compound, bad, inner, bad_inner] = (
                                                min(best, most_by_place[place, here])
                                            )
                drop *= history


@scalar
def _entry(bound: NDArray[np.float64], place: int, pair: int, row: int, phase: int, tokens: IntVector) -> float:
    return float(
        bound[
            place,
            pair,
            row,
            phase,
            tokens[SIMPLE_TOKENS],
            tokens[COMPOUND_TOKENS],
            tokens[FAILED_TOKENS],
            tokens[INNER_TOKENS],
            tokens[FAILED_INNER_TOKENS],
        ]
    )


@scalar
def _helper_call(
    place: int,
    after_won: int,
    after_lost: int,
    next_row: int,
    phase: int,
    down_phase: int,
    down: float,
    ends: bool,
    tokens: IntVector,
    base: NDArray[np.float64],
    drop: float,
    inside: int,
    factor: NDArray[np.float64],
    most_simple: int,
    most_compound: int,
    most_bad: int,
    most_inner: int,
    failed: float,
    bound: NDArray[np.float64],
) -> float:
    """Return the best bound of calling a helper, with a turn to spare; a failure may show that its group is down."""
    simple, compound, bad = tokens[SIMPLE_TOKENS], tokens[COMPOUND_TOKENS], tokens[FAILED_TOKENS]
    inner, bad_inner = tokens[INNER_TOKENS], tokens[FAILED_INNER_TOKENS]
    best = 0.0
    # Executed for the first time (again == 0), or after a failure (again == 1).
    for again in range(min(bad, 1) + 1):
        after_bad = failed
        if again == 0 and not ends:
            more = min(bad + 1, most_bad)
            after_bad = bound[place, after_lost, next_row, phase, simple, compound, more, inner, bad_inner]
            if down > 0.0:
                after_bad *= 1.0 - down
                after_bad += (
                    down * bound[place, after_lost, next_row, down_phase, simple, compound, more, inner, bad_inner]
                )
        if simple < most_simple:
            chance = base[SIMPLE] * drop
            won = bound[place, after_won, 0, phase, simple + 1, compound, bad - again, inner, bad_inner]
            best = max(best, chance * won + (1.0 - chance) * after_bad)
        if compound < most_compound:
            for one in range(min(inner, inside) + 1):
                for two in range(min(bad_inner, inside - one) + 1):
                    chance = base[COMPOUND] * drop * factor[inside - one - two, two]
                    won = bound[
                        place, after_won, 0, phase, simple, compound + 1, bad - again, inner - one, bad_inner - two
                    ]
                    best = max(best, chance * won + (1.0 - chance) * after_bad)
    if inner < most_inner:
        for again in range(min(bad_inner, 1) + 1):
            after_bad = failed
            if again == 0 and not ends:
                more = min(bad_inner + 1, most_inner)
                after_bad = bound[place, after_lost, next_row, phase, simple, compound, bad, inner, more]
                if down > 0.0:
                    after_bad *= 1.0 - down
                    after_bad += (
                        down * bound[place, after_lost, next_row, down_phase, simple, compound, bad, inner, more]
                    )
            chance = base[INNER] * drop
            won = bound[place, after_won, 0, phase, simple, compound, bad, inner + 1, bad_inner - again]
            best = max(best, chance * won + (1.0 - chance) * after_bad)
    return best


@scalar
def count_tokens(
    status: IntVector, done: int, kind: IntVector, charge: IntVector, through: IntVector, tokens: IntVector
) -> None:
    """Write the five numbers of tokens that a state of the real problem holds; `status` (num_members,)."""
    for column in range(NUM_TOKENS):
        tokens[column] = 0
    for tool in range(len(status)):
        if charge[tool] < done or status[tool] == NOT_EXECUTED:
            continue
        if kind[tool] == INNER:
            if status[through[tool]] != SUCCEEDED:
                tokens[FAILED_INNER_TOKENS if status[tool] == FAILED else INNER_TOKENS] += 1
        elif status[tool] == FAILED:
            tokens[FAILED_TOKENS] += 1
        else:
            tokens[SIMPLE_TOKENS if kind[tool] == SIMPLE else COMPOUND_TOKENS] += 1


@scalar
def bound_of(
    done: int,
    failures: int,
    spare: int,
    row: int,
    phase: int,
    tokens: IntVector,
    most_inner: IntVector,
    all_spare: int,
    bound: NDArray[np.float64],
) -> float:
    """Return the upper bound on V* of a state; `spare` turns more are left than required tools are missing."""
    if spare < 0:
        return 0.0
    return float(
        bound[
            done,
            _pair(spare, failures, all_spare),
            min(row, bound.shape[2] - 1),
            phase,
            tokens[SIMPLE_TOKENS],
            tokens[COMPOUND_TOKENS],
            tokens[FAILED_TOKENS],
            min(tokens[INNER_TOKENS], most_inner[done]),
            min(tokens[FAILED_INNER_TOKENS], most_inner[done]),
        ]
    )
