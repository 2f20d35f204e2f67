"""What scalar and batched Workflow-v0 share: tables, settings, the arrays of the episodes, and what a trainer sets."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from resilisim.envs.settings import JUDGED_REWARDS, TRAINING_LAW
from resilisim.envs.workflow import columns
from resilisim.envs.workflow.actions import (
    ACTION_TYPES,
    action_type_of,
    confidence,
    num_actions,
    pattern_confidence,
    pattern_key,
    tool_of,
)
from resilisim.envs.workflow.arrays import (
    MAX_PATTERNS,
    Layout,
    copy_records,
    make_episodes,
    make_records,
    observation_dtype,
    task_dtype,
    world_dtype,
)
from resilisim.envs.workflow.columns import LARGEST, NUM_TASK_COLUMNS, NUM_TOOL_COLUMNS, quantised, saturated
from resilisim.envs.workflow.context import WEIGHT_EMBEDDING, WEIGHT_PATTERN, WEIGHT_RULE, TaskContext, build_context
from resilisim.envs.workflow.dynamics import OUTPUT_TYPE
from resilisim.envs.workflow.judging import ActionJudge, StateJudge
from resilisim.envs.workflow.law_parts import (
    NUM_LAW_COLUMNS,
    NUM_PART_COLUMNS,
    PartTables,
    make_part_tables,
    message_of,
    state_of,
)
from resilisim.envs.workflow.loops import Episodes, TaskRecords, Worlds, show_patterns, write_starts
from resilisim.envs.workflow.options import WorkflowOptions, resolve_tasks
from resilisim.envs.workflow.training import MAX_STAGE
from resilisim.errors import InvalidInputError, check_integer, check_share
from resilisim.seeding import hash_words
from resilisim.simulator.failure_model import Law
from resilisim.simulator.law import BenchmarkLaw
from resilisim.simulator.messages import Message
from resilisim.simulator.problem import Problem, build_problem
from resilisim.simulator.state import EpisodeState
from resilisim.tasks import Task
from resilisim.tool_library import ToolLibrary
from resilisim.workflows.steps import step_parameters

PATTERN_LENGTHS = (2, 3)

Observation = dict[str, NDArray[Any]]

# What copies of a core look up anew, and the records that they have of their own.
_VIEWS = ("observation", "final_observation")
_CHANGING = ("worlds", "episodes", "finals", "_scratch")


class WorkflowCore:
    """A number of Workflow-v0 episodes side by side; resets in the same step overwrite last observations unless kept.

    Attributes:
        indices: Where in `tasks` each one is, by its id.
        context: What retrieval says of the tasks.
        records: Their records, (num_tasks,).
        worlds: The record (1,) of what all episodes share.
        episodes: The episodes' records, (num_envs,).
        finals: Records of last observations, (num_envs,), or (1,) and unused if they are not kept.
        observation: Observations as views into `episodes`: arrays (num_envs, ...).
        judge: What pays the rewards `value` and `advantage`; None under the others.
        final_observation: Those at the end of the latest episode that ended, as views.
    """

    def __init__(self, num_envs: int, options: WorkflowOptions, keep_finals: bool = False) -> None:
        self.options = options
        self.library = options.resolved_library()
        self.tasks = resolve_tasks(options.tasks, self.library)
        self.indices = {task.instance_id: index for index, task in enumerate(self.tasks)}
        self.law = options.failure_model()
        self.rules = options.end_rules()
        self.context = build_context(self.library, self.tasks, options.similarity)
        layout, self.records, self.worlds = build_tables(self.library, self.tasks, options, self.context)
        num_tools = len(self.library)
        self.episodes = make_episodes(num_envs, layout)
        self._scratch = make_episodes(1, layout)
        final_record = observation_dtype(layout)
        self._offsets = {name: int(entry[1]) for name, entry in (final_record.fields or {}).items()}
        self.finals = make_records(num_envs if keep_finals else 1, final_record)
        self._keep_finals = keep_finals
        self.write_starts()
        problems = [self.problem_of(index) for index in range(len(self.tasks))]
        self.parts: PartTables | None = None
        if problems[0].dynamics.has_sections:
            self.parts = make_part_tables(num_envs, len(self.finals), layout, problems)
            fields: Mapping[str, Any] = self.parts.episodes.dtype.fields or {}
            self._part_offset = int(fields["law"][1])
        self._look_up_views()
        self.judge: ActionJudge | StateJudge | None = None
        if options.reward in JUDGED_REWARDS:
            kind = ActionJudge if self.parts is None else StateJudge
            self.judge = kind(self, problems, options.reward)
        self.action_space = spaces.Discrete(num_actions(num_tools))
        self.observation_space = spaces.Dict(
            {
                "tools": self._box(num_tools, NUM_TOOL_COLUMNS),
                "task": self._box(NUM_TASK_COLUMNS),
                "action_mask": spaces.MultiBinary(num_actions(num_tools)),
                **self._part_spaces(),
            }
        )

    def _look_up_views(self) -> None:
        """Look up the observations, which are views into the records."""
        self.observation = self.observation_in(self.episodes["observation"])
        self.final_observation = self.observation_in(self.finals["words"]) if self._keep_finals else self.observation
        if self.parts is not None:
            self.observation |= self._parts_in(self.parts.episodes["observation"])
            if self._keep_finals:
                self.final_observation |= self._parts_in(self.parts.finals)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in _VIEWS}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        self.__dict__.update(state)
        for name in _CHANGING:
            setattr(self, name, copy_records(state[name]))
        if self.parts is not None:
            self.parts = self.parts.copied()
        self._look_up_views()
        if self.judge is not None:
            self.judge = self.judge.of(self)

    def __deepcopy__(self, memo: dict[int, Any]) -> WorkflowCore:
        """Return a copy that shares what never changes: tools, tasks, and what is tabulated of the law."""
        copied = object.__new__(type(self))
        memo[id(self)] = copied
        copied.__setstate__(
            {
                name: copy.deepcopy(value, memo) if isinstance(value, spaces.Space) else value
                for name, value in self.__getstate__().items()
            }
        )
        return copied

    def _part_spaces(self) -> dict[str, spaces.Space[Any]]:
        if self.parts is None:
            return {}
        return {
            "tool_parts": self._box(len(self.library), NUM_PART_COLUMNS),
            "law": self._box(NUM_LAW_COLUMNS),
        }

    def _box(self, *shape: int) -> spaces.Box:
        return spaces.Box(0, LARGEST, shape, np.float32 if self.options.observation_dtype == "float32" else np.uint8)

    def converted(self, observation: Observation) -> Observation:
        """Return an observation, scalar or batched, with numbers of the type that the options name."""
        if self.options.observation_dtype == "uint8":
            return observation
        return {
            name: array if name == "action_mask" else array.astype(np.float32) for name, array in observation.items()
        }

    def copied_observation(self, words: NDArray[np.int64] | None = None) -> Observation:
        """Return the observations as views into copies, of which `words` may be there already."""
        shown = self.observation_in(self.episodes["observation"].copy() if words is None else words)
        return shown if self.parts is None else shown | self._parts_in(self.parts.episodes["observation"].copy())

    def copied_finals(self, rows: NDArray[np.int64]) -> Observation:
        """Return the last observations of some environments as views into one copy, zeros elsewhere."""
        words: NDArray[np.int64] = np.zeros(self.finals["words"].shape, dtype=np.int64)
        words[rows] = self.finals["words"][rows]
        shown = self.observation_in(words)
        if self.parts is not None:
            words = np.zeros_like(self.parts.finals)
            words[rows] = self.parts.finals[rows]
            shown |= self._parts_in(words)
        return shown

    def observation_in(self, words: NDArray[np.int64]) -> Observation:
        """Return the observations in blocks of records, int64 (num_records, num_words), as views."""
        shown = words.view(np.uint8)
        first, second = (self._offsets[name] for name in ("task_columns", "action_mask"))
        num_tools = len(self.library)
        tools = shown[:, : num_tools * NUM_TOOL_COLUMNS].reshape(len(words), num_tools, NUM_TOOL_COLUMNS)
        return {
            "tools": tools,
            "task": shown[:, first : first + NUM_TASK_COLUMNS],
            "action_mask": shown[:, second : second + num_actions(num_tools)].view(np.int8),
        }

    def _parts_in(self, words: NDArray[np.int64]) -> Observation:
        """Return what is shown of a law's parts in blocks of records, likewise."""
        shown, num_tools = words.view(np.uint8), len(self.library)
        tools = shown[:, : num_tools * NUM_PART_COLUMNS].reshape(len(words), num_tools, NUM_PART_COLUMNS)
        return {"tool_parts": tools, "law": shown[:, self._part_offset : self._part_offset + NUM_LAW_COLUMNS]}

    def write_starts(self) -> None:
        """Write the observations with which later episodes begin, which depend on what a trainer has set."""
        self.records = copy_records(self.records)  # copies of the environment may share those that there were
        write_starts(self._scratch, self.records, self.worlds)

    def problem_of(self, task: int) -> Problem:
        """Return the problem of a task."""
        return build_problem(self.library, self.tasks[task].required_tools, self.law, self.rules)


class CoreUser:
    """What scalar and batched Workflow-v0 can do alike with their core."""

    core: WorkflowCore

    def set_running_success(self, rate: float) -> None:
        """Set the running success rate with which later episodes begin (training law's base, phase of the reward)."""
        self.core.worlds["running_success"] = check_share("running success rate", rate)
        self.core.write_starts()

    def set_stage(self, stage: int) -> None:
        """Set the stage of the curriculum with which later episodes begin."""
        self.core.worlds["stage"] = check_integer("curriculum stage", stage, 0, MAX_STAGE)
        self.core.write_starts()

    def set_patterns(self, scores: Mapping[tuple[str, ...], float]) -> None:
        """Set the mined patterns, two or three tool names each, and their scores in [0, 1]; running episodes follow."""
        rows = []
        for names, score in scores.items():
            if len(names) not in PATTERN_LENGTHS:
                raise InvalidInputError(f"pattern {names} has {len(names)} tools: expected two or three")
            check_share(f"score of pattern {names}", score)
            tools = [self.core.library.index(name) for name in names]
            first = tools[0] if len(tools) == max(PATTERN_LENGTHS) else -1
            rows.append((pattern_key(first, tools[-2], tools[-1]), score))
        if len(rows) > MAX_PATTERNS:
            raise InvalidInputError(f"{len(rows)} patterns: expected at most {MAX_PATTERNS}")
        rows.sort()
        worlds = self.core.worlds
        worlds["num_patterns"] = len(rows)
        worlds["pattern_keys"][0, : len(rows)] = [key for key, _ in rows]
        worlds["pattern_scores"][0, : len(rows)] = [score for _, score in rows]
        show_patterns(self.core.episodes, self.core.records, worlds, self.core.parts)

    def problem(self, env: int = 0) -> Problem:
        """Return the problem that an environment's episode is about."""
        return self.core.problem_of(int(self.core.episodes["task"][env]))

    def episode_state(self, env: int = 0) -> EpisodeState:
        """Return an environment's episode as the state that the exact optimum reads (any law but the training law)."""
        core = self.core
        return state_of(core.episodes[env], core.parts, env, len(core.library))

    def message(self, action: int, env: int = 0) -> Message | None:
        """Return what an action is in Conversation-v0, in an environment's present state; None if it is useless."""
        return message_of(self.core.library, self.core.parts, self.core.episodes, env, action)

    def decode_action(self, action: int, env: int = 0) -> WorkflowAction:
        """Return what an action means in the present state of an environment (`decode_action`)."""
        return decode_action(self.core, action, env)


def build_tables(
    library: ToolLibrary, tasks: Sequence[Task], options: WorkflowOptions, context: TaskContext
) -> tuple[Layout, TaskRecords, Worlds]:
    """Return layout, tasks' records (num_tasks,) and the world's (1,), without what `write_starts` computes."""
    law, rules = options.failure_model(), options.end_rules()
    problems = [build_problem(library, task.required_tools, law, rules) for task in tasks]
    dependencies = problems[0].dependencies
    dependents: list[list[int]] = [[] for _ in library]
    for tool, needed in enumerate(dependencies):
        for dependency in needed:
            dependents[dependency].append(tool)
    layout = Layout(
        tools=len(library),
        dependencies=max(map(len, dependencies)),
        dependents=max(map(len, dependents)),
        required=max(len(problem.required) for problem in problems),
        closure=max(len(problem.closure) for problem in problems),
        steps=rules.max_turns + 1,
        bases=len(problems[0].table.bases),
    )
    worlds = make_records(1, world_dtype(layout))
    _write_options(worlds, options)
    start = make_episodes(1, layout)
    start["needs_reset"] = 0
    worlds["start_state"] = start["state"]
    _write_library(worlds, library, dependencies, dependents, context, law)
    _write_law(worlds, problems[0], law.history)
    records = make_records(len(tasks), task_dtype(layout))
    _write_tasks(records, tasks, problems, context, options.salt)
    _write_constant_columns(records, worlds, problems, context)
    return layout, records, worlds


def _write_options(worlds: Worlds, options: WorkflowOptions) -> None:
    rules = options.end_rules()
    worlds["training_law"] = options.law == TRAINING_LAW
    worlds["two_phase"] = options.reward == "two_phase"
    worlds["printed_rules"] = options.printed_rules
    for name in ("semantic", "dependency", "constraint"):
        worlds[f"{name}_filter"] = name in options.filters
    worlds["hidden"] = options.required == "hidden"
    worlds["rewrites_mask"] = options.law == TRAINING_LAW or len(options.filters) > 0
    worlds["max_steps"] = rules.max_turns
    worlds["max_consecutive_failures"] = rules.max_consecutive_failures
    worlds["loop_length"] = rules.loop_length


def _write_library(
    worlds: Worlds,
    library: ToolLibrary,
    dependencies: Sequence[Sequence[int]],
    dependents: Sequence[Sequence[int]],
    context: TaskContext,
    law: BenchmarkLaw | Law,
) -> None:
    num_tools = len(library)
    world = worlds[0]
    world.num_tools = num_tools
    every = range(num_actions(num_tools))
    world.action_type[: len(every)] = [action_type_of(action, num_tools) for action in every]
    world.action_tool[: len(every)] = [tool_of(action, num_tools) for action in every]
    _write_padded(world.dependencies, dependencies)
    _write_padded(world.dependents, dependents)
    for tool, name in enumerate(library.names):
        for ancestor in library.closure((name,)):
            if ancestor != name:
                world.descends[library.index(ancestor), tool] = 1
        word0, word1 = hash_words(name)
        world.tool_word0[tool], world.tool_word1[tool] = word0, word1
        codes = [error.code for error in library[name].failure_errors]
        world.num_errors[tool] = len(codes)
        world.timeout_error[tool] = codes.index("TIMEOUT") if "TIMEOUT" in codes else -1
        weights = [law.error_weight(code) for code in codes] if isinstance(law, Law) and law.errors else []
        if sum(weights) > 0.0:
            before = codes.index("TIMEOUT") if "TIMEOUT" in codes else len(codes)
            world.weighs_errors[tool] = 1
            world.timeout_from[tool] = sum(weights[:before]) / sum(weights)
            world.timeout_below[tool] = sum(weights[: before + 1]) / sum(weights)
    world.operation_type[:num_tools] = context.operation_type


def _write_law(worlds: Worlds, problem: Problem, history: float) -> None:
    world = worlds[0]
    bases, needed, _, failures = problem.table.probability.shape
    world.base_index[: problem.num_tools] = problem.base_index
    world.probability[:bases, :needed, :needed, :failures] = problem.table.probability
    world.threshold[:bases, :needed, :needed, :failures] = problem.table.threshold
    shown = [quantised(chance) for chance in problem.table.probability[..., 0].flat]
    world.shown_probability[:bases, :needed, :needed] = np.reshape(shown, (bases, needed, needed))
    world.history_factor[:failures] = [quantised(history**count) for count in range(failures)]


def _write_tasks(
    records: TaskRecords, tasks: Sequence[Task], problems: Sequence[Problem], context: TaskContext, salt: str
) -> None:
    num_tools = problems[0].num_tools
    words = np.array([hash_words(salt, task.instance_id) for task in tasks], dtype=np.int64)
    records["word0"], records["word1"] = words[:, 0], words[:, 1]
    records["num_required"] = [len(problem.required) for problem in problems]
    records["closure_size"] = [len(problem.closure) for problem in problems]
    _write_padded(records["required"], [problem.required for problem in problems])
    _write_padded(records["closure"], [problem.closure for problem in problems])
    records["place"] = -1
    records["place"][:, :num_tools] = [problem.place for problem in problems]
    records["candidates"] = -1
    records["candidates"][:, :num_tools] = _ranked_candidates(context)
    records["similarity"][:, :num_tools] = context.similarity
    records["static_confidence"][:, :num_tools] = context.static_confidence
    records["task_confidence"][:, :num_tools] = context.task_confidence


def _write_padded(target: NDArray[Any], rows: Sequence[Sequence[int]]) -> None:
    """Write lists as the first rows of an array, padded with -1."""
    target[:] = -1
    for index, row in enumerate(rows):
        target[index, : len(row)] = row


def _milestones(problem: Problem, context: TaskContext) -> int:
    """Return how many milestones a task has: its operation types, and its first output."""
    types = {int(context.operation_type[tool]) for tool in problem.required} - {0}
    return len(types) + int(OUTPUT_TYPE in types)


def _ranked_candidates(context: TaskContext) -> NDArray[np.int64]:
    """Return the candidates of each task, (num_tasks, num_tools), the most similar first, padded with -1."""
    similarity = np.where(context.candidates, context.similarity, -np.inf)
    order = np.argsort(-similarity, axis=1, kind="stable")
    return np.where(np.take_along_axis(context.candidates, order, axis=1), order, -1)


def _write_constant_columns(
    records: TaskRecords, worlds: Worlds, problems: Sequence[Problem], context: TaskContext
) -> None:
    """Write the columns of the first observation that `write_starts` does not compute."""
    library, num_tools = problems[0].library, problems[0].num_tools
    hidden = bool(worlds["hidden"][0])
    shown = records["tools"][:, :num_tools]
    shown[:, :, columns.LEVEL] = [saturated(tool.metadata["dependency_level"]) for tool in library]
    shown[:, :, columns.NUM_DEPENDENCIES] = [saturated(len(tool.dependencies)) for tool in library]
    shown[:, :, columns.OPERATION_TYPE] = context.operation_type
    shown[:, :, columns.SIMILARITY] = _quantised(context.similarity)
    shown[:, :, columns.CONFIDENCE] = _quantised(context.static_confidence)
    shown[:, :, columns.IS_CANDIDATE] = context.candidates
    task_columns = records["task_columns"]
    task_columns[:, : columns.NUM_TASK_FEATURES] = context.features
    task_columns[:, columns.STEPS_LEFT] = saturated(problems[0].rules.max_turns)
    task_columns[:, columns.HISTORY_FACTOR] = quantised(1.0)
    task_columns[:, columns.BASE_PROBABILITY] = quantised(problems[0].law.base)
    if not hidden:
        shown[:, :, columns.PLACE] = np.array([problem.place for problem in problems]) + 1
        task_columns[:, columns.NUM_REQUIRED] = records["num_required"]
        task_columns[:, columns.MILESTONES_EXPECTED] = [_milestones(problem, context) for problem in problems]


def _quantised(shares: NDArray[np.float32]) -> NDArray[np.uint8]:
    return (LARGEST * np.clip(shares, 0.0, 1.0) + 0.5).astype(np.uint8)


def plant_seeds(episodes: Episodes, envs: Sequence[int], seeds: Sequence[int]) -> None:
    """Let environments begin new sequences of episodes."""
    for env, seed in zip(envs, seeds, strict=True):
        word0, word1 = hash_words("workflow episodes", seed)
        episodes["seed0"][env], episodes["seed1"][env] = word0, word1
    episodes["episode"][list(envs)] = 0


NUM_ALTERNATIVES = 3
# Rule and embedding speak together if the smaller part is at least half of the larger one.
HYBRID_SHARE = 0.5


@dataclass(frozen=True, slots=True)
class SemanticPart:
    """What retrieval says of an action's tool.

    Attributes:
        score: Similarity of the tool's text and the task's description, in [0, 1].
        source: What speaks most for the tool: rule, embedding, hybrid or pattern.
        alternatives: Other candidates of the task, the most similar first.
    """

    score: float
    source: str
    alternatives: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class WorkflowAction:
    """An action, decoded.

    Attributes:
        type: One of `actions.ACTION_TYPES`.
        tool: Name of the tool, or None.
        semantic: What retrieval says of the tool; None without one.
        parameters: What the call would pass to the tool, from the task's inputs.
        confidence: Composite confidence of the semantic filter, in [0, 1]; 1 without a tool.

    Example:
        >>> from resilisim.envs.workflow import WorkflowAction
        >>> WorkflowAction("NO_OP", None).confidence
        1.0
    """

    type: str
    tool: str | None
    semantic: SemanticPart | None = None
    parameters: Mapping[str, Any] = field(default_factory=dict)
    confidence: float = 1.0


def decode_action(core: WorkflowCore, action: int, env: int = 0) -> WorkflowAction:
    """Return what an action means in the present state of an environment, or of one of a batch.

    Raises:
        InvalidInputError: There is no such action.

    Example:
        >>> from resilisim.envs.workflow import WorkflowEnv, decode_action
        >>> env = WorkflowEnv(tasks="test")
        >>> _ = env.reset(seed=0)
        >>> action = decode_action(env.core, 0)
        >>> action.type, action.tool
        ('INVOKE_TOOL', 'data_processing_parser')
    """
    num_tools = len(core.library)
    if not 0 <= action < num_actions(num_tools):
        raise InvalidInputError(f"action {action}: expected 0 to {num_actions(num_tools) - 1}")
    kind, tool = ACTION_TYPES[action_type_of(action, num_tools)], tool_of(action, num_tools)
    if tool < 0:
        return WorkflowAction(kind, None)
    episode, world = core.episodes[env], core.worlds[0]
    index = int(episode.task)
    record = core.records[index]
    similarity = max(0.0, float(record.similarity[tool]))
    pattern = float(pattern_confidence(episode, tool, world))
    candidates = [core.library.names[other] for other in record.candidates if other >= 0 and other != tool]
    semantic = SemanticPart(
        score=similarity,
        source=_source(float(core.context.rule_confidence[index, tool]), similarity, pattern),
        alternatives=tuple(candidates[:NUM_ALTERNATIVES]),
    )
    name = core.library.names[tool]
    length = int(episode.sequence_length)
    last = core.library.names[episode.sequence[length - 1]] if length else None
    return WorkflowAction(
        type=kind,
        tool=name,
        semantic=semantic,
        parameters=step_parameters(core.library[name], core.tasks[index].inputs, last),
        confidence=float(confidence(episode, tool, record, world)),
    )


def _source(rule: float, similarity: float, pattern: float) -> str:
    """Return which weighted part of the composite confidence is the largest."""
    parts = np.array([WEIGHT_RULE * rule, WEIGHT_EMBEDDING * similarity])
    if WEIGHT_PATTERN * pattern > parts.max():
        return "pattern"
    if parts.min() >= HYBRID_SHARE * parts.max():
        return "hybrid"
    return "rule" if parts[0] > parts[1] else "embedding"
