"""`resilisim play`: a person takes the agent's place, and sees afterwards what each call cost."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from resilisim.cli.options import BaseOption, FailuresOption, JsonFlag, LibraryOption, TurnsOption, law_and_rules, load
from resilisim.cli.output import console, error_console, print_json, table
from resilisim.cli.tasks import TasksOption, find_task

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rich.console import Console

SHORTHANDS = {"s": "tool_search", "i": "tool_info", "c": "tool_call"}
FINISH_SHORTHAND = "f"
HELP = (
    "s WORDS searches, i NAME asks about a tool, c NAME {JSON} calls it, f says that you have finished; "
    "any other line goes as it stands. Ctrl-D gives up."
)


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
        self._out.print(HELP, style="dim", markup=False)

    def act(self, observation: str, info: Mapping[str, Any]) -> str | None:
        """Show the observation and ask for the next message; the end of the input gives up."""
        self._out.rule()
        self._out.print(observation, markup=False)
        left = info.get("turns_left", 0)
        prompt = f"[{left} turn{'' if left == 1 else 's'} left] > " if left else "[closing message] > "
        while True:
            try:
                line = _ask(prompt)
            except EOFError:
                return None
            if line.strip():
                return expand(line)


def _ask(prompt: str) -> str:
    """Ask for a line; the prompt goes to standard error when the output is not a terminal, so that JSON stays whole."""
    if sys.stdin.isatty() and sys.stdout.isatty():
        return input(prompt)
    sys.stderr.write(prompt)
    sys.stderr.flush()
    line = sys.stdin.readline()
    if not line:
        raise EOFError
    sys.stderr.write(line.rstrip("\n") + "\n")
    return line.rstrip("\n")


def play() -> None:
    """Place."""
