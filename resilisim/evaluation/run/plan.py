"""What a run consists of: who plays what with which settings, and the list of its episodes.

`RunPlan.of` makes it of arguments as people write them (`run.arguments`), for everybody who plays a run or lets others
play it: `evaluate`, profiles, the MCP server, other people's harnesses and trainers.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

from resilisim.at_work import AT_WORK
from resilisim.chat.prices import PriceTable
from resilisim.chat.request_options import DEFAULT_ROLE
from resilisim.envs.conversation import ConversationEnv
from resilisim.envs.session import Observer, Session
from resilisim.envs.settings import EnvironmentSettings
from resilisim.errors import InvalidInputError
from resilisim.evaluation.episode.play import PlaceInRun
from resilisim.evaluation.episode.texts import RecordTexts
from resilisim.evaluation.run.arguments import (
    TaskSpec,
    check_agents,
    check_fails_by,
    check_policies,
    check_prompts,
    check_record_texts,
    check_seeds,
    check_shard,
    check_solvable,
    check_tasks,
    in_world,
    library_in,
    tasks_with_flaws,
)
from resilisim.evaluation.run.contestants import (
    Contestant,
    ModelSettings,
    ModelSpec,
    PolicyMaker,
    PolicySpec,
    check_models,
    describe_policy,
)
from resilisim.policies.base import Contender, SessionAgent
from resilisim.policies.function_agent import AgentFunction
from resilisim.policies.llm.policy import LlmPolicy
from resilisim.policies.registry import checkpoint_hashes
from resilisim.provenance import content_hash
from resilisim.redaction import without_secrets_in
from resilisim.simulator.draws import Branch
from resilisim.tasks import Task
from resilisim.tasks.benchmark import BENCHMARK_VERSION, benchmark_identity
from resilisim.tool_library import ToolLibrary, default_library
from resilisim.worlds.base import load_world


@dataclass(frozen=True, slots=True)
class RunSettings:
    """Everything that a process needs to play episodes of a run; it travels to other processes."""

    contestants: tuple[Contestant, ...]
    prompts: tuple[str, ...]
    environment: EnvironmentSettings
    library: str | None  # as JSON; None is the default one
    models: ModelSettings = field(default_factory=ModelSettings)
    directory: str | None = None  # the run's folder here, where replies of episodes under way are kept; None: nowhere
    manifest_hash: str = ""  # of the run's arguments, which every record carries
    record_texts: RecordTexts | None = None  # whose texts records keep (`evaluation.episode.texts.stored`)

    def load_library(self) -> ToolLibrary:
        """Return the tool library."""
        if self.environment.world is not None:
            return load_world(self.environment.world).library
        return default_library() if self.library is None else ToolLibrary.of_text(self.library)

    def make_environment(self, library: ToolLibrary) -> ConversationEnv:
        """Return a new environment; what rewards tell of a message is for trainers, not for those who are judged."""
        return ConversationEnv(replace(self.environment, reward="success"), library=library)

    def place(self, episode: PlannedEpisode) -> PlaceInRun:
        """Return where an episode belongs, as its record says it."""
        name = self.contestants[episode.policy].name
        return PlaceInRun(index=episode.index, name=name, manifest=self.manifest_hash)


@dataclass(frozen=True, slots=True)
class PlannedEpisode:
    """One episode of a run; who plays it by the place in the settings.

    `rank` says which of how many tasks of the run it is of, from 1. `sent` is what an earlier try has sent that broke
    for reasons nobody can tell (`Session`), or, on a `branch` of an agent that is explored, what it has to send again.
    """

    index: int
    task: Task = field(repr=False)
    policy: int
    prompt: str
    seed: int
    sent: tuple[str | None, ...] = field(default=(), repr=False)
    branch: Branch | None = field(default=None, repr=False)  # where its draws come from, if not from the key
    rank: tuple[int, int] = field(default=(1, 1), repr=False)

    @property
    def name(self) -> str:
        """A name that no other episode of its player has."""
        return f"{self.task.instance_id}-{self.prompt}-{self.seed}"

    @property
    def place(self) -> str:
        """Which task it is of, for whoever looks on (`AtWork.about`)."""
        number, total = self.rank
        return f"{number:,} of {total:,}: {self.task.instance_id}"


@dataclass(frozen=True, slots=True)
class PlannedEpisodes:
    """All episodes of a run: every task with every policy, prompt type and seed, in this order of nesting.

    Tasks are the outermost loop: a task's optimum is solved once for all its episodes, and the part of a run that is
    finished when it is stopped is about the same for all policies.

    Attributes:
        shard: Which tasks are to be played, those of the others apart and merged later: every n-th. Whole tasks, so
            that all policies of a shard meet each other and no task is solved in two places.
        places: The numbers of those episodes that the run has, if it has not all of them; it then has no shards.
    """

    tasks: Sequence[Task]
    num_policies: int
    prompts: Sequence[str]
    seeds: Sequence[int]
    shard: slice = field(default_factory=lambda: slice(None))
    places: Sequence[int] | None = None

    @property
    def episodes_per_task(self) -> int:
        """Episodes of each task."""
        return self.num_policies * len(self.prompts) * len(self.seeds)

    def __len__(self) -> int:
        """Number of episodes."""
        return len(self.tasks) * self.episodes_per_task if self.places is None else len(self.places)

    def __iter__(self) -> Iterator[PlannedEpisode]:
        """Yield the episodes."""
        return map(self.__getitem__, range(len(self)))

    @property
    def part_size(self) -> int:
        """Number of episodes of the shard."""
        if self.places is not None:
            return len(self.places)
        return len(self.tasks[self.shard]) * self.episodes_per_task

    def __getitem__(self, index: int) -> PlannedEpisode:
        """Return the episode at a place."""
        rest, seed = divmod(index if self.places is None else self.places[index], len(self.seeds))
        rest, prompt = divmod(rest, len(self.prompts))
        task, policy = divmod(rest, self.num_policies)
        part = range(len(self.tasks))[self.shard]
        rank = (part.index(task) + 1 if task in part else task + 1, len(part))
        return PlannedEpisode(index, self.tasks[task], policy, self.prompts[prompt], self.seeds[seed], rank=rank)

    def pending(self, is_finished: Callable[[int], bool]) -> Iterator[int]:
        """Yield the places of the shard's episodes that are not finished, in order."""
        if self.places is not None:
            yield from (index for index in range(len(self.places)) if not is_finished(index))
            return
        for task in range(len(self.tasks))[self.shard]:
            first = task * self.episodes_per_task
            for index in range(first, first + self.episodes_per_task):
                if not is_finished(index):
                    yield index


# Who plays, each with its policy; `PolicyMaker.make_all` makes them.
Made: TypeAlias = "Sequence[tuple[Contestant, Contender]]"


@dataclass(frozen=True, slots=True, eq=False)
class RunPlan:
    """A run: who plays what with which settings. Nothing is played or written yet.

    Attributes:
        settings: What every process that plays needs.
        episodes: The episodes.
        library: The tool library.
        environment: An environment of the run, for prompts and problems; each episode is played in a twin of it.
        made: Who plays, each with its policy; nothing where somebody else's program plays.
        prices: Prices of models.
        arguments: All that decides what the episodes are, as JSON values for the run's manifest.
    """

    settings: RunSettings
    episodes: PlannedEpisodes
    library: ToolLibrary = field(repr=False)
    environment: ConversationEnv = field(repr=False)
    made: Made = field(repr=False)
    prices: PriceTable = field(repr=False)
    arguments: dict[str, Any] = field(repr=False)

    @classmethod
    def of(
        cls,
        policies: PolicySpec | Iterable[PolicySpec] = (),
        tasks: TaskSpec | Iterable[TaskSpec] | int | Path = BENCHMARK_VERSION,
        prompts: str | Iterable[str] = ("baseline",),
        seeds: int | Iterable[int] = 1,
        *,
        agents: AgentFunction | str | Iterable[AgentFunction | str] = (),
        player: Contestant | None = None,
        environment: EnvironmentSettings | None = None,
        library: ToolLibrary | None = None,
        model: ModelSpec = None,
        record_texts: RecordTexts | None = None,
        shard: str | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> RunPlan:
        """Return the run that arguments mean, those of `evaluate`.

        Args:
            policies: Who plays.
            tasks: What is played.
            prompts: Prompt types.
            seeds: Number of episodes of each task, or the seeds.
            agents: Functions of a session, or programs, that play as well.
            player: Who plays instead of all these, in a program of its own: a client, a harness, a trainer. Like
                agents, it calls functions.
            environment: Law, end rules and all else; the benchmark's if omitted.
            library: The tool library; the default one if omitted.
            model: The language models of LLM agents.
            record_texts: Whose texts stay in the records.
            shard: "i/n" for the i-th of n parts of the tasks.
            options: Options of `EnvironmentSettings` in place of those of `environment`.

        Raises:
            InvalidInputError: An argument is unusable.
            ExactLimitError: A task is too large to be solved exactly.
        """
        agent_specs, prompt_types, options = check_agents(agents), check_prompts(prompts), dict(options or {})
        specs = agent_specs
        if player is None and not (agent_specs and policies in ((), [])):
            specs = (*check_policies(policies), *agent_specs)
        environment = environment or EnvironmentSettings()
        if player is not None or agent_specs:
            environment = environment.for_functions()
            options["protocol"] = "native"
        check_fails_by(environment, player, agent_specs, options)
        environment, tasks_of_world = in_world(environment.with_options(**options), tasks, options)
        with AT_WORK.on("loading tasks"):
            used, models = library_in(environment, library), check_models(model)
            chosen_tasks, chosen_seeds = check_tasks(tasks_of_world, used, environment.world), check_seeds(seeds)
        with AT_WORK.on("loading policies"):
            maker = PolicyMaker(used, models.make(), models.load_prices(), models.max_tokens)
            made = maker.make_all(specs)  # once, to see early that each can be made
        settings = RunSettings(
            contestants=tuple(contestant for contestant, _ in made) if player is None else (player,),
            prompts=prompt_types,
            environment=environment,
            library=None if library is None or environment.world else used.to_json(),
            models=models,
            record_texts=check_record_texts(record_texts),
        )
        plan = cls._checked(settings, chosen_tasks, chosen_seeds, used, made, maker.prices, shard)
        warn_about_models(made, maker, environment.protocol)
        return plan

    def varied(self, environment: EnvironmentSettings, tasks: Sequence[Task], prompts: Sequence[str]) -> RunPlan:
        """Return a run of the same players and seeds that differs in the environment, the tasks and the prompts.

        Raises:
            InvalidInputError: A prompt is none for these tasks.
            ExactLimitError: A task is too large to be solved exactly.
        """
        settings = replace(self.settings, environment=environment, prompts=tuple(prompts), manifest_hash="")
        return self._checked(settings, list(tasks), self.episodes.seeds, self.library, self.made, self.prices, None)

    def restricted(self, wanted: Callable[[PlannedEpisode], bool], why: Mapping[str, Any]) -> RunPlan:
        """Return a run of some of the episodes; `why` says in the manifest which, under "again".

        Raises:
            InvalidInputError: There is none.
        """
        places = [episode.index for episode in self.episodes if wanted(episode)]
        if not places:
            raise InvalidInputError("no episode is to be played: expected one at least")
        arguments = {**self.arguments, "num_episodes": len(places), "again": dict(why)}
        settings = replace(self.settings, manifest_hash=content_hash(arguments))
        return replace(self, settings=settings, episodes=replace(self.episodes, places=places), arguments=arguments)

    @classmethod
    def _checked(
        cls,
        settings: RunSettings,
        tasks: list[Task],
        seeds: Sequence[int],
        library: ToolLibrary,
        made: Made,
        prices: PriceTable,
        shard: str | None,
    ) -> RunPlan:
        env = settings.make_environment(library)  # refuses options that make no sense, too
        check_solvable(tasks, env)
        with AT_WORK.on("planning flaws"):
            tasks = tasks_with_flaws(tasks, settings.prompts, env)
        part = check_shard(shard, len(tasks))
        episodes = PlannedEpisodes(tasks, len(settings.contestants), settings.prompts, seeds, part)
        arguments = run_arguments(settings, episodes, library, made)
        settings = replace(settings, manifest_hash=content_hash(arguments))
        return cls(settings, episodes, library, env, made, prices, arguments)

    @property
    def has_agents(self) -> bool:
        """Whether anybody plays in a loop of their own, who may have to be waited for."""
        return any(isinstance(policy, SessionAgent) for _, policy in self.made)

    def session(
        self,
        episode: PlannedEpisode,
        observers: Sequence[Observer],
        record: Callable[[Session], Mapping[str, Any]] | None = None,
    ) -> Session:
        """Begin an episode, in an environment of its own (`Session`)."""
        env = self.environment.twin()
        return Session(env, episode.task, episode.prompt, episode.seed, observers=observers, record=record)

    def price_gaps(self) -> list[str]:
        """Return a text for each model that LLM agents of the run ask and whose price is not known."""
        return price_gaps(self.made, self.prices)


def agents_of(made: Made) -> list[tuple[Contestant, LlmPolicy[Any]]]:
    """Return the LLM agents among those who play."""
    return [(contestant, policy) for contestant, policy in made if isinstance(policy, LlmPolicy)]


def warn_about_models(made: Made, maker: PolicyMaker, protocol: str) -> None:
    """Warn of what a run says about its models and that changes nothing: roles, prices, the native protocol."""
    agents = agents_of(made)
    if not maker.models or not agents:
        return
    components = {component for _, agent in agents for component in agent.components}
    models, known = next(iter(maker.models.values())), ", ".join(sorted(components))
    for role in models.by_role:
        if role not in components:
            _warn(f"no policy of this run has a component {role!r}, so its model is never asked: there are {known}")
    for role in models.options:
        if role not in (*components, DEFAULT_ROLE):
            _warn(f"no policy of this run has a component {role!r}, whose requests have options: there are {known}")
    if maker.prices.prices:
        for gap in price_gaps(made, maker.prices):
            _warn(f"{gap}; what it costs is not counted")
    in_text = [contestant.name for contestant, agent in agents if not agent.uses_native_calls]
    if protocol == "native" and in_text:
        _warn(f"no native tool calls by {', '.join(in_text)}: the model writes text there, too")


def price_gaps(made: Made, prices: PriceTable) -> list[str]:
    """Return a text for each model that LLM agents of a run ask and whose price is not known."""
    asked = {agent.models.for_role(component).name for _, agent in agents_of(made) for component in agent.components}
    return [gap for gap in map(prices.gap, sorted(asked)) if gap is not None]


def _warn(text: str) -> None:
    warnings.warn(text, UserWarning, stacklevel=5)


def hash_tasks(tasks: Sequence[Task]) -> str:
    """Return the SHA-256, in hex, of tasks as JSON Lines, without holding them all as text."""
    digest = hashlib.sha256()
    for task in tasks:
        digest.update(task.to_json().encode("utf-8", "surrogatepass") + b"\n")  # hashed, never written
    return digest.hexdigest()


def run_arguments(settings: RunSettings, plan: PlannedEpisodes, library: ToolLibrary, made: Made) -> dict[str, Any]:
    """Return everything that decides what a run's episodes are, as JSON values for its manifest."""
    specs = [contestant.policy for contestant in settings.contestants]
    named = [spec for spec in specs if isinstance(spec, str)]
    checkpoints = checkpoint_hashes([settings.environment.planner, *named])
    arguments = {
        "benchmark": benchmark_identity(plan.tasks),
        # Only where there are some, so that the manifests of other runs stay as they were.
        **({"checkpoints": checkpoints} if checkpoints else {}),
        **_agent_arguments(made),
        **({"model_options": list(settings.models.model_options)} if settings.models.model_options else {}),
        "environment": settings.environment.to_mapping(),
        "library": library.content_hash,
        "num_episodes": len(plan),
        "policies": [describe_policy(spec) for spec in specs],
        "policy_names": [contestant.name for contestant in settings.contestants],
        "prompts": list(settings.prompts),
        **({} if settings.record_texts is None else {"record_texts": settings.record_texts}),
        "seeds": list(plan.seeds),
        "tasks": {"count": len(plan.tasks), "sha256": hash_tasks(plan.tasks)},
    }
    return without_secrets_in(arguments)


def _agent_arguments(made: Made) -> dict[str, Any]:
    """Return what a manifest says about the LLM agents of a run; nothing if there is none.

    `models` names the models by component; where several default models play, they stand there for each policy.
    """
    agents = agents_of(made)
    if not agents:
        return {}
    answered = {
        contestant.name: agent.models.identities() for contestant, agent in agents if contestant.model is not None
    }
    distinct = list(answered.values())
    several = any(models != distinct[0] for models in distinct)
    return {
        "models": {} if several or not distinct else distinct[0],
        **({"models_of_policies": answered} if several else {}),
        "prompts_of_agents": {contestant.name: agent.prompts.hash for contestant, agent in agents},
    }


def library_of_run(arguments: Mapping[str, Any], library: ToolLibrary | None, directory: Path | str) -> ToolLibrary:
    """Return the library of a run's episodes, by the arguments in its manifest: its world's, or what is given for it.

    Raises:
        InvalidInputError: The run was made with another one.
    """
    if "inject" in arguments:
        raise InvalidInputError(f"{directory}: a program made these calls itself: expected episodes of an environment")
    world = arguments.get("environment", {}).get("world")
    used = load_world(world).library if world is not None else library if library is not None else default_library()
    if arguments.get("library", used.content_hash) != used.content_hash:
        other = "another version of its world" if world else "another tool library: name it with --library"
        raise InvalidInputError(f"{directory} was made with {other}")
    return used
