"""What scalar and batched Workflow-v0 share: tables, settings, the arrays of the episodes, and what a trainer sets."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from gymnasium import spaces

from resilisim.envs.workflow.actions import num_actions
from resilisim.envs.workflow.arrays import MAX_PATTERNS, make_episodes
from resilisim.envs.workflow.columns import NUM_TASK_COLUMNS, NUM_TOOL_COLUMNS
from resilisim.envs.workflow.context import build_context
from resilisim.envs.workflow.curriculum import MAX_STAGE
from resilisim.envs.workflow.laws import pattern_key
from resilisim.envs.workflow.options import WorkflowOptions, resolve_tasks
from resilisim.envs.workflow.tables import build_tables
from resilisim.errors import InvalidInputError
from resilisim.simulator.problem import Problem, build_problem
from resilisim.simulator.state import EpisodeState

PATTERN_LENGTHS = (2, 3)


class WorkflowCore:
    """A number of Workflow-v0 episodes side by side.

    Args:
        num_envs: Number of episodes.
        options: Options of the environment.

    Attributes:
        library: Tool library.
        tasks: The tasks, by index.
        context: What retrieval says of them.
        records: Their records, (num_tasks,).
        worlds: The record (1,) of what all episodes share.
        episodes: The episodes' records, (num_envs,).
        observation: Observations as views into these: arrays (num_envs, ...).
        final_observation: Those at the end of the latest episode that ended.

    Raises:
        InvalidInputError: An option or a task is not valid.
    """

    def __init__(self, num_envs: int, options: WorkflowOptions) -> None:
        self.options = options
        self.library = options.resolved_library()
        self.tasks = resolve_tasks(options.tasks, self.library)
        self.law = options.benchmark_law()
        self.rules = options.end_rules()
        self.context = build_context(self.library, self.tasks, options.similarity)
        layout, self.records, self.worlds = build_tables(self.library, self.tasks, options, self.context)
        num_tools = len(self.library)
        self.episodes = make_episodes(num_envs, layout)
        self.observation = {
            "tools": self.episodes["tools"][:, :num_tools],
            "task": self.episodes["task_columns"],
            "action_mask": self.episodes["action_mask"][:, : num_actions(num_tools)],
        }
        self.final_observation = {
            "tools": self.episodes["final_tools"][:, :num_tools],
            "task": self.episodes["final_task_columns"],
            "action_mask": self.episodes["final_mask"][:, : num_actions(num_tools)],
        }
        self.action_space = spaces.Discrete(num_actions(num_tools))
        self.observation_space = spaces.Dict(
            {
                "tools": spaces.Box(0, 255, (num_tools, NUM_TOOL_COLUMNS), np.uint8),
                "task": spaces.Box(0, 255, (NUM_TASK_COLUMNS,), np.uint8),
                "action_mask": spaces.MultiBinary(num_actions(num_tools)),
            }
        )

    def set_running_success(self, rate: float) -> None:
        """Set the running success rate with which later episodes begin (training law's base, phase of the reward)."""
        if not 0.0 <= rate <= 1.0:
            raise InvalidInputError(f"running success rate {rate}: expected a number from 0 to 1")
        self.worlds["running_success"] = rate

    def set_stage(self, stage: int) -> None:
        """Set the stage of the curriculum with which later episodes begin."""
        if not 0 <= stage <= MAX_STAGE:
            raise InvalidInputError(f"curriculum stage {stage}: expected 0 to {MAX_STAGE}")
        self.worlds["stage"] = stage

    def set_patterns(self, scores: Mapping[tuple[str, ...], float]) -> None:
        """Set the mined patterns, two or three tool names each, and their scores in [0, 1]."""
        rows = []
        for names, score in scores.items():
            if len(names) not in PATTERN_LENGTHS:
                raise InvalidInputError(f"pattern {names} has {len(names)} tools: expected two or three")
            tools = [self.library.index(name) for name in names]
            first = tools[0] if len(tools) == max(PATTERN_LENGTHS) else -1
            rows.append((pattern_key(first, tools[-2], tools[-1]), score))
        if len(rows) > MAX_PATTERNS:
            raise InvalidInputError(f"{len(rows)} patterns: expected at most {MAX_PATTERNS}")
        rows.sort()
        self.worlds["num_patterns"] = len(rows)
        self.worlds["pattern_keys"][0, : len(rows)] = [key for key, _ in rows]
        self.worlds["pattern_scores"][0, : len(rows)] = [score for _, score in rows]

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
