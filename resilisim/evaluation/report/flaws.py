"""Robustness to flawed plans: optimal against flawed prompts, every flaw at every severity, what obeying it brings.

A flawed plan is not in the records, only what was done to it, so it is made again from its task: by the planner of the
run, with the flaw that the record names. That needs the task itself, which a folder of results has for tasks of the
benchmark only.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from resilisim.errors import ResiliSimError, count_of
from resilisim.evaluation.report.charts import RowLabel, legend, series_legend, series_style, upright_symbol
from resilisim.evaluation.report.charts.rows import Mark, Panel, dot_panels
from resilisim.evaluation.report.content import (
    PRIVILEGED_NOTE,
    Block,
    CellLike,
    Fold,
    Paragraph,
    Section,
    Table,
    beside_a_chart,
    plain,
    with_interval,
)
from resilisim.evaluation.report.groups import (
    LEVEL_NAMES,
    Pool,
    PromptPools,
    Rate,
    combination,
    difference,
    mean_of,
    pool,
)
from resilisim.evaluation.report.published import flawed_reference
from resilisim.evaluation.report.results import MEANS_HAVE_NONE, mean_name
from resilisim.evaluation.table.facts import RunFacts
from resilisim.simulator.law import BenchmarkLaw, EndRules
from resilisim.simulator.problem import build_problem
from resilisim.statistics import Estimate, clustered_mean
from resilisim.tool_library import default_library
from resilisim.workflows.flaws import FLAW_METHODS, SEVERITIES, FlawedWorkflow, Perturber
from resilisim.workflows.plan_value import follow_steps
from resilisim.workflows.planner import ExactPlanner

MOST_DRAWN = 6  # policies in one chart
MOST_PLANS = 1000  # made again for one report, which takes two seconds; more are thinned out evenly
EXACT_PLANNERS = ("auto", "exact", "exact-path")  # of the benchmark's tasks, which are all solved exactly
GRID = (
    "Success by flaw and severity, luck taken out, between two exact marks: what following the plan to the letter "
    "brings (obey), and what an agent that does not believe it can still reach (deviate, V*)."
)
OPTIMAL, FLAWED = "optimal", "flawed"

# Flaw type and severity, or those and the method.
Key = tuple[str, ...]
# Number of a task in the run's sums, flaw type, severity, method.
FlawedPlan = tuple[int, str, str, str]


def flaws_section(pools: PromptPools) -> Section | None:
    """Return what flawed plans did to success, or None if no plan was flawed."""
    if FLAWED not in pools.prompts:
        return None
    blocks = _grid(pools)
    drops = drops_table(pools)
    if drops is not None:
        blocks += [Fold("Optimal against flawed plans", [drops]) if blocks else drops, flawed_reference()]
    return Section("flaws", "Flawed plans", blocks)


def drops_table(pools: PromptPools) -> Table | None:
    """Return levels under optimal and flawed prompts and the drop from one to the other; None without both."""
    pairs = {policy: (pools.get(policy, OPTIMAL), pools.get(policy, FLAWED)) for policy in pools.policies}
    both = {policy: (sound, flawed) for policy, (sound, flawed) in pairs.items() if sound and flawed}
    if not both:
        return None
    rows: list[list[CellLike]] = []
    for policy, (sound, flawed) in both.items():
        drops = (difference(sound.success, flawed.success), difference(sound.adjusted, flawed.adjusted))
        rows.append([pools.name(policy), *sound.level_cells, *flawed.level_cells])
        rows[-1] += [with_interval(drop, signed=True) for drop in drops]
    ordinary = [both[policy] for policy in both if not pools.is_privileged(policy)]
    num_starred = len(both) - len(ordinary)
    notes = [PRIVILEGED_NOTE] if num_starred else []
    notes.append(
        "The drop is the difference between two means over the same tasks, seeds and luck; its interval takes a task "
        "as the unit. The luck-adjusted drop estimates the same with less noise."
    )
    if len(pools.facts.table.tasks) < 2:
        notes.append(MEANS_HAVE_NONE)
    if len(ordinary) > 1:
        rows.append([mean_name(len(ordinary), num_starred), *_mean_cells(ordinary)])
    return Table(
        "Optimal against flawed plans in percent of episodes, the drop in points, with 95% intervals clustered by task",
        ("policy", *LEVEL_NAMES * 2, "drop", "luck-adjusted drop"),
        rows,
        groups=(("", 1), (OPTIMAL, 3), (FLAWED, 3), ("", 2)),
        is_stacked=True,
        notes=notes,
        summary_rows=1 if len(ordinary) > 1 else 0,
    )


def _mean_cells(pairs: Sequence[tuple[Pool, Pool]]) -> list[CellLike]:
    cells: list[CellLike] = []
    for side in (0, 1):
        levels = zip(*(pair[side].levels for pair in pairs), strict=True)
        cells += [with_interval(mean_of(rates)) for rates in levels]
    share = 1.0 / len(pairs)
    raw: list[tuple[float, Rate]] = []
    adjusted: list[tuple[float, Rate]] = []
    for sound, flawed in pairs:
        raw += [(share, sound.success), (-share, flawed.success)]
        adjusted += [(share, sound.adjusted), (-share, flawed.adjusted)]
    return [*cells, with_interval(combination(raw), signed=True), with_interval(combination(adjusted), signed=True)]


def _grid(pools: PromptPools) -> list[Block]:
    """Return the chart of flaws and severities with its tables."""
    parts = flaw_pools(pools.facts)
    if not parts:
        return []
    costs = flaw_costs(pools.facts)
    found = [policy for policy in pools.policies if pools.get(policy, FLAWED) is not None]
    drawn = sorted(found, key=pools.is_privileged)[:MOST_DRAWN]
    obey = (upright_symbol("reference"), "obey: following the flawed plan to the letter")
    deviate = (upright_symbol("ceiling"), "deviate: V*, without believing the plan")
    blocks: list[Block] = [
        GRID,
        legend(*series_legend(drawn), *[obey] * costs.is_known, deviate),
        _chart(parts, costs, drawn),
    ]
    if len(drawn) < len(pools.policies):
        hidden = len(pools.policies) - len(drawn)
        blocks.append(Paragraph(f"{count_of(hidden, 'more policy', 'more policies')} in the table only.", "note"))
    blocks.append(beside_a_chart(flaws_table(parts, costs, pools)))
    by_method = flaw_pools(pools.facts, by_method=True)
    if len(by_method) > len(parts):
        blocks.append(Fold("By method of the flaw", [flaws_table(by_method, costs, pools)]))
    return blocks


def _chart(parts: Mapping[tuple[str, Key], Pool], costs: FlawCosts, drawn: Sequence[str]) -> Block:
    cells = sorted({key for _, key in parts}, key=_place)
    flaws = list(dict.fromkeys(flaw for flaw, _ in cells))
    severities = [severity for severity in SEVERITIES if any(key[1] == severity for key in cells)]

    def marks(flaw: str, severity: str) -> list[Mark]:
        found = ((number, policy, parts.get((policy, (flaw, severity)))) for number, policy in enumerate(drawn))
        return [
            Mark(_adjusted(entry), series_style(number), f"{policy}, {plain(flaw)} {severity}, success")
            for number, policy, entry in found
            if entry is not None
        ]

    panels = [
        Panel(
            f"{severity} flaws",
            [marks(flaw, severity) for flaw in flaws],
            [costs.deviate((flaw, severity)).value for flaw in flaws],
            [costs.obey((flaw, severity)).value for flaw in flaws],
            "obey: following the plan to the letter",
        )
        for severity in severities
    ]
    return dot_panels(
        "Success by flaw and severity",
        "One row per flaw, one panel per severity: luck-adjusted success of each policy with its 95% interval, what "
        "following the flawed plan to the letter brings, and V*, what can be reached without believing it.",
        [RowLabel(plain(flaw), "", False, plain(flaw)) for flaw in flaws],
        panels,
    )


def _adjusted(entry: Pool) -> Estimate:
    """Return luck-adjusted success, or raw success where there is none."""
    summary = entry.summary
    return summary.success if math.isnan(summary.luck_adjusted.value) else summary.luck_adjusted


def flaws_table(parts: Mapping[tuple[str, Key], Pool], costs: FlawCosts, pools: PromptPools) -> Table:
    """Return success by flaw and severity (and method), beside the exact chances of obeying and deviating."""
    keys = sorted({key for _, key in parts}, key=_place)
    method = ["method"] if any(len(key) == 3 for key in keys) else []
    rows: list[list[CellLike]] = []
    for key in keys:
        exact = [with_interval(costs.obey(key)), with_interval(costs.deviate(key))]
        names = [plain(name) for name in (key[0], *key[2:], key[1])]
        for policy in pools.policies:
            if (policy, key) not in parts:
                continue
            row = parts[policy, key].summary
            numbers = (f"{row.num_tasks:,}", f"{row.num_episodes:,}")
            rates = (with_interval(row.success), with_interval(row.luck_adjusted))
            rows.append([*names, pools.name(policy), *numbers, *rates, *exact])
    headings = ("flaw", *method, "severity", "policy")
    return Table(
        "Success by flaw and severity, in percent of episodes, with 95% intervals clustered by task; obey and deviate "
        "are exact, and their intervals are over tasks",
        (*headings, "tasks", "episodes", "success", "luck-adjusted", "obey", "deviate (V*)"),
        rows,
        text_columns=len(headings),
        is_stacked=True,
        notes=costs.notes,
    )


def flaw_pools(facts: RunFacts, by_method: bool = False) -> dict[tuple[str, Key], Pool]:
    """Return the episodes under flawed prompts by policy and (flaw, severity), or also by method."""
    parts: dict[tuple[str, Key], list[tuple[str, ...]]] = {}
    for key in facts.table.flaw_keys():
        parts.setdefault((key[0], key[1:] if by_method else key[1:3]), []).append(key)
    return {names: pool(facts.table.flawed(own), FLAWED) for names, own in parts.items()}


def _place(key: Key) -> tuple[int, str, int, str, tuple[str, ...]]:
    flaw, severity = key[0], key[1]
    known = list(FLAW_METHODS)
    place = known.index(flaw) if flaw in known else len(known)
    strength = SEVERITIES.index(severity) if severity in SEVERITIES else len(SEVERITIES)
    return place, flaw, strength, severity, key[2:]


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

    def obey(self, key: Key) -> Estimate:
        """Return the mean chance of obeying over the plans with a flaw, severity and (if given) method."""
        return _mean(self.obediences, key)

    def deviate(self, key: Key) -> Estimate:
        """Return the mean V* over the plans with a flaw, severity and (if given) method."""
        return _mean(self.deviations, key)


def flaw_costs(facts: RunFacts, most_plans: int = MOST_PLANS) -> FlawCosts:
    """Return the costs of the flawed plans of a run, of which at most so many are made again."""
    deviations: dict[FlawedPlan, float] = {}
    for key in facts.table.flaw_keys():
        group = facts.table.flawed([key])
        count, optimum = group.by_task(group.count), group.by_task(group.optimum)
        for task in np.flatnonzero(count).tolist():
            deviations[task, key[1], key[2], key[3]] = float(optimum[task] / count[task])
    environment = facts.manifest["arguments"].get("environment", {})
    chosen = _thinned(facts, sorted(deviations), most_plans)
    problem = _why_not(facts, environment)
    if problem is None:
        try:
            obediences = _obediences(facts, chosen, environment)
        except ResiliSimError as error:
            problem = str(error)
    if problem is not None:
        return FlawCosts(deviations, {}, (f"What obeying the plans would bring is not known here: {problem}.",))
    meaning = (
        "obey: the flawed plan followed to the letter, repeating each step until it succeeds or reaches its limit, "
        "then completion signalled, with parameters of calls checked as in this run "
        f"({environment.get('parameters', 'lenient')}); deviate: V*, without believing the plan."
    )
    notes = [meaning]
    if len(chosen) < len(deviations):
        notes.append(f"obey is computed for {len(chosen):,} of the {len(deviations):,} flawed plans, evenly spread.")
    return FlawCosts(deviations, obediences, tuple(notes))


def _why_not(facts: RunFacts, environment: Mapping[str, object]) -> str | None:
    """Say in a few words why the plans of a run cannot be made again; None if they can."""
    if facts.manifest["arguments"].get("library") != default_library().content_hash:
        return "the run has a tool library of its own"
    if environment.get("planner") not in EXACT_PLANNERS:
        return "the plans are not by the exact planner"
    from resilisim.tasks.benchmark import benchmark_tasks  # half a second, for runs with flawed prompts only

    known = {task.instance_id for task in benchmark_tasks()}
    if not all(task.instance_id in known for task in facts.table.tasks):
        return "not all of its tasks are the benchmark's"
    return None


def _thinned(facts: RunFacts, plans: Sequence[FlawedPlan], most: int) -> list[FlawedPlan]:
    """Return every n-th plan of each flaw, severity and method, by the ids of their tasks."""
    every = math.ceil(len(plans) / most) if plans else 1
    by_flaw: dict[tuple[str, ...], list[FlawedPlan]] = {}
    for plan in sorted(plans, key=lambda plan: facts.table.tasks[plan[0]].instance_id):
        by_flaw.setdefault(plan[1:], []).append(plan)
    return [plan for own in by_flaw.values() for plan in own[::every]]


def _obediences(
    facts: RunFacts, plans: Sequence[FlawedPlan], environment: Mapping[str, float | str]
) -> dict[FlawedPlan, float]:
    from resilisim.tasks.benchmark import find_task, texts_revision  # see _why_not

    library = default_library()
    law = BenchmarkLaw(**{name: float(environment[name]) for name in ("base", "not_executed", "failed", "history")})
    names = ("max_turns", "max_consecutive_failures", "loop_length")
    rules = EndRules(**{name: int(environment[name]) for name in names})
    # Runs of the first release show the path of the optimum under every one of these names.
    limits = environment["planner"] != "exact-path" and texts_revision(facts.manifest["arguments"]) > 1
    planner, perturber = ExactPlanner(library, law, rules, limits=limits), Perturber(library, rules)
    found: dict[FlawedPlan, float] = {}
    # By task, as planner and perturber remember the last one.
    for plan in sorted(plans):
        task = find_task(facts.table.tasks[plan[0]].instance_id)
        flawed = perturber.perturb(planner.plan(task), task.required_tools, *plan[1:])
        if isinstance(flawed, FlawedWorkflow):
            problem = build_problem(library, task.required_tools, law, rules)
            found[plan] = follow_steps(problem, flawed.workflow.steps, str(environment["parameters"])).success
    return found


def _mean(values: Mapping[FlawedPlan, float], key: Key) -> Estimate:
    """Return the mean over plans of a kind, with the task as the unit."""
    sums: dict[int, list[float]] = {}
    for (task, *names), value in values.items():
        if tuple(names[: len(key)]) == key:
            sums.setdefault(task, []).append(value)
    estimate = clustered_mean([math.fsum(own) for own in sums.values()], [float(len(own)) for own in sums.values()])
    if math.isnan(estimate.low):
        return estimate
    return replace(estimate, low=max(estimate.low, 0.0), high=min(estimate.high, 1.0))
