"""A conformance check that authors of policies can call on their own."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

from resilisim.envs.conversation import MAX_MESSAGE_LENGTH, ConversationEnv
from resilisim.envs.reply import Reply, public_info
from resilisim.envs.session import Session
from resilisim.policies.base import is_privileged
from resilisim.tasks import Task
from resilisim.tool_library import default_library

# One task whose tools stand alone, one with a dependency outside its list, one that only luck can finish in time.
CHECKED_TASKS: tuple[tuple[str, ...], ...] = (
    ("file_operations_reader",),
    ("file_operations_reader", "data_processing_transformer", "file_operations_writer"),
    (
        "network_fetcher",
        "data_processing_parser",
        "network_validator",
        "data_processing_transformer",
        "data_processing_aggregator",
        "computation_analyzer",
        "network_poster",
    ),
)
CHECKED_PROMPTS = ("baseline", "optimal")


def check_policy(policy: object, *, num_seeds: int = 2, deterministic: bool = True) -> list[str]:
    """Play a policy through a few episodes of Conversation-v0 and say what is wrong with it.

    Checked are both methods, the optional attributes, the kind of the answers, exceptions, that the info is left as it
    was, and that an episode does not depend on what was played before. Searches are answered by words, so no model is
    loaded.

    Args:
        policy: The policy.
        num_seeds: Episodes for each of three tasks and two prompt types; each is played twice.
        deterministic: Whether the same episode must give the same messages; switch it off for models that sample.

    Returns:
        One line for each problem; empty if there is none.
    """
    problems = _problems_of_shape(policy)
    if problems:
        return problems
    library = default_library()
    env = ConversationEnv(library=library, search="lexical")
    tasks = [Task.from_mapping({"required_tools": list(names)}, library) for names in CHECKED_TASKS]
    episodes = [(task, prompt, seed) for task in tasks for prompt in CHECKED_PROMPTS for seed in range(num_seeds)]
    first = [_play(policy, env, *episode, problems) for episode in episodes]
    if deterministic and not problems:
        # Backwards, so that something else has been played before each episode than the first time.
        second = [_play(policy, env, *episode, problems) for episode in reversed(episodes)]
        problems += _differences(episodes, first, second[::-1])
    return list(dict.fromkeys(problems))


def _problems_of_shape(policy: object) -> list[str]:
    problems = [
        f"no method {method}(): expected reset(observation, info) and act(observation, info)"
        for method in ("reset", "act")
        if not callable(getattr(policy, method, None))
    ]
    privileged, name = getattr(policy, "privileged", False), getattr(policy, "name", "unnamed")
    if not isinstance(privileged, bool):
        problems.append(f"attribute privileged is {privileged!r}: expected True or False")
    if not isinstance(name, str) or not name:
        problems.append(f"attribute name is {name!r}: expected a text")
    return problems


def _play(
    policy: Any, env: ConversationEnv, task: Task, prompt: str, seed: int, problems: list[str]
) -> list[str | None]:
    """Play one episode, add what is wrong to `problems`, and return the messages."""
    session = Session(env, task, prompt, seed, privileged=is_privileged(policy))
    messages: list[str | None] = []
    _answer(policy, "reset", session.reply, problems)
    while not session.ended and not problems:
        message = _answer(policy, "act", session.reply, problems)
        if message is not None and not isinstance(message, str):
            problems.append(f"act returned a {type(message).__name__}: expected a text, or None to stop")
            break
        messages.append(message)
        if message is None:
            break
        if len(message) > MAX_MESSAGE_LENGTH:
            problems.append(f"act returned {len(message):,} characters: expected at most {MAX_MESSAGE_LENGTH:,}")
            break
        session.send(message)
    return messages


def _answer(policy: Any, method: str, reply: Reply, problems: list[str]) -> Any:
    # The problem and the state are shared by every episode and immutable; what is left is plain JSON.
    before = copy.deepcopy(public_info(reply.info))
    try:
        answer = getattr(policy, method)(reply.observation, reply.info)
    except Exception as error:
        problems.append(f"{method} raised {type(error).__name__}: {' '.join(str(error).split())}")
        return None
    if public_info(reply.info) != before:
        problems.append(f"{method} changed the info that it was given: expected it to be read only")
    return answer


def _differences(
    episodes: Sequence[tuple[Task, str, int]], first: Sequence[list[str | None]], second: Sequence[list[str | None]]
) -> list[str]:
    for (_, prompt, seed), once, again in zip(episodes, first, second, strict=True):
        if once != again:
            pairs = zip(once, again, strict=False)
            turn = next(
                (place for place, (message, other) in enumerate(pairs) if message != other), min(len(once), len(again))
            )
            where = f"the same episode ({prompt} prompt, seed {seed}) gave other messages the second time"
            expected = "expected reset to forget the last episode, and choices that repeat"
            return [f"{where}, from message {turn + 1} on: {expected} (deterministic=False allows sampling)"]
    return []
