"""Check (j): laws fitted to calls that a known law drew hold its numbers in their intervals as often as they say.

Episodes of random calls are drawn by the simulator, written as programs under `inject` write them, and fitted. The
intervals are to miss a number in 5 of 100 fits; those of the profile likelihood are told to keep that up to one more.
The control asks the same of numbers that are a little off.
"""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from scipy.stats import binomtest

from resilisim.injection import FittedLaw, fit_law
from resilisim.seeding import Draws
from resilisim.simulator import EndRules, Episode, Law, build_problem, execution
from resilisim.tool_library import Tool, ToolLibrary
from verification.findings import Finding

SOURCE = "fitted laws"
FITS = 300  # of each law
EPISODES = 60  # of each fit
CALLS = 8  # of each episode
MISSES = 0.06  # the share of intervals that may miss
PIECES = 4
WRONG = 0.8  # what the control multiplies a number with

LIBRARY = ToolLibrary(
    [
        Tool("store_reader", "Reads."),
        Tool("store_parser", "Parses.", dependencies=("store_reader",)),
        Tool("store_writer", "Writes.", dependencies=("store_reader", "store_parser")),
    ]
)
LAWS = (
    Law("benchmark"),
    Law(
        "three tools that differ",
        base=0.7,
        not_executed=0.3,
        failed=0.8,
        history=0.97,
        bases={"store_reader": 0.6, "store_parser": 0.95},
    ),
    Law("nothing but bases", base=0.85, not_executed=1.0, failed=1.0, history=1.0, bases={"store_reader": 0.4}),
)


def truth(law: Law) -> dict[str, float]:
    """Return the numbers that a fit has to find."""
    bases = {name: law.bases.get(name, law.base) for name in LIBRARY.names}
    return bases | {name: getattr(law, name) for name in ("not_executed", "failed", "history")}


def simulated(law: Law, salt: str, folder: Path) -> FittedLaw:
    """Return the fit to episodes of random calls."""
    problem = build_problem(LIBRARY, LIBRARY.names[:1], law, EndRules(CALLS, 0, 0))
    lines = []
    for seed in range(EPISODES):
        episode, draws = Episode(problem, "fit", seed, salt), Draws(salt, seed)
        for _ in range(CALLS):
            event = episode.apply(execution(draws.choice(LIBRARY.names)))
            error = None if event.failure is None else event.failure.code
            lines.append(json.dumps({"tool": event.tool, "error": error, "episode": seed}) + "\n")
    path = folder / "calls.jsonl"
    path.write_text("".join(lines))
    return fit_law(path, library=LIBRARY)


def jobs(shift: int) -> list[tuple[int, int, int]]:
    """Return the pieces of work: law, piece, shift of seeds."""
    return [(number, piece, shift) for number in range(len(LAWS)) for piece in range(PIECES)]


@dataclass(frozen=True, slots=True)
class Counted:
    """How often the interval of each number was made, missed it, and missed a wrong one."""

    law: int
    made: Counter[str]
    missed: Counter[str]
    missed_wrong: Counter[str]


def work(job: tuple[int, int, int]) -> Counted:
    """Fit one law again and again."""
    number, piece, shift = job
    counted = Counted(number, Counter(), Counter(), Counter())
    with tempfile.TemporaryDirectory() as folder:
        for fit in range(piece, FITS, PIECES):
            found = simulated(LAWS[number], f"verification/{shift}/{fit}", Path(folder))
            estimates = {row.tool: row.base for row in found.tools} | dict(found.factors)
            for name, estimate in estimates.items():
                value = truth(LAWS[number])[name]
                counted.made[name] += 1
                counted.missed[name] += not estimate.holds(value)
                counted.missed_wrong[name] += not estimate.holds(value * WRONG)
    return counted


def judge(pieces: Sequence[Counted]) -> list[Finding]:
    """Test the share of intervals that missed, for each law and number."""
    findings = []
    for number, law in enumerate(LAWS):
        own = [piece for piece in pieces if piece.law == number]
        made, missed, wrong = (
            sum((getattr(piece, name) for piece in own), Counter[str]()) for name in ("made", "missed", "missed_wrong")
        )
        for name in truth(law):
            test = binomtest(missed[name], made[name], MISSES, alternative="greater")
            findings.append(
                Finding(
                    f"intervals of {name}, {law.name}",
                    SOURCE,
                    f"{missed[name]} of {made[name]} miss, at most {MISSES:.0%}",
                    p_value=float(test.pvalue),
                )
            )
        control = binomtest(wrong["store_parser"], made["store_parser"], MISSES, alternative="greater")
        findings.append(
            Finding(
                f"control: intervals of {WRONG:g} times the base of store_parser, {law.name}",
                SOURCE,
                f"{wrong['store_parser']} of {made['store_parser']} miss",
                p_value=float(control.pvalue),
                control=True,
            )
        )
    return findings
