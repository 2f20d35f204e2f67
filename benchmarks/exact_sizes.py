"""Time and memory of the exact optimum against size: `python -m benchmarks.exact_sizes FOLDER` prints and plots them.

Required lists are drawn from a random library of 1,000 tools (no, one, two or three dependencies among the 60 tools
before), with equal reliabilities or with 0.60 to 0.99, in the order of the library.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from resilisim.envs.random_libraries import random_library
from resilisim.errors import ExactLimitError
from resilisim.seeding import Draws
from resilisim.simulator import EndRules, build_problem, start_state
from resilisim.simulator.exact.search import Search
from resilisim.tool_library import ToolLibrary

NUM_TOOLS = 1000
LISTS_EACH = 3
CLOSURES = {3: (14, 20), 6: (18, 28), 12: (25, 40)}
TURNS = {3: (10, 12), 6: (10, 12, 14), 12: (15, 18, 20)}


class Size(NamedTuple):
    """What is solved."""

    unequal: bool
    num_required: int
    turns: int
    number: int  # of the list


class Solved(NamedTuple):
    """What solving V* of the start took; memory is that of values and bounds, also of bounds that are not reached."""

    size: Size
    closure: int
    seconds: float
    states: int
    megabytes: float
    value: float | None  # None if it was refused


def library_of(unequal: bool) -> ToolLibrary:
    """Draw the library; the same tools and dependencies for either kind of reliabilities."""
    draws = Draws("benchmarks/exact sizes", NUM_TOOLS)
    return random_library(draws, NUM_TOOLS, lambda uniform: round(0.6 + 0.39 * uniform, 3) if unequal else None)


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


def solve(library: ToolLibrary, required: list[str], size: Size) -> Solved:
    """Solve one problem."""
    problem = build_problem(library, required, rules=EndRules(size.turns))
    start, value, states, memory = time.process_time(), None, 0, 0
    try:
        search = Search(problem)
        value = search.value(start_state(problem))
        states, memory = search.num_states, search.nbytes
    except ExactLimitError:
        pass
    seconds = time.process_time() - start
    return Solved(size, len(problem.closure), seconds, states, memory / 2**20, value)


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


def main() -> None:
    """Measure, print the table, and draw the plot into a folder if one is given."""
    solved = []
    for one in solve_everything():
        print(one, file=sys.stderr, flush=True)
        solved.append(one)
    print("\n".join(rows(solved)))
    if len(sys.argv) > 1:
        plot(solved, Path(sys.argv[1]) / "exact_sizes.svg")


if __name__ == "__main__":
    main()
