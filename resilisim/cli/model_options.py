"""Options about language models that several commands share, and what they turn into."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from resilisim.cli.options import MAX_CONCURRENCY, MAX_SECONDS
from resilisim.errors import MAX_COUNT

if TYPE_CHECKING:
    from resilisim.evaluation.run.models import ModelSettings

MODEL_PANEL = "Language model"

ModelsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--model",
        help="Who answers LLM agents: openai:NAME, local, local:PATH, scripted:FILE; again for more, each agent "
        "plays with each; ROLE=... for the model of one component (extractor=openai:small).",
        rich_help_panel=MODEL_PANEL,
    ),
]
BaseUrlOption = Annotated[
    str | None,
    typer.Option(
        "--base-url",
        help="Address of an OpenAI-compatible endpoint; OPENAI_BASE_URL, else OpenAI's, if left out. The key is taken "
        "from OPENAI_API_KEY.",
        rich_help_panel=MODEL_PANEL,
    ),
]
ConcurrencyOption = Annotated[
    int,
    typer.Option(
        "--concurrency", help="Episodes of LLM agents at once.", min=1, max=MAX_CONCURRENCY, rich_help_panel=MODEL_PANEL
    ),
]
RetriesOption = Annotated[
    int,
    typer.Option(
        "--retries", help="How often a failed request is sent again.", min=0, max=MAX_COUNT, rich_help_panel=MODEL_PANEL
    ),
]
TimeoutOption = Annotated[
    float,
    typer.Option("--timeout", help="Seconds for one request.", min=0.01, max=MAX_SECONDS, rich_help_panel=MODEL_PANEL),
]
RequestsPerMinuteOption = Annotated[
    float | None,
    typer.Option("--requests-per-minute", help="Most requests a minute.", min=0.01, rich_help_panel=MODEL_PANEL),
]
TokensPerMinuteOption = Annotated[
    float | None,
    typer.Option("--tokens-per-minute", help="Most tokens a minute.", min=1.0, rich_help_panel=MODEL_PANEL),
]
CacheOption = Annotated[
    Path | None,
    typer.Option(
        "--cache", help="Folder in which replies are kept from one run to the next.", rich_help_panel=MODEL_PANEL
    ),
]
PricesOption = Annotated[
    Path | None,
    typer.Option(
        "--prices",
        help='JSON file with prices in dollars per million tokens: {"openai:NAME": {"prompt": 1, "completion": 4}}.',
        dir_okay=False,
        rich_help_panel=MODEL_PANEL,
    ),
]
LocalThreadsOption = Annotated[
    int | None,
    typer.Option(
        "--local-threads",
        help="Threads of a model that runs here; the processors, at most 4, if left out.",
        min=1,
        max=MAX_COUNT,
        rich_help_panel=MODEL_PANEL,
    ),
]
ReusePromptsOption = Annotated[
    bool,
    typer.Option(
        "--local-reuse-prompts",
        help="Let a model that runs here keep what it has read: many times faster, and answers depend, by rounding, on "
        "what was asked before.",
        rich_help_panel=MODEL_PANEL,
    ),
]
GiveUpOption = Annotated[
    int,
    typer.Option(
        "--give-up-after",
        help="Episodes in a row that break for want of an answer, after which the run stops.",
        min=1,
        max=MAX_COUNT,
        rich_help_panel=MODEL_PANEL,
    ),
]


def model_settings(
    models: list[str] | None,
    base_url: str | None,
    concurrency: int,
    retries: int,
    timeout: float,
    requests_per_minute: float | None,
    tokens_per_minute: float | None,
    cache: Path | None,
    prices: Path | None,
    give_up_after: int,
    local_threads: int | None = None,
    local_reuse_prompts: bool = False,
) -> ModelSettings:
    """Return what the options say about language models."""
    from resilisim.chat import ChatModelSettings, RetryPolicy
    from resilisim.evaluation.run.models import ModelSettings

    chat = ChatModelSettings(
        base_url=base_url,
        timeout_seconds=timeout,
        max_concurrency=concurrency,
        retry=RetryPolicy(retries=retries),
        requests_per_minute=requests_per_minute,
        tokens_per_minute=tokens_per_minute,
        local_threads=local_threads,
        local_reuse_prompts=local_reuse_prompts,
    )
    return ModelSettings(
        models=tuple(models or ()),
        chat=chat,
        concurrency=concurrency,
        cache=None if cache is None else str(cache),
        prices=None if prices is None else str(prices),
        give_up_after=give_up_after,
    )
