"""The options of Workflow-v0, scalar and batched: one list, checked in one place."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal

from resilisim.envs.settings import (
    BENCHMARK_LAW,
    JUDGED_REWARDS,
    LAW_GROUP,
    TRAINING_LAW,
    LawOptions,
    Reward,
    settle_law,
)
from resilisim.envs.workflow.context import SimilaritySource
from resilisim.envs.workflow.kernels.training_law import MAX_STAGE, STAGES
from resilisim.errors import InvalidInputError, shown_value, unknown_argument, unknown_name
from resilisim.options import check_options, option
from resilisim.seeding import TRAINING_SALT
from resilisim.simulator.end_rules import EndRules
from resilisim.simulator.law import Law, shipped_laws
from resilisim.tasks import Task
from resilisim.tasks.benchmark import BENCHMARK_VERSION, benchmark_tasks
from resilisim.tasks.sources import resolve_task
from resilisim.tasks.split import SPLITS, split_of
from resilisim.tool_library import ToolLibrary, default_library

WorkflowReward = Literal["full_success", "two_phase", Reward]
Required = Literal["shown", "hidden", "none"]
ObservationType = Literal["uint8", "float32"]

FILTERS = ("semantic", "dependency", "constraint")
TASK_SETS = (*SPLITS, "all")
BENCHMARK_TURNS = 10  # k_max, but under the training law

# Tasks by the name of their part of the benchmark, or tasks, mappings and ids.
Tasks = str | Sequence[Task | str | Mapping[str, Any]]


@dataclass(frozen=True, kw_only=True)
class WorkflowOptions(LawOptions):
    """Options of Workflow-v0; `resilisim.options.options_of` tells what each of those with a text means.

    Attributes:
        tasks: "train", "validation", "test" or "all" of the benchmark, or a sequence of tasks, mappings or ids.
        library: Tool library; the default one if None.
        filters: Which of the filters "semantic", "dependency" and "constraint" narrow the mask.
        similarity: Where similarities of tasks and tools come from: "auto" (those that ship with the benchmark, else by
            retrieval), "lexical" (search by words), None (all 0), or a function of a description and tool names.

    Raises:
        InvalidInputError: A value is not what its option takes.

    Example:
        >>> from resilisim.envs.workflow import WorkflowOptions
        >>> WorkflowOptions(law="training", filters=["dependency"]).end_rules().max_turns
        28
    """

    tasks: Tasks = "train"
    library: ToolLibrary | None = None
    law: str | Any = option(
        BENCHMARK_LAW,
        "The training law of appendix D.4.1, a law by its name ('resilisim law list'), or the path of a law file.",
        group=LAW_GROUP,
    )
    reward: WorkflowReward = option(
        "full_success",
        "1 at the end or 0 (also called success), the two-phase reward of appendix D.3, what each step changed of V*, "
        "or what its choice gave away of V*.",
    )
    filters: Collection[str] = ()
    required: Required = option(
        "shown",
        "Hidden, the required list is not shown, so that retrieval is the only hint. None (training law), the task is "
        "played as one without such a list: progress is of milestones, successful tools and steps.",
        noun="required option",
    )
    printed_rules: bool = option(False, "Take the paper's rules as printed where docs/decisions reads them otherwise.")
    similarity: SimilaritySource = "auto"
    detailed: bool = option(
        False,
        "Show of each tool what its success serves, and the constants of the law, in the arrays for parts of laws.",
    )
    salt: str = option(TRAINING_SALT, "Salt of the luck.")
    observation_dtype: ObservationType = option(
        "uint8", "Type of the numbers of observations, the mask left out; the numbers are the same.", noun="type"
    )

    def __post_init__(self) -> None:
        """Refuse names that do not exist and numbers that are none."""
        check_options(self)
        filters: object = self.filters
        if isinstance(filters, str) or not isinstance(filters, Collection):
            raise InvalidInputError(f"filters is {filters!r}: expected a list, such as ['dependency']")
        for name in self.filters:
            if name not in FILTERS:
                raise unknown_name("filter", name, FILTERS)
        if self.law not in (BENCHMARK_LAW, TRAINING_LAW):
            self._read_law()
        if self.reward in JUDGED_REWARDS and self.law == TRAINING_LAW:
            raise InvalidInputError(
                f"reward {self.reward!r} under the training law: expected the benchmark law, the one that is solved"
            )

        if self.detailed and self.law == TRAINING_LAW:
            raise InvalidInputError("detailed=True under the training law: expected another law with it")
        if self.required == "none" and self.law != TRAINING_LAW:
            raise InvalidInputError(
                f"required is 'none' under the law {shown_value(self.law)}: expected the training law with it"
            )

    def _read_law(self) -> None:
        given: object = self.law
        is_name = isinstance(given, str) and not Path(given).suffix and not Path(given).exists()
        if is_name and given not in shipped_laws():
            raise unknown_name("law", given, (TRAINING_LAW, *shipped_laws()))
        settle_law(self)

    def with_options(self, options: Mapping[str, Any]) -> WorkflowOptions:
        """Return options some of which have other values; an UnknownArgumentError tells one that does not exist."""
        names = [entry.name for entry in fields(self)]
        for name in options:
            if name not in names:
                raise unknown_argument("Workflow-v0", name, names)
        return replace(self, **options)

    def resolved_library(self) -> ToolLibrary:
        """Return the tool library."""
        return default_library() if self.library is None else self.library

    def failure_model(self) -> Law:
        """Return what decides whether calls succeed, but for the training law."""
        if isinstance(self.law, Law):
            return self.law
        return Law(base=self.base, not_executed=self.not_executed, failed=self.failed, history=self.history)

    def end_rules(self) -> EndRules:
        """Return the end rules; the training law has its own and reads only the number of turns."""
        return EndRules(self.turns_at(MAX_STAGE), self.max_consecutive_failures, self.loop_length)

    def turns_at(self, stage: int) -> int:
        """Return the most steps of an episode at a stage of the curriculum, which the training law alone asks for."""
        if self.max_turns is not None:
            return self.max_turns
        return STAGES[stage].max_turns if self.law == TRAINING_LAW else BENCHMARK_TURNS


def resolve_tasks(tasks: Tasks, library: ToolLibrary) -> tuple[Task, ...]:
    """Return the tasks that an option names."""
    if isinstance(tasks, str):
        if tasks not in TASK_SETS:
            raise unknown_name("set of tasks", tasks, TASK_SETS)
        if library != default_library():
            raise InvalidInputError(
                f"tasks={tasks!r} are those of {BENCHMARK_VERSION}, which need the default library: expected a list of "
                "tasks"
            )
        every = benchmark_tasks()
        return every if tasks == "all" else tuple(task for task in every if split_of(task.required_tools) == tasks)
    if not isinstance(tasks, Sequence):
        raise InvalidInputError(f"tasks is {tasks!r}: expected one of {', '.join(TASK_SETS)}, or a sequence of tasks")
    chosen = tuple(resolve_task(task, library) for task in tasks)
    if not chosen:
        raise InvalidInputError("the list of tasks is empty: expected at least one task")
    return chosen
