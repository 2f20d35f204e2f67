"""What `tasks enhance` and `tools enhance` have in common: who is asked and how, and what a run would ask."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Final

import typer

from resilisim.chat.middleware import ChatModelSettings, ResponseCache
from resilisim.chat.openai import endpoint_url
from resilisim.cli import options
from resilisim.cli.output import answer
from resilisim.errors import InvalidInputError
from resilisim.redaction import SHORTEST_SECRET
from resilisim.run_folder import default_cache_dir
from resilisim.tables.table import Table
from resilisim.tasks.enhancement.enhancer import CallForecast, EnhancementOptions

REACH: Final = options.OptionGroup(
    ChatModelSettings,
    ["base_url", "max_concurrency", "retries", "timeout_seconds"],
    options.MODEL_PANEL,
    {"timeout_seconds": {"default": 60.0}},
)
WANTED: Final = options.OptionGroup(
    EnhancementOptions, panel=options.MODEL_PANEL, changed={"re_asks": {"group": options.OPTIONS_PANEL}}
)
ModelOption = Annotated[
    str,
    typer.Option(
        help="Model to ask, such as openai:gpt-4o-mini; the key is read from OPENAI_API_KEY.",
        rich_help_panel=options.MODEL_PANEL,
    ),
]
_KEY_LIKE = re.compile(r"\b(?:sk|pk|gsk|key)-", re.IGNORECASE)


def check_arguments(out: Path | None, dry_run: bool, base_url: str | None) -> None:
    """Refuse to write nowhere, and what is no address of an endpoint: repeated, unless it may be a misplaced key."""
    if out is None and not dry_run:
        raise InvalidInputError("option --out is missing: expected the file to write (only --dry-run needs none)")
    if base_url is None:
        return
    try:
        endpoint_url(base_url)
    except InvalidInputError as error:
        looks_like_address = len(base_url) < SHORTEST_SECRET or any(mark in base_url for mark in ".:/")
        if not looks_like_address or any(mark in base_url for mark in "@?#") or _KEY_LIKE.search(base_url):
            raise
        reason = str(error).removeprefix("base URL: ")
        raise InvalidInputError(f"option --base-url {base_url!r:.120}: {reason}") from None


def answers_in(cache: Path | None) -> ResponseCache:
    """Return the answers that models gave before, kept in a folder, or where all caches are."""
    return ResponseCache(default_cache_dir() / "chat" if cache is None else cache)


def tell_forecast(what: str, forecast: CallForecast, identity: str, finished: int, as_json: bool) -> None:
    """Print what would be asked about `what`, "tasks" or "tools", of which some are finished."""
    tokens = (forecast.most_completion_tokens, forecast.most_completion_tokens_with_re_asks)
    rows = [
        ["calls", forecast.calls, forecast.most_calls],
        ["prompt tokens (estimate)", forecast.prompt_tokens_estimate, forecast.most_prompt_tokens_estimate],
        ["completion tokens (at most)", *tokens],
    ]
    there = f"{finished} {what} are already in the file, {forecast.cached} answers are in the cache"
    counts = forecast.to_mapping()
    answer(
        as_json,
        {"model": identity, "already_there": finished, what: counts.pop("questions"), **counts},
        Table.of_values(
            f"{forecast.questions} {what}, nothing was asked", ["", "each asked once", "each asked again"], rows
        ),
        notes=[f"model: {identity}", there],
    )
