"""`evaluate`, and what it returns: summaries by policy and prompt type, and the folder with every episode."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Unpack

from resilisim.bounds import Workers, checked
from resilisim.envs.settings import EnvironmentOptions, EnvironmentSettings
from resilisim.errors import InvalidInputError, shown_value, unknown_name
from resilisim.evaluation.episode.record import EpisodeRecord
from resilisim.evaluation.episode.rejudging import unused_force
from resilisim.evaluation.episode.texts import RecordTexts, opened
from resilisim.evaluation.run.arguments import TaskSpec
from resilisim.evaluation.run.contestants import ModelSpec, PolicySpec
from resilisim.evaluation.run.limits import CallOutcome, RunLimits
from resilisim.evaluation.run.plan import RunPlan
from resilisim.evaluation.run.player import Players
from resilisim.evaluation.run.progress import beginning
from resilisim.evaluation.run.ray_cluster import check_address
from resilisim.evaluation.run.runner import play_run
from resilisim.evaluation.run.store import read_records
from resilisim.evaluation.table.agents import AgentSums
from resilisim.evaluation.table.facts import RunFacts, read_facts
from resilisim.evaluation.table.summary import GroupSummary, summary_table
from resilisim.policies.function_agent import AgentFunction
from resilisim.tables.table import Table
from resilisim.tasks.benchmark import BENCHMARK_VERSION
from resilisim.tool_library import ToolLibrary


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class EvaluationResult:
    """The results of a run.

    Attributes:
        directory: The folder.
        facts: What is known of its episodes.
        call: What the call that returned this did; of results that were only read, nothing.

    Example:
        >>> from resilisim import evaluate
        >>> result = evaluate("plan-follower", tasks=10, prompts="optimal", seeds=3)
        >>> result.row("plan-follower", "optimal").num_episodes
        30
        >>> next(result.records())["instance_id"]
        'task_bec470cd51759d4f'
    """

    directory: Path
    facts: RunFacts
    call: CallOutcome = field(default_factory=CallOutcome)
    # Keeps a folder that nobody asked for until the result is gone.
    _temporary: tempfile.TemporaryDirectory[str] | None = None

    def __eq__(self, other: object) -> bool:
        """Return whether both tell the same of one folder; what calls did is left out."""
        if not isinstance(other, EvaluationResult):
            return NotImplemented
        return (self.directory, self.manifest, self.rows) == (other.directory, other.manifest, other.rows)

    def __repr__(self) -> str:
        """Return the folder, how much of the run is there, and its policies: a manifest would fill pages."""
        policies = ", ".join(dict.fromkeys(row.policy for row in self.rows))
        return (
            f"EvaluationResult({str(self.directory)!r}, {self.num_episodes} of {self.num_planned} episodes, "
            f"policies: {policies or 'none'})"
        )

    def _repr_html_(self) -> str:
        """Return what a notebook shows: the summary."""
        return self.table()._repr_html_()

    @property
    def manifest(self) -> dict[str, Any]:
        """The run's manifest: arguments, versions, hashes."""
        return dict(self.facts.manifest)

    @property
    def rows(self) -> tuple[GroupSummary, ...]:
        """One summary per policy and prompt type."""
        return tuple(self.facts.rows)

    @property
    def num_episodes(self) -> int:
        """Episodes that are finished."""
        return self.facts.table.num_episodes

    @property
    def num_planned(self) -> int:
        """How many episodes the run has when it is finished."""
        return self.facts.num_planned

    def row(self, policy: str, prompt_type: str = "baseline") -> GroupSummary:
        """Return the summary of one policy under one prompt type.

        Raises:
            InvalidInputError: The run has none of that name.
        """
        rows = {f"{row.policy} under {row.prompt_type}": row for row in self.rows}
        wanted = f"{policy} under {prompt_type}"
        if wanted not in rows:
            raise unknown_name("result", wanted, rows)
        return rows[wanted]

    def records(self) -> Iterator[EpisodeRecord]:
        """Yield the record of every episode with its texts unpacked, in the order in which they ended.

        Raises:
            StoreError: The folder is gone, or cannot be read.
        """
        # A generator of this object's own: it keeps a temporary folder alive while somebody reads.
        yield from map(opened, read_records(self.directory))

    def unused_force(self) -> list[str]:
        """Return what was forced of calls that no episode has made, such as "network_fetcher#9=TIMEOUT".

        Raises:
            StoreError: The folder is gone, or cannot be read.
        """
        arguments = self.facts.manifest["arguments"]
        force = (arguments.get("inject") or arguments.get("environment", {})).get("force", ())
        return unused_force(force, read_records(self.directory)) if force else []

    def table(self) -> Table:
        """Return the summary as a table for the terminal (`rich.print` shows it)."""
        return summary_table(self.rows)

    def agents(self) -> tuple[AgentSums, ...]:
        """Return what the LLM agents used and where they gave up, in the order of the rows."""
        sums = self.facts.agents
        keys = [(row.policy, row.prompt_type) for row in self.rows]
        return tuple(sums[key] for key in keys if key in sums)

    def to_mapping(self) -> dict[str, Any]:
        """Return the summary as JSON values."""
        return {
            "directory": str(self.directory),
            "manifest": self.manifest,
            "num_episodes": self.num_episodes,
            "num_planned": self.num_planned,
            "num_failures": self.call.num_failures,
            "last_error": self.call.last_error or None,
            "stopped_by": self.call.stopped_by,
            "agent_errors": [asdict(errors) for errors in self.call.agent_errors],
            "results": [row.to_mapping() for row in self.rows],
            "agents": [sums.to_mapping() for sums in self.agents()],
            "unused_force": self.unused_force(),
        }


def read_results(directory: Path | str) -> EvaluationResult:
    """Return the results in a folder, finished or not, reading its episodes once.

    Raises:
        StoreError: It is not a folder of results, or cannot be read.

    Example:
        >>> import tempfile
        >>> from resilisim import evaluate, read_results
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     result = evaluate("plan-follower", tasks=3, out=folder)
        ...     read_results(folder).rows == result.rows
        True
    """
    return EvaluationResult(Path(directory), read_facts(directory))


def folder_of(out: object) -> Path:
    """Return the folder that an argument means."""
    if not isinstance(out, str | Path):
        raise InvalidInputError(f"out is {shown_value(out)}: expected a folder")
    return Path(out)


def evaluate(
    policies: PolicySpec | Iterable[PolicySpec] = (),
    tasks: TaskSpec | Iterable[TaskSpec] | int | Path = BENCHMARK_VERSION,
    prompts: str | Iterable[str] = ("baseline",),
    seeds: int | Iterable[int] = 1,
    *,
    agents: AgentFunction | str | Iterable[AgentFunction | str] = (),
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
    """Play every policy on every task under every prompt type and seed, all on common draws.

    The run may be killed at any moment: what is finished is in the folder, and the same call goes on from there. With
    several workers a script needs the usual `if __name__ == "__main__":` guard.

    Args:
        policies: Names, `module:attribute`, or classes or functions that return a policy.
        agents: Functions of a `Session`, sync or async, `module:function` of some, or "command:CMD" for
            programs (`CommandAgent`): agents with a loop of their own. With one the protocol is native, and each tool
            is a function unless `tools` says otherwise.
        tasks: What `read_tasks` understands: a number, "benchmark-v2", a JSON Lines file, an instance id; or a list of
            ids of benchmark tasks, mappings with the fields of a task, and `Task` objects. The name of a world plays
            its tasks in it, "NAME:N" the first N of them (`resilisim.worlds.base.world_tasks`).
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
        >>> worse.rows[0].success.value < result.rows[0].success.value
        True
    """
    if out is not None:
        folder_of(out)
    if ray is not None:
        check_address(ray)
    limits = RunLimits() if limits is None else limits
    num_workers = checked(Workers, "workers", workers)
    with beginning(progress):
        plan = RunPlan.of(
            policies,
            tasks,
            prompts,
            seeds,
            agents=agents,
            environment=environment,
            library=library,
            model=model,
            record_texts=record_texts,
            shard=shard,
            options=options,
        )
    return play_plan(plan, out, limits, Players(num_workers, plan.has_agents, ray), progress)


def play_plan(
    plan: RunPlan, out: Path | str | None, limits: RunLimits, players: Players, progress: bool | None
) -> EvaluationResult:
    """Play what is not finished of a run, and return its results (`evaluate`)."""
    unpriced = plan.price_gaps() if limits.cost is not None else []
    if unpriced:
        raise InvalidInputError(f"a limit of dollars needs the prices of all models: {unpriced[0]}")
    return EvaluationResult(*play_run(plan, out, limits, players, progress))
