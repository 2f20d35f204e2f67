"""`resilisim runs shrink`, `adversary` and `matrix`: an episode of a run is played again with other failures."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from resilisim.bounds import Count
from resilisim.cli import options
from resilisim.cli.output import answer, say
from resilisim.cli.runs.episode import IdArgument, RunArgument, models_asked_again
from resilisim.errors import InvalidInputError
from resilisim.evaluation.run.contestants import ModelSettings
from resilisim.evaluation.run.replay import find_episode
from resilisim.evaluation.run.store import read_records
from resilisim.exploration import Case
from resilisim.exploration.failures.adversary import AdversaryLimits, Attack
from resilisim.exploration.failures.pattern import Pattern
from resilisim.exploration.failures.shrinking import Shrunk
from resilisim.tasks.benchmark import BENCHMARK_VERSION

_MODELS = options.OptionGroup(
    ModelSettings,
    ["models", "base_url", "retries", "timeout_seconds", "cache", "prices"],
    options.MODEL_PANEL,
)
_Live = Annotated[
    bool, typer.Option("--live", help="Ask the models of the run again, which an LLM agent needs.", show_default=False)
]
_LostArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="[ID]",
        help="Number of the episode, or its task's id; TASK:SEED:POLICY:PROMPT. If left out, the first lost one.",
    ),
]
PLAY_AGAIN = "Play it again, on the command line or in Python:"
_Plays = Annotated[Count, typer.Option("--plays", help="Maximum number of episodes to play.")]


@options.takes(models=_MODELS)
def shrink(
    *,
    run: RunArgument,
    episode: _LostArgument = None,
    plays: _Plays = 1000,
    live: _Live = False,
    models: ModelSettings,
    tasks: options.TasksOption = BENCHMARK_VERSION,
    library: options.LibraryOption = None,
    as_json: options.JsonFlag = False,
) -> None:
    """Find the fewest failures that lose an episode, and the command that plays it with just these.

    Failed calls are turned into successes, all at once, in groups, and one after the other; everything else stays as
    drawn.
    """
    if episode is None:
        episode = next((str(record["index"]) for record in read_records(run) if not record["outcome"]), None)
    if episode is None:
        raise InvalidInputError(f"{run} has no lost episode: expected one to shrink")
    tell_shrunk(_case(run, episode, live, models, tasks, library).shrink(plays=plays), as_json)


def tell_shrunk(found: Shrunk, as_json: bool, again: str = PLAY_AGAIN) -> None:
    """Print the fewest failures that lose an episode, and under the line `again` what reproduces them."""
    if as_json:
        answer(True, found.to_mapping())
        return
    notes = [] if found.is_smallest else [f"stopped after {found.plays:,} plays: more --plays may leave fewer failures"]
    say(found.told())
    _answer_pattern(found.pattern, notes, again)


@options.takes(models=_MODELS, limits=options.OptionGroup(AdversaryLimits))
def adversary(
    *,
    run: RunArgument,
    episode: IdArgument,
    limits: AdversaryLimits,
    live: _Live = False,
    models: ModelSettings,
    tasks: options.TasksOption = BENCHMARK_VERSION,
    library: options.LibraryOption = None,
    as_json: options.JsonFlag = False,
) -> None:
    """Find the fewest failures with which an agent loses although it could still have succeeded.

    The agent, the task and the seed are those of an episode. First nothing fails, then each call alone, then pairs, and
    so on; of equally many failures, the likeliest come first.
    """
    case = _case(run, episode, live, models, tasks, library)
    tell_attack(case.adversary(above=limits.above, plays=limits.plays), as_json)


def tell_attack(found: Attack, as_json: bool, again: str = PLAY_AGAIN) -> None:
    """Print the fewest failures with which an agent loses needlessly, and what reproduces them."""
    if as_json:
        answer(True, found.to_mapping())
        return
    say(found.told())
    if found.pattern is not None:
        _answer_pattern(found.pattern, [], again)


@options.takes(models=_MODELS)
def matrix(
    *,
    run: RunArgument,
    episode: IdArgument,
    live: _Live = False,
    models: ModelSettings,
    tasks: options.TasksOption = BENCHMARK_VERSION,
    library: options.LibraryOption = None,
    as_json: options.JsonFlag = False,
) -> None:
    """Try one fault of each kind at each call of an agent: is the episode lost, and what does it cost?

    The agent, the task and the seed are those of an episode. All other calls succeed. The weights of the rows add up to
    how often there is exactly one fault.
    """
    found = _case(run, episode, live, models, tasks, library).matrix()
    answer(as_json, found.to_mapping(), found.table())


def _answer_pattern(pattern: Pattern, notes: list[str], again: str) -> None:
    """Print failures, and what reproduces them."""
    if pattern.failures:
        answer(False, None, pattern.table(), notes=notes)
    say(again, *pattern.reproduce)


def _case(run: Path, episode: str, live: bool, models: ModelSettings, tasks: str, library: Path | None) -> Case:
    tool_library = options.load(library)
    policy = find_episode(run, episode)["policy"]
    asked = models_asked_again(run, policy, models) if live or models.models else None
    said = ["--tasks", tasks] if tasks != BENCHMARK_VERSION else []
    said += ["--library", str(library)] if library is not None else []
    said += ["--live"] if live else []
    said += [word for model in models.models for word in ("--model", model)]
    return Case.of_run(
        run,
        episode,
        find_task=lambda task: options.find_task(task, tasks, tool_library),
        library=tool_library,
        model=asked,
        options=said,
    )
