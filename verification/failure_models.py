"""Check (i): V* under each part of a law against what paper and pencil give, and against play.

One tool is wanted, failures leave no trace (history 1) and no rule ends an episode, so the chance of success follows
from the part alone. The formulas below are written from what docs/environments/failure-models says of each
part, and ask nothing of the simulator.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache

from scipy.stats import binomtest

from resilisim.simulator import (
    Broken,
    Corrupt,
    Drift,
    Duration,
    EndRules,
    Episode,
    ErrorKinds,
    Latency,
    Law,
    Outage,
    Problem,
    RateLimit,
    build_problem,
    start_state,
)
from resilisim.simulator.exact import solve
from resilisim.simulator.problem import outcome
from resilisim.tool_library import ToolLibrary, default_library
from verification.findings import Finding

SOURCE = "failure models"
EPISODES = 3_000  # of each case
TOLERANCE = 1e-12
BASE = 0.6
WRONG = 0.03  # what the controls take a strength for that is not there


def outage(turns: int, begins: float, ends: float) -> float:
    """Return the chance that a tool in a group succeeds if it is called at every message."""
    down = begins / (begins + ends)
    up = 1.0 - down
    for _ in range(turns):
        up, down = up * (1.0 - BASE), down  # what has not succeeded yet
        up, down = up * (1.0 - begins) + down * ends, up * begins + down * (1.0 - ends)
    return 1.0 - up - down


def rate_limit(turns: int, calls: int, window: int) -> float:
    """Return the chance that one of the calls that a limit allows in so many messages succeeds."""
    allowed = turns // window * calls + min(turns % window, calls)
    return 1.0 - (1.0 - BASE) ** allowed


def corrupt_payload(turns: int, corrupt: float) -> float:
    """Return the chance of a sound output where corrupt ones show."""
    return 1.0 - (1.0 - BASE * (1.0 - corrupt)) ** turns


def corrupt_with_validator(corrupt: float) -> float:
    """Return the chance of a sound output in three messages where a validator as reliable as the tool has to tell.

    After a success at once the output is checked, and made again if it is found corrupt; later there is no time to.
    """
    sound = 1.0 - corrupt
    return BASE * (sound + BASE * corrupt * BASE * sound) + (1.0 - BASE) * (1.0 - (1.0 - BASE) ** 2) * sound


def broken_with_equivalent(turns: int, broken: float) -> float:
    """Return the chance that one of two tools that may be broken succeeds, tries shared out in the best way."""
    never = [broken + (1.0 - broken) * (1.0 - BASE) ** tries for tries in range(turns + 1)]
    return 1.0 - min(never[tries] * never[turns - tries] for tries in range(turns + 1))


def drift(turns: int, per_message: float) -> float:
    """Return the chance that one call succeeds while the base drifts."""
    return 1.0 - math.prod(1.0 - min(max(BASE + per_message * turn, 0.0), 1.0) for turn in range(turns))


def error_kinds(turns: int, access: float) -> float:
    """Return the chance of success where a share of failures closes the tool until the authenticator has succeeded."""

    @cache
    def value(left: int, closed: bool, opened: bool) -> float:
        if left == 0:
            return 0.0
        if opened:
            return 1.0 - (1.0 - BASE) ** left
        opening = BASE * value(left - 1, False, True) + (1.0 - BASE) * value(left - 1, closed, False)
        if closed:
            return opening
        failure = access * value(left - 1, True, False) + (1.0 - access) * value(left - 1, False, False)
        return max(opening, BASE + (1.0 - BASE) * failure)

    return value(turns, False, False)


def latency(budget: int, slow: float) -> float:
    """Return the chance that a call of 1 second, or with chance `slow` of 3, succeeds within so many seconds."""
    values = [0.0]
    for left in range(1, budget + 1):
        chances = ((1, 1.0 - slow), (3, slow))
        values.append(
            sum(chance * (BASE + (1.0 - BASE) * values[left - took]) for took, chance in chances if took <= left)
        )
    return values[budget]


@dataclass(frozen=True, slots=True)
class Case:
    """A law, the chance that paper and pencil give, and the one that they would give for a slightly other law."""

    name: str
    law: Law
    turns: int
    formula: Callable[[float], float]
    strength: float


TOOL, OTHER, SINGLE = "file_operations_reader", "network_fetcher", ("file_operations_reader",)
PLAIN = Law(base=BASE, history=1.0)
FREE = "utility_helper"  # a tool that can be a validator: it depends on nothing


def _latency(slow: float) -> Latency:
    return Latency((Duration(1, 1.0 - slow), Duration(3, slow)), budget=7)


CASES = (
    Case(
        "one tool under an outage chain", replace(PLAIN, outage=Outage(0.2, 0.3)), 6, lambda s: outage(6, s, 0.3), 0.2
    ),
    Case(
        "one tool, two calls in any four messages",
        replace(PLAIN, rate_limit=RateLimit(2, 4)),
        7,
        lambda s: rate_limit(7 if s == 0.0 else 9, 2, 4),  # the control is two messages longer
        0.0,
    ),
    Case("a corrupt tool that shows it", replace(PLAIN, corrupt=Corrupt(0.3)), 4, lambda s: corrupt_payload(4, s), 0.3),
    Case(
        "a corrupt tool with a validator",
        replace(PLAIN, corrupt=Corrupt(0.3, "validators", validators=(FREE,))),
        3,
        corrupt_with_validator,
        0.3,
    ),
    Case(
        "a broken tool with an equivalent",
        replace(PLAIN, broken=Broken(0.4), equivalents={TOOL: (OTHER,)}),
        7,
        lambda s: broken_with_equivalent(7, s),
        0.4,
    ),
    Case("a tool that drifts", replace(PLAIN, drift=Drift(-0.15)), 5, lambda s: drift(5, s), -0.15),
    Case(
        "a tool that access failures close",
        replace(
            PLAIN, error_kinds=ErrorKinds(3, 0, 2, input_codes=(), access_codes=("FILE_NOT_FOUND", "PERMISSION_DENIED"))
        ),
        6,
        lambda s: error_kinds(6, s),
        # Three transient codes (INVALID_INPUT is one here) of weight 3, two of access of weight 2.
        4.0 / 13.0,
    ),
    Case(
        "a slow tool within a time budget",
        replace(PLAIN, latency=_latency(0.4)),
        20,
        lambda s: latency(7, s),
        0.4,
    ),
)


def jobs(shift: int) -> list[tuple[int, int]]:
    """Return one piece of work for each case."""
    return [(number, shift) for number in range(len(CASES))]


@dataclass(frozen=True, slots=True)
class Compared:
    """What a case brought: V*, how often play of the best messages succeeded, and both formulas."""

    value: float
    successes: int
    formula: float
    wrong: float


def problem_of(case: Case, library: ToolLibrary | None = None) -> Problem:
    """Return the problem of a case."""
    return build_problem(library or default_library(), SINGLE, case.law, EndRules(case.turns, 0, 0))


def work(job: tuple[int, int]) -> Compared:
    """Solve a case and play its best messages."""
    number, shift = job
    case = CASES[number]
    problem = problem_of(case)
    optimum, successes = solve(problem), 0
    for seed in range(EPISODES):
        episode = Episode(problem, case.name, seed, f"verification/{shift}")
        while episode.ended_by is None:
            episode.apply(optimum.best_action(episode.state))
        successes += outcome(problem, episode.state)
    formula, wrong = case.formula(case.strength), case.formula(case.strength + WRONG)
    return Compared(optimum.value(start_state(problem)), successes, formula, wrong)


def judge(compared: Sequence[Compared]) -> list[Finding]:
    """Report the difference of each case from its formula, and the test of what play brought."""
    findings = []
    for case, one in zip(CASES, compared, strict=True):
        error, control = abs(one.value - one.formula), abs(one.value - one.wrong)
        test = binomtest(one.successes, EPISODES, one.value)
        findings += [
            Finding(f"V* of {case.name}", SOURCE, f"difference {error:.1e}", exact=error < TOLERANCE),
            Finding(
                f"play of the best messages: {case.name}",
                SOURCE,
                f"{one.successes} of {EPISODES} episodes, V* {one.value:.4f}",
                p_value=float(test.pvalue),
            ),
            Finding(
                f"control: {case.name}, another strength",
                SOURCE,
                f"difference {control:.1e}",
                exact=control < TOLERANCE,
                control=True,
            ),
        ]
    return findings
