"""The search for V* under laws with parts: depth first, each state once, guided and cut by an upper bound.

Every state that is kept has two values: what the best policy that was found surely reaches, and what none can exceed.
Calls are tried in the order of an upper bound on their worth (`exact.relaxation`), and only while that is above the
best value found, so without a tolerance both values are the same: nothing is left out that could change them. With a
*tolerance* calls are left out, too, that can gain no more than that share of the best value; with an infinite one only
the call with the highest bound is tried, which is a policy. What was left out enters the upper value by its bound, so
the two enclose V* in any case. Neutral calls that are only taken to be there enter the upper value alone.

The transition is that of `parts.rules`; what states have in common is found by `simplification`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from resilisim.simulator.compiled import kernel, scalar
from resilisim.simulator.exact.phases import FLAWED_OUTPUTS, count_flawed, phase_of
from resilisim.simulator.exact.relaxation import Relaxation, bound_of, count_tokens
from resilisim.simulator.exact.search_kernels import FINISHED, MEMORY_FULL, mix_bits
from resilisim.simulator.exact.simplification import (
    NEW_INPUT,
    NOT_KNOWN,
    REFUSED_INPUT,
    is_choice,
    mark_tools,
    settle,
    tool_of,
    value_at_once,
)
from resilisim.simulator.rulebook.entering import enter_execution, finish_value
from resilisim.simulator.rulebook.lost_answers import chance_not_run, chance_run_well, is_missing
from resilisim.simulator.rulebook.possible_results import (
    CHANCE,
    FINDINGS,
    NUM_OF_RESULT,
    RESULT,
    STEP,
    TICKS,
    TOLD,
    list_results,
)
from resilisim.simulator.rulebook.rules import (
    NONE,
    OF_THE_TOOL,
    UNCHECKED,
    UNSOUND,
    Tables,
    pass_message,
)
from resilisim.simulator.state import (
    CONSECUTIVE_FAILURES,
    ENDED,
    LOOP_COUNT,
    LOOP_SIGNATURE,
    NEXT_PLACE,
    NO_LOOP,
    NUM_FAILURES,
    RUNNING,
    TURNS_USED,
)
from resilisim.simulator.tool_status import SUCCEEDED, IntVector

# How a search ends, beside what `search_kernels` has: with more states than it may keep.
TOO_MANY = 2

# What becomes of a state for which there is no room: nothing is known of it but its bound, or the search stops.
STOPS, CUTS = range(2)

# Columns of `Frames.outcomes`, behind those of what is listed.
UPPER = NUM_OF_RESULT
NUM_OF_OUTCOME = NUM_OF_RESULT + 1
ROUNDING = 1e-12  # values that are apart by less are the same


class Memo(NamedTuple):
    """Values of states: a hash table with open addressing."""

    rows: NDArray[np.int64]  # (capacity, width) packed states
    low: NDArray[np.float64]  # (capacity,) -1 where the place is free
    high: NDArray[np.float64]  # (capacity,)
    used: NDArray[np.int64]  # (1,)


class Frames(NamedTuple):
    """Where a search stands: a row for each state on the way from the one that was asked for."""

    status: NDArray[np.int64]  # (max_turns + 2, num_tools)
    counters: NDArray[np.int64]  # (max_turns + 2, NUM_COUNTERS)
    parts: NDArray[np.int64]  # (max_turns + 2, num_parts)
    hidden: NDArray[np.int64]  # (max_turns + 2, num_hidden)
    rows: NDArray[np.int64]  # (max_turns + 2, width)
    marks: NDArray[np.int64]  # (3, 2 * num_tools) marks of tools, and for scratch
    actions: NDArray[np.int64]  # (max_turns + 2, 2 * num_tools + 1) what is worth a thought, the highest bound first
    bounds: NDArray[np.float64]  # the same shape
    outcomes: NDArray[np.float64]  # (max_turns + 2, most outcomes of a call, NUM_OF_OUTCOME)
    tree: NDArray[np.int64]  # (max_turns + 2, NUM_OF_TREE)
    best: NDArray[np.float64]  # (max_turns + 2, NUM_OF_BEST)
    choices: NDArray[np.float64]  # (num_tools + 2,) Q* of calling each tool, of waiting, of finishing, where asked for
    chances: NDArray[np.float64]  # (NUM_RESULTS,)
    tokens: NDArray[np.int64]  # (NUM_TOKENS,)
    seen: tuple[NDArray[np.int64], ...]  # status, counters, parts, hidden and row of one state, as the guide sees it
    result: NDArray[np.float64]  # (3,) the two values of the state that was asked for, and how far any two were apart


class Guide(NamedTuple):
    """Bounds of states from a search for values that are not below V*, by a law for the same tools and sections."""

    rules: Any
    memo: Memo


# Columns of `Frames.tree`: choices that are listed, the current one, its outcomes, the current one, choices tried.
NUM_CHOICES, CHOICE, NUM_OUTCOMES, OUTCOME, NUM_TRIED, NUM_OF_TREE = range(6)
# Columns of `Frames.best`: values so far, that of the current choice, and what it is surely not above.
LOW, HIGH, VALUE, REST, NUM_OF_BEST = range(5)


@scalar
def _find(rows: NDArray[np.int64], low: NDArray[np.float64], row: IntVector) -> int:
    """Return the place of a packed state, or -1 - the free place where it belongs."""
    mask = np.uint64(len(low) - 1)
    code = np.uint64(0x9E3779B97F4A7C15)
    for column in range(len(row)):
        code = mix_bits(code + np.uint64(row[column]))
    place = np.int64(code & mask)
    while low[place] >= 0.0:
        same = True
        for column in range(len(row)):
            if rows[place, column] != row[column]:
                same = False
                break
        if same:
            return int(place)
        place = (place + 1) & np.int64(mask)
    return int(-1 - place)


@kernel
def move_memo(old: Memo, new: Memo) -> None:
    """Enter everything of one memo into another, larger one."""
    for place in range(len(old.low)):
        if old.low[place] >= 0.0:
            free = -1 - _find(new.rows, new.low, old.rows[place])
            new.rows[free] = old.rows[place]
            new.low[free], new.high[free] = old.low[place], old.high[place]
            new.used[0] += 1


@scalar
def guided(
    guide: Guide,
    seen: tuple[IntVector, ...],
    status: IntVector,
    counters: IntVector,
    parts: IntVector,
    hidden: IntVector,
    informed: bool,
    scratch: IntVector,
    upper: float,
) -> float:
    """Return what V* of a running state is not above by what the guide knows of it, at most `upper`."""
    seen_status, seen_counters, seen_parts, seen_hidden, row = seen
    seen_status[:], seen_counters[:], seen_parts[:], seen_hidden[:] = status, counters, parts, hidden
    known = settle(guide.rules, seen_status, seen_counters, seen_parts, seen_hidden, informed, True, scratch, row)
    if known != NOT_KNOWN:
        return min(upper, known)
    place = _find(guide.memo.rows, guide.memo.low, row)
    return min(upper, guide.memo.high[place]) if place >= 0 else upper


@scalar
def upper_value(
    rules: Any,
    kind: NDArray[np.int64],
    charge: NDArray[np.int64],
    through: NDArray[np.int64],
    most_inner: NDArray[np.int64],
    all_spare: int,
    bound: NDArray[np.float64],
    status: IntVector,
    counters: IntVector,
    parts: IntVector,
    hidden: IntVector,
    informed: bool,
    tokens: IntVector,
) -> float:
    """Return what V* of a running state with an intact order is not above: what it is in the relaxed problem.

    Where only validators tell of corrupt outputs, these cost turns beside: those that are known to be corrupt have to
    be made again, and how many more will be, of those that are still to come or not checked yet, does not hang on what
    is done. (Such calls can also break a row of failures, so the relaxed problem knows no rows then.)
    """
    done, failures = counters[NEXT_PLACE], counters[NUM_FAILURES]
    row = counters[CONSECUTIVE_FAILURES] if rules.max_consecutive_failures > 0 else 0
    spare = rules.max_turns - counters[TURNS_USED] - (rules.num_required - done)
    if rules.least_ticks > 0:  # no more calls are in time
        calls = (rules.budget - parts[rules.at_time]) // rules.least_ticks
        spare = min(spare, calls - (rules.num_required - done))
    count_tokens(status, done, kind, charge, through, tokens)
    phase = phase_of(rules, status, counters, parts)
    if rules.is_effects and rules.at_ran >= 0:
        return _bound_of_effects(
            rules,
            done,
            failures,
            spare,
            row,
            phase,
            most_inner,
            all_spare,
            bound,
            status,
            counters,
            parts,
            hidden,
            informed,
            tokens,
        )
    well = 1.0  # the chance that nothing has run too often
    for tool in range(rules.num_tools if rules.at_ran >= 0 else 0):
        well *= chance_run_well(rules, parts, hidden, informed, tool)
    if not rules.counts_sound or rules.phase_kind == FLAWED_OUTPUTS:
        return well * bound_of(done, failures, spare, row, phase, tokens, most_inner, all_spare, bound)
    # Places that are still to come or not checked yet, and the least chance that one of them turns out corrupt: of one
    # that was taken that all that took it are.
    num_open, share = 0, 1.0
    spare -= count_flawed(rules, status, counters, parts)
    for place in range(rules.num_required):
        missing = is_missing(rules, rules, status, counters, parts, place)
        is_sound, num_unchecked, first, taken = False, 0, 1.0, 1.0
        for tool in range(rules.num_tools):
            if rules.place[tool] == place:
                first = min(first, rules.corrupt_chance[tool])
                if status[tool] == SUCCEEDED and parts[rules.at_sound + tool] == UNCHECKED and not informed:
                    num_unchecked += 1
                    taken *= rules.corrupt_chance[tool]
                elif status[tool] == SUCCEEDED and parts[rules.at_sound + tool] != UNSOUND:
                    is_sound = True
        least = taken if num_unchecked > 0 else first
        if not is_sound and (missing or num_unchecked > 0) and least > 0.0:
            num_open += 1
            share = min(share, least)
    if spare < 0:
        return 0.0
    # Binomial: so many of the open places turn out corrupt at first, at least. To be told so may cost one call more.
    asks = rules.asks_more
    value, chance = 0.0, (1.0 - share) ** num_open if num_open > 0 else 1.0
    for number in range(num_open + 1):
        left = spare - number - (asks if number > 0 else 0)
        if left < 0:
            break
        value += chance * bound_of(done, failures, left, row, phase, tokens, most_inner, all_spare, bound)
        chance *= (num_open - number) / (number + 1) * share / (1.0 - share) if share < 1.0 else 0.0
    return well * min(value, 1.0)


@scalar
def _bound_of_effects(
    rules: Any,
    done: int,
    failures: int,
    spare: int,
    row: int,
    phase: int,
    most_inner: NDArray[np.int64],
    all_spare: int,
    bound: NDArray[np.float64],
    status: IntVector,
    counters: IntVector,
    parts: IntVector,
    hidden: IntVector,
    informed: bool,
    tokens: IntVector,
) -> float:
    """Return what V* is not above where effects count: as if it were known which of the doubts were runs.

    That a doubtful place is done is no likelier than for the likeliest of them, so the number of those that are has a
    binomial distribution at most. Failures count whether or not they were runs, as many of them as the relaxed problem
    tells apart (`Relaxation.all_spare`).
    """
    well, num_open, share = 1.0, 0, 0.0
    for tool in range(rules.num_tools):
        if rules.is_once[tool] and rules.place[tool] < 0:
            well *= chance_run_well(rules, parts, hidden, informed, tool)
    for place in range(rules.num_required):
        all_well, none = 1.0, 1.0
        for tool in range(rules.num_tools):
            if rules.place[tool] == place:
                all_well *= chance_run_well(rules, parts, hidden, informed, tool)
                none *= chance_not_run(rules, parts, hidden, informed, tool)
        well *= all_well
        if none < 1.0 and all_well > 0.0 and is_missing(rules, rules, status, counters, parts, place):
            num_open += 1
            share = max(share, 1.0 - none / all_well)
    value, chance = 0.0, 1.0
    for _ in range(num_open):
        chance *= share
    for number in range(num_open, -1, -1):  # so many of them are done
        if chance > 0.0:
            told = min(failures, all_spare - spare - number)
            value += chance * bound_of(
                done + number, told, spare + number, row, phase, tokens, most_inner, all_spare, bound
            )
        chance *= number / (num_open - number + 1) * (1.0 - share) / share if share > 0.0 else 0.0
    return well * value


@scalar
def _enter_outcome(
    rules: Any,
    tables: Tables,
    informed: bool,
    action: int,
    outcome: NDArray[np.float64],
    status: IntVector,
    counters: IntVector,
    parts: IntVector,
    hidden: IntVector,
) -> None:
    """Write what a choice leads to over the state in which it was made."""
    tool = tool_of(rules, action)
    if tool < 0:
        pass_message(rules, parts, NONE)
        counters[TURNS_USED] += 1
        counters[LOOP_SIGNATURE], counters[LOOP_COUNT] = NO_LOOP, 0
    else:
        enter_execution(
            rules,
            tables,
            status,
            counters,
            parts,
            hidden,
            informed,
            tool,
            int(outcome[RESULT]),
            int(outcome[TICKS]),
            REFUSED_INPUT,
            int(outcome[FINDINGS]),
            int(outcome[TOLD]),
            OF_THE_TOOL,
        )
    if informed and rules.at_down >= 0:
        for group in range(rules.num_groups):
            hidden[rules.at_down + group] = (int(outcome[STEP]) >> group) & 1


@scalar
def _bound_choice(
    rules: Any,
    tables: Tables,
    informed: bool,
    guide: Guide,
    seen: tuple[IntVector, ...],
    scratch: IntVector,
    kind: NDArray[np.int64],
    charge: NDArray[np.int64],
    through: NDArray[np.int64],
    most_inner: NDArray[np.int64],
    all_spare: int,
    bound_table: NDArray[np.float64],
    depth: int,
    status: NDArray[np.int64],
    counters: NDArray[np.int64],
    parts: NDArray[np.int64],
    hidden: NDArray[np.int64],
    action: int,
    chances: NDArray[np.float64],
    unchecked: IntVector,
    tokens: IntVector,
    outcomes: NDArray[np.float64],
    tree: NDArray[np.int64],
) -> float:
    """List the outcomes of a choice in the state of a row, each with its bound, and return the bound of the choice."""
    tool = tool_of(rules, action)
    count = list_results(
        rules,
        rules.place,
        rules.is_timeless,
        rules.is_enumerated == 1,
        tables,
        informed,
        status[depth],
        counters[depth],
        parts[depth],
        hidden[depth],
        tool,
        NEW_INPUT if action == tool else REFUSED_INPUT,
        chances,
        unchecked,
        outcomes,
    )
    tree[depth, NUM_OUTCOMES] = count
    bound, after = 0.0, depth + 1
    for number in range(count):
        status[after], counters[after] = status[depth], counters[depth]
        parts[after], hidden[after] = parts[depth], hidden[depth]
        _enter_outcome(
            rules,
            tables,
            informed,
            action,
            outcomes[number],
            status[after],
            counters[after],
            parts[after],
            hidden[after],
        )
        upper = 0.0
        if counters[after, ENDED] == RUNNING:
            upper = value_at_once(rules, status[after], counters[after], parts[after], hidden[after], informed)
            if upper == NOT_KNOWN:
                upper = upper_value(
                    rules,
                    kind,
                    charge,
                    through,
                    most_inner,
                    all_spare,
                    bound_table,
                    status[after],
                    counters[after],
                    parts[after],
                    hidden[after],
                    informed,
                    tokens,
                )
                if guide.memo.used[0] > 0 and upper > 0.0:
                    upper = guided(
                        guide,
                        seen,
                        status[after],
                        counters[after],
                        parts[after],
                        hidden[after],
                        informed,
                        scratch,
                        upper,
                    )
        outcomes[number, UPPER] = upper
        bound += outcomes[number, CHANCE] * upper
    return bound


@kernel
def look_ahead(
    rules: Any,
    tables: Tables,
    informed: bool,
    relaxation: Relaxation,
    guide: Guide,
    memo: Memo,
    frames: Frames,
    tolerance: float,
    max_states: int,
    when_full: int,
    tells_choices: bool,
) -> int:
    """Write the two values of the state in the first row of `frames` into `frames.result`; return how it ended.

    Args:
        rules: The stage's law.
        tables: Its tables.
        informed: Whether what is hidden is known.
        relaxation: What bounds values.
        guide: What else does, where its memo holds anything.
        memo: The states that are known; those that are found join them.
        frames: Where the search stands.
        tolerance: Share of the best value that a call has to gain, to be tried.
        max_states: States that may be kept.
        when_full: STOPS or CUTS.
        tells_choices: Whether every choice in that state is tried, and its worth told in `frames.choices`.
    """
    status, counters, parts, hidden = frames.status, frames.counters, frames.parts, frames.hidden
    rows, actions, bounds, outcomes = frames.rows, frames.actions, frames.bounds, frames.outcomes
    tree, best, choices, chances, result = frames.tree, frames.best, frames.choices, frames.chances, frames.result
    marks, scratch, unchecked, tokens = frames.marks[0], frames.marks[1], frames.marks[2], frames.tokens
    memo_rows, memo_low, memo_high, used = memo.rows, memo.low, memo.high, memo.used
    kind, charge, through = relaxation.kind, relaxation.charge, relaxation.through
    most_inner, all_spare, bound_table = relaxation.most_inner, relaxation.all_spare, relaxation.bound
    num_tools = rules.num_tools
    depth, entering = 0, True
    while True:
        if entering:
            # A state that is met: it is known, or its choices are listed.
            entering, is_told = False, tells_choices and depth == 0
            low = settle(
                rules,
                status[depth],
                counters[depth],
                parts[depth],
                hidden[depth],
                informed,
                not is_told,
                scratch,
                rows[depth],
            )
            high, is_new = low, low == NOT_KNOWN
            if is_new:
                place = _find(memo_rows, memo_low, rows[depth])
                if place >= 0 and not is_told:
                    low, high, is_new = memo_low[place], memo_high[place], False
            if is_new:
                low = finish_value(rules, rules, counters[depth], parts[depth], hidden[depth], informed)
                if used[0] >= max_states:
                    if when_full == STOPS:
                        return TOO_MANY
                    is_new = False
                    result[2] = 1.0
                    high = upper_value(
                        rules,
                        kind,
                        charge,
                        through,
                        most_inner,
                        all_spare,
                        bound_table,
                        status[depth],
                        counters[depth],
                        parts[depth],
                        hidden[depth],
                        informed,
                        tokens,
                    )
            best[depth, LOW], best[depth, HIGH] = low, high
            tree[depth, NUM_CHOICES], tree[depth, CHOICE], tree[depth, NUM_TRIED] = 0, -1, 0
            if is_new:
                best[depth, HIGH] = low
                mark_tools(rules, status[depth], counters[depth], parts[depth], informed, marks)
                tree[depth, CHOICE] = 0
            if is_told:
                choices[:] = -1.0
                choices[num_tools + 1] = low
            listing = 0 if is_new else 2 * num_tools + 1
            while listing <= 2 * num_tools:
                action = listing
                listing += 1
                if not is_choice(
                    rules, tables, status[depth], counters[depth], parts[depth], hidden[depth], informed, marks, action
                ):
                    continue
                bound = _bound_choice(
                    rules,
                    tables,
                    informed,
                    guide,
                    frames.seen,
                    scratch,
                    kind,
                    charge,
                    through,
                    most_inner,
                    all_spare,
                    bound_table,
                    depth,
                    status,
                    counters,
                    parts,
                    hidden,
                    action,
                    chances,
                    unchecked,
                    tokens,
                    outcomes[depth],
                    tree,
                )
                place = tree[depth, NUM_CHOICES]
                while place > 0 and bounds[depth, place - 1] < bound:
                    bounds[depth, place], actions[depth, place] = bounds[depth, place - 1], actions[depth, place - 1]
                    place -= 1
                bounds[depth, place], actions[depth, place] = bound, action
                tree[depth, NUM_CHOICES] += 1
            tree[depth, NUM_OUTCOMES] = -1
        is_told = tells_choices and depth == 0
        number, is_over = tree[depth, CHOICE], tree[depth, CHOICE] < 0
        enough = best[depth, LOW]
        if tree[depth, NUM_TRIED] > 0 and enough > 0.0:
            enough *= 1.0 + tolerance
        if not is_over and tree[depth, NUM_OUTCOMES] < 0:
            # The next choice, if there is one that can be better.
            stops = number >= tree[depth, NUM_CHOICES]
            if not stops and bounds[depth, number] <= enough and not is_told:
                best[depth, HIGH] = max(best[depth, HIGH], bounds[depth, number])
                stops = True
            if stops:
                if best[depth, HIGH] <= best[depth, LOW] + ROUNDING:
                    best[depth, HIGH] = best[depth, LOW]
                if not is_told:
                    if 4 * used[0] >= 3 * len(memo_low):
                        return MEMORY_FULL
                    place = -1 - _find(memo_rows, memo_low, rows[depth])
                    memo_rows[place] = rows[depth]
                    memo_low[place], memo_high[place] = best[depth, LOW], best[depth, HIGH]
                    used[0] += 1
                result[2] = max(result[2], best[depth, HIGH] - best[depth, LOW])
                is_over = True
            else:
                best[depth, VALUE] = 0.0
                best[depth, REST] = _bound_choice(
                    rules,
                    tables,
                    informed,
                    guide,
                    frames.seen,
                    scratch,
                    kind,
                    charge,
                    through,
                    most_inner,
                    all_spare,
                    bound_table,
                    depth,
                    status,
                    counters,
                    parts,
                    hidden,
                    actions[depth, number],
                    chances,
                    unchecked,
                    tokens,
                    outcomes[depth],
                    tree,
                )
                tree[depth, OUTCOME] = 0
        if is_over:
            if depth == 0:
                result[0], result[1] = best[0, LOW], best[0, HIGH]
                return FINISHED
            depth -= 1
            outcome = tree[depth, OUTCOME]
            chance, upper = outcomes[depth, outcome, CHANCE], outcomes[depth, outcome, UPPER]
            best[depth, VALUE] += chance * best[depth + 1, LOW]
            best[depth, REST] += chance * (min(best[depth + 1, HIGH], upper) - upper)
            tree[depth, OUTCOME] += 1
            continue
        # The next outcome of the current choice, as long as it can be better.
        outcome, action = tree[depth, OUTCOME], actions[depth, number]
        while outcome < tree[depth, NUM_OUTCOMES] and outcomes[depth, outcome, UPPER] <= 0.0:
            outcome += 1
        tree[depth, OUTCOME] = outcome
        if outcome < tree[depth, NUM_OUTCOMES] and (best[depth, REST] > enough or is_told):
            status[depth + 1], counters[depth + 1] = status[depth], counters[depth]
            parts[depth + 1], hidden[depth + 1] = parts[depth], hidden[depth]
            _enter_outcome(
                rules,
                tables,
                informed,
                action,
                outcomes[depth, outcome],
                status[depth + 1],
                counters[depth + 1],
                parts[depth + 1],
                hidden[depth + 1],
            )
            depth += 1
            entering = True
            continue
        best[depth, HIGH] = max(best[depth, HIGH], best[depth, REST])
        if action >= num_tools or rules.is_offered[action] == 1:
            best[depth, LOW] = max(best[depth, LOW], best[depth, VALUE])
            tree[depth, NUM_TRIED] += 1
            if is_told:
                called = tool_of(rules, action)
                choice = called if called >= 0 else num_tools
                choices[choice] = max(choices[choice], best[depth, VALUE])
        tree[depth, NUM_OUTCOMES] = -1
        tree[depth, CHOICE] += 1
