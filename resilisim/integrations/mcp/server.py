"""`resilisim mcp serve`: the episodes of a plan for any MCP client, recorded like those of every run."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import signal
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from resilisim.bounds import Seed, checked
from resilisim.envs.session import Session
from resilisim.envs.settings import EnvironmentSettings
from resilisim.errors import (
    InfrastructureError,
    InvalidInputError,
    StoreError,
    import_extra,
    unknown_name,
)
from resilisim.evaluation.episode.play import Judging
from resilisim.evaluation.episode.record import FailureRecord
from resilisim.evaluation.episode.texts import stored
from resilisim.evaluation.run.arguments import check_prompts, check_solvable
from resilisim.evaluation.run.contestants import MCP_PLAYER, Contestant
from resilisim.evaluation.run.plan import PlannedEpisode, RunPlan
from resilisim.evaluation.run.store import RunStore, begun
from resilisim.integrations.mcp.host import LOOPBACK_HOSTS, EpisodeHost, Hosts, http_server, mcp_server
from resilisim.policies.usage import agent_part
from resilisim.provenance import encode_json_line
from resilisim.tasks.benchmark import BENCHMARK_VERSION, find_task
from resilisim.tool_library import ToolLibrary

CLIENT_NAME = "mcp-client"  # under which results stand
# Why an episode is lost that was handed out and not finished.
_GIVEN_UP = {
    "timeout": "the client took longer than {seconds:g} seconds",
    "gone": "the server was stopped before the client was done",
    "left": "it was handed out, and its server ended before it was finished",
}


@dataclass(frozen=True, slots=True)
class ServedRun:
    """What is served: a plan of episodes, as `evaluate` makes it, of one client.

    Args:
        tasks: What `evaluate` takes.
        prompts: Prompt types; a client that names none gets the first.
        seeds: Number of episodes of each task, or the seeds.
        environment: Law, end rules and all else; calls are those of functions.
        library: The tool library; the default one if omitted.
        name: Who plays, for the records.
        out: Folder of the results, which the same call resumes; None keeps nothing. Then clients may choose episodes
            that are not planned: any seed (unless the seeds are listed), any prompt type, any task of the benchmark,
            as often as they like.
        episode_seconds: How long an episode may take; None does not limit it. One that is given up is lost.

    Raises:
        InvalidInputError: An argument is unusable.
        StoreError: The folder holds another run.
    """

    tasks: Any = BENCHMARK_VERSION
    prompts: str | Iterable[str] = ("baseline",)
    seeds: int | Iterable[int] = 1
    environment: EnvironmentSettings | None = None
    library: ToolLibrary | None = None
    name: str = CLIENT_NAME
    out: Path | str | None = None
    episode_seconds: float | None = None


class Episodes:
    """The episodes of a served run: handed out to clients, one after the other, and written down."""

    def __init__(self, run: ServedRun) -> None:
        self._plan = plan = RunPlan.of(
            tasks=run.tasks,
            prompts=run.prompts,
            seeds=run.seeds,
            player=Contestant(MCP_PLAYER, run.name),
            environment=run.environment,
            library=run.library,
        )
        self._planned = plan.episodes
        self._store = None if run.out is None else RunStore(run.out, plan.arguments, len(plan.episodes))
        self._run = run
        self._under_way: dict[Session, int] = {}  # the index of each episode that is being played
        self._chosen: set[Session] = set()  # what is played outside of a plan
        self._choosing = threading.Lock()
        self._handed_out: set[int] = set()  # what is under way or was played without a folder
        self._unwritten: list[tuple[bytes, int]] = []
        self.num_played = self.num_lost = 0
        if self._store is not None:
            try:
                for index in sorted(self._store.begun()):
                    self._lose(self._session(self._planned[index]), "left")
                self._write()
            except BaseException:
                self._store.close()
                raise

    @property
    def num_episodes(self) -> int:
        """How many episodes there are."""
        return len(self._planned)

    @property
    def is_one(self) -> bool:
        """Whether there is nothing to choose."""
        return len(self._planned) == 1

    def host(self, repeats: bool) -> EpisodeHost:
        """Return a host for a client."""
        tools = self._session(self._planned[0]).mcp_tools()
        return EpisodeHost(
            tools, self.begin, self.ended, starts=self.is_one, repeats=repeats, seconds=self._run.episode_seconds
        )

    def begin(self, asked: Mapping[str, Any]) -> Session:
        """Begin the first episode that fits what a client has asked for and that nobody has played.

        It is written down as handed out before anything of it is told.

        Raises:
            InvalidInputError: The plan holds none.
            StoreError: What was played, or is about to be, cannot be written.
        """
        self._write()
        if self._store is None and asked:
            return self._begin_chosen(asked)
        wanted = self._wanted(asked)
        with self._choosing:  # clients arrive in several threads
            pending = map(self._planned.__getitem__, self._planned.pending(self._is_taken))
            episode = next(filter(wanted, pending), None)
            if episode is not None:
                if self._store is not None:
                    self._store.begin(self._begun(episode))
                self._handed_out.add(episode.index)
        if episode is not None:
            session = self._session(episode)
            self._under_way[session] = episode.index
            return session
        shown = ", ".join(f"{name} {value!r}" for name, value in asked.items())
        raise InvalidInputError(
            f"no episode {'with ' + shown if shown else ''} is left: all were played or are under way"
        )

    def _begin_chosen(self, wanted: Mapping[str, Any]) -> Session:
        """Begin what a client has chosen, where no plan is kept that it could be missing from."""
        first, settings = self._planned[0], self._plan.settings
        name, seed, prompt = wanted.get("task"), wanted.get("seed", first.seed), wanted.get("prompt")
        tasks = {task.instance_id: task for task in self._planned.tasks}
        task = first.task
        if name is not None:
            if not isinstance(name, str) or name not in tasks:
                if settings.library is not None or settings.environment.world or not isinstance(name, str):
                    raise unknown_name("task", str(name)[:100], tasks)
                tasks[name] = find_task(name)
            task = tasks[name]
        seed = checked(Seed, "seed", seed)
        if not isinstance(self._run.seeds, int) and seed not in self._planned.seeds:
            raise InvalidInputError(f"seed is {seed!r:.60}: expected one of {_shortened(self._planned.seeds)}")
        (prompt_type,) = (first.prompt,) if prompt is None else check_prompts([prompt])
        check_solvable([task], self._plan.environment)
        session = self._session(replace(first, task=task, prompt=prompt_type, seed=seed))
        self._chosen.add(session)
        return session

    def ended(self, session: Session, how: str) -> None:
        """Write down an episode that is over; what a full disk does not take is kept, and tried again.

        One that was given up is lost: whoever has seen its draws does not get them again.
        """
        if session in self._chosen:
            self._chosen.discard(session)
            self.num_played += how == "finished"
            self.num_lost += how != "finished"
            return
        index = self._under_way[session]
        if how == "finished":
            del self._under_way[session]
            self.num_played += 1
            self._unwritten.append((encode_json_line(session.record()), index))
        else:
            with contextlib.suppress(InfrastructureError):  # a call is under way: the line that it has begun stays
                self._lose(session, how)
        with contextlib.suppress(StoreError):
            self._write()

    def _lose(self, session: Session, how: str) -> None:
        self.num_lost += 1
        session.lose(_GIVEN_UP[how].format(seconds=self._run.episode_seconds or 0.0))
        record = session.record()
        self._under_way.pop(session, None)
        self._unwritten.append((encode_json_line(record), int(record["index"])))

    def _begun(self, episode: PlannedEpisode) -> FailureRecord:
        return begun(episode.index, self._run.name, episode.prompt, episode.task.instance_id, episode.seed)

    def close(self) -> None:
        """Release the folder; StoreError if something could not be written."""
        try:
            self._write()
        finally:
            if self._store is not None:
                self._store.close()

    def _write(self) -> None:
        while self._unwritten:
            line, index = self._unwritten[0]
            if self._store is not None:
                self._store.append_encoded(line, index)
            del self._unwritten[0]

    def _is_taken(self, index: int) -> bool:
        return index in self._handed_out or (self._store is not None and self._store.is_finished(index))

    def _wanted(self, wanted: Mapping[str, Any]) -> Callable[[PlannedEpisode], bool]:
        plan, prompts = self._planned, self._planned.prompts
        task, seed, prompt = wanted.get("task"), wanted.get("seed"), wanted.get("prompt", prompts[0])
        if task is not None and all(task != known.instance_id for known in plan.tasks):
            raise unknown_name("task", str(task)[:100], [known.instance_id for known in plan.tasks])
        if seed is not None and seed not in plan.seeds:
            raise InvalidInputError(f"seed is {seed!r:.60}: expected one of {_shortened(plan.seeds)}")
        if prompt not in prompts:
            raise unknown_name("prompt", str(prompt)[:100], prompts)
        return lambda episode: (
            (task is None or episode.task.instance_id == task)
            and (seed is None or episode.seed == seed)
            and episode.prompt == prompt
        )

    def _session(self, episode: PlannedEpisode) -> Session:
        judging = Judging()
        record = functools.partial(self._record, episode, judging)
        return self._plan.session(episode, observers=[judging], record=record)

    def _record(self, episode: PlannedEpisode, judging: Judging, session: Session) -> Any:
        record = judging.record(self._run.name, **self._plan.settings.place(episode))
        record["agent"] = agent_part(session, "session")
        record["privileged"] = session.oracle_was_asked
        return stored(record, None)


def _shortened(seeds: Iterable[int]) -> str:
    shown = [str(seed) for seed in seeds]
    return ", ".join(shown) if len(shown) <= 8 else f"{shown[0]}, {shown[1]}, ..., {shown[-1]}"


def serve(run: ServedRun) -> None:
    """Serve one client over the standard streams, one episode after the other, until it closes them.

    A signal ends the process, too; an episode under way is then lost.
    """
    with contextlib.closing(Episodes(run)) as episodes:
        asyncio.run(_over_stdio(episodes))


async def _over_stdio(episodes: Episodes) -> None:
    host = episodes.host(repeats=True)

    def end() -> None:
        code = 1
        try:
            host.abandon("gone")
            episodes.close()
            code = 0
        finally:
            os._exit(code)  # the thread that waits for the client's next line cannot be woken

    on_signals(end)
    try:
        await _serve_stdio(host)
    except BaseException:
        host.abandon("gone")
        raise
    host.leave()


async def _serve_stdio(host: EpisodeHost) -> None:
    """Serve one client over the standard streams until it closes one of them."""
    streams: Any = import_extra("resilisim.integrations.mcp.streams", "serving MCP clients needs", "mcp")
    server = mcp_server(lambda name: host)
    async with streams.standard_streams() as (said, outgoing), streams.sessions(said, outgoing) as (read, write):
        serving = asyncio.ensure_future(server.run(read, write, server.create_initialization_options()))
        gone = asyncio.ensure_future(outgoing.has_failed.wait())
        await asyncio.wait([serving, gone], return_when=asyncio.FIRST_COMPLETED)
        gone.cancel()
        if not serving.done():
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)
        else:
            serving.result()


def on_signals(end: Callable[[], None]) -> None:
    """Call something when the process is told to stop; to be called where a loop runs."""
    for number in (signal.SIGINT, signal.SIGTERM):
        with contextlib.suppress(NotImplementedError):  # on Windows, where Ctrl-C raises instead
            asyncio.get_running_loop().add_signal_handler(number, end)


def serve_http(
    run: ServedRun, host: str, port: int, token: str | None = None, tell: Callable[[str], None] = lambda url: None
) -> tuple[int, int]:
    """Serve clients over HTTP until the process is told to stop; return how many episodes were played, and lost.

    Args:
        run: What is served.
        host: Where to listen; other machines only with a token.
        port: Port; 0 takes a free one.
        token: What clients must send as bearer token.
        tell: Told the URL once clients can come.

    Raises:
        InvalidInputError: The address cannot be listened on, or others could come in without a token.
    """
    if host not in LOOPBACK_HOSTS and not token:
        raise InvalidInputError(f"other machines can reach {host}: expected a token that clients have to send")
    with contextlib.closing(Episodes(run)) as episodes:
        asyncio.run(_until_stopped(episodes, host, port, token, tell))
        return episodes.num_played, episodes.num_lost


async def _until_stopped(
    episodes: Episodes, host: str, port: int, token: str | None, tell: Callable[[str], None]
) -> None:
    stopped = asyncio.Event()
    on_signals(stopped.set)
    hosts = Hosts(lambda name: episodes.host(repeats=name.startswith("/")))
    async with http_server(hosts, host, port, token) as (url, serving):
        tell(url)
        stopping = asyncio.ensure_future(stopped.wait())
        try:
            await asyncio.wait([stopping, asyncio.ensure_future(serving)], return_when=asyncio.FIRST_COMPLETED)
        finally:  # however it ends, what is under way is written down as given up
            hosts.abandon("gone")
