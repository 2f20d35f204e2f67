"""Robustness to flawed plans: optimal against flawed prompts, every flaw at every severity, what obeying it brings.

A flawed plan is not in the records, only what was done to it, so it is made again from its task: by the planner of the
run, with the flaw that the record names. That needs the task itself, which a folder of results has for tasks of the
benchmark only.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from resilisim.envs.settings import EnvironmentSettings
from resilisim.errors import ResiliSimError, count_of
from resilisim.evaluation.robustness.points import OPTIMAL
from resilisim.evaluation.table.facts import RunFacts
from resilisim.reporting.charts import Entry, RowLabel, legend, series_entries, series_style
from resilisim.reporting.charts.rows import Dots, Mark, Panel, dot_panels
from resilisim.reporting.groups import (
    FLAWED_PLANS,
    LEVEL_NAMES,
    Pool,
    PromptPools,
    combination,
    difference,
    mean_of,
    pool,
    published_beside,
)
from resilisim.reporting.page import Block, Fold, Note, Section, beside_a_chart, plain, say
from resilisim.reporting.result_sections import mean_name
from resilisim.statistics import Estimate
from resilisim.statistics.estimates import clustered_mean
from resilisim.tables.table import SIGNED, Column, Table, in_form
from resilisim.tool_library import default_library
from resilisim.workflows.argument_references import texts_of
from resilisim.workflows.flaws import SEVERITIES
from resilisim.workflows.flaws.flaw import STRESSORS
from resilisim.workflows.plan_value import follow_steps
from resilisim.workflows.planner import ExactPlanner
from resilisim.workflows.prompts import FLAWED

_MOST_DRAWN = 6  # policies in one chart
MOST_PLANS = 1000  # made again for one report, which takes two seconds; more are thinned out evenly
EXACT_PLANNERS = ("auto", "exact", "exact-path")  # of the benchmark's tasks, which are all solved exactly

# Flaw type and severity, or those and the method.
Key = tuple[str, ...]
# Number of a task in the run's sums, flaw type, severity, method.
FlawedPlan = tuple[int, str, str, str]


def flaws_section(pools: PromptPools) -> Section | None:
    """Return what flawed plans did to success, or None if no plan was flawed."""
    if FLAWED not in pools.prompts:
        return None
    blocks = list(_grid(pools))
    drops = drops_table(pools)
    if drops is not None:
        blocks.append(Fold("Optimal against flawed plans", [drops]) if blocks else drops)
        blocks += published_beside(pools.facts, FLAWED_PLANS)
    return Section("flaws", "Flawed plans", blocks)


def drops_table(pools: PromptPools) -> Table | None:
    """Return levels under optimal and flawed prompts and the drop from one to the other; None without both."""
    pairs = {policy: (pools.get(policy, OPTIMAL), pools.get(policy, FLAWED)) for policy in pools.policies}
    both = {policy: (sound, flawed) for policy, (sound, flawed) in pairs.items() if sound and flawed}
    if not both:
        return None
    rows: list[list[object]] = []
    for policy, (sound, flawed) in both.items():
        drops = (difference(sound.success, flawed.success), difference(sound.adjusted, flawed.adjusted))
        cells = [in_form(drop, SIGNED) for drop in drops]
        rows.append([pools.name(policy), *sound.level_rates, *flawed.level_rates, *cells])
    ordinary = [both[policy] for policy in pools.ordinary if policy in both]
    num_starred = len(both) - len(ordinary)
    if len(ordinary) > 1:
        rows.append([mean_name(len(ordinary), num_starred), *_mean_cells(ordinary)])
    return Table(
        say("drops_table"),
        ("policy", *LEVEL_NAMES * 2, "drop", "luck-adjusted drop"),
        rows,
        groups=(("", 1), (OPTIMAL, 3), (FLAWED, 3), ("", 2)),
        is_stacked=True,
        notes=[
            *[say("privileged")] * bool(num_starred),
            say("drops"),
            *[say("means_have_no_interval")] * (len(pools.facts.table.tasks) < 2),
        ],
        summary_rows=int(len(ordinary) > 1),
    )


def _mean_cells(pairs: Sequence[tuple[Pool, Pool]]) -> Iterator[object]:
    for side in zip(*pairs, strict=True):
        yield from map(mean_of, zip(*(entry.levels for entry in side), strict=True))
    share = 1.0 / len(pairs)
    for rate in ("success", "adjusted"):
        sound, flawed = ([getattr(entry, rate) for entry in side] for side in zip(*pairs, strict=True))
        signed = [*((share, estimate) for estimate in sound), *((-share, estimate) for estimate in flawed)]
        yield in_form(combination(signed), SIGNED)


def _grid(pools: PromptPools) -> Iterator[Block]:
    """Yield the chart of flaws and severities with its tables."""
    parts = flaw_pools(pools.facts)
    if not parts:
        return
    costs = flaw_costs(pools.facts)
    shown = [policy for policy in pools.policies if pools.get(policy, FLAWED) is not None]
    drawn = sorted(shown, key=pools.is_privileged)[:_MOST_DRAWN]
    yield say("flaws")
    yield legend(
        *series_entries("dot", drawn),
        *[Entry("tick", "reference", "obey: following the flawed plan to the letter")] * bool(costs.obediences),
        Entry("tick", "ceiling", "deviate: V*, without believing the plan"),
    )
    yield _chart(parts, costs, drawn)
    hidden = len(pools.policies) - len(drawn)
    if hidden:
        yield Note(say("in_the_table_only", hidden=count_of(hidden, "more policy", "more policies")))
    yield beside_a_chart(flaws_table(parts, costs, pools))
    by_method = flaw_pools(pools.facts, by_method=True)
    if len(by_method) > len(parts):
        yield Fold("By method of the flaw", [flaws_table(by_method, costs, pools)])


def _chart(parts: Mapping[tuple[str, Key], Pool], costs: FlawCosts, drawn: Sequence[str]) -> Block:
    cells = sorted({key for _, key in parts}, key=_place)
    flaws = list(dict.fromkeys(flaw for flaw, _ in cells))

    def dots(*key: str) -> Dots:
        marks = []
        for number, policy in enumerate(drawn):
            if (policy, key) in parts:
                name = f"{policy}, {plain(key[0])} {key[1]}, success"
                marks.append(Mark(_adjusted(parts[policy, key]), series_style(number), name))
        return Dots(marks, costs.deviate(key).value, costs.obey(key).value)

    panels = [
        Panel(f"{severity} flaws", [dots(flaw, severity) for flaw in flaws])
        for severity in SEVERITIES
        if any(key[1] == severity for key in cells)
    ]
    labels = [RowLabel(plain(flaw), "", False, plain(flaw)) for flaw in flaws]
    return dot_panels("Success by flaw and severity", say("flaws_chart"), labels, panels)


def _adjusted(entry: Pool) -> Estimate:
    """Return luck-adjusted success, or raw success where there is none."""
    summary = entry.summary
    return summary.success if math.isnan(summary.luck_adjusted.value) else summary.luck_adjusted


def flaws_table(parts: Mapping[tuple[str, Key], Pool], costs: FlawCosts, pools: PromptPools) -> Table:
    """Return success by flaw and severity (and method), beside the exact chances of obeying and deviating."""
    rows = [
        (key, pools.name(policy), parts[policy, key].summary)
        for key in sorted({key for _, key in parts}, key=_place)
        for policy in pools.policies
        if (policy, key) in parts
    ]
    methods: list[Column[Any]] = [("method", lambda row: plain(row[0][2]))]
    methods = methods if any(len(key) == 3 for _, key in parts) else []
    return Table.of(
        say("flaws_table"),
        rows,
        [
            ("flaw", lambda row: plain(row[0][0])),
            *methods,
            ("severity", lambda row: plain(row[0][1])),
            ("policy", lambda row: row[1]),
            ("tasks", lambda row: row[2].num_tasks),
            ("episodes", lambda row: row[2].num_episodes),
            ("success", lambda row: row[2].success),
            ("luck-adjusted", lambda row: row[2].luck_adjusted),
            ("obey", lambda row: costs.obey(row[0])),
            ("deviate (V*)", lambda row: costs.deviate(row[0])),
        ],
        text_columns=3 + len(methods),
        is_stacked=True,
        notes=costs.notes,
    )


def flaw_pools(facts: RunFacts, by_method: bool = False) -> dict[tuple[str, Key], Pool]:
    """Return the episodes under flawed prompts by policy and (flaw, severity), or also by method."""
    parts: defaultdict[tuple[str, Key], list[tuple[str, ...]]] = defaultdict(list)
    for key in facts.table.flaw_keys():
        parts[key[0], key[1:] if by_method else key[1:3]].append(key)
    return {names: pool(facts.table.flawed(own), FLAWED) for names, own in parts.items()}


def _place(key: Key) -> tuple[int, str, int, str, Key]:
    """Return what flaws are sorted by: in the order in which they are known, others behind by name."""
    flaw, severity, *method = key
    return [*STRESSORS, flaw].index(flaw), flaw, [*SEVERITIES, severity].index(severity), severity, tuple(method)


@dataclass(frozen=True, slots=True)
class FlawCosts:
    """Exact chances of success under flawed plans: of obeying them (empty where that is not known), and V* without."""

    deviations: Mapping[FlawedPlan, float] = field(repr=False)
    obediences: Mapping[FlawedPlan, float] = field(repr=False)
    notes: tuple[str, ...]  # how they came about, or why there are none

    def obey(self, key: Key) -> Estimate:
        """Return the mean chance of obeying over the plans with a flaw, severity and (if given) method."""
        return _mean(self.obediences, key)

    def deviate(self, key: Key) -> Estimate:
        """Return the mean V* over the plans with a flaw, severity and (if given) method."""
        return _mean(self.deviations, key)


def _mean(values: Mapping[FlawedPlan, float], key: Key) -> Estimate:
    """Return the mean over plans of a kind, with the task as the unit."""
    sums: defaultdict[int, list[float]] = defaultdict(list)
    for (task, *names), value in values.items():
        if tuple(names[: len(key)]) == key:
            sums[task].append(value)
    return clustered_mean([*map(math.fsum, sums.values())], [*map(len, sums.values())]).cut(most=1.0)


def flaw_costs(facts: RunFacts, most_plans: int = MOST_PLANS) -> FlawCosts:
    """Return the costs of the flawed plans of a run, of which at most so many are made again."""
    deviations: dict[FlawedPlan, float] = {}
    for key in facts.table.flaw_keys():
        group = facts.table.flawed([key])
        count, optimum = group.by_task(group.count), group.by_task(group.optimum)
        for task in np.flatnonzero(count).tolist():
            deviations[task, key[1], key[2], key[3]] = float(optimum[task] / count[task])
    kept = _thinned(facts, sorted(deviations), most_plans)
    problem = _why_not(facts)
    if problem is None:
        try:
            settings, obediences = _obediences(facts, kept)
        except ResiliSimError as error:
            problem = str(error)
    if problem is not None:
        return FlawCosts(deviations, {}, (say("obey_unknown", problem=problem),))
    notes = [say("obey", parameters=settings.parameters)]
    if len(kept) < len(deviations):
        notes.append(say("obey_some", some=len(kept), all=len(deviations)))
    return FlawCosts(deviations, obediences, tuple(notes))


def _why_not(facts: RunFacts) -> str | None:
    """Say in a few words why the plans of a run cannot be made again; None if they can."""
    arguments = facts.manifest["arguments"]
    if arguments.get("library") != default_library().content_hash:
        return "the run has a tool library of its own"
    if arguments.get("environment", {}).get("planner") not in EXACT_PLANNERS:
        return "the plans are not by the exact planner"
    from resilisim.tasks.benchmark import version_of  # half a second, for runs with flawed prompts only

    if not all(version_of(task.instance_id) for task in facts.table.tasks):
        return "not all of its tasks are the benchmark's"
    return None


def _thinned(facts: RunFacts, plans: Sequence[FlawedPlan], most: int) -> list[FlawedPlan]:
    """Return every n-th plan of each flaw, severity and method, by the ids of their tasks."""
    every = math.ceil(len(plans) / most) if plans else 1
    by_flaw: defaultdict[tuple[str, ...], list[FlawedPlan]] = defaultdict(list)
    for plan in sorted(plans, key=lambda plan: facts.table.tasks[plan[0]].instance_id):
        by_flaw[plan[1:]].append(plan)
    return [plan for own in by_flaw.values() for plan in own[::every]]


def _obediences(facts: RunFacts, plans: Sequence[FlawedPlan]) -> tuple[EnvironmentSettings, dict[FlawedPlan, float]]:
    """Return the settings of the run, and the chance of full success of an agent that does each plan to the letter."""
    from resilisim.tasks.benchmark import find_task, texts_revision  # see _why_not

    arguments = facts.manifest["arguments"]
    known = {option.name for option in fields(EnvironmentSettings)} & {*arguments["environment"]}
    settings = EnvironmentSettings(**{name: arguments["environment"][name] for name in known})
    library, rules = default_library(), settings.rules()
    # Runs of the first release show the path of the optimum under every one of these names.
    limits = settings.planner != "exact-path" and texts_revision(arguments) > 1
    planner = ExactPlanner(library, settings.planning_law(), rules, limits=limits)
    perturber = settings.perturber(library)
    by_plan: dict[FlawedPlan, float] = {}
    # By task, as planner and perturber remember the last one.
    for plan in sorted(plans):
        task = find_task(facts.table.tasks[plan[0]].instance_id)
        problem = settings.problem(library, task.required_tools)
        for _, flawed in perturber.carried(planner.plan(task), task.required_tools, [plan[1:]]):
            chances = follow_steps(problem, flawed.workflow.steps, settings.parameters, texts_of(task))
            by_plan[plan] = chances.success
    return settings, by_plan
