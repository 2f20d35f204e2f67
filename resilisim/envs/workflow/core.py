"""What scalar and batched Workflow-v0 share: tables, settings, the arrays of the episodes, and what a trainer sets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from resilisim.envs.workflow.actions import num_actions
from resilisim.envs.workflow.arrays import (
    MAX_PATTERNS,
    make_episodes,
    make_records,
    observation_dtype,
)
from resilisim.envs.workflow.columns import NUM_TASK_COLUMNS, NUM_TOOL_COLUMNS
from resilisim.envs.workflow.context import build_context
from resilisim.envs.workflow.curriculum import MAX_STAGE
from resilisim.envs.workflow.kernel import show_patterns, write_starts
from resilisim.envs.workflow.laws import pattern_key
from resilisim.envs.workflow.options import WorkflowOptions, resolve_tasks
from resilisim.envs.workflow.tables import build_tables
from resilisim.errors import InvalidInputError
from resilisim.simulator.problem import Problem, build_problem
from resilisim.simulator.state import EpisodeState

PATTERN_LENGTHS = (2, 3)

Observation = dict[str, NDArray[Any]]


class WorkflowCore:
    """A number of Workflow-v0 episodes side by side.

    Args:
        num_envs: Number of episodes.
        options: Options of the environment.
        keep_finals: Whether resets in the same step will overwrite last observations, which then have to be kept.

    Attributes:
        library: Tool library.
        tasks: The tasks, by index.
        context: What retrieval says of them.
        records: Their records, (num_tasks,).
        worlds: The record (1,) of what all episodes share.
        episodes: The episodes' records, (num_envs,).
        finals: Records of last observations, (num_envs,), or (1,) and unused if they are not kept.
        observation: Observations as views into `episodes`: arrays (num_envs, ...).
        final_observation: Those at the end of the latest episode that ended, as views.

    Raises:
        InvalidInputError: An option or a task is not valid.
    """

    def __init__(self, num_envs: int, options: WorkflowOptions, keep_finals: bool = False) -> None:
        self.options = options
        self.library = options.resolved_library()
        self.tasks = resolve_tasks(options.tasks, self.library)
        self.law = options.benchmark_law()
        self.rules = options.end_rules()
        self.context = build_context(self.library, self.tasks, options.similarity)
        layout, self.records, self.worlds = build_tables(self.library, self.tasks, options, self.context)
        num_tools = len(self.library)
        self.episodes = make_episodes(num_envs, layout)
        self._scratch = make_episodes(1, layout)
        final_record = observation_dtype(layout)
        self._offsets = {name: int(entry[1]) for name, entry in (final_record.fields or {}).items()}
        self.finals = make_records(num_envs if keep_finals else 1, final_record)
        self.observation = self.observation_of(self.episodes)
        self.final_observation = self.observation_of(self.finals) if keep_finals else self.observation
        self.write_starts()
        self.action_space = spaces.Discrete(num_actions(num_tools))
        self.observation_space = spaces.Dict(
            {
                "tools": spaces.Box(0, 255, (num_tools, NUM_TOOL_COLUMNS), np.uint8),
                "task": spaces.Box(0, 255, (NUM_TASK_COLUMNS,), np.uint8),
                "action_mask": spaces.MultiBinary(num_actions(num_tools)),
            }
        )

    def observation_of(self, records: NDArray[Any]) -> Observation:
        """Return the observations in records of `arrays`, (num_records,), as views: arrays (num_records, ...)."""
        num_tools = len(self.library)
        return {
            "tools": records["tools"][:, :num_tools],
            "task": records["task_columns"],
            "action_mask": records["action_mask"][:, : num_actions(num_tools)],
        }

    def copied_observation(self) -> Observation:
        """Return the observations as views into one copy."""
        words: NDArray[np.int64] = self.episodes["observation"].copy()
        return self._observation_in(words)

    def copied_finals(self, rows: NDArray[np.int64]) -> Observation:
        """Return the last observations of some environments as views into one copy, zeros elsewhere."""
        words: NDArray[np.int64] = np.zeros(self.finals["words"].shape, dtype=np.int64)
        words[rows] = self.finals["words"][rows]
        return self._observation_in(words)

    def _observation_in(self, words: NDArray[np.int64]) -> Observation:
        """Return the observations in copied blocks, int64 (num_records, num_words), as views."""
        shown = words.view(np.uint8)
        first, second = (self._offsets[name] for name in ("task_columns", "action_mask"))
        num_tools = len(self.library)
        tools = shown[:, : num_tools * NUM_TOOL_COLUMNS].reshape(len(words), num_tools, NUM_TOOL_COLUMNS)
        return {
            "tools": tools,
            "task": shown[:, first : first + NUM_TASK_COLUMNS],
            "action_mask": shown[:, second : second + num_actions(num_tools)].view(np.int8),
        }

    def write_starts(self) -> None:
        """Write the observations with which later episodes begin, which depend on what a trainer has set."""
        write_starts(self._scratch, self.records, self.worlds)

    def set_running_success(self, rate: float) -> None:
        """Set the running success rate with which later episodes begin (training law's base, phase of the reward)."""
        if not 0.0 <= rate <= 1.0:
            raise InvalidInputError(f"running success rate {rate}: expected a number from 0 to 1")
        self.worlds["running_success"] = rate
        self.write_starts()

    def set_stage(self, stage: int) -> None:
        """Set the stage of the curriculum with which later episodes begin."""
        if not 0 <= stage <= MAX_STAGE:
            raise InvalidInputError(f"curriculum stage {stage}: expected 0 to {MAX_STAGE}")
        self.worlds["stage"] = stage
        self.write_starts()

    def set_patterns(self, scores: Mapping[tuple[str, ...], float]) -> None:
        """Set the mined patterns, two or three tool names each, and their scores in [0, 1]; running episodes follow."""
        rows = []
        for names, score in scores.items():
            if len(names) not in PATTERN_LENGTHS:
                raise InvalidInputError(f"pattern {names} has {len(names)} tools: expected two or three")
            if not 0.0 <= score <= 1.0:
                raise InvalidInputError(f"score {score} of pattern {names}: expected a number from 0 to 1")
            tools = [self.library.index(name) for name in names]
            first = tools[0] if len(tools) == max(PATTERN_LENGTHS) else -1
            rows.append((pattern_key(first, tools[-2], tools[-1]), score))
        if len(rows) > MAX_PATTERNS:
            raise InvalidInputError(f"{len(rows)} patterns: expected at most {MAX_PATTERNS}")
        rows.sort()
        self.worlds["num_patterns"] = len(rows)
        self.worlds["pattern_keys"][0, : len(rows)] = [key for key, _ in rows]
        self.worlds["pattern_scores"][0, : len(rows)] = [score for _, score in rows]
        show_patterns(self.episodes, self.records, self.worlds)

    def problem(self, env: int) -> Problem:
        """Return the problem that an environment's episode is about."""
        return self.problem_of(int(self.episodes["task"][env]))

    def problem_of(self, task: int) -> Problem:
        """Return the problem of a task."""
        return build_problem(self.library, self.tasks[task].required_tools, self.law, self.rules)

    def episode_state(self, env: int) -> EpisodeState:
        """Return an environment's episode as the state that the exact optimum reads (benchmark law)."""
        episode = self.episodes[env]
        size = len(self.library)
        return EpisodeState(
            tuple(episode.status[:size].tolist()),
            tuple(episode.counters.tolist()),
            tuple(episode.executions[:size].tolist()),
        )
