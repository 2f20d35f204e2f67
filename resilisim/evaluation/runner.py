"""`evaluate`: policies on tasks under prompts and seeds, all on the same luck, with every episode on disk."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from resilisim.errors import InvalidInputError, unknown_name
from resilisim.evaluation.accumulate import RunSums
from resilisim.evaluation.plan import (
    EnvironmentSettings,
    Plan,
    PolicySpec,
    RunSettings,
    name_policies,
    run_arguments,
)
from resilisim.evaluation.progress import RunProgress
from resilisim.evaluation.records import EpisodeRecord
from resilisim.evaluation.report import write_report
from resilisim.evaluation.store import RunStore, read_manifest, read_records
from resilisim.evaluation.summary import GroupSummary, SummaryTable, summarise
from resilisim.evaluation.workers import play_all
from resilisim.provenance import content_hash
from resilisim.seeding import EVALUATION_SALT, MAX_SEED
from resilisim.tasks import Task
from resilisim.tasks.sources import read_tasks
from resilisim.tool_library import ToolLibrary, default_library
from resilisim.workflows.prompts import PROMPT_TYPES


@dataclass(frozen=True, slots=True)
class EvaluationResult:
    """The results of a run: a summary of each policy under each prompt type, and the folder with every episode.

    Attributes:
        directory: The folder.
        manifest: Its manifest: arguments, versions, hashes.
        num_episodes: Episodes that are finished.
        rows: One summary per policy and prompt type.
    """

    directory: Path
    manifest: dict[str, Any]
    num_episodes: int
    rows: tuple[GroupSummary, ...]
    # Keeps a folder that nobody asked for until the result is gone.
    _temporary: tempfile.TemporaryDirectory[str] | None = field(default=None, repr=False, compare=False)

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
        """Yield the record of every episode, in the order in which they ended."""
        return read_records(self.directory)

    def table(self) -> SummaryTable:
        """Return the summary as a table for the terminal (`rich.print` shows it)."""
        return SummaryTable(self.rows)

    def write_report(self) -> Path:
        """Write the HTML report into the folder and return its path."""
        return write_report(self.directory)

    def to_mapping(self) -> dict[str, Any]:
        """Return the summary as JSON values."""
        return {
            "directory": str(self.directory),
            "manifest": self.manifest,
            "num_episodes": self.num_episodes,
            "results": [row.to_mapping() for row in self.rows],
        }


def evaluate(
    policies: PolicySpec | Sequence[PolicySpec],
    tasks: Sequence[Task] | str | int | Path,
    prompts: str | Sequence[str] = ("baseline",),
    seeds: int | Sequence[int] = 1,
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
    progress: bool | None = None,
) -> EvaluationResult:
    """Play every policy on every task under every prompt type and seed, all on common luck.

    The run may be killed at any moment: what is finished is in the folder, and the same call goes on from there. With
    several workers a script needs the usual `if __name__ == "__main__":` guard.

    Args:
        policies: Names, `module:attribute`, or classes or functions that return a policy.
        tasks: Tasks; or what `read_tasks` understands: a number, "benchmark-v1", a JSON Lines file, an instance id.
        prompts: Prompt types.
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
        progress: Whether to show progress; None shows it for runs of more than two seconds.

    Returns:
        The results, those of earlier calls on the same folder included.

    Raises:
        InvalidInputError: An argument is unusable.
        StoreError: The folder holds another run, or cannot be written.
        InfrastructureError: A worker process died, or what a policy needs is down.
    """
    own_library = library if library is not None else default_library()
    policy_specs = _as_sequence(policies)
    prompt_types = tuple([prompts] if isinstance(prompts, str) else prompts)
    if not policy_specs:
        raise InvalidInputError("no policy was given: expected at least one")
    _check_prompts(prompt_types)
    if workers < 1:
        raise InvalidInputError(f"workers is {workers}: expected at least 1")
    chosen_tasks = read_tasks(tasks, own_library) if isinstance(tasks, str | int | Path) else list(tasks)
    _check_tasks(chosen_tasks)
    plan = Plan(chosen_tasks, len(policy_specs), len(prompt_types), _check_seeds(seeds))
    settings = RunSettings(
        policies=policy_specs,
        policy_names=name_policies(policy_specs, own_library),
        prompts=prompt_types,
        environment=EnvironmentSettings(
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
        ),
        library=None if library is None else library.to_json(),
    )
    settings.make_environment(own_library)  # refuses options that make no sense before anything is written
    return _run(settings, plan, run_arguments(settings, plan, own_library), out, workers, progress)


def read_results(directory: Path | str) -> EvaluationResult:
    """Return the results in a folder, finished or not, reading its episodes once.

    Raises:
        StoreError: It is no folder of results, or cannot be read.
    """
    manifest = read_manifest(directory)
    return _result(Path(directory), manifest, RunSums.of(read_records(directory)), None)


def _run(
    settings: RunSettings,
    plan: Plan,
    arguments: dict[str, Any],
    out: Path | str | None,
    workers: int,
    progress: bool | None,
) -> EvaluationResult:
    temporary = None
    if out is None:
        temporary = tempfile.TemporaryDirectory(prefix="resilisim-")
        out = temporary.name
    settings = replace(settings, manifest_hash=content_hash(arguments))
    sums = RunSums()
    with RunStore(out, arguments, len(plan), on_record=sums.add) as store:
        shown = RunProgress(len(plan), store.num_finished, progress)
        try:
            left = len(plan) - store.num_finished
            for index, line in play_all(settings, plan.pending(store.is_finished), min(workers, max(left, 1))):
                store.append_encoded(line, index)
                sums.add(json.loads(line))
                shown.advance()
        finally:
            shown.close()
        return _result(store.directory, store.manifest, sums, temporary)


def _result(
    directory: Path,
    manifest: dict[str, Any],
    sums: RunSums,
    temporary: tempfile.TemporaryDirectory[str] | None,
) -> EvaluationResult:
    arguments = manifest["arguments"]
    rows = summarise(sums, arguments.get("policy_names", ()), arguments.get("prompts", ()))
    return EvaluationResult(directory, manifest, sums.num_episodes, tuple(rows), temporary)


def _as_sequence(policies: PolicySpec | Sequence[PolicySpec]) -> tuple[PolicySpec, ...]:
    if isinstance(policies, str) or not isinstance(policies, Sequence):
        return (policies,)
    return tuple(policies)


def _check_prompts(prompts: Sequence[str]) -> None:
    if not prompts:
        raise InvalidInputError("no prompt type was given: expected at least one of " + ", ".join(PROMPT_TYPES))
    for prompt in prompts:
        if prompt not in PROMPT_TYPES:
            raise unknown_name("prompt type", prompt, PROMPT_TYPES)
        if prompts.count(prompt) > 1:
            raise InvalidInputError(f"prompt type {prompt!r} was given twice: expected each once")


def _check_tasks(tasks: Sequence[Task]) -> None:
    if not tasks:
        raise InvalidInputError("no task was given: expected at least one")
    seen: set[str] = set()
    for task in tasks:
        if task.instance_id in seen:
            raise InvalidInputError(f"task {task.instance_id} was given twice: expected each instance_id once")
        seen.add(task.instance_id)


def _check_seeds(seeds: int | Sequence[int]) -> tuple[int, ...]:
    if isinstance(seeds, int):
        if seeds < 1:
            raise InvalidInputError(f"seeds is {seeds}: expected at least 1, or a list of seeds")
        return tuple(range(seeds))
    chosen = tuple(seeds)
    if not chosen or len(set(chosen)) != len(chosen):
        raise InvalidInputError(f"seeds are {list(chosen)!r:.80}: expected at least one, each once")
    for seed in chosen:
        if not 0 <= seed <= MAX_SEED:
            raise InvalidInputError(f"seed {seed} is out of range: expected 0 to 2^63 - 1")
    return chosen
