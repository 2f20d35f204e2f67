"""Playing the episodes of a run, in this process or in several.

A worker is handed jobs (lists of planned episodes) over its own pipe and sends records back as encoded lines, at the
latest a tenth of a second after they are finished, so that a killed run loses next to nothing. It asks for the next
job only when it has sent all of the last one, so neither side can block the other. A closed pipe is the only signal
there is: it tells the worker that the run is over or its parent dead, and the parent that the worker has died.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import pickle
import signal
import time
from collections.abc import Iterator
from itertools import islice
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import TypeAlias, cast

from resilisim.errors import InfrastructureError, InvalidInputError, ResiliSimError
from resilisim.evaluation.plan import PlannedEpisode, RunSettings, build_policy
from resilisim.evaluation.records import EpisodeRecord
from resilisim.evaluation.rollout import play_episode
from resilisim.evaluation.store import encode_record
from resilisim.policies.base import Policy

# Jobs grow to take about this long: short against a run, long against the round trip over a pipe.
JOB_SECONDS = 0.25
FIRST_JOB_EPISODES = 4
MOST_JOB_EPISODES = 512
SEND_SECONDS = 0.1

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
    # Spawned, not forked: a forked child of a process with compiled code and its threads may hang.
    context = multiprocessing.get_context("spawn")
    processes: dict[Connection, BaseProcess] = {}
    started: dict[Connection, tuple[float, int]] = {}
    ready: set[Connection] = set()
    size = FIRST_JOB_EPISODES
    threads = max(1, (os.cpu_count() or 1) // workers)
    try:
        for _ in range(workers):
            ours, theirs = context.Pipe()
            process: BaseProcess = context.Process(target=_work, args=(theirs, settings, threads), daemon=True)
            process.start()
            theirs.close()
            processes[ours] = process
        while processes:
            for connection in wait(list(processes)):
                connection = cast("Connection", connection)
                try:
                    answer = connection.recv()
                except EOFError:
                    death = _describe_death(processes[connection], began=connection in ready)
                    raise InfrastructureError(death) from None
                if isinstance(answer, BaseException):
                    raise answer
                if answer is not None:
                    for line in answer:
                        yield json.loads(line), line
                    continue
                ready.add(connection)
                if connection in started:
                    since, number = started.pop(connection)
                    rate = number / max(time.monotonic() - since, 1e-6)
                    size = min(max(1, round(rate * JOB_SECONDS)), 2 * size, MOST_JOB_EPISODES)
                job = list(islice(pending, size))
                if job:
                    started[connection] = (time.monotonic(), len(job))
                    connection.send(job)
                else:
                    connection.close()
                    processes.pop(connection).join()
    finally:
        for connection, process in processes.items():
            connection.close()
            process.terminate()
            process.join()


def _describe_death(process: BaseProcess, began: bool) -> str:
    process.join(5.0)
    if not began:
        return (
            f"a worker process ended before it began (exit code {process.exitcode}): "
            'a script that evaluates with several workers needs the guard `if __name__ == "__main__":`'
        )
    return (
        f"a worker process died (exit code {process.exitcode}); "
        "what was finished is kept, and the same command goes on from there"
    )


def _work(connection: Connection, settings: RunSettings, threads: int) -> None:
    """Be a worker until the pipe is closed."""
    # Libraries that are loaded later (retrieval's model) would each start as many threads as the machine has cores.
    os.environ.setdefault("OMP_NUM_THREADS", str(threads))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes; the parent says what it means
    try:
        try:
            player = EpisodePlayer(settings)
            connection.send(None)
            while True:
                _do_job(connection, player, connection.recv())
                connection.send(None)
        except (EOFError, BrokenPipeError, ConnectionResetError):
            return
        except Exception as error:
            connection.send(_transportable(error))
    except (BrokenPipeError, ConnectionResetError):
        return
    finally:
        connection.close()


def _do_job(connection: Connection, player: EpisodePlayer, job: list[PlannedEpisode]) -> None:
    finished: list[bytes] = []
    sent = time.monotonic()
    try:
        for episode in job:
            finished.append(encode_record(player.play(episode)))
            if time.monotonic() - sent > SEND_SECONDS:
                connection.send(finished)
                finished, sent = [], time.monotonic()
    finally:
        # Also when an episode raises: those before it are finished.
        if finished:
            connection.send(finished)


def _transportable(error: Exception) -> Exception:
    """Return the error if it survives the way to the parent, else one that tells the same."""
    notes = list(getattr(error, "__notes__", ()))
    try:
        copy = pickle.loads(pickle.dumps(error))
        if type(copy) is type(error) and str(copy) == str(error):
            error.__notes__ = notes
            return error
    except Exception:
        copy = None  # what cannot be pickled is told as text
    substitute = RuntimeError(f"{type(error).__name__}: {error}")
    for note in notes:
        substitute.add_note(note)
    return substitute
