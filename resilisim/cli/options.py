"""Options that several commands share, and options that are made from the dataclasses that Python users fill."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal, get_type_hints

import typer

from resilisim.envs.settings import ENVIRONMENT_GROUP, EnvironmentSettings
from resilisim.errors import MAX_COUNT, MAX_WORKERS, InvalidInputError, unknown_name
from resilisim.options import OptionField, options_of
from resilisim.tasks import Task
from resilisim.tasks.benchmark import BENCHMARK_VERSION
from resilisim.tasks.sources import read_tasks, sample_tasks, task_count
from resilisim.tasks.split import SPLITS, split_of
from resilisim.tool_library import ToolLibrary, default_library, load_library
from resilisim.tool_library.retrieval import ToolRetriever, default_retriever

OUTPUT_PANEL = "Output"
MODEL_PANEL = "Language model"

PROMPT_HELP = "Prompt: baseline, chain_of_thought, optimal, flawed (a flaw drawn for each task), flawed:FLAW:SEVERITY"

JsonFlag = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.", rich_help_panel=OUTPUT_PANEL)]
LibraryOption = Annotated[
    Path | None,
    typer.Option(
        "--library",
        help="A tool library as JSON; the default one has 30 tools.",
        dir_okay=False,
        rich_help_panel=ENVIRONMENT_GROUP,
    ),
]
TasksOption = Annotated[
    str, typer.Option("--tasks", help="benchmark-v1, a number N (its first N tasks), or a JSON Lines file of tasks.")
]
SplitOption = Annotated[
    str | None, typer.Option("--split", help="Only tasks of train, validation or test; N tasks drawn from it.")
]
SeedsOption = Annotated[
    int, typer.Option("--seeds", help="Episodes of each task: seeds 0, 1, ...", min=1, max=MAX_COUNT)
]
WorkersOption = Annotated[int, typer.Option("--workers", help="Processes.", min=1, max=MAX_WORKERS)]
RecordTextsOption = Annotated[
    Literal["all", "failures", "none"] | None,
    typer.Option(
        "--record-texts",
        help="Whose prompts, thoughts, messages and replies stay in the records: of all episodes, of failures (no full "
        "success), of none.",
        show_default="all of LLM agents, failures of other policies",
        rich_help_panel=OUTPUT_PANEL,
    ),
]


class OptionGroup:
    """The options of a dataclass on the command line; a command gets the object that they fill (`takes`).

    A field is an option if it is declared as one (`resilisim.options`); fields that hold dataclasses add theirs.

    Args:
        settings: The dataclass.
        names: Which options, in the order in which they are shown; all if omitted.
        panel: Heading of those whose declaration names none.
        **changed: What a command says otherwise about an option: its `default`, or any attribute of `Option`.
    """

    def __init__(
        self, settings: type[Any], names: Iterable[str] = (), panel: str = "", **changed: Mapping[str, Any]
    ) -> None:
        self._settings = settings
        self._panel = panel
        known = dict(_flattened(settings))
        self.options = {name: _changed(known[name], changed.get(name, {})) for name in names or known}

    def parameters(self) -> list[inspect.Parameter]:
        """Return the parameters that a command needs in place of the object."""
        return [_parameter(found, self._panel) for found in self.options.values()]

    def fill(self, values: dict[str, Any]) -> Any:
        """Take the values of the options out of those of a command, and return the object.

        Raises:
            InvalidInputError: The object refuses a value.
        """
        given = {name: _read(found, values.pop(name)) for name, found in self.options.items()}
        # None stands for "not given" where it is no value itself: the default is for the object to know.
        return _made(self._settings, {name: value for name, value in given.items() if value is not None})


def _flattened(settings: type[Any]) -> Iterator[tuple[str, OptionField]]:
    yield from options_of(settings).items()
    for field in fields(settings):
        if is_dataclass(field.default_factory):
            yield from _flattened(field.default_factory)


def _made(settings: type[Any], given: Mapping[str, Any]) -> Any:
    own = {name: given[name] for name in options_of(settings) if name in given}
    inner = {
        field.name: _made(field.default_factory, given)
        for field in fields(settings)
        if is_dataclass(field.default_factory)
    }
    return settings(**own, **inner)


def takes(**groups: OptionGroup) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the options of dataclasses in place of the parameters of the same names, which get the objects.

        @takes(environment=OptionGroup(EnvironmentSettings))
        def evaluate(policy: list[str], environment: EnvironmentSettings) -> None: ...
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        hints = get_type_hints(command, include_extras=True)
        parameters: list[inspect.Parameter] = []
        for name, parameter in inspect.signature(command).parameters.items():
            plain = parameter.replace(annotation=hints[name], kind=inspect.Parameter.KEYWORD_ONLY)
            parameters += groups[name].parameters() if name in groups else [plain]

        @functools.wraps(command)
        def filled(**values: Any) -> None:
            made = {name: group.fill(values) for name, group in groups.items()}
            command(**values, **made)

        filled.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        filled.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return filled

    return decorate


def _changed(found: OptionField, changes: Mapping[str, Any]) -> OptionField:
    own = {name: value for name, value in changes.items() if name in ("default", "optional")}
    of_option = {name: value for name, value in changes.items() if name not in own}
    return replace(found, **own, option=replace(found.option, **of_option))


def _parameter(found: OptionField, panel: str) -> inspect.Parameter:
    """Return the parameter of a command that typer makes an option from."""
    option = found.option
    kind: Any = Literal[found.choices] if found.choices else list[str] if found.is_tuple else found.kind
    default = found.default
    if option.switch:
        kind, default = bool, False
    elif option.path:
        kind = Path
    if found.is_tuple or default is None:
        default = None
        kind = kind | None
    declared = typer.Option(
        option.flag or "--" + found.name.replace("_", "-"),
        help=option.help,
        min=option.least,
        max=option.most,
        show_default=True if option.default_text is None else option.default_text or False,
        dir_okay=option.path != "file",
        file_okay=option.path != "folder",
        rich_help_panel=option.group or panel or None,
    )
    return inspect.Parameter(
        found.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, declared]
    )


def _read(found: OptionField, value: Any) -> Any:
    """Return the value of a field from that of its option."""
    if found.option.switch:
        return found.option.switch if value else None
    if isinstance(value, list):
        return tuple(value) or None
    return str(value) if isinstance(value, Path) else value


RULES = ("max_turns", "max_consecutive_failures", "loop_length")
LAW = ("base", "not_executed", "failed", "history")
EMBEDDING_MODEL = OptionGroup(EnvironmentSettings, ["embedding_model"])


def command_group() -> typer.Typer:
    """Return a group of commands that shows its help when it is called without one."""
    group = typer.Typer()

    @group.callback(invoke_without_command=True)
    def show_help(context: typer.Context) -> None:
        if context.invoked_subcommand is None:
            typer.echo(context.get_help())

    return group


def load(library: Path | None) -> ToolLibrary:
    """Return the library of a `--library` option, or the default one."""
    return default_library() if library is None else load_library(library)


def make_retriever(library: ToolLibrary, model: str | None) -> ToolRetriever:
    """Return the tool search over a library with the model of an `--embedding-model` option, or the shipped one."""
    if model is None:
        return default_retriever(library)
    retriever = ToolRetriever(library, model)
    retriever.embed([])  # refuses a model that does not exist now, not at the first search
    return retriever


def find_task(instance_id: str, tasks: str, library: ToolLibrary) -> Task:
    """Return the task of that id among those that `--tasks` means."""
    found = {task.instance_id: task for task in read_tasks(tasks, library)}
    if instance_id not in found:
        raise unknown_name("task", instance_id, found, tasks)
    return found[instance_id]


def chosen_tasks(tasks: str, split: str | None, library: ToolLibrary) -> list[Task]:
    """Return the tasks that `--tasks` and `--split` mean: with a split, a number draws a sample from that part."""
    if split is None:
        return read_tasks(tasks, library)
    if split not in SPLITS:
        raise unknown_name("split", split, SPLITS, "option --split")
    count = task_count(tasks)
    if count is not None:
        return sample_tasks(read_tasks(BENCHMARK_VERSION, library), count, split=split)
    given = read_tasks(tasks, library)
    chosen = [task for task in given if split_of(task.required_tools) == split]
    if not chosen:
        which = "the only task is not" if len(given) == 1 else f"none of the {len(given):,} tasks is"
        raise InvalidInputError(f"{which} in split {split!r}")
    return chosen
