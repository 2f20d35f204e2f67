"""Playing the episodes of a run, in this process or in several.

Jobs are lists of planned episodes; what they come to comes back as encoded lines.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Generator, Iterator
from dataclasses import dataclass, replace
from typing import TypeAlias

from resilisim.errors import InvalidInputError
from resilisim.evaluation.jobs import episode_jobs
from resilisim.evaluation.plan import PlannedEpisode, RunSettings
from resilisim.evaluation.player import EpisodePlayer, Outcome
from resilisim.evaluation.ray_workers import play_on_cluster
from resilisim.processes import answers_of_processes
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


def play_all(
    settings: RunSettings,
    pending: Iterator[PlannedEpisode],
    num_pending: int,
    players: Players,
    until: float | None = None,
) -> Generator[FinishedEpisode, None, None]:
    """Play episodes and yield what they come to as they end; with one worker, in this process.

    Args:
        settings: The run's settings.
        pending: The episodes.
        num_pending: How many they are.
        players: Who plays them.
        until: Moment of the monotonic clock after which nothing more is waited for.

    Raises:
        InfrastructureError: A worker process died, or a cluster cannot be reached.
        MissingExtraError: There is no Ray.
        Exception: Whatever an episode raises; the others are stopped.
    """
    if players.ray is not None:
        yield from play_on_cluster(settings, pending, players.ray, players.workers, players.wait_for_models, until)
        return
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
