"""Workflow-v0, one episode at a time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Unpack, cast

import gymnasium
import numpy as np
from numpy.typing import NDArray

from resilisim.envs.workflow.actions import ACTION_TYPES, action_type_of, tool_of
from resilisim.envs.workflow.columns import STATUS, STATUSES
from resilisim.envs.workflow.core import WorkflowCore
from resilisim.envs.workflow.ends import END_FIELDS, ended_by
from resilisim.envs.workflow.kernel import DRAWN, begin_drawn_episodes, begin_episodes, step_one
from resilisim.envs.workflow.options import WorkflowKeywords, WorkflowOptions
from resilisim.envs.workflow.seeds import plant_seeds
from resilisim.errors import InvalidInputError, unknown_name
from resilisim.seeding import MAX_SEED

Observation = dict[str, NDArray[Any]]

_FIRST = np.zeros(1, dtype=np.int64)
RESET_OPTIONS = ("task", "episode_seed")


class WorkflowEnv(gymnasium.Env[Observation, np.int64]):
    """The workflow MDP: which tool to call next, one call a step.

    ## What it is
    A task asks for some tools in an order. Tools succeed with a known probability, lower while their dependencies are
    missing and after failures. Under the benchmark law an episode is one of Conversation-v0 without the words: the same
    transition, the same luck for the same salt, seed and task, and the same score.

    ## Actions
    `Discrete(9 x (T + 1) + 4)`, 283 with 30 tools; `actions` has the layout. Under the benchmark law only INVOKE_TOOL
    and, after a failure, RETRY_TOOL are legal. An action that the mask forbids uses a step and does nothing.

    ## Observations
    A dict of `tools` uint8 (T, 19), `task` uint8 (38,) and `action_mask` int8 (283,); `columns` documents each column.

    ## Start
    `reset(seed=s)` draws task and episode seed from s; the following episodes continue that sequence, so episode k
    after it is a function of (s, k). `options={"task": index or id, "episode_seed": s}` choose them.

    ## Rewards
    `full_success`: 1 when all required tools have succeeded in their order, else 0. `two_phase`: appendix D.3.

    ## Termination
    Benchmark law: success, turns used, consecutive failures, the loop rule. Training law: appendix D.4.1. Never
    truncated: the steps left are part of the state.

    ## Info
    Always `instance_id` and `episode_seed`; after a step `execution` (tool, success, status) or None; at the
    end `success` (of the law), `full_success`, `score` (final progress), `coverage`, `sequence`, `steps`, `ended_by`,
    `episode_return`, `task` (index).

    ## Arguments
    Those of `WorkflowOptions`, and `render_mode` (`ansi` or None).

    ## Source
    SPEC section 5; the paper's appendix D.

    ## Versions
    v0: first.
    """

    metadata = {  # noqa: RUF012  (Gymnasium declares it as it is)
        "render_modes": ["ansi"],
        "render_fps": 1,
    }

    def __init__(self, *, render_mode: str | None = None, **options: Unpack[WorkflowKeywords]) -> None:
        if render_mode is not None and render_mode not in self.metadata["render_modes"]:
            raise unknown_name("render mode", render_mode, self.metadata["render_modes"])
        self.core = WorkflowCore(1, WorkflowOptions.from_keywords(options))
        self.render_mode = render_mode
        self.action_space = self.core.action_space
        self.observation_space = cast("gymnasium.Space[Observation]", self.core.observation_space)
        self._num_actions = int(self.core.action_space.n)
        self._seeded = False
        self._num_tools = len(self.core.library)
        self._indices = {task.instance_id: index for index, task in enumerate(self.core.tasks)}
        self._last = "reset"

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Begin an episode.

        Args:
            seed: Begins a new sequence of episodes, 0 to 2^63 - 1; the present one goes on if omitted.
            options: `task` (index or id) and `episode_seed` (0 to 2^63 - 1) instead of drawn ones.

        Raises:
            InvalidInputError: An option or its value is not valid.
        """
        if seed is not None and not 0 <= seed <= MAX_SEED:
            raise InvalidInputError(f"seed {seed} is out of range: expected 0 to 2^63 - 1")
        super().reset(seed=seed)
        core = self.core
        if seed is not None or not self._seeded:
            chosen = seed if seed is not None else int(self.np_random.integers(2**31))
            plant_seeds(core.episodes, [0], [chosen])
            self._seeded = True
        pool, episode_seed = self._chosen(options or {})
        arguments = (core.episodes, core.records, core.worlds)
        begin_drawn_episodes(_FIRST, pool, *arguments)
        if episode_seed is not None:
            core.episodes["episode"] -= 1  # the same episode once more, with a luck that was asked for
            begin_episodes(_FIRST, core.episodes["task"].copy(), np.array([episode_seed], np.int64), *arguments)
        self._last = "reset"
        return self._observation(), self._info()

    def step(self, action: int | np.int64) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Let an action happen.

        Raises:
            RuntimeError: The episode has ended, or none was begun.
            InvalidInputError: There is no such action.
        """
        return self._step(action, DRAWN)

    def step_with_outcome(
        self, action: int | np.int64, status: int
    ) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Let an action happen whose execution shows a given status instead of what luck would bring.

        For planning along a path, and for following an episode of Conversation-v0.

        Args:
            action: The action.
            status: columns.SUCCESS, FAILED, TIMEOUT or DEPENDENCY_FAILED.
        """
        return self._step(action, status)

    def action_masks(self) -> NDArray[np.bool_]:
        """Return which actions are legal, bool (num_actions,), as sb3-contrib asks for it."""
        mask: NDArray[np.bool_] = self.core.observation["action_mask"][0].astype(np.bool_)
        return mask

    def render(self) -> str | None:
        """Return what happened last as one line (`ansi`)."""
        return self._last if self.render_mode == "ansi" else None

    def set_running_success(self, rate: float) -> None:
        """See `WorkflowCore.set_running_success`."""
        self.core.set_running_success(rate)

    def set_stage(self, stage: int) -> None:
        """See `WorkflowCore.set_stage`."""
        self.core.set_stage(stage)

    def set_patterns(self, scores: Mapping[tuple[str, ...], float]) -> None:
        """See `WorkflowCore.set_patterns`."""
        self.core.set_patterns(scores)

    def _step(self, action: int | np.int64, outcome: int) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        core = self.core
        if core.episodes.needs_reset[0]:
            raise RuntimeError("the episode has ended, or none was begun: call reset first")
        action = int(action)
        if not 0 <= action < self._num_actions:
            raise InvalidInputError(f"action {action}: expected 0 to {self._num_actions - 1}")
        step_one(action, outcome, core.episodes, core.records, core.worlds)
        info = self._info()
        info["execution"] = self._execution()
        terminated = bool(core.episodes.terminated[0])
        if terminated:
            info.update(self._end())
        if self.render_mode is not None:
            self._last = self._line(action, info)
        return self._observation(), float(core.episodes.reward[0]), terminated, False, info

    def _chosen(self, options: dict[str, Any]) -> tuple[NDArray[np.int64], int | None]:
        """Return the tasks to draw from, and the episode seed if one was asked for."""
        for name in options:
            if name not in RESET_OPTIONS:
                raise unknown_name("reset option", name, RESET_OPTIONS)
        episode_seed = options.get("episode_seed")
        if episode_seed is not None and not 0 <= episode_seed <= MAX_SEED:
            raise InvalidInputError(f"episode_seed {episode_seed} is out of range: expected 0 to 2^63 - 1")
        task = options.get("task")
        if task is None:
            return np.arange(len(self.core.tasks)), episode_seed
        if isinstance(task, str):
            if task not in self._indices:
                raise unknown_name("task of this environment", task, list(self._indices))
            task = self._indices[task]
        if not 0 <= task < len(self.core.tasks):
            raise InvalidInputError(f"task {task}: expected an index from 0 to {len(self.core.tasks) - 1}, or an id")
        return np.array([task], dtype=np.int64), episode_seed

    def _observation(self) -> Observation:
        return {name: array[0].copy() for name, array in self.core.observation.items()}

    def _info(self) -> dict[str, Any]:
        episodes = self.core.episodes
        return {
            "instance_id": self.core.tasks[episodes["task"][0]].instance_id,
            "episode_seed": int(episodes["seed"][0]),
        }

    def _execution(self) -> dict[str, Any] | None:
        episodes = self.core.episodes
        tool = int(episodes["tool"][0])
        if tool < 0:
            return None
        status = STATUSES[episodes["tools"][0, tool, STATUS]]
        return {"tool": self.core.library.names[tool], "success": bool(episodes["tool_success"][0]), "status": status}

    def _end(self) -> dict[str, Any]:
        ends = {name: self.core.episodes[field][0].item() for name, field in END_FIELDS.items()}
        return {**ends, "ended_by": ended_by(ends.pop("ended"))}

    def _line(self, action: int, info: dict[str, Any]) -> str:
        tool = tool_of(action, self._num_tools)
        name = self.core.library.names[tool] if tool >= 0 else "no tool"
        execution = info["execution"]
        result = execution["status"] if execution is not None else "nothing executed"
        return f"{ACTION_TYPES[action_type_of(action, self._num_tools)]} {name}: {result}"
