"""Agents that are programs, in any language: one process an episode, which plays over MCP."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import shlex
import shutil
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import ClassVar, Final

from resilisim.envs.session import Session
from resilisim.errors import InvalidInputError
from resilisim.integrations.mcp.host import EpisodeHost, Hosts, http_server
from resilisim.policies.agent_record import AgentRecord, Journal
from resilisim.policies.base import AgentFailed
from resilisim.policies.usage import agent_part
from resilisim.process_tree import end_tree, supervised
from resilisim.redaction import shown_command, without_named

_SHOWN_OUTPUT: Final = 2_000  # characters of what a program wrote last, for the file of failures
_LAST_WORDS_SECONDS: Final = 0.5  # for what a program that has ended wrote last


class CommandAgent:
    """An agent that is a program: it is started once for each episode, and plays over MCP.

    The program finds the URL of an MCP server with this episode in RESILISIM_MCP_URL, the prompt in RESILISIM_PROMPT,
    and both in the JSON file that RESILISIM_EPISODE names (`mcp_url`, `prompt`). The episode has begun; the tools are
    those of the library and `episode_finish`. Exit code 0 without `episode_finish` is the agent's stop; with any other
    code the episode is lost, unless it has ended before. Whatever it has started ends with it
    (`resilisim.process_tree`).

    Args:
        command: The command with its arguments, as in a shell, of which there is none.

    Raises:
        InvalidInputError: There is no such program.

    Example:
        >>> from resilisim.integrations.mcp import CommandAgent
        >>> CommandAgent("python -m my_agent --fast").name
        'python -m my_agent --fast'
    """

    runs_code_of_others: ClassVar[bool] = True

    def __init__(self, command: str) -> None:
        try:
            self._command = shlex.split(command)
        except ValueError as error:
            raise InvalidInputError(f"command {without_named(command)!r:.80} cannot be read: {error}") from error
        self.name = shown_command(command)
        if not self._command or shutil.which(self._command[0]) is None:
            raise InvalidInputError(
                f"command {self.name!r:.80}: expected a program that can be started, and its arguments"
            )
        self._stack = AsyncExitStack()
        self._hosts = Hosts(_no_such_episode)
        self._server: asyncio.Task[str] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None  # in which the server runs

    async def play_session(
        self, session: Session, *, identity: str = "", journal: Journal | None = None
    ) -> AgentRecord:
        """Let the program play a session to its end, and return what is known of it.

        Raises:
            AgentFailed: It ended with another exit code than 0.
        """
        name = secrets.token_urlsafe(16)  # nobody else can guess the URL of an episode
        host = EpisodeHost(session.mcp_tools(), lambda given: session, repeats=False)
        host.take(session)
        url = f"{await self._url()}/episodes/{name}/mcp"
        self._hosts.add(name, host)
        try:
            await self._run(url, host.prompt)
            session.stop()
        except AgentFailed as error:
            error.part = agent_part(session, self.name)
            raise
        finally:
            session.close()
            host.release()
            self._hosts.forget(name)
        return agent_part(session, self.name)

    async def aclose(self) -> None:
        """End the server."""
        await self._stack.aclose()
        self._server = None

    async def _url(self) -> str:
        if self._server is None or self._loop is not asyncio.get_running_loop():
            self._stack, self._loop = AsyncExitStack(), asyncio.get_running_loop()

            async def begin() -> str:
                url, _ = await self._stack.enter_async_context(http_server(self._hosts))
                return url

            self._server = asyncio.ensure_future(begin())
        return await self._server

    async def _run(self, url: str, prompt: str) -> None:
        with tempfile.TemporaryDirectory(prefix="resilisim-") as folder:
            episode_file = Path(folder) / "episode.json"
            episode_file.write_text(json.dumps({"mcp_url": url, "prompt": prompt}), encoding="utf-8")
            own = {"RESILISIM_MCP_URL": url, "RESILISIM_PROMPT": prompt, "RESILISIM_EPISODE": str(episode_file)}
            async with _read_output() as (outgoing, output):
                process = await self._start({**os.environ, **own}, outgoing)
                try:
                    code = await process.wait()
                finally:
                    await asyncio.shield(end_tree(process))
        if code != 0:
            last = output.text.strip().rpartition("\n")[2]
            raise AgentFailed(f"agent {self.name} ended with exit code {code}: {last}", "ExitCode", output.text)

    async def _start(self, environment: Mapping[str, str], outgoing: int) -> asyncio.subprocess.Process:
        try:
            return await asyncio.create_subprocess_exec(
                *supervised(self._command),
                env=environment,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=outgoing,
                stderr=outgoing,
                start_new_session=True,
            )
        except (OSError, ValueError) as error:  # it is gone, the machine is full, or the prompt is too long for it
            text = f"agent {self.name} cannot be started: {error}"
            raise AgentFailed(text, type(error).__name__, fault="unclear") from error
        finally:
            os.close(outgoing)


class _Output(asyncio.Protocol):
    """What a process and its children write: all of it is read, so that they never wait; the last is kept."""

    def __init__(self) -> None:
        self._last = b""
        self.is_closed = asyncio.Event()

    @property
    def text(self) -> str:
        return self._last.decode("utf-8", "replace")[-_SHOWN_OUTPUT:]

    def data_received(self, data: bytes) -> None:
        self._last = (self._last + data)[-4 * _SHOWN_OUTPUT :]

    def connection_lost(self, error: Exception | None) -> None:
        self.is_closed.set()


@contextlib.asynccontextmanager
async def _read_output() -> AsyncIterator[tuple[int, _Output]]:
    """Yield where a process can write, to be closed once it is started, and what is read of it.

    A pipe of ours, not of the process: a child that it leaves behind may hold it open for ever.
    """
    incoming, outgoing = os.pipe()
    transport, output = await asyncio.get_running_loop().connect_read_pipe(_Output, os.fdopen(incoming, "rb", 0))
    try:
        yield outgoing, output
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(output.is_closed.wait(), _LAST_WORDS_SECONDS)
    finally:
        transport.close()


def _no_such_episode(name: str) -> EpisodeHost:
    raise InvalidInputError("there is no such episode")
