"""What `--help` prints: options under their headings, every name whole, readable in a terminal of 80 columns.

Typer's own tables cut names off where a column is narrow; this is the plain form, in which a long name has a line of
its own.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable
from typing import Any, TypeVar

import typer
import typer.core

CommandT = TypeVar("CommandT", bound=Callable[..., Any])
# How a type is told to users -> the word that stands for a value.
VALUES = {"list[str]": "TEXT", "str": "TEXT", "int": "N", "int range": "N", "float": "X", "float range": "X"}


def write_options(command: Any, context: Any, formatter: Any) -> None:
    """Write arguments and options, those of each heading together, in the order in which headings are first met."""
    headings: defaultdict[str, list[tuple[str, str]]] = defaultdict(list)
    for parameter in command.get_params(context):
        record = parameter.get_help_record(context)
        if record is not None:
            names = re.sub(r"<([^<>]+)>", lambda found: VALUES.get(found[1], found[0]), record[0])
            plain = "Arguments" if parameter.param_type_name == "argument" else "Options"
            headings[getattr(parameter, "rich_help_panel", None) or plain].append((names, record[1]))
    for heading, records in headings.items():
        with formatter.section(heading):
            formatter.write_dl(records, col_max=28)


class Command(typer.core.TyperCommand):
    """A command whose options stand under their headings."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write them."""
        write_options(self, ctx, formatter)


class Group(typer.core.TyperGroup):
    """A group of commands, each with the whole sentence that says what it does."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write options, then commands."""
        write_options(self, ctx, formatter)
        self.format_commands(ctx, formatter)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the commands."""
        found = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        with formatter.section("Commands"):
            formatter.write_dl([(name, (command.help or "").split("\n\n")[0]) for name, command in found if command])


class CommandLine(typer.Typer):
    """Commands that explain themselves in this form; its arguments are Typer's."""

    def __init__(self, *, cls: type[Group] = Group, **settings: Any) -> None:
        super().__init__(cls=cls, add_completion=False, rich_markup_mode=None, **settings)

    def command(self, name: str | None = None, **settings: Any) -> Callable[[CommandT], CommandT]:
        """Return the decorator that adds a command."""
        decorator: Callable[[CommandT], CommandT] = super().command(name, cls=Command, **settings)
        return decorator


def command_group(help: str | None = None) -> CommandLine:
    """Return a group of commands that shows its help when it is called without one."""
    group = CommandLine(help=help)

    @group.callback(invoke_without_command=True)
    def show_help(context: typer.Context) -> None:
        if context.invoked_subcommand is None:
            typer.echo(context.get_help())

    return group
