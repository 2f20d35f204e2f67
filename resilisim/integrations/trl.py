"""Training with TRL's GRPOTrainer: an environment whose methods are the tools, and rollouts for models that know none.

Nothing of TRL is imported here: the trainer takes a class (`environment_factory`) or a function (`rollout_func`).
"""

from __future__ import annotations

import inspect
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from resilisim.envs.conversation import ConversationEnv
from resilisim.envs.session import Session
from resilisim.envs.session_tools import SessionTool
from resilisim.envs.settings import EnvironmentSettings, Tools
from resilisim.errors import CheckFailed, InvalidInputError
from resilisim.evaluation.episode.play import open_session
from resilisim.evaluation.run.contestants import Contestant
from resilisim.evaluation.run.plan import RunPlan
from resilisim.tasks import find_task
from resilisim.tool_library import ToolLibrary

_LOGGER = logging.getLogger("resilisim.integrations")
_LOGGER.addHandler(logging.NullHandler())

_ENDS_HERE: Final = "<<answer>>"


def training_rows(tasks: Any = 20, seeds: Any = 1, prompt: Any = "baseline") -> list[dict[str, Any]]:
    """Return the rows of a data set for a trainer with `environment_factory`: one an episode.

    A row that is trained on again meets the same draws again, so there should be as many seeds as epochs would repeat.

    Args:
        tasks: What `evaluate` takes: a number of tasks of the benchmark, a file, or a list.
        seeds: Number of episodes of each task and prompt type, or the seeds.
        prompt: Prompt type, or a list of them.

    Raises:
        InvalidInputError: An argument is unusable.

    Example:
        >>> from resilisim.integrations.trl import training_rows
        >>> training_rows(tasks=1)[0]["task"]
        'task_c64444cae27fab46'
    """
    plan = RunPlan.of(tasks=tasks, prompts=prompt, seeds=seeds, player=Contestant("trl", "trl"))
    return [
        {
            "prompt": [{"role": "user", "content": ""}],
            "task": episode.task.instance_id,
            "seed": episode.seed,
            "prompt_type": episode.prompt,
        }
        for episode in plan.episodes
    ]


def rollout_rows(tasks: Any = 20, seeds: Any = 1, prompt: Any = "baseline") -> list[dict[str, Any]]:
    """Return the rows of a data set for a trainer with `rollout_func`, which is told nothing but a row's prompt.

    The prompt names the episode; `rollout_func` puts the episode's own prompt in its place.

    Example:
        >>> from resilisim.integrations.trl import rollout_rows
        >>> rollout_rows(tasks=1, prompt="optimal")[0]["prompt"][0]["content"]
        '{"task": "task_c64444cae27fab46", "seed": 0, "prompt_type": "optimal"}'
    """
    return [
        {
            "prompt": [
                {"role": "user", "content": json.dumps({key: row[key] for key in ("task", "seed", "prompt_type")})}
            ]
        }
        for row in training_rows(tasks, seeds, prompt)
    ]


class TrlEnvironment:
    """One episode after the other; `environment_factory` makes a class of it whose public methods are the tools.

    Attributes:
        session: The episode under way; None before the first.
    """

    _settings: EnvironmentSettings
    _library: ToolLibrary | None
    _tools: Tools

    def __init__(self) -> None:
        self.session: Session | None = None
        self._is_broken = False

    def reset(self, task: Any = None, seed: int = 0, prompt_type: str = "baseline", **row: Any) -> str:
        """Begin the episode of a row (`training_rows`), and return its prompt; other columns are not looked at."""
        self._is_broken = False
        self.session = open_session(
            task, seed, prompt_type, self._tools, name="trl", environment=self._settings, library=self._library
        )
        return self.session.prompt

    def get_reward(self) -> float | None:
        """Return what the episode paid; None, which a trainer leaves out, if it broke.

        An episode that is not over, since the model calls no more tools or has no tokens left, is stopped: the task was
        not reported as complete.
        """
        if self.session is None or self._is_broken:
            return None
        self.session.stop()
        return self.session.reward

    def _call(self, name: str, arguments: Mapping[str, Any]) -> str:
        if self.session is None:
            raise InvalidInputError("a tool was called before reset()")
        if self.session.ended:
            return str(self.session.finish())  # says why; the trainer takes EpisodeEnded for the end of training
        try:
            return str(self.session.call(name, arguments))
        except Exception:
            self._is_broken = True  # the trainer would show it to the model and go on
            raise


def environment_factory(
    tools: Tools = "native",
    *,
    environment: EnvironmentSettings | None = None,
    library: ToolLibrary | None = None,
    **options: Any,
) -> type[TrlEnvironment]:
    """Return what GRPOTrainer takes as `environment_factory`: a class whose public methods are the tools.

    The model's chat template has to know tools. Rows are those of `training_rows`.

    Args:
        tools: "native": each tool of the library is a method. "discovery": they have to be searched for.
        environment: Law, end rules, `reward` and all else; the benchmark's if omitted.
        library: The tool library; the default one if omitted.
        **options: Options of `EnvironmentSettings`, such as reward="advantage", in place of those of `environment`.

    Raises:
        InvalidInputError: An argument is unusable.

    Example:
        >>> from resilisim.integrations.trl import environment_factory, training_rows
        >>> env = environment_factory(reward="advantage", base=1.0)()
        >>> prompt = env.reset(**training_rows(tasks=1)[0])
        >>> env.file_operations_reader(source="/data").splitlines()[0]
        'file_operations_reader executed successfully.'
        >>> env.get_reward() < 0
        True
    """
    settings = (environment or EnvironmentSettings()).with_options(**options)
    shown = open_session(tools=tools, environment=settings, library=library).tools
    members: dict[str, Any] = {tool.name: _method(tool) for tool in shown}
    taken = sorted(members.keys() & {"reset", "get_reward"})
    if taken:
        raise InvalidInputError(f"a tool named {taken[0]!r} cannot be a method: TRL calls methods of this name itself")
    members |= {"_settings": settings, "_library": library, "_tools": tools, "__doc__": TrlEnvironment.__doc__}
    return type("ResiliSim", (TrlEnvironment,), members)


def _method(tool: SessionTool) -> Callable[..., str]:
    """Return a tool as a method: Transformers reads name, docstring, annotations and signature."""

    def method(self: TrlEnvironment, **arguments: Any) -> str:
        return self._call(tool.name, arguments)

    made: Any = method
    signature = inspect.signature(tool)
    first = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    made.__name__ = made.__qualname__ = tool.name
    made.__doc__ = tool.__doc__
    made.__signature__ = signature.replace(parameters=[first, *signature.parameters.values()])
    made.__annotations__ = dict(inspect.get_annotations(tool))
    return method


def rollout_func(
    *, environment: EnvironmentSettings | None = None, library: ToolLibrary | None = None, **options: Any
) -> Callable[[Sequence[Any], Any], dict[str, Any]]:
    """Return what GRPOTrainer takes as `rollout_func`: episodes in tags, for models whose template knows no tools.

    Rows are those of `rollout_rows`, and `episode_reward` is the reward function. All episodes of a batch are played
    side by side. One whose tokens would exceed the trainer's `max_completion_length` is stopped there, and a reply that
    does not fit is cut and not carried out. Tokens of the environment are masked. An episode that breaks has the reward
    None, which a trainer leaves out.

    Args:
        environment: Law, end rules, `reward` and all else; the benchmark's if omitted.
        library: The tool library; the default one if omitted.
        **options: Options of `EnvironmentSettings`, such as reward="value", in place of those of `environment`.

    Raises:
        InvalidInputError: An argument is unusable.

    Example:
        >>> from resilisim.integrations.trl import rollout_func
        >>> play = rollout_func(prompt_style="compact", tools="listed", reward="advantage")
    """
    settings = (environment or EnvironmentSettings()).with_options(**{**options, "protocol": "text"})
    env = ConversationEnv(settings, library=library)

    def play(prompts: Sequence[Any], trainer: Any) -> dict[str, Any]:
        rollouts = [_Rollout(env.twin(), prompt, trainer.processing_class) for prompt in prompts]
        limit = trainer.max_completion_length
        while waiting := [rollout for rollout in rollouts if rollout.goes_on]:
            prompt_ids = [rollout.prompt_ids + rollout.completion_ids for rollout in waiting]
            replies, logprobs = trainer._generate_single_turn(prompt_ids, None, {}, 1)
            for place, rollout in enumerate(waiting):
                rollout.add(replies[place], None if logprobs is None else logprobs[place], limit)
        known = all(len(rollout.logprobs) == len(rollout.completion_ids) for rollout in rollouts)
        return {
            "prompt_ids": [rollout.prompt_ids for rollout in rollouts],
            "completion_ids": [rollout.completion_ids for rollout in rollouts],
            "logprobs": [rollout.logprobs for rollout in rollouts] if known else None,
            "env_mask": [rollout.mask for rollout in rollouts],
            "reward": [rollout.reward for rollout in rollouts],
        }

    return play


def episode_reward(reward: Sequence[float | None], **columns: Any) -> list[float | None]:
    """Return the rewards that `rollout_func` has brought: the reward function of its trainer.

    Example:
        >>> from resilisim.integrations.trl import episode_reward
        >>> episode_reward(reward=[1.0, None])
        [1.0, None]
    """
    return list(reward)


class _Rollout:
    """One episode in tokens: those of the model, and between them those of the environment."""

    def __init__(self, env: ConversationEnv, prompt: Sequence[Mapping[str, Any]], tokenizer: Any) -> None:
        episode = json.loads(prompt[-1]["content"])
        self._session = Session(env, find_task(episode["task"]), episode["prompt_type"], episode["seed"])
        self._tokenizer = tokenizer
        message = {"role": "user", "content": self._session.reply.text}
        self.prompt_ids: list[int] = self._ids(self._rendered([message]))
        self.completion_ids: list[int] = []
        self.logprobs: list[float] = []
        self.mask: list[int] = []
        self._is_broken = False

    @property
    def goes_on(self) -> bool:
        return not self._session.ended and not self._is_broken

    @property
    def reward(self) -> float | None:
        return None if self._is_broken else self._session.reward

    def add(self, ids: Sequence[int], logprobs: Sequence[float] | None, limit: int | None) -> None:
        """Send a reply of the model, and put the environment's answer behind it, up to a limit of tokens of both."""
        room = len(ids) if limit is None else max(0, limit - len(self.completion_ids))
        self._put(list(ids)[:room], 1, None if logprobs is None else logprobs[:room])
        try:
            if len(ids) > room:  # what is cut was not said: it would be trained on as if it had been
                self._session.send(None)
                return
            reply = self._session.send(self._tokenizer.decode(ids, skip_special_tokens=True))
            if reply.ended:
                return
            answer = self._ids(self._between(reply.text))
            if ids and answer and ids[-1] == self._tokenizer.eos_token_id == answer[0]:
                answer = answer[1:]
            if limit is not None and len(self.completion_ids) + len(answer) >= limit:
                self._session.send(None)
            else:
                self._put(answer, 0, [0.0] * len(answer) if logprobs is not None else None)
        except CheckFailed:
            raise  # a bug of ours, which no reward may hide
        except Exception:
            _LOGGER.exception("an episode broke, and has no reward")
            self._is_broken = True

    def _put(self, ids: list[int], mask: int, logprobs: Sequence[float] | None) -> None:
        self.completion_ids += ids
        self.mask += [mask] * len(ids)
        self.logprobs += logprobs or []

    def _between(self, text: str) -> str:
        """Return what stands between two replies of the model: the end of its message, and the environment's."""
        messages = [
            {"role": "user", "content": ""},
            {"role": "assistant", "content": _ENDS_HERE},
            {"role": "user", "content": text},
        ]
        return self._rendered(messages).rpartition(_ENDS_HERE)[2]

    def _rendered(self, messages: list[dict[str, str]]) -> str:
        return str(self._tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))

    def _ids(self, text: str) -> list[int]:
        return list(self._tokenizer(text, add_special_tokens=False)["input_ids"])
