"""`python -m tests.kernels`: compile what most tests need, before several processes would each compile it for itself.

What is compiled is kept beside the sources. With the same sources and versions as last time nothing is done.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from hashlib import blake2b
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
DONE = ROOT / ".pytest_cache" / "resilisim" / "kernels"  # holds the state of the sources that were compiled last


def steps() -> None:
    """Compile steps and rewards of Workflow-v0, for libraries of up to 32 tools."""
    from resilisim.tasks.benchmark import benchmark_tasks

    _step({"tasks": benchmark_tasks()[:2], "reward": "advantage"})


def large_steps() -> None:
    """Compile steps for larger libraries and longer episodes."""
    from tests.envs.workflow.cases import LARGE, LARGE_TASKS, LARGE_TURNS

    _step({"tasks": LARGE_TASKS, "library": LARGE, "max_turns": LARGE_TURNS, "similarity": None})


def solvers() -> None:
    """Compile the exact optimum of tables and searches, and plans that are followed."""
    from resilisim.simulator import EndRules, build_problem, load_law, start_state
    from resilisim.simulator.exact import bound, solve
    from resilisim.simulator.exact.optimum import SearchedOptimum
    from resilisim.simulator.exact.plan_following import best_limits
    from resilisim.simulator.exact.search import Search
    from resilisim.tool_library import default_library
    from tests.simulator.brute_force import small_library

    library, required = default_library(), ["network_fetcher", "data_processing_parser", "network_validator"]
    solve(build_problem(library, required[:1], load_law("rate-limits"), EndRules(max_turns=4)))
    bound(required, clairvoyant_seeds=1)
    problem = build_problem(library, required)
    best_limits(problem, [library.index(name) for name in required])
    # On one level, and on two where no other tool can break a row of failures.
    for searched in (problem, build_problem(small_library({"a": [], "b": ["a"]}), ["b"])):
        search = Search(searched)
        optimum, state = SearchedOptimum(searched, 0.0, search.breakers, search), start_state(searched)
        optimum.action_value(state, optimum.best_action(state))


def _step(options: dict[str, Any]) -> None:
    from resilisim.envs.workflow import WorkflowEnv, WorkflowVectorEnv

    envs = WorkflowVectorEnv(2, autoreset_mode="SAME_STEP", **options)
    envs.reset(seed=0)
    envs.step(envs.action_masks().argmax(axis=1))
    env = WorkflowEnv(**options)
    env.reset(seed=0)
    env.set_patterns({})


JOBS: dict[str, Callable[[], None]] = {"steps": steps, "solvers": solvers, "large-steps": large_steps}


def state_of_sources() -> str:
    """Return a hash of the files that compiled code can come from, of this one, and of what compiles them."""
    folder = ROOT / "resilisim"
    files = [folder / "seeding.py", *folder.glob("simulator/**/*.py"), *folder.glob("envs/workflow/**/*.py")]
    state = blake2b(repr((version("numba"), version("numpy"), platform.python_version())).encode())
    for path in sorted([*files, Path(__file__)]):
        state.update(path.read_bytes())
    return state.hexdigest()


def _compile(name: str) -> tuple[str, float]:
    begun = time.monotonic()
    subprocess.run([sys.executable, "-m", "tests.kernels", name], cwd=ROOT, check=True)
    return name, time.monotonic() - begun


def main() -> None:
    """Compile one of JOBS, or all that have to be, several at once."""
    if len(sys.argv) > 1:
        JOBS[sys.argv[1]]()
        return
    state = state_of_sources()
    if DONE.exists() and DONE.read_text() == state:
        return
    print("compiling once what the tests need (about two minutes on two cores)", flush=True)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for name, seconds in pool.map(_compile, JOBS):
            print(f"  {name}: {seconds:.0f} s", flush=True)
    DONE.parent.mkdir(parents=True, exist_ok=True)
    DONE.write_text(state)


if __name__ == "__main__":
    main()
