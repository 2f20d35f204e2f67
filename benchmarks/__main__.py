"""Command line: measure, print the machine and the figures."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict

from benchmarks import (
    agents,
    attribution,
    datasets,
    doors,
    environment,
    evaluation,
    exact,
    law_steps,
    memory,
    own_tools,
    pages,
    plans,
    prompts,
    records,
    report,
    start,
    tasks,
    workflow,
)
from benchmarks.measurement import Benchmark, load_average, this_machine

BENCHMARKS = (
    Benchmark("exact", "references of all tasks by the compiled solver", exact.measure),
    Benchmark("tasks", "generation of the benchmark's tasks", tasks.measure),
    Benchmark("prompts", "prompts of all tasks, and all flawed workflows with their costs", prompts.measure),
    Benchmark("plans", "what plans are worth followed to the letter", plans.measure),
    Benchmark("environment", "tool-call steps a second of Conversation-v0", environment.measure),
    Benchmark("workflow", "steps a second of Workflow-v0, scalar and batched", workflow.measure),
    Benchmark("law-steps", "what a step costs under each part of a law", law_steps.measure),
    Benchmark("import", "import of the package", start.measure),
    Benchmark("evaluation", "episodes a second with records, two workers", evaluation.measure),
    Benchmark("attribution", "saved episodes attributed again, and the sums of a run", attribution.measure),
    Benchmark("report", "a report of 10,000 episodes: building, size, opening in a browser", report.measure),
    Benchmark("agents", "LLM agents at once against a slow endpoint, their own time and memory", agents.measure),
    Benchmark("own-tools", "functions under a law, the twin of the public APIs", own_tools.measure),
    Benchmark("doors", "sessions beside steps, function agents at once, calls over MCP", doors.measure),
    Benchmark("datasets", "memory and time of exporting 200,000 prompts", datasets.measure),
    Benchmark("pages", "the pages world: generating it, a scripted agent's questions, guessing", pages.measure),
    Benchmark("records", "the records world: a scripted agent's questions", records.measure),
    Benchmark("memory", "memory over 500,000 episodes", memory.measure),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure; return 1 if `--check` was given and a median misses its target, 2 for unusable arguments."""
    names = [benchmark.name for benchmark in BENCHMARKS]
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("benchmarks", nargs="*", metavar="NAME", help=f"which: {', '.join(names)}; all by default")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--long", action="store_true", help="the long form of those that have one (memory)")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a median misses its target")
    given = parser.parse_args(arguments)
    for name in given.benchmarks:
        if name not in names:
            parser.error(f"there is no benchmark {name!r}: expected {', '.join(names)}")
    chosen = [one for one in BENCHMARKS if not given.benchmarks or one.name in given.benchmarks]
    machine = this_machine()
    if not given.json:
        print(machine.to_text())
    found = {}
    for benchmark in chosen:
        print(f"measuring: {benchmark.about} (load average {load_average():.1f})", file=sys.stderr, flush=True)
        found[benchmark.name] = benchmark.measure(given.long)
        if not given.json:
            print(f"\n{benchmark.name}: {benchmark.about}")
            print("\n".join(measurement.to_text() for measurement in found[benchmark.name]), flush=True)
    if given.json:
        measured = {name: [one.to_mapping() for one in measurements] for name, measurements in found.items()}
        print(json.dumps({"machine": asdict(machine), "measured": measured}, indent=1))
    missed = any(one.reached is False for measurements in found.values() for one in measurements)
    return int(given.check and missed)


if __name__ == "__main__":
    raise SystemExit(main())
