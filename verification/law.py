"""Check (a): what executions bring, against the success law.

The expected probabilities are computed here from the words of SPEC section 3 and from the messages alone; neither the
simulator's table nor its state is asked.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np

from resilisim.seeding import Draws
from resilisim.simulator import EndRules, Episode, Law, Message, build_problem, execution
from resilisim.simulator.messages import MessageKind
from resilisim.tool_library import ToolLibrary, default_library
from resilisim.tool_library.tool import DEPENDENCY_ERROR
from verification.findings import Finding
from verification.statistics import chi_square_of_groups, chi_square_of_rows, worst_cell

EXECUTIONS = 150_000  # of each setting
JOBS = 8  # pieces of each setting
HARMLESS: tuple[MessageKind, ...] = ("search", "info", "rejected", "format_error")
WRONG_HISTORY = 0.88  # what the control takes for the factor of 0.9


@dataclass(frozen=True, slots=True)
class Setting:
    """A library, a law and end rules under which the law is checked."""

    name: str
    library: ToolLibrary
    law: Law
    rules: EndRules


@lru_cache(maxsize=1)
def settings() -> tuple[Setting, ...]:
    """Return the settings: the benchmark as it is, and two that reach cells which it never does."""
    many_rules = EndRules(max_turns=16, max_consecutive_failures=0, loop_length=0)
    return (
        Setting("benchmark", default_library(), Law(), EndRules()),
        Setting("many bases", _many_bases(), Law(), many_rules),
        Setting(
            "another law", default_library(), Law(base=0.95, not_executed=0.6, failed=0.85, history=0.96), many_rules
        ),
    )


def _many_bases() -> ToolLibrary:
    """Return a library with five base probabilities and up to four dependencies for each tool."""
    names = [f"tool_{letter}" for letter in "abcdefghij"]
    bases = [None, 0.55, 0.9, 1.0, 0.7]
    tools = [
        {
            "name": name,
            "description": f"The tool number {place}.",
            "dependencies": names[max(0, place - 2 - place % 3) : place][: place % 5],
            "success_probability": bases[place % len(bases)],
        }
        for place, name in enumerate(names)
    ]
    return ToolLibrary.from_json(json.dumps({"tools": tools}), source="library with many bases")


# (setting, base, Nu, Nf, Nh)
Cell = tuple[str, float, int, int, int]


@dataclass(slots=True)
class Tally:
    """What was counted.

    Attributes:
        cells: For each cell the executions that succeeded, failed for dependencies, and failed otherwise.
        codes: For each tool how often each of its documented errors was drawn.
        episodes: Episodes played.
        wrong_probabilities: Executions whose reported probability is not that of the formula.
        wrong_lists: Dependency errors that do not list exactly the unmet dependencies.
    """

    cells: dict[Cell, list[int]] = field(default_factory=dict)
    codes: dict[str, Counter[str]] = field(default_factory=dict)
    episodes: int = 0
    wrong_probabilities: int = 0
    wrong_lists: int = 0


def formula(law: Law, cell: Cell) -> float:
    """Return p = p_base x 0.5^Nu x 0.7^Nf x 0.9^Nh (SPEC section 3), with the law's constants."""
    _, base, num_not_executed, num_failed, num_failures = cell
    return math.prod((base, law.not_executed**num_not_executed, law.failed**num_failed, law.history**num_failures))


def jobs(shift: int) -> list[tuple[int, int, int]]:
    """Return (setting, piece, shift) of every piece of work."""
    return [(setting, piece, shift) for setting in range(len(settings())) for piece in range(JOBS)]


def work(job: tuple[int, int, int]) -> Tally:
    """Play random episodes and count."""
    number, piece, shift = job
    setting = settings()[number]
    tally, executions, index = Tally(), 0, 0
    while executions < EXECUTIONS // JOBS:
        draws = Draws("verification/law", setting.name, piece, index, shift)
        executions += _play(setting, draws, f"task_{piece}", index, f"verification/law/{shift}", tally)
        index += 1
    tally.episodes = index
    return tally


def _play(setting: Setting, draws: Draws, task: str, seed: int, salt: str, tally: Tally) -> int:
    """Play one episode with random calls among a few related tools, so that dependencies are met in every way."""
    library = setting.library
    target = draws.choice(library.names)
    pool = [*library.closure([target]), target, target, draws.choice(library.names)]
    episode = Episode(build_problem(library, [target], setting.law, setting.rules), task, seed, salt)
    executed: set[str] = set()
    succeeded: set[str] = set()
    failures = executions = 0
    while episode.ended_by is None:
        if draws.uniform() < 0.1:
            # None of these is an execution; none may change what follows.
            episode.apply(Message(draws.choice(HARMLESS), tool=target, query=str(draws.bits()), text=str(draws.bits())))
            continue
        tool = draws.choice(pool)
        event = episode.apply(execution(tool))
        if not event.executed:
            break  # the closing message
        executions += 1
        needed = library[tool].dependencies
        not_executed = [name for name in needed if name not in executed]
        failed = [name for name in needed if name in executed and name not in succeeded]
        own_base = library[tool].success_probability
        base = setting.law.base if own_base is None else own_base
        cell = (setting.name, base, len(not_executed), len(failed), failures)
        counts = tally.cells.setdefault(cell, [0, 0, 0])
        tally.wrong_probabilities += abs((event.success_probability or 0.0) - formula(setting.law, cell)) > 1e-15
        executed.add(tool)
        if event.failure is None:
            counts[0] += 1
            succeeded.add(tool)
            continue
        failures += 1
        if event.failure.code == DEPENDENCY_ERROR:
            counts[1] += 1
            told = (list(event.failure.not_executed), list(event.failure.failed))
            tally.wrong_lists += told != (not_executed, failed)
        else:
            counts[2] += 1
            tally.codes.setdefault(tool, Counter())[event.failure.code] += 1
    return executions


def judge(tallies: Sequence[Tally]) -> list[Finding]:
    """Compare the counts with the law, and with a law that is wrong on purpose."""
    total = _merge(tallies)
    findings = []
    for setting in settings():
        cells = {cell: counts for cell, counts in total.cells.items() if cell[0] == setting.name}
        findings += _judge_setting(setting, setting.law, cells)
    benchmark = settings()[0]
    law = benchmark.law
    wrong = Law(base=law.base, not_executed=law.not_executed, failed=law.failed, history=WRONG_HISTORY)
    cells = {cell: counts for cell, counts in total.cells.items() if cell[0] == benchmark.name}
    findings.append(_judge_setting(benchmark, wrong, cells, control=True)[0])
    findings += _judge_errors(total)
    executions = sum(sum(counts) for counts in total.cells.values())
    findings += [
        Finding(
            f"the reported probability is the formula's ({executions:,} executions)",
            "SPEC 3, law",
            f"{total.wrong_probabilities} differ",
            exact=total.wrong_probabilities == 0,
        ),
        Finding(
            "dependency errors list the unmet dependencies",
            "SPEC 3, which failure",
            f"{total.wrong_lists} differ",
            exact=total.wrong_lists == 0,
        ),
    ]
    return findings


def _judge_setting(setting: Setting, law: Law, cells: dict[Cell, list[int]], control: bool = False) -> list[Finding]:
    order = sorted(cells)
    counts = np.array([cells[cell] for cell in order])
    success = np.array([formula(law, cell) for cell in order])
    clean = np.array([formula(law, (cell[0], cell[1], 0, 0, cell[4])) for cell in order])
    two = chi_square_of_groups(
        np.stack([counts[:, 0], counts[:, 1] + counts[:, 2]], axis=1), np.stack([success, 1.0 - success], axis=1)
    )
    what = f"{setting.name}, {len(order)} cells of (base, Nu, Nf, Nh)"
    if control:
        name = f"control: successes against history {law.history} ({what})"
        return [Finding(name, "SPEC 3, law", two.text, two.p_value, control=True)]
    worst = worst_cell(counts[:, 0], counts.sum(axis=1), success)
    # Both differences are exactly 0 where they should be, not a rounding error above or below.
    blame = np.where([cell[2] + cell[3] > 0 for cell in order], clean - success, 0.0)
    other = np.where(clean >= 1.0, 0.0, 1.0 - clean)
    three = chi_square_of_groups(counts, np.stack([1.0 - blame - other, blame, other], axis=1))
    return [
        Finding(f"successes ({what})", "SPEC 3, law", two.text, two.p_value),
        Finding(f"successes, cell by cell ({setting.name})", "SPEC 3, law", worst.text, worst.p_value),
        Finding(
            f"P(DEPENDENCY_ERROR) = p_clean - p ({setting.name})", "SPEC 3, which failure", three.text, three.p_value
        ),
    ]


def _judge_errors(total: Tally) -> list[Finding]:
    """Compare how often each tool's errors were drawn, together for all tools that document equally many."""
    library = default_library()
    by_number: dict[int, list[list[int]]] = {}
    unknown = 0
    for tool in library:
        codes = [spec.code for spec in tool.errors if spec.code != DEPENDENCY_ERROR]
        seen = total.codes.get(tool.name, Counter())
        unknown += sum(count for code, count in seen.items() if code not in codes)
        by_number.setdefault(len(codes), []).append([seen[code] for code in codes])
    findings = [
        Finding(
            "other failures are documented errors of their tool",
            "SPEC 3, which failure",
            f"{unknown} are not",
            exact=unknown == 0,
        )
    ]
    for number, rows in sorted(by_number.items()):
        result = chi_square_of_rows(rows)
        name = f"which of {number} documented errors ({len(rows)} tools)"
        findings.append(Finding(name, "SPEC 3, which failure", result.text, result.p_value))
    return findings


def _merge(tallies: Sequence[Tally]) -> Tally:
    total = Tally()
    for tally in tallies:
        for cell, counts in tally.cells.items():
            old = total.cells.setdefault(cell, [0, 0, 0])
            for place, count in enumerate(counts):
                old[place] += count
        for tool, codes in tally.codes.items():
            total.codes.setdefault(tool, Counter()).update(codes)
        total.episodes += tally.episodes
        total.wrong_probabilities += tally.wrong_probabilities
        total.wrong_lists += tally.wrong_lists
    return total
