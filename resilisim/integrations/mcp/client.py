"""Tools of a server that speaks the Model Context Protocol, as a toolbox for any agent; extra `mcp`."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Any, Final

from resilisim.envs.reply import CallResult
from resilisim.errors import InfrastructureError, InvalidInputError, import_extra, one_line, unknown_name
from resilisim.policies.llm.tools import ToolSpec

_MAX_PAGES: Final = 100  # of the list of tools; a server whose list never ends is broken
_MAX_ERROR: Final = 2_000  # characters


class McpToolbox:
    """The tools of one server, connected for the time of an `async with` block.

    The block has to begin and end in the same task, as the client library demands.

    Args:
        server: What `mcp.Client` takes: a server object in this process, a URL, or parameters of a command.
        timeout_seconds: How long an answer may take.

    Raises:
        MissingExtraError: The package `mcp` is not installed.

    Example:
        >>> from resilisim.integrations.mcp import McpToolbox
        >>> from resilisim.policies.llm import AgentRun
        >>> async def answer_to(task, policy):
        ...     async with McpToolbox.of_command("my-server", "--stdio") as tools:
        ...         run = AgentRun(task, tools=tools, models=policy.models, options=policy.options)
        ...         return await policy.play(run)
    """

    def __init__(self, server: Any, *, timeout_seconds: float = 60.0) -> None:
        self._mcp = _package()
        self._server = server
        self._timeout = timeout_seconds
        self._specs: tuple[ToolSpec, ...] = ()
        self._definitions: tuple[dict[str, Any], ...] = ()
        self._client: Any = None
        self._stack = AsyncExitStack()

    @classmethod
    def of_command(
        cls,
        command: str,
        *arguments: str,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        timeout_seconds: float = 60.0,
    ) -> McpToolbox:
        """Return the tools of a server that is started as a child process and spoken to over its standard streams.

        Of environment variables it has a few harmless ones and those in `env`; it inherits no others.
        """
        stdio: Any = import_extra("mcp.client.stdio", "tools of an MCP server need", "mcp")
        variables = None if env is None else dict(env)
        parameters = stdio.StdioServerParameters(command=command, args=list(arguments), env=variables, cwd=cwd)
        return cls(stdio.stdio_client(parameters, errlog=_own_stderr()), timeout_seconds=timeout_seconds)

    @classmethod
    def of_url(cls, url: str, *, headers: Mapping[str, str] | None = None, timeout_seconds: float = 60.0) -> McpToolbox:
        """Return the tools of a server that listens at a URL (streamable HTTP), with headers for each request."""
        return cls(_listening(url, dict(headers or {}), timeout_seconds), timeout_seconds=timeout_seconds)

    @property
    def definitions(self) -> tuple[dict[str, Any], ...]:
        """The tools as the server listed them, word for word, in the form of MCP."""
        return self._definitions

    @property
    def specs(self) -> tuple[ToolSpec, ...]:
        """The tools, as the server listed them when the connection was made."""
        return self._specs

    async def __aenter__(self) -> McpToolbox:
        """Connect and list the tools; a command that cannot be started is an `InvalidInputError`."""
        client = self._mcp.Client(self._server, read_timeout_seconds=self._timeout)
        try:
            # The client's own limit does not hold for the handshake.
            async with asyncio.timeout(self._timeout):
                self._client = await self._stack.enter_async_context(client)
                self._specs = await self._list()
        except BaseException as error:
            await self._stack.aclose()
            if not isinstance(error, Exception):
                raise
            raise _no_connection(error, self._timeout) from error
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Disconnect; a server that was started ends."""
        self._client = None
        # The library's task groups would wrap an error of the block into a group of errors, so they are not told of it.
        await self._stack.aclose()

    async def call(self, name: str, arguments: Mapping[str, Any]) -> CallResult:
        """Call a tool; a server that is gone or does not answer in time is an `InfrastructureError`."""
        if self._client is None:
            raise RuntimeError("the toolbox is not connected: use it in an async with block")
        names = [spec.name for spec in self._specs]
        if name not in names:
            return CallResult.refused(str(unknown_name("tool", name, names)))
        try:
            result = await self._client.call_tool(name, dict(arguments))
        except self._mcp.MCPError as error:
            if error.code in (self._mcp.types.CONNECTION_CLOSED, self._mcp.types.REQUEST_TIMEOUT):
                raise InfrastructureError(
                    f"the MCP server did not answer the call of {name}: {error.message}"
                ) from error
            return CallResult.refused(one_line(error.message, _MAX_ERROR))
        text = _text_of(result)
        if result.is_error:
            return CallResult(text, one_line(text, _MAX_ERROR) or f"{name} failed without saying why")
        return CallResult(text, data=result.structured_content)

    async def _list(self) -> tuple[ToolSpec, ...]:
        specs: list[ToolSpec] = []
        definitions: list[dict[str, Any]] = []
        cursor: str | None = None
        for _ in range(_MAX_PAGES):
            page = await self._client.list_tools(cursor=cursor)
            specs += [
                ToolSpec(tool.name, tool.description or "", dict(tool.input_schema), tool.output_schema)
                for tool in page.tools
            ]
            definitions += [tool.model_dump(mode="json", by_alias=True, exclude_unset=True) for tool in page.tools]
            cursor = page.next_cursor
            if cursor is None:
                self._definitions = tuple(definitions)
                return tuple(specs)
        raise RuntimeError(f"its list has more than {_MAX_PAGES} pages")


def _package() -> Any:
    return import_extra("mcp", "tools of an MCP server need", "mcp")


@contextlib.asynccontextmanager
async def _listening(url: str, headers: dict[str, str], timeout_seconds: float) -> AsyncIterator[Any]:
    """Connect to a server that listens, with connections that end with the block."""
    transport: Any = import_extra("mcp.client.streamable_http", "tools of an MCP server need", "mcp")
    http: Any = import_extra("httpx2", "tools of an MCP server need", "mcp")
    # How long an answer may take is up to the client of the protocol.
    async with (
        http.AsyncClient(headers=headers, timeout=http.Timeout(timeout_seconds, read=None)) as client,
        transport.streamable_http_client(url, http_client=client) as streams,
    ):
        yield streams


def _own_stderr() -> Any:
    """Return where servers write what they have to say besides: something that a process can write to."""
    try:
        sys.stderr.fileno()
    except (OSError, ValueError):
        return sys.__stderr__
    return sys.stderr


def _text_of(result: Any) -> str:
    """Return the texts of a result; other content is named, and a structured result without any is its JSON text."""
    texts = [block.text if block.type == "text" else f"[{block.type}]" for block in result.content]
    if not texts and result.structured_content is not None:
        return json.dumps(result.structured_content, ensure_ascii=False)
    return "\n".join(texts)


def _no_connection(error: BaseException, timeout: float) -> InvalidInputError | InfrastructureError:
    if isinstance(error, TimeoutError):
        return InfrastructureError(f"the MCP server did not answer within {timeout:g} seconds")
    if isinstance(error, OSError):
        return InvalidInputError(f"the MCP server cannot be started: {error}")
    while isinstance(error, BaseExceptionGroup):  # the client library wraps errors into groups
        error = error.exceptions[0]
    words = one_line(error, _MAX_ERROR) or type(error).__name__
    return InfrastructureError(f"the MCP server does not list its tools: {words}")
