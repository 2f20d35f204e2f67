"""What a report of 10,000 episodes takes: seconds to build, bytes, seconds until a browser shows its episodes."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from benchmarks.browser import find_chromium, opening_seconds
from benchmarks.measurement import Measurement, column, in_fresh_process, repeated

TARGET_SECONDS = 10.0
TARGET_MEGABYTES = 20.0
TARGET_OPENING = 2.0
RUNS = 3

# The main guard is needed because the workers import this code again.
_EVALUATE = """
import json
from resilisim.evaluation import evaluate
from resilisim.tasks.benchmark import benchmark_tasks
from resilisim.tasks.sources import sample_tasks

if __name__ == "__main__":
    policies = ["random", "plan-follower", "repairing-follower", "exact-optimum"]
    tasks = sample_tasks(benchmark_tasks(), 278)
    result = evaluate(
        policies, tasks, ["baseline", "optimal", "flawed"], 3, out={folder!r}, workers=2, progress=False
    )
    print(json.dumps({{"number": result.num_episodes}}))
"""

_BUILD = """
import json, resource, time
from resilisim.evaluation.report import write_report

start, used = time.perf_counter(), time.process_time()
path = write_report({folder!r})
seconds, cpu = time.perf_counter() - start, time.process_time() - used
memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
size = path.stat().st_size / 1e6
print(json.dumps({{"seconds": seconds, "cpu": cpu, "megabytes": size, "memory": memory}}))
"""


def measure(long: bool) -> list[Measurement]:
    """Measure the report of four scripted policies under three prompt types, in fresh processes and fresh browsers."""
    with tempfile.TemporaryDirectory() as place:
        folder = str(Path(place) / "run")
        number = in_fresh_process(_EVALUATE.format(folder=folder))["number"]
        built = repeated(_BUILD.format(folder=folder), RUNS)
        cpu, memory = min(column(built, "cpu")), max(column(built, "memory"))
        found = [
            Measurement(
                f"report of {number:,} episodes built, all of them in its viewer",
                "s",
                column(built, "seconds"),
                TARGET_SECONDS,
                note=f"one process, reading included; {cpu:.1f} s of CPU at best, at most {memory:,.0f} MB of memory",
            ),
            Measurement("its size", "MB", column(built, "megabytes")[:1], TARGET_MEGABYTES),
        ]
        browser = find_chromium()
        if browser is None:
            print("no Chromium here: how long the report takes to open was not measured", file=sys.stderr)
            return found
        opened = [opening_seconds(Path(folder) / "report.html", browser) for _ in range(RUNS)]
    parsed, ready = (f"{min(one[name] for one in opened):.2f} s" for name in ("parsed", "ready"))
    painted = [one["painted"] for one in opened]
    note = f"a fresh browser each time; at best the file was parsed after {parsed}, the list stood after {ready}"
    return [*found, Measurement("until a browser shows the list of episodes", "s", painted, TARGET_OPENING, note=note)]
