"""`resilisim tools`: look at a tool library."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from resilisim.bounds import Count
from resilisim.cli import options
from resilisim.cli.output import answer, command_group, error_console, note, plain, write_json
from resilisim.envs.settings import EnvironmentSettings
from resilisim.errors import unknown_name
from resilisim.tables.table import Table
from resilisim.tool_library.parameters import mcp_definitions

EXPORT_FORMATS = ("json", "mcp")

app = command_group()


@app.command("list")
def list_tools(library: options.LibraryOption = None, as_json: options.JsonFlag = False) -> None:
    """List the tools with their category, operation, semantic type and direct dependencies."""
    tool_library = options.load(library)
    rows: list[dict[str, Any]] = [
        {
            "index": index,
            "name": tool.name,
            "category": tool.category,
            "operation": tool.operation,
            "semantic_type": tool.semantic_type,
            "dependencies": list(tool_library.dependencies(tool.name)),
        }
        for index, tool in enumerate(tool_library)
    ]
    cells = [[row["index"], row["name"], row["semantic_type"], ", ".join(row["dependencies"])] for row in rows]
    answer(
        as_json,
        rows,
        Table.of_values(f"{len(tool_library)} tools", ["#", "name", "semantic type", "depends on"], cells),
    )


@app.command("show")
def show_tool(
    name: Annotated[str, typer.Argument(help="Name or alias of a tool.")],
    library: options.LibraryOption = None,
    as_json: options.JsonFlag = False,
) -> None:
    """Show one tool in full: parameters, returns, possible errors, dependencies."""
    tool_library = options.load(library)
    tool = tool_library[tool_library.resolve(name) or name]
    own = tool.success_probability
    answer(
        as_json,
        tool.to_mapping(),
        plain(tool.name, "bold") + plain(f"  {tool.category} / {tool.operation}"),
        plain(tool.description),
        plain("depends on: " + (", ".join(tool_library.dependencies(tool.name)) or "nothing")),
        *([plain("equivalents: " + ", ".join(tool.equivalents))] if tool.equivalents else []),
        *([] if own is None else [plain(f"its own success probability: {own:g}")]),
        Table.of_values(
            "Parameters",
            ["name", "type", "required", "description"],
            [[p.name, p.type, "yes" if p.required else "no", p.description] for p in tool.parameters],
        ),
        Table.of_values(
            "Returns", ["name", "type", "description"], [[v.name, v.type, v.description] for v in tool.returns]
        ),
        Table.of_values("Errors", ["code", "description"], [[e.code, e.description] for e in tool.errors]),
    )


@app.command("search")
@options.takes(environment=options.OptionGroup(EnvironmentSettings, options.TOOL_SEARCH))
def search_tools(
    *,
    query: Annotated[str, typer.Argument(help="What the tool should do, in words.")],
    count: Annotated[Count, typer.Option("-k", "--count", help="Number of hits.")] = 5,
    environment: EnvironmentSettings,
    library: options.LibraryOption = None,
    as_json: options.JsonFlag = False,
) -> None:
    """Search the tools by meaning (needs the extra `retrieval`)."""
    tool_library = options.load(library)
    with error_console().status("loading the embedding model"):
        hits = environment.retriever(tool_library).search(query, k=count)
    rows = [[hit.score, hit.name, tool_library[hit.name].description] for hit in hits]
    shown = Table.of_values(f"Tools for {query!r}", ["score", "name", "description"], rows, digits=3)
    answer(as_json, [{"name": hit.name, "score": hit.score} for hit in hits], shown)


@app.command("export")
def export_tools(
    export_format: Annotated[
        str, typer.Option("--format", help="json (canonical, loads again) or mcp (tool definitions).")
    ] = "json",
    out: Annotated[
        Path | None, typer.Option(help="File to write; standard output if left out.", dir_okay=False)
    ] = None,
    library: options.LibraryOption = None,
) -> None:
    """Write the library as canonical JSON, or as MCP tool definitions."""
    if export_format not in EXPORT_FORMATS:
        raise unknown_name("format", export_format, EXPORT_FORMATS, "option --format")
    tool_library = options.load(library)
    as_mcp = export_format == "mcp"
    text = json.dumps(mcp_definitions(tool_library), indent=2, ensure_ascii=False) if as_mcp else tool_library.to_json()
    text = text.removesuffix("\n") + "\n"
    if out is None:
        write_json(text)
    else:
        out.write_text(text, encoding="utf-8", newline="\n")
        note(f"wrote {len(tool_library)} tools to {out}")
