"""The command `resilisim`: puts the commands together and turns every refusal into one line and exit code 2."""

from __future__ import annotations

import errno
import sys
import warnings
from collections.abc import Sequence
from typing import Annotated, NoReturn, TextIO

import typer

from resilisim import __version__
from resilisim.cli import (
    agents,
    bound,
    compare,
    dataset,
    demo,
    episode,
    evaluate,
    export,
    leaderboard,
    merge,
    models,
    play,
    power,
    profile,
    prompts,
    report,
    rescore,
    tasks,
    tools,
    train,
)
from resilisim.cli.output import INCOMPLETE, STOPPED_BY_USER, give_up_output, prepare_streams
from resilisim.cli.policy_errors import print_policy_error
from resilisim.errors import InfrastructureError, ResiliSimError

BUG = 1  # as Python itself leaves after a traceback
BAD_INPUT = 2
# What a full disk and a closed output say.
_CANNOT_WRITE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF)

app = typer.Typer(
    name="resilisim",
    help="Stochastic tool tasks for language-model agents, each with its exact optimum.",
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(tools.app, name="tools")
app.add_typer(tasks.app, name="tasks")
app.add_typer(prompts.app, name="prompts")
app.add_typer(dataset.app, name="dataset")
app.add_typer(train.app, name="train")
app.add_typer(models.app, name="models")
app.command("bound")(bound.bound)
app.command("play")(play.play)
app.command("evaluate")(evaluate.evaluate)
app.command("agents")(agents.agents)
app.add_typer(episode.app, name="episode")
app.command("report")(report.report)
app.command("compare")(compare.compare)
app.command("leaderboard")(leaderboard.leaderboard)
app.command("power")(power.power)
app.command("profile")(profile.profile)
app.command("rescore")(rescore.rescore)
app.command("merge")(merge.merge)
app.command("export")(export.export)
app.command("demo")(demo.demo)


@app.callback(invoke_without_command=True)
def root(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and stop.")] = False,
) -> None:
    """Stochastic tool tasks for language-model agents, each with its exact optimum."""
    if version:
        typer.echo(f"resilisim {__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def _is_usage_error(error: Exception) -> bool:
    """Tell whether the parser raised this (its class is not public in every version of typer, its name is stable)."""
    return any(base.__name__ == "ClickException" for base in type(error).__mro__)


def _usage_message(error: Exception, arguments: Sequence[str]) -> str:
    """Return the parser's message, with the value that it refused where the message leaves it out."""
    message = str(getattr(error, "format_message", error.__str__)()).replace("Value error, ", "")
    for option in getattr(getattr(error, "param", None), "opts", ()):
        for place, argument in enumerate(arguments):
            name, separator, value = argument.partition("=")
            if argument == option and place + 1 < len(arguments):
                value = arguments[place + 1]
            elif name != option or not separator:
                continue
            return message if value in message else f"{message} (got {value!r:.200})"
    return message


def _refuse(text: str, code: int = BAD_INPUT) -> NoReturn:
    """Print one line on standard error and leave."""
    sys.stderr.write("resilisim: " + " ".join(text.split()) + "\n")
    sys.exit(code)


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """Print a warning for a user: its text, without the place in the source that raised it."""
    sys.stderr.write("resilisim: warning: " + " ".join(str(message).split()) + "\n")


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and leave the process.

    Args:
        arguments: What stands after the command's name; None takes it from the process.
    """
    prepare_streams()
    with warnings.catch_warnings():
        warnings.showwarning = _show_warning
        try:
            code = app(args=arguments, prog_name="resilisim", standalone_mode=False)
            sys.stdout.flush()
        except InfrastructureError as error:
            _refuse(str(error), INCOMPLETE)
        except ResiliSimError as error:
            _refuse(str(error))
        except (typer.Abort, KeyboardInterrupt):
            sys.stderr.write("resilisim: stopped\n")
            sys.exit(STOPPED_BY_USER)
        except (BrokenPipeError, SystemExit) as error:
            if not isinstance(error, BrokenPipeError) and not isinstance(error.__context__, BrokenPipeError):
                raise
            # Whoever read the output has seen enough (`resilisim tasks list | head`). rich leaves with 1 then.
            give_up_output()
            sys.exit(0)
        except Exception as error:
            if _is_usage_error(error):
                _refuse(_usage_message(error, sys.argv[1:] if arguments is None else arguments))
            if print_policy_error(error):
                sys.exit(BUG)
            if isinstance(error, OSError) and error.filename is not None:
                _refuse(f"{error.filename}: {error.strerror}")
            if isinstance(error, OSError) and error.errno in _CANNOT_WRITE:
                give_up_output()
                _refuse(f"the output cannot be written: {error.strerror}", INCOMPLETE)
            raise
    sys.exit(code if isinstance(code, int) else 0)
