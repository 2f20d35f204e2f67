"""The tools of the MCP servers in a client's configuration, as functions for programs; extra `mcp`."""

from __future__ import annotations

import asyncio
import inspect
import os
import re
import threading
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Final, Self, TypeVar

from resilisim.envs.reply import CallResult
from resilisim.envs.session import ToolFailed
from resilisim.errors import InvalidInputError
from resilisim.inputs import read_json, read_text, validated
from resilisim.integrations.mcp.client import McpToolbox
from resilisim.policies.llm.tools import ToolSpec

T = TypeVar("T")
_VARIABLE: Final = re.compile(r"\$\{(?:env:)?([A-Za-z_]\w*)(?::-([^}]*))?\}")  # as clients write it


@dataclass(frozen=True)
class ConfiguredServer:
    """A server as a client's configuration has it: a command, or a URL."""

    __pydantic_config__: ClassVar[Mapping[str, str]] = {"extra": "ignore"}  # clients have keys of their own

    command: str | None = None
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict, hash=False, repr=False)
    cwd: str | None = None
    url: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict, hash=False, repr=False)
    disabled: bool = False

    def toolbox(self) -> McpToolbox:
        """Return its tools, not connected yet."""
        if self.command is not None:
            env = {name: filled(value, name) for name, value in self.env.items()}
            args = [filled(each, "args") for each in self.args]
            return McpToolbox.of_command(self.command, *args, env=env, cwd=self.cwd)
        headers = {name: filled(value, name) for name, value in self.headers.items()}
        return McpToolbox.of_url(filled(self.url or "", "url"), headers=headers)


def filled(text: str, where: str) -> str:
    """Return a text of a configuration with the variables of the environment that it names put in.

    Raises:
        InvalidInputError: One of them is not set.
    """

    def value(match: re.Match[str]) -> str:
        found = os.environ.get(match[1], match[2])
        if found is None:
            raise InvalidInputError(f"{where} needs the variable {match[1]} of the environment, which is not set")
        return found

    return _VARIABLE.sub(value, text)


def read_configuration(path: Path | str) -> dict[str, ConfiguredServer]:
    """Return the servers of a client's configuration by name: `mcpServers`, or `servers`; those disabled are left out.

    Raises:
        InvalidInputError: It cannot be read, or holds no server; the line says what was expected.
    """
    content = read_json(read_text(Path(path), "configuration", "the path of an mcp.json file"), str(path))
    known = content if isinstance(content, Mapping) else {}
    servers = known.get("mcpServers", known.get("servers"))
    if not isinstance(servers, Mapping) or not servers:
        raise InvalidInputError(
            f'{path} holds no server: expected {{"mcpServers": {{"NAME": {{"command": ..., "args": [...]}}}}}}'
        )
    read = {}
    for name, value in servers.items():
        server = validated(ConfiguredServer, value, f"{path}, server {name!r:.80}")
        if (server.command is None) == (server.url is None):
            raise InvalidInputError(f"{path}, server {name!r:.80}: expected either a command or a url")
        if not server.disabled:
            read[str(name)] = server
    if not read:
        raise InvalidInputError(f"{path}: every server is disabled: expected one that is not")
    return read


class ServerFunctions:
    """The tools of some MCP servers as functions, connected as long as a `with` block lasts.

    A function takes a tool's arguments by name and returns what the tool answers: its structured content if there is
    some, else its text. An answer that is an error is raised as `ToolFailed`. Tools of two servers that share a name
    are called "SERVER:TOOL".

    Args:
        servers: By name.
        is_async: Whether the functions are coroutine functions.

    Attributes:
        functions: By the name of the tool, once connected.

    Raises:
        InvalidInputError: A server cannot be started.
        InfrastructureError: A server does not answer.
        MissingExtraError: The package `mcp` is not installed.

    Example:
        >>> from resilisim.integrations.mcp.server_functions import ServerFunctions, read_configuration
        >>> def begin():
        ...     with ServerFunctions(read_configuration("mcp.json")) as tools:
        ...         return tools.functions["add"](a=1, b=2)
    """

    def __init__(self, servers: Mapping[str, ConfiguredServer], *, is_async: bool = False) -> None:
        self._servers, self._is_async = dict(servers), is_async
        self.functions: dict[str, Callable[..., Any]] = {}
        self._toolboxes: dict[str, McpToolbox] = {}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._holding: asyncio.Task[None] | None = None
        self._leaving: asyncio.Event | None = None

    def __enter__(self) -> Self:
        """Connect to the servers, and list their tools."""
        self._thread.start()
        try:
            self._wait_for(self._connect())
        except BaseException:
            self._stop()
            raise
        specs = [(server, spec) for server, box in self._toolboxes.items() for spec in box.specs]
        count = Counter(spec.name for _, spec in specs)
        for server, spec in specs:
            name = spec.name if count[spec.name] == 1 else f"{server}:{spec.name}"
            self.functions[name] = self._function(server, spec)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Disconnect; servers that were started end."""
        self._stop()

    def restart(self) -> None:
        """Start the servers anew, so that nothing is left of what was done in their memory."""
        self._wait_for(self._again())

    def _function(self, server: str, spec: ToolSpec) -> Callable[..., Any]:
        call: Callable[..., Any]
        if self._is_async:

            async def call(**arguments: Any) -> Any:
                made = asyncio.run_coroutine_threadsafe(self._call(server, spec.name, arguments), self._loop)
                return _value(await asyncio.wrap_future(made))
        else:

            def call(**arguments: Any) -> Any:
                return _value(self._wait_for(self._call(server, spec.name, arguments)))

        call.__name__ = call.__qualname__ = spec.name
        call.__doc__ = spec.description or f"The tool {spec.name}."
        described: Any = call
        described.input_schema, described.output_schema = dict(spec.parameters), spec.returns
        signature = _signature_of(spec)
        if signature is not None:
            described.__signature__ = signature
        return call

    async def _call(self, server: str, tool: str, arguments: Mapping[str, Any]) -> CallResult:
        return await self._toolboxes[server].call(tool, arguments)

    def _wait_for(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    async def _connect(self) -> None:
        connected: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._leaving = asyncio.Event()
        # Connections have to be closed by the task that has opened them.
        self._holding = asyncio.create_task(self._hold(connected, self._leaving))
        await connected

    async def _hold(self, connected: asyncio.Future[None], leaving: asyncio.Event) -> None:
        try:
            async with AsyncExitStack() as stack:
                for name, server in self._servers.items():
                    self._toolboxes[name] = await stack.enter_async_context(server.toolbox())
                connected.set_result(None)
                await leaving.wait()
        except Exception as error:
            if connected.done():
                raise
            connected.set_exception(error)

    async def _leave(self) -> None:
        if self._leaving is not None and self._holding is not None:
            self._leaving.set()
            await asyncio.gather(self._holding, return_exceptions=True)

    async def _again(self) -> None:
        await self._leave()
        await self._connect()

    def _stop(self) -> None:
        self._wait_for(self._leave())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


def _value(result: CallResult) -> Any:
    if not result.ok:
        raise ToolFailed(result)
    return result.text if result.data is None else result.data


def _signature_of(spec: ToolSpec) -> inspect.Signature | None:
    """Return a tool's parameters as those of a function; None if one of them cannot be named so."""
    properties = spec.parameters.get("properties")
    names = list(properties) if isinstance(properties, Mapping) else []
    if not all(isinstance(name, str) and name.isidentifier() for name in names):
        return None
    required = [name for name in names if name in spec.required]
    kind = inspect.Parameter.KEYWORD_ONLY
    parameters = [inspect.Parameter(name, kind) for name in required]
    parameters += [inspect.Parameter(name, kind, default=None) for name in names if name not in required]
    if spec.parameters.get("additionalProperties") is not False:
        parameters.append(inspect.Parameter("others", inspect.Parameter.VAR_KEYWORD))
    try:
        return inspect.Signature(parameters)
    except ValueError:  # a keyword of Python
        return None
