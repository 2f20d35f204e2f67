"""How the episodes of a run are cut into jobs for processes, on this machine or on several."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from resilisim.evaluation.plan import PlannedEpisode
from resilisim.processes import Jobs

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
