"""Playing the episodes of a run, in this process or in several.

Jobs are lists of planned episodes; what they come to comes back as encoded lines.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Generator, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from typing import TypeAlias

from resilisim.errors import InvalidInputError
from resilisim.evaluation.run.plan import PlannedEpisode, RunSettings
from resilisim.evaluation.run.player import EpisodePlayer, Outcome
from resilisim.processes import Jobs, answers_of_processes
from resilisim.provenance import encode_json_line

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
