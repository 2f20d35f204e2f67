"""Options that several commands share, and options that are made from the dataclasses that Python users fill."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal, get_type_hints

import typer

from resilisim.bounds import Count, Workers
from resilisim.envs.settings import CONSTANTS, ENVIRONMENT_GROUP, EnvironmentSettings
from resilisim.errors import InvalidInputError, unknown_name
from resilisim.evaluation.run.arguments import in_world, library_in
from resilisim.options import OUTPUT_GROUP, OptionField, options_of
from resilisim.tasks import Task
from resilisim.tasks.benchmark import BENCHMARK_VERSION
from resilisim.tasks.benchmark import find_task as find_benchmark_task
from resilisim.tasks.sources import benchmark_part, read_tasks, sample_tasks
from resilisim.tasks.split import SPLITS, split_of
from resilisim.tool_library import ToolLibrary, default_library, load_library
from resilisim.worlds.base import names_world

OPTIONS_PANEL = "Options"  # where typer shows what has no heading
MODEL_PANEL = "Language model"

PROMPT_HELP = "Prompt: baseline, chain_of_thought, optimal, flawed (a flaw drawn for each task), flawed:FLAW:SEVERITY"

output_option = functools.partial(typer.Option, rich_help_panel=OUTPUT_GROUP)

DryRunFlag = Annotated[
    bool, typer.Option("--dry-run", help="Only print what it would take in calls and tokens; nothing is sent.")
]
CacheOption = Annotated[
    Path | None,
    typer.Option(
        "--cache", help="Folder of answers; in the user's cache folder if left out.", rich_help_panel=MODEL_PANEL
    ),
]
JsonFlag = Annotated[bool, output_option("--json", help="Print JSON instead of a table.")]
LibraryOption = Annotated[
    Path | None,
    typer.Option(
        "--library",
        help="A tool library, or tools as MCP, OpenAI, Anthropic, BFCL or OpenAPI list them; the default has 30.",
        dir_okay=False,
        rich_help_panel=ENVIRONMENT_GROUP,
    ),
]
TasksOption = Annotated[
    str,
    typer.Option(
        "--tasks",
        help=f"{BENCHMARK_VERSION}, a number N (its first N tasks), benchmark-v1, benchmark-v1:N, a JSON Lines file of "
        "tasks, tasks.json of tau2-bench, or a world: NAME, NAME:N.",
    ),
]
SplitOption = Annotated[
    str | None,
    typer.Option("--split", help="Only tasks of train, validation or test; with --tasks N, N drawn from it."),
]
SeedsOption = Annotated[Count, typer.Option("--seeds", help="Episodes of each task: seeds 0, 1, ...")]
WorkersOption = Annotated[Workers, typer.Option("--workers", help="Processes.")]
ToolsOption = Annotated[
    Literal["native", "discovery", "listed"] | None,
    typer.Option(
        "--tool-access",
        help="How agents get their tools: each is a function (native), they have to be searched for "
        "(discovery), or the same with all names in the prompt (listed).",
        show_default="native for agents with their own loop, else discovery",
        rich_help_panel=ENVIRONMENT_GROUP,
    ),
]
RecordTextsOption = Annotated[
    Literal["all", "failures", "none"] | None,
    output_option(
        "--record-texts",
        help="Episodes that keep prompts, thoughts, messages and replies in their records: all, failures (no "
        "full success), or none.",
        show_default="all of LLM agents, failures of other policies",
    ),
]


class OptionGroup:
    """The options of a dataclass on the command line; a command gets the object that they fill (`takes`).

    A field is an option if it is declared as one (`resilisim.options`); fields that hold dataclasses add theirs. They
    are shown in the order of the `names`, under `panel` where their declaration names no heading; `changed` is what a
    command says otherwise about them: their `default`, or any attribute of `Option`.
    """

    def __init__(
        self,
        settings: type[Any] | Sequence[type[Any]],
        names: Iterable[str] = (),
        panel: str = "",
        changed: Mapping[str, Mapping[str, Any]] = MappingProxyType({}),
    ) -> None:
        self._classes = [settings] if isinstance(settings, type) else list(settings)
        self._panel = panel
        known: dict[str, OptionField] = {}
        for declaring in self._classes:
            known = option_fields(declaring) | known
        for declaring in reversed(self._classes):
            known |= options_of(declaring)  # before those of dataclasses in fields of the others
        self._declared = {name: known[name].default for name in names or known}
        self.options = {name: _changed(known[name], changed.get(name, {})) for name in self._declared}

    def parameters(self) -> list[inspect.Parameter]:
        """Return the parameters that a command needs in place of the object."""
        return [_parameter(field, self._panel) for field in self.options.values()]

    def fill(self, values: dict[str, Any]) -> Any:
        """Take the values of the options out of those of a command, and return the object.

        Raises:
            InvalidInputError: The object refuses a value.
        """
        values_read = {name: _read(field, values.pop(name)) for name, field in self.options.items()}
        if len(self._classes) > 1:
            return values_read
        return filled(
            self._classes[0](), {name: value for name, value in values_read.items() if self._is_given(name, value)}
        )

    def _is_given(self, name: str, value: Any) -> bool:
        # None stands for "not given", unless the object takes it for something else than its default.
        return value is not None or (self.options[name].optional and self._declared[name] is not None)


def option_fields(settings: type[Any]) -> dict[str, OptionField]:
    """Return the options of a dataclass and of the dataclasses in its fields, by name; its own go before theirs."""
    fields_by_name = dict(options_of(settings))
    for inner in _inner(settings()).values():
        fields_by_name = fields_by_name | option_fields(type(inner)) | fields_by_name
    return fields_by_name


def filled(settings: Any, values: Mapping[str, Any]) -> Any:
    """Return an object with other values of some options, those of dataclasses in its fields included."""
    own = {name: values[name] for name in options_of(type(settings)) if name in values}
    rest = {name: value for name, value in values.items() if name not in own}
    return replace(settings, **own, **{name: filled(inner, rest) for name, inner in _inner(settings).items()})


def _inner(settings: Any) -> dict[str, Any]:
    """Return the dataclasses in the fields of another."""
    values = {field.name: getattr(settings, field.name) for field in fields(settings)}
    return {name: value for name, value in values.items() if is_dataclass(value)}


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
        def run(**values: Any) -> None:
            made = {name: group.fill(values) for name, group in groups.items()}
            command(**values, **made)

        shown: Any = run
        shown.__signature__ = inspect.Signature(parameters)
        shown.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return run

    return decorate


def _changed(field: OptionField, changes: Mapping[str, Any]) -> OptionField:
    own = {name: value for name, value in changes.items() if name in ("default", "optional")}
    of_option = {name: value for name, value in changes.items() if name not in own}
    return replace(field, **own, option=replace(field.option, **of_option))


def _parameter(field: OptionField, panel: str) -> inspect.Parameter:
    """Return the parameter of a command that typer makes an option from."""
    option = field.option
    kind: Any = Literal[field.choices] if field.choices else list[str] if field.is_tuple else field.kind
    default = field.default
    if option.switch:
        kind, default = bool, False
    elif option.path:
        kind = Path
    if field.is_tuple or default is None:
        default = None
        kind = kind | None
    declared = typer.Option(
        option.flag or "--" + field.name.replace("_", "-"),
        help=option.help,
        metavar=option.metavar or None,
        min=field.bounds.least,
        max=field.bounds.most,
        show_default=True if option.default_text is None else option.default_text or False,
        dir_okay=option.path != "file",
        file_okay=option.path != "folder",
        rich_help_panel=option.group or panel or None,
    )
    return inspect.Parameter(
        field.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, declared]
    )


def _read(field: OptionField, value: Any) -> Any:
    """Return the value of a field from that of its option."""
    if field.option.switch:
        return field.option.switch if value else None
    if isinstance(value, list):
        separator = field.option.separator
        texts = value if not separator else [part.strip() for text in value for part in text.split(separator)]
        return tuple(filter(None, texts) if separator else texts) or None
    return str(value) if isinstance(value, Path) else value


LAW_OPTIONS = ("law", *CONSTANTS)
TOOL_SEARCH = ("search", "embedding_model")


def given_options(context: typer.Context) -> dict[str, Any]:
    """Return the parameters of a command that stood on the command line, with their values."""
    sources = {name: context.get_parameter_source(name) for name in context.params}
    # The source's class is not public in every version of typer, its name is stable.
    names = [name for name, source in sources.items() if source is not None and source.name == "COMMANDLINE"]
    return {name: context.params[name] for name in names}


def load(library: Path | None) -> ToolLibrary:
    """Return the library of a `--library` option, or the default one."""
    return default_library() if library is None else load_library(library)


@dataclass(frozen=True, slots=True)
class Scene:
    """What `--tasks`, `--split` and `--library` mean together with the options of the environment."""

    environment: EnvironmentSettings
    tasks: list[Task]
    library: ToolLibrary
    own_library: ToolLibrary | None  # the one of `--library`

    def task(self, instance_id: str, tasks: str) -> Task:
        """Return the task of that id; `tasks` is what they were named by."""
        return _named(instance_id, tasks, self.tasks)


def scene(
    context: typer.Context,
    environment: EnvironmentSettings,
    tasks: str,
    split: str | None,
    library: Path | None,
    chosen: Iterable[str] = (),
) -> Scene:
    """Return environment, tasks and library: tasks of a world are played in it, with its own library.

    `chosen` are options that a world leaves as they are, beside those on the command line.
    """
    if not names_world(tasks):
        used = load(library)
        return Scene(environment, chosen_tasks(tasks, split, used), used, None if library is None else used)
    if split is not None or library is not None:
        option = "--split" if split is not None else "--library"
        raise InvalidInputError(f"--tasks {tasks} is a world, which has its own tasks and tools: expected no {option}")
    environment, world_tasks = in_world(environment, tasks, {*given_options(context), *chosen})
    return Scene(environment, world_tasks, library_in(environment, None), None)


def find_task(instance_id: str, tasks: str, library: ToolLibrary) -> Task:
    """Return the task of that id among those that `--tasks` means."""
    return _named(instance_id, tasks, None if tasks == BENCHMARK_VERSION else read_tasks(tasks, library))


def _named(instance_id: str, name: str, tasks: Iterable[Task] | None) -> Task:
    """Return the task of an id among those of a name; the benchmark has those of the previous version, too."""
    if name == BENCHMARK_VERSION:
        return find_benchmark_task(instance_id)  # what was played on it stays readable
    by_id = {task.instance_id: task for task in tasks or ()}
    if instance_id not in by_id:
        raise unknown_name("task", instance_id, by_id, name)
    return by_id[instance_id]


def chosen_tasks(tasks: str, split: str | None, library: ToolLibrary) -> list[Task]:
    """Return the tasks that `--tasks` and `--split` mean: with a split, a number draws a sample from that part."""
    if names_world(tasks):
        raise InvalidInputError(
            f"--tasks {tasks} is a world: expected tasks whose calls are simulated, for this command"
        )
    if split is None:
        return read_tasks(tasks, library)
    if split not in SPLITS:
        raise unknown_name("split", split, SPLITS, "option --split")
    version, count = benchmark_part(tasks) or ("", None)
    if count is not None:
        return sample_tasks(read_tasks(version, library), count, split=split)
    every = read_tasks(tasks, library)
    of_split = [task for task in every if split_of(task.required_tools) == split]
    if not of_split:
        which = "the only task is not" if len(every) == 1 else f"none of the {len(every):,} tasks is"
        raise InvalidInputError(f"{which} in split {split!r}")
    return of_split
