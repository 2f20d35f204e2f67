"""How commands speak: figures and tables on standard output, everything else, progress too, on standard error.

What `--help` prints is plain: Typer's own tables cut names off where a column is narrow; here a long name has a line of
its own, in a terminal of 80 columns.
"""

from __future__ import annotations

import contextlib
import copy
import inspect
import io
import json
import os
import re
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from types import GenericAlias
from typing import Annotated, Any, TextIO, TypeVar, cast, get_args, get_origin, get_type_hints

import typer
import typer.core
from rich.console import Console, RenderableType
from typer.models import ParameterInfo

from resilisim.bounds import bounds_of
from resilisim.errors import Interrupted
from resilisim.redaction import fit_to_show, json_without_steering, without_secrets, without_steering
from resilisim.terminal import SafeConsole
from resilisim.terminal import plain as plain

# Wide enough that no cell is cut when the output goes to a file or a pipe, where nothing tells a width.
PIPE_WIDTH = 160
INCOMPLETE = 3  # exit code of a run that something outside of it has kept from its end
STOPPED_BY_USER = 130  # exit code after Ctrl-C, as shells have it

_NOT_ASCII = re.compile(r"[^\x00-\x7f]")


class _Unheard(io.FileIO):
    """Where standard error goes: what nobody hears is no reason to stop a run, so it never fails."""

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OSError:
            return len(data)


def prepare_streams() -> None:
    """Make the three streams fit for any text, any bytes, and for being closed.

    A character that the encoding of an output lacks, or half a surrogate pair, is written as an escape; bytes of the
    input that are no text are read as U+FFFD. A stream that was closed from the start gets a place of its own, which
    the next opened file would have been given; writing to standard output fails then.
    """
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:
            file = io.FileIO(os.open(os.devnull, os.O_RDONLY), "r" if name == "stdin" else "w")
            closed = io.TextIOWrapper(cast("Any", file), "utf-8", write_through=True)
            setattr(sys, name, closed)
            setattr(sys, f"__{name}__", closed)  # which keeps it open
    heard = sys.stderr
    is_given = heard is sys.__stderr__  # and not something that takes its place, as tests do
    if is_given:
        unheard = io.BufferedWriter(_Unheard(heard.fileno(), "w", closefd=False))
        sys.stderr = io.TextIOWrapper(unheard, heard.encoding, line_buffering=True)
    for stream, errors in ((sys.stdin, "replace"), (sys.stdout, "backslashreplace"), (sys.stderr, "backslashreplace")):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=errors)


def give_up_output() -> None:
    """Send what standard output still holds nowhere: it cannot be written, and Python would try again at its end."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def console() -> Console:
    """Return a console on the present standard output."""
    return SafeConsole(width=_width(sys.stdout), highlight=False)


def error_console() -> Console:
    """Return a console on the present standard error."""
    return SafeConsole(stderr=True, width=_width(sys.stderr), highlight=False)


def _width(stream: TextIO) -> int | None:
    """Return how wide an output is where no terminal says so: as COLUMNS has it, or wide enough for every cell."""
    is_told = os.environ.get("COLUMNS", "").isdigit()  # which rich reads itself
    return None if is_told or stream.isatty() else PIPE_WIDTH


def print_json(value: Any) -> None:
    """Print a value as indented JSON; a figure that does not exist (a standard error of one sample) is null."""
    from resilisim.statistics.estimates import to_json  # with NumPy, which the list of commands is shown without

    write_json(json.dumps(to_json(value), indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def answer(as_json: bool, value: Any, *shown: RenderableType, notes: Iterable[str] = ()) -> None:
    """Print a value as JSON, or else what people see of it on standard output, and notes on standard error."""
    if as_json:
        print_json(value)
        return
    out = console()
    for part in shown:
        out.print(part)
    for text in notes:
        note(text)


def say(*lines: str, style: str = "") -> None:
    """Print lines for people on standard output, whole, whatever the width."""
    out = console()
    for line in lines:
        out.print(plain(line, style), soft_wrap=True)


def write_json(text: str) -> None:
    """Write JSON text to standard output; what its encoding lacks becomes an escape of JSON, so that it stays JSON.

    So does what steers a terminal; secrets are taken out.
    """
    text = json_without_steering(without_secrets(text))
    try:
        text.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:
        text = _NOT_ASCII.sub(lambda found: json.dumps(found.group())[1:-1], text)
    sys.stdout.write(text)


def note(text: str, *, with_secret: bool = False) -> None:
    """Print a line for people on standard error, whole, whatever the width.

    Secrets are taken out of it, unless it is there to tell one that was just made (`with_secret`).
    """
    sys.stderr.write((without_steering(text) if with_secret else fit_to_show(text)) + "\n")


@contextlib.contextmanager
def resumable() -> Iterator[None]:
    """Leave as shells have it after Ctrl-C in work that the same command resumes, and say what is kept."""
    try:
        yield
    except Interrupted as interrupted:
        note(f"{interrupted}; the same command resumes it")
        raise typer.Exit(STOPPED_BY_USER) from None


CommandT = TypeVar("CommandT", bound=Callable[..., Any])
# How a type is told to users -> the word that stands for a value.
VALUES = {"str": "TEXT", "int": "N", "int range": "N", "float": "X", "float range": "X", "Path": "PATH"}
VALUES |= {"path": "PATH", "file": "FILE", "directory": "DIR"}
_ENDS = {">": "at least", "<": "at most"}
_LISTED = re.compile(r"list\[(.+)\]")


def write_options(command: Any, context: Any, formatter: Any) -> None:
    """Write arguments and options, those of each heading together, in the order in which headings are first met."""
    headings: defaultdict[str, list[tuple[str, str]]] = defaultdict(list)
    for parameter in command.get_params(context):
        record = parameter.get_help_record(context)
        if record is not None:
            is_argument = parameter.param_type_name == "argument"
            names = record[0].split(" ")[0].upper() if is_argument else re.sub(r"<([^<>]+)>", _value, record[0])
            plain = "Arguments" if is_argument else "Options"
            headings[getattr(parameter, "rich_help_panel", None) or plain].append((names, _bounds_in_words(record[1])))
    for heading, records in headings.items():
        with formatter.section(heading):
            formatter.write_dl(records, col_max=28)


def _value(match: re.Match[str]) -> str:
    """Return the word for a value of an option whose type stands between angle brackets."""
    kind = _LISTED.sub(r"\1", match[1])
    return VALUES.get(kind, match[0])


def _bounds_in_words(text: str) -> str:
    """Return an option's help with `1<=x<=9` as `1 to 9`, and without the bound that is only the largest number."""
    text = re.sub(r"; 0<=x<=9223372036854775807(?=\])| *\[0<=x<=9223372036854775807\]", "", text)
    text = re.sub(r"(?<=[\[ ])([\d.]+)<=x<=([\d.]+)(?=\])", r"\1 to \2", text)
    return re.sub(r"(?<=[\[ ])x(<|>)=([\d.]+)(?=\])", lambda end: f"{_ENDS[end[1]]} {end[2]}", text)


class Command(typer.core.TyperCommand):
    """A command whose options stand under their headings."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return what stands behind the name: what has to be given by its name, what may be left out in brackets."""
        pieces = [re.sub(r"^\{(.*)\}", r"\1", piece) for piece in super().collect_usage_pieces(ctx)]
        return [re.sub(r"\.{4,}", "...", piece.replace("[[", "[").replace("]]", "]")).upper() for piece in pieces]

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
        commands = [(name, self.commands[name].help or "") for name in self.list_commands(ctx)]
        with formatter.section("Commands"):
            formatter.write_dl([(name, text.split("\n\n")[0]) for name, text in commands])


def with_bounds(command: CommandT) -> CommandT:
    """Give the options of a command the bounds that the types of its parameters state (`resilisim.bounds`)."""
    shown: Any = command
    hints = get_type_hints(command, include_extras=True)
    for name, hint in hints.items():
        kind, *notes = get_args(hint) if get_origin(hint) is Annotated else (hint,)
        infos = [note for note in notes if isinstance(note, ParameterInfo)]
        limits = [note for note in notes if note not in infos]
        stated = Annotated[kind, *limits] if limits else kind
        is_optional = type(None) in get_args(kind)
        listed = next((member for member in get_args(kind) or (kind,) if get_origin(member) is list), None)
        bounds = bounds_of(stated if listed is None else get_args(listed)[0])
        if bounds is not None and infos:
            info = copy.copy(infos[0])
            info.min, info.max = bounds.least, bounds.most
            plain_kind: Any = bounds.kind if listed is None else GenericAlias(list, (bounds.kind,))
            hints[name] = Annotated[plain_kind | None if is_optional else plain_kind, info]
    signature = inspect.signature(command)
    typed = [each.replace(annotation=hints.get(each.name, each.annotation)) for each in signature.parameters.values()]
    shown.__signature__, shown.__annotations__ = signature.replace(parameters=typed), hints
    return command


class CommandLine(typer.Typer):
    """Commands that explain themselves in this form; its arguments are Typer's."""

    def __init__(self, *, cls: type[Group] = Group, **settings: Any) -> None:
        super().__init__(cls=cls, add_completion=False, rich_markup_mode=None, **settings)

    def command(self, name: str | None = None, **settings: Any) -> Callable[[CommandT], CommandT]:
        """Return the decorator that adds a command."""
        decorator: Callable[[CommandT], CommandT] = super().command(name, cls=Command, **settings)
        return lambda command: decorator(with_bounds(command))


def command_group(help: str | None = None, cls: type[Group] = Group) -> CommandLine:
    """Return a group of commands that shows its help when it is called without one."""
    group = CommandLine(help=help, cls=cls)

    @group.callback(invoke_without_command=True)
    def show_help(context: typer.Context) -> None:
        if context.invoked_subcommand is None:
            typer.echo(context.get_help())

    return group
