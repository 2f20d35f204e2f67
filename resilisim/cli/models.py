"""`resilisim models` and `resilisim agents`: whether a language model works, and which agents it can play."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Annotated
import typer
from resilisim.cli.model_options import BaseUrlOption
from resilisim.cli.options import MAX_SECONDS, JsonFlag, command_group
from resilisim.cli.output import console, note, print_json, table
from resilisim.errors import InfrastructureError
from resilisim.chat import ChatModel
from resilisim.chat.check import ModelReport
from resilisim.chat import ChatModelSettings, RetryPolicy, make_chat_model, model_identity
from resilisim.chat.check import check_model
import inspect
from pathlib import Path
from typing import Annotated, Any
from resilisim.cli.options import JsonFlag
from resilisim.errors import unknown_name
from resilisim.policies.registry import LLM_POLICIES
from resilisim.policies.llm.options import describe_options
from resilisim.errors import InvalidInputError
from resilisim.policies.llm.templates import packaged_prompts
import importlib
from resilisim.policies.registry import BUILT_IN_POLICIES
from resilisim.errors import MissingExtraError


app = command_group("Language models that agents can use.")

DOES_NOT_WORK = 2  # here an endpoint that is down is the answer to what was asked
_WORDS = {True: "yes", False: "no", None: "cannot be told"}


@app.command("check")
def check(
    model: Annotated[
        str,
        typer.Option("--model", help="openai:NAME, local, local:PATH (a GGUF file or a transformers folder)."),
    ],
    base_url: BaseUrlOption = None,
    timeout: Annotated[
        float, typer.Option("--timeout", help="Seconds that each check may take.", min=0.01, max=MAX_SECONDS)
    ] = 20.0,
    as_json: JsonFlag = False,
) -> None:
    """Ask a model a few small questions: does it answer, stop, call tools, write JSON, repeat itself, how fast?"""
    settings = ChatModelSettings(
        base_url=base_url,
        timeout_seconds=timeout,
        retry=RetryPolicy(retries=1, longest_demand=timeout),
    )
    began = time.perf_counter()
    try:
        report = asyncio.run(_checked(make_chat_model(model, settings), timeout))
    except InfrastructureError as error:
        note(f"resilisim: {' '.join(str(error).split())}")
        raise typer.Exit(DOES_NOT_WORK) from None
    seconds = time.perf_counter() - began
    identity = model_identity(model, settings)
    if as_json:
        print_json({"identity": identity, **report.to_mapping(), "seconds": seconds})
        return
    _show(report, identity, seconds)


async def _checked(model: ChatModel, timeout: float) -> ModelReport:
    try:
        return await check_model(model, seconds_per_check=timeout)
    finally:
        await model.aclose()


def _show(report: ModelReport, identity: str, seconds: float) -> None:
    rows = [[check.name, _WORDS[check.passed], check.detail] for check in report.checks]
    console().print(table(identity, ["check", "", "seen"], rows))
    speed = "" if report.tokens_per_second is None else f", {report.tokens_per_second:.0f} tokens/s"
    answering = f"; {report.answering!r} answers" if report.answering else ""
    note(f"an answer of a line takes {report.latency_seconds:.2f} s{speed}{answering}; checked in {seconds:.1f} s")
    console().print(f"protocols: {', '.join(report.protocols)}")


def agents(
    name: Annotated[str | None, typer.Argument(help="An agent, to see its options; all agents if left out.")] = None,
    templates: Annotated[
        Path | None,
        typer.Option("--write-templates", help="Write the agent's prompts into this folder, to be changed there."),
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """List the LLM agents, or the options of one."""
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
