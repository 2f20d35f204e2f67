"""Playing the episodes of a run on the machines of a Ray cluster: the same records as on one machine.

Each actor holds one `EpisodePlayer` and plays jobs, a part at a time: whoever drives asks for the next part when it has
the last one. What was not handed over when an actor or its node died is played again elsewhere, and an actor that
worked is replaced where the cluster has room. Every machine needs this package in the same version, with its extras,
keys of endpoints in its environment, and whatever modules the policies `module:attribute` stand in.

Replies of language models are handed over as they come, and whoever drives keeps them in the run's folder, which no
other machine has to see. Whoever plays an episode that has replies is given them with the job.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import logging
import math
import os
import platform
import queue
import socket
import threading
import time
from collections import Counter, deque
from collections.abc import Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeAlias
from urllib.parse import urlsplit

import resilisim
from resilisim.errors import InfrastructureError, InvalidInputError, ResiliSimError, import_extra
from resilisim.evaluation.run.plan import PlannedEpisode, RunSettings
from resilisim.evaluation.run.player import (
    EpisodeJobs,
    EpisodePlayer,
    FinishedEpisode,
    Job,
    MakesPlayer,
    Players,
    Plays,
    play_here,
    refuse_what_cannot_travel,
)
from resilisim.evaluation.run.store import JournalFolder
from resilisim.processes import transportable
from resilisim.provenance import encode_json_line

PART_SECONDS = 0.1  # what an actor has waits so long for more, then it is handed over
LOOK_SECONDS = 1.0  # between two looks at a cluster from which nothing comes
START_SECONDS = 300.0  # in which one actor at least has to start; larger clusters add machines on demand
STOP_SECONDS = 5.0  # in which actors hand over their replies when a run stops
MOST_LOSSES = 3  # times that an episode may take its actor down, before the episode is taken for the reason

_GO_ON = "what was finished is kept, and the same command resumes it"


def play_anywhere(
    settings: RunSettings,
    pending: Iterator[PlannedEpisode],
    num_pending: int,
    players: Players,
    make: MakesPlayer = EpisodePlayer,
) -> Generator[FinishedEpisode, None, None]:
    """Play episodes where `players` says (`play_here`, `play_on_cluster`)."""
    play = play_here if players.ray is None else play_on_cluster
    return play(settings, pending, num_pending, players, make)


def play_on_cluster(
    settings: RunSettings,
    pending: Iterator[PlannedEpisode],
    num_pending: int,
    players: Players,
    make: MakesPlayer = EpisodePlayer,
) -> Generator[FinishedEpisode, None, None]:
    """Play episodes on the Ray cluster at `players.ray` (`connected`) and yield what they come to as they end.

    What models may be asked at once is shared among the actors: at most one for each processor of the cluster.

    Raises:
        InvalidInputError: The address is none, or a policy cannot travel.
        MissingExtraError: Ray is not installed.
        InfrastructureError: The cluster cannot be reached, nothing is left of it, or an episode takes down actors.
        Exception: Whatever an episode raises; the others are stopped.
    """
    address = "auto" if players.ray is None else players.ray
    with connected(address) as ray:
        num_processors = _num_processors(ray)
        if num_processors < 1:
            raise InfrastructureError(f"the Ray cluster at {address!r} has no processor to run on")
        size = min(players.workers, num_processors) if players.workers > 1 else num_processors
        # Each actor plays at least one.
        size = (
            min(size, num_pending, settings.models.concurrency) if players.wait_for_models else min(size, num_pending)
        )
        if not size:
            return
        journals = None if settings.directory is None else JournalFolder(settings.directory)
        settings = replace(settings, models=settings.models.share(size), directory=None)
        refuse_what_cannot_travel(settings, ray.cloudpickle.dumps, "machines")
        share = math.ceil(num_pending / size)
        jobs = EpisodeJobs(pending, share, players.wait_for_models, settings.models.concurrency)
        with contextlib.closing(_Crew(ray, make, settings, jobs, journals)) as crew:
            yield from crew.play(size, players.until)


def _num_processors(ray: Any) -> int:
    return int(ray.cluster_resources().get("CPU", 0))


class _Played(NamedTuple):
    """What was played: encoded, and the number of the planned episode that has ended with it, if one has."""

    line: bytes
    ended: int | None


class _Replies(NamedTuple):
    """Replies that are to be kept (`Journals.write`)."""

    episode: int
    lines: bytes
    anew: bool


# What an actor hands over; at the end of a job None, or what ended it before it was done.
_Message: TypeAlias = "_Played | _Replies | Exception | None"


class _RemotePlayer:
    """Lets somebody play on some machine of the cluster (`Plays`), and hands over what comes of it, in parts.

    It is the `Journals` of that player. Two of its methods may run at once.
    """

    def __init__(self) -> None:
        self._messages: queue.SimpleQueue[_Message] = queue.SimpleQueue()
        self._kept: Mapping[int, bytes] = {}

    def start(self, make: MakesPlayer, settings: RunSettings, version: str) -> list[_Message]:
        """Get ready to play."""
        host = platform.node()
        if version != resilisim.__version__:
            text = f"{host} has ResiliSim {resilisim.__version__}, and {version} drives: all machines need the same"
            return [InfrastructureError(text)]
        try:
            self._player: Plays = make(settings, self)
        except ResiliSimError as error:
            return [transportable(type(error)(f"{error} (on {host})"))]
        except Exception as error:
            return [transportable(error)]
        return [None]

    def play(self, job: Job | None = None, kept: Mapping[int, bytes] | None = None) -> list[_Message]:
        """Play on, or begin a new job with what is kept of its episodes; what comes first waits for PART_SECONDS."""
        if job is not None:
            self._kept = kept or {}
            threading.Thread(target=self._play, args=(job,), daemon=True).start()
        messages = [self._messages.get()]
        until = time.monotonic() + PART_SECONDS
        while isinstance(messages[-1], _Played | _Replies) and (left := until - time.monotonic()) > 0:
            with contextlib.suppress(queue.Empty):
                messages.append(self._messages.get(timeout=left))
        return messages

    def hand_over(self) -> None:
        """Let `play` return at once with all there is."""
        self._messages.put(None)

    def kept(self, index: int) -> bytes:
        """Return the replies of an episode that came with the job."""
        return self._kept.get(index, b"")

    def write(self, index: int, lines: bytes, anew: bool) -> None:
        """Send replies to whoever drives."""
        self._messages.put(_Replies(index, lines, anew))

    def _play(self, job: Job) -> None:
        try:
            for outcome in self._player.play_all(iter(job)):
                self._messages.put(_Played(encode_json_line(outcome), self._player.ended(outcome)))
        except Exception as error:
            self._messages.put(transportable(error))
        else:
            self._messages.put(None)


@dataclass(slots=True, eq=False)
class _Member:
    """An actor, and what it was given last."""

    actor: Any
    is_ready: bool = False  # whether it has started
    job: Job | None = None
    left: dict[int, PlannedEpisode] = field(default_factory=dict)  # episodes of the job that it has not handed over
    since: float = 0.0  # when it was given


class _Crew:
    """The actors of a run."""

    def __init__(
        self, ray: Any, make: MakesPlayer, settings: RunSettings, jobs: EpisodeJobs, journals: JournalFolder | None
    ) -> None:
        self._ray, self._make_player = ray, make
        self._settings = settings
        self._jobs = jobs
        self._journals = journals
        self._make = ray.remote(num_cpus=1, scheduling_strategy="SPREAD", max_concurrency=2)(_RemotePlayer)
        self._members: list[_Member] = []
        self._calls: dict[Any, _Member] = {}
        self._returned: deque[Job] = deque()
        self._losses: Counter[int] = Counter()
        self._all_handed_out = False
        self._last_sign = time.monotonic()

    def play(self, size: int, until: float | None) -> Iterator[FinishedEpisode]:
        """Yield what the episodes of all jobs come to, played by so many actors."""
        for _ in range(size):
            self._hire()
        while not self._is_done():
            patience = LOOK_SECONDS if until is None else min(LOOK_SECONDS, until - time.monotonic())
            if patience <= 0:
                return
            ended, _ = self._ray.wait(list(self._calls), num_returns=1, timeout=patience)
            for call in ended:
                yield from self._receive(call)
            self._refuse_to_wait_for_ever()

    def close(self) -> None:
        """Stop all actors; what they have of replies is kept."""
        try:
            self._fetch_replies()
        finally:
            for member in self._members:
                self._kill(member)

    def _fetch_replies(self) -> None:
        playing = {call: member for call, member in self._calls.items() if member.is_ready}
        if self._journals is None or not playing:
            return
        for member in playing.values():
            member.actor.hand_over.remote()
        ended, _ = self._ray.wait(list(playing), num_returns=len(playing), timeout=STOP_SECONDS)
        for call in ended:
            with contextlib.suppress(self._ray.exceptions.RayError):  # it has died meanwhile
                self._keep_replies(self._ray.get(call))

    def _keep_replies(self, messages: Iterable[_Message]) -> None:
        for message in messages:
            if isinstance(message, _Replies) and self._journals is not None:
                self._journals.write(*message)

    def _is_done(self) -> bool:
        return self._all_handed_out and not self._returned and not any(member.left for member in self._members)

    def _hire(self) -> None:
        member = _Member(self._make.remote())
        self._members.append(member)
        self._calls[member.actor.start.remote(self._make_player, self._settings, resilisim.__version__)] = member

    def _receive(self, call: Any) -> Iterator[FinishedEpisode]:
        member = self._calls.pop(call)
        try:
            messages: list[_Message] = self._ray.get(call)
        except self._ray.exceptions.RayTaskError as error:
            reason = [line for line in str(error).splitlines() if line.strip()][-1].strip()
            raise InfrastructureError(f"a machine of the Ray cluster cannot play: {reason}") from error
        except self._ray.exceptions.RayError:
            self._lose(member)
            return
        member.is_ready = True
        self._last_sign = time.monotonic()
        self._keep_replies(messages)  # first: whoever takes the outcomes may stop at any of them
        for message in messages:
            if isinstance(message, _Played):
                if message.ended is not None:
                    del member.left[message.ended]
                yield json.loads(message.line), message.line
        last = messages[-1]
        if isinstance(last, Exception):
            raise last
        if last is None:
            self._give(member)
        else:
            self._calls[member.actor.play.remote()] = member

    def _give(self, member: _Member) -> None:
        """Give an actor its next job, if there is one."""
        seconds = time.monotonic() - member.since
        job = self._returned.popleft() if self._returned else self._jobs.next(member.job, seconds)
        if job is None:
            self._all_handed_out = True
            return
        member.job, member.left = job, {episode.index: episode for episode in job}
        member.since = time.monotonic()
        kept = {} if self._journals is None else {index: self._journals.kept(index) for index in member.left}
        call = member.actor.play.remote(job, {index: lines for index, lines in kept.items() if lines})
        self._calls[call] = member

    def _lose(self, member: _Member) -> None:
        """Let others do what a dead actor has left; one that had worked is replaced."""
        self._members.remove(member)
        self._kill(member)  # it may live on behind a broken connection
        if member.left:
            self._count_losses(member.left)
            self._returned.append(list(member.left.values()))
            busy = set(self._calls.values())
            idle = next((other for other in self._members if other.is_ready and other not in busy), None)
            if idle is not None:
                self._give(idle)
        if member.is_ready:
            self._hire()
        elif not self._members:
            raise InfrastructureError(f"every worker on the Ray cluster died before it began; {_GO_ON}")

    def _count_losses(self, episodes: dict[int, PlannedEpisode]) -> None:
        self._losses.update(episodes.keys())
        index = max(episodes, key=self._losses.__getitem__)
        losses = self._losses[index]
        if losses >= MOST_LOSSES:
            others = f" and {len(episodes) - 1} more" if len(episodes) > 1 else ""
            raise InfrastructureError(
                f"a worker on the Ray cluster died {losses} times while it had episode {index}{others}; {_GO_ON}"
            )

    def _refuse_to_wait_for_ever(self) -> None:
        """Give up when no actor has started and none can."""
        if self._is_done() or any(member.is_ready for member in self._members):
            return
        if _num_processors(self._ray) < 1:
            raise InfrastructureError(f"no machine is left in the Ray cluster; {_GO_ON}")
        if time.monotonic() - self._last_sign > START_SECONDS:
            raise InfrastructureError(
                f"no worker on the Ray cluster began within {START_SECONDS:.0f} s: others may use it; {_GO_ON}"
            )

    def _kill(self, member: _Member) -> None:
        with contextlib.suppress(Exception):  # whatever is wrong with it, it is not needed any more
            self._ray.kill(member.actor)


PROBE_SECONDS = 5.0
# Only lines of text travel: Ray would set a third of the memory aside.
LOCAL_STORE_BYTES = 100 * 2**20
# Read by Ray when it starts processes: nobody who runs a benchmark has agreed to be counted.
_QUIET_ENVIRONMENT = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}


@contextlib.contextmanager
def connected(address: str) -> Iterator[Any]:
    """Be connected to a cluster; gives the module `ray`.

    A Ray that this process has already initialised is used and stays; any other connection is closed at the end, and a
    Ray that was started here is stopped.

    Args:
        address: "auto" (the cluster of this machine, or of RAY_ADDRESS), "local" (start one here), or HOST:PORT of a
            cluster that this machine belongs to. Ray's client protocol (ray://) is not spoken.

    Raises:
        InvalidInputError: The address is none, or this process is connected to another cluster.
        MissingExtraError: Ray is not installed.
        InfrastructureError: The cluster cannot be reached, or not be started.
    """
    place = (address == "auto" and os.environ.get("RAY_ADDRESS")) or address
    check_address(place)
    ray = import_extra("ray", "several machines need", "ray")
    if ray.is_initialized():
        _refuse_other_cluster(ray, place)
        with _without_messages():
            yield ray
        return
    options: dict[str, Any] = {"address": place, "log_to_driver": False, "logging_level": logging.ERROR}
    if place == "local":
        options |= {"include_dashboard": False, "object_store_memory": LOCAL_STORE_BYTES}
    with _without_messages():
        try:
            _probe(place)
            with _quiet_environment():
                ray.init(**options)
        except Exception as error:
            ray.shutdown()
            raise InfrastructureError(_cannot_reach(place, error)) from error
        try:
            yield ray
        finally:
            ray.shutdown()


def check_address(address: str) -> None:
    """Refuse what is no address of a cluster (`connected`); whether anybody listens there is not asked."""
    if address not in ("auto", "local") and _parse(address) is None:
        raise InvalidInputError(
            f"address {address!r} of a Ray cluster: expected 'auto', 'local' or HOST:PORT, on a machine that belongs "
            "to it"
        )


def _parse(address: str) -> tuple[str, int] | None:
    try:
        parts = urlsplit("//" + address)
        host, port = parts.hostname, parts.port
    except ValueError:
        return None
    return (host, port) if host and port and not (parts.path or parts.query or parts.fragment) else None


def _probe(address: str) -> None:
    """Raise an OSError at an address where nobody listens: Ray would try for minutes."""
    place = _parse(address)
    if place is not None:
        socket.create_connection(place, timeout=PROBE_SECONDS).close()


def _cannot_reach(address: str, error: Exception) -> str:
    if address == "auto" and isinstance(error, ConnectionError):
        return "no Ray cluster runs on this machine: start one (ray start --head), or give its address, or 'local'"
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    reason = lines[0] if lines else type(error).__name__
    what = "start Ray here" if address == "local" else f"reach the Ray cluster at {address}"
    return f"cannot {what}: {reason}"


def _refuse_other_cluster(ray: Any, address: str) -> None:
    if address in ("auto", "local"):
        return
    here = ray.get_runtime_context().gcs_address
    if here != address:
        raise InvalidInputError(f"address {address!r}: this process is connected to the Ray cluster at {here}")


@contextlib.contextmanager
def _quiet_environment() -> Iterator[None]:
    added = {name: value for name, value in _QUIET_ENVIRONMENT.items() if name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            os.environ.pop(name, None)


@contextlib.contextmanager
def _without_messages() -> Iterator[None]:
    """Keep Ray from printing to standard output what became of a node; who plays says it in a line of its own.

    `log_to_driver` does not reach these messages; the switch is the one that Ray's debugger uses.
    """
    worker = importlib.import_module("ray._private.worker")
    before = getattr(worker, "_worker_logs_enabled", True)
    worker.__dict__["_worker_logs_enabled"] = False
    try:
        yield
    finally:
        worker.__dict__["_worker_logs_enabled"] = before
