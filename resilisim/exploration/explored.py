"""`explore`, and what it returns: the success rates of agents, computed branch by branch instead of sampled."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Unpack

from annotated_types import Ge, Le

from resilisim.bounds import Seed, Workers, checked
from resilisim.envs.settings import EnvironmentOptions, EnvironmentSettings
from resilisim.errors import InvalidInputError
from resilisim.evaluation.episode.record import EpisodeRecord
from resilisim.evaluation.episode.texts import RecordTexts, opened
from resilisim.evaluation.run.arguments import TaskSpec
from resilisim.evaluation.run.contestants import ModelSpec, PolicySpec, check_models
from resilisim.evaluation.run.plan import RunPlan
from resilisim.evaluation.run.player import Players
from resilisim.evaluation.run.progress import beginning
from resilisim.evaluation.run.ray_cluster import check_address
from resilisim.evaluation.run.store import read_records
from resilisim.evaluation.run_results import folder_of
from resilisim.evaluation.table.summary import bound_note
from resilisim.exploration.exploration_folder import explored_arguments, play_exploration
from resilisim.exploration.exploring import ExplorationLimits, ExploredRow
from resilisim.policies.function_agent import AgentFunction
from resilisim.provenance import content_hash
from resilisim.tables.numbers import percent
from resilisim.tables.table import Table
from resilisim.tasks.benchmark import BENCHMARK_VERSION
from resilisim.tool_library import ToolLibrary

REPLIES_NAME = "replies"  # folder in which replies of models are kept, in that of the results
Dice = Annotated[int, Ge(1), Le(1000)]  # sets of replies of language models
MOST_ROWS = 40  # of tasks one by one in a table


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class Exploration:
    """What `explore` found.

    Attributes:
        directory: The folder with the record of every branch, its weight in it; of policies that were followed from
            state to state there are none.
        rows: What is known of each agent on each task under each prompt, in the order of the plan.
        num_planned: How many rows there are when everything was explored.
        num_failures: Explorations that broke, and not by the agent's fault as far as can be told; the same call goes on
            with them.
        last_error: What the last of them broke on.

    Example:
        >>> from resilisim import explore
        >>> found = explore(["plan-follower", "exact-optimum"], tasks=3, prompts="optimal")
        >>> [(row.policy, row.is_exact) for row in found.rows[:2]]
        [('plan-follower', True), ('exact-optimum', True)]
        >>> best = found.rows[1]
        >>> round(best.low - best.optimum, 9)
        0.0
        >>> best.losses, round(found.rows[0].low + sum(found.rows[0].losses.values()) - best.optimum, 9) == 0.0
        ({}, True)
    """

    directory: Path
    rows: tuple[ExploredRow, ...]
    num_planned: int
    num_failures: int = 0
    last_error: str = ""
    # Keeps a folder that nobody asked for until the result is gone.
    _temporary: tempfile.TemporaryDirectory[str] | None = field(default=None)

    def __repr__(self) -> str:
        """Return the folder, and how many rows there are."""
        return f"Exploration({str(self.directory)!r}, {len(self.rows)} of {self.num_planned} explored)"

    def _repr_html_(self) -> str:
        """Return what a notebook shows: the table."""
        return self.table()._repr_html_()

    def records(self) -> Iterator[EpisodeRecord]:
        """Yield the record of every branch, in the order in which they were played."""
        yield from map(opened, read_records(self.directory))

    def to_mapping(self) -> dict[str, Any]:
        """Return the rows as JSON values; `directory` is None where the folder vanishes with the result."""
        return {
            "directory": None if self._temporary is not None else str(self.directory),
            "num_planned": self.num_planned,
            "num_failures": self.num_failures,
            "last_error": self.last_error or None,
            "rows": [row.to_mapping() for row in self.rows],
        }

    def table(self) -> Table:
        """Return the rates as a table: of each task, or where there are many, their means by policy and prompt."""
        return rates_table(self.rows)


def rates_table(rows: Sequence[ExploredRow]) -> Table:
    """Return rates as a table: of each task, or where there are many, their means by policy and prompt."""
    if len(rows) <= MOST_ROWS:
        lines = [([row.policy, row.prompt, row.task], [row]) for row in rows]
        headings = ["policy", "prompt", "task"]
    else:
        groups: dict[tuple[str, str], list[ExploredRow]] = {}
        for row in rows:
            groups.setdefault((row.policy, row.prompt), []).append(row)
        lines = [([policy, prompt, f"{len(group):,} tasks"], group) for (policy, prompt), group in groups.items()]
        headings = ["policy", "prompt", "tasks"]
    cells = [[*names, *_numbers(group)] for names, group in lines]
    note = "Percent. The rate is certain to lie between low and high; where they are equal, it is exact."
    is_exact = all(percent(row.low) == percent(row.high) for row in rows)  # then all three say the same
    return Table(
        "",
        [*headings, "low", "high", "estimate", "V*", "plays"],
        cells,
        text_columns=3,
        notes=[note, *filter(None, [bound_note(rows)])],
        optional=["estimate"] if is_exact else [],
    )


def _numbers(rows: Sequence[ExploredRow]) -> list[Any]:
    """Return the means of rows as cells, and the number of all plays."""
    means = [sum(getattr(row, name) for row in rows) / len(rows) for name in ("low", "high", "estimate")]
    known = [row.optimum for row in rows if row.optimum is not None]
    optimum = sum(known) / len(known) if len(known) == len(rows) else None
    return [*means, optimum, sum(row.plays for row in rows)]


def explore(
    policies: PolicySpec | Iterable[PolicySpec] = (),
    tasks: TaskSpec | Iterable[TaskSpec] | int | Path = BENCHMARK_VERSION,
    prompts: str | Iterable[str] = ("baseline",),
    *,
    agents: AgentFunction | str | Iterable[AgentFunction | str] = (),
    plays: int = 2000,
    width: float = 0.0,
    dice: int = 1,
    seed: int = 0,
    out: Path | str | None = None,
    workers: int = 1,
    environment: EnvironmentSettings | None = None,
    library: ToolLibrary | None = None,
    model: ModelSpec = None,
    record_texts: RecordTexts | None = None,
    shard: str | None = None,
    ray: str | None = None,
    progress: bool | None = None,
    **options: Unpack[EnvironmentOptions],
) -> Exploration:
    """Compute success rates branch by branch, for agents that do the same whenever they are told the same.

    An agent's episode is a function of what its calls bring, and the law says how likely that is. So the likeliest
    branch is played, then the likeliest of those that leave it, and so on, until all are played, the rate is known to
    within `width`, or there were `plays` episodes. The weights of the branches are a bracket that is certain. Plays
    that cannot close it are spent on episodes drawn from what is left, which estimate the rate without bias.

    Branches are those of results. Which error a failed call shows, and what a successful one returns, are those of the
    `seed`.

    Policies that are functions of the state (`policies.base.memory_of`; those that ship without a model are, but for
    the random one) are followed from state to state instead, where no records are wanted and V* is exact: the same rows
    in a fraction of the time.

    Args:
        policies: Who plays, as in `evaluate`.
        tasks: What is played, as in `evaluate`.
        prompts: Prompt types.
        agents: Functions of a session, or programs, that play as well.
        plays: Most episodes to play of each policy, task and prompt, or states to meet.
        width: Where to stop before that: the most that low and high may be apart.
        dice: Independent sets of replies of language models, over which the interval is then: the luck of the tools is
            gone, what is left are the model's own dice. Others play once.
        seed: Whose words the tools say, 0 to 2^63 - 1.
        out: Folder of the records; the same call resumes it. If omitted, one that vanishes with the result, in which
            policies that are functions of the state leave no records.
        workers: Processes.
        environment: Law, end rules and all else; the benchmark's if omitted.
        library: The tool library; the default one if omitted.
        model: The language models of LLM agents. The first reply to a conversation is kept, and is the reply to it from
            then on.
        record_texts: Whose texts stay in the records.
        shard: "i/n" explores only the i-th of n parts of the tasks; `merge_runs` puts the folders together.
        ray: Address of a Ray cluster whose machines play, as in `evaluate`. What language models reply is kept in the
            folder, which every machine has to see then.
        progress: Whether to show progress; None shows it for what takes more than two seconds.
        **options: Options of `EnvironmentSettings`, such as base=0.7, in place of those of `environment`.

    Returns:
        What was found, earlier calls on the same folder included.

    Raises:
        InvalidInputError: An argument is unusable, or an agent does not repeat itself: the line names the message, and
            what it was before.
        ExactLimitError: A task is too large to be solved exactly.
        StoreError: The folder holds another run, or cannot be written.
        RunInterrupted: Ctrl-C; what was played is kept.

    Example:
        >>> from resilisim import explore
        >>> def tries_twice(session):
        ...     for tool in ("file_operations_reader", "data_processing_parser"):
        ...         session.call(tool).ok or session.call(tool)
        ...     return "done"
        >>> row = explore(agents=tries_twice, tasks=[{
        ...     "instance_id": "two", "task_type": "basic_file_processing", "description": "Read it, and parse it.",
        ...     "inputs": {}, "expected_outputs": {}, "required_tools": ["file_operations_reader",
        ...     "data_processing_parser"]}]).rows[0]
        >>> row.plays, row.is_exact, round(row.low, 4), round(row.optimum, 4)
        (9, True, 0.885, 0.99)
    """
    if out is not None:
        folder_of(out)
    if ray is not None:
        check_address(ray)
    limits = ExplorationLimits(plays=plays, width=width)
    num_workers = checked(Workers, "workers", workers)
    checked(Seed, "seed", seed)
    checked(Dice, "dice", dice)
    temporary = None
    if out is None:
        temporary = tempfile.TemporaryDirectory(prefix="resilisim-")
        out = temporary.name
    models = check_models(model)
    if models.models and models.cache is None:
        models = replace(models, cache=str(Path(out) / REPLIES_NAME))
    with beginning(progress):
        plan = RunPlan.of(
            policies,
            tasks,
            prompts,
            [seed],
            agents=agents,
            environment=environment,
            library=library,
            model=models,
            record_texts=record_texts,
            shard=shard,
            options=options,
        )
    plan = exploring_plan(plan, limits, dice)
    players = Players(num_workers, plan.has_agents, ray)
    keeps = temporary is None
    rows, failures, error = play_exploration(plan, Path(out), limits, dice, players, progress, keeps)
    return Exploration(Path(out), rows, plan.episodes.part_size, failures, error, temporary)


def exploring_plan(plan: RunPlan, limits: ExplorationLimits, dice: int) -> RunPlan:
    """Return a plan whose manifest says that its episodes are branches, at most so many of each.

    Raises:
        InvalidInputError: Calls are forced, which leaves nothing to explore of them.
    """
    forced = plan.settings.environment.force
    if forced:
        raise InvalidInputError(f"force is {forced[0]!r:.60}: expected none, as exploring plays every result of a call")
    num_episodes = len(plan.episodes) * dice * limits.plays
    arguments = explored_arguments(plan.arguments, limits, _num_explorations(plan, dice), num_episodes, dice)
    settings = replace(plan.settings, manifest_hash=content_hash(arguments))
    return replace(plan, settings=settings, arguments=arguments)


def _num_explorations(plan: RunPlan, dice: int) -> int:
    """Return how many explorations the whole plan has: one for each set of replies where a model is asked."""
    for_each = [dice if contestant.model is not None else 1 for contestant in plan.settings.contestants]
    return sum(for_each) * len(plan.episodes) // max(len(for_each), 1)
