"""`resilisim evaluate`: policies on tasks, under prompts and seeds, all on the same draws."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

import typer

from resilisim.bounds import Seed
from resilisim.cli.goal_options import note_unused
from resilisim.cli.options import (
    LAW_OPTIONS,
    MODEL_PANEL,
    PROMPT_HELP,
    TOOL_SEARCH,
    JsonFlag,
    LibraryOption,
    OptionGroup,
    RecordTextsOption,
    Scene,
    SeedsOption,
    SplitOption,
    TasksOption,
    ToolsOption,
    WorkersOption,
    scene,
    takes,
)
from resilisim.cli.output import INCOMPLETE, console, note, print_json, resumable
from resilisim.envs.settings import GOAL_NAMES, RULE_NAMES, EnvironmentSettings
from resilisim.errors import InvalidInputError, count_of
from resilisim.evaluation import EvaluationResult, ModelSettings, RunLimits
from resilisim.evaluation import evaluate as run
from resilisim.evaluation.run.store import FAILURES_NAME
from resilisim.evaluation.table.agents import mixture_note
from resilisim.options import OUTPUT_GROUP
from resilisim.policies.registry import COMMAND_PREFIX
from resilisim.reporting.agent_sections import agent_tables
from resilisim.tasks.benchmark import BENCHMARK_VERSION

SCALE_PANEL = "Limits and several machines"

WORDING_OPTIONS = (
    "planner",
    "parameters",
    "prompt_style",
    "search_detail",
    "payload",
    "errors",
    "tools",
    "protocol",
    "salt",
    *TOOL_SEARCH,
)
MODEL_OPTIONS = OptionGroup(
    ModelSettings,
    [
        "models",
        "model_options",
        "base_url",
        "max_tokens",
        "concurrency",
        "episode_seconds",
        "episode_retries",
        "retries",
        "timeout_seconds",
        "requests_per_minute",
        "tokens_per_minute",
        "cache",
        "prices",
        "give_up_after",
        "local_threads",
        "local_device",
        "local_reuse_prompts",
    ],
    MODEL_PANEL,
)
# Who plays what, for `evaluate` and `explore`.
PolicyOption = Annotated[
    list[str] | None,
    typer.Option(
        "--policy",
        help="A policy: a name, module:attribute, or policy:DIR (the trained policy in a folder; policy:DIR+2 looks "
        "two calls ahead). Options stand in brackets: react[steps=10]; several values make a policy each: "
        "react[steps=10|20|100]. Repeatable. 'resilisim agents list' lists LLM agents and their options.",
    ),
]
AgentOption = Annotated[
    list[str] | None,
    typer.Option(
        "--agent",
        help="An agent that plays a session by itself: module:function, or NAME=module:function; repeatable.",
    ),
]
AgentCommandOption = Annotated[
    list[str] | None,
    typer.Option(
        "--agent-command",
        help="Command of a program that plays an episode over MCP, at the URL in $RESILISIM_MCP_URL; repeatable.",
    ),
]
PromptOption = Annotated[
    list[str] | None, typer.Option("--prompt", help=PROMPT_HELP + "; repeatable.", show_default="baseline")
]
RayOption = Annotated[
    str | None,
    typer.Option(
        "--ray",
        metavar="ADDRESS",
        help="Play on a Ray cluster: auto, local, HOST:PORT; --workers is then the number of actors.",
        rich_help_panel=SCALE_PANEL,
    ),
]
ShardOption = Annotated[
    str | None,
    typer.Option(
        "--shard",
        help="i/n: play only part i of n of the tasks; 'resilisim runs merge' puts the parts together.",
        rich_help_panel=SCALE_PANEL,
    ),
]


def asked_at_once(models: ModelSettings) -> ModelSettings:
    """Return settings under which as many requests are under way at once as episodes."""
    return replace(models, chat=replace(models.chat, max_concurrency=models.concurrency))


def agents_named(
    policies: Sequence[str] | None, agents: Sequence[str] | None, commands: Sequence[str] | None
) -> list[str]:
    """Return the agents that a command names, programs among them; somebody has to play."""
    named = [*(agents or []), *(COMMAND_PREFIX + command for command in commands or [])]
    if not policies and not named:
        raise InvalidInputError("nobody plays: expected --policy, --agent or --agent-command")
    return named


def scene_for(
    agents: Sequence[str],
    calling: Literal["native", "discovery", "listed"] | None,
    context: typer.Context,
    environment: EnvironmentSettings,
    tasks: str,
    split: str | None,
    library: Path | None,
) -> Scene:
    """Return environment, tasks and library of those who play: your own agents call functions."""
    if calling is not None:
        environment = replace(environment, tools=calling, protocol="native" if agents else environment.protocol)
    elif agents:
        environment = environment.for_functions()
    where = scene(context, environment, tasks, split, library)
    if where.environment.world is None:
        environment.retriever(where.library)  # refuses a model that does not exist before all else
    return where


@takes(
    environment=OptionGroup(EnvironmentSettings, [*RULE_NAMES, *GOAL_NAMES, *LAW_OPTIONS, "force", *WORDING_OPTIONS]),
    models=MODEL_OPTIONS,
    limits=OptionGroup(RunLimits, panel=SCALE_PANEL),
)
def evaluate(
    context: typer.Context,
    *,
    policy: PolicyOption = None,
    agent: AgentOption = None,
    agent_command: AgentCommandOption = None,
    out: Annotated[
        Path,
        typer.Option("--out", help="Folder of the results; the same command resumes it.", rich_help_panel=OUTPUT_GROUP),
    ],
    tasks: TasksOption = BENCHMARK_VERSION,
    split: SplitOption = None,
    prompt: PromptOption = None,
    seeds: SeedsOption = 1,
    first_seed: Annotated[
        Seed, typer.Option("--first-seed", help="The first of the seeds, for a run that adds episodes to another.")
    ] = 0,
    workers: WorkersOption = 1,
    environment: EnvironmentSettings,
    models: ModelSettings,
    calling: ToolsOption = None,
    library: LibraryOption = None,
    record_texts: RecordTextsOption = None,
    shard: ShardOption = None,
    ray: RayOption = None,
    limits: RunLimits,
    as_json: JsonFlag = False,
) -> None:
    """Evaluate policies and agents; write every episode to a folder.

    Each episode is one line of OUT/episodes.jsonl.
    """
    agents = agents_named(policy, agent, agent_command)
    where = scene_for(agents, calling, context, environment, tasks, split, library)
    with resumable():
        result = run(
            policy or [],
            where.tasks,
            tuple(prompt or ["baseline"]),
            range(first_seed, first_seed + seeds),
            agents=agents,
            out=out,
            workers=workers,
            environment=where.environment,
            library=where.own_library,
            model=asked_at_once(models),
            record_texts=record_texts,
            shard=shard,
            limits=limits,
            ray=ray,
        )
    if result.call.num_already_there:
        verb = "was" if result.call.num_already_there == 1 else "were"
        note(
            f"{result.call.num_already_there:,} of {count_of(result.num_planned, 'episode')} {verb} already there; "
            "policy code is not compared, use a different --out after changing a policy"
        )
    if as_json:
        print_json(result.to_mapping())
    else:
        terminal = console()
        terminal.print(result.table())
        for agent_table in agent_tables(result.agents()) if result.agents() else ():
            terminal.print(replace(agent_table, notes=()))
        mixture = mixture_note({sums.policy: sums.sampling for sums in result.agents()})
        if mixture is not None:
            note(mixture)
        is_part = shard is not None and result.num_episodes < result.num_planned
        rest = f"resilisim runs merge {out} ... --out DIR" if is_part else f"resilisim report {out}"
        if result.num_episodes == 0 and result.call.num_failures:
            rest = _how_to_check(models)
        note(f"{count_of(result.num_episodes, 'episode')} in {out}; next: {rest}")
    _tell_what_is_wrong(result, out)


def _how_to_check(models: ModelSettings) -> str:
    """Return the command that says what is wrong where no episode could be played."""
    if not models.models:
        return "see what broke the agent; the same command tries again"
    url = "" if models.chat.base_url is None else f" --base-url {models.chat.base_url}"
    options = "".join(f" --model-option {text}" for text in models.model_options)
    return f"resilisim agents check --model {models.defaults[0]}{url}{options}"


def _tell_what_is_wrong(result: EvaluationResult, out: Path) -> None:
    """Tell of silent policies, of what was forced in vain, of a limit that was reached, and of episodes that broke.

    Raises:
        typer.Exit: Something was not played.
    """
    call = result.call
    note_unused(result.unused_force())
    for errors in call.agent_errors:
        are = "is" if errors.num_episodes == 1 else "are"
        note(f"{errors.policy} broke in {count_of(errors.num_episodes, 'episode')}, which {are} lost: {errors.first}")
    for name in call.silent_policies:
        count = sum(row.num_episodes for row in result.rows if row.policy == name)
        note(
            f"policy {name} returned None from act() at its first turn in {'all ' if count > 1 else ''}"
            f"{count_of(count, 'episode')}, which means stopping: was a return forgotten?"
        )
    if call.stopped_by is not None:
        note(f"stopped at {call.stopped_by}; the same command resumes it with a higher limit")
    if call.num_failures:
        are = "is" if call.num_failures == 1 else "are"
        note(
            f"{count_of(call.num_failures, 'episode')} broke and {are} not scored "
            f"({out / FAILURES_NAME}), the last because {call.last_error}; the same command tries again"
        )
    if call.num_failures or call.stopped_by is not None:
        raise typer.Exit(INCOMPLETE)
