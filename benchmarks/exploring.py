"""What computing success rates branch by branch takes and saves: `python -m benchmarks.exploring [TABLE ...] [FOLDER]`.

Prints plays and seconds until a rate is known to within 0.01 and 0.001, by agent, number of required tools and law, and
how many sampled episodes an explored estimate is worth at the same number of plays; states and seconds of policies that
are followed from state to state; and how much less a model is asked whose replies are kept by what was said before
them. Draws the bracket of one agent beside the interval of as many sampled episodes into a folder, if one is named.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from resilisim.chat.types import estimated_tokens
from resilisim.envs.session import Session
from resilisim.exploration import Exploration, explore
from resilisim.simulator import Corrupt, Law, RateLimit
from resilisim.statistics.estimates import clopper_pearson
from resilisim.tasks import Task
from resilisim.tasks.benchmark import benchmark_tasks
from resilisim.workflows import parse_plan
from tests.chat.loopback import Answer, LoopbackServer, Seen, completion
from tests.evaluation.agent_models import endpoint, next_reply

WIDTHS = (0.01, 0.001)
MOST_PLAYS = 3_000
PLAYS = 200  # at which the estimate is held against as many sampled episodes
SIZES = (2, 4, 6)  # required tools
TASKS_OF_EACH_SIZE = 3
LAWS: Mapping[str, Any] = {
    "benchmark": {},
    "rate limit of 3 in 4 turns": {"law": Law(rate_limit=RateLimit(3, 4, "all"))},
}


UNSEEN = "corrupt outputs, told by validators"
WORTH_LAWS: Mapping[str, Any] = {**LAWS, UNSEEN: {"law": Law(corrupt=Corrupt(0.1, "validators"))}}


def gives_up(session: Session) -> str | None:
    """Follow the plan, and stop at the first call that fails."""
    for name in parse_plan(session.prompt):
        if not session.call(name).ok:
            return None
    return "done"


def goes_on(session: Session) -> str | None:
    """Call the tools of the plan, and those that failed once more at the end, as long as there are turns."""
    waiting = list(parse_plan(session.prompt))
    while waiting and session.turns_left > 0:
        name = waiting.pop(0)
        if not session.call(name).ok:
            waiting.append(name)
    return "done"


# By name: what plays, and its prompt.
AGENTS: Mapping[str, tuple[Mapping[str, Any], str]] = {
    "plan-follower": ({"policies": "plan-follower"}, "optimal"),
    "repairing-follower": ({"policies": "repairing-follower"}, "flawed"),
    "gives up at the first failure": ({"agents": ("benchmarks.exploring:gives_up",)}, "optimal"),
    "ignores the order after a failure": ({"agents": ("benchmarks.exploring:goes_on",)}, "optimal"),
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


def explored(
    agent: str, tasks: Sequence[Task], law: str, plays: int, width: float, by_states: bool = False
) -> tuple[Exploration, float]:
    """Explore an agent, branch by branch unless said otherwise; return what was found, and the processor time."""
    who, prompt = AGENTS[agent]
    begun = time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        found = explore(
            **who,
            tasks=list(tasks),
            prompts=prompt,
            plays=plays,
            width=width,
            out=None if by_states else folder,
            progress=False,
            **WORTH_LAWS[law],
        )
    return found, time.process_time() - begun


def cost(agent: str, tasks: Sequence[Task], law: str, width: float) -> Cost:
    """Return what it takes to know the rates to within a width."""
    found, seconds = explored(agent, tasks, law, MOST_PLAYS, width)
    plays = [row.plays for row in found.rows]
    narrow = sum(row.high - row.low <= width for row in found.rows)
    return Cost(plays, seconds, sum(row.is_exact for row in found.rows), narrow)


def worth(agent: str, tasks: Sequence[Task], law: str) -> tuple[float, float, int]:
    """Return the mean squared error of rates estimated with PLAYS plays, explored and sampled, and how many are exact.

    What is sampled has the variance p (1 - p) / PLAYS; p is the rate, exact where states are followed, and else as far
    as MOST_PLAYS plays tell it.
    """
    by_states = "policies" in AGENTS[agent][0]
    rates = [
        row.estimate for row in explored(agent, tasks, law, 10**6 if by_states else MOST_PLAYS, 0.0, by_states)[0].rows
    ]
    rows = explored(agent, tasks, law, PLAYS, 0.0)[0].rows
    squared = statistics.mean((row.estimate - rate) ** 2 for row, rate in zip(rows, rates, strict=True))
    return squared, statistics.mean(rate * (1.0 - rate) / PLAYS for rate in rates), sum(row.is_exact for row in rows)


def rows() -> Iterator[str]:
    """Yield the table of plays and seconds."""
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


def rows_of_worth() -> Iterator[str]:
    """Yield the table of what an estimate with PLAYS plays is worth."""
    yield f"| agent | law | exact | error with {PLAYS} plays, explored | as many sampled | worth in sampled episodes |"
    yield "|" + "---|" * 6
    every = [task for tasks in tasks_by_size().values() for task in tasks]
    for agent in AGENTS:
        for law in WORTH_LAWS:
            squared, sampled, exact = worth(agent, every, law)
            times = f"{PLAYS * sampled / squared:,.0f}" if squared > 1e-18 else "exact"
            errors = f"{100 * squared**0.5:.3f} points | {100 * sampled**0.5:.2f} points"
            yield f"| {agent} | {law} | {exact} of {len(every)} | {errors} | {times} |"


def rows_by_states() -> Iterator[str]:
    """Yield the table of policies that are followed from state to state, until rates are exact."""
    yield "| policy | law | tools | branches to exact | s a task | states to exact | s a task |"
    yield "|" + "---|" * 7
    for agent in ("plan-follower", "repairing-follower", "exact-optimum"):
        for law in LAWS:
            for size, tasks in tasks_by_size().items():
                cells = []
                for by_states in (False, True):
                    explored(agent, tasks[:1], law, 1, 0.0, by_states)  # what is loaded once
                    found, seconds = explored(agent, tasks, law, MOST_PLAYS, 0.0, by_states)
                    reached = sum(row.is_exact for row in found.rows)
                    missing = "" if reached == len(tasks) else f"; {reached} of {len(tasks)} reached"
                    cells += [
                        f"{statistics.median(row.plays for row in found.rows):,.0f}{missing}",
                        f"{seconds / len(tasks):.3f}",
                    ]
                yield f"| {agent} | {law} | {size} | " + " | ".join(cells) + " |"


def rows_of_tokens() -> Iterator[str]:
    """Yield the table of what a model is asked by ReAct: a scripted one behind an endpoint, which counts its words."""
    yield "| tools | plays | calls of the model | asked | prompt tokens | asked | reply tokens | asked |"
    yield "|" + "---|" * 8
    for size, tasks in tasks_by_size().items():
        with LoopbackServer(counted_answer) as server, tempfile.TemporaryDirectory() as folder:
            model = endpoint(server)
            # With more plays than it takes nothing is drawn, so that every play leaves a record.
            found = explore(
                "react",
                list(tasks),
                "optimal",
                plays=MOST_PLAYS,
                width=WIDTHS[0],
                model=model,
                progress=False,
                out=folder,
            )
            calls = [call for record in found.records() for call in record["agent"]["calls"]]
            asked = [answer_usage(seen) for seen in server.requests]
        said = [
            (call["reply"]["usage"]["prompt_tokens"], call["reply"]["usage"]["completion_tokens"]) for call in calls
        ]
        pairs = [(sum(pair[kind] for pair in said), sum(pair[kind] for pair in asked)) for kind in (0, 1)]
        cells = [f"{whole:,} | {part:,} ({part / whole:.1%})" for whole, part in [(len(said), len(asked)), *pairs]]
        yield f"| {size} | {sum(row.plays for row in found.rows):,} | " + " | ".join(cells) + " |"


def answer_usage(seen: Seen) -> tuple[int, int]:
    """Return tokens of a request and its reply, four characters each."""
    contents = [message["content"] for message in seen.body["messages"]]
    return sum(map(estimated_tokens, contents)), estimated_tokens(next_reply(contents[1:]))


def counted_answer(seen: Seen) -> Answer:
    """Answer as a model that follows the plan, with its usage."""
    prompt, reply = answer_usage(seen)
    contents = [message["content"] for message in seen.body["messages"][1:]]
    return completion(next_reply(contents), usage={"prompt_tokens": prompt, "completion_tokens": reply})


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


TABLES: Mapping[str, Callable[[], Iterator[str]]] = {
    "cost": rows,
    "worth": rows_of_worth,
    "states": rows_by_states,
    "tokens": rows_of_tokens,
}


def main() -> None:
    """Print the tables that are named, or all of them, and draw the picture into a folder if one is given."""
    words = sys.argv[1:]
    for name, table in TABLES.items():
        if name in words or not set(words) & TABLES.keys():
            for line in table():
                print(line, flush=True)
            print()
    for folder in [word for word in words if word not in TABLES]:
        plot(Path(folder) / "exploring.svg", tasks_by_size()[4][0])


if __name__ == "__main__":
    main()
