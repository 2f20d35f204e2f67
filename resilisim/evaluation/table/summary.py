"""What a run says about each policy under each prompt, as numbers with intervals, and as a table in the terminal."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Protocol

import numpy as np

from resilisim.errors import count_of
from resilisim.evaluation.episode.record import ALL_LOSS_LABELS, Ceiling
from resilisim.evaluation.table.episodes import BoolArray, EpisodeTable
from resilisim.statistics import Estimate
from resilisim.statistics.estimates import (
    ROUNDING,
    FloatArray,
    clopper_pearson,
    clustered_mean,
    clustered_proportion,
    clustered_ratio,
    fields_to_json,
    with_unseen,
    within_range,
)
from resilisim.tables.numbers import percent
from resilisim.tables.table import Cell, Column, Table

LOSS = "biggest loss by calls"  # heading
SMALLEST_SHOWN = 0.0005  # what is rounded to the first digit that is shown
UNNEEDED_SEARCH = "unneeded search"  # what searching cost beyond the fewest searches that show the tools
OPTIMUM_POLICY = "exact-optimum"
FEW_TASKS = 5  # with fewer, intervals are so wide that they hardly tell anything
_FITTED = (
    "Where that explains outcomes better, more than the luck by V* is taken off: the draws of the tools that were "
    "still needed, with weights fitted on other episodes."
)
ON_ONE_TASK = "One task: intervals are over its seeds, on this task, and say nothing about other tasks."


@dataclass(frozen=True, slots=True)
class GroupSummary:
    """One policy under one prompt type, over all tasks or a part of them.

    Attributes:
        privileged: Whether the policy saw the state; its results are no fair comparison with the others.
        tries_again: Whether it may try again in fresh episodes: then it has no ceiling and no luck adjustment (NaN).
        planner: Who made the plan in the prompt, or None.
        num_tasks: Tasks with at least one episode.
        num_episodes: Episodes, or branches that were played.
        is_explored: Whether the policy was explored: then its numbers are exact on these tasks, no luck is in them, and
            intervals are over tasks alone; with one task there are none.
        is_fitted: Share of episodes of which more than V*'s luck is taken off, since that explains outcomes better.
        unplayed: Mean share that was not played of an explored policy and can still succeed; its rates reach as far as
            that leaves open, those of all other numbers are of what was played.
        success: Share of full successes.
        partial_success: Share of partial successes.
        optimum: Mean V* of the start: the best success rate that any agent can reach on these tasks.
        ceiling: Mean of the ceilings that fit what the agent was told: V* where it knew the tools, else what is left
            after the fewest searches that show them (`records.fitting_ceiling`).
        ceiling_name: Which reference that is; "optimum_after_searches" if it is for any episode of the group, and
            "reference_solution" in a world.
        num_without_ceiling: Episodes (of all tasks) whose tools had to be found with nobody knows how many searches, so
            that V* stands in for their ceiling.
        optimum_gap: By how much any V* may be too low (of all tasks, also when the summary is of a part): 0 where all
            are exact, as they are unless a large library holds tools of unequal reliability.
        is_informed: Whether any V* (likewise) is that of an agent that also sees what the law hides.
        share_of_ceiling: Successes divided by the sum of the ceilings.
        adjusted_share: The same with luck removed: the score that policies are sorted by.
        is_optimum: Whether it is the exact optimum itself, whose share is then 1 by definition, without an interval.
        luck_adjusted: mean(outcome - beta luck), or more that has mean zero taken off (`luck_adjustment`), cross-fitted
            over folds of episodes.
        luck_adjusted_beta_1: The same with beta = 1.
        mean_beta: Mean of the fitted betas, weighted by episodes; NaN where more is taken off.
        luck: Mean luck; its expectation is 0.
        regret: Mean sum of regret: points lost by calls.
        losses: Mean regret by label, in the order of `ALL_LOSS_LABELS`, only those that occurred.
        unneeded_search: Mean of what searching cost beyond the fewest searches that show the tools; negative where an
            agent knew them without, NaN where none had to be found.
        turns: Mean number of messages.
        ended_by: Share of episodes by what ended them (of all tasks, also when the summary is of a part).
    """

    policy: str
    prompt_type: str
    privileged: bool
    tries_again: bool
    planner: str | None
    num_tasks: int
    num_episodes: int
    is_explored: bool
    unplayed: float
    is_fitted: float
    success: Estimate
    partial_success: Estimate
    optimum: Estimate
    ceiling: Estimate
    share_of_ceiling: Estimate
    adjusted_share: Estimate
    luck_adjusted: Estimate
    luck_adjusted_beta_1: Estimate
    luck: Estimate
    regret: Estimate
    turns: Estimate
    optimum_gap: float
    is_informed: bool
    ceiling_name: Ceiling
    num_without_ceiling: int
    num_without_reference: int
    mean_beta: float
    losses: Mapping[str, Estimate]
    unneeded_search: Estimate
    ended_by: Mapping[str, float]
    is_optimum: bool = False

    @property
    def has_no_ceiling(self) -> bool:
        """Whether ceiling and luck mean nothing: the agent tries again in fresh episodes, or nobody knows V*."""
        return self.tries_again or self.num_without_reference > 0

    @property
    def is_on_one_task(self) -> bool:
        """Whether intervals are over the seeds of a single task: they say nothing about others."""
        return self.num_tasks == 1 and not self.is_explored

    @property
    def unavoidable(self) -> float:
        """Points that no agent could have had: 1 - mean V*."""
        return 1.0 - self.optimum.value

    @property
    def price_of_search(self) -> float:
        """Points that finding the tools costs at the least: V* less the ceiling. They count as information."""
        return self.optimum.value - self.ceiling.value

    def avoidable_loss(self, label: str) -> float:
        """Return the mean regret under a label; of information only what goes beyond the price of finding the tools."""
        loss = self.losses[label].value
        if label != "information" or math.isnan(self.price_of_search):
            return loss
        return max(loss - self.price_of_search, 0.0)

    def loss_name(self, label: str) -> str:
        """Return in words what is lost under a label; of information that is what goes beyond finding the tools."""
        is_search = label == "information" and self.price_of_search > ROUNDING
        return UNNEEDED_SEARCH if is_search else label.replace("_", " ")

    @property
    def biggest_loss(self) -> str | None:
        """The label that cost most beyond finding the tools, or None if no call cost anything beyond that."""
        worst = max(self.losses, key=self.avoidable_loss, default=None)
        return None if worst is None or self.avoidable_loss(worst) <= ROUNDING else worst

    def to_mapping(self) -> dict[str, Any]:
        """Return everything as JSON values; NaN becomes None."""
        mapping = fields_to_json(self)
        ended_by = mapping.pop("ended_by")
        return {**mapping, "biggest_loss": self.biggest_loss, "ended_by": ended_by}


def summarise_group(
    group: EpisodeTable, chosen: BoolArray | None = None, prompt_type: str | None = None
) -> GroupSummary:
    """Turn the table of sums of one policy (`EpisodeTable.group` or `flawed`) into estimates.

    Args:
        group: The table.
        chosen: Which tasks count, shape (num_tasks,); all if omitted. What is taken off is always fitted on all
            episodes (of other folds), so that a small part does not get a noisy fit.
        prompt_type: What several prompts are called together.
    """
    facts = next(iter(group.facts.values()))
    rows = np.ones(len(group), dtype=np.bool_) if chosen is None else chosen[group.task]  # (num_rows,)
    units, unit = np.unique(group.units(rows), return_inverse=True)  # tasks, or the seeds of a single one

    def column(values: FloatArray) -> FloatArray:
        """Return the sums of a column over the rows of each unit; shape (num_units,)."""
        return np.bincount(unit, weights=values[rows], minlength=len(units)).astype(np.float64)

    count, num_tasks = column(group.count), len(np.unique(group.task[rows]))
    is_fitted = column(group.plays * group.is_fitted).sum()

    outcome, luck, optimum = column(group.outcome), column(group.luck), column(group.optimum)
    adjusted, ceilings = column(group.adjusted), column(group.ceiling)

    def adjusted_mean(values: FloatArray) -> Estimate:
        mean = clustered_mean(values, count)
        return (with_unseen(mean) if num_tasks == 1 else within_range(mean)).cut(most=1.0)

    labels = [*filter(group.losses.__contains__, ALL_LOSS_LABELS), *sorted(group.losses.keys() - ALL_LOSS_LABELS)]
    losses = {label: clustered_mean(column(group.losses[label]), count) for label in labels}
    num_episodes = int(column(group.plays).sum())
    unneeded = Estimate.nothing(num_tasks, num_episodes)
    if "information" in losses and group.after_search.any():
        unneeded = clustered_mean(column(group.losses["information"]) - (optimum - ceilings), count)
    success = clustered_proportion(outcome, count)
    ceiling = clustered_mean(ceilings, count)
    ceiling_name: Ceiling = "optimum_after_searches" if group.after_search.any() else "optimum"
    if group.world is not None:
        ceiling_name = "reference_solution"
    ended = {name: float(values.sum()) for name, values in sorted(group.ended_by.items()) if values.any()}
    summary = GroupSummary(
        policy=facts.policy,
        prompt_type=facts.prompt_type if prompt_type is None else prompt_type,
        privileged=bool(group.privileged.any()),
        tries_again=bool(group.tries_again.any()),
        num_without_reference=int(group.no_reference.sum()),
        planner=facts.planner,
        num_tasks=num_tasks,
        num_episodes=num_episodes,
        is_explored=group.is_explored,
        unplayed=0.0,
        is_fitted=float(is_fitted) / max(num_episodes, 1),
        success=success,
        partial_success=clustered_proportion(column(group.partial), count),
        optimum=clustered_mean(optimum, count),
        optimum_gap=group.optimum_gap,
        is_informed=group.is_informed,
        ceiling=ceiling,
        ceiling_name=ceiling_name,
        num_without_ceiling=int(group.without_ceiling.sum()),
        share_of_ceiling=_no_narrower(clustered_ratio(outcome, ceilings, num_episodes), success, ceiling.value).cut(),
        adjusted_share=_adjusted_share(
            adjusted,
            ceilings,
            success,
            num_episodes,
            ceiling_name == "optimum",
            is_one_task=num_tasks == 1,
            is_sampled=not group.is_explored,
        ),
        luck_adjusted=_no_narrower(adjusted_mean(adjusted), success, 1.0).cut(most=1.0),
        luck_adjusted_beta_1=adjusted_mean(outcome - luck),
        mean_beta=_ratio(column(group.row_weights[:, 0] * group.count), count) if is_fitted == 0.0 else math.nan,
        luck=clustered_mean(luck, count),
        regret=clustered_mean(optimum - outcome + luck, count).cut(),  # the identity, summed over each task
        losses={label: loss.cut() for label, loss in losses.items() if loss.value > 0.0},
        unneeded_search=unneeded,
        turns=clustered_mean(column(group.turns), count),
        ended_by={name: number / sum(ended.values()) for name, number in ended.items()},
    )
    if group.is_explored:
        summary = _exact(
            summary,
            outcome,
            column(group.partial),
            ceilings,
            column(group.unplayed),
            column(group.least),
            column(group.open),
        )
    if not group.has_no_ceiling:
        return _of_the_optimum(summary) if _is_optimum(group, summary) else summary
    # The last of several tries was not drawn like a first one.
    none = Estimate.nothing(num_tasks, num_episodes)
    summary = replace(summary, optimum=none, ceiling=none, share_of_ceiling=none, adjusted_share=none)
    summary = replace(summary, luck_adjusted=none, luck_adjusted_beta_1=none)
    if not summary.num_without_reference:
        return summary
    return replace(
        summary, luck=none, regret=none, losses={}, unneeded_search=none, mean_beta=math.nan
    )  # nobody knows what a call cost


def _ratio(numerators: FloatArray, denominators: FloatArray) -> float:
    return float(numerators.sum()) / float(denominators.sum()) if len(denominators) else math.nan


def _exact(
    summary: GroupSummary,
    outcome: FloatArray,
    partial: FloatArray,
    ceilings: FloatArray,
    unplayed: FloatArray,
    won: FloatArray,
    still_open: FloatArray,
) -> GroupSummary:
    """Return the summary of a policy that was explored: its rates on each task are known, up to what was not played.

    All arrays have the shape (num_tasks,).
    """
    plays, count = summary.num_episodes, np.ones(len(outcome))

    def bracketed(
        least: FloatArray, missing: FloatArray, interval: Callable[[FloatArray], Estimate], value: float
    ) -> Estimate:
        """Return an estimate whose interval holds those of the least and the most that the tasks can come to."""
        low, high = interval(least), interval(least + missing)
        if len(least) > 1:
            return replace(low, value=value, low=min(low.low, value), high=max(high.high, value))
        if missing.any():
            return Estimate(value, math.nan, low.value, high.value, 1, plays)
        return Estimate.nothing(len(least), plays, value)

    def share(values: FloatArray) -> Estimate:
        is_bound = summary.ceiling_name == "optimum"
        return _adjusted_share(values, ceilings, clustered_proportion(values, count), plays, is_bound)

    success = bracketed(won, still_open, lambda values: clustered_proportion(values, count), summary.success.value)
    rates = bracketed(
        partial * (1.0 - unplayed),
        unplayed,
        lambda values: clustered_proportion(values, count),
        summary.partial_success.value,
    )
    of_ceiling = bracketed(won, still_open, share, summary.share_of_ceiling.value)
    summary = replace(
        summary,
        unplayed=float(still_open.mean()) if len(still_open) else 0.0,
        success=success,
        partial_success=rates,
        share_of_ceiling=of_ceiling,
        adjusted_share=of_ceiling,
        luck_adjusted=success,
        luck_adjusted_beta_1=success,
        luck=Estimate.nothing(len(outcome), plays, summary.luck.value),
        mean_beta=math.nan,
        losses={label: replace(loss, num_episodes=plays) for label, loss in summary.losses.items()},
    )
    numbers = ((field.name, getattr(summary, field.name)) for field in fields(summary))
    counted: dict[str, Any] = {
        name: replace(each, num_episodes=plays) for name, each in numbers if isinstance(each, Estimate)
    }
    return replace(summary, **counted)


def _is_optimum(group: EpisodeTable, summary: GroupSummary) -> bool:
    """Tell whether the policy of a group is the exact optimum, and V* is exact: what all others are measured by."""
    arguments = group.manifest.get("arguments", {})
    specs = dict(zip(arguments.get("policy_names", ()), arguments.get("policies", ()), strict=False))
    spec = specs.get(summary.policy, summary.policy)
    is_exact = summary.optimum_gap == 0.0 and not summary.is_informed and summary.ceiling_name == "optimum"
    no_regret = float(group.regret.sum()) <= ROUNDING * max(summary.num_episodes, 1)
    return spec == OPTIMUM_POLICY and summary.privileged and is_exact and no_regret


def _of_the_optimum(summary: GroupSummary) -> GroupSummary:
    """Return the summary of the exact optimum: its share of itself is 1 by definition, and no estimate."""
    share = Estimate.nothing(summary.num_tasks, summary.num_episodes, 1.0)
    return replace(summary, adjusted_share=share, is_optimum=True)


def _adjusted_share(
    adjusted: FloatArray,
    ceilings: FloatArray,
    success: Estimate,
    num_episodes: int,
    is_bound: bool,
    *,
    is_one_task: bool = False,
    is_sampled: bool = False,
) -> Estimate:
    """Return luck-adjusted successes divided by ceilings.

    Of a sample there is room for what has not turned up (`with_unseen`). Of computed rates the error of 0 is no
    certainty either where every task has the same share: the interval is then that of a rate with one observation a
    task (Clopper and Pearson 1934). `is_bound` tells whether nobody can be better than the ceiling, as it is with V*.
    Both arrays hold sums over the episodes of each task, or of each seed of a single one, shape (num_units,).
    """
    share = clustered_ratio(adjusted, ceilings, num_episodes)
    if math.isnan(share.low):
        return share
    mean_ceiling = float(ceilings.sum()) / num_episodes
    if not is_one_task:
        share = within_range(share)
    if is_sampled:
        share = with_unseen(share, most=1.0 / mean_ceiling)
    if share.standard_error <= ROUNDING:
        num_tasks = len(ceilings)
        low, high = clopper_pearson(min(max(share.value, 0.0), 1.0) * num_tasks, num_tasks)
        share = replace(share, low=min(low, share.value), high=max(high, share.value))
    possible = replace(success, low=min(success.low, mean_ceiling), high=min(success.high, mean_ceiling))
    # Shares of a ceiling that can be beaten are not cut at 1, which would hide that a sample was lucky.
    return _no_narrower(share, possible, mean_ceiling).cut(most=1.0 if is_bound else math.inf)


def _no_narrower(estimate: Estimate, success: Estimate, scale: float) -> Estimate:
    """Widen an interval to that of the success rate (divided by `scale`) where outcomes do not vary between tasks.

    If no episode succeeded, or all did, or as many in each task, what derives from the outcomes hardly varies either,
    and the standard error would claim a certainty that nobody has.
    """
    varies = success.value not in (0.0, 1.0) and not success.standard_error <= ROUNDING
    if varies or math.isnan(estimate.value):
        return estimate
    ends = [end for end in (estimate.low, success.low / scale, estimate.high, success.high / scale) if end == end]
    return replace(estimate, low=min(ends), high=max(ends))


def summarise(table: EpisodeTable) -> list[GroupSummary]:
    """Return a summary of each policy under each prompt type, in the order of the run's command."""
    return [summarise_group(table.group(*names)) for names in table.groups()]


def gap_note(gap: float) -> str | None:
    """Return what is to be said where V* may be too low by as much, or None where it is exact."""
    if gap == 0.0:
        return None
    points = math.ceil(1000.0 * gap) / 10.0
    return (
        f"Some V* are lower bounds, at most {points:.1f} points too low, because an exact solution would be too large; "
        "what calls cost there is as uncertain."
    )


class Bounded(Protocol):
    """Something that holds V* and how exact it is."""

    @property
    def optimum_gap(self) -> float:
        """By how much any V* may be too low; 0 where all are exact."""
        ...

    @property
    def is_informed(self) -> bool:
        """Whether some V* are those of an agent that sees what the law hides."""
        ...


def bound_note(rows: Sequence[Bounded]) -> str | None:
    """Return what is to be said of how exact V* is, or None where it is exact and of what agents can know."""
    notes = [*filter(None, [gap_note(max((row.optimum_gap for row in rows), default=0.0))])]
    if any(row.is_informed for row in rows):
        notes.append(
            "Some V* are those of an agent that also sees what is down, broken or wrong (informed): bounds that nobody "
            "may reach."
        )
    return " ".join(notes) or None


NO_REFERENCE_NOTE = (
    "In {} the task has no reference solution: success is that of the answer, and there is no V*, no ceiling and no "
    "luck adjustment."
)


def ceiling_note(rows: Sequence[GroupSummary], shown: bool = False) -> str:
    """Return the sentences that say what V* and ceilings are; `shown` if ceilings stand there though all are V*."""
    note = "V*: the best that any agent can reach."
    if any(row.ceiling_name == "reference_solution" for row in rows):
        note = (
            "V*: of the reference solution, the chance of completing it within the turns; an agent that finds a "
            "shorter way can be better."
        )
    if shown or any(row.ceiling_name == "optimum_after_searches" for row in rows):
        note += (
            " reference: V* if the prompt names the tools; if they must be found, V* with the turns left after the "
            "fewest searches, clause by clause, that show them. It is below V* by the price of these searches, which "
            "is not a loss by calls, and no ceiling: an agent that has learned the names elsewhere can do better."
        )
    missing = sum(row.num_without_ceiling for row in rows if not row.has_no_ceiling)
    if missing:
        episodes = f"{missing:,} episode{'' if missing == 1 else 's'}"
        note += f" In {episodes} tools had to be found, in an unknown number of searches: V* counts there."
    unknown = sum(row.num_without_reference for row in rows)
    if unknown:
        note += f" {NO_REFERENCE_NOTE.format(f'{unknown:,} episode' + ('' if unknown == 1 else 's'))}"
    return note


def overshoot_note(rows: Sequence[GroupSummary]) -> str | None:
    """Return a sentence about luck-adjusted rates that are shown as below 0 or above 100, or None if there are none.

    They stay as they are: cut off, they would be biased, and would not fit the differences between them.
    """
    values = (row.luck_adjusted.value for row in rows)
    if not any(value <= -SMALLEST_SHOWN or value >= 1.0 + SMALLEST_SHOWN for value in values):
        return None
    return (
        "A luck-adjusted value below 0 or above 100 comes from removing luck from few episodes: it is right on "
        "average, and the rate it estimates lies between 0 and 100."
    )


def interval_note(rows: Sequence[GroupSummary]) -> str:
    """Return what the intervals of rows are over."""
    explored = [row for row in rows if row.is_explored]
    note = "" if len(explored) == len(rows) and rows else "Percent, with 95% intervals clustered by task."
    if not explored:
        return note
    note = f"{note} Rows that were explored are" if note else "Percent,"
    note += " exact on these tasks, with no luck in them: episodes are plays, and 95% intervals are over tasks alone."
    open_share = max(row.unplayed for row in explored)
    if open_share > 0.0:
        share = percent(open_share, 2)
        note += f" Up to {share}% was not played and can still succeed: intervals of rates reach as far."
    return note


def adjustment_notes(rows: Sequence[GroupSummary]) -> list[str]:
    """Return what is to be said of intervals and of what was taken off, where it is not as nearly always."""
    notes = [interval_note(rows)] if any(row.is_explored for row in rows) else []
    notes += [ON_ONE_TASK] if any(row.is_on_one_task for row in rows) else []
    return notes + ([_FITTED] if any(row.is_fitted for row in rows) else [])


def summary_table(rows: Sequence[GroupSummary]) -> Table:
    """Return the summary as a table: all rates in percent, with 95% intervals clustered by task, and what they are.

    Narrow terminals do without V*, if the ceiling is another number, then without luck-adjusted success and the number
    of episodes; narrower ones also have the prompt below the policy, then no losses. What does not fit is left out,
    never cut. The share of the ceiling always stands there.
    """
    # V* stands beside the ceiling where there is room, and alone where it is the ceiling of every row.
    searching = any(row.ceiling_name == "optimum_after_searches" for row in rows)
    ceiling = "reference" if searching else "V*"
    share = f"of {ceiling}"
    columns: list[Column[GroupSummary]] = [
        ("policy", lambda row: Cell(row.policy, mark=" ".join(["*"] * row.privileged + ["†"] * row.tries_again))),
        ("prompt", "prompt_type"),
        ("episodes", "num_episodes"),
        ("success", "success"),
        *([("reference", "ceiling.value")] if searching else []),
        ("V*", "optimum.value"),
        (share, "adjusted_share"),
        ("luck-adjusted", "luck_adjusted"),
        (LOSS, _biggest_loss),
    ]
    values = "V* is an expected value: a sample can lie above it"
    if searching:
        values = "Both are expected values: a sample can lie above them"
    note = (
        f"{interval_note(rows)} {ceiling_note(rows)} {values} by luck, which is "
        f"removed from shares {share} and from luck-adjusted success."
    )
    if rows and all(row.is_explored for row in rows):
        note = f"{interval_note(rows)} {ceiling_note(rows)}"
    notes = [note, *filter(None, [bound_note(rows), overshoot_note(rows)])]
    if any(row.privileged for row in rows):
        notes.append("* privileged: sees the state.")
    if any(row.tries_again for row in rows):
        notes.append("† tries again in fresh episodes: no ceiling, no luck adjustment.")
    notes += adjustment_notes([row for row in rows if not row.is_explored])
    fewest = min((row.num_tasks for row in rows if row.num_tasks > 1), default=FEW_TASKS)
    if fewest < FEW_TASKS:
        notes.append(f"Only {count_of(fewest, 'task')}: intervals say little.")
    return Table.of(
        "",
        rows,
        columns,
        text_columns=(0, 1, len(columns) - 1),
        notes=notes,
        optional=[*(["V*"] if searching else []), "luck-adjusted", "episodes", LOSS],
    )


def _biggest_loss(row: GroupSummary) -> str:
    loss = row.biggest_loss
    return "none" if loss is None else f"{row.loss_name(loss)} {percent(row.avoidable_loss(loss))}"
