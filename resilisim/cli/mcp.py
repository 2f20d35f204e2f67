"""`resilisim mcp`: the Model Context Protocol as a door, to episodes and to real servers under a law."""

from __future__ import annotations

import base64
import os
import re
import secrets
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated
from urllib.parse import unquote, urlsplit, urlunsplit

import typer

from resilisim.bounds import Seconds, Seed
from resilisim.cli import options
from resilisim.cli.goal_options import (
    AnyOrderOption,
    ChecksOption,
    FailOption,
    ForceOption,
    GoalOption,
    LawOption,
    OnceOption,
    RequiredOption,
    SaltOption,
    TurnsOption,
    WaitOption,
    checks_in,
    names_in,
)
from resilisim.cli.output import command_group, note
from resilisim.envs.settings import GOAL_NAMES, RULE_NAMES, EnvironmentSettings
from resilisim.envs.ways_of_failing import ways_by_code
from resilisim.errors import InvalidInputError, count_of, import_extra
from resilisim.injection.call import InjectedFailure
from resilisim.injection.functions import inject
from resilisim.injection.inject_options import Raises
from resilisim.integrations.mcp.host import EPISODE_PATH, LOOPBACK_HOSTS, SESSION_PATH
from resilisim.integrations.mcp.server import CLIENT_NAME, ServedRun, serve_http
from resilisim.integrations.mcp.server import serve as serve_stdio
from resilisim.options import OUTPUT_GROUP, options_of
from resilisim.redaction import keep_secret, without_credentials
from resilisim.seeding import EVALUATION_SALT
from resilisim.tasks.benchmark import BENCHMARK_VERSION

TOKEN_VARIABLE = "RESILISIM_TOKEN"
SERVED = (
    *RULE_NAMES,
    *GOAL_NAMES,
    *options.LAW_OPTIONS,
    "force",
    "fails_by",
    "planner",
    "parameters",
    "prompt_style",
    "search_detail",
    "payload",
    "errors",
    "salt",
)

HttpOption = Annotated[
    str | None,
    typer.Option(
        "--http",
        metavar="HOST:PORT",
        help="Serve over HTTP, one session per episode, instead of one client over the standard streams.",
    ),
]
HostOption = Annotated[
    str | None,
    typer.Option(
        "--host",
        help=f"Listen on this address, which other machines may reach; they need the token in ${TOKEN_VARIABLE}, "
        "or one that is generated and shown.",
    ),
]
HeaderOption = Annotated[
    list[str] | None,
    typer.Option(
        "--header",
        metavar="NAME: VALUE",
        help="Sent to the URL with each request; repeatable. $NAME in a value stands for an environment "
        "variable: 'Authorization: Bearer $TOKEN'.",
    ),
]
NameOption = Annotated[
    str, typer.Option("--name", help="Name of the player in the results.", rich_help_panel=OUTPUT_GROUP)
]

app = command_group()


@app.callback()
def group() -> None:
    """Serve episodes to any MCP client, or put a real MCP server under a law."""


@app.command()
@options.takes(environment=options.OptionGroup(EnvironmentSettings, [*SERVED, "embedding_model"]))
def serve(
    context: typer.Context,
    *,
    http: HttpOption = None,
    host: HostOption = None,
    task: Annotated[str | None, typer.Option("--task", help="Play only the task with this instance_id.")] = None,
    seed: Annotated[Seed | None, typer.Option("--seed", help="Play only this seed; it fixes all draws.")] = None,
    tasks: options.TasksOption = BENCHMARK_VERSION,
    split: options.SplitOption = None,
    prompt: Annotated[
        list[str] | None,
        typer.Option("--prompt", help=options.PROMPT_HELP + "; repeatable.", show_default="baseline"),
    ] = None,
    seeds: options.SeedsOption = 1,
    tools: options.ToolsOption = None,
    environment: EnvironmentSettings,
    library: options.LibraryOption = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", help="Folder of the results; the same command resumes it.", rich_help_panel=OUTPUT_GROUP),
    ] = None,
    name: NameOption = CLIENT_NAME,
    episode_timeout: Annotated[
        Seconds | None, typer.Option("--episode-timeout", help="Give up an episode after this many seconds.")
    ] = None,
) -> None:
    """Serve episodes to MCP clients: the tools of the library, episode_start and episode_finish."""
    environment = environment if tools is None else replace(environment, tools=tools, protocol="native")
    where = options.scene(context, environment.for_functions(), tasks, split, library)
    run = ServedRun(
        tasks=where.tasks if task is None else [where.task(task, tasks)],
        prompts=tuple(prompt or ["baseline"]),
        seeds=seeds if seed is None else [seed],
        environment=where.environment,
        library=where.own_library,
        name=name,
        out=out,
        episode_seconds=episode_timeout,
    )
    if http is None and host is None:
        _check_cut(ways_by_code(environment.fails_by, "--fails-by").values(), is_http=False)
        serve_stdio(run)
        return
    address, port = _address(http or "127.0.0.1:0", host)
    token = _token(address)
    played, lost = serve_http(run, address, port, token, _tell_url(token))
    words = f"{count_of(played, 'episode')} played" + (f", {lost:,} lost" if lost else "")
    note(words + ("" if out is None else f", in {out}; next: resilisim report {out}"))


@app.command()
def proxy(
    command: Annotated[
        list[str] | None,
        typer.Argument(metavar="COMMAND", help="What starts the server, with its arguments, after --."),
    ] = None,
    *,
    url: Annotated[
        str | None, typer.Option("--url", help="URL of a server that listens (streamable HTTP), instead of a command.")
    ] = None,
    header: HeaderOption = None,
    law: LawOption = None,
    seed: Annotated[Seed, typer.Option("--seed", help="Fixes all draws.")] = 0,
    record: Annotated[
        Path | None,
        typer.Option("--record", help="Folder of the record: every call at once, every episode that has ended."),
    ] = None,
    http: HttpOption = None,
    host: HostOption = None,
    library: Annotated[
        Path | None,
        typer.Option(
            "--library",
            help="Tools of the server as JSON, for those that have dependencies, success_probability or errors.",
            dir_okay=False,
        ),
    ] = None,
    fail: FailOption = None,
    checks: ChecksOption = None,
    call_timeout: Annotated[
        Seconds | None,
        typer.Option(
            "--call-timeout",
            help="Seconds after which the server counts as hung: during a call, its start, or when it lists its tools.",
            show_default="600",
        ),
    ] = None,
    salt: SaltOption = EVALUATION_SALT,
    required: RequiredOption = None,
    goal: GoalOption = None,
    any_order: AnyOrderOption = False,
    once: OnceOption = None,
    turns: TurnsOption = None,
    force: ForceOption = None,
    wait: WaitOption = False,
    fails_by: Annotated[
        list[str] | None,
        typer.Option("--fails-by", metavar="[CODE=]HOW", help=options_of(EnvironmentSettings)["fails_by"].option.help),
    ] = None,
    name: NameOption = CLIENT_NAME,
) -> None:
    """Put a real MCP server under a law: its tool calls are drawn first, then really made; the rest passes unchanged.

    The client starts this command instead of the server. Over HTTP each session is an episode with its own server; the
    k-th has the seed --seed + k, and so has the URL /episodes/k/mcp. It ends when its client closes the session.
    """
    if (url is None) == (not command):
        raise InvalidInputError(
            "expected a command after --, as in `resilisim mcp proxy --law 0.8 -- mcp-server-time`, or --url"
        )
    if header and url is None:
        raise InvalidInputError("--header is sent to a URL: expected --url")
    import_extra("mcp_types", "a proxy needs", "mcp")  # which versions before 2 lack
    from resilisim.integrations.mcp.proxy import Proxied, proxy_http, proxy_stdio

    asked = inject(
        law=law,
        seed=seed,
        record=record,
        required=names_in(required),
        goal=goal,
        ordered=False if any_order else None,
        turns=turns,
        fail=fail,
        checks=checks_in(checks or ()),
        once=names_in(once),
        name=name,
        salt=salt,
        force=force or (),
        wait=wait,
        raises=_manners(fails_by or (), http is not None or host is not None),
    )
    tools = None if library is None else options.load(library)
    headers = headers_of(header or ())
    address, headers = (None, headers) if url is None else with_user_as_header(url, headers)
    proxied = Proxied(asked.settings, tuple(command or ()), address, tools, call_timeout, headers)
    if http is None and host is None:
        proxy_stdio(proxied, note)
    else:
        host_name, port = _address(http or "127.0.0.1:0", host)
        token = _token(host_name)
        proxy_http(proxied, host_name, port, token, ready=_tell_url(token), tell=note)
        if record is not None and required:
            note(f"next: resilisim report {record}")


def _manners(texts: Sequence[str], is_http: bool) -> Raises:
    """Return how failures come to a client, by code or for all."""
    ways = ways_by_code(texts, "--fails-by")
    _check_cut(ways.values(), is_http)
    return ways.get(None) or {code: way for code, way in ways.items() if code is not None} or InjectedFailure


def _check_cut(ways: Iterable[str], is_http: bool) -> None:
    if "cut" in ways and not is_http:
        raise InvalidInputError("--fails-by cut needs connections of their own for each call: expected --http")


def headers_of(lines: Sequence[str]) -> dict[str, str]:
    """Return headers by name, with the variables of the environment that they name put in; values are secrets."""
    headers: dict[str, str] = {}
    for text in lines:
        name, colon, value = text.partition(":")
        if not colon or re.fullmatch(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+", name.strip()) is None:
            raise InvalidInputError(f"--header names {name.strip()!r:.80}: expected NAME: VALUE, such as 'X-Key: $KEY'")
        headers[name.strip()] = _filled(value.strip(), name.strip())
    return headers


def _filled(value: str, header: str) -> str:
    def variable(match: re.Match[str]) -> str:
        name = match[1] or match[2]
        if not os.environ.get(name):
            raise InvalidInputError(f"--header {header} needs the variable {name} of the environment, which is not set")
        keep_secret(os.environ[name])
        return os.environ[name]

    filled = re.sub(r"\$(?:\{([A-Za-z_]\w*)\}|([A-Za-z_]\w*))", variable, value)
    keep_secret(filled, filled.rpartition(" ")[2])
    if not filled.isascii() or not filled.isprintable():
        raise InvalidInputError(f"the value of --header {header} cannot be sent: expected one line of ASCII characters")
    return filled


def with_user_as_header(url: str, headers: dict[str, str], called: str = "--url") -> tuple[str, dict[str, str]]:
    """Return a URL without user and password, which go into a header, so that no message tells them."""
    without_credentials(url)  # what is secret in it is so from now on
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise InvalidInputError(f"{called} cannot be read: {error}: expected http://HOST:PORT/PATH") from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise InvalidInputError(f"{called} is {without_credentials(url)!r:.80}: expected http://HOST:PORT/PATH")
    if parts.username is None and parts.password is None:
        return url, headers
    user, password = unquote(parts.username or ""), unquote(parts.password or "")
    basic = base64.b64encode(f"{user}:{password}".encode()).decode()
    keep_secret(password or user, basic)
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    address = urlunsplit(parts._replace(netloc=host if port is None else f"{host}:{port}"))
    return address, {"Authorization": f"Basic {basic}", **headers}


def _token(address: str) -> str | None:
    return None if address in LOOPBACK_HOSTS else os.environ.get(TOKEN_VARIABLE) or secrets.token_urlsafe(24)


def _tell_url(token: str | None) -> Callable[[str], None]:
    def tell(url: str) -> None:
        note(
            f"listening: {url}{SESSION_PATH}, each session the next episode, or {url}{EPISODE_PATH}, with any {{name}} "
            "for each; Ctrl-C ends it"
        )
        if token is not None and not os.environ.get(TOKEN_VARIABLE):
            note(f"clients have to send: Authorization: Bearer {token}", with_secret=True)

    return tell


def _address(http: str, host: str | None) -> tuple[str, int]:
    """Return host and port of an address; only `--host` opens one that other machines reach."""
    address, colon, port = http.rpartition(":")
    address = address.strip("[]")
    if not colon or not port.isdecimal() or int(port) > 65535:
        raise InvalidInputError(f"--http is {http!r:.80}: expected HOST:PORT, such as 127.0.0.1:8000")
    if host is None and address not in LOOPBACK_HOSTS:
        raise InvalidInputError(
            f"--http is {http!r:.80}, which other machines may reach: expected {LOOPBACK_HOSTS[0]}, or "
            f"--host {address} as well"
        )
    return host or address, int(port)
