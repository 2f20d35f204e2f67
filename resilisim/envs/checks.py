"""A conformance suite for conversation environments, for authors of wrappers, ports and environments of their own.

    from resilisim.envs.checks import check_conversation_env
    problems = check_conversation_env(lambda: gymnasium.make("my/Env-v0"))

An environment conforms if it behaves like Conversation-v0 towards agents and evaluation: deterministic for a seed, luck
common to all agents and prompts, rejected calls without effect, rewards and scores that agree.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium
from gymnasium.utils.env_checker import check_env, data_equivalence

from resilisim.envs.conversation import public_info
from resilisim.seeding import Draws

MakeEnv = Callable[[], "gymnasium.Env[str, str]"]

ALWAYS_IN_INFO = ("instance_id", "task_type", "prompt_type", "protocol", "turn", "turns_left")
EVENTS = frozenset({"execute", "search", "info", "format_error", "rejected", "finish", "stop"})
EXECUTION_KEYS = frozenset({"tool", "success", "error", "success_probability", "attempt"})
SCORE_KEYS = frozenset({"level", "coverage", "minimum", "order", "output", "completion", "ended_by"})
LEVELS = frozenset({"full_success", "partial_success", "failure"})
SECRETS = ("success_probability", "required_tools", "problem", "state", "seed")
_LONGEST_EPISODE = 1000


@dataclass(frozen=True, slots=True)
class _Played:
    observations: list[str]
    infos: list[dict[str, Any]]
    rewards: list[float]
    terminated: bool


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
    """
    problems: list[str] = []
    problems += _check_gymnasium(make_env)
    for task in tasks or (None,):
        for number in range(episodes):
            messages = list(_random_messages(make_env, task, number))
            first = _play(make_env(), task, prompts[0], number, messages)
            again = _play(make_env(), task, prompts[0], number, messages)
            if first.observations != again.observations or not data_equivalence(first.infos, again.infos):
                problems.append(f"seed {number}: the same messages gave two different episodes")
            problems += [f"seed {number}: {problem}" for problem in _check_played(make_env(), first, messages)]
            for prompt in prompts[1:]:
                other = _play(make_env(), task, prompt, number, messages)
                if _executions(first) != _executions(other):
                    problems.append(f"seed {number}: luck differs between prompts {prompts[0]!r} and {prompt!r}")
            problems += [
                f"seed {number}: {problem}" for problem in _check_common_luck(make_env, task, prompts[0], number)
            ]
    return list(dict.fromkeys(problems))


def _check_gymnasium(make_env: MakeEnv) -> list[str]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            check_env(make_env().unwrapped, skip_render_check=True)
        except AssertionError as error:
            return [f"Gymnasium's check_env: {str(error).splitlines()[0] if str(error) else 'an assertion failed'}"]
    return []


def _options(task: str | Mapping[str, Any] | None, prompt: str) -> dict[str, Any]:
    return {"prompt": prompt} if task is None else {"task": task, "prompt": prompt}


def _play(
    env: gymnasium.Env[str, str], task: str | Mapping[str, Any] | None, prompt: str, seed: int, messages: Sequence[str]
) -> _Played:
    observation, info = env.reset(seed=seed, options=_options(task, prompt))
    played = _Played([observation], [info], [], False)
    for message in messages:
        observation, reward, terminated, truncated, info = env.step(message)
        played.observations.append(observation)
        played.infos.append(info)
        played.rewards.append(float(reward))
        if terminated or truncated:
            return _Played(played.observations, played.infos, played.rewards, bool(terminated))
    return played


def _random_messages(make_env: MakeEnv, task: str | Mapping[str, Any] | None, number: int) -> Iterator[str]:
    """Yield a random episode's messages: mostly calls of required tools, some of everything else."""
    _, info = make_env().reset(seed=number, options=_options(task, "baseline"))
    required = list(info.get("required_tools", ())) or ["no_such_tool"]
    draws = Draws("conformance", number)
    noise = ("<tool_call>no_such_tool</tool_call>", "nothing to read here", "<tool_info>no_such_tool</tool_info>")
    for _ in range(_LONGEST_EPISODE):
        chance = draws.uniform()
        if chance < 0.7:
            yield f"<tool_call>{draws.choice(required)}</tool_call>"
        elif chance < 0.9:
            yield draws.choice(noise)
        elif chance < 0.95:
            yield f"<tool_info>{draws.choice(required)}</tool_info>"
        else:
            yield "<finish/>"


def _executions(played: _Played) -> list[Any]:
    return [info.get("execution") for info in played.infos]


def _check_played(env: gymnasium.Env[str, str], played: _Played, messages: Sequence[str]) -> Iterator[str]:
    if not played.terminated:
        yield f"the episode did not terminate within {len(messages)} messages"
        return
    turns_left = played.infos[0].get("turns_left")
    for turn, info in enumerate(played.infos):
        for key in ALWAYS_IN_INFO:
            if key not in info:
                yield f"info lacks {key!r}"
        if info.get("turn") != turn:
            yield f"info['turn'] is {info.get('turn')!r} after {turn} messages"
        if not env.observation_space.contains(played.observations[turn]):
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
        leaked = [secret for secret in SECRETS if secret in public or secret in public.get("execution", ())]
        if leaked:
            yield f"public_info shows {', '.join(leaked)}"
    score = played.infos[-1].get("score")
    if not isinstance(score, Mapping) or not set(score) >= SCORE_KEYS:
        yield f"info['score'] at the end lacks keys: expected {sorted(SCORE_KEYS)}"
        return
    if score["level"] not in LEVELS:
        yield f"score level {score['level']!r}: expected one of {', '.join(sorted(LEVELS))}"
    if any(played.rewards[:-1]):
        yield "a reward was paid before the end"
    if played.rewards[-1] != float(score["level"] == "full_success"):
        yield f"the last reward is {played.rewards[-1]} and the level {score['level']}"


def _check_common_luck(
    make_env: MakeEnv, task: str | Mapping[str, Any] | None, prompt: str, seed: int
) -> Iterator[str]:
    """Messages that execute nothing must not change the luck of the executions that follow."""
    _, info = make_env().reset(seed=seed, options=_options(task, prompt))
    calls = [f"<tool_call>{name}</tool_call>" for name in list(info.get("required_tools", ()))[:2]]
    plain = [item for item in _executions(_play(make_env(), task, prompt, seed, calls)) if item]
    padded_messages = [part for call in calls for part in ("<tool_call>no_such_tool</tool_call>", call)]
    padded = [item for item in _executions(_play(make_env(), task, prompt, seed, padded_messages)) if item]
    if plain != padded:
        yield "a rejected call changed the luck or the probability of the calls after it"
