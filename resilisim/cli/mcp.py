"""`resilisim mcp`: the Model Context Protocol as a door."""

from __future__ import annotations

import os
import secrets
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from resilisim.cli import options
from resilisim.cli.help import command_group
from resilisim.cli.output import note
from resilisim.envs.settings import EnvironmentSettings
from resilisim.errors import InvalidInputError, count_of
from resilisim.integrations.mcp_server import CLIENT_NAME, ServedRun, serve_http
from resilisim.integrations.mcp_server import serve as serve_stdio
from resilisim.options import OUTPUT_GROUP
from resilisim.policies.mcp_host import EPISODE_PATH, LOOPBACK
from resilisim.seeding import MAX_SEED

TOKEN_VARIABLE = "RESILISIM_TOKEN"
SERVED = (
    *options.RULES,
    *options.LAW,
    "planner",
    "parameters",
    "prompt_style",
    "search_detail",
    "payload",
    "errors",
    "salt",
)

app = command_group()


@app.callback()
def group() -> None:
    """Serve episodes to any MCP client."""


@app.command()
@options.takes(environment=options.OptionGroup(EnvironmentSettings, [*SERVED, "embedding_model"]))
def serve(
    context: typer.Context,
    *,
    http: Annotated[
        str | None,
        typer.Option(
            "--http",
            metavar="HOST:PORT",
            help="Serve over HTTP, one URL an episode, instead of one client over the standard streams.",
        ),
    ] = None,
    host: Annotated[
        str | None,
        typer.Option(
            "--host",
            help=f"Listen on this address, which other machines may reach; they need the token in ${TOKEN_VARIABLE}, "
            "or one that is made and shown.",
        ),
    ] = None,
    task: Annotated[str | None, typer.Option("--task", help="instance_id of the only task.")] = None,
    seed: Annotated[
        int | None, typer.Option("--seed", help="The only seed; it fixes all draws.", min=0, max=MAX_SEED)
    ] = None,
    tasks: options.TasksOption = "benchmark-v1",
    split: options.SplitOption = None,
    prompt: Annotated[
        list[str] | None,
        typer.Option("--prompt", help=options.PROMPT_HELP + "; again for more.", show_default="baseline"),
    ] = None,
    seeds: options.SeedsOption = 1,
    tools: options.ToolsOption = None,
    environment: EnvironmentSettings,
    library: options.LibraryOption = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", help="Folder of the results; the same command resumes it.", rich_help_panel=OUTPUT_GROUP),
    ] = None,
    name: Annotated[
        str, typer.Option("--name", help="Who plays, for the results.", rich_help_panel=OUTPUT_GROUP)
    ] = CLIENT_NAME,
    episode_timeout: Annotated[
        float | None, typer.Option("--episode-timeout", help="Give an episode up after so many seconds.", min=0.001)
    ] = None,
) -> None:
    """Serve episodes to MCP clients: the tools of the library, episode_start and episode_finish."""
    environment = environment if tools is None else replace(environment, tools=tools, protocol="native")
    chosen = options.scene(context, environment.for_functions(), tasks, split, library)
    run = ServedRun(
        tasks=chosen.tasks if task is None else [chosen.task(task, tasks)],
        prompts=tuple(prompt or ["baseline"]),
        seeds=seeds if seed is None else [seed],
        environment=chosen.environment,
        library=chosen.own_library,
        name=name,
        out=out,
        episode_seconds=episode_timeout,
    )
    if http is None and host is None:
        serve_stdio(run)
        return
    address, port = _address(http or "127.0.0.1:0", host)
    token = None if address in LOOPBACK else os.environ.get(TOKEN_VARIABLE) or secrets.token_urlsafe(24)

    def tell(url: str) -> None:
        note(f"listening: {url}{EPISODE_PATH}, with any {{name}} for each episode; Ctrl-C ends it")
        if token is not None and TOKEN_VARIABLE not in os.environ:
            note(f"clients have to send: Authorization: Bearer {token}")

    played = serve_http(run, address, port, token, tell)
    note(f"{count_of(played, 'episode')} played" + ("" if out is None else f", in {out}; next: resilisim report {out}"))


def _address(http: str, host: str | None) -> tuple[str, int]:
    """Return host and port of an address; only `--host` opens one that other machines reach."""
    given, colon, port = http.rpartition(":")
    given = given.strip("[]")
    if not colon or not port.isdecimal() or int(port) > 65535:
        raise InvalidInputError(f"--http is {http!r:.80}: expected HOST:PORT, such as 127.0.0.1:8000")
    if host is None and given not in LOOPBACK:
        raise InvalidInputError(
            f"--http is {http!r:.80}, which other machines may reach: expected {LOOPBACK[0]}, or --host {given} as well"
        )
    return host or given, int(port)
