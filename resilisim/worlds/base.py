"""The seam between episodes and what calls really do: worlds, their workspaces, calls and grades.

A world has a tool library, tasks, and a workspace for each episode, on which the tools really work. The success law is
drawn first; only a call that it lets through reaches the workspace. What the workspace refuses (`ToolError`) is an
answer for the agent, whatever else it raises is a bug of the world. Worlds know nothing of episodes.
"""

from __future__ import annotations

import contextlib
import functools
import json
import re
import traceback
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol, cast, runtime_checkable

from resilisim.errors import InfrastructureError, InvalidInputError, check_number, nearest_name, one_line, unknown_name
from resilisim.inputs import import_attribute
from resilisim.tasks import Task
from resilisim.tasks.benchmark import BENCHMARKS
from resilisim.tasks.task import ID_PREFIX
from resilisim.tool_library import ToolLibrary

# Name -> module:attribute of what returns the world, imported only when it is loaded. A maker that takes an argument
# gets what stands behind the first colon of a name ("hotpotqa:dev.json").
WORLDS: Mapping[str, str] = {
    "apis-v1": "resilisim.worlds.apis.world:ApiWorld",
    "hotpotqa": "resilisim.worlds.pages.hotpotqa_and_loft:hotpotqa_world",
    "loft": "resilisim.worlds.pages.hotpotqa_and_loft:loft_world",
    "mcp": "resilisim.integrations.mcp.world:mcp_world",
    "pages": "resilisim.worlds.pages.generated:generated_world",
    "pages-v1": "resilisim.worlds.pages.generated:pages_v1",
    "records": "resilisim.worlds.records.world:generated_records",
    "records-v1": "resilisim.worlds.records.world:records_v1",
    "toolqa": "resilisim.worlds.records.toolqa:load_toolqa",
}

# How episodes of knowledge worlds end: by nothing that the papers lack. RP-ReAct takes up to 10 x 10 steps, ReAct 20 or
# 100 (Molinari and Ciravegna 2026), so it is an agent's own limit that binds, and a call may fail or be repeated.
# Worlds whose name says what is started: of a run that comes from somebody else they are not loaded unasked.
STARTS_PROGRAMS: Final = frozenset({"mcp"})
PAPER_RULES: Final[Mapping[str, int]] = {"max_turns": 100, "max_consecutive_failures": 0, "loop_length": 0}

_ATTRIBUTE: Final = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")  # module:attribute

_NAME: Final = re.compile(r"[A-Za-z][\w-]*")  # of a world that ships; files of tasks have an ending

# "${name}" or "${name.rows.0.price}" in the parameters of a reference call: a value of the result saved as "name".
_EARLIER: Final = re.compile(r"\$\{([^{}]+)\}")


class ToolError(Exception):
    """A tool's own refusal or failure: an answer for the agent, neither injected nor a bug.

    Attributes:
        code: Upper-case code, such as NOT_FOUND.
        message: What the agent reads.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message

    def __reduce__(self) -> tuple[type[ToolError], tuple[str, str]]:
        """Travel between processes as code and message."""
        return type(self), (self.code, self.message)


class WorldFailed(InfrastructureError):
    """A world broke: it raised what no tool should. The episode has no score, and can be tried again.

    Attributes:
        reason: The class of what was raised.
        traceback: Where it was raised.
    """

    def __init__(self, message: str, reason: str = "", traceback: str = "") -> None:
        super().__init__(message)
        self.reason = reason
        self.traceback = traceback


@dataclass(frozen=True, slots=True)
class DoneCall:
    """One executed call, as a world grades it.

    Attributes:
        tool: The tool's name.
        parameters: Its parameters, as the agent gave them.
        output: What it returned; None if it failed.
        error: Code of its failure; None if it succeeded.
        injected: Whether the failure was drawn from the law, so that the tool itself was never asked.
    """

    tool: str
    parameters: Mapping[str, Any] = field(hash=False)
    output: Mapping[str, Any] | None = field(default=None, hash=False)
    error: str | None = None
    injected: bool = False

    @property
    def success(self) -> bool:
        """Whether it succeeded."""
        return self.error is None


@dataclass(frozen=True, slots=True)
class Grade:
    """How good an answer is, by the world's own measure.

    Attributes:
        correct: Whether the task was done, as this world means it.
        score: The same in degrees, 0 to 1; from 0.5 on an answer that is not correct counts as partial success.
        criteria: What the grade is made of, by name, such as {"exact_match": False, "f1": 0.4}.

    Raises:
        InvalidInputError: The score is not between 0 and 1.

    Example:
        >>> from resilisim.worlds import Grade
        >>> Grade(False, 0.4, {"f1": 0.4}).to_mapping()
        {'correct': False, 'score': 0.4, 'criteria': {'f1': 0.4}}
    """

    correct: bool
    score: float
    criteria: Mapping[str, float | bool] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        """Refuse a score that is none."""
        check_number("the score of a grade", self.score, 0.0, 1.0)

    def to_mapping(self) -> dict[str, Any]:
        """Return the grade as it stands in records."""
        return {"correct": bool(self.correct), "score": float(self.score), "criteria": dict(self.criteria)}


@runtime_checkable
class Workspace(Protocol):
    """What the tools of one episode work on.

    Example:
        >>> from resilisim.worlds import ToolError, Workspace
        >>> class Shelf:
        ...     def call(self, tool, parameters):
        ...         if parameters.get("book") != "atlas":
        ...             raise ToolError("NOT_FOUND", "no such book stands on the shelf")
        ...         return {"pages": 320}
        ...
        ...     def close(self):
        ...         pass
        >>> isinstance(Shelf(), Workspace)
        True
    """

    def call(self, tool: str, parameters: Mapping[str, Any]) -> Mapping[str, Any]:
        """Run a tool and return its output, JSON values of any size.

        Raises:
            ToolError: The tool refuses or fails.
            Exception: A bug; the episode is an infrastructure failure and has no score.
        """
        ...

    def close(self) -> None:
        """Release what it holds; called once, also after a bug."""
        ...


@runtime_checkable
class World(Protocol):
    """A tool library, tasks over it, what their tools really do, and what a right answer is.

    A task's `metadata` holds `world` (the name), `answers` (all right answers), `reference` (the calls of a solution,
    see `reference_calls`), and whatever else the world wants; agents never see it. `required_tools` are the distinct
    tools of the reference in the order of their first use. The first N tasks are a fair sample of all of them. A
    world may have end rules of its own in an attribute `rules`, such as `{"max_turns": 100}`.

    A world, whose only tool counts letters:

        >>> from resilisim.tasks import Task
        >>> from resilisim.tool_library import Parameter, ReturnValue, Tool, ToolLibrary
        >>> from resilisim.worlds import Grade, World
        >>> class Letters:
        ...     name = "letters"
        ...     library = ToolLibrary([Tool(
        ...         "letters_counter", "Counts the letters of a word.",
        ...         (Parameter("word"),), (ReturnValue("count", "integer"),),
        ...     )])
        ...
        ...     def tasks(self):
        ...         call = {"tool": "letters_counter", "parameters": {"word": "resilience"}, "save": "counted"}
        ...         fields = {
        ...             "description": "How many letters has 'resilience'?", "required_tools": ["letters_counter"],
        ...             "metadata": {"world": "letters", "answers": ["10"], "reference": [call]},
        ...         }
        ...         return (Task.from_mapping(fields, self.library),)
        ...
        ...     def open(self, task, seed):
        ...         return self
        ...
        ...     def call(self, tool, parameters):
        ...         return {"count": len(parameters["word"])}
        ...
        ...     def close(self):
        ...         pass
        ...
        ...     def grade(self, task, answer, calls):
        ...         correct = answer in task.metadata["answers"]
        ...         return Grade(correct, float(correct))
        >>> isinstance(Letters(), World)
        True
    """

    name: str
    library: ToolLibrary

    def tasks(self) -> tuple[Task, ...]:
        """Return all tasks."""
        ...

    def open(self, task: Task, seed: int) -> Workspace:
        """Return a fresh workspace for an episode; the same task and seed give the same outputs."""
        ...

    def grade(self, task: Task, answer: str | None, calls: Sequence[DoneCall]) -> Grade:
        """Grade an ended episode by its answer (None if none was given) and its calls, without the workspace."""
        ...


@dataclass(frozen=True, slots=True)
class ReferenceCall:
    """One call of a task's reference solution.

    Attributes:
        tool: The tool's name.
        parameters: Its parameters; texts may hold "${name.path}", see `resolve_parameters`.
        save: Name under which its result is kept for later calls; None keeps nothing.

    Example:
        >>> from resilisim.worlds import ReferenceCall
        >>> ReferenceCall("page_reader", {"page": 3}, save="page").save
        'page'
    """

    tool: str
    parameters: Mapping[str, Any] = field(default_factory=dict, hash=False)
    save: str | None = None


def reference_calls(task: Task) -> tuple[ReferenceCall, ...]:
    """Return the calls of a task's reference solution, which its metadata hold; none where it has none."""
    calls = task.metadata.get("reference", ())
    return tuple(ReferenceCall(call["tool"], call.get("parameters", {}), call.get("save")) for call in calls)


def resolve_parameters(parameters: Mapping[str, Any], results: Mapping[str, Any]) -> dict[str, Any]:
    """Return parameters of a reference call with the values of earlier results in their places.

    A text that is only "${name.path}" becomes the value itself, one that holds it among other words has it written in.
    The path goes through objects by name and through arrays by number.

    Args:
        parameters: As the reference says them.
        results: Results of earlier calls by the names that they were saved under.

    Raises:
        InvalidInputError: There is no such result, or nothing at that path.
    """
    return {name: _resolved(value, results) for name, value in parameters.items()}


def _resolved(value: Any, results: Mapping[str, Any]) -> Any:
    if isinstance(value, Mapping):
        return resolve_parameters(value, results)
    if isinstance(value, list | tuple):
        return [_resolved(item, results) for item in value]
    if not isinstance(value, str):
        return value
    whole = _EARLIER.fullmatch(value)
    if whole is not None:
        return _at(whole[1], results)
    return _EARLIER.sub(lambda match: _as_text(_at(match[1], results)), value)


def _at(path: str, results: Mapping[str, Any]) -> Any:
    value: Any = results
    for part in path.split("."):
        try:
            value = value[int(part)] if isinstance(value, list | tuple) else value[part]
        except (KeyError, IndexError, ValueError, TypeError) as error:
            raise InvalidInputError(f"'${{{path}}}' of a reference: nothing is called {part!r} there") from error
    return value


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def called(workspace: Workspace, tool: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a tool of a workspace returns, as plain JSON values of our own.

    Raises:
        ToolError: The tool refuses or fails.
        WorldFailed: It raises anything else, or returns what is no JSON object.
    """
    with _bugs_of(f"tool {tool}", ToolError):
        output = json.loads(json.dumps(workspace.call(tool, parameters), allow_nan=False))
        if not isinstance(output, dict):
            raise TypeError(f"a {type(output).__name__} is no JSON object")
    return output


def opened(world: World, task: Task, seed: int) -> Workspace:
    """Return a fresh workspace; whatever the world raises is a `WorldFailed`."""
    with _bugs_of(f"the workspace of {task.instance_id}"):
        return world.open(task, seed)


def graded(world: World, task: Task, answer: str | None, calls: Sequence[DoneCall]) -> Grade:
    """Return the grade of an ended episode; whatever the world raises is a `WorldFailed`."""
    with _bugs_of(f"the grade of {task.instance_id}"):
        return world.grade(task, answer, calls)


@contextlib.contextmanager
def _bugs_of(what: str, but: tuple[type[Exception], ...] | type[Exception] = ()) -> Iterator[None]:
    try:
        yield
    except but:
        raise
    except Exception as error:
        words = f"{what} broke: {one_line(f'{type(error).__name__}: {error}')}"
        raise WorldFailed(words, type(error).__name__, traceback.format_exc()) from error


def world_names() -> tuple[str, ...]:
    """Return the names of the worlds that ship.

    Example:
        >>> from resilisim.worlds import world_names
        >>> isinstance(world_names(), tuple)
        True
    """
    return tuple(sorted(WORLDS))


@functools.lru_cache(maxsize=16)
def load_world(name: str) -> World:
    """Return a world by its name; worlds are read-only, so the same name gives the same one.

    Args:
        name: Name of a world that ships (`world_names`), "NAME:ARGUMENT" for one that takes an argument such as a
            folder, or `module:attribute` of a world or of what returns one.

    Raises:
        InvalidInputError: There is no such world, or it cannot be made.

    Example:
        >>> from resilisim.worlds import load_world
        >>> load_world("nowhere-v9")
        Traceback (most recent call last):
        ...
        resilisim.errors.InvalidInputError: unknown world 'nowhere-v9': expected ...
    """
    where = f"world {name!r}"
    shipped, colon, argument = name.partition(":")
    if shipped in WORLDS:
        make = import_attribute(WORLDS[shipped], where)
        return cast("World", make(argument) if colon else make())
    if not colon:
        raise unknown_name("world", name, [*world_names(), "module:attribute"])
    made = import_attribute(name, where)
    if isinstance(made, type) or not isinstance(made, World):
        made = cast("Callable[[], Any]", made)() if callable(made) else made
    if not isinstance(made, World):
        raise InvalidInputError(f"{where} gives a {type(made).__name__}: expected name, library, tasks, open and grade")
    return made


def rules_of(name: str) -> Mapping[str, int]:
    """Return the end rules by which a world is played unless others are named; none where it leaves them as they are.

    They are the attribute `rules` of the world, numbers by the names of environment options.

    Raises:
        InvalidInputError: There is no such world.
    """
    rules: Mapping[str, int] = getattr(load_world(name), "rules", {})
    return rules


def names_world(ref: str) -> bool:
    """Tell whether a reference to tasks, as people write it, means those of a world (`world_tasks`).

    So does the name of a world that is misspelt, unless there is a file of that name or a nearer one of other tasks.
    """
    shipped, _, _ = ref.partition(":")
    if shipped in WORLDS:
        return True
    meant = nearest_name(shipped, (*WORLDS, *BENCHMARKS)) if _NAME.fullmatch(shipped) else None
    is_one = meant in WORLDS or _ATTRIBUTE.fullmatch(_without_selection(ref)[0]) is not None
    return is_one and not Path(ref).exists()


def world_tasks(ref: str) -> tuple[str, tuple[Task, ...]]:
    """Return the name of a world and the tasks that a reference means: all, the first N, or the one of an id.

    Args:
        ref: NAME, NAME:N or NAME:ID, where NAME is what `load_world` takes.

    Raises:
        InvalidInputError: There is no such world or task.
    """
    name, selection = _without_selection(ref)
    world = load_world(name)
    tasks = world.tasks()
    if selection.isdecimal():
        count = int(selection[:18])
        if not 1 <= count <= len(tasks):
            raise InvalidInputError(f"{ref!r}: expected a number of tasks from 1 to {len(tasks)}, the size of {name}")
        tasks = tasks[:count]
    elif selection:
        tasks = (world_task(world, selection),)
    return name, tasks


def _without_selection(ref: str) -> tuple[str, str]:
    """Split a reference into the name of a world and what is chosen of its tasks, empty for all."""
    name, colon, selection = ref.rpartition(":")
    is_selection = bool(colon) and (selection.isdecimal() or selection.startswith(ID_PREFIX))
    return (name, selection) if is_selection else (ref, "")


def world_task(world: World, instance_id: str) -> Task:
    """Return the task of a world that has an id.

    Raises:
        InvalidInputError: It has none.
    """
    by_id = _tasks_by_id(world)
    if instance_id not in by_id:
        raise unknown_name("task", instance_id, by_id, world.name)
    return by_id[instance_id]


_TASKS_BY_ID: weakref.WeakKeyDictionary[Any, Mapping[str, Task]] = weakref.WeakKeyDictionary()


def _tasks_by_id(world: World) -> Mapping[str, Task]:
    """Return the tasks of a world by their ids; made once."""
    if world not in _TASKS_BY_ID:
        _TASKS_BY_ID[world] = {task.instance_id: task for task in world.tasks()}
    return _TASKS_BY_ID[world]
