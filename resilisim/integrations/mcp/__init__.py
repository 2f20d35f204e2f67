"""The Model Context Protocol: episodes for its clients, real servers under a law, and tools of servers; extra `mcp`."""

from resilisim.integrations.mcp.client import McpToolbox
from resilisim.integrations.mcp.command_agent import CommandAgent

__all__ = ["CommandAgent", "McpToolbox"]
