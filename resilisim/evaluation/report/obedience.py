"""What obeying each flawed plan of a run brings, computed exactly: the floor beside the ceiling.

A flawed plan is not in the records, only what was done to it, so it is made again from its task: by the planner of the
run, with the flaw that the record names. That needs the task itself, which a folder of results has for tasks of the
benchmark only.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from resilisim.errors import ResiliSimError
from resilisim.evaluation.report.facts import RunFacts
from resilisim.simulator.law import BenchmarkLaw, EndRules
from resilisim.simulator.problem import build_problem
from resilisim.statistics import Estimate, clustered_mean
from resilisim.tasks import Task
from resilisim.tool_library import default_library
from resilisim.workflows.flaws import FlawedWorkflow, Perturber
from resilisim.workflows.plan_value import follow_steps
from resilisim.workflows.planner import ExactPlanner

MOST_PLANS = 1000  # made again for one report, which takes two seconds; more are thinned out evenly
EXACT_PLANNERS = ("auto", "exact", "exact-path")  # of the benchmark's tasks, which are all solved exactly

# Number of a task in the run's sums, flaw type, severity, method.
FlawedPlan = tuple[int, str, str, str]


@dataclass(frozen=True, slots=True)
class FlawCosts:
    """Exact chances of obeying flawed plans and of not believing them.

    Attributes:
        deviations: V* of the task of each flawed plan.
        obediences: Chance of full success of an agent that does the plan to the letter; empty where it is not known.
        notes: How they came about, or why there are none.
    """

    deviations: Mapping[FlawedPlan, float] = field(repr=False)
    obediences: Mapping[FlawedPlan, float] = field(repr=False)
    notes: tuple[str, ...]

    @property
    def is_known(self) -> bool:
        """Whether it is known what obeying brings."""
        return bool(self.obediences)

    def obey(self, key: Sequence[str]) -> Estimate:
        """Return the mean chance of obeying over the plans with a flaw, severity and (if given) method."""
        return _mean(self.obediences, key)

    def deviate(self, key: Sequence[str]) -> Estimate:
        """Return the mean V* over the plans with a flaw, severity and (if given) method."""
        return _mean(self.deviations, key)


def flaw_costs(facts: RunFacts, most_plans: int = MOST_PLANS) -> FlawCosts:
    """Return the costs of the flawed plans of a run.

    Args:
        facts: The run's facts.
        most_plans: Plans that are made again at most.
    """
    deviations = _deviations(facts)
    environment = facts.manifest["arguments"].get("environment", {})
    problem = _why_not(facts, environment)
    if problem is not None:
        return FlawCosts(deviations, {}, (f"What obeying the plans would bring is not known here: {problem}.",))
    chosen = _thinned(facts, sorted(deviations), most_plans)
    try:
        computed = _obediences(facts, chosen, environment)
    except ResiliSimError as error:
        return FlawCosts(deviations, {}, (f"What obeying the plans would bring is not known here: {error}.",))
    mode = environment.get("parameters", "lenient")
    meaning = (
        "obey: the flawed plan followed to the letter, repeating each step until it succeeds or reaches its limit, "
        f"then completion signalled, with parameters of calls checked as in this run ({mode}); deviate: V*, without "
        "believing the plan."
    )
    notes = [meaning]
    if len(chosen) < len(deviations):
        notes.append(f"obey is computed for {len(chosen):,} of the {len(deviations):,} flawed plans, evenly spread.")
    return FlawCosts(deviations, computed, tuple(notes))


def _deviations(facts: RunFacts) -> dict[FlawedPlan, float]:
    num_tasks = len(facts.sums.tasks)
    found: dict[FlawedPlan, float] = {}
    for (_, flaw, severity, method), group in facts.breakdown.flaws.items():
        count, optimum = group.count.to_array(num_tasks), group.optimum.to_array(num_tasks)
        for task in np.flatnonzero(count).tolist():
            found[task, flaw, severity, method] = float(optimum[task] / count[task])
    return found


def _why_not(facts: RunFacts, environment: Mapping[str, object]) -> str | None:
    """Say in a few words why the plans of a run cannot be made again; None if they can."""
    if facts.manifest["arguments"].get("library") != default_library().content_hash:
        return "the run has a tool library of its own"
    if environment.get("planner") not in EXACT_PLANNERS:
        return "the plans are not by the exact planner"
    from resilisim.tasks.benchmark import benchmark_tasks  # half a second, for runs with flawed prompts only

    known = {task.instance_id for task in benchmark_tasks()}
    if not all(task.instance_id in known for task in facts.sums.tasks):
        return "not all of its tasks are the benchmark's"
    return None


def _thinned(facts: RunFacts, plans: Sequence[FlawedPlan], most: int) -> list[FlawedPlan]:
    """Return every n-th plan of each flaw, severity and method, by the ids of their tasks."""
    every = math.ceil(len(plans) / most) if plans else 1
    ordered = sorted(plans, key=lambda plan: (plan[1:], facts.sums.tasks[plan[0]].instance_id))
    places: dict[tuple[str, ...], int] = {}
    chosen = []
    for plan in ordered:
        place = places.get(plan[1:], 0)
        places[plan[1:]] = place + 1
        if place % every == 0:
            chosen.append(plan)
    return chosen


def _obediences(
    facts: RunFacts, plans: Sequence[FlawedPlan], environment: Mapping[str, float | str]
) -> dict[FlawedPlan, float]:
    from resilisim.tasks.benchmark import find_task, texts_revision  # see _why_not

    library = default_library()
    law = BenchmarkLaw(**{name: float(environment[name]) for name in ("base", "not_executed", "failed", "history")})
    names = ("max_turns", "max_consecutive_failures", "loop_length")
    rules = EndRules(**{name: int(environment[name]) for name in names})
    mode = str(environment["parameters"])
    # Runs of the first release show the path of the optimum under every one of these names.
    limits = environment["planner"] != "exact-path" and texts_revision(facts.manifest["arguments"]) > 1
    planner, perturber = ExactPlanner(library, law, rules, limits=limits), Perturber(library, rules)
    found: dict[FlawedPlan, float] = {}
    # By task, as planner and perturber remember the last one.
    for plan in sorted(plans):
        number, flaw, severity, method = plan
        task: Task = find_task(facts.sums.tasks[number].instance_id)
        flawed = perturber.perturb(planner.plan(task), task.required_tools, flaw, severity, method)
        if not isinstance(flawed, FlawedWorkflow):
            continue
        problem = build_problem(library, task.required_tools, law, rules)
        found[plan] = follow_steps(problem, flawed.workflow.steps, mode).success
    return found


def _mean(values: Mapping[FlawedPlan, float], key: Sequence[str]) -> Estimate:
    """Return the mean over plans of a kind, with the task as the unit."""
    sums: dict[int, list[float]] = {}
    for (task, *names), value in values.items():
        if tuple(names[: len(key)]) == tuple(key):
            sums.setdefault(task, []).append(value)
    estimate = clustered_mean([math.fsum(own) for own in sums.values()], [float(len(own)) for own in sums.values()])
    if math.isnan(estimate.low):
        return estimate
    low, high = max(estimate.low, 0.0), min(estimate.high, 1.0)
    return Estimate(estimate.value, estimate.standard_error, low, high, estimate.num_clusters, estimate.num_episodes)
