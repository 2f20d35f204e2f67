"""Copies of environments and sessions, by `copy.deepcopy` or through `pickle`, in the middle of an episode."""

from __future__ import annotations

import copy
import functools
import pickle
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.wrappers import TimeLimit
from hypothesis import given, settings
from hypothesis import strategies as st

import resilisim  # noqa: F401  (registers the ids)
from resilisim import open_session
from resilisim.envs import ConversationEnv, Session
from resilisim.envs.workflow import WorkflowEnv, WorkflowVectorEnv
from resilisim.errors import InvalidInputError
from resilisim.tasks.benchmark import benchmark_tasks
from resilisim.tool_library import default_library

WAYS = {"deepcopy": copy.deepcopy, "pickle": lambda env: pickle.loads(pickle.dumps(env))}
TASKS = benchmark_tasks()[:6]
LAWS: tuple[dict[str, Any], ...] = (
    {},
    {"law": "training", "filters": ["dependency"]},
    {"law": "rate-limits"},
    {"law": "outages"},
    {"law": "meaningful-errors", "required": "hidden"},
    {"reward": "advantage"},
    {"law": "rate-limits", "reward": "value", "tasks": [{"required_tools": ["network_fetcher"], "description": "It."}]},
)


def same(first: Any, second: Any) -> bool:
    """Whether two results of a step are equal, arrays in dicts and tuples included."""
    if isinstance(first, dict):
        return first.keys() == second.keys() and all(same(first[name], second[name]) for name in first)
    if isinstance(first, list | tuple):
        return len(first) == len(second) and all(map(same, first, second))
    return bool(np.all(np.asarray(first == second)))


def legal(mask: Any, draw: int) -> int:
    actions = np.flatnonzero(mask)
    return int(actions[draw % len(actions)])


def play(env: Any, draws: list[int]) -> list[Any]:
    """Step a scalar Workflow-v0 by legal actions, through resets; each result with the mask after it."""
    results: list[Any] = []
    for draw in draws:
        result = env.step(legal(env.unwrapped.action_masks(), draw))
        results.append((result, env.unwrapped.action_masks()))
        if result[2]:
            results.append(env.reset())
    return results


@functools.cache
def workflow(number: int) -> TimeLimit:
    """An environment under one of LAWS, which examples reset: to make one takes longer than to play."""
    return TimeLimit(WorkflowEnv(**{"tasks": TASKS, **LAWS[number]}), 50)


DRAWS = st.lists(st.integers(0, 10**6), max_size=8)


@pytest.mark.parametrize("law", range(len(LAWS)))
@settings(max_examples=3)
@given(seed=st.integers(0, 2**31), before=DRAWS, after=DRAWS)
def test_a_copied_workflow_plays_on_as_its_original(law, seed, before, after):
    env = workflow(law)
    env.reset(seed=seed)
    play(env, before)
    shown = copy.deepcopy(dict(env.unwrapped.core.observation))
    copies = [copied(env) for copied in WAYS.values()]
    theirs = [play(copied, after) for copied in copies]
    assert same(shown, dict(env.unwrapped.core.observation)), "the original moved with its copy"
    mine = play(env, after)
    assert same(theirs, [mine, mine])
    begun = env.reset()
    assert same([copied.reset() for copied in copies], [begun, begun])


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("mode", ["SAME_STEP", "NEXT_STEP", "DISABLED"])
@pytest.mark.parametrize(("hand_out", "options"), [(True, LAWS[3]), (False, LAWS[5])])
def test_copied_vectors_play_on_as_their_original(way, mode, hand_out, options):
    envs = WorkflowVectorEnv(3, tasks=TASKS, autoreset_mode=mode, copy=hand_out, threads=2, **options)
    envs.reset(seed=8)

    def steps(these: WorkflowVectorEnv, number: int) -> list[Any]:
        results = []
        for _ in range(number):
            results.append(copy.deepcopy(these.step(these.action_masks().argmax(axis=1))))
            if mode == "DISABLED" and results[-1][2].any():
                these.reset(options={"reset_mask": results[-1][2]})
        return results

    steps(envs, 3)
    copied = WAYS[way](envs)
    theirs = steps(copied, 14)
    assert same(steps(envs, 14), theirs)
    envs.set_stage(2)
    assert copied.core.worlds["stage"][0] != 2


def test_a_copied_trainer_setting_stays_with_its_environment():
    env = WorkflowEnv(tasks=TASKS, law="training")
    env.reset(seed=1)
    copied = copy.deepcopy(env)
    env.set_running_success(0.9)
    starts = [each.reset(options={"task": 0, "episode_seed": 1})[0]["task"] for each in (env, copied)]
    assert not np.array_equal(*starts)


MESSAGES = st.lists(
    st.one_of(
        st.sampled_from([f"<tool_call>{name}</tool_call>" for name in default_library().names[:8]]),
        st.sampled_from(["<tool_search>read a file</tool_search>", "<tool_info>x</tool_info>", "words", "<finish/>"]),
        st.text(max_size=20),
    ),
    max_size=6,
)


def say(env: Any, messages: list[str]) -> list[Any]:
    results = []
    for message in messages:
        if results and results[-1][2]:
            break
        observation, reward, terminated, truncated, info = env.step(message)
        results.append((observation, reward, terminated, truncated, repr(info)))
    return results


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("options", [{}, {"law": "outages"}, {"reward": "advantage"}, {"tools": "listed"}])
@settings(max_examples=3)
@given(seed=st.integers(0, 2**31), before=MESSAGES, after=MESSAGES)
def test_a_copied_conversation_plays_on_as_its_original(way, options, seed, before, after):
    env = gymnasium.make("resilisim/Conversation-v0", search="lexical", **options)
    env.reset(seed=seed, options={"task": TASKS[seed % len(TASKS)], "prompt": "optimal"})
    ended = [terminated for _, _, terminated, *_ in say(env, before)]
    copied = WAYS[way](env)
    if not any(ended):
        state = env.unwrapped._episode.state
        theirs = say(copied, after)
        assert env.unwrapped._episode.state == state, "the original moved with its copy"
        assert say(env, after) == theirs
    assert env.reset()[0] == copied.reset()[0]


@pytest.mark.parametrize("way", WAYS)
def test_copied_sessions_play_on_as_their_original(way):
    session = Session(ConversationEnv(search="lexical"), TASKS[0], "optimal", seed=4)
    session.send(f"<tool_call>{TASKS[0].required_tools[0]}</tool_call>")
    copied = WAYS[way](session)
    assert copied.send("<finish/>") == session.send("<finish/>")
    with open_session(TASKS[0], seed=4, prompt="optimal", law={"broken": {"probability": 0.2}}) as mine:
        mine.tools[0]()
        theirs = WAYS[way](mine)
        answers = [[str(tool()) for tool in each.tools[:3]] for each in (theirs, mine)]
        assert answers[0] == answers[1]
        theirs.finish()
        assert not mine.ended
        mine.finish()
        assert theirs.record() == mine.record()


@pytest.mark.parametrize("way", WAYS)
def test_worlds_are_copied_between_episodes_only(way):
    env = ConversationEnv(world="pages-v1", search="lexical", base=1.0)
    WAYS[way](env)
    env.reset(seed=1)
    with pytest.raises(InvalidInputError, match="an episode in a world is under way"):
        WAYS[way](env)
    env.step("<finish/>")
    copied = WAYS[way](env)
    assert copied.reset(seed=2)[0] == env.reset(seed=2)[0]
    assert env.twin().reset(seed=2)[0] == env.reset(seed=2)[0]


@pytest.mark.long
@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_processes_share_the_texts_of_conversations(context):
    options: dict[str, Any] = {"num_envs": 2, "search": "lexical"}
    envs = gymnasium.make_vec(
        "resilisim/Conversation-v0", vectorization_mode="async", vector_kwargs={"context": context}, **options
    )
    alone = gymnasium.make_vec("resilisim/Conversation-v0", vectorization_mode="sync", **options)
    try:
        assert envs.reset(seed=3)[0] == alone.reset(seed=3)[0]
        for message in (
            "<tool_search>naïve 工具 🙂</tool_search>",
            "",
            f"<tool_call>{'x' * 300}</tool_call>",
            "<finish/>",
        ):
            mine, theirs = envs.step((message, message)), alone.step((message, message))
            assert mine[0] == theirs[0]
            assert same(mine[1:4], theirs[1:4])
    finally:
        envs.close()


def test_worlds_say_how_processes_can_play_them():
    with pytest.raises(InvalidInputError, match=r'vector_kwargs=\{"shared_memory": False\}'):
        gymnasium.make_vec("resilisim/Conversation-v0", num_envs=2, vectorization_mode="async", world="pages-v1")
