"""Plays the episodes of a run: one after the other, or many at once where language models are waited for.

In this process, or in several: jobs are then lists of planned episodes; what they come to comes back as encoded lines.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import math
import pickle
import time
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from resilisim.at_work import AT_WORK
from resilisim.chat import RequestRefusedError
from resilisim.envs.conversation import ConversationEnv
from resilisim.errors import CheckFailed, InfrastructureError, InvalidInputError, ResiliSimError, StoreError, one_line
from resilisim.evaluation.episode.play import on_branch, play_agent_episode, play_episode
from resilisim.evaluation.episode.record import EpisodeRecord, FailureRecord, failure_record
from resilisim.evaluation.episode.texts import stored
from resilisim.evaluation.run.contestants import PolicyMaker
from resilisim.evaluation.run.plan import PlannedEpisode, RunSettings
from resilisim.evaluation.run.progress import tell_of_compiling
from resilisim.evaluation.run.store import EPISODES_NAME, EpisodeJournal, JournalFolder, Journals, check_episode
from resilisim.policies.base import AgentFailed, Contender, SessionAgent
from resilisim.policies.llm.policy import LlmPolicy
from resilisim.processes import answers_of_processes
from resilisim.provenance import canonical_json, encode_json_line
from resilisim.redaction import fit_to_show
from resilisim.run_folder import encoded_line
from resilisim.worlds.base import WorldFailed

# What an episode comes to: its record, or what kept it from its end; as it is, and as one JSON line.
Outcome: TypeAlias = EpisodeRecord | FailureRecord
FinishedEpisode: TypeAlias = "tuple[Outcome, bytes]"
Job: TypeAlias = "list[PlannedEpisode]"


class EpisodePlayer:
    """Plays the episodes of a run in this process.

    Replies of models are kept in `journals`, in the run's folder (`RunSettings.directory`) if omitted.
    """

    def __init__(self, settings: RunSettings, journals: Journals | None = None) -> None:
        tell_of_compiling()  # in worker processes, too
        self._settings = settings
        here = None if settings.directory is None else JournalFolder(settings.directory)
        self._journals: Journals | None = journals or here
        with AT_WORK.on("loading tools and policies"):
            library = settings.load_library()
            self._models = settings.models.make()
            self._maker = PolicyMaker(library, self._models, settings.models.load_prices())
            self._environment = settings.make_environment(library)
            # One of each is enough for those that play without waiting; of an agent every slot makes its own.
            self._policies = [self._make_policy(place) for place in range(len(settings.contestants))]

    def play_all(self, pending: Iterator[PlannedEpisode], until: float | None = None) -> Iterator[Outcome]:
        """Play episodes and yield what they come to: in order, or as they end where language models are asked.

        Models are not waited for any more after the moment `until` of the monotonic clock; None waits.

        Raises:
            ResiliSimError: Something was refused; the text names the episode.
            Exception: Whatever else a policy of this package raises, with a note that names the episode. What others
                raise has lost them the episode.
        """
        if not self.has_agents:
            yield from map(self.play, pending)
            return
        yield from self.play_together(pending, self._outcomes, until)

    def ended(self, outcome: Outcome) -> int | None:
        """Return the number of the episode: each comes to one outcome (`Plays.ended`)."""
        return outcome["index"]

    @property
    def has_agents(self) -> bool:
        """Whether anybody plays in a loop of their own."""
        return any(isinstance(policy, SessionAgent) for policy in self._policies)

    def play_together(
        self, pending: Iterator[PlannedEpisode], play: PlayInSlot, until: float | None
    ) -> Iterator[Outcome]:
        """Play many episodes at once, each in a slot by `play`, and yield what comes of them."""
        with asyncio.Runner() as runner:
            team = _Team(play, pending, self._settings.models.concurrency)
            try:
                while (outcome := runner.run(team.next_until(until))) is not None:
                    yield outcome
            finally:
                with contextlib.suppress(KeyboardInterrupt):
                    runner.run(self._leave(team))

    async def _outcomes(self, slot: Slot, episode: PlannedEpisode) -> AsyncIterator[Outcome]:
        yield await self.play_in_slot(slot, episode)

    async def play_in_slot(self, slot: Slot, episode: PlannedEpisode) -> Outcome:
        """Play an episode of any policy among others that are under way; what an endpoint breaks is a value."""
        policy = self._policies[episode.policy]
        if not isinstance(policy, SessionAgent):
            await asyncio.sleep(0)  # a long row of quick episodes must not keep the others waiting
            return self.play(episode)
        if episode.policy not in slot.agents:
            slot.agents[episode.policy] = self._make_policy(episode.policy)
        return await self._play_agent(slot, slot.agents[episode.policy], episode)

    async def _leave(self, team: _Team) -> None:
        await team.stop()
        for model in {id(model): model for models in self._models.values() for model in models.models()}.values():
            await model.aclose()

    def _make_policy(self, place: int) -> Any:
        contestant = self._settings.contestants[place]
        return self._maker.make(contestant.policy, contestant.model)

    @contextlib.contextmanager
    def lent(self, episode: PlannedEpisode) -> Iterator[tuple[ConversationEnv, Contender]]:
        """Lend environment and policy of an episode to who steps it in another way; what is raised names it."""
        with _named(self._describe(episode)), AT_WORK.about(episode.place):
            yield self._environment, self._policies[episode.policy]

    def play(self, episode: PlannedEpisode) -> Outcome:
        """Play an episode of a policy that is asked for one message after the other."""
        place, policy = self._settings.place(episode), self._policies[episode.policy]
        with (
            _named(self._describe(episode)),
            AT_WORK.about(episode.place),
            _on_branch(self._environment, episode) as env,
        ):
            try:
                record = play_episode(
                    env,
                    policy,
                    episode.task,
                    episode.prompt,
                    episode.seed,
                    episode.sent,
                    episode.branch is not None,
                    **place,
                )
            except (WorldFailed, AgentFailed) as error:  # as of those who wait: other episodes need not break with it
                return self._failure(episode, error, 0)
        return self._readable(record, episode)

    async def _play_agent(self, slot: Slot, agent: SessionAgent, episode: PlannedEpisode) -> Outcome:
        place = self._settings.place(episode)
        models = self._settings.models
        journal, sent = self._journal(agent, episode), episode.sent
        with _named(self._describe(episode)), AT_WORK.about(episode.place):
            for retries_left in reversed(range(models.episode_retries + 1)):
                env = slot.environment = slot.environment or self._environment.twin()
                try:
                    with _on_branch(env, episode) as played_in:
                        record = await play_agent_episode(
                            played_in,
                            agent,
                            episode.task,
                            episode.prompt,
                            episode.seed,
                            journal,
                            sent,
                            models.episode_seconds,
                            episode.branch is not None,
                            **place,
                        )
                    if env.world is not None and record["ended_by"] == "agent_error":
                        slot.environment = None  # a call that was given up may still be at work in this one
                    return self._readable(record, episode, 0 if journal is None else journal.num_kept)
                except (InfrastructureError, RequestRefusedError, AgentFailed) as error:
                    if env.world is not None:
                        slot.environment = None
                    if isinstance(error, RequestRefusedError) and error.concerns_all_requests:
                        raise
                    if isinstance(error, AgentFailed):
                        sent = error.messages if len(error.messages) > len(sent) else sent
                    if not retries_left:
                        return self._failure(episode, error, 0 if journal is None else journal.num_kept)
        raise CheckFailed("an episode is tried at least once")

    def _readable(self, record: EpisodeRecord, episode: PlannedEpisode, num_calls: int = 0) -> Outcome:
        """Return a record as it is written; one that nothing could read again is what kept the episode from its end."""
        kept = stored(on_branch(record, episode.branch), self._settings.record_texts)
        try:
            check_episode(encoded_line(kept, Path(EPISODES_NAME)))
        except StoreError as error:
            return self._failure(episode, error, num_calls)
        return kept

    def _journal(self, agent: SessionAgent, episode: PlannedEpisode) -> EpisodeJournal | None:
        if self._journals is None or not isinstance(agent, LlmPolicy):
            return None
        identity = canonical_json(agent.models.identities())
        write = functools.partial(self._journals.write, episode.index)
        return EpisodeJournal(self._journals.kept(episode.index), identity, write)

    def _failure(self, episode: PlannedEpisode, error: Exception, num_calls: int) -> FailureRecord:
        failure = failure_record(
            episode.index,
            self._settings.contestants[episode.policy].name,
            episode.prompt,
            episode.task.instance_id,
            episode.seed,
            error=fit_to_show(str(error), one_line=True),
            reason=error.reason if isinstance(error, AgentFailed | WorldFailed) else type(error).__name__,
            fault="unclear" if isinstance(error, AgentFailed) else "infrastructure",
            calls=num_calls,
        )
        if isinstance(error, AgentFailed):
            failure["messages"] = list(error.messages)
            if error.optimum is not None:
                failure["optimum"] = error.optimum
        if isinstance(error, AgentFailed | WorldFailed):
            failure["traceback"] = fit_to_show(error.traceback)
        return failure

    def _describe(self, episode: PlannedEpisode) -> str:
        return (
            f"episode {episode.index}: policy {self._settings.contestants[episode.policy].name}, "
            f"prompt {episode.prompt}, task {episode.task.instance_id}, seed {episode.seed}"
        )


@contextlib.contextmanager
def _on_branch(env: ConversationEnv, episode: PlannedEpisode) -> Iterator[ConversationEnv]:
    """Be in the environment of an episode, which on a branch is one whose draws are given."""
    if episode.branch is None:
        yield env
        return
    episode.branch.points.clear()  # of a try that broke
    with contextlib.closing(env.twin(episode.branch)) as own:
        yield own


@dataclass(slots=True)
class Slot:
    """A place in which one episode after the other is played: an environment and agents of its own, once needed."""

    agents: dict[int, SessionAgent]
    environment: ConversationEnv | None = None


# Plays an episode in a slot, and yields what comes of it.
PlayInSlot: TypeAlias = "Callable[[Slot, PlannedEpisode], AsyncIterator[Outcome]]"


class _Team:
    """Slots that share a list of episodes; what they come to is fetched one by one."""

    def __init__(self, play: PlayInSlot, pending: Iterator[PlannedEpisode], slots: int) -> None:
        self._play = play
        self._pending = pending
        self._num_slots = slots
        # Bounded: where models answer quickly, episodes would end faster than their records are written.
        self._outcomes: asyncio.Queue[Outcome | BaseException | None] = asyncio.Queue(slots)
        self._tasks: list[asyncio.Task[None]] = []
        self._num_busy = slots
        self._is_given_up = False

    async def next_until(self, until: float | None) -> Outcome | None:
        """Return what the next episode to end comes to, or None when all have ended or the time is over.

        Raises:
            Exception: Whatever an episode raises.
        """
        if not self._tasks:
            self._tasks = [asyncio.create_task(self._work()) for _ in range(self._num_slots)]
        try:
            async with asyncio.timeout(None if until is None else max(until - time.monotonic(), 0.0)):
                outcome = await self._next()
        except TimeoutError:
            return None
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    async def stop(self) -> None:
        """Give up what is under way."""
        self._is_given_up = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _next(self) -> Outcome | BaseException | None:
        while self._num_busy:
            outcome = await self._outcomes.get()
            if outcome is not None:
                return outcome
            self._num_busy -= 1
        return None

    async def _work(self) -> None:
        slot = Slot({})
        try:
            try:
                for episode in self._pending:
                    async for outcome in self._play(slot, episode):
                        await self._outcomes.put(outcome)
            finally:
                for agent in slot.agents.values():
                    # The models of ours are everybody's, and closed at the very end.
                    if not isinstance(agent, LlmPolicy) and hasattr(agent, "aclose"):
                        await agent.aclose()
            await self._outcomes.put(None)
        except asyncio.CancelledError:
            if self._is_given_up:
                raise
            # Whoever waits for this slot has to hear of it, as of everything else.
            await self._outcomes.put(RuntimeError("a policy cancelled the task that it plays in"))
        except BaseException as error:
            await self._outcomes.put(error)


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


@dataclass(frozen=True, slots=True)
class Players:
    """Who plays the episodes of a run."""

    workers: int  # processes, 1 is this one; on a cluster actors, 1 is one for each processor
    wait_for_models: bool  # whether any policy asks a language model
    ray: str | None = None  # address of a Ray cluster whose machines play; None plays on this one
    until: float | None = None  # moment of the monotonic clock after which nothing more is waited for


class Plays(Protocol):
    """Whoever plays the episodes that a process is given: an `EpisodePlayer`, or one who explores."""

    def play_all(self, pending: Iterator[PlannedEpisode], until: float | None = None) -> Iterator[Outcome]:
        """Play episodes, and yield what they come to."""
        ...

    def ended(self, outcome: Outcome) -> int | None:
        """Return the number of the planned episode that has ended with an outcome, if one has."""
        ...


class MakesPlayer(Protocol):
    """Returns who plays in a process or on a machine, to which it travels."""

    def __call__(self, settings: RunSettings, journals: Journals | None = None) -> Plays:
        """Return who plays under some settings and keeps replies of models in `journals`."""
        ...


def play_here(
    settings: RunSettings,
    pending: Iterator[PlannedEpisode],
    num_pending: int,
    players: Players,
    make: MakesPlayer = EpisodePlayer,
) -> Generator[FinishedEpisode, None, None]:
    """Play episodes on this machine and yield what they come to as they end; with one worker, in this process.

    Raises:
        InfrastructureError: A worker process died.
        Exception: Whatever an episode raises; the others are stopped.
    """
    # Each process plays at least one episode.
    most = min(num_pending, settings.models.concurrency) if players.wait_for_models else num_pending
    workers = min(players.workers, max(most, 1))
    if workers <= 1:
        for outcome in make(settings).play_all(pending, players.until):
            yield outcome, encode_json_line(outcome)
        return
    settings = replace(settings, models=settings.models.share(workers))
    refuse_what_cannot_travel(settings, pickle.dumps, "processes", ", or use one worker")
    jobs = EpisodeJobs(pending, math.ceil(num_pending / workers), players.wait_for_models, settings.models.concurrency)
    for line in answers_of_processes(_job_player, (make, settings), jobs.next, workers, players.until):
        yield json.loads(line), line


def refuse_what_cannot_travel(settings: RunSettings, pack: Any, where: str, else_: str = "") -> None:
    """Refuse settings that cannot be packed for other processes or machines."""
    try:
        pack(settings)
    except Exception as error:
        raise InvalidInputError(
            f"a policy cannot be handed to other {where} ({one_line(error)}): give it as module:attribute{else_}"
        ) from error


def _job_player(setup: tuple[MakesPlayer, RunSettings]) -> Any:
    make, settings = setup
    player = make(settings)
    return lambda job: map(encode_json_line, player.play_all(iter(job)))


# Jobs grow to take about this long: short against a run, long against the round trip to a process.
JOB_SECONDS = 0.25
FIRST_JOB_EPISODES = 4
MOST_JOB_EPISODES = 512
# A job of episodes that wait for a model lasts several times as long as one of them, for its end is not filled.
WAITING_JOB_ROUNDS = 8


class EpisodeJobs:
    """The jobs that episodes are handed out in, to processes or machines.

    Those that wait for models are played at once, `concurrency` in each process, so their jobs are of many, and at most
    a worker's equal share. Others grow until they take JOB_SECONDS.
    """

    def __init__(self, pending: Iterator[PlannedEpisode], share: int, waits_for_models: bool, concurrency: int) -> None:
        self._pending = pending
        self._grows = not waits_for_models
        first = max(1, min(FIRST_JOB_EPISODES, share // FIRST_JOB_EPISODES))
        self._size = first if self._grows else max(1, min(concurrency * WAITING_JOB_ROUNDS, share))

    def next(self, last: Job | None, seconds: float) -> Job | None:
        """Return the next job of a worker, None when there is none left; its last one has taken it so long."""
        if self._grows and last is not None:
            rate = len(last) / max(seconds, 1e-6)
            self._size = min(max(1, round(rate * JOB_SECONDS)), 2 * self._size, MOST_JOB_EPISODES)
        return list(islice(self._pending, self._size)) or None
