"""`evaluate`: policies on tasks under prompts and seeds, all on the same luck, with every episode on disk."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, cast

from resilisim.errors import InvalidInputError, unknown_name
from resilisim.evaluation.agent_sums import AgentSums
from resilisim.evaluation.arguments import (
    TaskSpec,
    check_environment,
    check_flaws,
    check_integer,
    check_policies,
    check_prompts,
    check_seeds,
    check_solvable,
    check_tasks,
)
from resilisim.evaluation.failures import Patience, is_failure
from resilisim.evaluation.journal import discard_journal, discard_journals
from resilisim.evaluation.models import ModelSpec, check_models
from resilisim.evaluation.plan import (
    EnvironmentSettings,
    Plan,
    PolicyMaker,
    PolicySpec,
    RunSettings,
    agent_arguments,
    name_policies,
    run_arguments,
    warn_about_models,
)
from resilisim.evaluation.progress import RunProgress
from resilisim.evaluation.records import EpisodeRecord
from resilisim.evaluation.report import REPORT_NAME, write_page
from resilisim.evaluation.report.facts import RunCollector, RunFacts, count_of, read_facts
from resilisim.evaluation.store import RunStore, read_records
from resilisim.evaluation.summary import GroupSummary, SummaryTable
from resilisim.evaluation.workers import play_all
from resilisim.policies.llm.policy import LlmPolicy
from resilisim.provenance import content_hash
from resilisim.seeding import EVALUATION_SALT
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


@dataclass(frozen=True, slots=True)
class EvaluationResult:
    """The results of a run: a summary of each policy under each prompt type, and the folder with every episode.

    Attributes:
        directory: The folder.
        manifest: Its manifest: arguments, versions, hashes.
        num_episodes: Episodes that are finished.
        rows: One summary per policy and prompt type.
        num_already_there: Episodes that an earlier call had left in the folder; they were not played again.
        num_failures: Episodes that broke in this call for reasons of infrastructure; they are unfinished, and the same
            call tries them again.
        last_error: What the last of them broke on.
    """

    directory: Path
    manifest: dict[str, Any]
    num_episodes: int
    rows: tuple[GroupSummary, ...]
    _facts: RunFacts = field(repr=False, compare=False)
    # Keeps a folder that nobody asked for until the result is gone.
    _temporary: tempfile.TemporaryDirectory[str] | None = field(default=None, repr=False, compare=False)
    num_already_there: int = field(default=0, compare=False)
    num_failures: int = field(default=0, compare=False)
    last_error: str = field(default="", compare=False)

    @property
    def num_planned(self) -> int:
        """How many episodes the run has when it is finished."""
        return self._facts.num_planned

    def row(self, policy: str, prompt_type: str = "baseline") -> GroupSummary:
        """Return the summary of one policy under one prompt type.

        Raises:
            InvalidInputError: The run has none of that name.
        """
        for row in self.rows:
            if (row.policy, row.prompt_type) == (policy, prompt_type):
                return row
        names = [f"{row.policy} under {row.prompt_type}" for row in self.rows]
        raise unknown_name("result", f"{policy} under {prompt_type}", names)

    def records(self) -> Iterator[EpisodeRecord]:
        """Yield the record of every episode, in the order in which they ended.

        Raises:
            StoreError: The folder is gone, or cannot be read.
        """
        # A generator of this object's own: it keeps a temporary folder alive while somebody reads.
        yield from read_records(self.directory)

    def table(self) -> SummaryTable:
        """Return the summary as a table for the terminal (`rich.print` shows it)."""
        return SummaryTable(self.rows)

    def write_report(self, path: Path | str | None = None) -> Path:
        """Write the HTML report, `report.html` in the folder if no path is given, and return its path.

        Raises:
            StoreError: It cannot be written.
        """
        return write_page(self._facts, Path(path) if path is not None else self.directory / REPORT_NAME)

    def agents(self) -> tuple[AgentSums, ...]:
        """Return what the LLM agents used and where they gave up, in the order of the rows."""
        sums = self._facts.sums.agents
        keys = [(row.policy, row.prompt_type) for row in self.rows]
        return tuple(sums[key] for key in keys if key in sums)

    def to_mapping(self) -> dict[str, Any]:
        """Return the summary as JSON values."""
        return {
            "directory": str(self.directory),
            "manifest": self.manifest,
            "num_episodes": self.num_episodes,
            "num_failures": self.num_failures,
            "last_error": self.last_error or None,
            "results": [row.to_mapping() for row in self.rows],
            "agents": [sums.to_mapping() for sums in self.agents()],
        }


def evaluate(
    policies: PolicySpec | Iterable[PolicySpec],
    tasks: TaskSpec | Iterable[TaskSpec] | int | Path,
    prompts: str | Iterable[str] = ("baseline",),
    seeds: int | Iterable[int] = 1,
    *,
    out: Path | str | None = None,
    workers: int = 1,
    salt: str = EVALUATION_SALT,
    base: float = 0.8,
    not_executed: float = 0.5,
    failed: float = 0.7,
    history: float = 0.9,
    max_turns: int = 10,
    max_consecutive_failures: int = 5,
    loop_length: int = 4,
    planner: str = "auto",
    parameters: Literal["lenient", "strict", "ignore"] = "lenient",
    search_detail: Literal["brief", "full"] = "brief",
    payload: Literal["compact", "verbose"] = "compact",
    tools: Literal["discovery", "listed"] = "discovery",
    protocol: Literal["text", "native"] = "text",
    library: ToolLibrary | None = None,
    embedding_model: str | None = None,
    model: ModelSpec = None,
    progress: bool | None = None,
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
        salt: Salt of the luck.
        base: Law, see `ConversationEnv`; so are the arguments up to `protocol`.
        not_executed: Law.
        failed: Law.
        history: Law.
        max_turns: End rule.
        max_consecutive_failures: End rule.
        loop_length: End rule.
        planner: Who makes the plan of prompts that hold one.
        parameters: How parameters of calls are checked.
        search_detail: How much a search tells.
        payload: Size of outputs.
        tools: Whether the prompt lists the tools.
        protocol: How messages are written.
        library: The tool library; the default one if omitted.
        embedding_model: The embedding model that searches use, by name or path; the shipped one if omitted.
        model: The language models of LLM agents: "openai:NAME", "local", "scripted:FILE", a list that also names those
            of single components ("extractor=openai:small"), or `ModelSettings` for everything else about them.
        progress: Whether to show progress; None shows it for runs of more than two seconds.

    Returns:
        The results, those of earlier calls on the same folder included.

    Raises:
        InvalidInputError: An argument is unusable.
        ExactLimitError: A task is too large to be solved exactly.
        StoreError: The folder holds another run, or cannot be written.
        InfrastructureError: A worker process died, or what policies need is down for episode after episode.
        RunInterrupted: Ctrl-C; what is finished is kept.
    """
    if library is not None and not isinstance(library, ToolLibrary):
        raise InvalidInputError(f"library is {library!r:.60}: expected a ToolLibrary (`load_library` reads one)")
    if out is not None and not isinstance(out, str | Path):
        raise InvalidInputError(f"out is {out!r:.60}: expected a folder")
    own_library = library if library is not None else default_library()
    policy_specs, prompt_types = check_policies(policies), check_prompts(prompts)
    num_workers = check_integer("workers", workers, least=1)
    plan = Plan(check_tasks(tasks, own_library), len(policy_specs), len(prompt_types), check_seeds(seeds))
    model_settings = check_models(model)
    maker = PolicyMaker(own_library, model_settings.make(), model_settings.load_prices())
    made = [maker.make(spec) for spec in policy_specs]  # once, to see early that each can be made
    settings = RunSettings(
        policies=policy_specs,
        policy_names=name_policies(made),
        prompts=prompt_types,
        environment=check_environment(
            EnvironmentSettings(
                base=base,
                not_executed=not_executed,
                failed=failed,
                history=history,
                max_turns=max_turns,
                max_consecutive_failures=max_consecutive_failures,
                loop_length=loop_length,
                planner=planner,
                parameters=parameters,
                search_detail=search_detail,
                payload=payload,
                tools=tools,
                protocol=protocol,
                salt=salt,
                embedding_model=embedding_model,
            )
        ),
        library=None if library is None else library.to_json(),
        models=model_settings,
    )
    # Refuses options that make no sense, too.
    environment = settings.make_environment(own_library)
    check_solvable(plan.tasks, environment)
    check_flaws(plan.tasks, prompt_types, environment)
    warn_about_models(made, maker, protocol)
    arguments = run_arguments(settings, plan, own_library, agent_arguments(made, maker.models))
    waits_for_models = any(isinstance(policy, LlmPolicy) for policy in made)
    return _run(settings, plan, arguments, out, num_workers, progress, waits_for_models)


def read_results(directory: Path | str) -> EvaluationResult:
    """Return the results in a folder, finished or not, reading its episodes once.

    Raises:
        StoreError: It is no folder of results, or cannot be read.
    """
    return _result(Path(directory), read_facts(directory))


def _run(
    settings: RunSettings,
    plan: Plan,
    arguments: dict[str, Any],
    out: Path | str | None,
    workers: int,
    progress: bool | None,
    waits_for_models: bool,
) -> EvaluationResult:
    temporary = None
    if out is None:
        temporary = tempfile.TemporaryDirectory(prefix="resilisim-")
        out = temporary.name
    # Replies are only kept where somebody can come back for them.
    kept_in = None if temporary is not None or not waits_for_models else str(out)
    settings = replace(settings, manifest_hash=content_hash(arguments), directory=kept_in)
    collector = RunCollector()
    with RunStore(out, arguments, len(plan), on_record=collector.add) as store:
        already_there = store.num_finished
        shown = RunProgress(len(plan), already_there, progress)
        patience = Patience(settings.models.give_up_after)
        try:
            most = len(plan) - already_there
            if waits_for_models:
                most = min(most, settings.models.concurrency)  # each process plays at least one
            pending = plan.pending(store.is_finished)
            for outcome, line in play_all(settings, pending, min(workers, max(most, 1)), waits_for_models):
                if is_failure(outcome):
                    store.append_failure(line)
                    patience.lose(outcome)
                    continue
                record = cast("EpisodeRecord", outcome)
                store.append_encoded(line, record["index"])
                if kept_in is not None:
                    discard_journal(kept_in, record["index"])
                collector.add(record)
                patience.restore()
                shown.advance()
            if kept_in is not None and store.num_finished == len(plan):
                discard_journals(kept_in)
        except KeyboardInterrupt as error:
            raise RunInterrupted(store.num_finished if temporary is None else 0, len(plan)) from error
        finally:
            shown.close()
        facts = collector.facts(store.manifest)
        return _result(store.directory, facts, temporary, already_there, patience)


def _result(
    directory: Path,
    facts: RunFacts,
    temporary: tempfile.TemporaryDirectory[str] | None = None,
    num_already_there: int = 0,
    patience: Patience | None = None,
) -> EvaluationResult:
    return EvaluationResult(
        directory,
        dict(facts.manifest),
        facts.sums.num_episodes,
        tuple(facts.rows),
        facts,
        temporary,
        num_already_there,
        0 if patience is None else patience.num_failures,
        "" if patience is None else patience.last_error,
    )
