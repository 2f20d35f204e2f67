"""What computing success rates branch by branch takes and saves: `python -m benchmarks.exploring [FOLDER]`.

Prints plays and seconds until a rate is known to within 0.01 and 0.001, by agent, number of required tools and law, and
how many sampled episodes an explored estimate is worth at the same number of plays. Draws the bracket of one agent
beside the interval of as many sampled episodes into a folder, if one is named.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from resilisim.envs.session import Session
from resilisim.exploration import Exploration, explore
from resilisim.simulator import Law, RateLimit
from resilisim.statistics.estimates import clopper_pearson
from resilisim.tasks import Task
from resilisim.tasks.benchmark import benchmark_tasks
from resilisim.workflows import parse_plan

WIDTHS = (0.01, 0.001)
MOST_PLAYS = 3_000
PLAYS = 200  # at which the estimate is held against as many sampled episodes
SIZES = (2, 4, 6)  # required tools
TASKS_OF_EACH_SIZE = 3
LAWS: Mapping[str, Any] = {
    "benchmark": {},
    "rate limit of 3 in 4 turns": {"law": Law(rate_limit=RateLimit(3, 4, "all"))},
}


def gives_up(session: Session) -> str | None:
    """Follow the plan, and stop at the first call that fails."""
    for name in parse_plan(session.prompt):
        if not session.call(name).ok:
            return None
    return "done"


# By name: what plays, and its prompt.
AGENTS: Mapping[str, tuple[Mapping[str, Any], str]] = {
    "plan-follower": ({"policies": "plan-follower"}, "optimal"),
    "repairing-follower": ({"policies": "repairing-follower"}, "flawed"),
    "gives up at the first failure": ({"agents": ("benchmarks.exploring:gives_up",)}, "optimal"),
    "exact-optimum": ({"policies": "exact-optimum"}, "optimal"),
}


class Cost(NamedTuple):
    """What exploring an agent on some tasks took.

    Attributes:
        plays: Of each task.
        seconds: Of processor time, for all.
        exact: How many of the rates are exact.
        narrow: How many are known to within the width.
    """

    plays: Sequence[int]
    seconds: float
    exact: int
    narrow: int


def tasks_by_size() -> dict[int, list[Task]]:
    """Return the first tasks of the benchmark that require each number of tools."""
    return {
        size: [task for task in benchmark_tasks() if len(task.required_tools) == size][:TASKS_OF_EACH_SIZE]
        for size in SIZES
    }


def explored(agent: str, tasks: Sequence[Task], law: str, plays: int, width: float) -> tuple[Exploration, float]:
    """Explore an agent; return what was found, and the processor time that it took."""
    who, prompt = AGENTS[agent]
    begun = time.process_time()
    found = explore(**who, tasks=list(tasks), prompts=prompt, plays=plays, width=width, progress=False, **LAWS[law])
    return found, time.process_time() - begun


def cost(agent: str, tasks: Sequence[Task], law: str, width: float) -> Cost:
    """Return what it takes to know the rates to within a width."""
    found, seconds = explored(agent, tasks, law, MOST_PLAYS, width)
    plays = [row.plays for row in found.rows]
    narrow = sum(row.high - row.low <= width for row in found.rows)
    return Cost(plays, seconds, sum(row.is_exact for row in found.rows), narrow)


def worth(agent: str, tasks: Sequence[Task], law: str) -> tuple[float, float]:
    """Return the mean squared error of rates estimated with PLAYS plays, explored and sampled.

    What is sampled has the variance p (1 - p) / PLAYS; p is the rate, as far as MOST_PLAYS plays tell it.
    """
    rates = [row.estimate for row in explored(agent, tasks, law, MOST_PLAYS, 1e-4)[0].rows]
    found = [row.estimate for row in explored(agent, tasks, law, PLAYS, 0.0)[0].rows]
    squared = statistics.mean((estimate - rate) ** 2 for estimate, rate in zip(found, rates, strict=True))
    return squared, statistics.mean(rate * (1.0 - rate) / PLAYS for rate in rates)


def rows() -> Iterator[str]:
    """Yield the tables in Markdown."""
    yield "| agent | law | tools | " + " | ".join(f"plays to {width} | s a task" for width in WIDTHS) + " |"
    yield "|" + "---|" * (3 + 2 * len(WIDTHS))
    sizes = tasks_by_size()
    for agent in AGENTS:
        for law in LAWS:
            for size, tasks in sizes.items():
                cells = []
                for width in WIDTHS:
                    taken = cost(agent, tasks, law, width)
                    reached = "" if taken.narrow == len(tasks) else f"; {taken.narrow} of {len(tasks)} reached"
                    cells += [
                        f"{statistics.median(taken.plays):,.0f} (at most {max(taken.plays):,}{reached})",
                        f"{taken.seconds / len(tasks):.2f}",
                    ]
                yield f"| {agent} | {law} | {size} | " + " | ".join(cells) + " |"
    yield ""
    yield f"| agent | law | error with {PLAYS} plays, explored | as many sampled | sampled episodes that it is worth |"
    yield "|" + "---|" * 5
    every = [task for tasks in sizes.values() for task in tasks]
    for agent in AGENTS:
        for law in LAWS:
            squared, sampled = worth(agent, every, law)
            times = f"{PLAYS * sampled / squared:,.0f}" if squared > 1e-18 else "exact"
            yield f"| {agent} | {law} | {100 * squared**0.5:.3f} points | {100 * sampled**0.5:.2f} points | {times} |"


def plot(target: Path, task: Task) -> None:
    """Draw the bracket of the plan follower against plays, and the interval of as many sampled episodes."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    plays = (4, 8, 16, 32, 64, 128, 256, 512, 1024)
    found = [explored("plan-follower", [task], "benchmark", number, 0.0)[0].rows[0] for number in plays]
    rate = explored("plan-follower", [task], "benchmark", MOST_PLAYS, 0.0)[0].rows[0].estimate
    sampled = [clopper_pearson(rate * number, float(number)) for number in plays]
    mpl.rcParams["svg.hashsalt"] = "resilisim"
    figure = Figure(figsize=(7.0, 3.6), layout="constrained")
    axes = figure.subplots()
    for ends, alpha, label in (
        (sampled, 0.25, "95% interval of as many sampled episodes"),
        ([(row.low, row.high) for row in found], 0.7, "certain bracket"),
    ):
        axes.fill_between(plays, [low for low, _ in ends], [high for _, high in ends], alpha=alpha, label=label)
    axes.axhline(rate, color="black", linewidth=0.8, label=f"the rate, {100 * rate:.4f}%")
    axes.set(xscale="log", xlabel="plays", ylabel="success rate", xticks=plays, xticklabels=map(str, plays))
    axes.legend(loc="lower right", fontsize="small")
    figure.savefig(target, metadata={"Date": None})


def main() -> None:
    """Measure, print the tables, and draw the picture into a folder if one is given."""
    for line in rows():
        print(line, flush=True)
    if sys.argv[1:]:
        plot(Path(sys.argv[1]) / "exploring.svg", tasks_by_size()[4][0])


if __name__ == "__main__":
    main()
