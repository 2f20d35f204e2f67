"""`evaluate`: what is not finished of a run is played and written down, until all is there or a limit is reached."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, Unpack, cast

from resilisim.envs.settings import EnvironmentOptions, EnvironmentSettings
from resilisim.errors import MAX_WORKERS, InvalidInputError, check_integer, count_of
from resilisim.evaluation.episode.record import EpisodeRecord, FailureRecord, is_failure
from resilisim.evaluation.episode.texts import RecordTexts
from resilisim.evaluation.results import CallOutcome, EvaluationResult
from resilisim.evaluation.run.contestants import ModelSpec, PolicyMaker, PolicySpec, check_models
from resilisim.evaluation.run.limits import Budget, Patience, RunLimits
from resilisim.evaluation.run.plan import (
    Plan,
    RunSettings,
    TaskSpec,
    agents_of,
    check_flaws,
    check_policies,
    check_prompts,
    check_record_texts,
    check_seeds,
    check_shard,
    check_solvable,
    check_tasks,
    price_gaps,
    run_arguments,
    warn_about_models,
)
from resilisim.evaluation.run.player import Players, play_here
from resilisim.evaluation.run.progress import LiveTable, RunProgress
from resilisim.evaluation.run.ray_cluster import check_address, play_on_cluster
from resilisim.evaluation.run.store import RunStore, discard_journal, discard_journals
from resilisim.evaluation.table.facts import RunCollector
from resilisim.provenance import content_hash
from resilisim.tool_library import ToolLibrary, default_library


class RunInterrupted(KeyboardInterrupt):
    """Somebody stopped a run with Ctrl-C; its text says how many episodes are on disk."""

    def __init__(self, num_kept: int, num_planned: int) -> None:
        super().__init__(f"interrupted: {num_kept:,} of {count_of(num_planned, 'episode')} kept")


def evaluate(
    policies: PolicySpec | Iterable[PolicySpec],
    tasks: TaskSpec | Iterable[TaskSpec] | int | Path,
    prompts: str | Iterable[str] = ("baseline",),
    seeds: int | Iterable[int] = 1,
    *,
    out: Path | str | None = None,
    workers: int = 1,
    environment: EnvironmentSettings | None = None,
    library: ToolLibrary | None = None,
    model: ModelSpec = None,
    record_texts: RecordTexts | None = None,
    shard: str | None = None,
    limits: RunLimits | None = None,
    ray: str | None = None,
    progress: bool | None = None,
    **options: Unpack[EnvironmentOptions],
) -> EvaluationResult:
    """Play every policy on every task under every prompt type and seed, all on common luck.

    The run may be killed at any moment: what is finished is in the folder, and the same call goes on from there. With
    several workers a script needs the usual `if __name__ == "__main__":` guard.

    Args:
        policies: Names, `module:attribute`, or classes or functions that return a policy.
        tasks: What `read_tasks` understands: a number, "benchmark-v1", a JSON Lines file, an instance id; or a list of
            ids of benchmark tasks, mappings with the fields of a task, and `Task` objects.
        prompts: Prompt types; for flawed prompts also "flawed:FLAW", "flawed:FLAW:SEVERITY" or
            "flawed:FLAW:SEVERITY:METHOD", while "flawed" alone draws a flaw that each task can carry.
        seeds: Number of episodes of each task (seeds 0, 1, ...), or the seeds themselves.
        out: Folder of the results; without it, one that vanishes with the result object.
        workers: Processes; 1 plays in this one.
        environment: Law, end rules, planner, protocol and all else about the environment; the benchmark's if omitted.
        library: The tool library; the default one if omitted.
        model: The language models of LLM agents: "openai:NAME", "local", "scripted:FILE", a list that also names those
            of single components ("extractor=openai:small"), or `ModelSettings` for everything else about them. With
            several models each agent plays once with each, under the name "POLICY@MODEL".
        record_texts: Whose prompt, thoughts, messages and replies stay in the records: those of "all" episodes, of
            "failures" (no full success), or of "none"; all of LLM agents and the failures of other policies if omitted.
        shard: "i/n" plays only the i-th of n parts of the tasks; `merge_runs` puts the folders of all parts together.
        limits: Where to stop before everything is played.
        ray: Address of a Ray cluster whose machines play ("auto", "local" or "HOST:PORT"); `workers` are then its
            actors, as many as it has processors if 1.
        progress: Whether to show progress; None shows it for runs of more than two seconds.
        **options: Options of `EnvironmentSettings`, such as base=0.7, in place of those of `environment`.

    Returns:
        The results, those of earlier calls on the same folder included.

    Raises:
        InvalidInputError: An argument is unusable.
        ExactLimitError: A task is too large to be solved exactly.
        StoreError: The folder holds another run, or cannot be written.
        InfrastructureError: A worker process died, or what policies need is down for episode after episode.
        RunInterrupted: Ctrl-C; what is finished is kept.

    Example:
        >>> from resilisim import evaluate
        >>> result = evaluate(["plan-follower", "exact-optimum"], tasks=20, prompts="optimal", seeds=5)
        >>> [(row.policy, row.num_episodes) for row in result.rows]
        [('plan-follower', 100), ('exact-optimum', 100)]
        >>> worse = evaluate("plan-follower", 20, "optimal", 5, base=0.5)
        >>> worse.row("plan-follower", "optimal").success < result.row("plan-follower", "optimal").success
        True
    """
    if library is not None and not isinstance(library, ToolLibrary):
        raise InvalidInputError(f"library is {library!r:.60}: expected a ToolLibrary (`load_library` reads one)")
    if out is not None and not isinstance(out, str | Path):
        raise InvalidInputError(f"out is {out!r:.60}: expected a folder")
    own_library = library if library is not None else default_library()
    if ray is not None:
        check_address(ray)
    limits = RunLimits() if limits is None else limits
    policy_specs, prompt_types = check_policies(policies), check_prompts(prompts)
    num_workers = check_integer("workers", workers, 1, MAX_WORKERS)
    chosen_tasks, chosen_seeds = check_tasks(tasks, own_library), check_seeds(seeds)
    model_settings = check_models(model)
    maker = PolicyMaker(own_library, model_settings.make(), model_settings.load_prices())
    made = maker.make_all(policy_specs)  # once, to see early that each can be made
    part = check_shard(shard, len(chosen_tasks))
    plan = Plan(chosen_tasks, len(made), len(prompt_types), chosen_seeds, part)
    settings = RunSettings(
        contestants=tuple(contestant for contestant, _ in made),
        prompts=prompt_types,
        environment=(environment or EnvironmentSettings()).with_options(**options),
        library=None if library is None else library.to_json(),
        models=model_settings,
        record_texts=check_record_texts(record_texts),
    )
    # Refuses options that make no sense, too.
    env = settings.make_environment(own_library)
    check_solvable(plan.tasks, env)
    check_flaws(plan.tasks, prompt_types, env)
    warn_about_models(made, maker, env.protocol)
    unpriced = price_gaps(made, maker) if limits.cost is not None else []
    if unpriced:
        raise InvalidInputError(f"a limit of dollars needs the prices of all models: {unpriced[0]}")
    arguments = run_arguments(settings, plan, own_library, made)
    players = Players(num_workers, bool(agents_of(made)), ray)
    return _play_run(settings, plan, arguments, out, limits, players, progress)


class _Tally:
    """Takes in what the episodes of a run come to as they end: for its results, for those who watch, for its limits."""

    def __init__(self, limits: RunLimits, patience: int) -> None:
        self.collector = RunCollector()
        self.live = LiveTable(self.collector)
        self.budget = Budget(limits)
        self.patience = Patience(patience)
        self._speaks: dict[str, bool] = {}  # policy -> whether any of its episodes began with more than silence

    def add(self, record: EpisodeRecord) -> None:
        """Take in one episode."""
        self.collector.add(record)
        self.budget.count(record)
        stopped_at_once = "agent" not in record and [step["kind"] for step in record["steps"]] == ["stop"]
        self._speaks[record["policy"]] = self._speaks.get(record["policy"], False) or not stopped_at_once

    def lose(self, failure: FailureRecord) -> None:
        """Take in an episode that broke.

        Raises:
            InfrastructureError: It was one too many in a row.
        """
        self.live.fail(failure)
        self.patience.lose(failure)

    def outcome(self, already_there: int, stopped_by: str | None) -> CallOutcome:
        """Return what this call did; a policy that never sent anything may lack a `return`."""
        silent = tuple(policy for policy, speaks in self._speaks.items() if not speaks)
        return CallOutcome(already_there, self.patience.num_failures, self.patience.last_error, stopped_by, silent)


def _play_run(
    settings: RunSettings,
    plan: Plan,
    arguments: dict[str, Any],
    out: Path | str | None,
    limits: RunLimits,
    players: Players,
    progress: bool | None,
) -> EvaluationResult:
    """Play what is not finished of a run's shard, and write it down."""
    temporary = None
    if out is None:
        temporary = tempfile.TemporaryDirectory(prefix="resilisim-")
        out = temporary.name
    # Replies are only kept where somebody can come back for them.
    kept_in = None if temporary is not None or not players.wait_for_models else str(out)
    settings = replace(settings, manifest_hash=content_hash(arguments), directory=kept_in)
    tally = _Tally(limits, settings.models.give_up_after)
    with RunStore(out, arguments, len(plan), on_record=tally.add) as store:
        already_there = store.num_finished
        if limits.cost is not None and tally.budget.num_unpriced:
            raise InvalidInputError(
                f"a limit of dollars needs the prices of all models: {tally.budget.num_unpriced:,} episodes in {out} "
                "were played without, so nobody knows what was spent"
            )
        try:
            stopped_by = _play_pending(settings, plan, store, tally, players, progress)
        except KeyboardInterrupt as error:
            raise RunInterrupted(store.num_finished if temporary is None else 0, len(plan)) from error
        if kept_in is not None and store.num_finished == len(plan):
            discard_journals(kept_in)
        call = tally.outcome(already_there, stopped_by)
        return EvaluationResult(store.directory, tally.collector.facts(store.manifest), call, temporary)


def _play_pending(
    settings: RunSettings, plan: Plan, store: RunStore, tally: _Tally, players: Players, progress: bool | None
) -> str | None:
    """Play what is not finished, and return the limit that kept something from being played."""
    num_pending = sum(1 for _ in plan.pending(store.is_finished))
    stopped_by = tally.budget.reached()
    if not num_pending or stopped_by is not None:
        return stopped_by if num_pending else None
    pending = map(plan.episode, plan.pending(store.is_finished))
    players = replace(players, until=tally.budget.until)
    if players.ray is None:
        playing = play_here(settings, pending, num_pending, players)
    else:
        playing = play_on_cluster(settings, pending, players.ray, players)
    shown = RunProgress(plan.part_size, plan.part_size - num_pending, progress, table=tally.live)
    with contextlib.closing(shown), contextlib.closing(playing) as outcomes:
        for outcome, line in outcomes:
            if is_failure(outcome):
                store.append_failure(line)
                tally.lose(outcome)
                continue
            record = cast("EpisodeRecord", outcome)
            store.append_encoded(line, record["index"])
            if settings.directory is not None:
                discard_journal(settings.directory, record["index"])
            tally.add(record)
            tally.patience.restore()
            shown.advance()
            if tally.budget.reached() is not None:
                break
    # A limit that the last episode reaches has stopped nothing.
    return tally.budget.reached() if any(True for _ in plan.pending(store.is_finished)) else None
