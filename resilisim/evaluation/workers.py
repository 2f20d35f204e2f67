"""Playing the episodes of a run, in this process or in several.

Jobs are lists of planned episodes; records come back as encoded lines.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator
from itertools import islice
from typing import TypeAlias

from resilisim.errors import InvalidInputError, ResiliSimError
from resilisim.evaluation.plan import PlannedEpisode, RunSettings, build_policy
from resilisim.evaluation.records import EpisodeRecord
from resilisim.evaluation.rollout import play_episode
from resilisim.evaluation.store import encode_record
from resilisim.policies.base import Policy
from resilisim.processes import Jobs, answers_of_processes

# Jobs grow to take about this long: short against a run, long against the round trip over a pipe.
JOB_SECONDS = 0.25
FIRST_JOB_EPISODES = 4
MOST_JOB_EPISODES = 512

# The record of an episode, as it is and as one JSON line.
FinishedEpisode: TypeAlias = "tuple[EpisodeRecord, bytes]"


class EpisodePlayer:
    """Plays episodes of a run; policies and environment are made once and reused.

    Args:
        settings: The run's settings.
    """

    def __init__(self, settings: RunSettings) -> None:
        self._settings = settings
        self._library = settings.load_library()
        self._environment = settings.make_environment(self._library)
        self._policies: dict[int, Policy] = {}

    def play(self, episode: PlannedEpisode) -> EpisodeRecord:
        """Play one episode.

        Raises:
            ResiliSimError: Something was refused; the text names the episode.
            RuntimeError: The policy wanted to end the process (`SystemExit`) or the like; the text names the episode.
            Exception: Whatever else the policy raises, with a note that names the episode.
        """
        try:
            return play_episode(
                self._environment,
                self._policy(episode.policy),
                episode.task,
                self._settings.prompts[episode.prompt],
                episode.seed,
                index=episode.index,
                name=self._settings.policy_names[episode.policy],
                salt=self._settings.environment.salt,
                manifest=self._settings.manifest_hash,
            )
        except ResiliSimError as error:
            raise type(error)(f"{error} ({self._describe(episode)})") from error
        except Exception as error:
            error.add_note(f"ResiliSim: this was raised in {self._describe(episode)}")
            raise
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            # SystemExit and what else is no Exception: the process would end as if nothing had been wrong.
            kind = type(error).__name__
            text = " ".join(str(error).split())
            raise RuntimeError(f"a policy raised {kind}: {text} ({self._describe(episode)})") from error

    def _policy(self, place: int) -> Policy:
        policy = self._policies.get(place)
        if policy is None:
            policy = self._policies[place] = build_policy(self._settings.policies[place], self._library)
        return policy

    def _describe(self, episode: PlannedEpisode) -> str:
        return (
            f"episode {episode.index}: policy {self._settings.policy_names[episode.policy]}, "
            f"prompt {self._settings.prompts[episode.prompt]}, task {episode.task.instance_id}, seed {episode.seed}"
        )


def play_all(settings: RunSettings, pending: Iterator[PlannedEpisode], workers: int) -> Iterator[FinishedEpisode]:
    """Play episodes and yield them as they end; with one worker, in this process and in order.

    Raises:
        InfrastructureError: A worker process died.
        Exception: Whatever an episode raises; the others are stopped.
    """
    if workers > 1:
        yield from _play_in_processes(settings, pending, workers)
        return
    player = EpisodePlayer(settings)
    for episode in pending:
        record = player.play(episode)
        yield record, encode_record(record)


def _play_in_processes(
    settings: RunSettings, pending: Iterator[PlannedEpisode], workers: int
) -> Iterator[FinishedEpisode]:
    try:
        pickle.dumps(settings)
    except Exception as error:
        raise InvalidInputError(
            f"a policy cannot be handed to other processes ({error}): give it as module:attribute, or use one worker"
        ) from error
    for line in answers_of_processes(_LinePlayer, settings, _GrowingJobs(pending), workers):
        yield json.loads(line), line


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


class _LinePlayer:
    """Plays jobs in a worker process."""

    def __init__(self, settings: RunSettings) -> None:
        self._player = EpisodePlayer(settings)

    def __call__(self, job: list[PlannedEpisode]) -> Iterator[bytes]:
        return (encode_record(self._player.play(episode)) for episode in job)
