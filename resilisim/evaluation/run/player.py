"""Plays the episodes of a run: one after the other, or many at once where language models are waited for."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from resilisim.chat import RequestRefusedError, RoleModels
from resilisim.envs.conversation import ConversationEnv
from resilisim.errors import InfrastructureError, ResiliSimError
from resilisim.evaluation.episode.play import play_agent_episode, play_episode
from resilisim.evaluation.episode.record import FAILURE_SCHEMA, EpisodeRecord, FailureRecord
from resilisim.evaluation.episode.texts import stored
from resilisim.evaluation.run.contestants import PolicyMaker
from resilisim.evaluation.run.journal import EpisodeJournal, journal_path
from resilisim.evaluation.run.plan import PlannedEpisode, RunSettings
from resilisim.policies.base import Policy
from resilisim.policies.llm.policy import LlmPolicy
from resilisim.provenance import canonical_json

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
