"""The episodes that other people's harnesses play: which there are, how one is opened, and what is reported of it."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from resilisim.envs.conversation import ConversationEnv
from resilisim.envs.settings import EnvironmentSettings
from resilisim.errors import InvalidInputError
from resilisim.evaluation.episode.play import open_session
from resilisim.evaluation.run.plan import (
    check_prompts,
    check_seeds,
    check_solvable,
    check_tasks,
    in_world,
    library_in,
    tasks_with_flaws,
)
from resilisim.policies.agent_session import AgentSession
from resilisim.tasks import Task
from resilisim.tool_library import ToolLibrary, load_library

DEFAULT_TASKS = 20


@dataclass(frozen=True, slots=True)
class HarnessEpisode:
    """One episode: a task, a prompt type, a seed, and its place among the others."""

    index: int
    task: Task = field(repr=False)
    prompt: str
    seed: int

    @property
    def name(self) -> str:
        """A name that no other episode has."""
        return f"{self.task.instance_id}-{self.prompt}-{self.seed}"


class HarnessPlan:
    """All episodes of a harness: each task with each prompt type and each seed, in this order of nesting.

    Args:
        tasks: What `evaluate` takes: a number of tasks of the benchmark, a file, an id, or a list.
        seeds: Number of episodes of each task and prompt, or a list of seeds; commands hand these over as texts.
        prompt: Prompt type, or a list of them.
        tools: "native", or "discovery".
        library: File of a library of one's own; the default one if omitted.
        options: Options of `EnvironmentSettings`, such as {"base": 0.7}.

    Raises:
        InvalidInputError: An argument is unusable.
        ExactLimitError: A task is too large to be solved exactly.
    """

    def __init__(
        self,
        tasks: Any = DEFAULT_TASKS,
        seeds: Any = 1,
        prompt: Any = "baseline",
        tools: Any = "native",
        library: str | None = None,
        *,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        chosen: dict[str, Any] = {**(options or {}), "tools": tools}
        if chosen.setdefault("protocol", "native") != "native":
            raise InvalidInputError(
                f"protocol is {chosen['protocol']!r:.60}: expected 'native', harnesses call functions"
            )
        self.settings, tasks = in_world(EnvironmentSettings().with_options(**chosen), tasks, chosen)
        self._own_library: ToolLibrary | None = None if library is None else load_library(library)
        used = library_in(self.settings, self._own_library)
        self._tasks = check_tasks(tasks, used, self.settings.world)
        self._prompts = check_prompts(prompt)
        if isinstance(seeds, list):
            seeds = [int(seed) if isinstance(seed, str) and seed.isdecimal() else seed for seed in seeds]
        self._seeds = check_seeds(seeds)
        self._env = ConversationEnv(self.settings, library=used)
        check_solvable(self._tasks, self._env)
        self._tasks = tasks_with_flaws(self._tasks, self._prompts, self._env)

    def __len__(self) -> int:
        """Number of episodes."""
        return len(self._tasks) * len(self._prompts) * len(self._seeds)

    def __iter__(self) -> Iterator[HarnessEpisode]:
        """Yield the episodes."""
        return (self[index] for index in range(len(self)))

    def __getitem__(self, index: int) -> HarnessEpisode:
        """Return the episode at a place."""
        rest, seed = divmod(index, len(self._seeds))
        task, prompt = divmod(rest, len(self._prompts))
        return HarnessEpisode(index, self._tasks[task], self._prompts[prompt], self._seeds[seed])

    @functools.lru_cache(maxsize=4096)  # noqa: B019 - a plan lives as long as its process
    def text(self, task: Task, prompt: str) -> str:
        """Return the prompt of an episode, without solving its task."""
        return self._env.prompt(task, prompt).text

    def open(self, episode: HarnessEpisode, name: str) -> AgentSession:
        """Begin an episode, for a player of that name."""
        return open_session(
            episode.task,
            episode.seed,
            episode.prompt,
            self.settings.tools,
            name=name,
            environment=self.settings,
            library=self._own_library,
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
