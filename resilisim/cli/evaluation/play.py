"""`resilisim play`: a person takes the agent's place, and sees afterwards what each call cost."""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any
import typer
from resilisim.cli.options import PROMPT_HELP, BaseOption, EmbeddingModelOption, FailedOption, FailuresOption, HistoryOption, JsonFlag, LibraryOption, LoopOption, NotExecutedOption, PayloadOption, PlannerOption, PromptStyleOption, SearchDetailOption, TurnsOption, load, make_retriever
from resilisim.cli.output import console, error_console, plain, print_json, table
from resilisim.cli.tasks import TasksOption, find_task
from resilisim.seeding import MAX_SEED
from collections.abc import Mapping
from rich.console import Console
from resilisim.evaluation.episode.record import EpisodeRecord
from resilisim.tool_library.retrieval import ToolHit
from resilisim.envs.conversation import ConversationEnv
from resilisim.evaluation.episode.play import play_episode
from resilisim.seeding import EVALUATION_SALT


SHORTHANDS = {"s": "tool_search", "i": "tool_info", "c": "tool_call"}
FINISH_SHORTHAND = "f"
HELP = (
    "s WORDS searches, i NAME asks about a tool, c NAME {JSON} calls it, f says that you have finished; "
    "any other line goes as it stands. help or ? repeats this line. Ctrl-D gives up."
)
HELP_WORDS = ("help", "?")


def expand(line: str) -> str:
    """Return the message that a typed line stands for: a shorthand becomes a tag, anything else stays as it is."""
    word, _, rest = line.strip().partition(" ")
    if word == FINISH_SHORTHAND and not rest:
        return "<finish/>"
    if word not in SHORTHANDS or not rest.strip():
        return line
    tag, rest = SHORTHANDS[word], rest.strip()
    if word != "c":
        return f"<{tag}>{rest}</{tag}>"
    name, _, parameters = rest.partition(" ")
    return f"<{tag}>{name} {parameters.strip()}</{tag}>" if parameters.strip() else f"<{tag}>{name}</{tag}>"


def play(
    task: Annotated[str, typer.Option("--task", help="instance_id of a task.")],
    prompt: Annotated[str, typer.Option("--prompt", help=PROMPT_HELP + ".")] = "baseline",
    seed: Annotated[
        int, typer.Option("--seed", help="The seed fixes all luck of the episode.", min=0, max=MAX_SEED)
    ] = 0,
    turns: TurnsOption = 10,
    max_consecutive_failures: FailuresOption = 5,
    loop_length: LoopOption = 4,
    success_probability: BaseOption = 0.8,
    not_executed: NotExecutedOption = 0.5,
    failed: FailedOption = 0.7,
    history: HistoryOption = 0.9,
    planner: PlannerOption = "auto",
    prompt_style: PromptStyleOption = "full",
    search_detail: SearchDetailOption = "brief",
    payload: PayloadOption = "compact",
    embedding_model: EmbeddingModelOption = None,
    tasks: TasksOption = "benchmark-v1",
    library: LibraryOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Take the agent's place in the terminal, and see afterwards what each call cost."""
    chosen = load(library)
    retriever = make_retriever(chosen, embedding_model)

    def search(query: str, count: int) -> Sequence[ToolHit]:
        # The first search loads the embedding model, which takes seconds.
        with error_console().status("searching"):
            return retriever.search(query, count)

    env = ConversationEnv(
        library=chosen,
        base=success_probability,
        not_executed=not_executed,
        failed=failed,
        history=history,
        max_turns=turns,
        max_consecutive_failures=max_consecutive_failures,
        loop_length=loop_length,
        planner=planner,
        prompt_style=prompt_style,
        search_detail=search_detail,
        payload=payload,
        search=search,
        salt=EVALUATION_SALT,
        render_mode="ansi",
    )
    out = error_console() if as_json else console()
    person = PersonPolicy(out)
    record = play_episode(env, person, find_task(task, tasks, chosen), prompt, seed, salt=EVALUATION_SALT)
    out.rule()
    out.print(plain(env.render() or ""))
    if as_json:
        print_json(record)
    else:
        show_costs(record, out)


class PersonPolicy:
    """A policy whose messages are typed in.

    Args:
        out: Where observations are shown.
    """

    name = "person"
    privileged = False

    def __init__(self, out: Console) -> None:
        self._out = out

    def reset(self, observation: str, info: Mapping[str, Any]) -> None:
        """Say how to play."""
        self._out.print(plain(HELP, "dim"))

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
                self._out.print(plain(HELP, "dim"))
            elif line.strip():
                return expand(line)


def show_costs(record: EpisodeRecord, out: Console) -> None:
    """Print what each message of an episode cost, and how the lost points add up."""
    rows = [
        [
            step["turn"],
            " ".join([step["kind"], step["tool"] or ""]).strip(),
            {True: "success", False: step["error"] or "failure", None: step["error"] or ""}[step["success"]],
            step["value"],
            step["action_value"],
            step["regret"],
            step["luck"],
            step["label"] or "",
        ]
        for step in record["steps"]
    ]
    columns = ["turn", "message", "result", "V before", "Q", "regret", "luck", "label"]
    out.print(table("What each message cost", columns, rows))
    score = record["score"]
    unavoidable, luck = 1.0 - record["optimum"], record["luck"]
    drawn = f"+ {abs(luck):.4f} by bad luck" if luck <= 0.0 else f"- {luck:.4f} by good luck"
    summary = (
        f"{score['level']} (ended by {record['ended_by']}, {score['coverage']:.0%} of the required tools succeeded)\n"
        f"best possible from the start: {record['optimum']:.4f}{_after_search(record)}\n"
        f"points lost: {1 - record['outcome']} = {unavoidable:.4f} unavoidable + {record['regret']:.4f} by calls "
        f"{drawn}"
    )
    out.print(plain(summary))


def _after_search(record: EpisodeRecord) -> str:
    """Return what of that is left where the tools must be found first."""
    after_search, searches = record.get("known_after_search"), record.get("searches_needed")
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
