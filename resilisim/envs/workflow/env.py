"""Workflow-v0, one episode at a time."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any, SupportsIndex, cast

import gymnasium
import numpy as np
from numpy.typing import NDArray

from resilisim.envs.rendering import Pixels, draw
from resilisim.envs.workflow.core import CoreUser, WorkflowCore, plant_seeds
from resilisim.envs.workflow.core import Observation as Observation
from resilisim.envs.workflow.kernels.batch_loops import LEAVE_ENDED
from resilisim.envs.workflow.kernels.step import BY_LUCK, DRAWN, END_FIELDS, Outcome
from resilisim.envs.workflow.options import WorkflowOptions
from resilisim.envs.workflow.picture import action_words, scene_of
from resilisim.envs.workflow.spaces import (
    STATUS_DEPENDENCY_FAILED,
    STATUS_FAILED,
    STATUS_SUCCESS,
    STATUS_TIMEOUT,
    STATUSES,
    TOOL_STATUS,
)
from resilisim.errors import InvalidInputError, check_integer, shown_value, unknown_name
from resilisim.seeding import MAX_SEED
from resilisim.simulator.law import TICKS_PER_SECOND
from resilisim.simulator.rulebook.rules import FAILURE, RESULTS, SUCCESS
from resilisim.simulator.state import ENDED_BY

_FIRST = np.zeros(1, dtype=np.int64)
RESET_OPTIONS = ("task", "episode_seed")
OUTCOMES = (STATUS_SUCCESS, STATUS_FAILED, STATUS_TIMEOUT, STATUS_DEPENDENCY_FAILED)


class WorkflowEnv(CoreUser, gymnasium.Env[Observation, SupportsIndex]):
    """The workflow MDP: which tool to call next, one call a step.

    ## What it is
    A task asks for some tools in an order. Each execution of a tool succeeds with a known probability, lower while its
    dependencies have not succeeded and after failures. Under the benchmark law an episode is one of Conversation-v0
    without the words: the same transition, the same luck for the same salt, episode seed and task, and the same score,
    with completion signalled as soon as the required tools have succeeded in their order. The training law is the
    paper's milder one, and gives every action type a meaning.

    ## Actions
    `Discrete(9 x (T + 1) + 4)` for T tools, 283 with 30: `type x (T + 1) + tool` in the order of
    `spaces.ACTION_TYPES`, then four meta actions without a tool (NO_OP, CREATE_CHECKPOINT, RESTORE_CHECKPOINT,
    RECOVER_ERROR). Under the benchmark law INVOKE_TOOL and, after a failure, RETRY_TOOL are legal, and NO_OP where
    nothing else is. Under the training law:

    | action | what it does | legal |
    |---|---|---|
    | INVOKE_TOOL, RETRY_TOOL | executes the tool | before, after a failure of the tool |
    | PARALLEL_EXECUTE | starts the tool; the outcome comes first in the next step | no success yet |
    | VALIDATE_OUTPUT | ends a row of failures | once for each tool that has succeeded |
    | RECOVER_ERROR | forgets the retries of a tool; without a tool, ends a row of failures | there are some |
    | CHECK_DEPENDENCIES | marks dependencies never attempted as QUEUED | there are some |
    | CREATE_CHECKPOINT | keeps the retries of a tool; without a tool, of all, and the row of failures | they differ |
    | RESTORE_CHECKPOINT | brings them back where they have grown since | they have |
    | NO_OP | nothing | always, without a tool |

    The filters semantic, dependency and constraint narrow down which tools may be executed (`observation`). An action
    that the mask forbids uses a step and does nothing; under the benchmark law it counts for the loop rule.

    Under a law with parts (`law` is the name of one, a path or a `Law`) the benchmark's actions have a few more
    meanings: NO_OP lets a turn pass where waiting can help; after a tool's input was refused, INVOKE_TOOL calls it
    with a parameter changed and RETRY_TOOL as it was; VALIDATE_OUTPUT without a tool accepts outputs
    that only look sound.

    ## Observations
    A dict of small integers; `spaces` says what each column means and how it is stored:

    * `tools`, uint8 (T, 19): for each tool its status, place in the required list and among what is due, executions,
      retries, dependencies that are missing, success probability, dependents and descendants that are due, level,
      number of dependencies, operation type, similarity, confidence, candidate or not, last step, order of success
    * `task`, uint8 (38,): twenty features of the task, then progress, steps, required tools, milestones, failures, the
      law's factor for them, order, loop, base probability, phase and stage, checkpoint, what runs, data flow
    * `action_mask`, int8 (9 x (T + 1) + 4,): 1 for each legal action, never empty
    * under a law with parts, or with `detailed=True`, also `tool_parts`, uint8 (T, 23), and `law`, uint8 (15,): what an
      agent can know of rate limits, outages, broken tools, refused inputs, soundness of outputs, time, drift and the
      law's factors, and, if detailed, what each tool's success serves

    With `observation_dtype="float32"` all but the mask are the same numbers as float32, which libraries want whose
    networks take no small integers (RLlib, for one).
    With `required="hidden"` the columns that follow from the required list are 0. With `"none"` (training law) the
    task is played as one without such a list: progress is of milestones, successful tools and steps, and is shown.

    ## Start
    Nothing is executed. `reset(seed=s)` draws task and episode seed from s; the following episodes continue that
    sequence, so episode k after it is a function of (s, k). `options={"task": index or id, "episode_seed": n}` choose
    one or both, which plays any episode again by itself.

    ## Rewards
    `full_success`, also called `success`: 1 at the end of an episode in which all required tools have succeeded in
    their order, else 0; what the exact optimum maximises (at a stage before the last: 1 for what the stage asks for).
    `value`: V*(s') - V*(s) of each step, the sum is outcome - V*(start). `advantage`: Q*(s, a) - V*(s), minus the
    regret of each step, which no luck changes; 0 for the optimum. Both need a law that is solved, so not the training
    law; under the benchmark law tables of V* are made at the start (145 MB for the train split, a few seconds), under
    laws with parts each task is solved when it is first met. `two_phase`: the paper's reward, coverage first and order
    later (`rewards`).

    ## Termination
    Benchmark law: full success, the last step (10), five failed executions in a row, the loop rule; under a law with a
    budget of time also its end. Training law:
    every required tool has succeeded, the last step (20 to 28, by the stage of the curriculum), more failures in a row
    than the stage allows, deadlock (no action can execute a tool that has not succeeded). Never truncated: the steps
    left are part of the state.

    ## Info
    Always `instance_id` and `episode_seed`; after a step `execution` (tool, success, status) or None; at the end
    `success` (what the stage asks for; at the last, but for the training law, full success), `full_success`, `score`
    (final progress), `coverage`, `sequence` (longest run of required tools in order / number required), `steps`,
    `ended_by`, `episode_return`, `task` (index).

    ## Arguments
    `settings` (a `WorkflowOptions`), single options of these by keyword, and `render_mode` (`ansi`, `rgb_array` or
    None). A trainer sets the running success rate, the stage of the curriculum (the last unless it does) and the mined
    patterns between episodes (`set_running_success`, `set_stage`, `set_patterns`).

    ## Example
        >>> from resilisim.envs.workflow import WorkflowEnv
        >>> env = WorkflowEnv(tasks="test", law="training")
        >>> observation, info = env.reset(seed=0)
        >>> observation["tools"].shape, env.action_space
        ((30, 19), Discrete(283))

    ## Source
    ResiliBench (seed papers), appendix D; how its gaps are filled is in docs/decisions.

    ## Version history
    v0: first.
    """

    metadata = {  # noqa: RUF012  (Gymnasium declares it as it is)
        "render_modes": ["ansi", "rgb_array"],
        "render_fps": 1,
    }

    def __init__(
        self, settings: WorkflowOptions | None = None, *, render_mode: str | None = None, **options: Any
    ) -> None:
        if render_mode is not None and render_mode not in self.metadata["render_modes"]:
            raise unknown_name("render mode", render_mode, self.metadata["render_modes"])
        self.core = WorkflowCore(1, (settings or WorkflowOptions()).with_options(options))
        self.render_mode = render_mode
        self.action_space = self.core.action_space
        self.observation_space = cast("gymnasium.Space[Observation]", self.core.observation_space)
        self._num_actions = int(self.core.action_space.n)
        self._seeded = False
        self._pool = np.arange(len(self.core.tasks))
        self._action = np.zeros(1, dtype=np.int64)
        self._reward = np.zeros(1)
        self._terminated = np.zeros(1, dtype=np.uint8)
        self._look_up_views()
        self._last = "reset"

    def _look_up_views(self) -> None:
        """Look up once what would take longer in each step than the step."""
        self._fields = {name: self.core.episodes[name] for name in self.core.episodes.dtype.names or ()}
        self._shown = {name: array[0] for name, array in self.core.observation.items()}

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in ("_fields", "_shown")}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        self.__dict__.update(state)
        self._look_up_views()

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
        seed = None if seed is None else check_integer("seed", seed, 0, MAX_SEED)
        super().reset(seed=seed)
        core = self.core
        if seed is not None or not self._seeded:
            plant_seeds(core.episodes, [0], [int(self.np_random.integers(2**31)) if seed is None else seed])
            self._seeded = True
        chosen = self._chosen(options or {})
        core.begin(_FIRST, *chosen, self._pool)
        self._last = "reset"
        return self._observation(), self._info()

    def step(self, action: SupportsIndex) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Let an action happen.

        Raises:
            RuntimeError: The episode has ended, or none was begun.
            InvalidInputError: There is no such action.
        """
        return self._step(action, BY_LUCK)

    def step_with_outcome(
        self, action: SupportsIndex, status: int
    ) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Let an action happen whose execution shows a given status of `spaces` instead of what luck would bring.

        For planning along a path: a plain success or failure; `follow` takes all that an execution can bring.
        """
        if status not in OUTCOMES:
            raise InvalidInputError(f"status {status}: expected STATUS_SUCCESS or one of three kinds of failure")
        return self._step(action, (SUCCESS if status == STATUS_SUCCESS else FAILURE, 0, status))

    def follow(
        self,
        action: SupportsIndex,
        result: str,
        status: int = STATUS_FAILED,
        seconds: float = 0.0,
        hidden: Sequence[int] = (),
    ) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Let an action happen as it did in another episode of the same task.

        Args:
            action: The action.
            result: What its execution brought, one of `simulator.rulebook.rules.RESULTS`; read only if it executes a
                tool.
            status: The status of `spaces` that a failure shows.
            seconds: How long the execution took.
            hidden: What was hidden there before it (`EpisodeState.hidden`), which a validator reads; as it is here if
                omitted.
        """
        if result not in RESULTS:
            raise unknown_name("result", result, RESULTS)
        self.core.sections["hidden"][0, : len(hidden)] = hidden
        return self._step(action, (RESULTS.index(result), round(seconds * TICKS_PER_SECOND), status))

    def action_masks(self) -> NDArray[np.bool_]:
        """Return which actions are legal, bool (num_actions,), as sb3-contrib asks for it."""
        mask: NDArray[np.bool_] = self._shown["action_mask"].astype(np.bool_)
        return mask

    def render(self) -> str | Pixels | None:
        """Return what happened last as one line (`ansi`), or a picture, uint8 (600, 960, 3) (`rgb_array`)."""
        if self.render_mode == "rgb_array":
            return draw(scene_of(self.core, 0, None if self._last == "reset" else int(self._action[0])))
        return self._last if self.render_mode == "ansi" else None

    def _step(self, action: SupportsIndex, outcome: Outcome) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        core = self.core
        if self._fields["needs_reset"][0]:
            raise RuntimeError("the episode has ended, or none was begun: call reset first")
        try:
            number = operator.index(action)  # what policies predict may be an array without dimensions, or a tensor
        except TypeError:
            number = -1
        if not 0 <= number < self._num_actions:
            raise InvalidInputError(f"action {shown_value(action)}: expected 0 to {self._num_actions - 1}")
        self._action[0] = number
        if core.judge is not None:
            core.judge.judge(self._action)
        core.step(self._action, outcome, LEAVE_ENDED, self._pool, self._reward, self._terminated)
        if core.judge is not None:
            core.judge.pay(self._reward)
        info = self._info()
        info["execution"] = self._execution()
        terminated = bool(self._terminated[0])
        if terminated:
            info.update(self._end())
        if self.render_mode is not None:
            self._last = self._line(number, info)
        return self._observation(), float(self._reward[0]), terminated, False, info

    def _chosen(self, options: dict[str, Any]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the task and the episode seed that were asked for, both (1,), or DRAWN."""
        for name in options:
            if name not in RESET_OPTIONS:
                raise unknown_name("reset option", name, RESET_OPTIONS)
        task, episode_seed = options.get("task"), options.get("episode_seed")
        if isinstance(task, str):
            if task not in self.core.indices:
                raise unknown_name("task of this environment", task, list(self.core.indices))
            task = self.core.indices[task]
        elif task is not None:
            task = check_integer("task (an id or an index)", task, 0, len(self.core.tasks) - 1)
        if episode_seed is not None:
            episode_seed = check_integer("episode_seed", episode_seed, 0, MAX_SEED)
        chosen = [np.array([DRAWN if value is None else value], dtype=np.int64) for value in (task, episode_seed)]
        return chosen[0], chosen[1]

    def _observation(self) -> Observation:
        return self.core.converted({name: array.copy() for name, array in self._shown.items()})

    def _info(self) -> dict[str, Any]:
        return {
            "instance_id": self.core.tasks[self._fields["task"][0]].instance_id,
            "episode_seed": int(self._fields["seed"][0]),
        }

    def _execution(self) -> dict[str, Any] | None:
        tool = int(self._fields["tool"][0])
        if tool < 0:
            return None
        return {
            "tool": self.core.library.names[tool],
            "success": bool(self._fields["tool_success"][0]),
            "status": STATUSES[self._shown["tools"][tool, TOOL_STATUS]],
        }

    def _end(self) -> dict[str, Any]:
        ends = {name: self._fields[field][0].item() for name, field in END_FIELDS.items()}
        return {**ends, "ended_by": ENDED_BY[ends.pop("ended")]}

    def _line(self, action: int, info: dict[str, Any]) -> str:
        execution = info["execution"]
        result = execution["status"] if execution is not None else "nothing executed"
        return f"{action_words(self.core, action)}: {result}"
