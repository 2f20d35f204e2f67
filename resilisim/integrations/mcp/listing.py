"""The tools of an MCP server as it lists them: whatever stands there that is none is told and left out."""

from __future__ import annotations

import itertools
import re
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from mcp_types import JSONRPCError, JSONRPCResponse

from resilisim.errors import InvalidInputError, one_line, shown_value
from resilisim.integrations.mcp.wire import words_of
from resilisim.tool_library import Tool, ToolLibrary
from resilisim.tool_library.names import given_name
from resilisim.tool_library.tool_schemas import parameters_of

MOST_PAGES: Final = 1000  # of a list
MOST_TOOLS: Final = 10_000
_OWN: Final = f"resilisim-{uuid.uuid4().hex[:12]}-"  # begins the ids of own requests, which no agent uses
_own_ids = itertools.count()


# Servers that answer a call of a tool that they do not have as if it had succeeded say so in words.
_NO_SUCH_TOOL: Final = re.compile(
    r"\b(?:unknown|unrecogni[sz]ed|invalid|no such|nonexistent|undefined)\s+(?:tool|method|function)\b|"
    r"\b(?:tool|method|function)\b.{0,200}?\b"
    r"(?:not found|unknown|does not exist|doesn't exist|is not (?:known|defined))",
    re.IGNORECASE | re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class ListedTool:
    """A tool as the server lists it; the name of `tool` is the one in draws and records (`given_name`).

    Attributes:
        tool: The tool.
        schema: JSON Schema of its arguments.
        answers: JSON Schema of its structured content; None if there is none.
    """

    tool: Tool
    schema: Mapping[str, Any]
    answers: Mapping[str, Any] | None = None


@dataclass(slots=True)
class Listing:
    """A list of tools that is being fetched, page after page.

    Attributes:
        changes: How often the server had said that its list has changed when this one was asked for.
        items: What the pages so far hold.
        pages: How many there were.
        request: The id of the own request for the next page.
    """

    changes: int
    items: list[Any] = field(default_factory=list)
    pages: int = 0
    request: str = ""

    def next_request(self) -> str:
        """Return the id of the request for the next page."""
        self.request = f"{_OWN}{next(_own_ids)}"
        return self.request

    def take(self, result: Mapping[str, Any], note: Callable[[str], None]) -> str | None:
        """Take a page; return the cursor of the next one, None if it was the last."""
        items = result.get("tools")
        if not isinstance(items, list):
            note(f"the server's list of tools is {shown_value(items)}: expected a list")
            return None
        self.items += items
        self.pages += 1
        cursor = result.get("nextCursor")
        if cursor is not None and not isinstance(cursor, str):
            note(f"nextCursor of the server's list of tools is {shown_value(cursor)}: expected a text")
            return None
        if cursor is not None and (self.pages >= MOST_PAGES or len(self.items) >= MOST_TOOLS):
            note(f"the server's list of tools does not end: the first {len(self.items):,} are known")
            return None
        return cursor


def read_tools(items: list[Any], library: ToolLibrary | None, note: Callable[[str], None]) -> dict[str, ListedTool]:
    """Return the tools of a list by the names that the server has for them."""
    tools: dict[str, ListedTool] = {}
    taken: set[str] = set()
    for number, item in enumerate(items, start=1):
        name = item.get("name") if isinstance(item, Mapping) else None
        if not isinstance(name, str):
            note(f"item {number} of the server's list of tools is {shown_value(item)}: expected an object with a name")
            continue
        if name in tools:
            note(f"the server lists {name!r:.80} twice: the first one counts")
            continue
        known_as = given_name(name, taken)
        if known_as != name:
            note(f"the tool {name!r:.80} cannot be called that in a record: it goes by {known_as!r}")
        taken.add(known_as)
        tools[name] = _listed_tool(known_as, item, library, note)
    return tools


def _listed_tool(
    name: str, item: Mapping[str, Any], library: ToolLibrary | None, note: Callable[[str], None]
) -> ListedTool:
    schema = item.get("inputSchema")
    if not isinstance(schema, Mapping):
        note(f"inputSchema of {name!r:.80} is {shown_value(schema)}: expected an object")
        schema = {}
    answers = item.get("outputSchema") if isinstance(item.get("outputSchema"), Mapping) else None
    if library is not None and name in library.names:
        return ListedTool(library[name], schema, answers)
    described = item.get("description")
    words = (
        one_line(described.strip().splitlines()[0], 1000) if isinstance(described, str) and described.strip() else ""
    )
    try:
        parameters = parameters_of(schema)
    except InvalidInputError as error:  # a reference that leads nowhere
        note(f"inputSchema of {name!r:.80}: {error}")
        parameters = ()
    return ListedTool(Tool(name, words or f"The tool {name}.", parameters), schema, answers)


def says_unknown(name: str, message: JSONRPCResponse | JSONRPCError) -> bool:
    """Return whether the answer of a tool that is not listed says that there is no such tool."""
    if not isinstance(message, JSONRPCResponse):
        return False
    words = words_of(message)
    return len(words) < 10 * len(name) + 200 and _NO_SUCH_TOOL.search(words) is not None
