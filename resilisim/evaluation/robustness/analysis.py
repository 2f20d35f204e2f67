"""From the tables of a profile's runs and the exact references to curves, flaws and summary numbers.

All runs of a profile have the same tasks, seeds and luck: the uniform of an execution is a function of its episode,
tool and count, whatever the reliability, the turns or the prompt. So two settings are compared task by task, and what
their episodes share cancels out. Tasks are the units that vary (`statistics.clustered_ratio`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from resilisim.evaluation.episode.record import fitting_ceiling
from resilisim.evaluation.robustness.points import OPTIMAL, STANDARD, flawed_prompt
from resilisim.evaluation.robustness.profile_result import (
    SOUND,
    AxisProfile,
    Curve,
    CurvePoint,
    FlawCell,
    FlawProfile,
    FlawReference,
    FlawsProfile,
    ProfiledPolicy,
    Twofold,
)
from resilisim.evaluation.robustness.references import SettingReferences
from resilisim.evaluation.table.episodes import EpisodeTable
from resilisim.evaluation.table.summary import GroupSummary, summarise_group
from resilisim.statistics import Estimate, clopper_pearson, clustered_proportion, clustered_ratio, cross_fitted_betas
from resilisim.statistics.estimates import CONFIDENCE_LEVEL, ROUNDING, FloatArray


@dataclass(frozen=True, slots=True, eq=False)
class TaskScores:
    """Sums over the episodes of one policy under one prompt in one run, for each task of the profile.

    Attributes:
        count: Episodes; shape (num_tasks,), as all others.
        outcome: Full successes.
        adjusted: Sum of outcome - beta luck, beta cross-fitted over folds of tasks; NaN for agents that try again in
            fresh episodes, whose last try was not drawn like a first one.
    """

    count: FloatArray
    outcome: FloatArray
    adjusted: FloatArray

    @property
    def is_adjusted(self) -> bool:
        """Whether there are luck-adjusted scores."""
        return not bool(np.isnan(self.adjusted).any())


def task_scores(group: EpisodeTable, place_of: Mapping[str, int]) -> TaskScores:
    """Return the scores of one policy under one prompt in one run (`EpisodeTable.group`)."""
    places = np.array([place_of[task.instance_id] for task in group.tasks], dtype=np.int64)  # (num_tasks,) of the run
    betas = np.array(cross_fitted_betas(group.folds))[group.task_folds]
    count, outcome, luck = (group.by_task(values) for values in (group.count, group.outcome, group.luck))
    adjusted = np.full(len(places), np.nan) if group.tries_again.any() else outcome - betas * luck

    def at_places(values: FloatArray) -> FloatArray:
        result = np.zeros(len(place_of))
        result[places] = values
        return result

    return TaskScores(at_places(count), at_places(outcome), at_places(adjusted))


def mean_of_changes(pairs: Sequence[tuple[TaskScores, TaskScores]], chosen: Sequence[NDArray[np.bool_]]) -> Twofold:
    """Estimate the mean difference over the episodes of several pairs of settings.

    Args:
        pairs: Scores here and under the standard setting.
        chosen: For each pair which tasks count, shape (num_tasks,).
    """
    raw, adjusted, count = (np.zeros(len(chosen[0])) for _ in range(3))
    for (here, standard), tasks in zip(pairs, chosen, strict=True):
        common = tasks & finished_in_both(here, standard)
        raw += np.where(common, here.outcome - standard.outcome, 0.0)
        adjusted += np.where(common, here.adjusted - standard.adjusted, 0.0)
        count += np.where(common, here.count, 0.0)
    change = twofold_ratio(raw, adjusted, count, int(count.sum()))
    return Twofold(change.raw.cut(-1.0, 1.0), change.adjusted.cut(-1.0, 1.0))


def finished_in_both(here: TaskScores, standard: TaskScores) -> NDArray[np.bool_]:
    """Return which tasks have the same number of episodes in both, shape (num_tasks,)."""
    common: NDArray[np.bool_] = (here.count > 0) & (here.count == standard.count)
    return common


def twofold_ratio(
    raw: FloatArray, adjusted: FloatArray, weights: FloatArray, num_episodes: int, scale: float = 1.0
) -> Twofold:
    """Estimate sum(raw) / sum(weights) and the same of the adjusted scores, tasks being the units that vary.

    Where the raw ratio does not vary at all (no episode succeeded, none differs), its error is 0 and tells nothing;
    both intervals then reach at least as far as that of a rate of 0 among as many units as there are tasks.

    Args:
        raw: Numerator of each task, shape (num_tasks,).
        adjusted: The same from luck-adjusted scores; NaN anywhere that counts gives NaN.
        weights: Denominator of each task; those with 0 do not count.
        num_episodes: Episodes behind it.
        scale: What a success rate of 1 is in the units of the ratio.
    """
    present = weights != 0.0
    plain = clustered_ratio(raw[present], weights[present], num_episodes)
    fair = clustered_ratio(adjusted[present], weights[present], num_episodes)
    if plain.standard_error <= ROUNDING:
        reach = clopper_pearson(0.0, float(plain.num_clusters), CONFIDENCE_LEVEL)[1] * scale
        plain, fair = _reaching(plain, reach), _reaching(fair, reach)
    return Twofold(plain, fair)


def _reaching(estimate: Estimate, reach: float) -> Estimate:
    low, high = estimate.value - reach, estimate.value + reach
    return replace(estimate, low=min(estimate.low, low), high=max(estimate.high, high))


def trapezoid_weights(values: Sequence[float]) -> FloatArray:
    """Return the weights of the trapezoid rule over ascending places, shape (num_values,), with the sum 1."""
    if len(values) == 1:
        return np.ones(1)
    widths = np.diff(np.asarray(values, dtype=np.float64))
    weights: FloatArray = np.zeros(len(values))
    weights[:-1] += widths / 2.0
    weights[1:] += widths / 2.0
    weights /= weights.sum()
    return weights


def share_of_area(scores: Sequence[TaskScores], ceilings: Sequence[FloatArray], values: Sequence[float]) -> Twofold:
    """Estimate the mean success along an axis as a share of the mean ceiling along it (trapezoid rule).

    Every task that is finished at all points counts once, however many episodes it has.

    Args:
        scores: Scores at each point.
        ceilings: Ceiling of each task at each point, shape (num_tasks,) each.
        values: The points, ascending.
    """
    finished = np.logical_and.reduce([here.count > 0 for here in scores])
    weights = trapezoid_weights(values)
    raw, adjusted, area = (np.zeros(len(finished)) for _ in range(3))
    for here, ceiling, weight in zip(scores, ceilings, weights, strict=True):
        count = np.maximum(here.count, 1.0)
        raw += weight * here.outcome / count
        adjusted += weight * here.adjusted / count
        area += weight * ceiling
    raw, adjusted, area = (np.where(finished, part, 0.0) for part in (raw, adjusted, area))
    episodes = int(sum(here.count[finished].sum() for here in scores))
    total = float(area.sum())
    scale = int(finished.sum()) / total if total else math.nan
    share = twofold_ratio(raw, adjusted, area, episodes, scale)
    return Twofold(share.raw.cut(), share.adjusted.cut())


def recovered_share(
    here: TaskScores, obey: FloatArray, deviate: FloatArray, chosen: NDArray[np.bool_]
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return the parts of how much a policy gets back of what obeying a flawed plan gives away.

    The share is sum(outcome - obey) / sum(deviate - obey): 0 for an agent that obeys, 1 for the optimum; below 0 it
    does worse than by obeying.

    Args:
        here: Its scores.
        obey: Chance of success by obeying; shape (num_tasks,), as all others.
        deviate: V*.
        chosen: Which tasks count.

    Returns:
        Raw numerators, luck-adjusted numerators and denominators, shape (num_tasks,) each.
    """
    expected, price = here.count * obey, here.count * (deviate - obey)
    parts = (here.outcome - expected, here.adjusted - expected, price)
    raw, adjusted, weights = (np.where(chosen, part, 0.0) for part in parts)
    return raw, adjusted, weights


BoolArray = NDArray[np.bool_]
Cell = tuple[str, str]  # flaw and severity


class PlayedRuns:
    """The results of a profile's runs, by run, policy and prompt.

    Args:
        instance_ids: The tasks of the profile, in order.
        policies: Names of the policies, in order; others that the runs hold come after them.
        runs: Table of sums of each run, by its name.
    """

    def __init__(self, instance_ids: Sequence[str], policies: Sequence[str], runs: Mapping[str, EpisodeTable]) -> None:
        self.place_of = {instance_id: place for place, instance_id in enumerate(instance_ids)}
        met = [policy for table in runs.values() for policy, _ in table.facts]
        self.policies = tuple(dict.fromkeys([*policies, *met]))
        self._runs = runs

    def profiled(self, policy: str, prompt: str) -> ProfiledPolicy:
        """Return who plays, with what is known of the policy from all runs."""
        own = [table.group(policy, *table.prompts) for table in self._runs.values() if policy in table.policies]
        privileged = any(bool(group.privileged.any()) for group in own)
        return ProfiledPolicy(policy, prompt, privileged, any(bool(group.tries_again.any()) for group in own))

    def scores(self, run: str, policy: str, prompt: str) -> TaskScores:
        """Return scores per task; all 0 where nothing was played."""
        group = self._group(run, policy, prompt)
        if group is None:
            return TaskScores(*(np.zeros(len(self.place_of)) for _ in range(3)))
        return task_scores(group, self.place_of)

    def summary(self, run: str, policy: str, prompt: str, chosen: BoolArray | None = None) -> GroupSummary | None:
        """Return the summary over all tasks, or those chosen, shape (num_tasks,); None where nothing was played."""
        group = self._group(run, policy, prompt)
        if group is None:
            return None
        places = [self.place_of[task.instance_id] for task in group.tasks]
        return summarise_group(group, None if chosen is None else chosen[places])

    def _group(self, run: str, policy: str, prompt: str) -> EpisodeTable | None:
        table = self._runs.get(run)
        return None if table is None or (policy, prompt) not in table.facts else table.group(policy, prompt)


def analyse_axis(
    played: PlayedRuns,
    prompts: Sequence[str],
    tools: str,
    axis: str,
    standard: float,
    points: Mapping[float, tuple[str, SettingReferences]],
) -> AxisProfile:
    """Return the curves of all policies along an axis of numbers.

    Args:
        played: The runs.
        prompts: Their prompts.
        tools: Option `tools` of their environments.
        axis: Name of the axis.
        standard: Its value in the standard setting.
        points: For each value, ascending, the name of its run and the references.
    """
    references = [reference for _, reference in points.values()]
    curves = []
    for policy in played.policies:
        for prompt in prompts:
            who = played.profiled(policy, prompt)
            ceiling = fitting_ceiling(prompt, tools, who.privileged)
            told = ceiling == "known_probabilities"
            scores = [played.scores(run, policy, prompt) for run, _ in points.values()]
            usual = played.scores(STANDARD, policy, prompt)
            curve = [
                _point(value, played.summary(run, policy, prompt), None if value == standard else (here, usual))
                for (value, (run, _)), here in zip(points.items(), scores, strict=True)
            ]
            ceilings = [reference.optimum if told else reference.after_search for reference in references]
            area = share_of_area(scores, ceilings, list(points))
            if who.tries_again:
                area = Twofold(_nothing(area.raw), _nothing(area.adjusted))  # it has no ceiling
            curves.append(Curve(who, tuple(curve), area, ceiling))
    return AxisProfile(
        axis,
        standard,
        tuple(points),
        tuple(float(reference.optimum.mean()) for reference in references),
        tuple(float(reference.after_search.mean()) for reference in references),
        tuple(float(reference.plan_following.mean()) for reference in references),
        tuple(curves),
    )


def analyse_flaws(
    played: PlayedRuns,
    carried: Mapping[str, BoolArray],
    severities: Sequence[str],
    obey: Mapping[Cell, FloatArray],
    sound_obey: FloatArray,
    deviate: FloatArray,
    sound_run: str,
) -> FlawsProfile:
    """Return what the flaws do to all policies.

    Args:
        played: The runs.
        carried: For each flaw the tasks whose plans carry it, shape (num_tasks,).
        severities: The severities.
        obey: For each flaw and severity the chance of success by doing the plan to the letter; shape (num_tasks,).
        sound_obey: The same for the sound plans.
        deviate: V* of each task.
        sound_run: Name of the run with the sound plans.
    """
    chances = {**obey, **{(flaw, SOUND): sound_obey for flaw in carried}}
    references = {
        (flaw, severity): _reference(flaw, severity, tasks, chances[flaw, severity], deviate)
        for flaw, tasks in carried.items()
        for severity in (SOUND, *severities)
    }
    policies = [
        _FlawAnalysis(played, policy, carried, severities, chances, deviate, sound_run).profile(references)
        for policy in played.policies
    ]
    return FlawsProfile(tuple(carried), tuple(severities), tuple(references.values()), tuple(policies))


class _FlawAnalysis:
    """The results of one policy under all flaws."""

    def __init__(
        self,
        played: PlayedRuns,
        policy: str,
        carried: Mapping[str, BoolArray],
        severities: Sequence[str],
        chances: Mapping[Cell, FloatArray],
        deviate: FloatArray,
        sound_run: str,
    ) -> None:
        self._played, self._policy, self._carried, self._deviate = played, policy, carried, deviate
        self._chances, self._sound_run = chances, sound_run
        self._cells = [(flaw, severity) for flaw in carried for severity in severities if carried[flaw].any()]
        self._sound = played.scores(sound_run, policy, OPTIMAL)
        self._scores = {
            (flaw, severity): played.scores(f"flaws-{flaw}", policy, flawed_prompt(flaw, severity))
            for flaw, severity in self._cells
        }

    def profile(self, references: Mapping[Cell, FlawReference]) -> FlawProfile:
        cells = [self._cell(references[key]) for key in references if self._carried[key[0]].any()]
        flawed = [cell for cell in cells if cell.change is not None and not math.isnan(cell.success.value)]
        lowest = min((cell.success.value for cell in flawed), default=math.nan)
        worst = tuple(cell.reference for cell in flawed if cell.success.value == lowest)
        sound = self._played.summary(self._sound_run, self._policy, OPTIMAL)
        severities = dict.fromkeys(severity for _, severity in self._cells)
        flaws = dict.fromkeys(flaw for flaw, _ in self._cells)
        return FlawProfile(
            self._played.profiled(self._policy, OPTIMAL),
            NOTHING if sound is None else sound.success,
            tuple(cells),
            self._drop(self._cells),
            {name: self._drop([cell for cell in self._cells if cell[1] == name]) for name in severities},
            {name: self._drop([cell for cell in self._cells if cell[0] == name]) for name in flaws},
            self._recovered(self._cells),
            worst,
            self._of_the_worst(worst[0], len(flawed)) if worst else NOTHING,
        )

    def _cell(self, reference: FlawReference) -> FlawCell:
        key, tasks = (reference.flaw, reference.severity), self._carried[reference.flaw]
        if reference.severity == SOUND:
            summary = self._played.summary(self._sound_run, self._policy, OPTIMAL, tasks)
        else:
            prompt = flawed_prompt(*key)
            summary = self._played.summary(f"flaws-{reference.flaw}", self._policy, prompt)
        success, adjusted = (NOTHING, NOTHING) if summary is None else (summary.success, summary.luck_adjusted)
        if reference.severity == SOUND:
            return FlawCell(reference, success, adjusted, None, None)
        return FlawCell(reference, success, adjusted, self._change([key]), self._recovered([key]))

    def _change(self, cells: Sequence[Cell]) -> Twofold:
        pairs = [(self._scores[cell], self._sound) for cell in cells]
        return mean_of_changes(pairs, [self._carried[flaw] for flaw, _ in cells])

    def _drop(self, cells: Sequence[Cell]) -> Twofold:
        pairs = [(self._sound, self._scores[cell]) for cell in cells]
        if not pairs:
            return Twofold(NOTHING, NOTHING)
        return mean_of_changes(pairs, [self._carried[flaw] for flaw, _ in cells])

    def _recovered(self, cells: Sequence[Cell]) -> Twofold:
        raw, adjusted, price = (np.zeros(len(self._deviate)) for _ in range(3))
        episodes = 0.0
        for flaw, severity in cells:
            scores = self._scores[flaw, severity]
            chosen = self._carried[flaw] & (scores.count > 0)
            parts = recovered_share(scores, self._chances[flaw, severity], self._deviate, chosen)
            raw, adjusted, price = raw + parts[0], adjusted + parts[1], price + parts[2]
            episodes += float(scores.count[chosen].sum())
        total = float(price.sum())
        return twofold_ratio(raw, adjusted, price, int(episodes), episodes / total if total else math.nan)

    def _of_the_worst(self, reference: FlawReference, num_cells: int) -> Estimate:
        scores = self._scores[reference.flaw, reference.severity]
        present = scores.count > 0
        level = 1.0 - (1.0 - CONFIDENCE_LEVEL) / num_cells
        return clustered_proportion(scores.outcome[present], scores.count[present], level)


NOTHING = Estimate(math.nan, math.nan, math.nan, math.nan, 0, 0)


def _nothing(estimate: Estimate) -> Estimate:
    return Estimate(math.nan, math.nan, math.nan, math.nan, estimate.num_clusters, estimate.num_episodes)


def _point(value: float, summary: GroupSummary | None, pair: tuple[TaskScores, TaskScores] | None) -> CurvePoint:
    change = None if pair is None else mean_of_changes([pair], [np.ones(len(pair[0].count), dtype=np.bool_)])
    if summary is None:
        return CurvePoint(value, NOTHING, NOTHING, NOTHING, change)
    return CurvePoint(value, summary.success, summary.luck_adjusted, summary.share_of_ceiling, change)


def _reference(flaw: str, severity: str, tasks: BoolArray, chances: FloatArray, deviate: FloatArray) -> FlawReference:
    num_tasks = int(tasks.sum())
    means = [float(values[tasks].mean()) if num_tasks else math.nan for values in (chances, deviate)]
    return FlawReference(flaw, severity, num_tasks, len(tasks) - num_tasks, *means)
