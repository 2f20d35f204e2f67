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

# Required lists followed to the letter: by the chain, and by a recursion over states, which says how many results there
# are; then what it takes to list and enter one of them by the law's own functions, compiled.
_FOLLOWED = """
import importlib, json, time
import numba
import numpy as np
from resilisim.simulator import build_problem
from resilisim.simulator.exact.lookahead import OF_THE_TOOL
from resilisim.simulator.exact.reachable import solve_reachable
from resilisim.simulator.problem import start_state
from resilisim.simulator.rulebook.entering import enter_execution
from resilisim.simulator.rulebook.possible_results import RESULT, TICKS, list_results
from resilisim.tasks.benchmark import benchmark_tasks
from resilisim.tool_library import default_library
following = importlib.import_module("resilisim.simulator.exact.plan_following")
problems = [build_problem(default_library(), task.required_tools) for task in benchmark_tasks()[::40]]
numbers = [following._numbers(each, each.required, each.rules.max_turns) for each in problems]
results = 0
branches = following.branches

def counted(*arguments):
    global results
    found = list(branches(*arguments))
    results += len(found)
    return found

@numba.njit
def entered(times, rules, tables, status, counters, parts, hidden, chances, unchecked, listed):
    count = 0
    for _ in range(times):
        for place in range(list_results(rules, rules.place, rules.is_timeless, False, tables, False, status[0],
                                        counters[0], parts[0], hidden[0], 0, 0, chances, unchecked, listed)):
            status[1], counters[1], parts[1], hidden[1] = status[0], counters[0], parts[0], hidden[0]
            enter_execution(rules, tables, status[1], counters[1], parts[1], hidden[1], False, 0,
                            int(listed[place, RESULT]), int(listed[place, TICKS]), 0, 0, 0, OF_THE_TOOL)
            count += 1
    return count

def seconds(work):
    work()
    taken = []
    for _ in range(9):
        begun = time.process_time()
        work()
        taken.append(time.process_time() - begun)
    return min(taken)

by_chain = seconds(lambda: [following.follow(*each, following.MAX_ENTRIES) for each in numbers]) / len(problems)
following.branches = counted
states = [following.follow_states(each, each.required, each.rules.max_turns).success for each in problems]
chain = [following.follow(*each, following.MAX_ENTRIES)[0] for each in numbers]
of_four = next(each for each in problems if len(each.required) == 4)
solved = solve_reachable(of_four).states
solved._enter(start_state(of_four))
frames, times = solved._frames, 20_000
arguments = (solved.stage.rules, solved.stage.tables, frames.status, frames.counters, frames.parts, frames.hidden,
             frames.chances, frames.marks[2], frames.outcomes[0])
count = entered(times, *arguments)
of_a_result = seconds(lambda: entered(times, *arguments)) / count
print(json.dumps({
    "chain": by_chain, "results": results / len(problems), "result": of_a_result,
    "worst": max(abs(one - other) for one, other in zip(states, chain)),
}))
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
    followed = repeated(_FOLLOWED, RUNS)
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
            "a plan that is followed: the law's own functions, compiled, without merging states / the chain",
            "x slower",
            [answer["results"] * answer["result"] / answer["chain"] for answer in followed],
            better="higher",
            note=f"{followed[0]['results']:.0f} results a plan, {1e9 * followed[0]['result']:.0f} ns each; the chain "
            f"takes {1e6 * followed[0]['chain']:.1f} us; largest difference {max(column(followed, 'worst')):.0e}",
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
