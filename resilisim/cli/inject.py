"""`resilisim inject`: a program of a user's own, whose tools stand under a law, played seed after seed."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, get_type_hints

import typer

from resilisim.bounds import Count, Seed
from resilisim.cli.goal_options import (
    AnyOrderOption,
    ChecksOption,
    FailOption,
    ForceOption,
    GoalOption,
    LawOption,
    OnceOption,
    RequiredOption,
    SaltOption,
    TurnsOption,
    WaitOption,
    checks_in,
    names_in,
    note_unused,
)
from resilisim.cli.options import JsonFlag, OptionGroup, takes
from resilisim.cli.output import INCOMPLETE, answer, command_group, console, note, print_json, resumable
from resilisim.cli.runs.failures import tell_attack, tell_shrunk
from resilisim.envs.settings import GOAL_GROUP
from resilisim.errors import InvalidInputError, count_of, shown_value
from resilisim.evaluation.run.store import FAILURES_NAME
from resilisim.exploration import Case, explore_program
from resilisim.exploration.exploring import ExplorationLimits
from resilisim.exploration.failures.adversary import AdversaryLimits
from resilisim.injection import run_program
from resilisim.inputs import import_attribute
from resilisim.integrations.mcp.server_functions import ServerFunctions, read_configuration
from resilisim.options import OUTPUT_GROUP
from resilisim.seeding import EVALUATION_SALT

_USUAL: Final = {"salt": EVALUATION_SALT, "wait": False}  # what need not be said to `inject`
MOST_SEEDS: Final = 1000  # among which a lost episode is looked for

app = command_group()


@app.callback()
def group() -> None:
    """Run your own program while its tools fail by a law."""


@dataclass(frozen=True, slots=True)
class _Program:
    """A program that the command line names, with what `run_program` and the like take."""

    run: Callable[..., Any]
    functions: Mapping[str, Callable[..., Any]] | list[Callable[..., Any]]
    reset: Callable[[], object] | None
    options: Mapping[str, Any]


@contextlib.contextmanager
def _named_program(
    program: Annotated[
        str,
        typer.Argument(
            metavar="MODULE:FUNCTION", help="Function that takes the tools and calls them; it may be async."
        ),
    ],
    *,
    tools: Annotated[
        list[str] | None,
        typer.Option(
            "--tools",
            metavar="MODULE:NAME,NAME",
            help="Functions that the program calls: names of functions, or of a list or mapping of functions; "
            "repeatable.",
        ),
    ] = None,
    configuration: Annotated[
        Path | None,
        typer.Option(
            "--from",
            metavar="MCP.JSON",
            help="Configuration of an MCP client: the tools are those of its servers, which are started anew for each "
            "episode unless --reset is given.",
            dir_okay=False,
        ),
    ] = None,
    law: LawOption = None,
    reset: Annotated[
        str | None,
        typer.Option(
            "--reset", metavar="MODULE:FUNCTION", help="Called before each episode, to undo the previous one."
        ),
    ] = None,
    fail: FailOption = None,
    checks: ChecksOption = None,
    wait: WaitOption = False,
    raises: Annotated[
        list[str] | None,
        typer.Option(
            "--raises",
            metavar="[CODE=]MODULE:CLASS",
            help="What a failed call raises, such as TIMEOUT=builtins:TimeoutError; hang (no answer for a minute)"
            " or hang:SECONDS. Repeat it for other codes.",
            show_default="resilisim:InjectedFailure",
        ),
    ] = None,
    required: RequiredOption,
    goal: GoalOption = None,
    any_order: AnyOrderOption = False,
    once: OnceOption = None,
    check: Annotated[
        str | None,
        typer.Option(
            "--check",
            metavar="MODULE:FUNCTION",
            help="Called at the end: is everything as it should be? It alone decides, unless answers are the goal.",
            rich_help_panel=GOAL_GROUP,
        ),
    ] = None,
    turns: TurnsOption = None,
    force: ForceOption = None,
    salt: SaltOption = EVALUATION_SALT,
    name: Annotated[
        str | None,
        typer.Option(
            "--name",
            help="Name of the player in the results.",
            show_default="the function's name",
            rich_help_panel=OUTPUT_GROUP,
        ),
    ] = None,
) -> Iterator[_Program]:
    """Yield the program that options name, its tools ready."""
    played = _function(program, "program")
    begins = None if reset is None else _function(reset, "--reset")
    options: dict[str, Any] = {
        "law": law,
        "required": names_in(required),
        "goal": goal,
        "ordered": False if any_order else None,
        "once": names_in(once),
        "check": None if check is None else _function(check, "--check"),
        "turns": turns,
        "fail": fail,
        "checks": checks_in(checks or ()),
        "salt": salt,
        "wait": wait,
    }
    if force:
        options["force"] = force
    if raises:
        options["raises"] = _raises(raises)
    if name is not None:
        options["name"] = name
    with _tools(tools or (), configuration, inspect.iscoroutinefunction(played), begins) as (functions, begin):
        asked_for = {name: value for name, value in options.items() if value not in (None, [], {}, _USUAL.get(name))}
        yield _Program(played, functions, begin, asked_for)


def _takes_program(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options that name a program in place of its first parameter, which gets the program."""

    def parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
        hints = get_type_hints(function, include_extras=True)
        signature = inspect.signature(function).parameters
        return [
            signature[name].replace(annotation=hints[name], kind=inspect.Parameter.KEYWORD_ONLY) for name in signature
        ]

    naming, (_, *own) = parameters(inspect.unwrap(_named_program)), parameters(command)
    names = [parameter.name for parameter in naming]

    @functools.wraps(command)
    def run(**values: Any) -> None:
        with _named_program(**{name: values.pop(name) for name in names}) as program:
            command(program, **values)

    shown: Any = run
    shown.__signature__ = inspect.Signature([*naming, *own])
    shown.__annotations__ = {parameter.name: parameter.annotation for parameter in [*naming, *own]}
    return run


@app.command("run")
@_takes_program
def run(
    program: _Program,
    *,
    seeds: Annotated[Count, typer.Option("--seeds", help="Episodes: seeds 0, 1, ...")] = 20,
    out: Annotated[
        Path,
        typer.Option("--out", help="Folder of the results; the same command resumes it.", rich_help_panel=OUTPUT_GROUP),
    ],
    as_json: JsonFlag = False,
) -> None:
    """Play a program for each seed while its tools fail by a law: V*, success, and where points were lost.

    The program is called once for each episode, with the tools by position or by name (`tools["charge_card"]`).
    """
    with resumable():
        result = run_program(program.run, program.functions, seeds, reset=program.reset, out=out, **program.options)
    if as_json:
        print_json(result.to_mapping())
    elif result.rows:
        console().print(result.table())
    if result.call.num_already_there:
        there = f"{result.call.num_already_there:,} of {count_of(seeds, 'episode')}"
        note(f"{there} already there; the program is not compared, use a different --out after changing it")
    note_unused(result.unused_force())
    if result.rows:
        note(f"{count_of(result.num_episodes, 'episode')} in {out}; next: resilisim report {out}")
    if result.call.num_failures:
        note(
            f"{count_of(result.call.num_failures, 'episode')} broke and have no score ({out / FAILURES_NAME}), the "
            f"last because {result.call.last_error}; the same command tries again"
        )
        raise typer.Exit(INCOMPLETE)


_OfSeed = Annotated[Seed, typer.Option("--seed", help="Number of the episode.")]


@app.command("explore")
@takes(limits=OptionGroup(ExplorationLimits))
@_takes_program
def explore(
    program: _Program,
    *,
    limits: ExplorationLimits,
    seed: Annotated[Seed, typer.Option("--seed", help="Seed for the wording of failures.")] = 0,
    out: Annotated[
        Path | None,
        typer.Option("--out", help="Folder of every branch, for reports and gates.", rich_help_panel=OUTPUT_GROUP),
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Compute how often a program succeeds, branch by branch, without a sample: it is called anew for each branch.

    For programs that always make the same calls after the same results. Tools with side effects need --reset.
    """
    with resumable():
        found = explore_program(
            program.run,
            program.functions,
            reset=program.reset,
            plays=limits.plays,
            width=limits.width,
            seed=seed,
            out=out,
            **program.options,
        )
    answer(as_json, {"rows": [found.row.to_mapping()]}, found.table())
    if out is not None:
        note(f"every branch is in {out}; next: resilisim report {out}")


@app.command("shrink")
@_takes_program
def shrink(
    program: _Program,
    *,
    seed: Annotated[
        Seed | None,
        typer.Option("--seed", help="Number of a lost episode.", show_default="the first that is lost"),
    ] = None,
    plays: Annotated[Count, typer.Option("--plays", help="Maximum number of runs of the program.")] = 1000,
    as_json: JsonFlag = False,
) -> None:
    """Find the fewest failures that lose an episode of a program, and the lines that play it with just these.

    Failed calls are turned into successes, all at once, in groups, and one after the other; everything else stays as
    drawn.
    """
    case = _case(program, seed) if seed is not None else _first_lost(program)
    tell_shrunk(case.shrink(plays=plays), as_json, "Play it again, in Python:")


@app.command("adversary")
@takes(limits=OptionGroup(AdversaryLimits))
@_takes_program
def adversary(program: _Program, *, limits: AdversaryLimits, seed: _OfSeed = 0, as_json: JsonFlag = False) -> None:
    """Find the fewest failures with which a program loses although it could still have succeeded.

    First nothing fails, then each call alone, then pairs, and so on; of equally many failures, the likeliest come
    first.
    """
    found = _case(program, seed).adversary(above=limits.above, plays=limits.plays)
    tell_attack(found, as_json, "Play it again, in Python:")


@app.command("matrix")
@_takes_program
def matrix(program: _Program, *, seed: _OfSeed = 0, as_json: JsonFlag = False) -> None:
    """Try one fault of each kind at each call of a program: is the episode lost, and what does it cost?

    All other calls succeed. The weights of the rows add up to how often there is exactly one fault.
    """
    found = _case(program, seed).matrix()
    answer(as_json, found.to_mapping(), found.table())


def _case(program: _Program, seed: int) -> Case:
    return Case.of_program(program.run, program.functions, reset=program.reset, seed=seed, **program.options)


def _first_lost(program: _Program) -> Case:
    for seed in range(MOST_SEEDS):
        case = _case(program, seed)
        if not case.play()["outcome"]:
            return case
    raise InvalidInputError(f"the program succeeds with seeds 0 to {MOST_SEEDS - 1}: expected one to shrink, by --seed")


def _function(reference: str, where: str) -> Callable[..., Any]:
    value: Callable[..., Any] = import_attribute(reference, where)
    if not callable(value):
        raise InvalidInputError(f"{where}: {reference} is {shown_value(value, 80)}: expected a function")
    return value


@contextlib.contextmanager
def _tools(
    references: Iterable[str],
    configuration: Path | None,
    is_async: bool,
    reset: Callable[[], object] | None,
) -> Iterator[tuple[Mapping[str, Callable[..., Any]] | list[Callable[..., Any]], Callable[[], object] | None]]:
    """Yield the tools of a program, and what begins an episode anew."""
    functions, named = _functions(references)
    if configuration is None:
        if not functions and not named:
            raise InvalidInputError("there are no tools: expected --tools MODULE:NAME or --from MCP.JSON")
        yield (functions if not named else {**{_name(each): each for each in functions}, **named}), reset
        return
    with ServerFunctions(read_configuration(configuration), is_async=is_async) as servers:
        own = {_name(each): each for each in functions} | named
        if twice := own.keys() & servers.functions.keys():
            raise InvalidInputError(f"{min(twice)!r} is a function of --tools and a tool of a server: expected one")
        begun = 0

        def begin() -> None:
            nonlocal begun
            if reset is not None:
                reset()
            elif begun:
                servers.restart()
            begun += 1

        yield {**servers.functions, **own}, begin


def _functions(references: Iterable[str]) -> tuple[list[Callable[..., Any]], dict[str, Callable[..., Any]]]:
    """Return functions that `module:name,name` names, and those that have names of their own there."""
    functions: list[Callable[..., Any]] = []
    named: dict[str, Callable[..., Any]] = {}
    for reference in references:
        module, _, names = reference.partition(":")
        for name in names.split(","):
            value = import_attribute(f"{module}:{name}", "--tools")
            if isinstance(value, Mapping):
                named |= value
            elif callable(value):
                functions.append(value)
            elif isinstance(value, Iterable) and not isinstance(value, str | bytes):
                functions += value
            else:
                raise InvalidInputError(f"--tools: {name} is {shown_value(value, 80)}: expected functions")
    return functions, named


def _name(function: Callable[..., Any]) -> str:
    return str(getattr(function, "__name__", type(function).__name__))


def _raises(texts: Iterable[str]) -> Any:
    """Return what failures are raised as: one class for all, or one for each code."""
    by_code: dict[str, Any] = {}
    for text in texts:
        code, equals, reference = text.rpartition("=")
        is_word = reference == "cut" or reference.partition(":")[0] == "hang"
        by_code[code if equals else ""] = reference if is_word else import_attribute(reference, "--raises")
    if "" in by_code and len(by_code) > 1:
        raise InvalidInputError("--raises is given for all failures and for single codes: expected one or the other")
    return by_code.get("", by_code)
