"""`resilisim law`: look at failure models, and check law files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from resilisim.cli import options
from resilisim.cli.help import command_group
from resilisim.cli.output import answer, note, plain, print_json, table
from resilisim.simulator.failure_model import PARTS, Law, law_schema, load_law, shipped_laws
from resilisim.simulator.problem import build_problem

app = command_group()

LawArgument = Annotated[str, typer.Argument(metavar="LAW", help="Name of a law that ships, or the path of a law file.")]


@app.command("list")
def list_laws(as_json: options.JsonFlag = False) -> None:
    """List the failure models that ship, with their parts."""
    laws = [load_law(name) for name in shipped_laws()]
    rows = [[law.name, ", ".join(law.parts) or "none", law.description] for law in laws]
    values = [{"name": law.name, "parts": list(law.parts), "description": law.description} for law in laws]
    answer(as_json, values, table(f"{len(laws)} failure models", ["name", "parts", "description"], rows))


@app.command("show")
def show(law: LawArgument, as_json: options.JsonFlag = False) -> None:
    """Show a failure model in full: its constants, its parts with what they leave to defaults, its hash."""
    found = load_law(law)
    values = {"name": found.name, "description": found.description, **_content(found), "hash": found.content_hash}
    answer(
        as_json,
        values,
        plain(found.name, "bold") + plain(f"  {found.content_hash[:12]}"),
        plain(found.description),
        table("Constants and parts", ["", "", "value"], [row for name in values for row in _rows(name, values[name])]),
        notes=_facts(found),
    )


@app.command("schema")
def schema() -> None:
    """Print the JSON Schema of law files, for editors that check YAML and JSON as it is written."""
    print_json(law_schema())


@app.command("check")
def check(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A law file, YAML or JSON.")],
    library: options.LibraryOption = None,
    as_json: options.JsonFlag = False,
) -> None:
    """Check a law file: what is wrong with it is one line, with the place, the value, and what was expected."""
    law, chosen = load_law(file), options.load(library)
    build_problem(chosen, chosen.names[:1], law)  # refuses tools that the law names and the library lacks
    values = {"name": law.name, "parts": list(law.parts), "hash": law.content_hash}
    note(f"{file} is a law: {', '.join(law.parts) or 'no parts'}; hash {law.content_hash[:12]}")
    if as_json:
        print_json(values)


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
    if isinstance(value, dict):
        return ", ".join(f"{name}: {_written(inner)}" for name, inner in value.items())
    return f"{value:g}" if isinstance(value, float) else str(value)


def _facts(law: Law) -> list[str]:
    told = []
    if law.waiting_can_help:
        told.append("agents can wait: <wait/>, or the function wait")
    if law.has_hidden_state:
        told.append("some of its state cannot be seen, so there are two ceilings: informed and observing")
    absent = [name for name in PARTS if name not in law.parts]
    return [*told, f"parts that it does not have: {', '.join(absent) or 'none'}"]
