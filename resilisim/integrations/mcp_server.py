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

from resilisim.envs.conversation import ConversationEnv
from resilisim.envs.session import Session
from resilisim.envs.settings import EnvironmentSettings
from resilisim.errors import InvalidInputError, StoreError, unknown_name
from resilisim.evaluation.episode.play import JudgedSession
from resilisim.evaluation.episode.record import FAILURE_SCHEMA, FailureRecord
from resilisim.evaluation.episode.texts import stored
from resilisim.evaluation.run.contestants import Contestant
from resilisim.evaluation.run.plan import (
    Plan,
    PlannedEpisode,
    RunSettings,
    check_flaws,
    check_prompts,
    check_seeds,
    check_solvable,
    check_tasks,
    in_world,
    library_in,
    run_arguments,
)
from resilisim.evaluation.run.store import RunStore
from resilisim.policies.agent_session import AgentSession
from resilisim.policies.mcp_host import LOOPBACK, EpisodeHost, Hosts, http_server, serve_stdio
from resilisim.provenance import content_hash, encode_json_line
from resilisim.tool_library import ToolLibrary

CLIENT_NAME = "mcp-client"  # under which results stand
FAILURES = {"timeout": "the client took longer than {seconds:g} seconds", "gone": "the server was stopped"}


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
        out: Folder of the results, which the same call resumes; None keeps nothing.
        episode_seconds: How long an episode may take; None does not limit it.

    Raises:
        InvalidInputError: An argument is unusable.
        StoreError: The folder holds another run.
    """

    tasks: Any = "benchmark-v1"
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
        environment, tasks = in_world((run.environment or EnvironmentSettings()).for_functions(), run.tasks)
        library = library_in(environment, run.library)
        prompts = check_prompts(run.prompts)
        chosen = check_tasks(tasks, library, environment.world)
        self._plan = Plan(chosen, 1, len(prompts), check_seeds(run.seeds))
        custom = None if run.library is None or environment.world else library.to_json()
        settings = RunSettings((Contestant("mcp", run.name),), prompts, environment, custom)
        self._env: ConversationEnv = settings.make_environment(library)
        check_solvable(self._plan.tasks, self._env)
        check_flaws(self._plan.tasks, prompts, self._env)
        arguments = run_arguments(settings, self._plan, library, [])
        self._settings = replace(settings, manifest_hash=content_hash(arguments))
        self._store = None if run.out is None else RunStore(run.out, arguments, len(self._plan))
        self._run = run
        self._under_way: dict[AgentSession, int] = {}  # the index of each episode that is being played
        self._choosing = threading.Lock()
        self._handed_out: set[int] = set()  # what is under way or was played without a folder
        self._unwritten: list[tuple[bytes, int | None]] = []  # of episodes, or of failures, which have no index
        self.num_played = 0

    @property
    def num_episodes(self) -> int:
        """How many episodes there are."""
        return len(self._plan)

    @property
    def is_one(self) -> bool:
        """Whether there is nothing to choose."""
        return len(self._plan) == 1

    def host(self, repeats: bool) -> EpisodeHost:
        """Return a host for a client."""
        tools = AgentSession(self._session(self._plan.episode(0))).mcp_tools()
        return EpisodeHost(
            tools, self.begin, self.ended, starts=self.is_one, repeats=repeats, seconds=self._run.episode_seconds
        )

    def begin(self, given: Mapping[str, Any]) -> AgentSession:
        """Begin the first episode that fits what a client has asked for and that nobody has played.

        Raises:
            InvalidInputError: The plan holds none.
            StoreError: What was played cannot be written, so nothing more is.
        """
        self._write()
        wanted = self._wanted(given)
        with self._choosing:  # clients arrive in several threads
            found = (self._plan.episode(index) for index in self._plan.pending(self._is_taken))
            episode = next(filter(wanted, found), None)
            if episode is not None:
                self._handed_out.add(episode.index)
        if episode is not None:
            begun = AgentSession(self._session(episode), record=functools.partial(self._record, episode))
            self._under_way[begun] = episode.index
            return begun
        shown = ", ".join(f"{name} {value!r}" for name, value in given.items())
        raise InvalidInputError(
            f"no episode {'with ' + shown if shown else ''} is left: all were played or are under way"
        )

    def ended(self, session: AgentSession, how: str) -> None:
        """Write down an episode that is over; what a full disk does not take is kept, and tried again."""
        index = self._under_way.pop(session)
        if how == "finished":
            self.num_played += 1
            self._unwritten.append((encode_json_line(session.record()), index))
        else:
            self._handed_out.discard(index)
            self._unwritten.append((encode_json_line(self._failure(self._plan.episode(index), how)), None))
        with contextlib.suppress(StoreError):
            self._write()

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
            if self._store is not None and index is None:
                self._store.append_failure(line)
            elif self._store is not None and index is not None:
                self._store.append_encoded(line, index)
            del self._unwritten[0]

    def _is_taken(self, index: int) -> bool:
        return index in self._handed_out or (self._store is not None and self._store.is_finished(index))

    def _wanted(self, given: Mapping[str, Any]) -> Callable[[PlannedEpisode], bool]:
        plan, prompts = self._plan, self._settings.prompts
        task, seed, prompt = given.get("task"), given.get("seed"), given.get("prompt", prompts[0])
        if task is not None and all(task != known.instance_id for known in plan.tasks):
            raise unknown_name("task", str(task)[:100], [known.instance_id for known in plan.tasks])
        if seed is not None and seed not in plan.seeds:
            raise InvalidInputError(f"seed is {seed!r:.60}: expected one of {_shortened(plan.seeds)}")
        if prompt not in prompts:
            raise unknown_name("prompt", str(prompt)[:100], prompts)
        number = prompts.index(prompt)
        return lambda episode: (
            (task is None or episode.task.instance_id == task)
            and (seed is None or episode.seed == seed)
            and episode.prompt == number
        )

    def _session(self, episode: PlannedEpisode) -> JudgedSession:
        return JudgedSession(self._env.twin(), episode.task, self._settings.prompts[episode.prompt], episode.seed)

    def _record(self, episode: PlannedEpisode, session: Session, part: Any) -> Any:
        if not isinstance(session, JudgedSession):
            raise TypeError("a session of this run is judged")
        record = session.record(
            self._run.name,
            index=episode.index,
            salt=self._settings.environment.salt,
            manifest=self._settings.manifest_hash,
        )
        record["agent"] = part
        return stored(record, None)

    def _failure(self, episode: PlannedEpisode, how: str) -> FailureRecord:
        return FailureRecord(
            schema=FAILURE_SCHEMA,
            index=episode.index,
            policy=self._run.name,
            prompt_type=self._settings.prompts[episode.prompt],
            instance_id=episode.task.instance_id,
            seed=episode.seed,
            error=FAILURES[how].format(seconds=self._run.episode_seconds or 0.0),
            reason=how,
            calls=0,
        )


def _shortened(seeds: Iterable[int]) -> str:
    shown = [str(seed) for seed in seeds]
    return ", ".join(shown) if len(shown) <= 8 else f"{shown[0]}, {shown[1]}, ..., {shown[-1]}"


def serve(run: ServedRun) -> None:
    """Serve one client over the standard streams, one episode after the other, until it closes them.

    A signal ends the process, too; an episode under way is written down as given up.
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
    await serve_stdio(host)


def on_signals(end: Callable[[], None]) -> None:
    """Call something when the process is told to stop; to be called where a loop runs."""
    for number in (signal.SIGINT, signal.SIGTERM):
        with contextlib.suppress(NotImplementedError):  # on Windows, where Ctrl-C raises instead
            asyncio.get_running_loop().add_signal_handler(number, end)


def serve_http(
    run: ServedRun, host: str, port: int, token: str | None = None, tell: Callable[[str], None] = lambda url: None
) -> int:
    """Serve clients over HTTP until the process is told to stop; return how many episodes were played.

    Args:
        run: What is served.
        host: Where to listen; other machines only with a token.
        port: Port; 0 takes a free one.
        token: What clients must send as bearer token.
        tell: Told the URL once clients can come.

    Raises:
        InvalidInputError: The address cannot be listened on, or others could come in without a token.
    """
    if host not in LOOPBACK and not token:
        raise InvalidInputError(f"other machines can reach {host}: expected a token that clients have to send")
    with contextlib.closing(Episodes(run)) as episodes:
        asyncio.run(_until_stopped(episodes, host, port, token, tell))
        return episodes.num_played


async def _until_stopped(
    episodes: Episodes, host: str, port: int, token: str | None, tell: Callable[[str], None]
) -> None:
    stopped = asyncio.Event()
    on_signals(stopped.set)
    hosts = Hosts(lambda name: episodes.host(repeats=False))
    async with http_server(hosts, host, port, token) as (url, serving):
        tell(url)
        stopping = asyncio.ensure_future(stopped.wait())
        try:
            await asyncio.wait([stopping, asyncio.ensure_future(serving)], return_when=asyncio.FIRST_COMPLETED)
        finally:  # however it ends, what is under way is written down as given up
            hosts.abandon("gone")
