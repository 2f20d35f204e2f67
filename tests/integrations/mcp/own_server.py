"""A small MCP server, of both protocol eras, that the proxy stands in front of: `python own_server.py [PORT]`."""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Annotated

from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from pydantic import BaseModel, Field

ran: list[str] = []  # what really ran, for tests in the same process


# An argument that clients of protocol 2026-07-28 also send as a header over HTTP, where the server compares it.
InHeader = Annotated[int, Field(json_schema_extra={"x-mcp-header": "B"})]


class Reply(BaseModel):
    word: str


def make_server() -> MCPServer:
    server = MCPServer("own")

    @server.tool()
    def add(a: int, b: InHeader) -> str:
        """Adds."""
        ran.append("add")
        return str(a + b)

    @server.tool()
    def fails() -> str:
        """Fails by itself."""
        ran.append("fails")
        raise ToolError("nothing works here")

    @server.tool()
    def dies() -> str:
        """Ends the process."""
        os._exit(9)

    @server.tool()
    async def waits(context: Context, seconds: float = 30.0, until: str = "") -> str:
        """Says where it stands, and waits for some time, or until a word stands among what ran."""
        ran.extend(["waits", f"until {until}"] if until else ["waits"])
        await context.report_progress(1, 2, "half")
        try:
            if until:
                while until not in ran:
                    await asyncio.sleep(0.005)
            else:
                await asyncio.sleep(seconds)
        except asyncio.CancelledError:
            ran.append("cancelled")
            raise
        return "waited"

    @server.tool()
    async def asks(context: Context) -> str:
        """Asks back."""
        found = await context.elicit("which word?", Reply)
        return f"{found.action} {found.data.word if found.action == 'accept' else ''}"

    @server.tool()
    async def grows(context: Context) -> str:
        """Comes by another tool."""

        def extra() -> str:
            """Came later."""
            return "extra"

        server.add_tool(extra)
        await context.notify_tools_changed()
        await context.session.send_tool_list_changed()
        return "grown"

    @server.resource("own://note")
    def note() -> str:
        """A note."""
        return "a note"

    @server.prompt()
    def greet(name: str) -> str:
        """Greets."""
        return f"Hello {name}"

    return server


if __name__ == "__main__":
    if len(sys.argv) > 1:
        make_server().run("streamable-http", host="127.0.0.1", port=int(sys.argv[1]))
    else:
        make_server().run()
