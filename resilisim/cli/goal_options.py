"""Options of commands that put calls of real tools under a law: the law, how calls fail, and the goal."""

from __future__ import annotations

import csv
from collections.abc import Iterable
from typing import Annotated, Literal

import typer

from resilisim.bounds import Turns
from resilisim.cli.output import note
from resilisim.envs.settings import GOAL_GROUP, Counts
from resilisim.errors import InvalidInputError

LawOption = Annotated[
    str | None,
    typer.Option(
        "--law",
        help="A number (0.8: every call passes with that probability), name of a law that ships, or the path of a law "
        "file.",
        show_default="0.8",
    ),
]
SaltOption = Annotated[str, typer.Option("--salt", help="Any text; a different one gives different draws.")]
WaitOption = Annotated[
    bool,
    typer.Option("--wait", help="Really wait as long as calls take under a law with latency.", show_default=False),
]
ForceOption = Annotated[
    list[str] | None,
    typer.Option(
        "--force",
        metavar="TOOL#NUMBER=RESULT",
        help="Force the result of a call, whatever its draw: add#2=TIMEOUT, add#1=ok; repeatable. Records say so.",
    ),
]
RequiredOption = Annotated[
    str | None,
    typer.Option(
        "--required",
        metavar="TOOL,TOOL",
        help="The goal: tools that have to answer, in this order, or that have to have run (--goal effects). "
        "With it every episode has a score, V*, regret and luck.",
        rich_help_panel=GOAL_GROUP,
    ),
]
FailOption = Annotated[
    Literal["before", "after"] | None,
    typer.Option(
        "--fail",
        help="Whether failing calls fail before they run, or after they have run, so that only the answer is lost. A "
        "law file can say the same.",
        show_default="by the law",
    ),
]
ChecksOption = Annotated[
    list[str] | None,
    typer.Option(
        "--checks",
        metavar="TOOL=TOOL",
        help="For lost answers: the second tool reports how often the first one has run; repeatable.",
    ),
]
AnyOrderOption = Annotated[
    bool, typer.Option("--any-order", help="The required tools may answer in any order.", rich_help_panel=GOAL_GROUP)
]
OnceOption = Annotated[
    str | None,
    typer.Option("--once", metavar="TOOL,TOOL", help="Tools that must not run twice.", rich_help_panel=GOAL_GROUP),
]
TurnsOption = Annotated[
    Turns | None,
    typer.Option("--turns", help="Number of calls.", show_default="10", rich_help_panel=GOAL_GROUP),
]
GoalOption = Annotated[
    Counts | None,
    typer.Option(
        "--goal",
        help="What counts: that each tool has answered, or that it has run successfully, whether or not its "
        "answer came through.",
        show_default="answers; effects with a check of the end state",
        rich_help_panel=GOAL_GROUP,
    ),
]


def checks_in(texts: Iterable[str]) -> dict[str, str]:
    """Return what texts such as charge_card=list_charges say: for tools the one that tells how often they have run."""
    checks: dict[str, str] = {}
    for text in texts:
        tool, equals, checker = text.partition("=")
        if not (equals and tool and checker):
            raise InvalidInputError(f"--checks is {text!r:.80}: expected TOOL=TOOL, such as charge_card=list_charges")
        checks[tool] = checker
    return checks


def names_in(text: str | None) -> list[str]:
    """Return names that commas stand between; one that has a comma in it stands in quotes."""
    row = next(csv.reader([text or ""], skipinitialspace=True), [])
    return [name.strip() for name in row if name.strip()]


def note_unused(force: Iterable[str]) -> None:
    """Tell what was forced of calls that nobody has made."""
    for text in force:
        note(f"--force {text} changed nothing: that call was never made")
