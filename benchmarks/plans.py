"""What following plans to the letter is worth, exactly, for all 5,040 tasks."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import numpy as np

from benchmarks.measurement import Measurement, column, repeated
from resilisim.envs import ConversationEnv
from resilisim.errors import CheckFailed
from resilisim.policies.ppo.checkpoint import LoadedPolicy, load_checkpoint
from resilisim.policies.ppo.policy import Mirror, all_success_calls
from resilisim.simulator import Problem, build_problem
from resilisim.simulator.exact import obey_plan
from resilisim.simulator.exact.optimum import start_optimum
from resilisim.simulator.exact.plan_following import best_limits
from resilisim.statistics.estimates import FloatArray
from resilisim.tasks import Task
from resilisim.tasks.benchmark import benchmark_tasks
from resilisim.tasks.split import split_of
from resilisim.tool_library import default_library
from resilisim.workflows import ExactPlanner, Planner
from resilisim.workflows.plan_value import CostCalculator, follow_steps

TARGET_MEAN, TARGET_WORST = 99.0, 93.0  # percent of V*
TARGET_REGRET = 1.5  # percent of V*, on the test split
TARGET_SECONDS = 60.0
QUANTILES = (0.01, 0.05, 0.25, 0.5, 0.75)
LIBRARY = default_library()
RUNS = 3

_PLAN = """
import json, time
from resilisim.tasks.benchmark import benchmark_tasks
from resilisim.workflows import ExactPlanner

tasks = list({task.required_tools: task for task in benchmark_tasks()}.values())
planner = ExactPlanner()
started = time.perf_counter()
for task in tasks:
    planner.plan(task)
print(json.dumps({"seconds": time.perf_counter() - started, "lists": len(tasks)}))
"""


def measure(long: bool) -> list[Measurement]:
    """Value the plans of every planner, and flawed ones, and time planning."""
    tasks = benchmark_tasks()
    problems = [build_problem(LIBRARY, task.required_tools) for task in tasks]
    optimum = np.array([start_optimum(problem) for problem in problems])
    path, limited = (_followed(ExactPlanner(limits=limits), tasks) for limits in (False, True))
    policy_path, policy_limited = _followed_policy(load_checkpoint("benchmark"), tasks, problems)
    planned = repeated(_PLAN, RUNS if long else 1)
    return [
        *_shares("exact-path", path, optimum),
        *_shares("exact", limited, optimum, TARGET_MEAN, TARGET_WORST),
        *_shares("policy:benchmark, its path without limits", policy_path, optimum),
        *_shares("policy:benchmark", policy_limited, optimum),
        *(_held_out(name, found, optimum, tasks) for name, found in (("exact-path", path), ("exact", limited))),
        *_flawed(tasks, problems, optimum),
        Measurement(
            f"exact plans of {planned[0]['lists']:,} required lists, one process",
            "s",
            column(planned, "seconds"),
            TARGET_SECONDS,
            note="solving the tasks and compiling the kernels, or loading them, included",
        ),
    ]


def _followed(planner: Planner, tasks: Sequence[Task]) -> FloatArray:
    """Return the value of following each task's plan; shape (num_tasks,)."""
    costs = CostCalculator()
    return np.array([costs.costs(task.required_tools, planner.plan(task).steps).obey for task in tasks])


def _followed_policy(
    loaded: LoadedPolicy, tasks: Sequence[Task], problems: Sequence[Problem]
) -> tuple[FloatArray, FloatArray]:
    """Return the same for a trained policy's path as it stands, and with limits (`PolicyPlanner`)."""
    found, mirror = [], Mirror(loaded, tasks, LIBRARY, problems[0].law, problems[0].rules)
    for task, problem in zip(tasks, problems, strict=True):
        calls = all_success_calls(mirror, task, problem)
        tools = [options[0].tool for options in calls]
        found.append((obey_plan(problem, tools).success, best_limits(problem, tools).success))
    path, limited = np.array(found).T
    return path, limited


def _shares(
    name: str,
    found: FloatArray,
    optimum: FloatArray,
    target_mean: float | None = None,
    target_worst: float | None = None,
) -> Iterator[Measurement]:
    share = 100.0 * found / optimum
    quantiles = " · ".join(f"{quantile:.1f}" for quantile in np.quantile(share, QUANTILES))
    yield Measurement(
        f"{name}: mean obey / mean V*",
        "%",
        [100.0 * float(found.mean() / optimum.mean())],
        target_mean,
        "higher",
        note=f"obey {found.mean():.4f}, V* {optimum.mean():.4f}; of V* by task, quantiles 1 · 5 · 25 · 50 · 75%: "
        f"{quantiles}%; {100.0 * float((share >= 99.0).mean()):.0f}% of the tasks within 1%",
    )
    yield Measurement(f"{name}: worst task, obey / V*", "%", [float(share.min())], target_worst, "higher")


def _held_out(planner: str, found: FloatArray, optimum: FloatArray, tasks: Sequence[Task]) -> Measurement:
    """Return what following a planner's plans gives away on the test split."""
    held_out = np.array([split_of(task.required_tools) == "test" for task in tasks])
    success, best = float(found[held_out].mean()), float(optimum[held_out].mean())
    return Measurement(
        f"test split, planner {planner}: regret of following to the letter / V*",
        "%",
        [100.0 * (1.0 - success / best)],
        TARGET_REGRET if planner == "exact" else None,
        note=f"{held_out.sum()} tasks: success {success:.4f}, V* {best:.4f}",
    )


def _flawed(tasks: Sequence[Task], problems: Sequence[Problem], optimum: FloatArray) -> Iterator[Measurement]:
    """Value the plans in the prompts `flawed` of all tasks, parameters checked as they are there."""
    env = ConversationEnv()
    worth: dict[str, list[tuple[float, float]]] = {}
    for task, problem, best in zip(tasks, problems, optimum, strict=True):
        prompt = env.prompt(task, "flawed")
        if prompt.workflow is None or prompt.flaw is None:
            raise CheckFailed(f"the prompt of {task.instance_id} holds no flawed plan")
        obeyed = follow_steps(problem, prompt.workflow.steps, env.settings.parameters).success
        worth.setdefault(str(prompt.flaw["type"]), []).append((obeyed, float(best)))
    every = list(itertools.chain.from_iterable(worth.values()))
    for flaw, pairs in [*sorted(worth.items()), ("all", every)]:
        success, best = (float(column) for column in np.array(pairs).mean(axis=0))
        yield Measurement(
            f"prompt flawed, {flaw}: obey / V*",
            "%",
            [100.0 * success / best],
            note=f"{len(pairs):,} tasks: obey {success:.4f}, V* {best:.4f}",
        )
