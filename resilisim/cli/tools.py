"""`resilisim tools`: look at a tool library, make one by rules, and read what others list of tools into one."""

from __future__ import annotations

import asyncio
import json
import os
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import typer

from resilisim.bounds import Count, Seconds, Seed
from resilisim.chat import make_chat_model
from resilisim.chat.middleware import ChatModelSettings, request_key
from resilisim.chat.models import model_identity
from resilisim.cli import options
from resilisim.cli.enhancing import REACH, WANTED, ModelOption, answers_in, check_arguments, tell_forecast
from resilisim.cli.mcp import HeaderOption, headers_of, with_user_as_header
from resilisim.cli.output import answer, command_group, error_console, note, plain, write_json
from resilisim.envs.settings import EnvironmentSettings
from resilisim.errors import InfrastructureError, InvalidInputError, unknown_name
from resilisim.evaluation.run.progress import Progressing
from resilisim.integrations.mcp.client import McpToolbox
from resilisim.redaction import without_credentials
from resilisim.run_folder import write_file_atomically
from resilisim.tables.table import Table
from resilisim.tasks.enhancement.enhancer import EnhancementOptions, forecast_calls
from resilisim.tool_library import ToolLibrary, load_library
from resilisim.tool_library.differentiation import Differentiated, ToolWriter, differentiate_library
from resilisim.tool_library.generator import generate_library, read_vocabulary
from resilisim.tool_library.library import MOST_LIBRARY_BYTES
from resilisim.tool_library.tool_formats import mcp_export, proposals

EXPORT_FORMATS = ("json", "mcp")
_DOCUMENTS: Final = "application/json, application/yaml, application/x-yaml, text/yaml, text/plain;q=0.9"

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


@app.command("generate")
def generate(
    *,
    size: Annotated[
        Count | None,
        typer.Option(help="Number of tools; one of each category and operation if left out, which are the 30."),
    ] = None,
    seed: Annotated[
        Seed, typer.Option(help="A different seed makes different tools where anything is drawn at random.")
    ] = 0,
    vocabulary: Annotated[
        Path | None,
        typer.Option(help="Your own categories and operations (JSON or YAML).", dir_okay=False),
    ] = None,
    dependencies: Annotated[
        Literal["rules", "drawn"],
        typer.Option(help="rules: by what the operations do; drawn: on up to three earlier tools, whatever they do."),
    ] = "rules",
    reliability: Annotated[
        str | None,
        typer.Option(
            metavar="LOW:HIGH",
            help="Give each tool its own success probability, in this range; without it the law's holds.",
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Library file to write; standard output if left out.", dir_okay=False)
    ] = None,
) -> None:
    """Make a library of categories x operations by rules; the same arguments write the same bytes.

    Every command with `--library` reads it. Without arguments it makes the 30 tools that ship.
    """
    library = generate_library(
        size,
        seed=seed,
        vocabulary=None if vocabulary is None else read_vocabulary(vocabulary),
        dependencies=dependencies,
        reliability=None if reliability is None else _two_numbers(reliability, "--reliability"),
    )
    _write(library.to_json(), out)
    levels = [tool.dependency_metadata.level for tool in library]
    made = f"{len(library)} tools in {len({tool.category for tool in library})} categories, dependencies in "
    made += f"{max(levels) + 1} levels"
    note(made if out is None else f"{made}, in {out}; next: resilisim tasks generate --library {out} --out tasks.jsonl")


def _two_numbers(text: str, option: str) -> tuple[float, float]:
    try:
        low, high = map(float, text.split(":"))
    except ValueError:
        raise InvalidInputError(f"option {option}: got {text!r:.60}; expected two numbers, as in 0.6:0.98") from None
    return low, high


@app.command("enhance")
@options.takes(
    reach=REACH,
    wanted=WANTED,
    environment=options.OptionGroup(EnvironmentSettings, options.TOOL_SEARCH),
)
def enhance_tools(
    *,
    model: ModelOption,
    out: Annotated[Path | None, typer.Option(help="Library file to write.", dir_okay=False)] = None,
    reach: ChatModelSettings,
    wanted: EnhancementOptions,
    dry_run: options.DryRunFlag = False,
    cache: options.CacheOption = None,
    environment: EnvironmentSettings,
    library: options.LibraryOption = None,
    as_json: options.JsonFlag = False,
) -> None:
    """Let a language model reword tools so that a search tells them apart; their meaning stays (extra `llm`).

    Only descriptions, differentiators and keywords change, and the original ones stay in `metadata.enhancement`. A tool
    that the model gets wrong stays as it was. After an interruption, the same command takes earlier answers from the
    cache.
    """
    check_arguments(out, dry_run, reach.base_url)
    tools = options.load(library)
    answers = answers_in(cache)
    if dry_run or out is None:
        identity = model_identity(model, reach)
        questions = map(ToolWriter(tools, environment.retriever(tools)).question, tools)
        forecast = forecast_calls(questions, wanted, lambda request: request_key(identity, request) in answers)
        tell_forecast("tools", forecast, identity, 0, as_json)
        return
    chat = make_chat_model(model, reach, answers)

    async def made(progress: Progressing) -> Differentiated:
        try:
            return await differentiate_library(
                tools,
                lambda messages: chat.complete(wanted.request(messages)),
                environment.retriever,
                model=chat.name,
                re_asks=wanted.re_asks,
                concurrency=reach.max_concurrency,
                on_tool=progress.advance,
            )
        finally:
            await chat.aclose()

    with Progressing("asking the model", len(tools)) as progress:
        result = asyncio.run(made(progress))
    _write(result.library.to_json(), out)
    counts = {"file": str(out), **result.to_mapping()}
    rows = [["new texts", counts["enhanced"], ""]]
    rows += [["as it was", count, kind.replace("_", " ")] for kind, count in result.refusals.items()]
    first = f"found first by what they are for: {result.first_before} before, {result.first_after} after"
    lead = f"lead over the nearest other tool: {result.margin_before:.3f} before, {result.margin_after:.3f} after"
    notes = [first, lead, f"wrote {out}; next: resilisim tools list --library {out}"]
    answer(as_json, counts, Table.of_values(f"{len(tools)} tools", ["", "tools", "reason"], rows), notes=notes)


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
    """Search the tools; semantic search needs the extra `retrieval`."""
    tool_library = options.load(library)
    with error_console().status("loading the embedding model"):
        hits = environment.retriever(tool_library).search(query, k=count)
    rows = [[hit.score, hit.name, tool_library[hit.name].description] for hit in hits]
    shown = Table.of_values(f"Tools for {query!r}", ["score", "name", "description"], rows, digits=3)
    answer(as_json, [{"name": hit.name, "score": hit.score} for hit in hits], shown)


@app.command("export")
def export_tools(
    export_format: Annotated[
        str, typer.Option("--format", help="json (canonical) or mcp (tool definitions); --library reads both.")
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
    _write(
        json.dumps(mcp_export(tool_library), indent=2, ensure_ascii=False) if as_mcp else tool_library.to_json(), out
    )
    if out is not None:
        note(f"wrote {len(tool_library)} tools to {out}")


@app.command("import")
def import_tools(
    source: Annotated[
        list[str],
        typer.Argument(
            metavar="SOURCE...",
            help="A file; the URL of a document or of an MCP server; or, after --, the command that starts an MCP "
            "server, with its arguments.",
        ),
    ],
    out: Annotated[
        Path | None, typer.Option(help="Library file to write; standard output if left out.", dir_okay=False)
    ] = None,
    header: HeaderOption = None,
    timeout: Annotated[Seconds, typer.Option("--timeout", help="How long a server may take to answer.")] = 60.0,
) -> None:
    """Import tools into a library file: MCP servers, functions of OpenAI or Anthropic, BFCL, OpenAPI 3.

    Names and schemas stay as they are. What the tools' annotations suggest for a goal is printed, and has no other
    effect. `--library` reads such files directly, too.
    """
    only = source[0] if len(source) == 1 else None
    is_url = only is not None and only.lower().startswith(("http://", "https://"))
    if header and not is_url:
        raise InvalidInputError("--header is sent to a URL: expected one")
    if only is not None and is_url:
        library = _library_at(only, headers_of(header or ()), timeout)
    elif only is not None and (Path(only).exists() or "/" in only or Path(only).suffix in (".json", ".yaml", ".yml")):
        library = load_library(only)
    else:
        toolbox = McpToolbox.of_command(*source, env=os.environ, timeout_seconds=timeout)
        library = asyncio.run(_listed(toolbox, source[0]))
    _write(library.to_json(), out)
    note(f"{len(library)} tools" + ("" if out is None else f", in {out}; next: resilisim tools list --library {out}"))
    for what, names in proposals(library).items():
        if names:
            shown = ", ".join(names[:20]) + (f" and {len(names) - 20} more" if len(names) > 20 else "")
            reason = "may do harm if it runs twice" if what == "once" else "only looks, and can check what has happened"
            note(f"a proposal for {what}, as their annotations say ({reason}): {shown}")


def _write(text: str, out: Path | None) -> None:
    text = text.removesuffix("\n") + "\n"
    if out is None:
        write_json(text)
    else:
        write_file_atomically(out, text.encode())


async def _listed(toolbox: McpToolbox, source: str) -> ToolLibrary:
    """Return the tools of an MCP server."""
    with error_console().status("asking the server for its tools"):
        async with toolbox as tools:
            definitions = tools.definitions
    if not definitions:
        raise InvalidInputError(f"the server {source:.100} lists no tools; expected at least one")
    return ToolLibrary.from_json(json.dumps({"tools": definitions}), source=f"the server {source:.100}")


def _library_at(url: str, headers: dict[str, str], timeout: float) -> ToolLibrary:
    """Return the tools of a document at a URL, or of the MCP server that listens there."""
    address, headers = with_user_as_header(url, headers, "SOURCE")
    shown = without_credentials(url)
    text = _document_at(address, headers, timeout)
    if text is not None:
        return ToolLibrary.from_json(text, source=shown)
    return asyncio.run(_listed(McpToolbox.of_url(address, headers=headers, timeout_seconds=timeout), shown))


def _document_at(address: str, headers: Mapping[str, str], timeout: float) -> str | None:
    """Return the document at a URL; None if none can be fetched there, as from an MCP server.

    Raises:
        InvalidInputError: There is a web page, or far too much.
        InfrastructureError: Nobody answers.
    """
    request = urllib.request.Request(address, headers={"Accept": _DOCUMENTS, **headers})
    try:
        with urllib.request.urlopen(request, timeout=timeout) as response:
            kind = response.headers.get_content_type()
            if kind == "text/event-stream":
                return None
            if kind in ("text/html", "application/xhtml+xml"):
                raise InvalidInputError(
                    f"{without_credentials(address)} is a web page; expected the document itself, or an MCP server"
                )
            content = response.read(MOST_LIBRARY_BYTES + 1)
    except urllib.error.HTTPError as error:
        if error.code in (400, 404, 405, 406, 415):
            return None
        raise InfrastructureError(f"{without_credentials(address)} answers {error.code} {error.reason}") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        raise InfrastructureError(f"{without_credentials(address)} cannot be reached: {reason}") from None
    if len(content) > MOST_LIBRARY_BYTES:
        raise InvalidInputError(
            f"{without_credentials(address)} has more than {MOST_LIBRARY_BYTES:,} bytes; expected less"
        )
    text: str = content.decode("utf-8-sig", "replace")
    return text
