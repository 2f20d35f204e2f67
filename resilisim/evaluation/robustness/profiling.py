"""`profile`: how an agent does as things get worse, as a set of ordinary runs that differ in one thing at a time.

The exact references of a profile are solved first (`references`), then its runs are played one after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypedDict, Unpack

import numpy as np

from resilisim.bounds import Workers, checked
from resilisim.envs.settings import EnvironmentSettings
from resilisim.errors import Interrupted, InvalidInputError
from resilisim.evaluation.episode.record import fitting_ceiling
from resilisim.evaluation.episode.texts import RecordTexts
from resilisim.evaluation.robustness.analysis import (
    PlayedRuns,
    ProfileReferences,
    analyse_axis,
    analyse_flaws,
    carried_at_every_severity,
    obedience,
    setting_references,
)
from resilisim.evaluation.robustness.points import (
    AXES,
    DEFAULT_RELIABILITIES,
    DEFAULT_STRENGTHS,
    DEFAULT_TURNS,
    PART_AXES,
    RELIABILITY,
    STANDARD,
    TURN_LIMIT,
    ProfilePoints,
    ProfileRun,
    check_points,
    merge_with_earlier,
    number_settings,
    plan_runs,
    sound_run,
    write_profile,
)
from resilisim.evaluation.robustness.profile_result import AxisProfile, ProfileResult, RunState, count_setbacks
from resilisim.evaluation.run.arguments import TaskSpec
from resilisim.evaluation.run.contestants import ModelSpec, PolicySpec
from resilisim.evaluation.run.limits import RunLimits
from resilisim.evaluation.run.plan import RunPlan
from resilisim.evaluation.run.player import Players
from resilisim.evaluation.run.runner import RunInterrupted
from resilisim.evaluation.run.store import read_records
from resilisim.evaluation.run_results import EvaluationResult, folder_of, play_plan
from resilisim.tasks import Task
from resilisim.tasks.searches import all_searches_needed
from resilisim.tool_library import ToolLibrary
from resilisim.workflows.flaws import SEVERITIES
from resilisim.workflows.flaws.flaw import STRESSORS

# What of a run's arguments all runs of a profile have in common.
_COMMON = ("benchmark", "environment", "library", "policies", "prompts", "seeds", "tasks")


class ProfileInterrupted(Interrupted):
    """Somebody stopped a profile with Ctrl-C; what is finished is kept."""


@dataclass(frozen=True, slots=True, eq=False)
class ProfileJob:
    """A profile that is about to be made; `plan_profile` makes one from arguments as people write them."""

    directory: Path  # its folder
    plan: RunPlan = field(repr=False)  # of the run in the standard setting
    points: ProfilePoints  # what is varied, by this call and earlier ones on the folder
    players: Players
    progress: bool | None  # whether single runs show theirs

    @property
    def tasks(self) -> Sequence[Task]:
        """The tasks."""
        return self.plan.episodes.tasks

    @property
    def prompts(self) -> tuple[str, ...]:
        """The prompts of all runs but those of the flaws."""
        return self.plan.settings.prompts

    @property
    def standard(self) -> EnvironmentSettings:
        """The standard setting."""
        return self.plan.settings.environment

    @property
    def arguments(self) -> dict[str, Any]:
        """What all runs have in common, for `profile.json`."""
        common = {name: self.plan.arguments[name] for name in _COMMON}
        return {**common, "policies": list(dict.fromkeys(common["policies"]))}  # an agent of several models stands once

    @property
    def num_to_solve(self) -> int:
        """How many tasks `solve` solves, one counted again for each setting."""
        return len(self.tasks) * (len(number_settings(self.points, self.standard)) + bool(self.points.flaws))

    def solve(self, on_task: Callable[[int], None] = lambda count: None) -> ProfileReferences:
        """Compute what is exact about the tasks; nothing is written. `on_task` gets the number solved since last time.

        An ExactLimitError names a task that is too large to be solved under one of the settings.
        """
        points = self.points
        searches = self._searches()
        solved = {
            settings: setting_references(self.tasks, settings, self.plan.library, on_task, searches)
            for settings in number_settings(points, self.standard)
        }
        if not points.flaws:
            return ProfileReferences(solved, np.empty(0), {}, {})
        cells = [(flaw, severity) for flaw in points.flaws for severity in points.severities]
        sound, flawed = obedience(self.tasks, self.standard, self.plan.library, cells, on_task)
        carried = carried_at_every_severity(flawed, points.flaws, points.severities)
        return ProfileReferences(solved, sound, flawed, carried)

    def play(
        self, references: ProfileReferences, on_run: Callable[[int, int, ProfileRun], None] | None = None
    ) -> ProfileResult:
        """Play every run that is not finished, and return what the profile says; errors are those of `profile`.

        Before each run `on_run` gets its number, the number of runs, and the run.
        """
        runs = plan_runs(self.points, self.standard, self.prompts, self.tasks, references.carried)
        write_profile(self.directory, self.arguments, self.points, runs)
        results: dict[str, EvaluationResult] = {}
        for number, run in enumerate(runs, start=1):
            if on_run is not None:
                on_run(number, len(runs), run)
            try:
                out = self.directory / run.name
                plan = self.plan.varied(run.environment, run.tasks, run.prompts)
                results[run.name] = play_plan(plan, out, RunLimits(), self.players, self.progress)
            except RunInterrupted as error:
                raise ProfileInterrupted(f"run {number} of {len(runs)}, {run.title}: {error}") from error
        places = {task.instance_id: place for place, task in enumerate(self.tasks)}
        asked = results[STANDARD].manifest["arguments"]["policy_names"]
        tables = {name: result.facts.table for name, result in results.items()}
        setbacks = {
            run.name: count_setbacks(read_records(results[run.name].directory), places)
            for run in runs
            if run.axis in PART_AXES
        }
        played = PlayedRuns(places, asked, tables, setbacks)
        flaws = None
        if self.points.flaws:
            optimum, severities = references.settings[self.standard].optimum, self.points.severities
            flaws = analyse_flaws(played, references, optimum, severities, sound_run(self.prompts))
        axes = [axis for axis in (RELIABILITY, TURN_LIMIT) if getattr(self.points, axis)] + list(self.points.parts)
        states = tuple(
            RunState(
                run.name,
                run.title,
                len(run.tasks),
                run.left_out,
                result.num_episodes,
                result.num_planned,
                result.call.num_failures,
            )
            for run, result in zip(runs, results.values(), strict=True)
        )
        errors = [result.call.last_error for result in results.values() if result.call.last_error]
        return ProfileResult(
            self.directory,
            self.arguments,
            len(self.tasks),
            len(self.plan.episodes.seeds),
            states,
            tuple(self._axis(axis, played, references, runs) for axis in axes),
            flaws,
            max(references_of_setting.gap for references_of_setting in references.settings.values()),
            errors[-1] if errors else "",
        )

    def _searches(self) -> list[int | None]:
        """Return how many searches each task needs, None where no prompt leaves the tools to be found."""
        if all(fitting_ceiling(prompt, self.standard.tools) == "optimum" for prompt in self.prompts):
            return [None] * len(self.tasks)
        search_many = self.standard.search_many(self.plan.library)
        return [searches.fewest for searches in all_searches_needed(self.tasks, self.plan.library, search_many)]

    def _axis(
        self, axis: str, played: PlayedRuns, references: ProfileReferences, runs: Sequence[ProfileRun]
    ) -> AxisProfile:
        standard = {RELIABILITY: self.standard.base, TURN_LIMIT: self.standard.max_turns}.get(axis, 0.0)
        points = {
            run.value if isinstance(run.value, int | float) else standard: run
            for run in runs
            if run.axis in (axis, STANDARD)
        }
        settings_by_value = {
            value: (run.name, references.settings[run.environment]) for value, run in sorted(points.items())
        }
        return analyse_axis(played, self.prompts, self.standard.tools, axis, standard, settings_by_value)


class ProfileOptions(TypedDict, total=False):
    """What `profile` hands on to `plan_profile`."""

    prompts: str | Iterable[str]
    standard: EnvironmentSettings | None
    library: ToolLibrary | None
    workers: int
    model: ModelSpec
    record_texts: RecordTexts | None
    progress: bool | None


def profile(
    policies: PolicySpec | Iterable[PolicySpec],
    tasks: TaskSpec | Iterable[TaskSpec] | int | Path,
    seeds: int | Iterable[int] = 1,
    *,
    out: Path | str,
    axes: str | Iterable[str] = AXES,
    bases: Iterable[float] = DEFAULT_RELIABILITIES,
    turns: Iterable[int] = DEFAULT_TURNS,
    flaws: str | Iterable[str] = tuple(STRESSORS),
    severities: str | Iterable[str] = SEVERITIES,
    strengths: Iterable[float] = DEFAULT_STRENGTHS,
    **options: Unpack[ProfileOptions],
) -> ProfileResult:
    """Play policies in the standard setting, and in others that are worse or better in one thing at a time.

    Every run is an ordinary run folder below `out`, made by `evaluate`, with the same tasks, seeds and luck. The
    profile may be killed at any moment: the same call goes on, and what is finished is not played again. A call with
    other points on the same folder adds them.

    Args:
        policies: Names, `module:attribute`, or classes or functions that return a policy.
        tasks: As in `evaluate`.
        seeds: Number of episodes of each task, or the seeds themselves.
        out: Folder of the profile.
        axes: What to vary: "reliability" of the tools, "turns" of an episode, "flaws" of the plan, or a part of the law
            ("rate_limit", "outage", "broken", "corrupt", "drift", "error_kinds", "latency").
        bases: Success probabilities of a tool whose dependencies have succeeded.
        turns: Numbers of turns.
        flaws: Flaw types, and "argument_passing"; all eight if omitted.
        severities: Severities of each flaw.
        strengths: Strengths of each part of the law, from 0 to 1 (`points.law_at`).
        **options: Those of `plan_profile`: `prompts`, `standard`, `library`, `workers`, `model`, `record_texts`,
            `progress`.

    Raises:
        InvalidInputError: An argument is unusable.
        ExactLimitError: A task is too large to be solved exactly.
        StoreError: A folder holds something else, or cannot be written.
        InfrastructureError: A worker process died, or what policies need is down for episode after episode.
        ProfileInterrupted: Ctrl-C; what is finished is kept.

    Example:
        >>> import tempfile
        >>> from resilisim.evaluation.robustness import profile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     found = profile("exact-optimum", 3, out=folder, axes="turns", turns=[4, 12])
        >>> found.axis("turns").values
        (4, 10, 12)
    """
    points = check_points(axes, bases, turns, flaws, severities, strengths)
    job = plan_profile(policies, tasks, seeds, points, out=out, **options)
    return job.play(job.solve())


def plan_profile(
    policies: PolicySpec | Iterable[PolicySpec],
    tasks: TaskSpec | Iterable[TaskSpec] | int | Path,
    seeds: int | Iterable[int],
    points: ProfilePoints,
    *,
    out: Path | str,
    prompts: str | Iterable[str] = ("optimal",),
    standard: EnvironmentSettings | None = None,
    library: ToolLibrary | None = None,
    workers: int = 1,
    model: ModelSpec = None,
    record_texts: RecordTexts | None = None,
    progress: bool | None = None,
) -> ProfileJob:
    """Return the profile that arguments mean, ready to be solved and played; nothing is written yet.

    Args:
        policies: As in `profile`, as are tasks, seeds and out.
        tasks: Likewise.
        seeds: Likewise.
        points: What is varied (`check_points`).
        out: Likewise.
        prompts: Prompts along the axes of numbers; the flaws are compared with the optimal prompt.
        standard: The standard setting; the benchmark's if omitted.
        library: The tool library; the default one if omitted.
        workers: Processes.
        model: The language models of LLM agents, as in `evaluate`.
        record_texts: Whose texts stay in the records, as in `evaluate`.
        progress: Whether single runs show their progress; None shows it for those of more than two seconds.

    Raises:
        InvalidInputError: An argument is unusable.
        StoreError: The folder holds something else.
    """
    directory, num_workers = folder_of(out), checked(Workers, "workers", workers)
    plan = RunPlan.of(
        policies,
        tasks,
        prompts,
        seeds,
        environment=standard,
        library=library,
        model=model,
        record_texts=record_texts,
    )
    environment = plan.settings.environment
    if environment.world is not None:
        raise InvalidInputError(f"tasks of world {environment.world!r} have no profile: expected tasks of a library")
    if points.reliability and all(tool.success_probability is not None for tool in plan.library):
        raise InvalidInputError(
            "every tool of the library has a success probability of its own, so the axis reliability would change "
            "nothing: expected a tool without one, or other axes"
        )
    if points.reliability and not isinstance(environment.law, str):
        raise InvalidInputError(
            f"the law {environment.law.name!r:.100} has constants of its own, which the axis reliability changes: "
            "expected other axes"
        )
    job = ProfileJob(directory, plan, points, Players(num_workers, plan.has_agents), progress)
    merged = merge_with_earlier(directory, job.arguments, points.with_standard(environment))
    return replace(job, points=merged)
