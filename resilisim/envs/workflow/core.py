"""What scalar and batched Workflow-v0 share: tables, settings, the records of the episodes, and what a trainer sets."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ParamSpec, TypeVar

import numba
import numpy as np
from gymnasium import spaces as gymnasium_spaces
from numpy.typing import NDArray

from resilisim.envs.settings import JUDGED_REWARDS
from resilisim.envs.workflow.context import build_context
from resilisim.envs.workflow.judging import ActionJudge, SolvedValues, TabulatedValues
from resilisim.envs.workflow.kernels.batch_loops import begin_episodes, show_patterns, step_environments, write_starts
from resilisim.envs.workflow.kernels.mask import confidence, pattern_confidence, pattern_key
from resilisim.envs.workflow.kernels.records import (
    MAX_PATTERNS,
    PATTERN_LENGTHS,
    Records,
    copy_records,
    make_episodes,
    make_records,
    observation_dtype,
    outcome_dtype,
    sections_dtype,
)
from resilisim.envs.workflow.kernels.step import Outcome
from resilisim.envs.workflow.kernels.training_law import MAX_STAGE
from resilisim.envs.workflow.options import WorkflowOptions, resolve_tasks
from resilisim.envs.workflow.spaces import (
    ACTION_TYPES,
    BLOCK_REFUSED,
    INVOKE_TOOL,
    LARGEST,
    NO_OP,
    NUM_LAW_COLUMNS,
    NUM_PART_COLUMNS,
    NUM_TASK_COLUMNS,
    NUM_TOOL_COLUMNS,
    PART_BLOCK,
    VALIDATE_OUTPUT,
    WEIGHT_EMBEDDING,
    WEIGHT_PATTERN,
    WEIGHT_RULE,
    action_type_of,
    num_actions,
    tool_of,
)
from resilisim.envs.workflow.tables import build_tables, call_parameters
from resilisim.errors import InvalidInputError, check_integer, check_share
from resilisim.seeding import hash_words
from resilisim.simulator.messages import FINISH, WAIT, Message, execution
from resilisim.simulator.problem import Problem, build_problem
from resilisim.simulator.state import EpisodeState
from resilisim.workflows.steps import step_parameters

P = ParamSpec("P")
R = TypeVar("R")

Observation = dict[str, NDArray[Any]]

# What copies of a core look up anew, and the records that they have of their own.
_VIEWS = ("observation", "final_observation", "_entries")
_CHANGING = ("worlds", "episodes", "sections", "finals", "final_sections", "_scratch", "_scratch_sections")


class WorkflowCore:
    """A number of Workflow-v0 episodes side by side; resets in the same step overwrite last observations unless kept.

    Attributes:
        indices: Where in `tasks` each one is, by its id.
        context: What retrieval says of the tasks.
        records: Their records, (num_tasks,).
        worlds: The record (1,) of what all episodes share.
        episodes: The episodes' records, (num_envs,).
        sections: What they have beside under a law with sections, (num_envs,), else (1,) and unused.
        finals: Records of last observations, (num_envs,), or (1,) and unused if they are not kept.
        final_sections: Likewise of what sections show.
        observation: Observations as views into the records: arrays (num_envs, ...).
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
        self.has_sections = bool(self.worlds["has_sections"][0])
        self.episodes, self._scratch = make_episodes(num_envs, layout), make_episodes(1, layout)
        of_sections = sections_dtype(layout)
        self.sections = make_records(num_envs if self.has_sections else 1, of_sections)
        self._scratch_sections = make_records(1, of_sections)
        self._keep_finals = keep_finals
        self._of_outcomes = outcome_dtype(self.episodes.dtype)
        final, final_sections = observation_dtype(self.episodes.dtype, 3), observation_dtype(of_sections, 2)
        self.finals = make_records(num_envs if keep_finals else 1, final)
        self.final_sections = make_records(num_envs if keep_finals and self.has_sections else 1, final_sections)
        self._shown = {
            "tools": (_offset(final, "tools"), (num_tools, NUM_TOOL_COLUMNS)),
            "task": (_offset(final, "task_columns"), (NUM_TASK_COLUMNS,)),
            "action_mask": (_offset(final, "action_mask"), (num_actions(num_tools),)),
        }
        self._shown_of_sections = {
            "tool_parts": (0, (num_tools, NUM_PART_COLUMNS)),
            "law": (_offset(final_sections, "law"), (NUM_LAW_COLUMNS,)),
        }
        self.write_starts()
        self._look_up_views()
        self.judge: ActionJudge | None = None
        if options.reward in JUDGED_REWARDS:
            problems = [self.problem_of(index) for index in range(len(self.tasks))]
            values = SolvedValues(problems) if self.law.has_sections else TabulatedValues(problems)
            self.judge = ActionJudge(self, values, options.reward)
        self.action_space = gymnasium_spaces.Discrete(num_actions(num_tools))
        shown = self._shown | (self._shown_of_sections if self.has_sections else {})
        kind = np.float32 if options.observation_dtype == "float32" else np.uint8
        of_arrays: dict[str, gymnasium_spaces.Space[Any]] = {
            name: gymnasium_spaces.Box(0, LARGEST, shape, kind) for name, (_, shape) in shown.items()
        }
        of_arrays["action_mask"] = gymnasium_spaces.MultiBinary(num_actions(num_tools))
        self.observation_space = gymnasium_spaces.Dict(of_arrays)

    def _look_up_views(self) -> None:
        """Look up the observations, which are views into the records, and forget which compiled code they take."""
        self._entries: dict[str, Callable[..., Any]] = {}
        self.observation = self._views(self.episodes["observation"], self.sections["observation"])
        self.final_observation = self.observation
        if self._keep_finals:
            self.final_observation = self._views(self.finals["words"], self.final_sections["words"])

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in _VIEWS}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        self.__dict__.update(state)
        for name in _CHANGING:
            setattr(self, name, copy_records(state[name]))
        self._look_up_views()
        if self.judge is not None:
            self.judge = self.judge.of(self)

    def __deepcopy__(self, memo: dict[int, Any]) -> WorkflowCore:
        """Return a copy that shares what never changes: tools, tasks, and what is tabulated of the law."""
        copied = object.__new__(type(self))
        memo[id(self)] = copied
        copied.__setstate__(
            {
                name: copy.deepcopy(value, memo) if isinstance(value, gymnasium_spaces.Space) else value
                for name, value in self.__getstate__().items()
            }
        )
        copied._entries = self._entries
        return copied

    def begin(
        self, envs: NDArray[np.int64], tasks: NDArray[np.int64], seeds: NDArray[np.int64], pool: NDArray[np.int64]
    ) -> None:
        """Begin episodes (`begin_episodes`)."""
        arguments = envs, tasks, seeds, pool, self.episodes, self.sections, self.records, self.worlds
        if "begin" not in self._entries:
            self._entries["begin"] = entry_of(begin_episodes, *arguments)
        self._entries["begin"](*arguments)

    def step(
        self,
        actions: NDArray[np.int64],
        outcome: Outcome,
        autoreset: int,
        pool: NDArray[np.int64],
        rewards: NDArray[np.float64],
        terminated: NDArray[np.uint8],
        part: slice | None = None,
    ) -> int:
        """Step every environment, or those of a part, and return how many episodes ended (`step_environments`)."""
        changing = [self.episodes, self.sections, self.finals, self.final_sections]
        if part is not None:  # where there is only one record, nobody reads it, or it is the environment's own
            changing = [records[part] if len(records) > 1 else records for records in changing]
        arguments = actions, *outcome, autoreset, pool, *changing, self.records, self.worlds, rewards, terminated
        if "step" not in self._entries:
            self._entries["step"] = entry_of(step_environments, *arguments)
        num_ended: int = self._entries["step"](*arguments)
        return num_ended

    def converted(self, observation: Observation) -> Observation:
        """Return an observation, scalar or batched, with numbers of the type that the options name."""
        if self.options.observation_dtype == "uint8":
            return observation
        return {
            name: array if name == "action_mask" else array.astype(np.float32) for name, array in observation.items()
        }

    def copied_observation(self, words: NDArray[np.int64] | None = None) -> Observation:
        """Return the observations as views into copies, of which `words` of the episodes may be there already."""
        own = self.episodes["observation"].copy() if words is None else words
        return self._views(own, self.sections["observation"].copy())

    def copied_finals(self, rows: NDArray[np.int64]) -> Observation:
        """Return the last observations of some environments as views into one copy, zeros elsewhere."""
        own, of_sections = _only(self.finals["words"], rows), self.final_sections["words"]
        return self._views(own, _only(of_sections, rows) if self.has_sections else of_sections)

    def outcomes(self, rows: NDArray[np.int64]) -> Records:
        """Return how the latest episodes of some environments came out, by fields of `Episode`; zeros elsewhere."""
        return _only(self.episodes["outcome"], rows).view(self._of_outcomes)[:, 0]

    def _views(self, words: NDArray[np.int64], words_of_sections: NDArray[np.int64]) -> Observation:
        """Return the observations in blocks of records, int64 (num_records, num_words), as views."""
        views = {name: _view(words, *place) for name, place in self._shown.items()}
        views["action_mask"] = views["action_mask"].view(np.int8)
        if self.has_sections:
            views |= {name: _view(words_of_sections, *place) for name, place in self._shown_of_sections.items()}
        return views

    def write_starts(self) -> None:
        """Write the observations with which later episodes begin, which depend on what a trainer has set."""
        self.records = copy_records(self.records)  # copies of the environment may share those that there were
        write_starts(self._scratch, self._scratch_sections, self.records, self.worlds)

    def problem_of(self, task: int) -> Problem:
        """Return the problem of a task."""
        return build_problem(self.library, self.tasks[task].required_tools, self.law, self.rules)

    def sections_of(self, env: int) -> Any:
        """Return an environment's record of sections; under a law without, one that says nothing."""
        return self.sections[env if self.has_sections else 0]

    def state_of(self, env: int) -> EpisodeState:
        """Return an episode as the state that the exact optimum reads."""
        episode, sections, rules = self.episodes[env], self.sections_of(env), self.worlds[0].rules
        num_tools = len(self.library)
        return EpisodeState(
            tuple(episode.status[:num_tools].tolist()),
            tuple(episode.counters.tolist()),
            tuple(episode.executions[:num_tools].tolist()),
            tuple(sections.parts[: rules.num_parts].tolist()),
            tuple(sections.hidden[: rules.num_hidden].tolist()),
        )

    def message_of(self, env: int, action: int) -> Message | None:
        """Return what an action means in an episode's present state; None if it does nothing and helps nobody."""
        num_tools, sections = len(self.library), self.sections_of(env)
        kind, tool = action_type_of(action, num_tools), tool_of(action, num_tools)
        if not self.episodes[env].action_mask[action]:
            return None
        if kind == VALIDATE_OUTPUT:
            return FINISH
        if kind == NO_OP:
            return WAIT if self.worlds[0].rules.waiting_is_productive else None
        described = self.library[self.library.names[tool]]
        changes = kind == INVOKE_TOOL and sections.tool_parts[tool, PART_BLOCK] == BLOCK_REFUSED
        variant = 1 - sections.variant[tool] if changes else sections.variant[tool]
        return execution(described.name, call_parameters(described, variant))


def entry_of(compiled: Callable[P, R], *arguments: P.args, **no_names: P.kwargs) -> Callable[P, R]:
    """Return what runs a kernel's code for arguments of these types, and of no others, without asking for their types.

    A kernel asks in each call, and takes a microsecond for each array of records, longer than an environment steps.
    """
    compile_for = getattr(compiled, "compile", None)
    if compile_for is None:  # plain Python
        return compiled
    type_of: Callable[[object], object] = numba.typeof
    entry: Callable[P, R] = compile_for(tuple(type_of(argument) for argument in arguments))
    return entry


def _only(words: NDArray[np.int64], rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return a copy of some rows of words, zeros elsewhere."""
    copied = np.zeros_like(words, order="C")
    copied[rows] = words[rows]
    return copied


def _offset(record: np.dtype[Any], name: str) -> int:
    fields: Mapping[str, Any] = record.fields or {}
    return int(fields[name][1])


def _view(words: NDArray[np.int64], start: int, shape: tuple[int, ...]) -> NDArray[Any]:
    """Return the bytes from a place in each row of words on, (num_records, *shape)."""
    shown = words.view(np.uint8)[:, start : start + math.prod(shape)]
    return shown.reshape(len(words), *shape)


class CoreUser:
    """What scalar and batched Workflow-v0 can do alike with their core."""

    core: WorkflowCore
    _pool: NDArray[np.int64]  # indices of the tasks that later episodes are drawn from

    def set_running_success(self, rate: float) -> None:
        """Set the running success rate with which later episodes begin (training law's base, phase of the reward)."""
        self.core.worlds["running_success"] = check_share("running success rate", rate)
        self.core.write_starts()

    def set_stage(self, stage: int, *, max_turns: int | None = None, tasks: Sequence[int] | None = None) -> None:
        """Set the stage of the curriculum with which later episodes begin; before that it is the last one, 4.

        Args:
            stage: The row of Table 12 that says what success is.
            max_turns: Steps of these episodes, at most those of the options; by the stage if omitted.
            tasks: Indices of the tasks that they are drawn from; all if omitted.

        Raises:
            InvalidInputError: There is no such stage, number of steps or task.
        """
        core = self.core
        core.worlds["stage"] = check_integer("curriculum stage", stage, 0, MAX_STAGE)
        turns, longest = core.options.turns_at(stage), core.rules.max_turns
        if max_turns is not None:
            turns = check_integer("max_turns of a stage", max_turns, 1, longest)
            if core.judge is not None and turns != longest:
                raise InvalidInputError(
                    f"max_turns of a stage is {turns} with the reward {core.options.reward!r}, which was solved for "
                    f"{longest}: expected that"
                )
        core.worlds["max_turns"] = turns
        self._pool = np.arange(len(core.tasks))
        if tasks is not None:
            if not len(tasks):
                raise InvalidInputError("tasks of a stage is empty: expected at least one task")
            self._pool = np.array([check_integer("task", task, 0, len(core.tasks) - 1) for task in tasks])
        core.write_starts()

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
        show_patterns(self.core.episodes, self.core.sections, self.core.records, worlds)

    def problem(self, env: int = 0) -> Problem:
        """Return the problem that an environment's episode is about."""
        return self.core.problem_of(int(self.core.episodes["task"][env]))

    def episode_state(self, env: int = 0) -> EpisodeState:
        """Return an environment's episode as the state that the exact optimum reads (any law but the training law)."""
        return self.core.state_of(env)

    def message(self, action: int, env: int = 0) -> Message | None:
        """Return what an action is in Conversation-v0, in an environment's present state; None if it is useless."""
        return self.core.message_of(env, action)

    def decode_action(self, action: int, env: int = 0) -> WorkflowAction:
        """Return what an action means in the present state of an environment (`decode_action`)."""
        return decode_action(self.core, action, env)


def plant_seeds(episodes: Records, envs: Sequence[int], seeds: Sequence[int]) -> None:
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
        type: One of `spaces.ACTION_TYPES`.
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
