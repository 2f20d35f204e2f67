"""`profile`: how an agent does as things get worse, as a set of ordinary runs that differ in one thing at a time.

The exact references of a profile are solved first (`references`), then its runs are played one after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from resilisim.envs.settings import EnvironmentSettings
from resilisim.errors import MAX_WORKERS, InvalidInputError, check_integer
from resilisim.evaluation.episode.record import fitting_ceiling
from resilisim.evaluation.episode.texts import RecordTexts
from resilisim.evaluation.results import EvaluationResult, evaluate
from resilisim.evaluation.robustness.analysis import PlayedRuns, analyse_axis, analyse_flaws
from resilisim.evaluation.robustness.points import (
    AXES,
    DEFAULT_RELIABILITIES,
    DEFAULT_TURNS,
    RELIABILITY,
    STANDARD,
    TURNS,
    ProfilePoints,
    ProfileRun,
    check_points,
    merge_with_earlier,
    number_settings,
    plan_runs,
    sound_run,
    write_profile,
)
from resilisim.evaluation.robustness.profile_result import AxisProfile, FlawsProfile, ProfileResult, RunState
from resilisim.evaluation.robustness.references import (
    SettingReferences,
    carried_at_every_severity,
    obedience,
    setting_references,
)
from resilisim.evaluation.run.contestants import ModelSpec, PolicySpec, describe_policy
from resilisim.evaluation.run.plan import (
    TaskSpec,
    check_policies,
    check_prompts,
    check_record_texts,
    check_seeds,
    check_tasks,
    hash_tasks,
)
from resilisim.evaluation.run.runner import RunInterrupted
from resilisim.evaluation.table.episodes import EpisodeTable
from resilisim.statistics.estimates import FloatArray
from resilisim.tasks import Task
from resilisim.tasks.benchmark import benchmark_identity
from resilisim.tasks.searches import all_searches_needed
from resilisim.tool_library import ToolLibrary, default_library
from resilisim.tool_library.retrieval import ToolRetriever
from resilisim.workflows.flaws import FLAW_TYPES, SEVERITIES


class ProfileInterrupted(KeyboardInterrupt):
    """Somebody stopped a profile with Ctrl-C; what is finished is kept."""


@dataclass(frozen=True, slots=True, eq=False)
class ProfileReferences:
    """What is exact about the tasks of a profile.

    Attributes:
        settings: V*, V* after searches and plan following of each task, for each setting of the axes of numbers and the
            standard one.
        sound_obey: Chance of success by doing the sound plan to the letter; shape (num_tasks,).
        obey: The same for each flaw and severity; NaN where a plan cannot carry the flaw.
        carried: For each flaw the tasks whose plans carry it at every severity; shape (num_tasks,).
    """

    settings: Mapping[EnvironmentSettings, SettingReferences]
    sound_obey: FloatArray
    obey: Mapping[tuple[str, str], FloatArray]
    carried: Mapping[str, NDArray[np.bool_]]


@dataclass(frozen=True, slots=True, eq=False)
class ProfileJob:
    """A profile that is about to be made; `plan_profile` makes one from arguments as people write them.

    Attributes:
        directory: Its folder.
        policies: What makes each policy.
        tasks: Its tasks.
        prompts: Prompts of all runs but those of the flaws.
        seeds: Episode seeds.
        points: What is varied, by this call and earlier ones on the folder.
        standard: The standard setting.
        library: The tool library.
        own_library: The tool library if it is not the default one.
        workers: Processes.
        model: The language models of LLM agents.
        record_texts: Whose texts stay in the records.
        progress: Whether single runs show their progress; None shows it for those of more than two seconds.
        arguments: What all runs have in common, for `profile.json`.
    """

    directory: Path
    policies: tuple[PolicySpec, ...]
    tasks: Sequence[Task] = field(repr=False)
    prompts: tuple[str, ...]
    seeds: tuple[int, ...]
    points: ProfilePoints
    standard: EnvironmentSettings
    library: ToolLibrary = field(repr=False)
    own_library: ToolLibrary | None = field(repr=False)
    workers: int
    model: ModelSpec = field(repr=False)
    record_texts: RecordTexts | None
    progress: bool | None
    arguments: Mapping[str, Any] = field(repr=False)

    @property
    def num_to_solve(self) -> int:
        """How many tasks `solve` solves, one counted again for each setting."""
        return len(self.tasks) * (len(self._settings()) + bool(self.points.flaws))

    def solve(self, on_task: Callable[[int], None] | None = None) -> ProfileReferences:
        """Compute what is exact about the tasks; nothing is written.

        Raises:
            ExactLimitError: A task is too large to be solved under one of the settings.
        """
        count = on_task if on_task is not None else _ignore
        points = self.points
        searches = self._searches()
        solved = {
            settings: setting_references(self.tasks, settings, self.library, count, searches)
            for settings in self._settings()
        }
        if not points.flaws:
            return ProfileReferences(solved, np.empty(0), {}, {})
        cells = [(flaw, severity) for flaw in points.flaws for severity in points.severities]
        sound, flawed = obedience(self.tasks, self.standard, self.library, cells, count)
        carried = carried_at_every_severity(flawed, points.flaws, points.severities)
        return ProfileReferences(solved, sound, flawed, carried)

    def play(
        self, references: ProfileReferences, on_run: Callable[[int, int, ProfileRun], None] | None = None
    ) -> ProfileResult:
        """Play every run that is not finished, and return what the profile says.

        Args:
            references: What `solve` returned.
            on_run: Called before each run with its number, the number of runs, and the run.

        Raises:
            InvalidInputError: A policy cannot be made.
            StoreError: A folder holds another run, or cannot be written.
            InfrastructureError: A worker process died, or what policies need is down for episode after episode.
            ProfileInterrupted: Ctrl-C; what is finished is kept.
        """
        runs = plan_runs(self.points, self.standard, self.prompts, self.tasks, references.carried)
        write_profile(self.directory, self.arguments, self.points, runs)
        tables: dict[str, EpisodeTable] = {}
        states: list[RunState] = []
        policies: tuple[str, ...] = ()
        last_error = ""
        for number, run in enumerate(runs, start=1):
            if on_run is not None:
                on_run(number, len(runs), run)
            result = self._play(run, f"run {number} of {len(runs)}, {run.title}")
            policies = policies or tuple(result.manifest["arguments"]["policy_names"])
            tables[run.name] = result.facts.table
            states.append(_state(run, result))
            last_error = result.call.last_error or last_error
        played = PlayedRuns([task.instance_id for task in self.tasks], policies, tables)
        return self._result(played, references, runs, states, last_error)

    def _play(self, run: ProfileRun, where: str) -> EvaluationResult:
        try:
            return evaluate(
                self.policies,
                list(run.tasks),
                run.prompts,
                self.seeds,
                out=self.directory / run.name,
                workers=self.workers,
                library=self.own_library,
                model=self.model,
                record_texts=self.record_texts,
                progress=self.progress,
                **asdict(run.environment),
            )
        except RunInterrupted as error:
            raise ProfileInterrupted(f"{where}: {error}") from error

    def _searches(self) -> list[int | None]:
        """Return how many searches each task needs, None where no prompt leaves the tools to be found."""
        if all(fitting_ceiling(prompt, self.standard.tools) == "known_probabilities" for prompt in self.prompts):
            return [None] * len(self.tasks)
        model = self.standard.embedding_model
        search_many = None if model is None else ToolRetriever(self.library, model).search_many
        return [searches.fewest for searches in all_searches_needed(self.tasks, self.library, search_many)]

    def _settings(self) -> tuple[EnvironmentSettings, ...]:
        return number_settings(self.points, self.standard)

    def _result(
        self,
        played: PlayedRuns,
        references: ProfileReferences,
        runs: Sequence[ProfileRun],
        states: Sequence[RunState],
        last_error: str,
    ) -> ProfileResult:
        standards: dict[str, float] = {RELIABILITY: self.standard.base, TURNS: self.standard.max_turns}
        return ProfileResult(
            self.directory,
            self.arguments,
            len(self.tasks),
            len(self.seeds),
            tuple(states),
            tuple(
                self._axis(axis, standard, played, references, runs)
                for axis, standard in standards.items()
                if getattr(self.points, axis)
            ),
            self._flaws(played, references),
            max(found.gap for found in references.settings.values()),
            last_error,
        )

    def _axis(
        self,
        axis: str,
        standard: float,
        played: PlayedRuns,
        references: ProfileReferences,
        runs: Sequence[ProfileRun],
    ) -> AxisProfile:
        points = {
            run.value if isinstance(run.value, int | float) else standard: (
                run.name,
                references.settings[run.environment],
            )
            for run in runs
            if run.axis in (axis, STANDARD)
        }
        return analyse_axis(played, self.prompts, self.standard.tools, axis, standard, dict(sorted(points.items())))

    def _flaws(self, played: PlayedRuns, references: ProfileReferences) -> FlawsProfile | None:
        if not self.points.flaws:
            return None
        return analyse_flaws(
            played,
            references.carried,
            self.points.severities,
            references.obey,
            references.sound_obey,
            references.settings[self.standard].optimum,
            sound_run(self.prompts),
        )


def _state(run: ProfileRun, result: EvaluationResult) -> RunState:
    return RunState(
        run.name,
        run.title,
        len(run.tasks),
        run.left_out,
        result.num_episodes,
        result.num_planned,
        result.call.num_failures,
    )


def _ignore(count: int) -> None:
    """Nobody wants to know how far it is."""


def profile(
    policies: PolicySpec | Iterable[PolicySpec],
    tasks: TaskSpec | Iterable[TaskSpec] | int | Path,
    seeds: int | Iterable[int] = 1,
    *,
    out: Path | str,
    axes: str | Iterable[str] = AXES,
    bases: Iterable[float] = DEFAULT_RELIABILITIES,
    turns: Iterable[int] = DEFAULT_TURNS,
    flaws: str | Iterable[str] = FLAW_TYPES,
    severities: str | Iterable[str] = SEVERITIES,
    prompts: str | Iterable[str] = ("optimal",),
    standard: EnvironmentSettings | None = None,
    library: ToolLibrary | None = None,
    workers: int = 1,
    model: ModelSpec = None,
    record_texts: RecordTexts | None = None,
    progress: bool | None = None,
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
        axes: What to vary: "reliability" of the tools, "turns" of an episode, "flaws" of the plan.
        bases: Success probabilities of a tool whose dependencies have succeeded.
        turns: Numbers of turns.
        flaws: Flaw types.
        severities: Severities of each flaw.
        prompts: Prompts along the axes of numbers; the flaws are compared with the optimal prompt.
        standard: The standard setting; the benchmark's if omitted.
        library: The tool library; the default one if omitted.
        workers: Processes.
        model: The language models of LLM agents, as in `evaluate`.
        record_texts: Whose texts stay in the records, as in `evaluate`.
        progress: Whether single runs show their progress; None shows it for those of more than two seconds.

    Returns:
        The curves, the flaws, and how far each run is.

    Raises:
        InvalidInputError: An argument is unusable.
        ExactLimitError: A task is too large to be solved exactly.
        StoreError: A folder holds something else, or cannot be written.
        InfrastructureError: A worker process died, or what policies need is down for episode after episode.
        ProfileInterrupted: Ctrl-C; what is finished is kept.
    """
    points = check_points(axes, bases, turns, flaws, severities)
    job = plan_profile(
        policies,
        tasks,
        seeds,
        points,
        out=out,
        prompts=prompts,
        standard=standard,
        library=library,
        workers=workers,
        model=model,
        record_texts=record_texts,
        progress=progress,
    )
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

    The arguments are those of `profile`, but for `points` (`check_points`), which say what is varied.

    Raises:
        InvalidInputError: An argument is unusable.
        StoreError: The folder holds something else.
    """
    if library is not None and not isinstance(library, ToolLibrary):
        raise InvalidInputError(f"library is {library!r:.60}: expected a ToolLibrary (`load_library` reads one)")
    if not isinstance(out, str | Path):
        raise InvalidInputError(f"out is {out!r:.60}: expected a folder")
    own_library = library if library is not None else default_library()
    directory = Path(out)
    chosen_policies, chosen_prompts = check_policies(policies), check_prompts(prompts)
    chosen_tasks, chosen_seeds = check_tasks(tasks, own_library), check_seeds(seeds)
    environment = standard or EnvironmentSettings()
    if points.reliability and all(tool.success_probability is not None for tool in own_library):
        raise InvalidInputError(
            "every tool of the library has a success probability of its own, so the axis reliability would change "
            "nothing: expected a tool without one, or other axes"
        )
    arguments = {
        "benchmark": benchmark_identity(),
        "environment": asdict(environment),
        "library": own_library.content_hash,
        "policies": [describe_policy(policy) for policy in chosen_policies],
        "prompts": list(chosen_prompts),
        "seeds": list(chosen_seeds),
        "tasks": {"count": len(chosen_tasks), "sha256": hash_tasks(chosen_tasks)},
    }
    return ProfileJob(
        directory,
        chosen_policies,
        chosen_tasks,
        chosen_prompts,
        chosen_seeds,
        merge_with_earlier(directory, arguments, points.with_standard(environment)),
        environment,
        own_library,
        library,
        check_integer("workers", workers, 1, MAX_WORKERS),
        model,
        check_record_texts(record_texts),
        progress,
        arguments,
    )
