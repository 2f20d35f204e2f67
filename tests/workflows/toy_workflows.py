"""A small library and tasks for it, in which everything can be worked out by hand."""

from resilisim.tasks import Task
from resilisim.tool_library import Parameter, Tool, ToolLibrary


def tool(name, *dependencies, parameters=()):
    return Tool(name, f"Does {name}.", dependencies=tuple(dependencies), parameters=tuple(parameters))


# write needs merge, merge needs parse; fetch and read stand alone.
LIBRARY = ToolLibrary(
    [
        tool("read", parameters=[Parameter("source"), Parameter("options", "object", required=False)]),
        tool("fetch"),
        tool("parse"),
        tool("merge", "parse"),
        tool("write", "merge", parameters=[Parameter("destination"), Parameter("data", "object")]),
    ],
    "toy library",
)


def task(*required_tools, **fields):
    mapping = {"required_tools": list(required_tools), "description": "Do the work.", **fields}
    return Task.from_mapping(mapping, LIBRARY)
