"""What sections share: groups of a run by policy and prompt type, means of rates over tasks, and published figures."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from resilisim.evaluation.table.episodes import EpisodeTable
from resilisim.evaluation.table.facts import RunFacts
from resilisim.evaluation.table.summary import GroupSummary, summarise_group
from resilisim.reporting.page import Fold, name_cell, packaged_file, plain, say
from resilisim.statistics import Estimate
from resilisim.statistics.comparison import without_variation
from resilisim.statistics.estimates import FloatArray, clustered_proportion, t_quantile
from resilisim.tables.numbers import percent
from resilisim.tables.table import Cell, Table

# Prompt types in the order of the ResiliBench paper's tables; others follow as they were met.
PROMPT_ORDER = ("baseline", "chain_of_thought", "optimal", "flawed")
LEVEL_NAMES: Final = ("full", "partial", "fail")
PROMPT_SEPARATOR = ":"  # between a prompt type and the flaw that its plan was given
PUBLISHED = "Ao et al., ResiliBench"  # the paper of `published.json`
BY_PROMPT, FLAWED_PLANS, BY_MODEL_SIZE, BY_TASK_TYPE = 2, 3, 4, 13  # numbers of its tables


@dataclass(frozen=True, slots=True)
class Rate:
    """Sums per task whose ratio is a rate: successes and episodes, for instance; with a single task, per seed."""

    numerators: FloatArray  # (num_units,)
    denominators: FloatArray  # (num_units,); 0 where a unit has no episodes

    @property
    def value(self) -> float:
        """The rate, or NaN without episodes."""
        total = float(self.denominators.sum())
        return float(self.numerators.sum()) / total if total else math.nan


@dataclass(frozen=True, slots=True)
class Pool:
    """Episodes of one policy that count as one group: their sums, and rates over tasks."""

    table: EpisodeTable
    summary: GroupSummary
    success: Rate
    adjusted: Rate  # success with luck removed; NaN for policies that try again
    levels: tuple[Rate, Rate, Rate]  # full, partial and no success

    @property
    def level_rates(self) -> list[Estimate]:
        """Shares of full, partial and no success with their intervals, over the tasks that have any episode."""
        present = self.success.denominators > 0
        return [clustered_proportion(rate.numerators[present], rate.denominators[present]) for rate in self.levels]


def base_prompt(prompt_type: str) -> str:
    """Return the prompt type without the flaw that its plan was given."""
    return prompt_type.partition(PROMPT_SEPARATOR)[0]


def pool(table: EpisodeTable, prompt_type: str) -> Pool:
    """Count the episodes of a table of sums, all of one policy, as one group whose prompts have one name."""
    count, full, partial = map(table.by_unit, (table.count, table.outcome, table.partial))
    adjusted = table.by_unit(table.adjusted) + (math.nan if table.has_no_ceiling else 0.0)
    levels = (Rate(full, count), Rate(partial, count), Rate(count - full - partial, count))
    return Pool(table, summarise_group(table, prompt_type=prompt_type), levels[0], Rate(adjusted, count), levels)


def combination(parts: Sequence[tuple[float, Rate]]) -> Estimate:
    """Estimate a sum of weighted rates over the same tasks, with tasks as the units that vary.

    With weights 1 and -1 it is a difference: what two rates have in common, the tasks and their luck, drops out of its
    error. The error is the linearised one: task g contributes the sum over parts of
    weight x (numerator_g - rate x denominator_g) / sum of denominators. Where nothing varies, because all tasks are
    alike, an error of 0 would claim a certainty that nobody has; then the interval says what so many tasks can rule
    out. Without a task all numbers are NaN, with one the interval is.
    """
    present = np.logical_or.reduce([rate.denominators > 0 for _, rate in parts])  # (num_tasks,)
    num_tasks = int(present.sum())
    num_episodes = int(sum(float(rate.denominators.sum()) for _, rate in parts))
    value = math.fsum(weight * rate.value for weight, rate in parts)
    if num_tasks < 2 or math.isnan(value):
        return Estimate.nothing(num_tasks, num_episodes, value)
    shares = np.zeros(num_tasks, dtype=np.float64)
    for weight, rate in parts:
        numerators, denominators = rate.numerators[present], rate.denominators[present]
        shares += weight * (numerators - rate.value * denominators) / float(denominators.sum())
    error = math.sqrt(num_tasks / (num_tasks - 1) * float(shares @ shares))
    half_width = t_quantile(num_tasks) * error
    low, high = value - half_width, value + half_width
    if error < 1e-12:
        low, high = without_variation(value, num_tasks)[0]
    return Estimate(value, error, low, high, num_tasks, num_episodes)


def mean_of(rates: Sequence[Rate]) -> Estimate:
    """Return the plain mean of rates over the same tasks, each counting the same."""
    return combination([(1.0 / len(rates), rate) for rate in rates]).cut(most=1.0)


def difference(first: Rate, second: Rate) -> Estimate:
    """Return the first rate minus the second, over the tasks that have episodes in both."""
    common = (first.denominators > 0) & (second.denominators > 0)

    def over_common(rate: Rate) -> Rate:
        return Rate(np.where(common, rate.numerators, 0.0), np.where(common, rate.denominators, 0.0))

    return combination([(1.0, over_common(first)), (-1.0, over_common(second))])


def merit(row: GroupSummary) -> tuple[bool, bool, float]:
    """Return what rows are sorted by, the best first.

    Luck-adjusted success as a share of the ceiling decides. Policies that have none, because they may try again, follow
    by their raw success; privileged ones, which are no fair comparison, come last.
    """
    share = row.adjusted_share.value
    return row.privileged, math.isnan(share), -round(row.success.value if math.isnan(share) else share, 9)


def ranked(rows: Sequence[GroupSummary]) -> list[GroupSummary]:
    """Return rows by prompt type, in the order in which these were met, and within each the best first."""
    prompts = list(dict.fromkeys(row.prompt_type for row in rows))
    return sorted(rows, key=lambda row: (prompts.index(row.prompt_type), merit(row)))


def policies_of(facts: RunFacts) -> list[str]:
    """Return the policies of a run, the best first: by the mean of what rows are sorted by over their episodes."""
    own: defaultdict[str, list[GroupSummary]] = defaultdict(list)
    for row in facts.rows:
        own[row.policy].append(row)

    def mean_merit(policy: str) -> tuple[bool, bool, float]:
        privileged, has_none, worths = zip(*map(merit, own[policy]), strict=True)
        counts = [row.num_episodes for row in own[policy]]
        worth = math.fsum(worth * count for worth, count in zip(worths, counts, strict=True)) / sum(counts)
        return any(privileged), any(has_none), round(worth, 9)

    return sorted(own, key=mean_merit)


class PromptPools:
    """The groups of a run by policy and prompt type, where all flawed prompts of a policy count as one."""

    def __init__(self, facts: RunFacts) -> None:
        self.facts = facts
        parts: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
        for policy, prompt in facts.table.groups():
            parts[policy, base_prompt(prompt)].append(prompt)
        self._pools = {key: pool(facts.table.group(key[0], *own), key[1]) for key, own in parts.items()}
        self.policies = policies_of(facts)  # the best first
        # Prompt types without their flaws, those of the ResiliBench paper first and in its order.
        met = dict.fromkeys(prompt for _, prompt in parts)
        self.prompts = sorted(met, key=[*PROMPT_ORDER, *met].index)
        pools = (self.get(policy, prompt) for prompt in self.prompts for policy in self.policies)
        # Summaries of policies under prompt types, by prompt and the best first.
        self.rows = ranked([entry.summary for entry in pools if entry is not None])
        self.ordinary = [policy for policy in self.policies if not self.is_privileged(policy)]

    @property
    def num_starred(self) -> int:
        """How many of the policies are privileged."""
        return len(self.policies) - len(self.ordinary)

    @property
    def level_groups(self) -> list[tuple[str, int]]:
        """The headings above levels under one prompt after the other."""
        return [(plain(prompt), len(LEVEL_NAMES)) for prompt in self.prompts]

    def __getitem__(self, key: tuple[str, str]) -> Pool:
        return self._pools[key]

    def get(self, policy: str, prompt: str) -> Pool | None:
        """Return the pool of a policy under a prompt type, or None if it has no episodes."""
        return self._pools.get((policy, prompt))

    def is_privileged(self, policy: str) -> bool:
        """Return whether a policy saw the state in any episode."""
        return any(row.privileged for row in self.rows if row.policy == policy)

    def name(self, policy: str) -> Cell:
        """Return a policy's name, with the mark of privileged ones."""
        return name_cell(policy, self.is_privileged(policy))

    def level_rates(self, policy: str) -> list[Estimate | None]:
        """Return the shares of full, partial and no success of a policy, under one prompt after the other."""
        of_prompts = [self.get(policy, prompt) for prompt in self.prompts]
        none = [None] * len(LEVEL_NAMES)
        return [rate for own in of_prompts for rate in (none if own is None else own.level_rates)]


def published_beside(facts: RunFacts, number: int) -> list[Fold]:
    """Return a table of the ResiliBench paper beside a run whose calls are simulated, as they are there."""
    return [published_reference(number, above_ceiling(facts.table, number))] if facts.world is None else []


def above_ceiling(table: EpisodeTable, number: int) -> list[str]:
    """Say where published rates of full success lie above V* of a run's own tasks, and why that can be."""
    published = json.loads(packaged_file("published.json"))[str(number)]
    rates: dict[str, list[float]] = {name: list(own.values()) for name, own in published.get("of_types", {}).items()}
    if published["groups"] or number == BY_MODEL_SIZE:  # of all tasks: full, partial and failed runs
        rates[""] = [level[0] for levels in published["rows"].values() for level in levels]
    notes = []
    for task_type, own in rates.items():
        tasks = table.tasks_where(**({"task_type": task_type} if task_type else {}))
        count = float(table.count[tasks[table.task]].sum())
        ceiling = float(table.optimum[tasks[table.task]].sum()) / count if count else math.nan
        above = [rate for rate in own if rate > 100.0 * ceiling]
        if above:
            figures = f"{min(above)}" if min(above) == max(above) else f"{min(above)} to {max(above)}"
            what = f"{plain(task_type)} tasks" if task_type else "all tasks"
            notes.append(say("above_ceiling", figures=figures, what=what, ceiling=percent(ceiling)))
    return notes


def published_reference(number: int, notes: Sequence[str] = ()) -> Fold:
    """Return a table of the ResiliBench paper, folded away; `notes` say more than it does.

    The authors' scorer, tool texts, prompts and random numbers are others than here, and so are their systems: no
    figure is a result of this run. The drops of table 3 are differences that the paper does not print.
    """
    published = json.loads(packaged_file("published.json"))[str(number)]
    rows = [
        [name, *(figure / 100 for level in levels for figure in level)] for name, levels in published["rows"].items()
    ]
    groups = [(name, 3) for name in published["groups"]]
    if number == FLAWED_PLANS:
        rows = [[*row, row[1] - row[4]] for row in rows]
        groups.append(("", 1))
    source = f"{PUBLISHED}, table {number}"
    table = Table(
        f"Published, not of this run: {published['what']}, in percent ({source})",
        published["columns"],
        rows,
        groups=[("", 1), *groups] if groups else (),
        notes=[*([say(published["note"])] if published["note"] else []), say("not_ours"), *notes],
        summary_rows=1 if groups else 0,
    )
    return Fold(f"Published figures of other systems ({source})", (table,), is_published=True)
