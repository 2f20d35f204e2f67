"""`resilisim play`: a person takes the agent's place, and sees afterwards what each call cost."""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer
from rich.console import Console

from resilisim.bounds import Seed
from resilisim.cli import options
from resilisim.cli.goal_options import note_unused
from resilisim.cli.output import console, error_console, plain, print_json
from resilisim.cli.runs.episode import points_lost, result_of
from resilisim.envs.conversation import ConversationEnv
from resilisim.envs.settings import GOAL_NAMES, RULE_NAMES, EnvironmentSettings
from resilisim.evaluation.episode.play import play_episode
from resilisim.evaluation.episode.record import EpisodeRecord
from resilisim.evaluation.episode.rejudging import unused_force
from resilisim.policies.base import WAIT_TEXT
from resilisim.tables.table import Table
from resilisim.tasks.benchmark import BENCHMARK_VERSION
from resilisim.tool_library.retrieval import ToolHit

PLAYED = (
    *RULE_NAMES,
    *GOAL_NAMES,
    *options.LAW_OPTIONS,
    "force",
    "planner",
    "prompt_style",
    "search_detail",
    "payload",
    "errors",
    *options.TOOL_SEARCH,
)
SHORTHANDS = {"s": "tool_search", "i": "tool_info", "c": "tool_call"}
FINISH_SHORTHAND = "f"
WAIT_SHORTHAND = "w"  # where the law has a part in which waiting can help
HELP = (
    "s WORDS searches, i NAME asks about a tool, c NAME {JSON} calls it, f (in a world: f ANSWER) says that you have "
    "finished; "
    "any other line is sent as it is. help or ? prints this line again. Ctrl-D gives up."
)
HELP_WITH_WAIT = HELP.replace("any other line", "w waits; any other line")
HELP_WORDS = ("help", "?")


def expand(line: str, answers: bool = False, waits: bool = False) -> str:
    """Return the message that a typed line stands for: a shorthand becomes a tag, anything else stays as it is.

    With `answers` what stands behind f is the answer; with `waits` w lets a turn pass.
    """
    word, _, rest = line.strip().partition(" ")
    if waits and word == WAIT_SHORTHAND and not rest:
        return WAIT_TEXT
    if word == FINISH_SHORTHAND and (answers or not rest):
        return f"<finish>{rest.strip()}</finish>" if rest.strip() else "<finish/>"
    if word not in SHORTHANDS or not rest.strip():
        return line
    tag, rest = SHORTHANDS[word], rest.strip()
    if word != "c":
        return f"<{tag}>{rest}</{tag}>"
    name, _, parameters = rest.partition(" ")
    return f"<{tag}>{name} {parameters.strip()}</{tag}>" if parameters.strip() else f"<{tag}>{name}</{tag}>"


@options.takes(environment=options.OptionGroup(EnvironmentSettings, PLAYED))
def play(
    context: typer.Context,
    *,
    task: Annotated[str, typer.Option(help="instance_id of a task.")],
    prompt: Annotated[str, typer.Option(help=options.PROMPT_HELP + ".")] = "baseline",
    seed: Annotated[Seed, typer.Option(help="The seed fixes all draws of the episode.")] = 0,
    environment: EnvironmentSettings,
    tasks: options.TasksOption = BENCHMARK_VERSION,
    library: options.LibraryOption = None,
    as_json: options.JsonFlag = False,
) -> None:
    """Play a task yourself, and see what each of your calls cost."""
    where = options.scene(context, environment, tasks, None, library)
    environment = where.environment
    retriever = environment.retriever(where.library)

    def search(query: str, count: int) -> Sequence[ToolHit]:
        # The first search loads the embedding model, which takes seconds.
        with error_console().status("searching"):
            return retriever.search(query, count)

    env = ConversationEnv(environment, library=where.library, search=search, render_mode="ansi")
    out = error_console() if as_json else console()
    person = PersonPolicy(out)
    record = play_episode(env, person, where.task(task, tasks), prompt, seed)
    out.rule()
    out.print(plain(str(env.render())))
    if as_json:
        print_json(record)
    else:
        show_costs(record, out)
    note_unused(unused_force(environment.force, [record]))


class PersonPolicy:
    """A policy whose messages are typed in."""

    name = "person"
    privileged = False

    def __init__(self, out: Console) -> None:
        self._out = out
        self._waits = False

    @property
    def _help(self) -> str:
        return HELP_WITH_WAIT if self._waits else HELP

    def reset(self, observation: str, info: Mapping[str, Any]) -> None:
        """Say how to play."""
        self._waits = bool(info.get("offers_wait"))
        self._out.print(plain(self._help, "dim"))

    def act(self, observation: str, info: Mapping[str, Any]) -> str | None:
        """Show the observation and ask for the next message; the end of the input gives up."""
        self._out.rule()
        self._out.print(plain(observation))
        left = info.get("turns_left", 0)
        prompt = f"[{left} turn{'' if left == 1 else 's'} left] > " if left else "[closing message] > "
        while True:
            try:
                line = _ask(prompt)
            except EOFError:
                return None
            if line.strip().lower() in HELP_WORDS:
                self._out.print(plain(self._help, "dim"))
            elif line.strip():
                return expand(line, bool(info.get("answers")), self._waits)


def show_costs(record: EpisodeRecord, out: Console) -> None:
    """Print what each message of an episode cost, and how the lost points add up."""
    rows = []
    for step in record["steps"]:
        message = " ".join([step["kind"], step["tool"] or ""]).strip()
        reason = (step["label"] or "").replace("_", " ")
        worth = (step["value"], step["action_value"], step["regret"], step["luck"], reason)
        rows.append([step["turn"], message, result_of(step), *worth])
    columns = ["turn", "message", "result", "V before", "Q", "regret", "luck", "reason"]
    out.print(Table.of_values("What each message cost", columns, rows, optional=["Q"]))  # V before - regret
    score = record["score"]
    best = f"best possible from the start: {record['optimum']:.4f}{_after_search(record)}\n"
    best = "" if "no_ceiling" in record else best
    summary = (
        f"{score['level']} (ended by {record['ended_by']}, {score['coverage']:.0%} of the required tools succeeded)\n"
        f"{best}{points_lost(record)}"
    )
    out.print(plain(summary))


def _after_search(record: EpisodeRecord) -> str:
    """Return what of that is left where the tools must be found first."""
    after_search, searches = record.get("optimum_after_searches"), record.get("searches_needed")
    if after_search is None or searches is None:
        return ""
    return f"; after the fewest searches that show its tools ({searches}): {after_search:.4f}"


def _ask(prompt: str) -> str:
    """Ask for a line; without a terminal the prompt goes to standard error, so that what is piped on stays whole."""
    if sys.stdin.isatty() and sys.stdout.isatty():
        # Line editing and history, where the platform has them.
        with contextlib.suppress(ImportError):
            importlib.import_module("readline")
        return input(prompt)
    sys.stderr.write(prompt)
    sys.stderr.flush()
    line = sys.stdin.readline()
    sys.stderr.write(line.rstrip("\n") + "\n")
    if not line:
        raise EOFError
    return line.rstrip("\n")
