"""The episodes that other people's harnesses play: which there are, how one is opened, and what is reported of it."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from resilisim.envs.session import Session
from resilisim.errors import InvalidInputError
from resilisim.evaluation.episode.play import open_session
from resilisim.evaluation.run.contestants import Contestant
from resilisim.evaluation.run.plan import PlannedEpisode, RunPlan
from resilisim.tasks import Task
from resilisim.tool_library import load_library

DEFAULT_TASKS = 20
HARNESS = Contestant("harness", "harness")


def plan_of(
    tasks: Any = DEFAULT_TASKS,
    seeds: Any = 1,
    prompt: Any = "baseline",
    tools: Any = "native",
    library: str | None = None,
    *,
    options: Mapping[str, Any] | None = None,
) -> RunPlan:
    """Return the run that the arguments of a harness mean, which hands some of them over as texts.

    Args:
        tasks: What `evaluate` takes: a number of tasks of the benchmark, a file, an id, or a list.
        seeds: Number of episodes of each task and prompt, or a list of seeds.
        prompt: Prompt type, or a list of them.
        tools: "native", or "discovery".
        library: File of a library of one's own; the default one if omitted.
        options: Options of `EnvironmentSettings`, such as {"base": 0.7}.

    Raises:
        InvalidInputError: An argument is unusable.
        ExactLimitError: A task is too large to be solved exactly.
    """
    with_tools: dict[str, Any] = {**(options or {}), "tools": tools}
    if with_tools.setdefault("protocol", "native") != "native":
        raise InvalidInputError(
            f"protocol is {with_tools['protocol']!r:.60}: expected 'native', harnesses call functions"
        )
    if isinstance(seeds, list):
        seeds = [int(seed) if isinstance(seed, str) and seed.isdecimal() else seed for seed in seeds]
    own_library = None if library is None else load_library(library)
    return RunPlan.of(tasks=tasks, prompts=prompt, seeds=seeds, player=HARNESS, library=own_library, options=with_tools)


@functools.lru_cache(maxsize=4096)
def prompt_text(plan: RunPlan, task: Task, prompt: str) -> str:
    """Return the prompt of an episode, without solving its task."""
    return plan.environment.prompt(task, prompt).text


def open_episode(plan: RunPlan, episode: PlannedEpisode, name: str) -> Session:
    """Begin an episode, for a player of that name."""
    settings = plan.settings.environment
    return open_session(
        episode.task,
        episode.seed,
        episode.prompt,
        settings.tools,
        name=name,
        environment=settings,
        library=plan.library,
    )


def figures(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a harness reports of an episode beside its outcome.

    `luck_adjusted` is the outcome without the episode's luck, V* minus regret, so that its mean has the mean of the
    outcomes and far less spread.
    """
    return {
        "level": record["score"]["level"],
        "ended_by": record["ended_by"],
        "optimum": record["optimum"],
        "regret": record["regret"],
        "luck": record["luck"],
        "luck_adjusted": record["outcome"] - record["luck"],
        "messages": len(record["steps"]),
    }
