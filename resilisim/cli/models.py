"""`resilisim models`: whether a language model works, and what it can do."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Annotated

import typer

from resilisim.cli.model_options import BaseUrlOption
from resilisim.cli.options import MAX_SECONDS, JsonFlag, command_group
from resilisim.cli.output import console, note, print_json, table
from resilisim.errors import InfrastructureError

if TYPE_CHECKING:
    from resilisim.chat import ChatModel
    from resilisim.chat.check import ModelReport

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
    from resilisim.chat import ChatModelSettings, RetryPolicy, make_chat_model, model_identity

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
    from resilisim.chat.check import check_model

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
