"""From the tables of a profile's runs and the exact references to curves, flaws and summary numbers.

All runs of a profile have the same tasks, seeds and luck: the uniform of an execution is a function of its episode,
tool and count, whatever the reliability, the turns or the prompt. So two settings are compared task by task, and what
their episodes share cancels out. Tasks are the units that vary (`statistics.estimates.clustered_ratio`).

What runs are compared with is exact for every task: the optimum, and following a plan.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from resilisim.envs.settings import EnvironmentSettings
from resilisim.errors import ExactLimitError
from resilisim.evaluation.episode.record import fitting_ceiling
from resilisim.evaluation.robustness.points import OPTIMAL, STANDARD, flawed_prompt
from resilisim.evaluation.robustness.profile_result import (
    NO_SEVERITY,
    AxisProfile,
    Curve,
    CurvePoint,
    FlawCell,
    FlawProfile,
    FlawReference,
    FlawsProfile,
    ProfiledPolicy,
    Setbacks,
    Twofold,
)
from resilisim.evaluation.table.episodes import EpisodeTable
from resilisim.evaluation.table.summary import GroupSummary, summarise_group
from resilisim.simulator import Problem
from resilisim.simulator.exact.references import solved_references
from resilisim.statistics import Estimate
from resilisim.statistics.estimates import (
    CONFIDENCE_LEVEL,
    ROUNDING,
    FloatArray,
    clopper_pearson,
    clustered_proportion,
    clustered_ratio,
)
from resilisim.tasks import Task
from resilisim.tool_library import ToolLibrary
from resilisim.workflows.argument_references import texts_of
from resilisim.workflows.plan_value import follow_steps
from resilisim.workflows.planner import resolve_planner

BoolArray = NDArray[np.bool_]
Cell = tuple[str, str]  # flaw and severity

THREADS = 2  # the compiled solver releases the interpreter lock, so they run side by side


@dataclass(frozen=True, slots=True, eq=False)
class SettingReferences:
    """The references of all tasks under one setting; shape (num_tasks,) each."""

    optimum: FloatArray  # V* of each task's start
    plan_following: FloatArray  # the chance of the required tools in order, each repeated until it succeeds
    # V* after the fewest searches that show the task's tools; V* where they are unknown or nobody has to search
    after_search: FloatArray
    gap: float  # by how much any V* may be too low; 0 where all are exact
    is_informed: bool  # whether any V* is that of an agent that sees what the law hides


@dataclass(frozen=True, slots=True, eq=False)
class ProfileReferences:
    """What is exact about the tasks of a profile."""

    settings: Mapping[EnvironmentSettings, SettingReferences]  # the standard one and those of the axes of numbers
    sound_obey: FloatArray  # chance of success by doing the sound plan to the letter; shape (num_tasks,)
    obey: Mapping[Cell, FloatArray]  # the same for each flaw and severity; NaN where a plan cannot carry the flaw
    carried: Mapping[str, BoolArray]  # for each flaw the tasks whose plans carry it at every severity


def setting_references(
    tasks: Sequence[Task],
    settings: EnvironmentSettings,
    library: ToolLibrary,
    on_task: Callable[[int], None],
    searches: Sequence[int | None],
) -> SettingReferences:
    """Solve all tasks under a setting; `on_task` gets the number solved since last time.

    `searches` are for each task the fewest that show its tools; None where that is unknown or does not matter. An
    ExactLimitError names a task that is too large to be solved.
    """
    places: dict[Problem, list[int]] = {}
    for place, task in enumerate(tasks):
        places.setdefault(_problem(task, settings, library), []).append(place)
    optimum, plan_following, after_search = np.empty((3, len(tasks)))
    gap, is_informed = 0.0, False
    with ThreadPoolExecutor(THREADS) as pool:
        answers = pool.map(solved_references, places)
        for own in places.values():
            try:
                solved = next(answers)
            except ExactLimitError as error:
                name = tasks[own[0]].instance_id
                raise ExactLimitError(f"task {name}, {settings.max_turns} turns: {error}") from error
            optimum[own] = solved.optimum
            plan_following[own] = solved.plan_following
            after_search[own] = [solved.after_search[searches[place] or 0] for place in own]
            gap = max(gap, solved.optimum_gap)
            is_informed = is_informed or solved.knowledge == "informed"
            on_task(len(own))
    return SettingReferences(optimum, plan_following, after_search, gap, is_informed)


def obedience(
    tasks: Sequence[Task],
    settings: EnvironmentSettings,
    library: ToolLibrary,
    cells: Sequence[Cell],
    on_task: Callable[[int], None],
) -> tuple[FloatArray, dict[Cell, FloatArray]]:
    """Return the chances of full success of doing plans to the letter, with retries: of sound ones, and of each cell.

    The plans are those of the prompts that episodes begin with, and calls are refused as the setting says (a plan
    without required parameters can be followed where they may be left out). Where a plan cannot carry the flaw of a
    cell there is NaN; shape (num_tasks,).
    """
    rules = settings.rules()
    planner, perturber = (
        resolve_planner(settings.planner, library, settings.planning_law(), rules),
        settings.perturber(library),
    )
    names = [(*cell, None) for cell in cells]  # the method is drawn, as in the prompts
    sound = np.empty(len(tasks))
    flawed = {cell: np.full(len(tasks), np.nan) for cell in cells}
    for place, task in enumerate(tasks):
        workflow, problem = planner.plan(task), _problem(task, settings, library)
        texts = texts_of(task)
        sound[place] = follow_steps(problem, workflow.steps, settings.parameters, texts).success
        for (flaw, severity, _), carried in perturber.carried(workflow, task.required_tools, names):
            chance = follow_steps(problem, carried.workflow.steps, settings.parameters, texts).success
            flawed[flaw, severity][place] = chance
        on_task(1)
    return sound, flawed


def carried_at_every_severity(
    chances: Mapping[Cell, FloatArray], flaws: Sequence[str], severities: Sequence[str]
) -> dict[str, BoolArray]:
    """Return for each flaw which plans can carry it at all severities; shape (num_tasks,)."""
    return {
        flaw: np.logical_and.reduce([~np.isnan(chances[flaw, severity]) for severity in severities]) for flaw in flaws
    }


def _problem(task: Task, settings: EnvironmentSettings, library: ToolLibrary) -> Problem:
    """Return a task's problem under a setting; equal ones are the same object."""
    return settings.problem(library, task.required_tools)


NO_ESTIMATE = Estimate.nothing()


@dataclass(frozen=True, slots=True, eq=False)
class TaskScores:
    """Sums over the episodes of one policy under one prompt in one run; shape (num_tasks,) each, of all tasks."""

    count: FloatArray
    outcome: FloatArray
    # outcome - beta luck, beta cross-fitted over folds of tasks; NaN for agents that try again in fresh episodes, whose
    # last try was not drawn like a first one
    adjusted: FloatArray


def task_scores(group: EpisodeTable, place_of: Mapping[str, int]) -> TaskScores:
    """Return the scores of one policy under one prompt in one run (`EpisodeTable.group`)."""
    places = np.array([place_of[task.instance_id] for task in group.tasks], dtype=np.int64)  # (num_tasks,) of the run
    count, outcome, adjusted = map(group.by_task, (group.count, group.outcome, group.adjusted))
    if group.has_no_ceiling:
        adjusted = np.full(len(places), np.nan)
    scores = np.zeros((3, len(place_of)))
    scores[:, places] = count, outcome, adjusted
    return TaskScores(*scores)


def mean_of_changes(settings: Sequence[tuple[TaskScores, TaskScores, BoolArray]]) -> Twofold:
    """Estimate the mean difference over the episodes of several pairs of settings.

    A pair holds scores here, scores to compare with, and which tasks count, shape (num_tasks,). Tasks with another
    number of episodes in one of both are left out.
    """
    raw, adjusted, count = np.zeros((3, len(settings[0][2]) if settings else 0))
    for here, other, tasks in settings:
        common = tasks & (here.count > 0) & (here.count == other.count)
        raw += np.where(common, here.outcome - other.outcome, 0.0)
        adjusted += np.where(common, here.adjusted - other.adjusted, 0.0)
        count += np.where(common, here.count, 0.0)
    change = _twofold_ratio(raw, adjusted, count, int(count.sum()))
    return Twofold(change.raw.cut(-1.0, 1.0), change.adjusted.cut(-1.0, 1.0))


def recovered_share(parts: Sequence[tuple[TaskScores, FloatArray, FloatArray, BoolArray]]) -> Twofold:
    """Estimate how much a policy gets back of what following flawed plans to the letter ("obey") gives away.

    The share is sum(outcome - obey) / sum(deviate - obey): 0 for an agent that obeys, 1 for the optimum; below 0 it
    does worse than by obeying. A part, one for each flaw, holds the scores, the chance of success by obeying, V*, and
    which tasks count.
    """
    raw, adjusted, price = np.zeros((3, len(parts[0][1]) if parts else 0))
    episodes = 0.0
    for scores, obey, deviate, tasks in parts:
        counted = tasks & (scores.count > 0)
        expected = scores.count * obey
        raw += np.where(counted, scores.outcome - expected, 0.0)
        adjusted += np.where(counted, scores.adjusted - expected, 0.0)
        price += np.where(counted, scores.count * (deviate - obey), 0.0)
        episodes += float(scores.count[counted].sum())
    total = float(price.sum())
    return _twofold_ratio(raw, adjusted, price, int(episodes), episodes / total if total else math.nan)


def share_of_area(scores: Sequence[TaskScores], ceilings: Sequence[FloatArray], values: Sequence[float]) -> Twofold:
    """Estimate the mean success along an axis as a share of the mean ceiling along it (trapezoid rule).

    Scores and ceilings, shape (num_tasks,), are those at each of the `values`, which ascend. Every task that is
    finished at all of them counts once, however many episodes it has.
    """
    finished = np.logical_and.reduce([here.count > 0 for here in scores])
    raw, adjusted, area = np.zeros((3, len(finished)))
    for here, ceiling, weight in zip(scores, ceilings, trapezoid_weights(values), strict=True):
        count = np.maximum(here.count, 1.0)
        raw += weight * here.outcome / count
        adjusted += weight * here.adjusted / count
        area += weight * ceiling
    raw, adjusted, area = (np.where(finished, part, 0.0) for part in (raw, adjusted, area))
    episodes = int(sum(here.count[finished].sum() for here in scores))
    total = float(area.sum())
    scale = int(finished.sum()) / total if total else math.nan
    share = _twofold_ratio(raw, adjusted, area, episodes, scale)
    return Twofold(share.raw.cut(), share.adjusted.cut())


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


def _twofold_ratio(
    raw: FloatArray, adjusted: FloatArray, weights: FloatArray, num_episodes: int, scale: float = 1.0
) -> Twofold:
    """Estimate sum(raw) / sum(weights) and the same of the adjusted scores, tasks being the units that vary.

    Where the raw ratio does not vary at all (no episode succeeded, none differs), its error is 0 and tells nothing;
    both intervals then reach at least as far as that of a rate of 0 among as many units as there are tasks. `scale` is
    what a success rate of 1 is in the units of the ratio. Tasks of weight 0 do not count.
    """
    present = weights != 0.0
    plain, fair = (clustered_ratio(part[present], weights[present], num_episodes) for part in (raw, adjusted))
    if plain.standard_error <= ROUNDING:
        reach = clopper_pearson(0.0, float(plain.num_clusters), CONFIDENCE_LEVEL)[1] * scale
        plain, fair = (
            replace(share, low=min(share.low, share.value - reach), high=max(share.high, share.value + reach))
            for share in (plain, fair)
        )
    return Twofold(plain, fair)


@dataclass(frozen=True)
class PlayedRuns:
    """The results of a profile's runs."""

    place_of: Mapping[str, int]  # the place of each task of the profile, by id
    asked: Sequence[str]  # names of the policies of the command, in order
    tables: Mapping[str, EpisodeTable]  # table of sums of each run, by its name
    setbacks: Mapping[str, Mapping[Cell, Setbacks]] = field(default_factory=dict)  # of runs under a part of the law

    @cached_property
    def policies(self) -> tuple[str, ...]:
        """Names of all policies; those that the runs hold besides the command's come after them."""
        return tuple(dict.fromkeys([*self.asked, *(name for table in self.tables.values() for name, _ in table.facts)]))

    def profiled(self, policy: str, prompt: str) -> ProfiledPolicy:
        """Return who plays, with what is known of the policy from all runs."""
        own = [table.group(policy, *table.prompts) for table in self.tables.values() if policy in table.policies]
        privileged = any(bool(group.privileged.any()) for group in own)
        return ProfiledPolicy(policy, prompt, privileged, any(bool(group.has_no_ceiling) for group in own))

    def scores(self, run: str, policy: str, prompt: str) -> TaskScores:
        """Return scores per task; all 0 where nothing was played."""
        group = self._group(run, policy, prompt)
        if group is None:
            return TaskScores(*np.zeros((3, len(self.place_of))))
        return task_scores(group, self.place_of)

    def summary(self, run: str, policy: str, prompt: str, chosen: BoolArray | None = None) -> GroupSummary | None:
        """Return the summary over all tasks, or those chosen, shape (num_tasks,); None where nothing was played."""
        group = self._group(run, policy, prompt)
        if group is None:
            return None
        places = [self.place_of[task.instance_id] for task in group.tasks]
        return summarise_group(group, None if chosen is None else chosen[places])

    def _group(self, run: str, policy: str, prompt: str) -> EpisodeTable | None:
        table = self.tables.get(run)
        return None if table is None or (policy, prompt) not in table.facts else table.group(policy, prompt)


def analyse_axis(
    played: PlayedRuns,
    prompts: Sequence[str],
    tools: str,
    axis: str,
    standard: float,
    points: Mapping[float, tuple[str, SettingReferences]],
) -> AxisProfile:
    """Return the curves of all policies along an axis of numbers, whose value in the standard setting is `standard`.

    `points` are for each value, ascending, the name of its run and the references; `tools` is that option of all runs.
    """
    references = [reference for _, reference in points.values()]
    curves = []
    for who in (played.profiled(policy, prompt) for policy in played.policies for prompt in prompts):
        ceiling = fitting_ceiling(who.prompt, tools, who.privileged)
        knows_tools = ceiling == "optimum"
        scores = [played.scores(run, who.policy, who.prompt) for run, _ in points.values()]
        usual = played.scores(STANDARD, who.policy, who.prompt)
        curve = [
            _point(
                value,
                played.summary(run, who.policy, who.prompt),
                None if value == standard else (here, usual),
                played.setbacks.get(run, {}).get((who.policy, who.prompt)),
            )
            for (value, (run, _)), here in zip(points.items(), scores, strict=True)
        ]
        ceilings = [reference.optimum if knows_tools else reference.after_search for reference in references]
        area = share_of_area(scores, ceilings, list(points))
        if who.tries_again:  # it has no ceiling
            parts = (Estimate.nothing(part.num_clusters, part.num_episodes) for part in (area.raw, area.adjusted))
            area = Twofold(*parts)
        curves.append(Curve(who, tuple(curve), area, ceiling))

    def mean(name: str) -> tuple[float, ...]:
        return tuple(float(getattr(reference, name).mean()) for reference in references)

    means = (mean("optimum"), mean("after_search"), mean("plan_following"))
    informed = tuple(value for value, (_, found) in points.items() if found.is_informed)
    return AxisProfile(axis, standard, tuple(points), *means, informed, tuple(curves))


def _point(
    value: float,
    summary: GroupSummary | None,
    pair: tuple[TaskScores, TaskScores] | None,
    setbacks: Setbacks | None = None,
) -> CurvePoint:
    change = None if pair is None else mean_of_changes([(*pair, np.ones(len(pair[0].count), dtype=np.bool_))])
    if summary is None:
        return CurvePoint(value, NO_ESTIMATE, NO_ESTIMATE, NO_ESTIMATE, change)
    recovery = None if setbacks is None else setbacks.recovery()
    return CurvePoint(value, summary.success, summary.luck_adjusted, summary.share_of_ceiling, change, recovery)


def analyse_flaws(
    played: PlayedRuns, references: ProfileReferences, deviate: FloatArray, severities: Sequence[str], sound_run: str
) -> FlawsProfile:
    """Return what the flaws do to all policies: `deviate` is V* of each task, `sound_run` that with the sound plans."""
    analysed = []
    for flaw, tasks in references.carried.items():
        for severity in (NO_SEVERITY, *severities):
            obey = references.sound_obey if severity == NO_SEVERITY else references.obey[flaw, severity]
            num_tasks = int(tasks.sum())
            means = [float(values[tasks].mean()) if num_tasks else math.nan for values in (obey, deviate)]
            analysed.append(FlawReference(flaw, severity, num_tasks, len(tasks) - num_tasks, *means))
    policies = [
        _FlawAnalysis(played, policy, references, deviate, sound_run).profile(analysed) for policy in played.policies
    ]
    return FlawsProfile(tuple(references.carried), tuple(severities), tuple(analysed), tuple(policies))


@dataclass(frozen=True)
class _FlawAnalysis:
    """The results of one policy under all flaws."""

    played: PlayedRuns
    policy: str
    references: ProfileReferences
    deviate: FloatArray
    sound_run: str

    def profile(self, references: Sequence[FlawReference]) -> FlawProfile:
        references = [reference for reference in references if reference.num_tasks]
        cells = [self._cell(reference) for reference in references]
        keys = [(reference.flaw, reference.severity) for reference in references if reference.severity != NO_SEVERITY]
        flawed = [cell for cell in cells if cell.change is not None and not math.isnan(cell.success.value)]
        lowest = min((cell.success.value for cell in flawed), default=math.nan)
        worst = tuple(cell.reference for cell in flawed if cell.success.value == lowest)
        sound = self.played.summary(self.sound_run, self.policy, OPTIMAL)
        by_flaw, by_severity = (
            {name: self._drop([key for key in keys if key[place] == name]) for name in dict.fromkeys(names)}
            for place, names in enumerate(([flaw for flaw, _ in keys], [severity for _, severity in keys]))
        )
        return FlawProfile(
            self.played.profiled(self.policy, OPTIMAL),
            NO_ESTIMATE if sound is None else sound.success,
            tuple(cells),
            self._drop(keys),
            by_severity,
            by_flaw,
            self._recovered(keys),
            worst,
            self._of_the_worst(worst[0], len(flawed)) if worst else NO_ESTIMATE,
        )

    def _cell(self, reference: FlawReference) -> FlawCell:
        key, tasks = (reference.flaw, reference.severity), self.references.carried[reference.flaw]
        is_sound = reference.severity == NO_SEVERITY
        if is_sound:
            summary = self.played.summary(self.sound_run, self.policy, OPTIMAL, tasks)
        else:
            summary = self.played.summary(f"flaws-{reference.flaw}", self.policy, flawed_prompt(*key))
        change = None if is_sound else mean_of_changes([(self._scores[key], self._sound, tasks)])
        success, adjusted = (NO_ESTIMATE, NO_ESTIMATE) if summary is None else (summary.success, summary.luck_adjusted)
        return FlawCell(reference, success, adjusted, change, None if is_sound else self._recovered([key]))

    @cached_property
    def _sound(self) -> TaskScores:
        return self.played.scores(self.sound_run, self.policy, OPTIMAL)

    @cached_property
    def _scores(self) -> dict[Cell, TaskScores]:
        scores = self.played.scores
        return {key: scores(f"flaws-{key[0]}", self.policy, flawed_prompt(*key)) for key in self.references.obey}

    def _drop(self, keys: Sequence[Cell]) -> Twofold:
        return mean_of_changes([(self._sound, self._scores[key], self.references.carried[key[0]]) for key in keys])

    def _recovered(self, keys: Sequence[Cell]) -> Twofold:
        obey, carried = self.references.obey, self.references.carried
        return recovered_share([(self._scores[key], obey[key], self.deviate, carried[key[0]]) for key in keys])

    def _of_the_worst(self, reference: FlawReference, num_cells: int) -> Estimate:
        scores = self._scores[reference.flaw, reference.severity]
        present = scores.count > 0
        level = 1.0 - (1.0 - CONFIDENCE_LEVEL) / num_cells
        return clustered_proportion(scores.outcome[present], scores.count[present], level)
