"""The options of Workflow-v0, scalar and batched: one list, checked in one place."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Literal, Self, TypedDict

from resilisim.envs.workflow.context import SimilaritySource
from resilisim.errors import InvalidInputError, unknown_name
from resilisim.seeding import TRAINING_SALT
from resilisim.simulator.law import BenchmarkLaw, EndRules
from resilisim.tasks import Task
from resilisim.tasks.benchmark import benchmark_tasks, find_task
from resilisim.tasks.model import SPLITS, split_of
from resilisim.tool_library import ToolLibrary, default_library

LAWS = ("benchmark", "training")
REWARDS = ("full_success", "two_phase")
FILTERS = ("semantic", "dependency", "constraint")
REQUIRED = ("shown", "hidden")
TASK_SETS = (*SPLITS, "all")
MAX_TURNS = {"benchmark": 10, "training": 20}  # k_max of SPEC section 5

# Tasks by the name of their part of benchmark-v1, or tasks, mappings and ids.
Tasks = str | Sequence[Task | str | Mapping[str, Any]]


class WorkflowKeywords(TypedDict, total=False):
    """The keyword arguments that both environments take; `WorkflowOptions` says what they mean."""

    tasks: Tasks
    library: ToolLibrary | None
    law: Literal["benchmark", "training"]
    reward: Literal["full_success", "two_phase"]
    filters: Collection[str]
    required: Literal["shown", "hidden"]
    printed_rules: bool
    similarity: SimilaritySource
    salt: str
    base: float
    not_executed: float
    failed: float
    history: float
    max_turns: int | None
    max_consecutive_failures: int
    loop_length: int


@dataclass(frozen=True, kw_only=True)
class WorkflowOptions:
    """Options of Workflow-v0.

    Attributes:
        tasks: "train", "validation", "test" or "all" of benchmark-v1, or a sequence of tasks, mappings or ids.
        library: Tool library; the default one if None.
        law: "benchmark" (section 3) or "training" (appendix D.4.1).
        reward: "full_success" (1 at the end or 0) or "two_phase" (appendix D.3).
        filters: Which of the filters "semantic", "dependency" and "constraint" narrow the mask.
        required: Whether the required list is "shown", or "hidden" so that retrieval is the only hint.
        printed_rules: Take the paper's rules as printed where SPEC section 5 reads them otherwise.
        similarity: Where similarities of tasks and tools come from: "auto" (shipped with benchmark-v1, else computed by
            retrieval), None (all 0), or a function of a description and tool names.
        salt: Salt of the luck.
        base: Base success probability of the benchmark law.
        not_executed: Its factor for each dependency never executed.
        failed: Its factor for each dependency executed but not yet successful.
        history: Its factor for each failed execution so far.
        max_turns: Steps of an episode; 10 under the benchmark law and 20 under the training law if None.
        max_consecutive_failures: Benchmark law: failed executions in a row that end an episode; 0 is off.
        loop_length: Benchmark law: equal unproductive steps in a row that end an episode; 0 is off.
    """

    tasks: Tasks = "train"
    library: ToolLibrary | None = None
    law: str = "benchmark"
    reward: str = "full_success"
    filters: Collection[str] = field(default=())
    required: str = "shown"
    printed_rules: bool = False
    similarity: SimilaritySource = "auto"
    salt: str = TRAINING_SALT
    base: float = 0.8
    not_executed: float = 0.5
    failed: float = 0.7
    history: float = 0.9
    max_turns: int | None = None
    max_consecutive_failures: int = 5
    loop_length: int = 4

    def __post_init__(self) -> None:
        """Refuse names that do not exist."""
        for what, value, valid in (
            ("law", self.law, LAWS),
            ("reward", self.reward, REWARDS),
            ("required option", self.required, REQUIRED),
        ):
            if value not in valid:
                raise unknown_name(what, value, valid)
        filters: object = self.filters
        if isinstance(filters, str) or not isinstance(filters, Collection):
            raise InvalidInputError(f"filters is {filters!r}: expected a list, such as ['dependency']")
        for name, turns in (("max_turns", self.max_turns), ("max_consecutive_failures", self.max_consecutive_failures)):
            if turns is not None and not isinstance(turns, int):
                raise InvalidInputError(f"{name} is {turns!r}: expected a whole number")
        for name in self.filters:
            if name not in FILTERS:
                raise unknown_name("filter", name, FILTERS)

    @classmethod
    def from_keywords(cls, keywords: WorkflowKeywords) -> Self:
        """Build options from keyword arguments.

        Raises:
            InvalidInputError: An argument or a value does not exist.
        """
        names = [entry.name for entry in fields(cls)]
        for name in keywords:
            if name not in names:
                raise unknown_name("argument of Workflow-v0", name, names)
        return cls(**keywords)

    def resolved_library(self) -> ToolLibrary:
        """Return the tool library."""
        return default_library() if self.library is None else self.library

    def benchmark_law(self) -> BenchmarkLaw:
        """Return the constants of the benchmark law."""
        return BenchmarkLaw(self.base, self.not_executed, self.failed, self.history)

    def end_rules(self) -> EndRules:
        """Return the end rules; the training law has its own and reads only the number of turns."""
        turns = MAX_TURNS[self.law] if self.max_turns is None else self.max_turns
        return EndRules(turns, self.max_consecutive_failures, self.loop_length)


def resolve_tasks(tasks: Tasks, library: ToolLibrary) -> tuple[Task, ...]:
    """Return the tasks that an option names.

    Raises:
        InvalidInputError: There is no such part or task, or no task at all.
    """
    if isinstance(tasks, str):
        if tasks not in TASK_SETS:
            raise unknown_name("set of tasks", tasks, TASK_SETS)
        if library != default_library():
            raise InvalidInputError(
                f"tasks={tasks!r} are those of benchmark-v1, which need the default library: expected a list of tasks"
            )
        every = benchmark_tasks()
        return every if tasks == "all" else tuple(task for task in every if split_of(task.required_tools) == tasks)
    if not isinstance(tasks, Sequence):
        raise InvalidInputError(f"tasks is {tasks!r}: expected one of {', '.join(TASK_SETS)}, or a sequence of tasks")
    chosen = tuple(_resolve_task(task, library) for task in tasks)
    if not chosen:
        raise InvalidInputError("the list of tasks is empty: expected at least one task")
    return chosen


def _resolve_task(task: object, library: ToolLibrary) -> Task:
    if isinstance(task, Task):
        return task
    if isinstance(task, str):
        return find_task(task)
    if isinstance(task, Mapping):
        return Task.from_mapping(task, library)
    raise InvalidInputError(f"a task of type {type(task).__name__}: expected an id, a mapping or a Task")
