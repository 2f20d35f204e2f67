"""`profile`: how an agent does as things get worse, as a set of ordinary runs that differ in one thing at a time."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path

from resilisim.envs.settings import EnvironmentSettings
from resilisim.errors import MAX_WORKERS, InvalidInputError, check_integer
from resilisim.evaluation.episode.texts import RecordTexts
from resilisim.evaluation.robustness.job import ProfileInterrupted, ProfileJob
from resilisim.evaluation.robustness.plan import (
    AXES,
    DEFAULT_RELIABILITIES,
    DEFAULT_TURNS,
    ProfilePoints,
    check_points,
)
from resilisim.evaluation.robustness.results import ProfileResult
from resilisim.evaluation.robustness.store import merge_with_earlier
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
from resilisim.tasks.benchmark import benchmark_identity
from resilisim.tool_library import ToolLibrary, default_library
from resilisim.workflows.flaws import FLAW_TYPES, SEVERITIES

__all__ = ["ProfileInterrupted", "ProfileResult", "plan_profile", "profile"]


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

    Args:
        policies: As in `profile`, as all others but `points`.
        tasks: See `profile`.
        seeds: See `profile`.
        points: What is varied (`check_points`).
        out: See `profile`.
        prompts: See `profile`.
        standard: See `profile`.
        library: See `profile`.
        workers: See `profile`.
        model: See `profile`.
        record_texts: See `profile`.
        progress: See `profile`.

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
