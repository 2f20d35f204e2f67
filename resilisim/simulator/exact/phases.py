"""What the relaxed problem keeps of a law's parts: a few *phases* in which the next required tool can stand.

The bound of a search (`exact.relaxation`) forgets which helper is which. Of a part it keeps what it does to the
required tool that is due, and takes the best for all others. Each phase stands for states in which the tool's chance is
not above the phase's, and from which nothing better can follow; so the bound stays one (docs/decisions, laws).

* Outages: when the tool's group was seen last, and how. A call of another tool may be one of its group, or not.
* Rate limits: which of the last messages counted for the tool's limit. Calls of others count if all share one limit.
* Kinds of errors: whether the tool is closed, and whether that is over for good.
* Corrupt outputs that are seen: how many places have to be taken again.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from resilisim.simulator.compiled import scalar
from resilisim.simulator.problem import Problem
from resilisim.simulator.rulebook.lost_answers import is_missing
from resilisim.simulator.rulebook.rules import CLOSED, SEEN_DOWN, SEEN_UP, UNSOUND, is_opened
from resilisim.simulator.state import NEXT_PLACE
from resilisim.simulator.tool_status import SUCCEEDED, IntVector

# Kinds of phases.
NO_PHASES = 0
OUTAGES = 1
RATE_MASKS = 2  # the phase is the mask
CLOSED_TOOLS = 3
FLAWED_OUTPUTS = 4  # the phase is their number

# Phases of outages: up when last seen, by the message before or earlier; down by the message before, by the one before
# that; or as good as never seen.
UP_BEFORE, UP_NOW, DOWN_NOW, DOWN_BEFORE, LONG_AGO = range(5)
# Phases of kinds of errors.
NOT_OPENED, IS_CLOSED, IS_OPENED = range(3)

MAX_MASKS = 16
MAX_FLAWED = 3  # places that have to be taken again; more are not counted


class Phases(NamedTuple):
    """What the relaxed problem keeps of a law's parts: one of a few *phases* that the next required tool can be in.

    The plain law has one phase. Axes are places of the required list (one more behind the last) and phases.

    Attributes:
        passes: (num_required + 1, num_phases) chance that a call of the required tool comes to the draw of success.
        lost: (num_required + 1, num_phases) phase after a draw that failed.
        blocked: (num_required + 1, num_phases) phase after a call that did not come to the draw.
        won: (num_required + 1, num_phases) phase of the next place after a success.
        other: (num_required + 1, num_phases) phase after a call of another tool that tells nothing of this one.
        contact: (num_required + 1, num_phases) chance that a call of another tool which tells of this one finds it up,
            after which the phases are those of a look; -1 if there is none.
        contact_share: (num_required + 1, num_phases) what that leaves of the other tool's chance.
        waited: (num_required + 1, num_phases) phase after a message that calls nothing.
        looks: (num_required + 1, num_phases, 2) phases after a look that finds the tool up, or down; -1 if there is
            none to be made.
        closes: (num_required + 1,) share of clean failures that close the tool.
        closed: (num_phases,) phase after such a failure.
        opened: (num_phases,) phase after a tool that opens has succeeded, or -1.
        opens: Chance of such a tool.
        others_pass: (num_phases,) whether other tools can be called.
        flaws: (num_required + 1,) share of successes whose output is corrupt.
        flawed: (num_phases,) the phase that takes the place of `won` after such a success.
        repaired: (num_phases,) phase after a repair, or -1.
        repairs: Chance that a call for one succeeds.
        flaws_again: Share of these whose output is corrupt again.
        is_done: (num_phases,) whether nothing is left to do when all places have succeeded.
    """

    passes: NDArray[np.float64]
    lost: NDArray[np.int64]
    blocked: NDArray[np.int64]
    won: NDArray[np.int64]
    other: NDArray[np.int64]
    contact: NDArray[np.float64]
    contact_share: NDArray[np.float64]
    waited: NDArray[np.int64]
    looks: NDArray[np.int64]
    closes: NDArray[np.float64]
    closed: NDArray[np.int64]
    opened: NDArray[np.int64]
    opens: float
    others_pass: NDArray[np.int64]
    flaws: NDArray[np.float64]
    flawed: NDArray[np.int64]
    repaired: NDArray[np.int64]
    repairs: float
    flaws_again: float
    is_done: NDArray[np.int64]


def plain_phases(num_required: int, num_phases: int = 1) -> Phases:
    """Return phases in which nothing happens: each stays what it is."""
    same = np.tile(np.arange(num_phases), (num_required + 1, 1))
    none = np.full(num_phases, -1)
    return Phases(
        passes=np.ones((num_required + 1, num_phases)),
        lost=same.copy(),
        blocked=same.copy(),
        won=same.copy(),
        other=same.copy(),
        contact=np.full((num_required + 1, num_phases), -1.0),
        contact_share=np.zeros((num_required + 1, num_phases)),
        waited=same.copy(),
        looks=np.full((num_required + 1, num_phases, 2), -1),
        closes=np.zeros(num_required + 1),
        closed=same[0].copy(),
        opened=none.copy(),
        opens=0.0,
        others_pass=np.ones(num_phases, dtype=np.int64),
        flaws=np.zeros(num_required + 1),
        flawed=same[0].copy(),
        repaired=none.copy(),
        repairs=0.0,
        flaws_again=0.0,
        is_done=np.ones(num_phases, dtype=np.int64),
    )


def phase_kind(problem: Problem, informed: bool) -> tuple[int, int]:
    """Return which phases the relaxed problem has, and how many; a law of several parts has none."""
    law = problem.dynamics.numbers.law
    if not problem.goal.ordered:  # several tools can be due
        return NO_PHASES, 1
    parts = set(law.parts) - {"drift", "lost_answer"}
    shared = len(set(problem.place) - {-1}) < sum(place >= 0 for place in problem.place)
    if law.corrupt is not None and parts == {"corrupt"} and law.corrupt.shows == "payload":
        return FLAWED_OUTPUTS, 1 + max(min(MAX_FLAWED, problem.rules.max_turns - len(problem.required)), 0)
    if shared or len(parts) != 1:  # several tools can be due
        return NO_PHASES, 1
    if law.outage is not None and not informed and law.outage.begins + law.outage.ends <= 1.0:
        return OUTAGES, 5
    if law.rate_limit is not None and 1 << (law.rate_limit.window - 1) <= MAX_MASKS:
        return RATE_MASKS, 1 << (law.rate_limit.window - 1)
    if law.error_kinds is not None:
        return CLOSED_TOOLS, 3
    return NO_PHASES, 1


def make_phases(problem: Problem, kind: int, num_phases: int, opens: float) -> Phases:
    """Return what happens to the required tools in each phase.

    Args:
        problem: The problem.
        kind: What `phase_kind` says; so does `num_phases`.
        num_phases: Number of phases.
        opens: Highest chance of a tool that opens, or makes an output again.
    """
    phases = plain_phases(len(problem.required), num_phases)
    if kind == OUTAGES:
        return _of_outages(problem, phases)
    if kind == RATE_MASKS:
        return _of_rate_limits(problem, phases)
    if kind == CLOSED_TOOLS:
        return _of_closed_tools(problem, phases, opens)
    return _of_flawed_outputs(problem, phases, opens) if kind == FLAWED_OUTPUTS else phases


def _of_outages(problem: Problem, phases: Phases) -> Phases:
    dynamics = problem.dynamics
    law, facts = dynamics.numbers.law, dynamics.numbers.facts
    assert law.outage is not None
    memory, share_up = 1.0 - law.outage.begins - law.outage.ends, 1.0 - law.outage.share_down
    up = np.zeros(5)
    up[UP_NOW] = share_up + memory * (1.0 - share_up)
    up[UP_BEFORE] = share_up + memory**2 * (1.0 - share_up)
    up[DOWN_NOW], up[DOWN_BEFORE], up[LONG_AGO] = share_up * (1.0 - memory), share_up * (1.0 - memory**2), share_up
    most = max(up[UP_NOW], up[DOWN_NOW], share_up)  # what chances of other tools are reckoned with
    later = np.arange(5)
    later[UP_NOW], later[DOWN_NOW], later[DOWN_BEFORE] = UP_BEFORE, DOWN_BEFORE, LONG_AGO
    groups = [facts[tool].group for tool in problem.required]
    for place, group in enumerate(groups):
        if group is not None:
            phases.passes[place] = up
            phases.looks[place] = UP_NOW, DOWN_NOW
        phases.lost[place], phases.blocked[place], phases.waited[place] = UP_NOW, DOWN_NOW, later
        others = [tool for tool in range(problem.num_tools) if tool != problem.required[place]]
        is_met = any(facts[tool].group == group for tool in others)
        phases.other[place] = later
        if group is not None and is_met:
            phases.contact[place], phases.contact_share[place] = up, up / most
        follows = place + 1 < len(groups) and group is not None and groups[place + 1] == group
        phases.won[place] = UP_NOW if follows else UP_BEFORE
    return phases


def _of_rate_limits(problem: Problem, phases: Phases) -> Phases:
    dynamics = problem.dynamics
    limit, facts = dynamics.numbers.law.rate_limit, dynamics.numbers.facts
    assert limit is not None
    masks = np.arange(len(phases.is_done))
    keep = len(masks) - 1
    passes = np.array([int(mask).bit_count() < limit.calls for mask in masks])
    waited, called = (masks << 1) & keep, ((masks << 1) | 1) & keep
    keys = [facts[tool].rate_key for tool in problem.required]
    for place, key in enumerate(keys):
        phases.passes[place], phases.lost[place] = passes, called
        phases.blocked[place], phases.waited[place] = waited, waited
        phases.other[place] = called if limit.per == "all" else waited
        phases.won[place] = called if place + 1 < len(keys) and keys[place + 1] == key else 0
    if limit.per == "all":
        phases.others_pass[:] = passes
    return phases


def _of_closed_tools(problem: Problem, phases: Phases, opens: float) -> Phases:
    dynamics = problem.dynamics
    facts = dynamics.numbers.facts
    phases.passes[:, IS_CLOSED] = 0.0
    phases.closed[:] = IS_CLOSED, IS_CLOSED, IS_OPENED
    phases.opened[:] = IS_OPENED, IS_OPENED, -1
    for place, tool in enumerate(problem.required):
        waits_for_later = any(problem.place[other] > place for other in problem.dependencies[tool])
        phases.closes[place] = 0.0 if waits_for_later else facts[tool].access_share
        phases.won[place] = IS_OPENED if facts[tool].is_opener else (NOT_OPENED, NOT_OPENED, IS_OPENED)
    if any(facts[tool].is_opener for tool in problem.closure):
        phases.other[:] = IS_OPENED
    return phases._replace(opens=opens)


def _of_flawed_outputs(problem: Problem, phases: Phases, repairs: float) -> Phases:
    dynamics = problem.dynamics
    facts, last = dynamics.numbers.facts, len(phases.is_done) - 1
    again = []
    for place in range(len(problem.required)):
        takers = [one.corrupt_chance for one, at in zip(facts, problem.place, strict=True) if at == place]
        phases.flaws[place] = min(takers)
        if max(takers) > 0.0:
            again.append(min(takers))
    # The phase of `flawed` is that of the next place.
    phases.flawed[:] = np.minimum(np.arange(last + 1) + 1, last)
    phases.repaired[1:] = np.arange(last)
    phases.is_done[1:] = 0
    return phases._replace(repairs=repairs, flaws_again=min(again, default=0.0))


@scalar
def phase_of(rules: Any, status: IntVector, counters: IntVector, parts: IntVector) -> int:
    """Return the phase of the relaxed problem (`exact.phases`) in which a state stands, by the next required tool."""
    kind, done = rules.phase_kind, counters[NEXT_PLACE]
    if kind == FLAWED_OUTPUTS:
        return int(min(count_flawed(rules, status, counters, parts), rules.num_phases - 1))
    if kind == NO_PHASES or done >= rules.num_required:
        return 0
    tool = 0
    while rules.place[tool] != done:
        tool += 1
    if kind == CLOSED_TOOLS:
        if is_opened(rules, status):
            return IS_OPENED
        return int(IS_CLOSED if parts[rules.at_block + tool] == CLOSED else NOT_OPENED)
    if kind == RATE_MASKS:
        return int(parts[rules.at_rate + rules.rate_key[tool]]) if rules.rate_key[tool] >= 0 else 0
    group = rules.group[tool]
    if group < 0:
        return UP_BEFORE
    seen, age = parts[rules.at_outage + 2 * group], parts[rules.at_outage + 2 * group + 1]
    if seen == SEEN_UP:
        return int(UP_NOW if age <= 1 else UP_BEFORE)
    if seen == SEEN_DOWN:
        return int(min(DOWN_NOW + age - 1, LONG_AGO))
    return LONG_AGO


@scalar
def count_flawed(rules: Any, status: IntVector, counters: IntVector, parts: IntVector) -> int:
    """Return how many places that were taken have no output that can be sound."""
    count = 0
    for place in range(rules.num_required):
        is_flawed = not is_missing(rules, rules, status, counters, parts, place)
        for tool in range(rules.num_tools):
            if rules.place[tool] == place and status[tool] == SUCCEEDED and parts[rules.at_sound + tool] != UNSOUND:
                is_flawed = False
        count += int(is_flawed)
    return count
