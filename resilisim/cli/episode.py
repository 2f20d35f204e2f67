"""`resilisim episode`: one episode of a run, read as a transcript or played again."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from resilisim.cli.episode_view import print_failure, print_transcript
from resilisim.cli.model_options import (
    BaseUrlOption,
    ModelsOption,
    PricesOption,
    RetriesOption,
    TimeoutOption,
    model_settings,
)
from resilisim.cli.options import JsonFlag, LibraryOption, command_group, load
from resilisim.cli.output import console, note, print_json
from resilisim.cli.tasks import TasksOption, find_task

if TYPE_CHECKING:
    from resilisim.evaluation.run.models import ModelSettings

app = command_group("Read one episode of a run, or play it again.")

RunArgument = Annotated[Path, typer.Argument(metavar="RUN", help="Folder of the results.")]
IdArgument = Annotated[
    str, typer.Argument(metavar="ID", help="Number of the episode, or its task's id; TASK:SEED:POLICY:PROMPT.")
]


@app.command("show")
def show(
    run: RunArgument,
    episode: IdArgument,
    full: Annotated[
        bool, typer.Option("--full", help="Every message whole, prompts included; long ones are cut otherwise.")
    ] = False,
    as_json: JsonFlag = False,
) -> None:
    """Show an episode: messages, calls, plan, memory; value, regret and luck beside each turn."""
    from resilisim.evaluation.episode.record import is_failure
    from resilisim.evaluation.episode.texts import opened_if_whole
    from resilisim.evaluation.run.replay import find_episode, finished

    found = find_episode(run, episode)
    record = finished(found)
    if as_json:
        print_json(found if record is None else opened_if_whole(record)[0])
    elif record is not None:
        print_transcript(record, console(), full)
    elif is_failure(found):
        print_failure(found, console())


@app.command("replay")
def replay(
    run: RunArgument,
    episode: IdArgument,
    live: Annotated[
        bool, typer.Option("--live", help="Ask the models of the run anew instead of taking the recorded replies.")
    ] = False,
    model: ModelsOption = None,
    base_url: BaseUrlOption = None,
    retries: RetriesOption = 4,
    timeout: TimeoutOption = 600.0,
    prices: PricesOption = None,
    tasks: TasksOption = "benchmark-v1",
    library: LibraryOption = None,
    full: Annotated[bool, typer.Option("--full", help="Every message whole, prompts included.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Play an episode again, alone; nothing is written. From the recorded replies it must come to the same end."""
    from resilisim.evaluation.run.replay import find_episode, finished, first_difference, replay_episode

    found = find_episode(run, episode)
    record = finished(found)
    chosen = load(library)
    settings: ModelSettings | None = None
    if live or model or record is None:
        named = model or _models_of(run, found["policy"])
        settings = model_settings(
            named, base_url or _base_url_of(run, found["policy"]), 1, retries, timeout, None, None, None, prices, 1
        )
    priced = None if prices is None else str(prices)
    again = replay_episode(run, found, lambda task: find_task(task, tasks, chosen), chosen, settings, priced)
    if as_json:
        print_json(again)
    else:
        print_transcript(again, console(), full)
    if record is None:
        note("the episode came to its end; nothing was written, the run's own command finishes it")
    elif settings is not None:
        note(f"recorded: {record['score']['level']}; now: {again['score']['level']}")
    else:
        difference = first_difference(record, again)
        note("the same as recorded, to the last digit" if difference is None else f"not as recorded: {difference}")
        if difference is not None:
            raise typer.Exit(1)


def _base_url_of(run: Path, policy: str) -> str | None:
    """Return where the models of a policy of a run were asked, if that was an endpoint."""
    places = (identity.partition(" at ")[2] for identity in _identities(run, policy).values())
    return next((place for place in places if place.startswith(("http://", "https://"))), None)


def _models_of(run: Path, policy: str) -> list[str]:
    """Return the models that a policy of a run was played with, as they are spelt on the command line."""
    return [
        identity.partition(" at ")[0] if role == "default" else f"{role}={identity.partition(' at ')[0]}"
        for role, identity in _identities(run, policy).items()
    ]


def _identities(run: Path, policy: str) -> Mapping[str, str]:
    from resilisim.evaluation.run.store import read_manifest

    arguments = read_manifest(run)["arguments"]
    models: Mapping[str, str] = arguments.get("models_of_policies", {}).get(policy, arguments.get("models", {}))
    return models
