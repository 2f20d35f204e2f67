"""`resilisim explore`: success rates of agents, computed branch by branch."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from resilisim.bounds import Seed
from resilisim.cli.evaluation.evaluate import (
    MODEL_OPTIONS,
    WORDING_OPTIONS,
    AgentCommandOption,
    AgentOption,
    PolicyOption,
    PromptOption,
    RayOption,
    ShardOption,
    agents_named,
    asked_at_once,
    scene_for,
)
from resilisim.cli.options import (
    LAW_OPTIONS,
    MODEL_PANEL,
    JsonFlag,
    LibraryOption,
    OptionGroup,
    RecordTextsOption,
    SplitOption,
    TasksOption,
    ToolsOption,
    WorkersOption,
    takes,
)
from resilisim.cli.output import INCOMPLETE, console, note, print_json, resumable
from resilisim.envs.settings import GOAL_NAMES, RULE_NAMES, EnvironmentSettings
from resilisim.errors import count_of
from resilisim.evaluation import ModelSettings
from resilisim.evaluation.run.store import FAILURES_NAME
from resilisim.exploration import Exploration
from resilisim.exploration import explore as run
from resilisim.exploration.explored import Dice
from resilisim.exploration.exploring import ExplorationLimits
from resilisim.options import OUTPUT_GROUP
from resilisim.tasks.benchmark import BENCHMARK_VERSION


@takes(
    environment=OptionGroup(EnvironmentSettings, [*RULE_NAMES, *GOAL_NAMES, *LAW_OPTIONS, *WORDING_OPTIONS]),
    models=MODEL_OPTIONS,
    limits=OptionGroup(ExplorationLimits),
)
def explore(
    context: typer.Context,
    *,
    policy: PolicyOption = None,
    agent: AgentOption = None,
    agent_command: AgentCommandOption = None,
    limits: ExplorationLimits,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            help="Folder for the record of every branch; the same command resumes it.",
            rich_help_panel=OUTPUT_GROUP,
        ),
    ] = None,
    tasks: TasksOption = BENCHMARK_VERSION,
    split: SplitOption = None,
    prompt: PromptOption = None,
    dice: Annotated[
        Dice,
        typer.Option(
            "--dice",
            help="Independent sets of replies of language models; the interval is then over them.",
            rich_help_panel=MODEL_PANEL,
        ),
    ] = 1,
    seed: Annotated[
        Seed, typer.Option("--seed", help="Seed for the wording of what tools return; every result is played.")
    ] = 0,
    workers: WorkersOption = 1,
    environment: EnvironmentSettings,
    models: ModelSettings,
    calling: ToolsOption = None,
    library: LibraryOption = None,
    record_texts: RecordTextsOption = None,
    shard: ShardOption = None,
    ray: RayOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Compute success rates branch by branch, without a sample.

    For agents that always do the same after the same answers: each branch of what calls can bring is played once and
    weighted by its probability. Without --out, policies that are functions of the state are followed from state to
    state instead, which is much faster.
    """
    agents = agents_named(policy, agent, agent_command)
    where = scene_for(agents, calling, context, environment, tasks, split, library)
    with resumable():
        explored = run(
            policy or [],
            where.tasks,
            tuple(prompt or ["baseline"]),
            agents=agents,
            plays=limits.plays,
            width=limits.width,
            dice=dice,
            seed=seed,
            out=out,
            workers=workers,
            environment=where.environment,
            library=where.own_library,
            model=asked_at_once(models),
            record_texts=record_texts,
            shard=shard,
            ray=ray,
        )
    if as_json:
        print_json(explored.to_mapping())
    else:
        console().print(explored.table())
    _tell_what_is_open(explored, limits, out, shard)


def _tell_what_is_open(
    explored: Exploration, limits: ExplorationLimits, out: Path | None, shard: str | None = None
) -> None:
    """Tell of rates that are no numbers yet, and of explorations that broke.

    Raises:
        typer.Exit: Something broke.
    """
    wide = [row for row in explored.rows if row.high - row.low > limits.width]
    if wide:
        widest = max(row.high - row.low for row in wide)
        note(
            f"{count_of(len(wide), 'rate')} not known to within {limits.width:g} after {limits.plays:,} plays "
            f"(the widest to {widest:.3g}): more --plays narrow them"
        )
    if out is not None and explored.rows:
        rest = f"resilisim report {out}" if shard is None else f"resilisim runs merge {out} ... --out DIR"
        note(f"every branch is in {out}; next: {rest}")
    if explored.num_failures:
        where = "" if out is None else f" ({out / FAILURES_NAME})"
        note(
            f"{count_of(explored.num_failures, 'exploration')} broke{where}, the last because {explored.last_error}; "
            "the same command tries again"
        )
        raise typer.Exit(INCOMPLETE)
