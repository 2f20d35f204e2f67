"""Agents that are programs, in any language: one process an episode, which plays over MCP."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import shlex
import shutil
import signal
import tempfile
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

from resilisim.envs.session import Session
from resilisim.errors import InvalidInputError
from resilisim.policies.agent_session import AgentSession
from resilisim.policies.function_agent import AgentFailed
from resilisim.policies.llm.record import AgentRecord
from resilisim.policies.llm.run import Journal
from resilisim.policies.mcp_host import EpisodeHost, Hosts, http_server

COMMAND_PREFIX: Final = "command:"  # of a policy that is a program
_SHOWN_OUTPUT: Final = 2_000  # characters of what a program wrote last, for the file of failures
_MOST_OUTPUT: Final = 1_000_000  # bytes that are read at once


class CommandAgent:
    """An agent that is a program: it is started once for each episode, and plays over MCP.

    The program finds the URL of an MCP server with this episode in RESILISIM_MCP_URL, the prompt in RESILISIM_PROMPT,
    and both in the JSON file that RESILISIM_EPISODE names (`mcp_url`, `prompt`). The episode has begun; the tools are
    those of the library and `episode_finish`. Exit code 0 without `episode_finish` is the agent's stop; any other is a
    failure, and no score.

    Args:
        command: The command with its arguments, as in a shell, of which there is none.

    Raises:
        InvalidInputError: There is no such program.

    Example:
        >>> from resilisim.policies import CommandAgent
        >>> CommandAgent("python -m my_agent --fast").name
        'python -m my_agent --fast'
    """

    def __init__(self, command: str) -> None:
        try:
            self._command = shlex.split(command)
        except ValueError as error:
            raise InvalidInputError(f"command {command!r:.80} cannot be read: {error}") from error
        if not self._command or shutil.which(self._command[0]) is None:
            raise InvalidInputError(
                f"command {command!r:.80}: expected a program that can be started, and its arguments"
            )
        self.name = " ".join(command.split())
        self._stack = AsyncExitStack()
        self._hosts = Hosts(_no_such_episode)
        self._server: asyncio.Task[str] | None = None

    async def play_session(
        self, session: Session, *, identity: str = "", journal: Journal | None = None
    ) -> AgentRecord:
        """Let the program play a session to its end, and return what is known of it.

        Raises:
            AgentFailed: It ended with another exit code than 0.
        """
        agent_session = AgentSession(session)
        name = secrets.token_urlsafe(16)  # nobody else can guess the URL of an episode
        host = EpisodeHost(agent_session.mcp_tools(), lambda given: agent_session, repeats=False)
        host.take(agent_session)
        url = f"{await self._url()}/episodes/{name}/mcp"
        self._hosts.add(name, host)
        try:
            await self._run(url, host.prompt)
            agent_session.stop()
        finally:
            agent_session.close()
            self._hosts.forget(name)
        return agent_session.part(self.name)

    async def aclose(self) -> None:
        """End the server."""
        await self._stack.aclose()
        self._server = None

    async def _url(self) -> str:
        if self._server is None:

            async def begin() -> str:
                url, _ = await self._stack.enter_async_context(http_server(self._hosts))
                return url

            self._server = asyncio.ensure_future(begin())
        return await self._server

    async def _run(self, url: str, prompt: str) -> None:
        with tempfile.TemporaryDirectory(prefix="resilisim-") as folder:
            told = Path(folder) / "episode.json"
            told.write_text(json.dumps({"mcp_url": url, "prompt": prompt}), encoding="utf-8")
            own = {"RESILISIM_MCP_URL": url, "RESILISIM_PROMPT": prompt, "RESILISIM_EPISODE": str(told)}
            process = await asyncio.create_subprocess_exec(
                *self._command,
                env={**os.environ, **own},
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                start_new_session=True,  # its children end with it
            )
            try:
                output = await _last_of(process)
                code = await process.wait()
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                await process.wait()
        if code != 0:
            last = output.strip().rpartition("\n")[2]
            raise AgentFailed(f"agent {self.name} ended with exit code {code}: {last}", "ExitCode", output)


async def _last_of(process: asyncio.subprocess.Process) -> str:
    """Return what a process wrote last; all of it is read, so that it never waits for a reader."""
    last = b""
    if process.stdout is not None:
        while block := await process.stdout.read(_MOST_OUTPUT):
            last = (last + block)[-4 * _SHOWN_OUTPUT :]
    return last.decode("utf-8", "replace")[-_SHOWN_OUTPUT:]


def _no_such_episode(name: str) -> EpisodeHost:
    raise InvalidInputError("there is no such episode")
