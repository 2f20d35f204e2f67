"""From the sums of a profile's runs and the exact references to curves, flaws and summary numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from resilisim.evaluation.episode.record import fitting_ceiling
from resilisim.evaluation.robustness.plan import OPTIMAL, STANDARD, flawed_prompt
from resilisim.evaluation.robustness.references import SettingReferences
from resilisim.evaluation.robustness.results import (
    SOUND,
    AxisProfile,
    Curve,
    CurvePoint,
    FlawCell,
    FlawProfile,
    FlawReference,
    FlawsProfile,
    ProfiledPolicy,
)
from resilisim.evaluation.robustness.scores import (
    TaskScores,
    Twofold,
    mean_of_changes,
    recovered_share,
    share_of_area,
    task_scores,
    twofold_ratio,
)
from resilisim.evaluation.table.episodes import EpisodeTable
from resilisim.evaluation.table.summary import GroupSummary, summarise_group
from resilisim.statistics import CONFIDENCE_LEVEL, Estimate, FloatArray, clustered_proportion

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
