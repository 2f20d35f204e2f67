"""`resilisim agents`: which agents a language model can play, and whether a model works."""

from __future__ import annotations

import asyncio
import importlib
import inspect
import time
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from resilisim.chat.check import ModelReport, check_model
from resilisim.chat.middleware import ChatModelSettings, RetryPolicy
from resilisim.chat.models import RoleModels
from resilisim.chat.request_options import DEFAULT_ROLE, read_request_options
from resilisim.cli.options import MODEL_PANEL, JsonFlag, OptionGroup, takes
from resilisim.cli.output import answer, command_group, note, say
from resilisim.errors import InfrastructureError, InvalidInputError, MissingExtraError, unknown_name
from resilisim.policies.llm.agent_options import describe_options
from resilisim.policies.llm.templates import packaged_prompts
from resilisim.policies.registry import BUILT_IN_POLICIES, LLM_POLICIES
from resilisim.tables.table import Table

app = command_group()

DOES_NOT_WORK = 2  # here an endpoint that is down is the answer to what was asked
_WORDS = {True: "yes", False: "no", None: "cannot be determined"}


@app.command("list")
def list_agents(as_json: JsonFlag = False) -> None:
    """List the LLM agents: what each does, its components, and whether it uses native calls."""
    rows = [[agent, *_summary(agent)] for agent in LLM_POLICIES]
    keys = ("name", "summary", "components", "native")
    answer(
        as_json,
        [dict(zip(keys, row, strict=True)) | {"components": row[2].split(", ")} for row in rows],
        Table.of_values("LLM agents", ["name", "what it does", "components", "native calls"], rows),
        notes=["resilisim agents show NAME lists the options of one"],
    )


@app.command("show")
def show(
    name: Annotated[str, typer.Argument(help="Name of an agent.")],
    templates: Annotated[
        Path | None,
        typer.Option("--write-templates", help="Write the agent's prompts to this folder, where you can change them."),
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Show the options of an LLM agent."""
    if name not in LLM_POLICIES:
        raise unknown_name("LLM agent", name, LLM_POLICIES)
    if templates is not None:
        _write_templates(name, templates)
        return
    options = describe_options(_class_of(name).options_class)
    keys = ("name", "default", "takes", "help")
    shown = [
        [option, "none" if default is None else str(default), takes, text] for option, default, takes, text in options
    ]
    answer(
        as_json,
        [dict(zip(keys, option, strict=True)) for option in options],
        Table.of_values(f"Options of {name}", ["option", "default", "takes", "what it is"], shown),
        notes=[f'given in brackets: --policy "{name}[{options[0][0]}={options[0][1]}]"'],
    )


@app.command("check")
@takes(
    reach=OptionGroup(
        ChatModelSettings,
        ["base_url", "timeout_seconds", "local_device"],
        changed={
            "base_url": {"group": MODEL_PANEL},
            "local_device": {"group": MODEL_PANEL},
            "timeout_seconds": {"default": 20.0, "help": "Seconds that each check may take."},
        },
    )
)
def check(
    *,
    model: Annotated[
        str,
        typer.Option(help="openai:NAME, openai:NAME@URL, local, local:PATH (a GGUF file or a transformers folder)."),
    ],
    model_option: Annotated[
        list[str] | None,
        typer.Option(
            help="As in 'resilisim evaluate'; repeatable.", metavar="[ROLE.]KEY=VALUE", rich_help_panel=MODEL_PANEL
        ),
    ] = None,
    reach: ChatModelSettings,
    as_json: JsonFlag = False,
) -> None:
    """Ask a model a few small questions: does it answer, stop, call tools, write JSON, repeat itself, how fast?"""
    timeout = reach.timeout_seconds
    settings = replace(reach, retry=RetryPolicy(retries=1, longest_demand=timeout))
    models = RoleModels.parse([model], settings, options=read_request_options(model_option or ()))
    began = time.perf_counter()
    try:
        report = asyncio.run(_checked(models, timeout))
    except InfrastructureError as error:
        note(f"resilisim: {' '.join(str(error).split())}")
        raise typer.Exit(DOES_NOT_WORK) from None
    seconds = time.perf_counter() - began
    identity = models.identities()[DEFAULT_ROLE]
    rows = [[check.name, _WORDS[check.passed], check.detail] for check in report.checks]
    speed = "" if report.tokens_per_second is None else f", {report.tokens_per_second:.0f} tokens/s"
    answering = f"; {report.answering!r} answers" if report.answering else ""
    answer(
        as_json,
        {"identity": identity, **report.to_mapping(), "seconds": seconds},
        Table.of_values(identity, ["check", "", "seen"], rows),
        notes=[
            f"an answer of a line takes {report.latency_seconds:.2f} s{speed}{answering}; checked in {seconds:.1f} s"
        ],
    )
    if not as_json:
        say(f"protocols: {', '.join(report.protocols)}")


async def _checked(models: RoleModels, timeout: float) -> ModelReport:
    # All fields at once: what one component is asked with, its endpoint has to take.
    fields = {name: value for role in models.options.values() for name, value in role.items()}
    try:
        return await check_model(models.default, seconds_per_check=timeout, fields=fields)
    finally:
        await models.aclose()


def _write_templates(name: str, folder: Path) -> None:
    texts = packaged_prompts(_class_of(name).__module__)
    folder.mkdir(parents=True, exist_ok=True)
    for stem in texts:
        if (folder / f"{stem}.md").exists():
            raise InvalidInputError(f"{folder / f'{stem}.md'} exists already: name an empty folder")
    for stem, text in texts.items():
        (folder / f"{stem}.md").write_text(text, encoding="utf-8")
    note(f'wrote {len(texts)} prompts; change some, and use them: --policy "{name}[templates={folder}]"')


def _class_of(name: str) -> Any:
    module, _, attribute = BUILT_IN_POLICIES[name].partition(":")
    return getattr(importlib.import_module(module), attribute)


def _summary(name: str) -> tuple[str, str, str]:
    """Return what an agent does, and its components; an agent that lacks a package says so instead."""
    try:
        agent = _class_of(name)
    except MissingExtraError as error:
        return str(error), "", ""
    native = "yes" if agent.uses_native_calls else "no"
    return (inspect.getdoc(agent) or "").partition("\n")[0], ", ".join(agent.components), native
