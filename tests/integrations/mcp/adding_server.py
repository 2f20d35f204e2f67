"""A server with a few tools, in this process or as a program of its own that speaks over its standard streams."""

from __future__ import annotations

import asyncio

from mcp.server.mcpserver import MCPServer

ARTICLES = {"film": "The Paper Lantern (1950) stars Ada Quill.", "Ada Quill": "Ada Quill later was mayor of Brindle."}

server = MCPServer("library")


@server.tool()
def library_search(query: str) -> str:
    """Finds an article."""
    return ARTICLES[query]


@server.tool()
def add(a: int, b: int = 1) -> int:
    """Adds two numbers."""
    return a + b


@server.tool()
async def sleep(seconds: float) -> str:
    """Answers late."""
    await asyncio.sleep(seconds)
    return "awake"


if __name__ == "__main__":
    server.run()
