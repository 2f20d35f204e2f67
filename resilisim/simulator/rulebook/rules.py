"""What a law says, and how likely it makes what calls bring: scalar functions, which Python calls and kernels compile.

Beside `status` and `counters` (`simulator.state`) two more vectors stand for the parts. `parts` is what an agent can
know, a function of what it saw; `hidden` is what it cannot see. Their sections are numbered in a `Rulebook`; a section
whose place is NO_SECTION is not there.

A call meets the parts in one order: the rate limit, the outage, what refuses it surely (a closed tool, the same refused
input), the time it takes, and at last the draw of success, which a broken tool always loses.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from resilisim.simulator.compiled import scalar, unlikely
from resilisim.simulator.state import NUM_FAILURES, TURNS_USED
from resilisim.simulator.tool_status import SUCCEEDED, IntVector, count_unmet

# What an execution brought. The first two are the benchmark law's.
FAILURE = 0  # calling again draws again
SUCCESS = 1
CORRUPT = 2  # success is reported, and the output is wrong
INPUT_FAILURE = 3  # the same call fails surely until a parameter is changed
ACCESS_FAILURE = 4  # the tool stays closed until a tool that opens has succeeded
LIMITED = 5  # refused by the rate limit
DOWN = 6  # the tool's group is down
REFUSED = 7  # surely failed: a closed tool, or an input that was refused before
SLOW = 8  # took longer than it may
UNANSWERED = 9  # a failure that came after the tool has run: its answer alone is lost
UNANSWERED_LATE = 10  # too slow, likewise
NUM_RESULTS = 11
OWN_FAILURE = 11  # of the tool itself, though the law let the call through; never drawn
RESULTS = (
    "failure",
    "success",
    "corrupt",
    "input_failure",
    "access_failure",
    "rate_limited",
    "outage",
    "refused",
    "too_slow",
    "lost_answer",
    "too_slow_lost_answer",
)

NO_SECTION = -1
NONE = -1  # no rate key, no group, no limit of time

# Entries of the section `at_block`; any other number is the digest of refused parameters.
OPEN = 0
CLOSED = 1

# Entries of the section `at_sound`.
NO_OUTPUT = 0
SOUND = 1
UNSOUND = 2
UNCHECKED = 3  # only a validator can tell

OF_THE_TOOL = -2  # the loop rule knows a call by its tool; NO_LOOP is -1

AS_HIDDEN = -1  # what a validator finds, or what a call tells of runs, where `hidden` knows it

# Entries of the section `at_outage`: what was last seen of a group, and how many messages ago.
NEVER_SEEN = 0
SEEN_UP = 1
SEEN_DOWN = 2

NUM_MEMORIES = 32

# Evidence is counted in whole units, so that the same failures add up to the same number in any order.
EVIDENCE_UNITS = 2.0**46  # a nat
WORKS = -(1 << 52)  # units that no failures of an episode outweigh: the tool was seen to work
MOST_EVIDENCE = 64.0  # nats of one failure, where success was certain but for the tool being broken


class Tables(NamedTuple):
    """The success law, tabulated (`build.tabulate_law`), and what a failure says.

    Attributes:
        probability: float64 (num_rows, max_dependencies + 1, max_dependencies + 1, max_failures + 1).
        threshold: int64, same shape: an execution succeeds iff its luck bits are below the entry.
        evidence: int64, same shape: units that a failure of a tool says for its being broken.
    """

    probability: NDArray[np.float64]
    threshold: NDArray[np.int64]
    evidence: NDArray[np.int64]


class Rulebook(NamedTuple):
    """A law with parts for some tools of a library, in numbers; `as_record` makes the same for compiled code.

    Attributes:
        num_tools: Number of tools; what follows has an entry for each, if nothing else is said.
        place: Place in the required list, or -1; equivalents share one.
        is_more_than_order: 0 if the goal is a list in order and nothing else: then what follows has nothing to say.
        is_ordered: 1 if first successes have to come in that order.
        is_once: 1 if the tool may run only once.
        is_effects: 1 if tools have to have run, whether or not their answers came through.
        is_tracked: 1 if it makes a difference whether the tool has run.
        lost_share: Share of failures that are no refusals which come after the tool has run.
        unseen_run: Units of evidence that it is broken, for each such failure after which it turns out not to have run.
        checker: The tool whose success tells how often it has run, where that can be in doubt, or NONE.
        is_checker: 1 if it is that of a tool.
        is_program: 1 if a program is to be completed instead: then `num_required` is the number of its calls.
        program: (num_required,) the tools that they call.
        dependencies: Tools that each depends on, (num_tools, most of them), padded with -1.
        first_row: First row of the tool in `Tables`.
        rows_by_turn: 1 if the base of the law drifts: then a row follows for every turn used.
        num_required: Length of the required list.
        rate_key: What is counted together, or NONE.
        group: Group of outages, or NONE.
        memory: (NUM_MEMORIES,) what is left after so many messages of having seen whether a group is down.
        broken_prior: Chance that the tool is broken.
        corrupt_chance: Chance that a successful output is corrupt.
        is_validator: 1 if its success tells of outputs.
        is_opener: 1 if its success opens what is closed.
        openers: The tools of which that holds.
        input_share: Share of failures of the input among those that are not of dependencies.
        access_share: Likewise of access, before a tool that opens has succeeded.
        opened_input_share: `input_share` after that.
        counts_sound: 1 if outputs of required tools have to be sound: not where effects count.
        num_durations: Number of durations that a call can have.
        duration_ticks: (num_durations,) the durations, ascending.
        duration_chance: (num_durations,) how likely they are.
        timeout: Ticks that a call may take, or NONE.
        budget: Ticks that an episode has, or NONE.
        at_rate: Place of a section in `parts`; likewise the others: rate keys, groups twice, tools, tools, tools, one,
            tools.
        at_down: Place of a section in `hidden`; likewise the others: groups, tools, tools, tools.
        num_sections: How many of these there are, and one for durations; 0 where calls meet nothing but the draw.
    """

    num_tools: int
    place: Any
    is_more_than_order: int
    is_ordered: int
    is_once: Any
    is_effects: int
    is_tracked: Any
    lost_share: Any
    unseen_run: Any
    checker: Any
    is_checker: Any
    is_program: int
    program: Any
    dependencies: Any
    first_row: Any
    rows_by_turn: int
    num_required: int
    max_turns: int
    max_consecutive_failures: int
    loop_length: int
    rate_key: Any
    num_rate_keys: int
    rate_calls: int
    rate_window: int
    group: Any
    num_groups: int
    begins: float
    ends: float
    share_down: float
    memory: Any
    broken_prior: Any
    corrupt_chance: Any
    is_validator: Any
    is_opener: Any
    openers: Any
    shows_payload: int
    counts_sound: int
    input_share: Any
    access_share: Any
    opened_input_share: Any
    num_durations: int
    duration_ticks: Any
    duration_chance: Any
    timeout: int
    budget: int
    waiting_is_productive: int
    at_rate: int
    at_outage: int
    at_evidence: int
    at_block: int
    at_sound: int
    at_time: int
    at_ran: int
    num_parts: int
    at_down: int
    at_broken: int
    at_unsound: int
    at_lost: int
    num_hidden: int
    num_sections: int


@scalar
def count_bits(mask: int) -> int:
    """Return how many bits are set."""
    count = 0
    while mask > 0:
        mask &= mask - 1
        count += 1
    return count


@scalar
def messages_until_free(rules: Rulebook, parts: IntVector, tool: int) -> int:
    """Return in how many messages from now a call goes through the rate limit: 0 if it does so now."""
    key = rules.rate_key[tool]
    if key < 0:
        return 0
    mask = parts[rules.at_rate + key]  # bit j: a call went through j + 1 messages ago
    if count_bits(mask) < rules.rate_calls:
        return 0
    oldest = 0
    while mask > 1:
        mask >>= 1
        oldest += 1
    return int(rules.rate_window - 1 - oldest)


@scalar
def chance_down(rules: Rulebook, parts: IntVector, group: int) -> float:
    """Return the chance that a group is down at this message, by what was last seen of it and when."""
    seen = parts[rules.at_outage + 2 * group]
    if seen == NEVER_SEEN:
        return rules.share_down
    was_down = 1.0 if seen == SEEN_DOWN else 0.0
    ago = parts[rules.at_outage + 2 * group + 1]
    known = min(ago, NUM_MEMORIES - 1)
    memory = rules.memory[known]
    for _ in range(ago - known):
        memory *= 1.0 - rules.begins - rules.ends
    return float(rules.share_down + memory * (was_down - rules.share_down))


@scalar
def chance_broken(rules: Rulebook, status: IntVector, parts: IntVector, tool: int) -> float:
    """Return the chance that a tool is broken, by the failures that it showed."""
    return 0.0 if status[tool] == SUCCEEDED else doubt_of(rules, parts, tool)


@scalar
def doubt_of(rules: Rulebook, parts: IntVector, tool: int) -> float:
    """Return the chance that a tool is broken which has not succeeded."""
    prior = rules.broken_prior[tool]
    if prior <= 0.0:
        return 0.0
    evidence = parts[rules.at_evidence + tool]
    doubt = math.exp(-evidence / EVIDENCE_UNITS) if evidence != 0 else 1.0
    return float(1.0 / (1.0 + (1.0 - prior) / prior * doubt))


@scalar
def is_opened(rules: Rulebook, status: IntVector) -> bool:
    """Return whether a tool that opens has succeeded."""
    for tool in rules.openers:
        if tool < 0:
            break
        if status[tool] == SUCCEEDED:
            return True
    return False


@scalar
def is_refused(rules: Rulebook, status: IntVector, parts: IntVector, tool: int, digest: int) -> bool:
    """Return whether a call fails surely because of an earlier failure; `digest` stands for its parameters."""
    if rules.at_block < 0:
        return False
    block = parts[rules.at_block + tool]
    if block == CLOSED:
        return not is_opened(rules, status)
    return bool(block != OPEN and block == digest)


@scalar
def time_limit(rules: Rulebook, parts: IntVector) -> int:
    """Return the ticks that a call may take now, or NONE."""
    if rules.budget < 0:
        return rules.timeout
    left = rules.budget - parts[rules.at_time]
    return int(left if rules.timeout < 0 else min(left, rules.timeout))


@scalar
def is_time_up(rules: Rulebook, parts: IntVector) -> bool:
    """Return whether the time of the episode is used up."""
    return bool(rules.budget >= 0 and parts[rules.at_time] >= rules.budget)


@scalar
def chance_slow(rules: Rulebook, limit: int) -> float:
    """Return the chance that a call takes longer than a number of ticks; NONE is no limit."""
    chance = 0.0
    if limit >= 0:
        for number in range(rules.num_durations):
            if rules.duration_ticks[number] > limit:
                chance += rules.duration_chance[number]
    return min(chance, 1.0)


@scalar
def table_row(rules: Rulebook, counters: IntVector, tool: int) -> int:
    """Return the row of `Tables` that an execution of a tool reads now."""
    return int(rules.first_row[tool] + rules.rows_by_turn * counters[TURNS_USED])


@scalar
def law_probability(rules: Rulebook, tables: Tables, status: IntVector, counters: IntVector, tool: int) -> float:
    """Return the probability that the draw of success is won by a tool that is not broken."""
    num_not_executed, num_failed = count_unmet(status, rules.dependencies[tool])
    row = rules.first_row[tool] + rules.rows_by_turn * counters[TURNS_USED]
    return float(tables.probability[row, num_not_executed, num_failed, counters[NUM_FAILURES]])


@scalar
def law_threshold(rules: Rulebook, tables: Tables, status: IntVector, counters: IntVector, tool: int) -> int:
    """Return what the bits of a draw must stay below to win it, with a tool that is not broken."""
    num_not_executed, num_failed = count_unmet(status, rules.dependencies[tool])
    row = rules.first_row[tool] + rules.rows_by_turn * counters[TURNS_USED]
    return int(tables.threshold[row, num_not_executed, num_failed, counters[NUM_FAILURES]])


@scalar
def clean_threshold(rules: Rulebook, tables: Tables, counters: IntVector, tool: int) -> int:
    """Return the same without unmet dependencies."""
    return int(tables.threshold[table_row(rules, counters, tool), 0, 0, counters[NUM_FAILURES]])


@scalar
def clean_probability(rules: Rulebook, tables: Tables, counters: IntVector, tool: int) -> float:
    """Return `law_probability` without unmet dependencies."""
    return float(tables.probability[table_row(rules, counters, tool), 0, 0, counters[NUM_FAILURES]])


@scalar
def reported_chance(
    rules: Rulebook,
    tables: Tables,
    status: IntVector,
    counters: IntVector,
    parts: IntVector,
    hidden: IntVector,
    informed: bool,
    tool: int,
    digest: int,
) -> float:
    """Return the chance that an execution reports success: what `fill_chances` writes under SUCCESS and CORRUPT."""
    probability = law_probability(rules, tables, status, counters, tool)
    if rules.num_sections == 0:
        return probability
    if messages_until_free(rules, parts, tool) > 0 or is_refused(rules, status, parts, tool, digest):
        return 0.0
    down, slow = chance_group_down(rules, parts, hidden, informed, tool), chance_slow(rules, time_limit(rules, parts))
    works = chance_works(rules, status, parts, hidden, informed, tool)
    return chance_of_draw(down, slow, works) * probability


@scalar
def chance_of_draw(down: float, slow: float, works: float) -> float:
    """Return the chance that an execution which nothing refuses comes to a draw that it can win."""
    return (1.0 - down) * (1.0 - slow) * works


@scalar
def chance_group_down(rules: Rulebook, parts: IntVector, hidden: IntVector, informed: bool, tool: int) -> float:
    """Return the chance that the group of a tool is down at this message, as far as it is known."""
    group = rules.group[tool]
    if group < 0:
        return 0.0
    return float(hidden[rules.at_down + group]) if informed else chance_down(rules, parts, group)


@scalar
def chance_works(
    rules: Rulebook, status: IntVector, parts: IntVector, hidden: IntVector, informed: bool, tool: int
) -> float:
    """Return the chance that a tool is not broken, as far as it is known."""
    if rules.at_evidence < 0:
        return 1.0
    return 1.0 - (float(hidden[rules.at_broken + tool]) if informed else chance_broken(rules, status, parts, tool))


@scalar
def fill_chances(
    rules: Rulebook,
    tables: Tables,
    status: IntVector,
    counters: IntVector,
    parts: IntVector,
    hidden: IntVector,
    informed: bool,
    tool: int,
    digest: int,
    chances: Any,
) -> None:
    """Write into `chances` (NUM_RESULTS,) how likely each result of an execution is.

    To the informed, `hidden` says what is down and broken; to everybody else beliefs do. Where outputs only look sound,
    those who are not informed have the chance of both kinds of success under SUCCESS, and in any case that of failures
    before and after the run under FAILURE and SLOW.
    """
    if rules.num_sections > 0 and messages_until_free(rules, parts, tool) > 0:
        clear_chances(chances)
        chances[LIMITED] = 1.0
        return
    down, slow = 0.0, 0.0
    if rules.num_sections > 0:
        down = chance_group_down(rules, parts, hidden, informed, tool)
        if is_refused(rules, status, parts, tool, digest):
            clear_chances(chances)
            chances[DOWN] = down
            chances[REFUSED] = 1.0 - down
            return
        slow = chance_slow(rules, time_limit(rules, parts))
    in_time = (1.0 - down) * (1.0 - slow)
    works = chance_works(rules, status, parts, hidden, informed, tool)
    probability = law_probability(rules, tables, status, counters, tool)
    success, corrupt = chance_of_draw(down, slow, works) * probability, 0.0
    if rules.at_sound >= 0 and (informed or rules.shows_payload):
        corrupt = success * rules.corrupt_chance[tool]
    failure, of_input, of_access = in_time * (1.0 - works * probability), 0.0, 0.0
    if rules.at_block >= 0:
        # A failure is of the dependencies if without them the draw would have been won; else it has a kind.
        clean = clean_probability(rules, tables, counters, tool)
        of_a_kind = failure * ((1.0 - clean) / (1.0 - probability) if probability < 1.0 else 1.0)
        if is_opened(rules, status):
            of_input = of_a_kind * rules.opened_input_share[tool]
        else:
            of_input = of_a_kind * rules.input_share[tool]
            of_access = of_a_kind * rules.access_share[tool]
    chances[FAILURE] = failure - of_input - of_access
    chances[SUCCESS] = success - corrupt
    chances[CORRUPT] = corrupt
    chances[INPUT_FAILURE] = of_input
    chances[ACCESS_FAILURE] = of_access
    chances[LIMITED] = 0.0
    chances[DOWN] = down
    chances[REFUSED] = 0.0
    chances[SLOW] = (1.0 - down) * slow
    chances[UNANSWERED] = 0.0
    chances[UNANSWERED_LATE] = 0.0
    if unlikely(rules.at_lost >= 0) and informed and rules.is_tracked[tool]:
        share = rules.lost_share[tool] * works
        chances[UNANSWERED] = share * chances[FAILURE]
        chances[FAILURE] -= chances[UNANSWERED]
        chances[UNANSWERED_LATE] = share * chances[SLOW]
        chances[SLOW] -= chances[UNANSWERED_LATE]


@scalar
def clear_chances(chances: Any) -> None:
    """Write zeros."""
    for result in range(NUM_RESULTS):
        chances[result] = 0.0


@scalar
def pass_message(rules: Rulebook, parts: IntVector, key: int) -> None:
    """Let the clocks of the parts run for one message; `key` is what a call of it counts for, or NONE."""
    if rules.at_rate >= 0:
        keep = (1 << (rules.rate_window - 1)) - 1
        for number in range(rules.num_rate_keys):
            called = 1 if number == key else 0
            parts[rules.at_rate + number] = ((parts[rules.at_rate + number] << 1) | called) & keep
    if rules.at_outage >= 0:
        for group in range(rules.num_groups):
            if parts[rules.at_outage + 2 * group] != NEVER_SEEN:
                parts[rules.at_outage + 2 * group + 1] += 1
