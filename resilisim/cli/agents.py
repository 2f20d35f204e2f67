"""`resilisim agents`: the LLM agents and what each can be told."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Annotated, Any

import typer

from resilisim.cli.options import JsonFlag
from resilisim.cli.output import console, note, print_json, table


def agents(
    name: Annotated[str | None, typer.Argument(help="An agent, to see its options; all agents if left out.")] = None,
    templates: Annotated[
        Path | None,
        typer.Option("--write-templates", help="Write the agent's prompts into this folder, to be changed there."),
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """List the LLM agents, or the options of one."""
    from resilisim.errors import unknown_name
    from resilisim.policies.registry import LLM_POLICIES

    if name is None:
        rows = [[agent, *_summary(agent)] for agent in LLM_POLICIES]
        if as_json:
            keys = ("name", "summary", "components", "native")
            print_json([dict(zip(keys, row, strict=True)) | {"components": row[2].split(", ")} for row in rows])
            return
        console().print(table("LLM agents", ["name", "what it does", "components", "native calls"], rows))
        note("resilisim agents NAME lists the options of one")
        return
    if name not in LLM_POLICIES:
        raise unknown_name("LLM agent", name, LLM_POLICIES)
    from resilisim.policies.llm.options import describe_options

    if templates is not None:
        _write_templates(name, templates)
        return
    options = describe_options(_class_of(name).options_class)
    if as_json:
        keys = ("name", "default", "takes", "help")
        print_json([dict(zip(keys, option, strict=True)) for option in options])
        return
    shown = [
        [option, "none" if default is None else str(default), takes, text] for option, default, takes, text in options
    ]
    console().print(table(f"Options of {name}", ["option", "default", "takes", "what it is"], shown))
    note(f'given in brackets: --policy "{name}[{options[0][0]}={options[0][1]}]"')


def _write_templates(name: str, folder: Path) -> None:
    from resilisim.errors import InvalidInputError
    from resilisim.policies.llm.templates import packaged_prompts

    texts = packaged_prompts(_class_of(name).__module__)
    folder.mkdir(parents=True, exist_ok=True)
    for stem in texts:
        if (folder / f"{stem}.md").exists():
            raise InvalidInputError(f"{folder / f'{stem}.md'} exists already: name an empty folder")
    for stem, text in texts.items():
        (folder / f"{stem}.md").write_text(text, encoding="utf-8")
    note(f'wrote {len(texts)} prompts; change some, and use them: --policy "{name}[templates={folder}]"')


def _class_of(name: str) -> Any:
    import importlib

    from resilisim.policies.registry import BUILT_IN_POLICIES

    module, _, attribute = BUILT_IN_POLICIES[name].partition(":")
    return getattr(importlib.import_module(module), attribute)


def _summary(name: str) -> tuple[str, str, str]:
    """Return what an agent does, and its components; an agent that lacks a package says so instead."""
    from resilisim.errors import MissingExtraError

    try:
        agent = _class_of(name)
    except MissingExtraError as error:
        return str(error), "", ""
    native = "yes" if agent.uses_native_calls else "no"
    return (inspect.getdoc(agent) or "").partition("\n")[0], ", ".join(agent.components), native
