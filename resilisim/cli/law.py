"""`resilisim law`: look at failure models, check law files, and fit one to recorded calls."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from resilisim.cli import options
from resilisim.cli.options import output_option
from resilisim.cli.output import answer, command_group, plain, print_json, say
from resilisim.errors import InvalidInputError
from resilisim.injection.law_fit import PERCENTILES, Failures, fit_law
from resilisim.run_folder import write_file_atomically
from resilisim.simulator.law import LAW_SUFFIXES, PARTS, Law, law_schema, load_law, shipped_laws
from resilisim.simulator.problem import check_law_names
from resilisim.statistics.product_rates import Bounded
from resilisim.tables.table import Table
from resilisim.worlds import load_world

app = command_group()

LawArgument = Annotated[str, typer.Argument(metavar="LAW", help="Name of a law that ships, or the path of a law file.")]


@app.command("list")
def list_laws(as_json: options.JsonFlag = False) -> None:
    """List the failure models that ship, with their parts."""
    laws = [load_law(name) for name in shipped_laws()]
    rows = [[law.name, ", ".join(law.parts) or "none", law.description] for law in laws]
    values = [{"name": law.name, "parts": list(law.parts), "description": law.description} for law in laws]
    answer(as_json, values, Table.of_values(f"{len(laws)} failure models", ["name", "parts", "description"], rows))


@app.command("show")
def show(law: LawArgument, as_json: options.JsonFlag = False) -> None:
    """Show a failure model in full: its constants, its parts with their defaults, its hash."""
    failure_model = load_law(law)
    values = {
        "name": failure_model.name,
        "description": failure_model.description,
        **_content(failure_model),
        "hash": failure_model.content_hash,
    }
    answer(
        as_json,
        values,
        plain(failure_model.name, "bold") + plain(f"  {failure_model.content_hash[:12]}"),
        plain(failure_model.description),
        Table.of_values(
            "Constants and parts", ["", "", "value"], [row for name in values for row in _rows(name, values[name])]
        ),
        notes=_facts(failure_model),
    )


@app.command("schema")
def schema() -> None:
    """Print the JSON Schema of law files, for editors that check YAML and JSON as it is written."""
    print_json(law_schema())


@app.command("check")
def check(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A law file, YAML or JSON.")],
    library: options.LibraryOption = None,
    world: Annotated[
        str | None, typer.Option("--tasks", metavar="WORLD", help="The law is for the tools of a world (apis-v1).")
    ] = None,
    own_tools: Annotated[
        bool,
        typer.Option("--own-tools", help="The law is for your own functions or server: any tool name is accepted."),
    ] = False,
    as_json: options.JsonFlag = False,
) -> None:
    """Check a law file; an error is one line, with the place, the value, and what was expected."""
    if own_tools and (library is not None or world is not None):
        raise InvalidInputError("--own-tools says that no library is known: expected it without --library and --tasks")
    law = load_law(file)
    if not own_tools:
        try:
            check_law_names(options.load(library) if world is None else load_world(world).library, law)
        except InvalidInputError as error:
            if library is None and world is None:
                raise InvalidInputError(f"{error} (the default library; --library FILE or --own-tools)") from None
            raise
    values = {"name": law.name, "parts": list(law.parts), "hash": law.content_hash}
    verdict = f"{file} is a law: {', '.join(law.parts) or 'no parts'}; hash {law.content_hash[:12]}"
    if as_json:
        print_json(values)
    else:
        say(verdict)


@app.command("fit")
def fit(
    records: Annotated[
        list[Path],
        typer.Argument(
            metavar="RECORDS...",
            help="Folders that inject, mcp proxy, apis assess or evaluate wrote, or their calls.jsonl.",
        ),
    ],
    failures: Annotated[
        Failures,
        typer.Option(
            "--failures",
            help="Which failures count: all that callers met, the tools' own (real), or those that a law brought "
            "(injected).",
        ),
    ] = "all",
    library: options.LibraryOption = None,
    latency: Annotated[bool, typer.Option("--latency", help="Add the durations of calls to the law.")] = False,
    name: Annotated[
        str | None, typer.Option("--name", help="Name of the law.", show_default="that of the file")
    ] = None,
    out: Annotated[
        Path | None, output_option("--out", help="Law file to write: YAML or JSON, by its extension.", dir_okay=False)
    ] = None,
    as_json: options.JsonFlag = False,
) -> None:
    """Fit a law to recorded calls, with intervals, and say what the calls cannot tell."""
    if out is not None and out.suffix not in LAW_SUFFIXES:
        raise InvalidInputError(f"--out {str(out)!r:.100}: expected a name that ends in {', '.join(LAW_SUFFIXES)}")
    own_library = None if library is None else options.load(library)
    called = name or ("fitted" if out is None else out.stem)
    fitted = fit_law(records, failures=failures, library=own_library, latency=latency, name=called)
    if out is not None:
        content = fitted.to_mapping()["law"]
        text = fitted.to_yaml() if out.suffix != ".json" else json.dumps(content, indent=1, ensure_ascii=False) + "\n"
        write_file_atomically(out, text.encode())
    rows = [
        [
            row.tool,
            row.calls,
            row.successes,
            row.base.value,
            _interval(row.base),
            _written(dict(row.errors)),
            *row.seconds,
        ]
        for row in fitted.tools
    ]
    width = max(map(len, rows))
    columns = [
        "tool",
        "calls",
        "ok",
        "base",
        "95% interval",
        "failures",
        *(f"p{percentile} s" for percentile in PERCENTILES),
    ]
    factors = [[each, factor.value, _interval(factor)] for each, factor in fitted.factors.items()]
    answer(
        as_json,
        fitted.to_mapping(),
        Table.of_values(
            fitted.law.description, columns[:width], [row + [None] * (width - len(row)) for row in rows], digits=3
        ),
        *([Table.of_values("Factors", ["factor", "value", "95% interval"], factors, digits=3)] if factors else []),
        notes=[*fitted.untold, *([] if out is None else [f"wrote {out}"])],
    )


def _interval(bounded: Bounded) -> str:
    return f"{bounded.low:.3f} to {bounded.high:.3f}"


def _content(law: Law) -> dict[str, Any]:
    return {name: value for name, value in law.to_mapping().items() if name not in ("name", "hash")}


def _rows(name: str, value: Any) -> list[list[str]]:
    if name in ("name", "description", "hash"):
        return []
    if not isinstance(value, dict):
        return [[name, "", _written(value)]]
    return [[name if place == 0 else "", key, _written(inner)] for place, (key, inner) in enumerate(value.items())]


def _written(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(_written, value))
    if isinstance(value, Mapping):
        return ", ".join(f"{name}: {_written(inner)}" for name, inner in value.items())
    return f"{value:g}" if isinstance(value, float) else str(value)


def _facts(law: Law) -> list[str]:
    facts = []
    if law.waiting_can_help:
        facts.append("agents can wait: <wait/>, or the function wait")
    if law.has_hidden_state:
        facts.append("some of its state cannot be seen, so there are two ceilings: informed and observing")
    absent = [name for name in PARTS if name not in law.parts]
    return [*facts, f"parts that it does not have: {', '.join(absent) or 'none'}"]
