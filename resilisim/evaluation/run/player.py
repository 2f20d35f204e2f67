"""Plays the episodes of a run: one after the other, or many at once where language models are waited for.

In this process, or in several: jobs are then lists of planned episodes; what they come to comes back as encoded lines.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import pickle
import time
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, TypeAlias

from resilisim.chat import RequestRefusedError, RoleModels
from resilisim.envs.conversation import ConversationEnv
from resilisim.errors import InfrastructureError, InvalidInputError, ResiliSimError
from resilisim.evaluation.episode.play import play_agent_episode, play_episode
from resilisim.evaluation.episode.record import FAILURE_SCHEMA, EpisodeRecord, FailureRecord
from resilisim.evaluation.episode.texts import stored
from resilisim.evaluation.run.contestants import PolicyMaker
from resilisim.evaluation.run.plan import PlannedEpisode, RunSettings
from resilisim.evaluation.run.store import EpisodeJournal, journal_path
from resilisim.policies.base import Policy
from resilisim.policies.llm.policy import LlmPolicy
from resilisim.processes import Jobs, answers_of_processes
from resilisim.provenance import canonical_json, encode_json_line

# What an episode comes to: its record, or what kept it from its end.
Outcome: TypeAlias = EpisodeRecord | FailureRecord


@dataclass(slots=True)
class _Shared:
    """What all episodes of a process share.

    Attributes:
        environment: The environment of which each slot takes a twin.
        models: Who answers, by the spelling of the default model.
        maker: Makes policies.
        policies: Policies that play an episode without waiting, by their place; one of each is enough.
    """

    environment: ConversationEnv
    models: Mapping[str, RoleModels]
    maker: PolicyMaker
    policies: dict[int, Policy] = field(default_factory=dict)


class EpisodePlayer:
    """Plays the episodes of a run in this process.

    Args:
        settings: The run's settings.
    """

    def __init__(self, settings: RunSettings) -> None:
        self._settings = settings
        library = settings.load_library()
        models = settings.models.make()
        maker = PolicyMaker(library, models, settings.models.load_prices())
        self._shared = _Shared(settings.make_environment(library), models, maker)
        self._asks_models = [isinstance(self._policy(place), LlmPolicy) for place in range(len(settings.contestants))]

    @property
    def waits_for_models(self) -> bool:
        """Whether any policy asks a language model."""
        return any(self._asks_models)

    def play_all(self, pending: Iterator[PlannedEpisode], until: float | None = None) -> Iterator[Outcome]:
        """Play episodes and yield what they come to: in order, or as they end where language models are asked.

        Args:
            pending: The episodes.
            until: Moment of the monotonic clock after which models are not waited for any more; None waits.

        Raises:
            ResiliSimError: Something was refused; the text names the episode.
            RuntimeError: A policy wanted to end the process (`SystemExit`) or the like; the text names the episode.
            Exception: Whatever else a policy raises, with a note that names the episode.
        """
        if not self.waits_for_models:
            for episode in pending:
                yield self._play(episode)
            return
        with asyncio.Runner() as runner:
            team = _Team(self, pending, self._settings.models.concurrency)
            runner.run(team.start())
            try:
                while (outcome := runner.run(_next_until(team, until))) is not None:
                    yield outcome
            finally:
                with contextlib.suppress(KeyboardInterrupt):
                    runner.run(self._leave(team))

    async def _leave(self, team: _Team) -> None:
        await team.stop()
        for model in {
            id(model): model for models in self._shared.models.values() for model in models.models()
        }.values():
            await model.aclose()

    def slot(self) -> _Slot:
        """Return a place in which one episode after the other is played, beside others."""
        return _Slot(self, self._shared.environment.twin())

    def _policy(self, place: int) -> Policy:
        policies = self._shared.policies
        if place not in policies:
            policies[place] = self.make_policy(place)
        return policies[place]

    def make_policy(self, place: int) -> Policy:
        """Return a new policy."""
        contestant = self._settings.contestants[place]
        return self._shared.maker.make(contestant.policy, contestant.model)

    def asks_model(self, place: int) -> bool:
        """Return whether a policy asks a language model."""
        return self._asks_models[place]

    def _play(self, episode: PlannedEpisode) -> EpisodeRecord:
        """Play an episode of a policy that waits for nothing."""
        with _named(self._describe(episode)):
            record = play_episode(
                self._shared.environment,
                self._policy(episode.policy),
                episode.task,
                self._settings.prompts[episode.prompt],
                episode.seed,
                **self._place(episode),
            )
        return stored(record, self._settings.record_texts)

    async def play_agent(self, env: ConversationEnv, agent: LlmPolicy[Any], episode: PlannedEpisode) -> Outcome:
        """Play an episode of an LLM agent; what an endpoint breaks is a value."""
        with _named(self._describe(episode)), self._journal(agent, episode) as journal:
            try:
                record = await play_agent_episode(
                    env,
                    agent,
                    episode.task,
                    self._settings.prompts[episode.prompt],
                    episode.seed,
                    **self._place(episode),
                    journal=journal,
                )
                return stored(record, self._settings.record_texts)
            except InfrastructureError as error:
                return self._failure(episode, error, journal)
            except RequestRefusedError as error:
                if error.concerns_all_requests:
                    raise
                return self._failure(episode, error, journal)

    def _journal(
        self, agent: LlmPolicy[Any], episode: PlannedEpisode
    ) -> contextlib.AbstractContextManager[EpisodeJournal | None]:
        if self._settings.directory is None:
            return contextlib.nullcontext()
        identity = canonical_json(agent.models.identities())
        return EpisodeJournal(journal_path(self._settings.directory, episode.index), identity)

    def _failure(self, episode: PlannedEpisode, error: ResiliSimError, journal: EpisodeJournal | None) -> FailureRecord:
        return FailureRecord(
            schema=FAILURE_SCHEMA,
            index=episode.index,
            policy=self._settings.contestants[episode.policy].name,
            prompt_type=self._settings.prompts[episode.prompt],
            instance_id=episode.task.instance_id,
            seed=episode.seed,
            error=" ".join(str(error).split()),
            reason=type(error).__name__,
            calls=0 if journal is None else journal.num_kept,
        )

    async def play_in_slot(self, slot: _Slot, episode: PlannedEpisode) -> Outcome:
        """Play an episode of any policy among others that are under way."""
        if not self.asks_model(episode.policy):
            await asyncio.sleep(0)  # a long row of quick episodes must not keep the others waiting
            return self._play(episode)
        return await self.play_agent(slot.environment, slot.agent(episode.policy), episode)

    def _place(self, episode: PlannedEpisode) -> dict[str, Any]:
        """Return where in the run an episode stands, as its record says it."""
        return {
            "index": episode.index,
            "name": self._settings.contestants[episode.policy].name,
            "salt": self._settings.environment.salt,
            "manifest": self._settings.manifest_hash,
        }

    def _describe(self, episode: PlannedEpisode) -> str:
        return (
            f"episode {episode.index}: policy {self._settings.contestants[episode.policy].name}, "
            f"prompt {self._settings.prompts[episode.prompt]}, task {episode.task.instance_id}, seed {episode.seed}"
        )


class _Slot:
    """A place in which one episode after the other is played: an environment and agents of its own."""

    def __init__(self, player: EpisodePlayer, environment: ConversationEnv) -> None:
        self._player = player
        self._agents: dict[int, LlmPolicy[Any]] = {}
        self.environment = environment

    def agent(self, place: int) -> LlmPolicy[Any]:
        """Return this slot's agent for a policy."""
        if place not in self._agents:
            agent = self._player.make_policy(place)
            if not isinstance(agent, LlmPolicy):
                raise TypeError(f"policy {place} is a {type(agent).__name__} and was an LLM agent before")
            self._agents[place] = agent
        return self._agents[place]


class _Team:
    """Slots that share a list of episodes; what they come to is fetched one by one."""

    def __init__(self, player: EpisodePlayer, pending: Iterator[PlannedEpisode], slots: int) -> None:
        self._player = player
        self._pending = pending
        self._num_slots = slots
        # Bounded: where models answer quickly, episodes would end faster than their records are written.
        self._outcomes: asyncio.Queue[Outcome | BaseException | None] = asyncio.Queue(slots)
        self._tasks: list[asyncio.Task[None]] = []
        self._num_busy = 0

    async def start(self) -> None:
        """Begin to play; as many slots as there are episodes, at most all."""
        for _ in range(self._num_slots):
            episode = next(self._pending, None)
            if episode is None:
                break
            self._tasks.append(asyncio.create_task(self._work(episode)))
        self._num_busy = len(self._tasks)

    async def next(self) -> Outcome | None:
        """Return what the next episode to end comes to, or None when all have ended.

        Raises:
            Exception: Whatever an episode raises.
        """
        if self._num_busy == 0 and self._outcomes.empty():
            return None
        while True:
            outcome = await self._outcomes.get()
            if isinstance(outcome, BaseException):
                raise outcome
            if outcome is not None:
                return outcome
            self._num_busy -= 1
            if self._num_busy == 0:
                return None

    async def stop(self) -> None:
        """Give up what is under way."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _work(self, first: PlannedEpisode) -> None:
        slot = self._player.slot()
        episode: PlannedEpisode | None = first
        try:
            while episode is not None:
                await self._outcomes.put(await self._player.play_in_slot(slot, episode))
                episode = next(self._pending, None)
            await self._outcomes.put(None)
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            await self._outcomes.put(error)


async def _next_until(team: _Team, until: float | None) -> Outcome | None:
    """Return what the next episode comes to, or None when all have ended or the time is over."""
    if until is None:
        return await team.next()
    try:
        async with asyncio.timeout(max(until - time.monotonic(), 0.0)):
            return await team.next()
    except TimeoutError:
        return None


@contextlib.contextmanager
def _named(description: str) -> Iterator[None]:
    """Name the episode in whatever is raised while it is played."""
    try:
        yield
    except ResiliSimError as error:
        raise type(error)(f"{error} ({description})") from error
    except Exception as error:
        error.add_note(f"ResiliSim: this was raised in {description}")
        raise
    except (KeyboardInterrupt, asyncio.CancelledError, GeneratorExit):
        raise
    except BaseException as error:
        # SystemExit and what else is no Exception: the process would end as if nothing had been wrong.
        text = " ".join(str(error).split())
        raise RuntimeError(f"a policy raised {type(error).__name__}: {text} ({description})") from error


# What an episode came to, as it is and as one JSON line.
FinishedEpisode: TypeAlias = "tuple[Outcome, bytes]"


@dataclass(frozen=True, slots=True)
class Players:
    """Who plays the episodes of a run.

    Attributes:
        workers: Number of processes; 1 is this one. On a cluster the number of actors; 1 is one for each processor.
        wait_for_models: Whether any policy asks a language model.
        ray: Address of a Ray cluster whose machines play; None plays on this one.
    """

    workers: int
    wait_for_models: bool
    ray: str | None = None


def play_here(
    settings: RunSettings,
    pending: Iterator[PlannedEpisode],
    num_pending: int,
    players: Players,
    until: float | None = None,
) -> Generator[FinishedEpisode, None, None]:
    """Play episodes on this machine and yield what they come to as they end; with one worker, in this process.

    Args:
        settings: The run's settings.
        pending: The episodes.
        num_pending: How many they are.
        players: Who plays them.
        until: Moment of the monotonic clock after which nothing more is waited for.

    Raises:
        InfrastructureError: A worker process died.
        Exception: Whatever an episode raises; the others are stopped.
    """
    # Each process plays at least one episode.
    most = min(num_pending, settings.models.concurrency) if players.wait_for_models else num_pending
    workers = min(players.workers, max(most, 1))
    if workers > 1:
        yield from _play_in_processes(settings, pending, workers, players.wait_for_models, until)
        return
    for outcome in EpisodePlayer(settings).play_all(pending, until):
        yield outcome, encode_json_line(outcome)


def _play_in_processes(
    settings: RunSettings, pending: Iterator[PlannedEpisode], workers: int, waits_for_models: bool, until: float | None
) -> Iterator[FinishedEpisode]:
    settings = replace(settings, models=settings.models.share(workers))
    try:
        pickle.dumps(settings)
    except Exception as error:
        raise InvalidInputError(
            f"a policy cannot be handed to other processes ({error}): give it as module:attribute, or use one worker"
        ) from error
    jobs = episode_jobs(pending, waits_for_models, settings.models.concurrency)
    for line in answers_of_processes(_LinePlayer, settings, jobs, workers, until):
        yield json.loads(line), line


class _LinePlayer:
    """Plays jobs in a worker process."""

    def __init__(self, settings: RunSettings) -> None:
        self._player = EpisodePlayer(settings)

    def __call__(self, job: list[PlannedEpisode]) -> Iterator[bytes]:
        return (encode_json_line(outcome) for outcome in self._player.play_all(iter(job)))


# Jobs grow to take about this long: short against a run, long against the round trip to a process.
JOB_SECONDS = 0.25
FIRST_JOB_EPISODES = 4
MOST_JOB_EPISODES = 512
# A job of episodes that wait for a model lasts several times as long as one of them, for its end is not filled.
WAITING_JOB_ROUNDS = 8


def episode_jobs(
    pending: Iterator[PlannedEpisode], waits_for_models: bool, concurrency: int
) -> Jobs[list[PlannedEpisode]]:
    """Return the jobs that episodes are handed out in.

    Args:
        pending: The episodes.
        waits_for_models: Whether any policy asks a language model.
        concurrency: Episodes that one process has under way at once if so.
    """
    return _WaitingJobs(pending, concurrency) if waits_for_models else _GrowingJobs(pending)


class _GrowingJobs(Jobs[list[PlannedEpisode]]):
    """Hands out episodes in jobs that grow until they take JOB_SECONDS."""

    def __init__(self, pending: Iterator[PlannedEpisode]) -> None:
        self._pending = pending
        self._size = FIRST_JOB_EPISODES

    def next(self, last: list[PlannedEpisode] | None, seconds: float) -> list[PlannedEpisode] | None:
        if last is not None:
            rate = len(last) / max(seconds, 1e-6)
            self._size = min(max(1, round(rate * JOB_SECONDS)), 2 * self._size, MOST_JOB_EPISODES)
        return list(islice(self._pending, self._size)) or None


class _WaitingJobs(Jobs[list[PlannedEpisode]]):
    """Hands out episodes that wait for models in jobs of many, for they are played at once."""

    def __init__(self, pending: Iterator[PlannedEpisode], concurrency: int) -> None:
        self._pending = pending
        self._size = concurrency * WAITING_JOB_ROUNDS

    def next(self, last: list[PlannedEpisode] | None, seconds: float) -> list[PlannedEpisode] | None:
        return list(islice(self._pending, self._size)) or None
