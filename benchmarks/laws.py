"""V* against the strength of each part of a law, and what solving costs.

`python -m benchmarks.laws` prints both tables and draws docs/images/failure_models.svg.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.measurement import REPOSITORY
from resilisim.simulator import (
    Broken,
    Corrupt,
    Drift,
    Duration,
    ErrorKinds,
    Latency,
    Law,
    Outage,
    RateLimit,
    build_problem,
    start_state,
)
from resilisim.simulator.exact import plan_following, solve, solve_reachable
from resilisim.tool_library import default_library

# Of the specification's references, and one list of the longest kind.
SHORT = ("file_operations_reader", "data_processing_transformer", "file_operations_writer")
LONG = (
    "network_fetcher",
    "data_processing_parser",
    "network_validator",
    "data_processing_transformer",
    "network_poster",
)
LONGEST = (*LONG[:4], "data_processing_aggregator", "computation_analyzer", "network_poster")
SHARES = (0.0, 0.1, 0.2, 0.3, 0.4)
EQUIVALENTS = {"file_operations_reader": ("network_fetcher",), "file_operations_writer": ("network_router",)}

PARTS: dict[str, tuple[str, Sequence[float], Callable[[float], Law]]] = {
    "rate_limit": (
        "calls of a tool that go through in any 4 messages",
        (1, 2, 3, 4),
        lambda strength: Law(rate_limit=RateLimit(int(strength), 4)),
    ),
    "outage": ("chance that a category goes down (ends with 1/3)", SHARES, lambda s: Law(outage=Outage(s, 1 / 3))),
    "broken": ("chance that a tool is broken", SHARES, lambda s: Law(broken=Broken(s))),
    "broken, with equivalents": (
        "chance that a tool is broken",
        SHARES,
        lambda s: Law(broken=Broken(s), equivalents=EQUIVALENTS),
    ),
    "corrupt": ("chance that an output is corrupt and shows it", SHARES, lambda s: Law(corrupt=Corrupt(s))),
    "corrupt, only validators tell": (
        "chance that an output is corrupt",
        SHARES,
        lambda s: Law(corrupt=Corrupt(s, "validators")),
    ),
    "drift": ("loss of the base with each message", (0, 0.01, 0.02, 0.03, 0.04, 0.05), lambda s: Law(drift=Drift(-s))),
    "error_kinds": ("weight of access failures", (0, 0.5, 1, 2, 4, 8), lambda s: Law(error_kinds=ErrorKinds(access=s))),
    "latency": (
        "chance that a call takes too long",
        SHARES,
        lambda s: Law(latency=Latency(_durations(s), timeout=30.0)),
    ),
}


def _durations(slow: float) -> tuple[Duration, ...]:
    return (Duration(2.0, 1.0 - slow), Duration(60.0, slow)) if slow > 0.0 else (Duration(2.0, 1.0),)


def curve(name: str) -> list[tuple[float, float, float, float]]:
    """Return strength, observing V*, informed V* and the plan followed to the letter, for each strength of a part."""
    found = []
    for strength in PARTS[name][1]:
        problem = build_problem(default_library(), SHORT, PARTS[name][2](strength))
        start = start_state(problem)
        observing = solve_reachable(problem, "observing").value(start)
        informed = solve_reachable(problem, "informed").value(start)
        found.append((float(strength), observing, informed, plan_following(problem)))
    return found


def draw(curves: dict[str, list[tuple[float, float, float, float]]], target: Path) -> None:
    """Write one small chart for each part into one SVG file."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    mpl.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "resilisim", "font.size": 8})
    figure = Figure(figsize=(9.0, 8.0), layout="constrained")
    for place, (name, points) in enumerate(curves.items()):
        axes = figure.add_subplot(3, 3, place + 1)
        strengths = [point[0] for point in points]
        for column, (label, style) in enumerate((("V*, observing", "-"), ("V*, informed", ":"), ("the plan", "--"))):
            axes.plot(strengths, [point[column + 1] for point in points], style, label=label)
        axes.set_title(name)
        axes.set_xlabel(PARTS[name][0])
        axes.set_ylim(0.0, 1.0)
        if place == 0:
            axes.legend()
    target.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(target, metadata={"Date": None})


def main() -> int:
    """Print both tables and draw the figure."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.laws", description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--image", type=Path, default=REPOSITORY / "docs" / "images" / "failure_models.svg")
    chosen = parser.parse_args()
    curves: dict[str, list[tuple[float, float, float, float]]] = {}
    for name in PARTS:
        print(f"\n{name}: {PARTS[name][0]}\n  strength  observing  informed  plan")
        curves[name] = curve(name)
        for strength, observing, informed, plan in curves[name]:
            print(f"  {strength:>8g}  {observing:>9.6f}  {informed:>8.6f}  {plan:.6f}", flush=True)
    draw(curves, chosen.image)
    print("\npart, required tools: states, gap of V*(start), CPU seconds")
    for name, (_, strengths, law) in PARTS.items():
        for required in (SHORT, LONG, LONGEST):
            problem = build_problem(default_library(), required, law(strengths[len(strengths) // 2]))
            started = time.process_time()
            optimum = solve_reachable(problem)
            seconds = time.process_time() - started
            print(
                f"  {name}, {len(required)}: {optimum.num_states:,}, {optimum.start_gap:.1e}, {seconds:.2f}", flush=True
            )
    plain = build_problem(default_library(), SHORT)
    print(f"\nbenchmark law: {solve(plain).value(start_state(plain)):.6f}; wrote {chosen.image}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
