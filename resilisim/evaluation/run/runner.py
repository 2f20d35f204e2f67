"""`evaluate`: policies on tasks under prompts and seeds, all on the same luck, with every episode on disk."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Unpack, cast

from resilisim.envs.settings import EnvironmentOptions, EnvironmentSettings
from resilisim.errors import MAX_WORKERS, InvalidInputError, check_integer, count_of
from resilisim.evaluation.episode.record import EpisodeRecord, is_failure
from resilisim.evaluation.episode.texts import RecordTexts
from resilisim.evaluation.results import CallOutcome, EvaluationResult, result_of
from resilisim.evaluation.run.contestants import ModelSpec, PolicyMaker, PolicySpec, check_models
from resilisim.evaluation.run.limits import Budget, Patience, RunLimits
from resilisim.evaluation.run.plan import (
    Plan,
    RunSettings,
    Shard,
    TaskSpec,
    agent_arguments,
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
from resilisim.policies.llm.policy import LlmPolicy
from resilisim.provenance import content_hash
from resilisim.tool_library import ToolLibrary, default_library


class RunInterrupted(KeyboardInterrupt):
    """Somebody stopped a run with Ctrl-C.

    Attributes:
        num_kept: Episodes that are on disk.
        num_planned: Episodes of the whole run.
    """

    def __init__(self, num_kept: int, num_planned: int) -> None:
        super().__init__(f"interrupted: {num_kept:,} of {count_of(num_planned, 'episode')} kept")
        self.num_kept = num_kept
        self.num_planned = num_planned


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
        MissingExtraError: What an argument needs is not installed.
        RunInterrupted: Ctrl-C; what is finished is kept.
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
    part = check_shard(shard, len(chosen_tasks))
    model_settings = check_models(model)
    maker = PolicyMaker(own_library, model_settings.make(), model_settings.load_prices())
    made = maker.make_all(policy_specs)  # once, to see early that each can be made
    plan = Plan(chosen_tasks, len(made), len(prompt_types), chosen_seeds)
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
    arguments = run_arguments(settings, plan, own_library, agent_arguments(made))
    waits_for_models = any(isinstance(policy, LlmPolicy) for _, policy in made)
    players = Players(num_workers, waits_for_models, ray)
    return _run(settings, _Part(plan, part, limits), arguments, out, players, progress)


@dataclass(frozen=True, slots=True)
class _Part:
    """What of a run one call is to play.

    Attributes:
        plan: The whole run.
        shard: Which of its tasks.
        limits: Where to stop.
    """

    plan: Plan
    shard: Shard
    limits: RunLimits

    def __len__(self) -> int:
        """Number of episodes."""
        return len(self.plan.tasks[self.shard.number - 1 :: self.shard.count]) * self.plan.episodes_per_task

    def num_finished(self, store: RunStore) -> int:
        """Return how many of them are in a folder."""
        return sum(map(store.is_finished, self.plan.indices(self.shard)))


class _Tally:
    """Takes in the episodes of a run as they end: for its results, for those who watch, for its limits."""

    def __init__(self, limits: RunLimits) -> None:
        self.collector = RunCollector()
        self.live = LiveTable(self.collector)
        self.budget = Budget(limits)
        self._speaks: dict[str, bool] = {}  # policy -> whether any of its episodes began with more than silence

    def add(self, record: EpisodeRecord) -> None:
        """Take in one episode."""
        self.collector.add(record)
        self.budget.count(record)
        stopped_at_once = "agent" not in record and [step["kind"] for step in record["steps"]] == ["stop"]
        self._speaks[record["policy"]] = self._speaks.get(record["policy"], False) or not stopped_at_once

    def silent_policies(self) -> tuple[str, ...]:
        """Return the policies that ask no model and never sent anything, which a forgotten `return` looks like."""
        return tuple(policy for policy, speaks in self._speaks.items() if not speaks)


def _run(
    settings: RunSettings,
    part: _Part,
    arguments: dict[str, Any],
    out: Path | str | None,
    players: Players,
    progress: bool | None,
) -> EvaluationResult:
    temporary = None
    if out is None:
        temporary = tempfile.TemporaryDirectory(prefix="resilisim-")
        out = temporary.name
    # Replies are only kept where somebody can come back for them.
    kept_in = None if temporary is not None or not players.wait_for_models else str(out)
    settings = replace(settings, manifest_hash=content_hash(arguments), directory=kept_in)
    tally = _Tally(part.limits)
    with RunStore(out, arguments, len(part.plan), on_record=tally.add) as store:
        already_there = store.num_finished
        if part.limits.cost is not None and tally.budget.num_unpriced:
            raise InvalidInputError(
                f"a limit of dollars needs the prices of all models: {tally.budget.num_unpriced:,} episodes in {out} "
                "were played without, so nobody knows what was spent"
            )
        patience = Patience(settings.models.give_up_after)
        shown = RunProgress(len(part), part.num_finished(store), progress, table=tally.live)
        try:
            stopped_by = _play(settings, part, players, store, tally, patience, shown)
        except KeyboardInterrupt as error:
            raise RunInterrupted(store.num_finished if temporary is None else 0, len(part.plan)) from error
        finally:
            shown.close()
        if kept_in is not None and store.num_finished == len(part.plan):
            discard_journals(kept_in)
        call = CallOutcome(
            already_there, patience.num_failures, patience.last_error, stopped_by, tally.silent_policies()
        )
        return result_of(store.directory, tally.collector.facts(store.manifest), call, temporary)


def _play(
    settings: RunSettings,
    part: _Part,
    players: Players,
    store: RunStore,
    tally: _Tally,
    patience: Patience,
    shown: RunProgress,
) -> str | None:
    """Play what is not finished, and return the limit that kept something from being played."""
    num_pending = len(part) - part.num_finished(store)
    stopped_by = tally.budget.reached() if num_pending else None
    if stopped_by is not None:
        return stopped_by
    pending = part.plan.pending(store.is_finished, part.shard)
    until = tally.budget.until
    if players.ray is None:
        playing = play_here(settings, pending, num_pending, players, until)
    else:
        playing = play_on_cluster(settings, pending, players.ray, players.workers, players.wait_for_models, until)
    with contextlib.closing(playing) as outcomes:
        for outcome, line in outcomes:
            if is_failure(outcome):
                store.append_failure(line)
                tally.live.fail(outcome)
                patience.lose(outcome)
                continue
            record = cast("EpisodeRecord", outcome)
            store.append_encoded(line, record["index"])
            if settings.directory is not None:
                discard_journal(settings.directory, record["index"])
            tally.add(record)
            patience.restore()
            shown.advance()
            if tally.budget.reached() is not None:
                break
    # A limit that the last episode reaches has stopped nothing.
    return tally.budget.reached() if part.num_finished(store) < len(part) else None
