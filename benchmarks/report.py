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
TARGET_KILOBYTES = 3.0
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
from resilisim.reporting import write_report

start, used = time.perf_counter(), time.process_time()
path = write_report({folder!r})
seconds, cpu = time.perf_counter() - start, time.process_time() - used
memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
size = path.stat().st_size / 1e6
print(json.dumps({{"seconds": seconds, "cpu": cpu, "megabytes": size, "memory": memory}}))
"""


# Two agents that ask a rule-based model which gives reasons for everything it does.
_TALK = """
import base64, json
from resilisim.evaluation import evaluate, read_records
from resilisim.evaluation.episode.texts import FORMAT
from resilisim.tasks.benchmark import benchmark_tasks
from resilisim.tasks.sources import sample_tasks

if __name__ == "__main__":
    agents = ["tests.doubles.talkers:react", "tests.doubles.talkers:direct"]
    tasks = sample_tasks(benchmark_tasks(), 278)
    result = evaluate(agents, tasks, ["optimal", "flawed"], 9, out={folder!r}, workers=2, progress=False)
    sizes = [
        len(base64.b64decode(record["texts"][len(FORMAT):])) for record in read_records({folder!r})
        if len(record["steps"]) >= 10
    ]
    print(json.dumps({{"number": result.num_episodes, "ten": len(sizes), "bytes": sum(sizes) / len(sizes)}}))
"""
WORDS = ("reassurance", "rate_limit_error", "nobody says this")  # some in many episodes, some in none


def measure(long: bool) -> list[Measurement]:
    """Measure the report of four scripted policies under three prompt types, in fresh processes and fresh browsers.

    With `long` also that of two LLM agents, whose records hold all that was said.
    """
    found: list[Measurement] = []
    for script in (_EVALUATE, *([_TALK] if long else [])):
        with tempfile.TemporaryDirectory() as place:
            folder = str(Path(place) / "run")
            played = in_fresh_process(script.format(folder=folder))
            if "bytes" in played:
                name = (
                    f"texts of {played['ten']:,} episodes of ten and eleven turns of two LLM agents, packed, for each"
                )
                found.append(Measurement(name, "kB", [played["bytes"] / 1e3], TARGET_KILOBYTES))
            who = "LLM agents with all that was said" if "bytes" in played else "scripted policies"
            found += _report_of(folder, played["number"], who)
    return found


def _report_of(folder: str, number: int, who: str) -> list[Measurement]:
    built = repeated(_BUILD.format(folder=folder), RUNS)
    cpu, memory = min(column(built, "cpu")), max(column(built, "memory"))
    found = [
        Measurement(
            f"report of {number:,} episodes of {who} built, all of them in its viewer",
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
    opened = [opening_seconds(Path(folder) / "report.html", browser, WORDS) for _ in range(RUNS)]
    parsed, ready = (f"{min(one[name] for one in opened):.2f} s" for name in ("parsed", "ready"))
    note = f"a fresh browser each time; at best the file was parsed after {parsed}, the list stood after {ready}"
    painted = [one["painted"] for one in opened]
    searched = [one[word] for one in opened for word in WORDS]
    return [
        *found,
        Measurement("until a browser shows the list of episodes", "s", painted, TARGET_OPENING, note=note),
        Measurement("a word looked for in all that was said", "s", searched, note=", ".join(WORDS)),
    ]
