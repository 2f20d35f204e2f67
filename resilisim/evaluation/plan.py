"""What a run consists of: its settings, which decide every byte of every episode, and the list of its episodes."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, TypeAlias

from resilisim.chat import RoleModels
from resilisim.chat.prices import PriceTable
from resilisim.envs.conversation import ConversationEnv
from resilisim.errors import InvalidInputError
from resilisim.evaluation.models import ModelSettings
from resilisim.policies.base import Policy, policy_name
from resilisim.policies.llm.policy import LlmPolicy
from resilisim.policies.registry import checkpoint_hashes, make_policy
from resilisim.seeding import EVALUATION_SALT
from resilisim.tasks import Task
from resilisim.tasks.benchmark import BENCHMARK_SHA256, BENCHMARK_VERSION
from resilisim.tool_library import ToolLibrary, default_library
from resilisim.tool_library.retrieval import ToolRetriever

# What can be given as a policy: text that `make_policy` understands, or a class or function that returns a policy.
PolicySpec: TypeAlias = "str | Callable[[], Policy]"


@dataclass(frozen=True, slots=True)
class EnvironmentSettings:
    """The options of Conversation-v0 that a run passes on; their meaning stands there.

    `embedding_model` is what searches use, by name or path; None is the one that `ToolRetriever` takes.
    """

    base: float = 0.8
    not_executed: float = 0.5
    failed: float = 0.7
    history: float = 0.9
    max_turns: int = 10
    max_consecutive_failures: int = 5
    loop_length: int = 4
    planner: str = "auto"
    parameters: Literal["lenient", "strict", "ignore"] = "lenient"
    search_detail: Literal["brief", "full"] = "brief"
    payload: Literal["compact", "verbose"] = "compact"
    tools: Literal["discovery", "listed"] = "discovery"
    protocol: Literal["text", "native"] = "text"
    salt: str = EVALUATION_SALT
    embedding_model: str | None = None


@dataclass(frozen=True, slots=True)
class RunSettings:
    """Everything that a process needs to play episodes of a run; it travels to other processes.

    Attributes:
        policies: What makes each policy.
        policy_names: Their names in records, all different.
        prompts: Prompt types.
        environment: Options of the environment.
        library: The tool library as JSON, or None for the default one.
        models: Who answers the LLM agents among the policies.
        directory: The run's folder, in which replies of episodes under way are kept; None keeps none.
        manifest_hash: Hash of the run's arguments, which every record carries.
    """

    policies: tuple[PolicySpec, ...]
    policy_names: tuple[str, ...]
    prompts: tuple[str, ...]
    environment: EnvironmentSettings
    library: str | None
    models: ModelSettings = field(default_factory=ModelSettings)
    directory: str | None = None
    manifest_hash: str = ""

    def load_library(self) -> ToolLibrary:
        """Return the tool library."""
        return default_library() if self.library is None else ToolLibrary.from_json(self.library, source="library")

    def make_environment(self, library: ToolLibrary) -> ConversationEnv:
        """Return a new environment."""
        options = asdict(self.environment)
        model = options.pop("embedding_model")
        if model is None:
            return ConversationEnv(library=library, **options)
        retriever = ToolRetriever(library, model)
        retriever.embed([])  # refuses a model that does not exist now, not at the first search
        return ConversationEnv(library=library, search=retriever.search, **options)


@dataclass(frozen=True, slots=True)
class PlannedEpisode:
    """One episode of a plan, by the places of its parts in the settings.

    Attributes:
        index: Its place in the plan.
        task: The task.
        policy: Place of its policy.
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

    def __len__(self) -> int:
        """Number of episodes."""
        return len(self.tasks) * self.num_policies * self.num_prompts * len(self.seeds)

    def episode(self, index: int) -> PlannedEpisode:
        """Return the episode at a place of the plan."""
        rest, seed = divmod(index, len(self.seeds))
        rest, prompt = divmod(rest, self.num_prompts)
        task, policy = divmod(rest, self.num_policies)
        return PlannedEpisode(index, self.tasks[task], policy, prompt, self.seeds[seed])

    def pending(self, is_finished: Callable[[int], bool]) -> Iterator[PlannedEpisode]:
        """Yield the episodes that are not finished, in order."""
        for index in range(len(self)):
            if not is_finished(index):
                yield self.episode(index)


@dataclass(frozen=True, slots=True)
class PolicyMaker:
    """Makes the policies of a run, as often as they are needed.

    Attributes:
        library: The tool library, for policies that ask for it.
        models: Who answers LLM agents; None if nobody was named.
        prices: Prices of models.
    """

    library: ToolLibrary
    models: RoleModels | None = None
    prices: PriceTable = field(default_factory=PriceTable)

    def make(self, spec: PolicySpec) -> Policy:
        """Return a new policy.

        Raises:
            InvalidInputError: There is no such policy, or it is none.
        """
        if isinstance(spec, str):
            offered = {"library": self.library, "models": self.models, "prices": self.prices}
            return make_policy(spec, offered=offered)
        policy = spec()
        if not callable(getattr(policy, "reset", None)) or not callable(getattr(policy, "act", None)):
            kind = type(policy).__name__
            raise InvalidInputError(f"{describe_policy(spec)} gives a {kind} without reset() and act()")
        return policy


def describe_policy(spec: PolicySpec) -> str:
    """Return how a manifest names a policy: its text, or where its class or function stands."""
    if isinstance(spec, str):
        return spec
    return f"{getattr(spec, '__module__', '?')}:{getattr(spec, '__qualname__', type(spec).__qualname__)}"


def name_policies(policies: Sequence[Policy]) -> tuple[str, ...]:
    """Return the names of policies.

    Raises:
        InvalidInputError: A policy's name cannot be printed, or two have one name.
    """
    names: list[str] = []
    for policy in policies:
        name = policy_name(policy)
        if not name.isprintable():
            raise InvalidInputError(f"policy name {name!r:.80} holds characters that cannot be printed")
        if name in names:
            raise InvalidInputError(
                f"two policies are named {name!r}: give one of them another `name`, or leave it out"
            )
        names.append(name)
    return tuple(names)


def agent_arguments(policies: Sequence[Policy], models: RoleModels | None) -> dict[str, Any]:
    """Return what a manifest says about the LLM agents of a run; nothing if there is none."""
    agents = [policy for policy in policies if isinstance(policy, LlmPolicy)]
    if not agents:
        return {}
    named = {} if models is None else models.identities()
    return {"models": named, "prompts_of_agents": {policy_name(agent): agent.prompts.hash for agent in agents}}


def warn_about_models(policies: Sequence[Policy], maker: PolicyMaker, protocol: str) -> None:
    """Warn of what a run says about its models and that changes nothing: roles, prices, the native protocol."""
    agents = [policy for policy in policies if isinstance(policy, LlmPolicy)]
    if maker.models is None or not agents:
        return
    components = {component for agent in agents for component in agent.components}
    for role in maker.models.by_role:
        if role not in components:
            known = ", ".join(sorted(components))
            _warn(f"no policy of this run has a component {role!r}, so its model is never asked: there are {known}")
    if maker.prices.prices:
        asked = {maker.models.for_role(component).name for component in components}
        for name in sorted(asked):
            gap = maker.prices.gap(name)
            if gap is not None:
                _warn(f"{gap}; what it costs is not counted")
    in_text = [policy_name(agent) for agent in agents if not agent.uses_native_calls]
    if protocol == "native" and in_text:
        _warn(f"no native tool calls by {', '.join(in_text)}: the model writes text there, too")


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
    named = [spec for spec in settings.policies if isinstance(spec, str)]
    checkpoints = checkpoint_hashes([settings.environment.planner, *named])
    return {
        "benchmark": {"version": BENCHMARK_VERSION, "sha256": BENCHMARK_SHA256},
        # Only where there are some, so that the manifests of other runs stay as they were.
        **({"checkpoints": checkpoints} if checkpoints else {}),
        **agents,
        "environment": asdict(settings.environment),
        "library": library.content_hash,
        "num_episodes": len(plan),
        "policies": [describe_policy(spec) for spec in settings.policies],
        "policy_names": list(settings.policy_names),
        "prompts": list(settings.prompts),
        "seeds": list(plan.seeds),
        "tasks": {"count": len(plan.tasks), "sha256": hash_tasks(plan.tasks)},
    }
