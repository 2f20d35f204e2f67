"""The solved references of all tasks of the benchmark, and what compiling brings."""

from __future__ import annotations

import tempfile

from benchmarks.measurement import Measurement, column, in_fresh_process, repeated

TARGET_SECONDS = 10.0
RUNS, COLD_RUNS = 3, 2

_ALL = """
import json, time
start = time.perf_counter()
from resilisim.simulator import build_problem
from resilisim.simulator.exact.references import solve_all
from resilisim.tasks.benchmark import benchmark_tasks
from resilisim.tool_library import default_library
library, tasks = default_library(), benchmark_tasks()
loaded, cpu = time.perf_counter(), time.process_time()
problems = [build_problem(library, task.required_tools) for task in tasks]
solved = solve_all(problems, threads=2)
answers = [solved[problem] for problem in problems]
print(json.dumps({
    "seconds": time.perf_counter() - loaded, "cpu": time.process_time() - cpu, "loading": loaded - start,
    "tasks": len(answers), "lists": len(solved),
}))
"""

# Lists that plain Python solves in seconds: for each length one whose table is of middling size.
_FEW = """
import json, math, time
from resilisim.simulator import build_problem
from resilisim.simulator.exact.arena import build_arena
from resilisim.simulator.exact.references import solved_references
from resilisim.tasks.benchmark import benchmark_tasks
from resilisim.tool_library import default_library
sizes = {}
for required in dict.fromkeys(task.required_tools for task in benchmark_tasks()):
    problem = build_problem(default_library(), required)
    sizes.setdefault(len(required), []).append((math.prod(build_arena(problem).table_shape), problem))
problems = []
for own in sizes.values():
    own.sort(key=lambda pair: pair[0])
    problems.append(own[len(own) // 2][1])
solved_references(problems[0])
start = time.process_time()
values = [solved_references(problem).optimum for problem in problems]
print(json.dumps({"seconds": time.process_time() - start, "values": values, "lists": len(problems)}))
"""


def measure(long: bool) -> list[Measurement]:
    """Measure the solver."""
    in_fresh_process(_ALL)  # fills the cache of compiled code, if it was empty
    warm = repeated(_ALL, RUNS)
    cold = []
    for _ in range(COLD_RUNS):
        with tempfile.TemporaryDirectory() as folder:
            cold += repeated(_ALL, 1, NUMBA_CACHE_DIR=folder)
    compiled, plain = repeated(_FEW, RUNS), repeated(_FEW, 1, NUMBA_DISABLE_JIT="1")
    worst = max(abs(one - other) for one, other in zip(compiled[0]["values"], plain[0]["values"], strict=True))
    if worst > 1e-12:
        raise AssertionError(f"compiled and plain values differ by {worst:.1e}")
    of = f"{warm[0]['tasks']:,.0f} tasks, {warm[0]['lists']:,.0f} different lists"
    cpu = f"CPU time {min(column(warm, 'cpu')):.1f} to {max(column(warm, 'cpu')):.1f} s"
    return [
        Measurement(
            f"references of {of}, two threads",
            "s",
            column(warm, "seconds"),
            TARGET_SECONDS,
            note=f"compiled code from its cache; {cpu}; loading library and tasks before it took "
            f"{min(column(warm, 'loading')):.1f} s",
        ),
        Measurement(
            "the same, with everything compiled first",
            "s",
            column(cold, "seconds"),
            note="empty cache of compiled code, as after installation",
        ),
        Measurement(
            f"plain Python / compiled, {plain[0]['lists']:.0f} lists",
            "x slower",
            [plain[0]["seconds"] / answer["seconds"] for answer in compiled],
            better="higher",
            note=f"the same functions with NUMBA_DISABLE_JIT=1: {plain[0]['seconds']:.1f} s of CPU time; "
            f"largest difference of their values {worst:.0e}",
        ),
    ]
