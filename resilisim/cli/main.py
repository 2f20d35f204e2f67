"""The command `resilisim`: puts the commands together and turns every refusal into one line and exit code 2."""

from __future__ import annotations

import errno
import importlib
import re
import sys
import traceback
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from resilisim import __version__
from resilisim.cli.output import (
    INCOMPLETE,
    STOPPED_BY_USER,
    CommandLine,
    Group,
    command_group,
    give_up_output,
    prepare_streams,
)
from resilisim.errors import InfrastructureError, ResiliSimError, nearest_name, unknown_name
from resilisim.redaction import fit_to_show

BUG = 1  # as Python itself leaves after a traceback
BAD_INPUT = 2
# What a full disk and a closed output say.
_CANNOT_WRITE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF)

NOTE = "ResiliSim: this was raised in episode"  # how the note begins that names the episode
PACKAGE = Path(__file__).resolve().parents[1]
# What calls the methods of policies and agents.
PLAYING = (PACKAGE / "policies" / "base.py", PACKAGE / "policies" / "llm" / "policy.py")

# Name -> (where the command or the group stands, the sentence of it that the list of commands shows). What they need is
# imported when they are called. `resilisim --help` fits a screen, so here each sentence is one line of 66 characters.
COMMANDS = {
    "demo": ("evaluation.demo:demo", "Show what ResiliSim does: tasks, bounds, policies, a report."),
    "bound": ("evaluation.bound:bound", "Solve tasks exactly: what the best agent, or the plan, reaches."),
    "play": ("evaluation.play:play", "Play a task yourself, and see what each of your calls cost."),
    "evaluate": ("evaluation.evaluate:evaluate", "Evaluate policies and agents; write every episode to a folder."),
    "explore": ("evaluation.explore:explore", "Compute success rates branch by branch, without a sample."),
    "gate": ("evaluation.gate:gate", "Judge a candidate against a baseline, as a build step."),
    "inject": ("inject:app", "Run your own program while its tools fail by a law."),
    "report": ("evaluation.report:report", "Write the HTML report of a run, finished or not."),
    "view": ("evaluation.view:view", "Show the runs in a folder in the browser, even unfinished ones."),
    "runs": ("main:runs", "Compare, rank, rescore, merge, export and check runs."),
    "train": ("train:app", "Train a policy with PPO, or a language model, and measure it."),
    "tasks": ("tasks:app", "List, count and generate tasks, and make prompts from them."),
    "tools": ("tools:app", "List, show, search, import and export tools."),
    "traces": ("traces:app", "Read production traces, and tell tools' faults from the agent's."),
    "law": ("law:app", "List, show, check and fit failure models."),
    "agents": ("agents:app", "List LLM agents and their options; check a language model."),
    "dataset": ("dataset:app", "Write datasets to train on, check them, and look at them."),
    "apis": ("apis:app", "List, call and assess public HTTP APIs, or serve their twin."),
    "mcp": ("mcp:app", "Serve episodes over MCP, or put an MCP server under a law."),
}
RUNS = {
    "compare": (
        "runs.compare:compare",
        (
            "Compare two runs on their common episodes: the difference in success with interval and p-value, by each "
            "method."
        ),
    ),
    "leaderboard": (
        "runs.leaderboard:leaderboard",
        "Rank the policies of runs by luck-adjusted success, and say which ranks the noise leaves open.",
    ),
    "power": (
        "runs.power:power",
        "Work out how many episodes (tasks x seeds) a comparison needs, by each method.",
    ),
    "profile": (
        "runs.profile:profile",
        "Show how policies cope with less reliable tools, fewer turns and flawed plans, next to the optimum.",
    ),
    "episode": (
        "runs.episode:show",
        "Show an episode: messages, calls, plan, memory; value, regret and luck beside each turn.",
    ),
    "replay": ("runs.episode:replay", "Replay one episode; nothing is written."),
    "extend": (
        "runs.extend:extend",
        "Play episodes that hit a limit again, with higher limits on the same draws; compare before and after.",
    ),
    "shrink": (
        "runs.failures:shrink",
        "Find the fewest failures that lose an episode, and the command that plays it with just these.",
    ),
    "adversary": (
        "runs.failures:adversary",
        "Find the fewest failures with which an agent loses although it could still have succeeded.",
    ),
    "matrix": (
        "runs.failures:matrix",
        "Try one fault of each kind at each call of an agent: is the episode lost, and what does it cost?",
    ),
    "rescore": (
        "runs.folders:rescore",
        "Rescore saved episodes, without a model or an environment; the exit code is 1 if any result differs.",
    ),
    "judge": (
        "runs.folders:judge",
        "Let a language model judge the answers of a run in a world, and say how far it agrees with the exact score.",
    ),
    "merge": (
        "runs.folders:merge",
        "Put the parts of a run into one folder, each episode once; folders of other runs are refused.",
    ),
    "export": (
        "runs.folders:export",
        "Write a run, finished or not, as Parquet tables: episodes, steps, failures, and calls of language models.",
    ),
    "tables": (
        "runs.folders:tables",
        "Make the tables of the KPI-Chain and RP-ReAct papers, with the published figures, from runs on their worlds.",
    ),
    "submit": (
        "runs.submit:app",
        "Check submitted runs: were they played on a published set, to the last draw?",
    ),
}
# What a command was called before there were groups -> what it is called now.
MOVED = {
    **{
        name: f"runs {name}"
        for name in RUNS
        if name not in ("episode", "replay", "extend", "shrink", "adversary", "matrix")
    },
    "episode": "runs episode",
    "episode show": "runs episode",
    "episode replay": "runs replay",
    "agents": "agents show",  # `agents NAME`
    "models": "agents",
    "prompts": "tasks prompts",
    "train-lm": "train lm",
}


class _Listed(Group):
    """Commands that stand in a list (`COMMANDS`, `RUNS`) until one is called."""

    def format_help_text(self, ctx: Any, formatter: Any) -> None:
        """Write what it is, right below the usage, so that the list fits a screen."""
        with formatter.indentation():
            formatter.write_text((self.help or "").partition("\f")[0])

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return what stands behind the name: options by their names, as few as they are."""
        options = [option for option in self.get_params(ctx) if option.param_type_name == "option"]
        return [*(f"[{' | '.join(sorted(option.opts))}]" for option in options), self.subcommand_metavar or ""]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the commands; the usage has named the options, whose names say what they do."""
        self.format_commands(ctx, formatter)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command, or a group of commands, as typer has made it."""
        listed = RUNS if self.name == "runs" else COMMANDS
        return load_command(cmd_name, *listed[cmd_name]) if cmd_name in listed else None


def load_command(name: str, place: str, summary: str) -> Any:
    """Return the command or the group of commands that stands at a place (`module:attribute`)."""
    module, _, attribute = place.partition(":")
    loaded = getattr(importlib.import_module(f"resilisim.cli.{module}"), attribute)
    holder = CommandLine()
    if not isinstance(loaded, typer.Typer):
        holder.command(name)(loaded)
        return typer.main.get_command(holder)
    holder.add_typer(loaded, name=name, help=summary)
    group: Any = typer.main.get_command(holder)
    return group.commands[name]


app = CommandLine(
    name="resilisim",
    cls=_Listed,
    help="Stochastic tool tasks for language-model agents, with exact optima.",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
runs = command_group(cls=_Listed)
for _group, _listed in ((app, COMMANDS), (runs, RUNS)):
    for _name, (_, _summary) in _listed.items():
        _group.command(_name, help=_summary)(lambda: None)


@app.callback(invoke_without_command=True)
def root(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and stop.")] = False,
) -> None:
    """Stochastic tool tasks for language-model agents, with exact optima."""
    if version:
        typer.echo(f"resilisim {__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def _is_usage_error(error: Exception) -> bool:
    """Tell whether the parser raised this (its class is not public in every version of typer, its name is stable)."""
    return any(base.__name__ == "ClickException" for base in type(error).__mro__)


# What a parser says of a number -> what every refusal says here.
EXPECTED = {
    "Input should be greater than or equal to ": "expected at least ",
    "Input should be less than or equal to ": "expected at most ",
    "Input should be greater than ": "expected more than ",
    "Input should be less than ": "expected less than ",
    "Input should be a valid integer, unable to parse string as an integer": "expected a whole number",
    "Input should be a valid number, unable to parse string as a number": "expected a number",
}
# What it says of what is not there -> the same, as every refusal says it.
MISSING = {
    r"^Missing (?:option|argument|parameter):? '?([^']+?)'?\.$": r"\1 is missing",
    r"^Option '([^']+)' requires an argument\.$": r"\1 needs a value",
    r"^Got unexpected extra arguments?(?:\(s\))? \((.+)\)$": r"unexpected after the command and its arguments: \1",
}


def _usage_message(error: Exception, arguments: Sequence[str]) -> str:
    """Return what the parser refused, in the words of every other refusal: the value, and what was expected.

    A command that has moved is answered by where it is now.
    """
    message = str(getattr(error, "format_message", error.__str__)()).replace("Value error, ", "")
    for theirs, ours in EXPECTED.items():
        message = message.replace(theirs, ours)
    if match := re.match("No such command '([^']+)'", message):
        return _unknown_command(message, match[1], arguments)
    if match := re.fullmatch(r"No such option: (\S+)(?: \(Possible options: (.+)\)| Did you mean (\S+)\?)?", message):
        near = nearest_name(match[1], (match[2] or match[3] or "").split(", "))
        return f"unknown option {match[1]!r:.200}" + (f": did you mean {near!r}?" if near else "")
    if match := re.fullmatch(r"Invalid value for '([^']+)': '(.*)' is not one of (.+?)\.?", message, re.DOTALL):
        return str(unknown_name("value", match[2], re.findall(r"'([^']*)'", match[3]), match[1]))
    if match := re.fullmatch(r"Invalid value for '([^']+)': (.+)", message, re.DOTALL):
        value = _value_of(error, arguments)
        return (
            f"{match[1]}: {match[2]}"
            if value is None or value in match[2]
            else f"{match[1]} is {value!r:.200}: {match[2]}"
        )
    for theirs, ours in MISSING.items():
        message = re.sub(theirs, ours, message)
    return message


def _value_of(error: Exception, arguments: Sequence[str]) -> str | None:
    """Return the value of the option that the parser refused."""
    for option in getattr(getattr(error, "param", None), "opts", ()):
        for place, argument in enumerate(arguments):
            name, separator, value = argument.partition("=")
            if argument == option and place + 1 < len(arguments):
                return arguments[place + 1]
            if name == option and separator:
                return value
    return None


def _unknown_command(message: str, name: str, arguments: Sequence[str]) -> str:
    """Return where a command is that has moved or stands elsewhere, or the nearest; of all groups if here is none."""
    for words in (" ".join(arguments[:2]), " ".join(arguments[:1])):
        if words in MOVED:
            return f"`resilisim {words}` is now `resilisim {MOVED[words]}`"
    places = {**{place: place for place in COMMANDS}, **{place: f"runs {place}" for place in RUNS}}
    meant = None if name in places else re.search(r"Did you mean '([^']+)'", message)
    near = meant[1] if meant else places.get(nearest_name(name, places) or "")
    hint = "" if near is None else f": did you mean {near!r}?" if meant else f": did you mean `resilisim {near}`?"
    return f"unknown command {name!r}{hint}"


def _refuse(text: str, code: int = BAD_INPUT) -> NoReturn:
    """Print one line on standard error and leave."""
    sys.stderr.write("resilisim: " + fit_to_show(text, one_line=True) + "\n")
    sys.exit(code)


def _show_warning(message: Warning | str, *_: object, **__: object) -> None:
    """Print a warning for a user: its text, without the place in the source that raised it."""
    sys.stderr.write("resilisim: warning: " + fit_to_show(str(message), one_line=True) + "\n")


def _show_bug(_: type[BaseException], error: BaseException, __: object) -> None:
    """Print what nothing has caught as Python does, except that its words steer no terminal."""
    sys.stderr.write(fit_to_show("".join(traceback.format_exception(error))))


def print_policy_error(error: Exception) -> bool:
    """Print the frames of a policy, what it raised, and in which episode, on standard error.

    Returns False, with nothing printed, if it was not raised by a policy of a user's own: then every frame matters.
    """
    if not any(note.startswith(NOTE) for note in getattr(error, "__notes__", ())):
        return False
    exception = traceback.TracebackException.from_exception(error)
    if not any(_calls_policies(frame.filename) for frame in exception.stack):
        # These are the frames of waiting for a worker, whose own do not travel with what it raised.
        exception.stack = traceback.StackSummary()
    else:
        _keep_frames_of_others(exception)
        if not exception.stack:
            return False  # all frames are this package's: a bug of its own
    sys.stderr.write(fit_to_show("".join(exception.format())))
    return True


def _keep_frames_of_others(exception: traceback.TracebackException) -> None:
    """Leave the frames after the last one that plays an episode, without those of this package, causes included."""
    playing = [place for place, frame in enumerate(exception.stack) if _calls_policies(frame.filename)]
    called = exception.stack[playing[-1] + 1 :] if playing else exception.stack
    own = [frame for frame in called if not Path(frame.filename).resolve().is_relative_to(PACKAGE)]
    exception.stack = traceback.StackSummary.from_list(own)
    for other in (exception.__cause__, exception.__context__):
        if other is not None:
            _keep_frames_of_others(other)


def _calls_policies(name: str) -> bool:
    return any(Path(name).name == path.name and Path(name).resolve() == path for path in PLAYING)


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line with these arguments, or those of the process, and leave the process."""
    prepare_streams()
    sys.excepthook = _show_bug
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
