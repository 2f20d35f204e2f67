"""A conformance suite for conversation environments, for authors of wrappers, ports and environments of their own.

An environment conforms if it behaves like Conversation-v0 towards agents and evaluation: deterministic for a seed, luck
common to all agents and prompts, rejected calls without effect, rewards and scores that agree.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, replace
from typing import Any, get_args

import gymnasium
from gymnasium.utils.env_checker import check_env, data_equivalence

from resilisim.envs.reply import public_info
from resilisim.envs.settings import JUDGED_REWARDS
from resilisim.seeding import Draws
from resilisim.simulator.messages import MessageKind
from resilisim.simulator.scoring import Level, Score

MakeEnv = Callable[[], "gymnasium.Env[str, str]"]

ALWAYS_IN_INFO = (
    "instance_id",
    "task_type",
    "prompt_type",
    "planner",
    "protocol",
    "turn",
    "turns_left",
    "required_tools",
    "seed",
)
EVENTS = frozenset(get_args(MessageKind))
EXECUTION_KEYS = frozenset({"tool", "success", "error", "success_probability", "attempt", "output"})
SCORE_KEYS = frozenset(field.name for field in fields(Score) if field.default is MISSING)  # others are rare
LEVELS = frozenset(get_args(Level))
# All that an ordinary policy may be told besides the observation: anything else could give away state or luck.
PUBLIC_INFO = frozenset(
    {
        "task_type",
        "prompt_type",
        "planner",
        "protocol",
        "parameters",
        "turn",
        "turns_left",
        "words",
        "work",
        "progress",
        "messages",
        "event",
        "functions",
        "answers",
        "listed",
        "offers_wait",
        "search",
        "tool_info",
        "problems",
        "execution",
        "dependency_problems",
        "error_kind",
        "opened_by",
        "seconds",
    }
)
PUBLIC_EXECUTION = EXECUTION_KEYS - {"success_probability"}
_LONGEST_EPISODE = 1000
# Episodes that follow the required list: enough that some succeed, also where the environment chooses the task.
_FOLLOWED_EPISODES = 25


@dataclass(frozen=True, slots=True)
class _Start:
    """How an episode of an environment begins; without a task it is the environment's own choice."""

    make_env: MakeEnv
    task: str | Mapping[str, Any] | None
    prompt: str
    seed: int

    def reset(self, env: gymnasium.Env[str, str]) -> tuple[str, dict[str, Any]]:
        options = {"prompt": self.prompt} if self.task is None else {"task": self.task, "prompt": self.prompt}
        return env.reset(seed=self.seed, options=options)

    def required(self) -> list[str]:
        return list(self.reset(self.make_env())[1].get("required_tools", ()))

    def play(self, choose: Callable[[dict[str, Any]], str | None]) -> _Played:
        """Play an episode with the messages that are chosen by each info, until None or the end."""
        env = self.make_env()
        observation, info = self.reset(env)
        played = _Played(env, [observation], [info], [])
        ended = False
        while not ended and len(played.rewards) < _LONGEST_EPISODE:
            message = choose(info)
            if message is None:
                break
            observation, reward, terminated, truncated, info = env.step(message)
            played.observations.append(observation)
            played.infos.append(info)
            played.rewards.append(float(reward))
            played.terminated = bool(terminated)
            ended = bool(terminated or truncated)
        return played

    def play_all(self, messages: Sequence[str]) -> _Played:
        left = iter(messages)
        return self.play(lambda _: next(left, None))


@dataclass(slots=True)
class _Played:
    env: gymnasium.Env[str, str]
    observations: list[str]
    infos: list[dict[str, Any]]
    rewards: list[float]
    terminated: bool = False

    def executions(self) -> list[Any]:
        return [info.get("execution") for info in self.infos]


def check_conversation_env(
    make_env: MakeEnv,
    tasks: Sequence[str | Mapping[str, Any]] = (),
    prompts: Sequence[str] = ("baseline", "optimal"),
    episodes: int = 8,
) -> list[str]:
    """Check an environment against the conventions of Conversation-v0.

    Args:
        make_env: Makes a fresh environment of the text protocol.
        tasks: Tasks for `reset(options={"task": ...})`; the environment's own choice if empty.
        prompts: Prompt types that it must offer.
        episodes: Random episodes to play for each task.

    Returns:
        Problems, one line each; an empty list means that the environment conforms.

    Example:
        >>> from resilisim.envs import ConversationEnv, check_conversation_env
        >>> check_conversation_env(ConversationEnv, tasks=["task_c64444cae27fab46"], prompts=["baseline"], episodes=1)
        []
    """
    problems = _told("Gymnasium's check_env: ", _check_gymnasium(make_env))
    for task in tasks or (None,):
        for seed in range(episodes):
            start = _Start(make_env, task, prompts[0], seed)
            problems += _told(f"seed {seed}: ", _check_random_episode(start, prompts[1:]))
            problems += _told(f"seed {seed}: ", _check_common_luck(start))
        for seed in range(_FOLLOWED_EPISODES):
            start = _Start(make_env, task, prompts[0], seed)
            problems += _told(f"seed {seed}, required tools in order: ", _check_following(start))
    return list(dict.fromkeys(problems))


def _told(where: str, check: Iterator[str]) -> list[str]:
    """Return the problems that a check finds as it runs; what the environment raises is one of them."""
    problems: list[str] = []
    try:
        problems.extend(where + problem for problem in check)
    except Exception as error:
        problems.append(f"{where}{type(error).__name__}: {' '.join(str(error).split())}")
    return problems


def _check_gymnasium(make_env: MakeEnv) -> Iterator[str]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            check_env(make_env().unwrapped, skip_render_check=True)
        except AssertionError as error:
            yield str(error).splitlines()[0] if str(error) else "an assertion failed"


def _check_random_episode(start: _Start, other_prompts: Sequence[str]) -> Iterator[str]:
    messages = list(_random_messages(start))
    first, again = start.play_all(messages), start.play_all(messages)
    if first.observations != again.observations or not data_equivalence(first.infos, again.infos):
        yield "the same messages gave two different episodes"
    yield from _check_played(first)
    for prompt in other_prompts:
        if first.executions() != replace(start, prompt=prompt).play_all(messages).executions():
            yield f"luck differs between prompts {start.prompt!r} and {prompt!r}"


def _check_following(start: _Start) -> Iterator[str]:
    """Call the required tools in order, each until it succeeds, then finish: full success exactly if all succeeded."""
    left = start.required()

    def next_message(info: dict[str, Any]) -> str:
        if info.get("execution", {}).get("success"):
            left.pop(0)
        return _call(left[0]) if left and info["turns_left"] > 0 else "<finish/>"

    played = start.play(next_message)
    if played.infos[-1].get("execution", {}).get("success"):
        left.pop(0)
    yield from _check_played(played)
    level = played.infos[-1].get("score", {}).get("level")
    if played.terminated and (level == "full_success") != (not left):
        done = f"{len(left)} required tools had not succeeded" if left else "all required tools had succeeded in order"
        yield f"the level is {level!r} although {done}"


def _call(tool: str) -> str:
    return f"<tool_call>{tool}</tool_call>"


def _random_messages(start: _Start) -> Iterator[str]:
    """Yield a random episode's messages: mostly calls of required tools, some of everything else."""
    required = start.required() or ["no_such_tool"]
    draws = Draws("conformance", start.seed)
    noise = ("<tool_call>no_such_tool</tool_call>", "nothing to read here", "<tool_info>no_such_tool</tool_info>")
    for _ in range(_LONGEST_EPISODE):
        chance = draws.uniform()
        if chance < 0.7:
            yield _call(draws.choice(required))
        elif chance < 0.9:
            yield draws.choice(noise)
        elif chance < 0.95:
            yield f"<tool_info>{draws.choice(required)}</tool_info>"
        else:
            yield "<finish/>"


def _check_played(played: _Played) -> Iterator[str]:
    if not played.terminated:
        yield f"the episode had not terminated after {len(played.rewards)} messages"
        return
    turns_left = played.infos[0].get("turns_left")
    for turn, info in enumerate(played.infos):
        for key in ALWAYS_IN_INFO:
            if key not in info:
                yield f"info lacks {key!r}"
        if info.get("turn") != turn:
            yield f"info['turn'] is {info.get('turn')!r} after {turn} messages"
        if not played.env.observation_space.contains(played.observations[turn]):
            yield "an observation is outside the observation space"
        if turn and info.get("event") not in EVENTS:
            yield f"info['event'] is {info.get('event')!r}: expected one of {', '.join(sorted(EVENTS))}"
        if turn and turns_left is not None and info.get("turns_left") != max(turns_left - turn, 0):
            yield "a message did not use exactly one turn"
        execution = info.get("execution")
        if execution is not None and set(execution) != EXECUTION_KEYS:
            yield f"info['execution'] has the keys {sorted(execution)}: expected {sorted(EXECUTION_KEYS)}"
        if execution is not None and info.get("event") != "execute":
            yield f"a message of kind {info.get('event')!r} was executed"
        public = public_info(info)
        leaked = [key for key in public if key not in PUBLIC_INFO]
        leaked += [f"{key} of the execution" for key in public.get("execution", ()) if key not in PUBLIC_EXECUTION]
        if leaked:
            yield f"public_info shows {', '.join(leaked)}"
    score = played.infos[-1].get("score")
    if not isinstance(score, Mapping) or not set(score) >= SCORE_KEYS:
        yield f"info['score'] at the end lacks keys: expected {sorted(SCORE_KEYS)}"
        return
    if score["level"] not in LEVELS:
        yield f"score level {score['level']!r}: expected one of {', '.join(sorted(LEVELS))}"
    settings = getattr(played.env.unwrapped, "settings", None)
    if settings is not None and settings.reward in JUDGED_REWARDS:
        return  # paid at every step, by the exact optimum
    if any(played.rewards[:-1]):
        yield "a reward was paid before the end"
    if played.rewards[-1] != float(score["level"] == "full_success"):
        yield f"the last reward is {played.rewards[-1]} and the level {score['level']}"


def _check_common_luck(start: _Start) -> Iterator[str]:
    """Messages that execute nothing must not change the luck of the executions that follow."""
    calls = [_call(name) for name in start.required()[:2]]
    padded = [part for call in calls for part in (_call("no_such_tool"), call)]
    plain_luck, padded_luck = (
        [execution for execution in start.play_all(messages).executions() if execution] for messages in (calls, padded)
    )
    if plain_luck != padded_luck:
        yield "a rejected call changed the luck or the probability of the calls after it"
