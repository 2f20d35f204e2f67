"""What a run consists of: its settings, which decide every byte of every episode, and the list of its episodes."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from resilisim.envs.conversation import ConversationEnv
from resilisim.envs.settings import EnvironmentSettings
from resilisim.evaluation.episode.texts import RecordTexts
from resilisim.evaluation.run.contestants import Contestant, PolicyMaker, describe_policy
from resilisim.evaluation.run.models import ModelSettings
from resilisim.policies.base import Policy
from resilisim.policies.llm.policy import LlmPolicy
from resilisim.policies.registry import checkpoint_hashes
from resilisim.tasks import Task
from resilisim.tasks.benchmark import benchmark_identity
from resilisim.tool_library import ToolLibrary, default_library


@dataclass(frozen=True, slots=True)
class RunSettings:
    """Everything that a process needs to play episodes of a run; it travels to other processes.

    Attributes:
        contestants: Who plays.
        prompts: Prompt types.
        environment: Options of the environment.
        library: The tool library as JSON, or None for the default one.
        models: Who answers the LLM agents among the policies.
        directory: The run's folder, in which replies of episodes under way are kept; None keeps none.
        manifest_hash: Hash of the run's arguments, which every record carries.
        record_texts: Whose texts records keep (`evaluation.episode.texts.stored`).
    """

    contestants: tuple[Contestant, ...]
    prompts: tuple[str, ...]
    environment: EnvironmentSettings
    library: str | None
    models: ModelSettings = field(default_factory=ModelSettings)
    directory: str | None = None
    manifest_hash: str = ""
    record_texts: RecordTexts | None = None

    def load_library(self) -> ToolLibrary:
        """Return the tool library."""
        return default_library() if self.library is None else ToolLibrary.from_json(self.library, source="library")

    def make_environment(self, library: ToolLibrary) -> ConversationEnv:
        """Return a new environment."""
        return ConversationEnv(self.environment, library=library)


@dataclass(frozen=True, slots=True)
class Shard:
    """One of several parts of a run that are played apart and merged later.

    Attributes:
        number: Which part, from 1.
        count: How many there are.
    """

    number: int = 1
    count: int = 1

    def __str__(self) -> str:
        """Return how it is written."""
        return f"{self.number}/{self.count}"


@dataclass(frozen=True, slots=True)
class PlannedEpisode:
    """One episode of a plan, by the places of its parts in the settings.

    Attributes:
        index: Its place in the plan.
        task: The task.
        policy: Place of its contestant.
        prompt: Place of its prompt type.
        seed: Episode seed.
    """

    index: int
    task: Task = field(repr=False)
    policy: int
    prompt: int
    seed: int


@dataclass(frozen=True, slots=True)
class Plan:
    """All episodes of a run: every task with every policy, prompt type and seed, in this order of nesting.

    Tasks are the outermost loop: a task's optimum is solved once for all its episodes, and the part of a run that is
    finished when it is stopped is about the same for all policies.
    """

    tasks: Sequence[Task]
    num_policies: int
    num_prompts: int
    seeds: Sequence[int]

    @property
    def episodes_per_task(self) -> int:
        """Episodes of each task."""
        return self.num_policies * self.num_prompts * len(self.seeds)

    def __len__(self) -> int:
        """Number of episodes."""
        return len(self.tasks) * self.episodes_per_task

    def episode(self, index: int) -> PlannedEpisode:
        """Return the episode at a place of the plan."""
        rest, seed = divmod(index, len(self.seeds))
        rest, prompt = divmod(rest, self.num_prompts)
        task, policy = divmod(rest, self.num_policies)
        return PlannedEpisode(index, self.tasks[task], policy, prompt, self.seeds[seed])

    def indices(self, shard: Shard) -> Iterator[int]:
        """Yield the places of the episodes of a shard, in order: those of every n-th task.

        Whole tasks, so that all policies of a shard meet each other and no task is solved in two places.
        """
        for task in range(shard.number - 1, len(self.tasks), shard.count):
            first = task * self.episodes_per_task
            yield from range(first, first + self.episodes_per_task)

    def pending(self, is_finished: Callable[[int], bool], shard: Shard) -> Iterator[PlannedEpisode]:
        """Yield the episodes of a shard that are not finished, in order."""
        for index in self.indices(shard):
            if not is_finished(index):
                yield self.episode(index)


def agent_arguments(made: Sequence[tuple[Contestant, Policy]]) -> dict[str, Any]:
    """Return what a manifest says about the LLM agents of a run; nothing if there is none.

    `models` names the models by component; where several default models play, they stand there for each policy.
    """
    agents = {contestant.name: policy for contestant, policy in made if isinstance(policy, LlmPolicy)}
    if not agents:
        return {}
    answered = {
        contestant.name: policy.models.identities()
        for contestant, policy in made
        if isinstance(policy, LlmPolicy) and contestant.model is not None
    }
    distinct = list(answered.values())
    several = any(models != distinct[0] for models in distinct)
    return {
        "models": {} if several or not distinct else distinct[0],
        **({"models_of_policies": answered} if several else {}),
        "prompts_of_agents": {name: agent.prompts.hash for name, agent in agents.items()},
    }


def warn_about_models(made: Sequence[tuple[Contestant, Policy]], maker: PolicyMaker, protocol: str) -> None:
    """Warn of what a run says about its models and that changes nothing: roles, prices, the native protocol."""
    agents = [(contestant.name, policy) for contestant, policy in made if isinstance(policy, LlmPolicy)]
    if not maker.models or not agents:
        return
    components = {component for _, agent in agents for component in agent.components}
    for role in next(iter(maker.models.values())).by_role:
        if role not in components:
            known = ", ".join(sorted(components))
            _warn(f"no policy of this run has a component {role!r}, so its model is never asked: there are {known}")
    if maker.prices.prices:
        for gap in price_gaps(made, maker):
            _warn(f"{gap}; what it costs is not counted")
    in_text = [name for name, agent in agents if not agent.uses_native_calls]
    if protocol == "native" and in_text:
        _warn(f"no native tool calls by {', '.join(in_text)}: the model writes text there, too")


def price_gaps(made: Sequence[tuple[Contestant, Policy]], maker: PolicyMaker) -> list[str]:
    """Return a text for each model that LLM agents of a run ask and whose price is not known."""
    asked = {
        policy.models.for_role(component).name
        for _, policy in made
        if isinstance(policy, LlmPolicy)
        for component in policy.components
    }
    return [gap for gap in map(maker.prices.gap, sorted(asked)) if gap is not None]


def _warn(text: str) -> None:
    warnings.warn(text, UserWarning, stacklevel=4)


def hash_tasks(tasks: Sequence[Task]) -> str:
    """Return the SHA-256, in hex, of tasks as JSON Lines, without holding them all as text."""
    digest = hashlib.sha256()
    for task in tasks:
        digest.update(task.to_json().encode("utf-8", "surrogatepass") + b"\n")  # hashed, never written
    return digest.hexdigest()


def run_arguments(settings: RunSettings, plan: Plan, library: ToolLibrary, agents: Mapping[str, Any]) -> dict[str, Any]:
    """Return everything that decides what a run's episodes are, as JSON values for its manifest.

    Args:
        settings: The run's settings.
        plan: Its episodes.
        library: Its tool library.
        agents: What there is to say about LLM agents (`agent_arguments`).
    """
    specs = [contestant.policy for contestant in settings.contestants]
    named = [spec for spec in specs if isinstance(spec, str)]
    checkpoints = checkpoint_hashes([settings.environment.planner, *named])
    return {
        "benchmark": benchmark_identity(),
        # Only where there are some, so that the manifests of other runs stay as they were.
        **({"checkpoints": checkpoints} if checkpoints else {}),
        **agents,
        "environment": asdict(settings.environment),
        "library": library.content_hash,
        "num_episodes": len(plan),
        "policies": [describe_policy(spec) for spec in specs],
        "policy_names": [contestant.name for contestant in settings.contestants],
        "prompts": list(settings.prompts),
        **({} if settings.record_texts is None else {"record_texts": settings.record_texts}),
        "seeds": list(plan.seeds),
        "tasks": {"count": len(plan.tasks), "sha256": hash_tasks(plan.tasks)},
    }
