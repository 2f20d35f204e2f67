"""`resilisim apis`: public HTTP APIs as tools, how reliable they are, and the twin that stands in for them."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from resilisim.bounds import Count, CountOrNone, Port, Speed
from resilisim.cli.options import JsonFlag, OptionGroup, output_option, takes
from resilisim.cli.output import INCOMPLETE, answer, command_group, note, plain
from resilisim.errors import InvalidInputError, count_of, unknown_name
from resilisim.evaluation.run.progress import Progressing
from resilisim.injection.law_fit import fit_law
from resilisim.injection.real_apis import real_api_tables
from resilisim.inputs import finite_number, shown
from resilisim.provenance import encode_json
from resilisim.redaction import fit_to_show
from resilisim.run_folder import write_file_atomically
from resilisim.statistics.estimates import fields_to_json
from resilisim.tables.table import Table
from resilisim.worlds.apis import Address, ApiClient, Twin, TwinLaw, find_api
from resilisim.worlds.apis.api import PublicApi, public_apis
from resilisim.worlds.apis.api_client import ApiCall, PerHost, reached
from resilisim.worlds.apis.assessment import PERCENTILES, Assessment, assess
from resilisim.worlds.apis.twin import PUBLISHED_CALLS, PUBLISHED_FAILURES, SUCCESSES

LAW_FILE = "law.json"
TWIN_PANEL = "Twin"
TWIN_LAW = OptionGroup(TwinLaw, ["success", "median_seconds", "spread", "seed"], TWIN_PANEL)

app = command_group()

LiveOption = Annotated[
    bool, typer.Option("--live", help="Call the real hosts; without it a twin is started and called.")
]
TwinOption = Annotated[
    str | None, typer.Option("--twin", metavar="URL", help="Call a twin that runs already (resilisim apis twin).")
]
SpeedOption = Annotated[
    Speed,
    typer.Option("--speed", help="How many times faster than the real hosts the clock of that twin runs."),
]


@app.callback()
def group() -> None:
    """Public HTTP APIs as tools: list, call and assess them, or serve the twin that stands in for them."""


@app.command("list")
def list_apis(as_json: JsonFlag = False) -> None:
    """List the APIs with host, category and parameters."""
    apis = public_apis()
    rows = [
        [api.name, api.host, api.category, ", ".join(parameter.name for parameter in api.parameters)] for api in apis
    ]
    shown_table = Table.of_values(f"{len(apis)} APIs", ["name", "host", "category", "parameters"], rows)
    answer(as_json, [fields_to_json(api) for api in apis], shown_table)


@app.command("call")
@takes(law=TWIN_LAW)
def call_api(
    *,
    name: Annotated[str, typer.Argument(help="Name of an API (resilisim apis list).")],
    parameters: Annotated[
        list[str] | None, typer.Argument(help="Parameters, such as latitude=52.5.", show_default="none")
    ] = None,
    live: LiveOption = False,
    twin: TwinOption = None,
    speed: SpeedOption = 1.0,
    attempt: Annotated[
        CountOrNone, typer.Option("--attempt", help="Number of the call, by which a twin draws its answer.")
    ] = 0,
    law: TwinLaw,
    as_json: JsonFlag = False,
) -> None:
    """Call an API once and print what it returns; the exit code is 3 if the call fails."""
    api = find_api(name)
    called = asyncio.run(_called(api, _parameters(api, parameters or []), attempt, _address(live, twin, speed), law))
    answer(
        as_json,
        fields_to_json(called),
        plain(json.dumps(called.output, indent=2, ensure_ascii=False)) if called.ok else plain(""),
        notes=[f"{called.api}: {called.error or 'success'} after {called.seconds:.2f} s {called.message}".rstrip()],
    )
    if not called.ok:
        raise typer.Exit(INCOMPLETE)


async def _called(
    api: PublicApi, parameters: dict[str, Any], attempt: int, address: Address | None, law: TwinLaw
) -> ApiCall:
    async with reached(address, law) as place, ApiClient(place) as client:
        return await client.call(api, parameters, attempt)


def _address(live: bool, twin: str | None, speed: float) -> Address | None:
    """Return where calls go; None for a twin that has to be started."""
    if live and twin is not None:
        raise InvalidInputError("--live and --twin name two places: expected one of them")
    if twin is None and speed != 1.0:
        raise InvalidInputError("--speed is the speed of a twin that runs already: expected --twin URL as well")
    return Address(twin or "", speed=speed) if live or twin is not None else None


def _parameters(api: PublicApi, texts: list[str]) -> dict[str, Any]:
    """Return parameters as values of their types, from texts such as latitude=52.5."""
    types = {parameter.name: parameter.type for parameter in api.parameters}
    result: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals:
            raise InvalidInputError(f"{text!r:.80} is no parameter: expected NAME=VALUE")
        if name not in types:
            raise unknown_name("parameter", name, types, api.name)
        try:
            number = finite_number
            result[name] = (
                value if types[name] == "string" else json.loads(value, parse_float=number, parse_constant=number)
            )
        except (ValueError, RecursionError):
            raise InvalidInputError(f"parameter {name!r} is {shown(value)}: expected {types[name]}") from None
    return result


@app.command("assess")
@takes(law=TWIN_LAW)
def assess_apis(
    *,
    names: Annotated[list[str] | None, typer.Argument(help="Names of APIs.", show_default="all")] = None,
    calls: Annotated[Count, typer.Option("--calls", help="Calls of each API.")] = 20,
    per_host: Annotated[PerHost, typer.Option("--per-host", help="Calls of one host at a time.")] = 4,
    live: LiveOption = False,
    twin: TwinOption = None,
    speed: SpeedOption = 1.0,
    law: TwinLaw,
    out: Annotated[Path, output_option("--out", help="Folder of calls and figures; the same command resumes it.")],
    as_json: JsonFlag = False,
) -> None:
    """Call each API several times, and say how reliable it is: success, latency, kinds of failure."""
    apis = [find_api(name) for name in dict.fromkeys(names)] if names else public_apis()
    address = _address(live, twin, speed)
    done = 0
    with Progressing("calls", calls * len(apis)) as progress:

        def tell(count: int) -> None:
            nonlocal done
            progress.advance(count - done)
            done = count

        assessment = assess(apis, calls, address=address, law=law, out=out, per_host=per_host, tell=tell)
    fitted = fit_law(out, name="assessed").law
    content = {"description": fitted.description, **fitted.to_mapping()}
    write_file_atomically(out / LAW_FILE, encode_json(content, indent=1) + b"\n")
    answer(
        as_json,
        assessment.to_mapping(),
        _reliability_table(assessment, law if address is None else None),
        _error_table(assessment),
        notes=[f"{count_of(calls * len(apis), 'call')} in {out}; the law fitted to them: {out / LAW_FILE}"],
    )


def _reliability_table(assessment: Assessment, law: TwinLaw | None) -> Any:
    """Return the rows of the APIs, with the true chance of success where the twin's law is known."""
    true = [] if law is None else ["true"]
    columns = ["API", "calls", "success", "95% interval", *true]
    columns += [*(f"p{number} s" for number in PERCENTILES), "selected"]
    rows = [
        [
            row.api,
            row.calls,
            row.rate,
            f"{row.low:.3f} to {row.high:.3f}",
            *([] if law is None else [law.success_of.get(row.api, law.success)]),
            *row.seconds,
            "yes" if row.is_selected else "no",
        ]
        for row in assessment.apis
    ]
    whole = assessment.success
    return Table.of_values(
        f"{len(rows)} APIs: success {whole.value:.3f} [{whole.low:.3f}, {whole.high:.3f}]", columns, rows, digits=3
    )


def _error_table(assessment: Assessment) -> Any:
    failures = sum(assessment.errors.values())
    published = PUBLISHED_CALLS - SUCCESSES
    rows = [
        [
            code,
            assessment.errors.get(code, 0),
            assessment.errors.get(code, 0) / failures if failures else None,
            f"{count} ({count / published:.1%})",
        ]
        for code, count in PUBLISHED_FAILURES.items()
    ]
    return Table.of_values("Failures", ["error", "count", "share", "ResiliBench, table 16"], rows, digits=3)


@app.command("tables")
def print_tables(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Folder that `resilisim evaluate` wrote.")],
    out: Annotated[
        Path | None, output_option("--out", help="Markdown file to write; standard output if left out.", dir_okay=False)
    ] = None,
) -> None:
    """Make tables 5, 14, 15 and 16 of the ResiliBench paper from a run on apis-v1, beside the published figures."""
    text = real_api_tables(directory)
    if out is None:
        sys.stdout.write(fit_to_show(text))
    else:
        write_file_atomically(out, text.encode("utf-8"))
        note(f"wrote {out}")


@app.command("twin")
@takes(law=TWIN_LAW)
def serve_twin(
    *,
    port: Annotated[Port, typer.Option("--port", help="Port on 127.0.0.1; 0 takes a free one.")] = 8750,
    law: TwinLaw,
    speed: Annotated[
        Speed, typer.Option("--speed", help="How many times faster than the real hosts its clock runs.")
    ] = 1.0,
) -> None:
    """Serve the twin: the routes of all APIs behind one address, with made-up answers and with faults."""
    asyncio.run(_serve(Twin(law, port, speed)))


async def _serve(twin: Twin) -> None:
    async with twin:
        note(f"listening: {twin.url}/HOST/PATH, such as {twin.url}/api.ipify.org/; Ctrl-C ends it")
        await twin.serve_forever()
