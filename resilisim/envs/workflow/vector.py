"""Workflow-v0, thousands of episodes at a time, over the same compiled functions."""

from __future__ import annotations

import functools
import itertools
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from resilisim.envs.rendering import Pixels, draw
from resilisim.envs.workflow.core import CoreUser, Observation, WorkflowCore, plant_seeds
from resilisim.envs.workflow.kernels.batch_loops import (
    LEAVE_ENDED,
    RESET_AT_ONCE,
    RESET_NEXT_STEP,
)
from resilisim.envs.workflow.kernels.records import BLOCKS
from resilisim.envs.workflow.kernels.step import BY_LUCK, DRAWN, END_FIELDS
from resilisim.envs.workflow.options import WorkflowOptions
from resilisim.envs.workflow.picture import scene_of
from resilisim.errors import MAX_COUNT, InvalidInputError, check_integer, unknown_name
from resilisim.seeding import MAX_SEED

Infos = dict[str, Any]

NO_ACTION = -1  # before the first one of an episode

AUTORESETS = {
    AutoresetMode.SAME_STEP: RESET_AT_ONCE,
    AutoresetMode.NEXT_STEP: RESET_NEXT_STEP,
    AutoresetMode.DISABLED: LEAVE_ENDED,
}
RESET_OPTIONS = ("tasks", "seeds", "reset_mask")
# What a trainer sets between rollouts.
TRAINER_FIELDS = ("running_success", "stage", "max_turns", "num_patterns", "pattern_keys", "pattern_scores")
# A thread with fewer environments takes about as long to be woken as to step them.
ENVS_A_THREAD = 1024


class WorkflowVectorEnv(CoreUser, VectorEnv[Observation, NDArray[Any], NDArray[Any]]):
    """Batched Workflow-v0; `WorkflowEnv` says what actions, observations, rewards and ends mean.

    Environment i of `reset(seed=s)` plays the episodes of `WorkflowEnv.reset(seed=s + i)`, in the same order.

    Args:
        num_envs: Number of environments.
        max_episode_steps: Gymnasium's time limit, which this environment does not need; as `max_turns` if given.
        autoreset_mode: When an environment whose episode has ended begins the next one; a mode or its name.
        copy: Hand out copies, so that observations do not change later; without, they are the environment's own arrays
            (with `observation_dtype="float32"` they are copies in any case).
        render_mode: `rgb_array` for a tuple of pictures, or None.
        threads: Threads that step parts of the batch side by side; with None one for each core, as long as each has at
            least 1,024 environments. Results do not depend on it.
        settings: Options of the environment; the defaults if omitted.
        **options: Single options of `WorkflowOptions`, in place of those of the settings.

    `reset` takes the options `tasks` (indices, (num_envs,)) and `seeds` (episode seeds, (num_envs,)), which choose the
    first episode of each environment, and Gymnasium's `reset_mask` (bool, (num_envs,)) for the mode DISABLED.

    Infos hold, when episodes end, the keys of `dynamics.END_FIELDS` (arrays, with masks `_key`); under SAME_STEP also
    `final_obs` and `final_info`, the observation and info before the reset, as Gymnasium's own vector environments do.

    Raises:
        InvalidInputError: An option is not valid.

    Example:
        >>> from resilisim.envs.workflow import WorkflowVectorEnv
        >>> envs = WorkflowVectorEnv(64, tasks="train", autoreset_mode="SAME_STEP")
        >>> observations, _ = envs.reset(seed=0)
        >>> actions = envs.action_masks().argmax(axis=1)
        >>> observations, rewards, terminated, truncated, infos = envs.step(actions)
        >>> rewards.shape
        (64,)
    """

    def __init__(
        self,
        num_envs: int = 1,
        max_episode_steps: int | None = None,
        *,
        autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
        copy: bool = True,
        threads: int | None = None,
        render_mode: str | None = None,
        settings: WorkflowOptions | None = None,
        **options: Any,
    ) -> None:
        num_envs = check_integer("num_envs", num_envs, 1, MAX_COUNT)
        if max_episode_steps is not None and "max_turns" not in options:
            options["max_turns"] = max_episode_steps
        if render_mode not in (None, "rgb_array"):
            raise unknown_name("render mode", render_mode, ["rgb_array"])
        self.autoreset_mode = _mode(autoreset_mode)
        keep_finals = self.autoreset_mode is AutoresetMode.SAME_STEP
        self.core = WorkflowCore(num_envs, (settings or WorkflowOptions()).with_options(options), keep_finals)
        self.num_envs = num_envs
        self.copy = copy
        self.metadata = {"render_modes": ["rgb_array"], "render_fps": 1, "autoreset_mode": self.autoreset_mode}
        self.render_mode = render_mode
        self._last_actions = np.full(num_envs, NO_ACTION)
        self.single_observation_space = self.core.observation_space
        self.single_action_space = self.core.action_space
        self._num_actions = int(self.core.action_space.n)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._pool = np.arange(len(self.core.tasks))
        self._parts = _parts(num_envs, threads)
        self._seeded = False

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, Infos]:
        """Begin an episode in every environment, or in those of `reset_mask`.

        Args:
            seed: Environment i gets seed + i, or its own of a sequence; begins new sequences of episodes.
            options: See the class.
        """
        core = self.core
        options = options or {}
        for name in options:
            if name not in RESET_OPTIONS:
                raise unknown_name("reset option", name, RESET_OPTIONS)
        envs = self._chosen_envs(options.get("reset_mask"))
        super().reset(seed=None)
        self._set_seeds(seed, envs)
        tasks = self._column(options.get("tasks"), len(core.tasks) - 1, "tasks")[envs]
        seeds = self._column(options.get("seeds"), MAX_SEED, "seeds")[envs]
        core.begin(envs, tasks, seeds, self._pool)
        self._last_actions[envs] = NO_ACTION
        return self._observation(), {}

    def step(
        self, actions: NDArray[Any]
    ) -> tuple[Observation, NDArray[Any], NDArray[np.bool_], NDArray[np.bool_], Infos]:
        """Step every environment with its action, whole numbers (num_envs,).

        Returned are observations, rewards float64 (num_envs,), terminated and truncated bool (num_envs,), infos.
        """
        core = self.core
        if not self._seeded:
            raise RuntimeError("no episode was begun: call reset first")
        actions = self._whole_numbers(actions, "actions have")
        if actions.min() < 0 or actions.max() >= self._num_actions:
            wrong = actions[(actions < 0) | (actions >= self._num_actions)][0]
            raise InvalidInputError(f"action {wrong}: expected 0 to {self._num_actions - 1}")
        self._last_actions[:] = actions
        was_over = core.episodes["needs_reset"].copy() if self.autoreset_mode is AutoresetMode.DISABLED else None
        if core.judge is not None:
            core.judge.judge(actions)
        rewards = np.empty(self.num_envs)
        terminated = np.empty(self.num_envs, dtype=np.bool_)
        words = np.empty_like(core.episodes["observation"]) if self.copy else None

        def step_part(part: slice) -> int:
            num_ended = core.step(
                actions[part],
                BY_LUCK,
                AUTORESETS[self.autoreset_mode],
                self._pool,
                rewards[part],
                terminated.view(np.uint8)[part],
                part,
            )
            if words is not None:
                words[part] = core.episodes["observation"][part]
            return num_ended

        # The compiled loop and NumPy's copying release the interpreter lock, and no two parts share an environment.
        others = [_thread_pool().submit(step_part, part) for part in self._parts[1:]]
        num_ended = step_part(self._parts[0]) + sum(other.result() for other in others)
        if core.judge is not None:
            core.judge.pay(rewards)
        infos: Infos = {}
        if num_ended:
            infos = self._end_infos(terminated if was_over is None else terminated & (was_over == 0))
        observation = dict(core.observation) if words is None else core.copied_observation(words)
        return core.converted(observation), rewards, terminated, np.zeros_like(terminated), infos

    def render(self) -> tuple[Pixels, ...] | None:
        """Return a picture of each environment, uint8 (600, 960, 3), if the render mode is `rgb_array`."""
        if self.render_mode is None:
            return None
        actions = [None if action == NO_ACTION else action for action in self._last_actions.tolist()]
        return tuple(draw(scene_of(self.core, env, action)) for env, action in enumerate(actions))

    def action_masks(self) -> NDArray[np.bool_]:
        """Return which actions are legal, bool (num_envs, num_actions)."""
        return self.core.observation["action_mask"].astype(np.bool_)

    def get_state(self) -> dict[str, NDArray[Any]]:
        """Return all that later steps depend on besides actions, as copies of named arrays (`set_state`)."""
        return {name: np.array(array) for name, array in self._state_arrays().items()}

    def set_state(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Continue where another environment with the same arguments gave `get_state`."""
        targets = self._state_arrays()
        for name, target in targets.items():
            if name not in arrays or arrays[name].shape != target.shape:
                got = arrays[name].shape if name in arrays else "nothing"
                raise InvalidInputError(
                    f"array {name!r} of a saved state: expected the shape {target.shape}, got {got}"
                )
        for name, target in targets.items():
            target[...] = arrays[name]
        self.core.write_starts()
        self._seeded = True

    def _state_arrays(self) -> dict[str, NDArray[Any]]:
        """Return the environment's own arrays that hold its state."""
        sources = {"": self.core.episodes, "sections_": self.core.sections}
        arrays = {
            f"{prefix}{name}": records[name]
            for prefix, records in sources.items()
            for name in records.dtype.names or ()
            if name not in BLOCKS
        }
        return arrays | {f"world_{name}": self.core.worlds[name] for name in TRAINER_FIELDS}

    def _chosen_envs(self, mask: object) -> NDArray[np.int64]:
        if mask is None:
            return np.arange(self.num_envs)
        chosen = np.asarray(mask)
        if chosen.shape != (self.num_envs,) or chosen.dtype != np.bool_:
            raise InvalidInputError(
                f"reset_mask has the shape {chosen.shape} and type {chosen.dtype}: expected bool ({self.num_envs},)"
            )
        return np.flatnonzero(chosen)

    def _set_seeds(self, seed: int | Sequence[int | None] | None, envs: NDArray[np.int64]) -> None:
        """Give the chosen environments their seeds; those that get none go on, or draw one if they never had any."""
        if seed is None or isinstance(seed, (int, np.integer)):
            seeds = [None if seed is None else int(seed) + env for env in range(self.num_envs)]
        else:
            seeds = list(seed)
            if len(seeds) != self.num_envs:
                raise InvalidInputError(f"{len(seeds)} seeds for {self.num_envs} environments: expected one for each")
        if not self._seeded:
            drawn: list[int] = np.random.default_rng().integers(2**31, size=self.num_envs).tolist()
            seeds = [own if value is None else value for value, own in zip(seeds, drawn, strict=True)]
            envs = np.arange(self.num_envs)
        given = {env: check_integer("seed", seeds[env], 0, MAX_SEED) for env in envs.tolist() if seeds[env] is not None}
        plant_seeds(self.core.episodes, list(given), list(given.values()))
        self._seeded = True

    def _column(self, values: object, largest: int, name: str) -> NDArray[np.int64]:
        """Return a column of options, (num_envs,), or -1 where nothing was asked for."""
        if values is None:
            return np.full(self.num_envs, DRAWN)
        column = self._whole_numbers(values, f"option {name!r} has")
        if column.min() < 0 or column.max() > largest:
            raise InvalidInputError(f"option {name!r} holds {column.min()} to {column.max()}: expected 0 to {largest}")
        return column

    def _whole_numbers(self, values: object, what: str) -> NDArray[np.int64]:
        """Return values as int64 (num_envs,)."""
        given = np.asarray(values)
        if given.shape != (self.num_envs,):
            raise InvalidInputError(f"{what} the shape {given.shape}: expected ({self.num_envs},)")
        if given.dtype.kind not in "iu":
            raise InvalidInputError(f"{what} the type {given.dtype}: expected whole numbers")
        return np.ascontiguousarray(given, dtype=np.int64)

    def _observation(self) -> Observation:
        return self.core.converted(self.core.copied_observation() if self.copy else dict(self.core.observation))

    def _end_infos(self, ended: NDArray[np.bool_]) -> Infos:
        rows = np.flatnonzero(ended)
        known = ended.copy()
        outcomes = self.core.outcomes(rows)
        ends: Infos = {name: outcomes[field] for name, field in END_FIELDS.items()}
        ends |= {f"_{name}": known for name in END_FIELDS}
        if self.autoreset_mode is not AutoresetMode.SAME_STEP:
            return ends
        final = self.core.copied_finals(rows) if self.copy else dict(self.core.final_observation)
        return {
            **ends,
            "final_obs": self.core.converted(final),
            "_final_obs": known,
            "final_info": ends,
            "_final_info": known,
        }


def _parts(num_envs: int, threads: int | None) -> list[slice]:
    """Return the parts of a batch, one for each thread, as equal as can be."""
    if threads is None:
        threads = min(os.cpu_count() or 1, num_envs // ENVS_A_THREAD)
    else:
        threads = check_integer("threads", threads, 1, MAX_COUNT)
    threads = max(1, min(threads, num_envs))
    ends = [num_envs * number // threads for number in range(threads + 1)]
    return [slice(start, end) for start, end in itertools.pairwise(ends)]


@functools.cache
def _thread_pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(thread_name_prefix="workflow-vector-env")


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_thread_pool.cache_clear)  # a child process has none of the threads


def _mode(mode: AutoresetMode | str) -> AutoresetMode:
    if isinstance(mode, AutoresetMode):
        return mode
    names = {name: member for member in AutoresetMode for name in (member.name, member.value)}
    if mode not in names:
        raise unknown_name("autoreset mode", mode, [member.name for member in AutoresetMode])
    return names[mode]
