"""Time and memory of the exact optimum against size: `python -m benchmarks.exact_sizes [FOLDER]` prints and plots them.

Required lists are drawn from a random library of 1,000 tools (no, one, two or three dependencies among the 60 tools
before), with equal reliabilities or with 0.60 to 0.99, in the order of the library. A second table has laws with one
part each, on the first list of each size; `--parts NAME ...` measures some of them alone. `--bounded TOOLS REQUIRED
TURNS ...` says how far apart the bounds of V* are for a long list in a library of so many tools, with room for few
states.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from resilisim.errors import ExactLimitError
from resilisim.seeding import Draws
from resilisim.simulator import (
    Broken,
    Corrupt,
    Drift,
    Duration,
    EndRules,
    ErrorKinds,
    Latency,
    Law,
    Outage,
    RateLimit,
    build_problem,
    start_state,
)
from resilisim.simulator.exact.reachable import solve_reachable
from resilisim.simulator.exact.search import Search
from resilisim.tool_library import ToolLibrary
from resilisim.tool_library.generator import random_library

NUM_TOOLS = 1000
LISTS_EACH = 3
CLOSURES = {3: (14, 20), 6: (18, 28), 12: (25, 40)}
TURNS = {3: (10, 12), 6: (10, 12, 14), 12: (15, 18, 20)}
TURNS_UNDER_PARTS = {3: 10, 12: 18}
LOOKING_AHEAD = "plain, looking ahead"
ROOM = 20_000  # states, where long lists are bounded
EQUIVALENTS = "broken with equivalents"  # a tool for every third required one
LAWS = {
    "plain": Law(),
    LOOKING_AHEAD: Law(),  # as if it had parts
    "rate limit by category": Law(rate_limit=RateLimit(2, 4, "category")),
    "rate limit by tool": Law(rate_limit=RateLimit(2, 5, "tool")),
    "rate limit of all": Law(rate_limit=RateLimit(3, 4, "all")),
    "outages by category": Law(outage=Outage(0.05, 1 / 3, "category")),
    "broken": Law(broken=Broken(0.1)),
    EQUIVALENTS: Law(broken=Broken(0.1)),
    "corrupt, seen": Law(corrupt=Corrupt(0.1, "payload")),
    "corrupt, validators": Law(corrupt=Corrupt(0.1, "validators")),
    "error kinds": Law(error_kinds=ErrorKinds(1.0, 1.0, 1.0)),
    "timeouts": Law(latency=Latency((Duration(1.0, 0.8), Duration(60.0, 0.2)), timeout=30.0)),
    "time budget": Law(latency=Latency((Duration(1.0, 0.8), Duration(10.0, 0.2)), budget=60.0)),
    "falling drift": Law(drift=Drift(-0.01)),
    "rising drift": Law(drift=Drift(0.01)),
}


class Size(NamedTuple):
    """What is solved."""

    unequal: bool
    num_required: int
    turns: int
    number: int  # of the list
    law: str = "plain"


class Solved(NamedTuple):
    """What solving V* of the start took; memory is that of values and bounds, also of bounds that are not reached."""

    size: Size
    closure: int
    seconds: float
    states: int
    megabytes: float
    value: float | None  # None if it was refused
    gap: float = 0.0


def library_of(unequal: bool, num_tools: int = NUM_TOOLS) -> ToolLibrary:
    """Draw a library; the same tools and dependencies for either kind of reliabilities."""
    draws = Draws("benchmarks/exact sizes", num_tools)
    return random_library(draws, num_tools, lambda uniform: round(0.6 + 0.39 * uniform, 3) if unequal else None)


def random_lists(library: ToolLibrary, num_required: int) -> list[list[str]]:
    """Draw required lists whose closures are as large as wanted."""
    draws = Draws("benchmarks/exact sizes", "lists", num_required)
    least, most = CLOSURES[num_required]
    found: list[list[str]] = []
    while len(found) < LISTS_EACH:
        required = sorted(draws.shuffled(library.names)[:num_required], key=library.index)
        if least <= len(library.closure(required)) <= most:
            found.append(required)
    return found


def law_of(name: str, library: ToolLibrary, required: Sequence[str]) -> Law:
    """Return a law; where it has equivalents, what can stand in is a tool without dependencies outside the list."""
    if name != EQUIVALENTS:
        return LAWS[name]
    free = [tool.name for tool in library if not tool.dependencies and tool.name not in library.closure(required)]
    return replace(LAWS[name], equivalents={tool: (free[place],) for place, tool in enumerate(required[::3])})


def solve(library: ToolLibrary, required: Sequence[str], size: Size) -> Solved:
    """Solve one problem."""
    problem = build_problem(library, required, law_of(size.law, library, required), EndRules(size.turns))
    start, value, states, memory, gap = time.process_time(), None, 0, 0, 0.0
    try:
        if size.law == "plain":
            search = Search(problem)
            value = search.value(start_state(problem))
            states, memory = search.num_states, search.nbytes
        else:
            optimum = solve_reachable(problem)
            value, gap = optimum.value(start_state(problem)), optimum.start_gap
            states, memory = optimum.num_states, optimum.nbytes
    except ExactLimitError:
        pass
    seconds = time.process_time() - start
    return Solved(size, len(problem.closure), seconds, states, memory / 2**20, value, gap)


def solve_everything() -> Iterator[Solved]:
    """Yield everything that is measured; what is not is what reads the compiled code first."""
    for unequal in (False, True):
        library = library_of(unequal)
        for num_required, all_turns in TURNS.items():
            lists = random_lists(library, num_required)
            solve(library, lists[0], Size(unequal, num_required, num_required, 0))
            for turns in all_turns:
                for number, required in enumerate(lists):
                    yield solve(library, required, Size(unequal, num_required, turns, number))


def solve_under_parts(names: Sequence[str]) -> Iterator[Solved]:
    """Yield what is measured under laws by name; what reads the compiled code first is not."""
    for unequal in (False, True):
        library = library_of(unequal)
        solve(library, list(library.names[:1]), Size(unequal, 1, 2, 0, names[-1]))
        for num_required, turns in TURNS_UNDER_PARTS.items():
            required = random_lists(library, num_required)[0]
            for name in names:
                yield solve(library, required, Size(unequal, num_required, turns, 0, name))


def bounded_rows(num_tools: int, num_required: int, all_turns: Sequence[int]) -> Iterator[str]:
    """Yield the rows of a Markdown table: the bounds of one long list, for each reliability and number of turns."""
    heads = ("reliabilities", "tools", "required", "closure", "turns", "V* at least", "at most", "CPU s")
    yield f"| {' | '.join(heads)} |"
    yield f"| --- |{' ---: |' * (len(heads) - 1)}"
    for unequal in (False, True):
        library = library_of(unequal, num_tools)
        draws = Draws("benchmarks/exact sizes", "long list", num_tools, num_required)
        required = sorted(draws.shuffled(library.names)[:num_required], key=library.index)
        for turns in all_turns:
            problem, start = build_problem(library, required, rules=EndRules(turns)), time.process_time()
            optimum = solve_reachable(problem, max_states=ROOM)
            low = optimum.value(start_state(problem))
            cells = ("unequal" if unequal else "equal", num_tools, num_required, len(problem.closure), turns)
            worth = (f"{low:.4f}", f"{low + optimum.start_gap:.4f}", f"{time.process_time() - start:.1f}")
            yield "| " + " | ".join(map(str, (*cells, *worth))) + " |"


def rows_under_parts(solved: Sequence[Solved]) -> Iterator[str]:
    """Yield the rows of a Markdown table, a law and kind of reliability each; of each size what it took."""
    sizes = [f"{num_required} in {turns}" for num_required, turns in TURNS_UNDER_PARTS.items()]
    yield f"| law | reliabilities | {' | '.join(sizes)} |"
    yield f"| --- | --- |{' --- |' * len(sizes)}"
    groups: dict[tuple[str, bool], list[Solved]] = {}
    for one in solved:
        groups.setdefault((one.size.law, one.size.unequal), []).append(one)
    for (law, unequal), group in groups.items():
        cells = []
        for one in group:
            gap = f" + {one.gap:.1g}" if one.gap > 0.0 else ""
            known = "refused" if one.value is None else f"{one.value:.4f}{gap}"
            cells.append(f"{known}; {one.seconds:.1f} s, {one.states:,}, {one.megabytes:.0f} MB")
        yield f"| {law} | {'unequal' if unequal else 'equal'} | {' | '.join(cells)} |"


def rows(solved: Sequence[Solved]) -> Iterator[str]:
    """Yield the rows of a Markdown table, a group of lists each."""
    sizes, costs = ("required", "closure", "turns"), ("CPU s, median (most)", "states, most", "MB, most")
    heads = ("reliabilities", *sizes, "solved", "V*", *costs)
    yield f"| {' | '.join(heads)} |"
    yield f"| --- |{' ---: |' * (len(heads) - 1)}"
    groups: dict[tuple[bool, int, int], list[Solved]] = {}
    for one in solved:
        groups.setdefault(one.size[:3], []).append(one)
    for (unequal, num_required, turns), group in groups.items():
        values = [one.value for one in group if one.value is not None]
        seconds, closures = [one.seconds for one in group], [one.closure for one in group]
        cells = (
            "unequal" if unequal else "equal",
            num_required,
            f"{min(closures)} to {max(closures)}",
            turns,
            f"{len(values)} of {len(group)}",
            f"{min(values):.4f} to {max(values):.4f}" if values else "",
            f"{statistics.median(seconds):.2f} ({max(seconds):.2f})",
            f"{max(one.states for one in group):,}",
            f"{max(one.megabytes for one in group):.0f}",
        )
        yield "| " + " | ".join(map(str, cells)) + " |"


def plot(solved: Sequence[Solved], target: Path) -> None:
    """Draw seconds and memory against turns, a line for each number of required tools and kind of reliability."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    mpl.rcParams["svg.hashsalt"] = "resilisim"
    figure = Figure(figsize=(9.0, 3.6), layout="constrained")
    for axes, name, label in zip(
        figure.subplots(1, 2), ("seconds", "megabytes"), ("CPU seconds", "memory, MB"), strict=True
    ):
        for unequal in (False, True):
            for num_required, all_turns in TURNS.items():
                most = [
                    max(getattr(one, name) for one in solved if one.size[:3] == (unequal, num_required, turns))
                    for turns in all_turns
                ]
                style = "--" if unequal else "-"
                axes.plot(all_turns, most, style, marker="o", label=f"{num_required}, {'un' * unequal}equal")
        axes.set(xlabel="turns", ylabel=f"{label}, most of {LISTS_EACH} lists", yscale="log")
    axes.legend(title="required tools", fontsize="small")
    figure.savefig(target, metadata={"Date": None})


def _told(solved: Iterator[Solved]) -> list[Solved]:
    found = []
    for one in solved:
        print(one, file=sys.stderr, flush=True)
        found.append(one)
    return found


def main() -> None:
    """Measure, print the tables, and draw the plot into a folder if one is given."""
    arguments = sys.argv[1:]
    if arguments[:1] == ["--parts"]:
        print("\n".join(rows_under_parts(_told(solve_under_parts(arguments[1:] or list(LAWS))))))
        return
    if arguments[:1] == ["--bounded"]:
        num_tools, num_required, *all_turns = map(int, arguments[1:])
        for row in bounded_rows(num_tools, num_required, all_turns):
            print(row, flush=True)
        return
    solved = _told(solve_everything())
    print("\n".join(rows(solved)))
    print("\n".join(["", *rows_under_parts(_told(solve_under_parts(list(LAWS))))]))
    if arguments:
        plot(solved, Path(arguments[0]) / "exact_sizes.svg")


if __name__ == "__main__":
    main()
