"""The rewards success, value and advantage: one meaning on Conversation-v0, sessions, records and Workflow-v0."""

from __future__ import annotations

import itertools

import gymnasium
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from resilisim import evaluate, open_session
from resilisim.envs import ConversationEnv, EnvironmentSettings, Session, check_conversation_env
from resilisim.envs.workflow import WorkflowEnv, WorkflowVectorEnv
from resilisim.envs.workflow.spaces import INVOKE_TOOL, RETRY_TOOL, action_index
from resilisim.errors import ExactLimitError, InvalidInputError
from resilisim.evaluation.episode.play import Judging
from resilisim.policies.ppo.config import load_config
from resilisim.simulator.exact import solve
from resilisim.tasks.benchmark import benchmark_tasks
from resilisim.tool_library import default_library
from tests.envs.workflow.cases import LARGE, TASKS, TOY, random_actions, toy_task

REWARDS = ("success", "value", "advantage")
NAMES = default_library().names
MESSAGES = st.one_of(
    st.sampled_from([f"<tool_call>{name}</tool_call>" for name in NAMES]),
    st.sampled_from(["<tool_info>network_poster</tool_info>", "<tool_call>no_such_tool</tool_call>", "?", None]),
)


def judged(*where, **how):
    """Return a session, and who judges it."""
    judging = Judging()
    return Session(*where, observers=[judging], **how), judging


def sessions(task, seed, **options):
    return {
        name: judged(ConversationEnv(reward=name, **options), task, "optimal", seed, privileged=True)
        for name in REWARDS
    }


@given(st.sampled_from(TASKS), st.integers(0, 2**63 - 1), st.data())
def test_every_session_is_paid_what_its_record_says(task, seed, data):
    options = data.draw(st.sampled_from([{}, {"base": 0.95, "loop_length": 2, "max_turns": 6}, {"payload": "verbose"}]))
    played = sessions(task, seed, **options)
    required = st.sampled_from([f"<tool_call>{name}</tool_call>" for name in task.required_tools])
    judges = {name: judging for name, (_, judging) in played.items()}
    played = {name: session for name, (session, _) in played.items()}
    plain = played["success"]
    while not plain.ended:
        message = "<finish/>" if plain.oracle() and data.draw(st.booleans()) else data.draw(required | MESSAGES)
        assert {session.reward for session in played.values()} == {None}, "an episode that breaks here has no reward"
        for session in played.values():
            session.send(message)
    records = {name: judging.record("tester") for name, judging in judges.items()}
    assert records["success"] == records["value"] == records["advantage"]
    record, paid = records["success"], {name: session.rewards for name, session in played.items()}
    assert paid["success"] == [0.0] * (len(record["steps"]) - 1) + [float(record["outcome"])]
    assert paid["advantage"] == [-step["regret"] for step in record["steps"]]
    assert max(paid["advantage"]) <= 0.0
    values = [step["value"] for step in record["steps"]] + [record["outcome"]]
    assert paid["value"] == [after - before for before, after in itertools.pairwise(values)]
    assert played["value"].reward == pytest.approx(record["outcome"] - record["optimum"], abs=1e-12)
    assert played["advantage"].reward == pytest.approx(-record["regret"], abs=1e-12)
    plain.restart()
    assert (plain.rewards, plain.reward) == ([], None)


def test_a_session_of_functions_is_paid_once_it_has_ended():
    with open_session(TASKS[0], 4, reward="advantage") as session:
        session.call(TASKS[0].required_tools[-1])
        assert (len(session.rewards), session.reward) == (1, None)
    assert session.rewards == [-step["regret"] for step in session.record()["steps"]]
    assert session.reward == sum(session.rewards) < 0.0
    with pytest.raises(ConnectionError), open_session(TASKS[0], 4) as broken:
        raise ConnectionError
    assert broken.reward is None


@pytest.mark.parametrize("reward", REWARDS)
def test_gymnasium_pays_it_and_the_check_accepts_it(reward):
    env = gymnasium.make("resilisim/Conversation-v0", reward=reward)
    _, info = env.reset(seed=3, options={"task": TASKS[0], "prompt": "baseline"})
    optimum = solve(info["problem"])
    paid = env.step("<tool_search>read a file</tool_search>")[1]
    change = optimum.value(env.unwrapped._info(None, {})["state"]) - optimum.value(info["state"])
    assert paid == (0.0 if reward == "success" else change)
    assert paid == 0.0 or paid < 0.0
    check_conversation_env(lambda: ConversationEnv(reward=reward))


NUM_ENVS = 12
LIBRARIES = [
    {"tasks": TASKS},
    {"tasks": TASKS, "base": 0.6, "max_consecutive_failures": 2, "loop_length": 2},
    {"tasks": TASKS, "max_consecutive_failures": 0, "loop_length": 0, "max_turns": 7, "filters": ["dependency"]},
    # Unequal reliabilities: the table tells apart which successful tool was called last.
    {"tasks": [toy_task(TOY, "read", "write"), toy_task(TOY, "write")], "library": TOY},
    pytest.param(  # a layout of its own, which takes a minute to compile
        {"tasks": [toy_task(LARGE, "tool_09", "tool_10")], "library": LARGE, "max_turns": 12}, marks=pytest.mark.long
    ),
]


@pytest.mark.parametrize("options", LIBRARIES)
@pytest.mark.parametrize("mode", ["SAME_STEP", "NEXT_STEP", "DISABLED"])
def test_a_batch_is_paid_by_the_same_optimum(options, mode):
    envs = {
        name: WorkflowVectorEnv(NUM_ENVS, reward=name, autoreset_mode=mode, **options)
        for name in ("full_success", *REWARDS)
    }
    for env in envs.values():
        env.reset(seed=5)
    plain = envs["full_success"]
    generator, sums, checked = np.random.default_rng(1), np.zeros((3, NUM_ENVS)), 0
    for _ in range(60):
        actions = random_actions(plain.core.observation["action_mask"], generator, 0.1)
        good = [solve(plain.problem(env)).best_action(plain.episode_state(env)) for env in range(NUM_ENVS)]
        for env in np.flatnonzero(generator.random(NUM_ENVS) < 0.7):
            if good[env].kind == "execute":
                tool, size = plain.core.library.index(good[env].tool), len(plain.core.library)
                calls = [action_index(kind, tool, size) for kind in (INVOKE_TOOL, RETRY_TOOL)]
                actions[env] = max(calls, key=lambda action, env=env: plain.action_masks()[env, action])
        over = plain.core.episodes["needs_reset"].astype(bool)
        before = [solve(plain.problem(env)).value(plain.episode_state(env)) for env in range(NUM_ENVS)]
        stepped = {name: env.step(actions) for name, env in envs.items()}
        ended = stepped["full_success"][2]
        outcome = stepped["full_success"][1]
        after = [
            outcome[env] if ended[env] else solve(plain.problem(env)).value(plain.episode_state(env))
            for env in range(NUM_ENVS)
        ]
        value = np.where(over, 0.0, np.array(after) - np.array(before))
        assert np.array_equal(stepped["success"][1], outcome)
        assert np.array_equal(stepped["value"][1], value)
        advantage = stepped["advantage"][1]
        assert (advantage <= 0.0).all()
        drew = plain.core.episodes["tool"] >= 0
        assert np.allclose(advantage[~drew & ~over], value[~drew & ~over], atol=1e-12), "nothing was drawn"
        checked += np.count_nonzero(drew & (value > advantage))
        for row, name in enumerate(REWARDS):
            sums[row] += stepped[name][1]
            told = stepped[name][4].get("episode_return")
            new = ended & ~over
            if new.any():
                assert np.allclose(told[new], sums[row, new], atol=1e-6)
        sums[:, ended] = 0.0
        if mode == "DISABLED" and ended.all():
            break
    assert checked > 20, "draws have brought luck"


@pytest.mark.parametrize("reward", ["value", "advantage"])
def test_one_environment_is_paid_what_conversations_are(reward):
    salt = EnvironmentSettings().salt
    workflow, conversation = WorkflowEnv(tasks=TASKS, salt=salt, reward=reward), ConversationEnv(reward=reward)
    generator = np.random.default_rng(2)
    for episode, task in enumerate(TASKS):
        workflow.reset(options={"task": task.instance_id, "episode_seed": episode})
        session, _ = judged(conversation, task, "baseline", episode)
        ended, paid = False, []
        while not ended:
            pool = task.required_tools if generator.random() < 0.7 else NAMES
            tool = NAMES.index(str(generator.choice(pool)))
            calls = [action_index(kind, tool, len(NAMES)) for kind in (INVOKE_TOOL, RETRY_TOOL)]
            _, reward_paid, ended, _, info = workflow.step(max(calls, key=lambda call: workflow.action_masks()[call]))
            session.send(f"<tool_call>{NAMES[tool]}</tool_call>")
            paid.append(reward_paid)
            assert reward_paid == session.rewards[-1]
        assert info["episode_return"] == pytest.approx(sum(paid), abs=1e-6)
        if not session.ended:  # the completion signal, or the closing message, is worth nothing more
            session.send("<finish/>")
            assert session.rewards[-1] == 0.0
        assert session.reward == pytest.approx(sum(paid), abs=1e-12)


def test_a_run_may_be_resumed_and_compared_under_another_reward(tmp_path):
    tasks = list(benchmark_tasks()[:2])
    plain = evaluate("random", tasks, out=tmp_path / "plain")
    settings_of_value = EnvironmentSettings(reward="value")
    assert settings_of_value.to_mapping() == EnvironmentSettings().to_mapping()
    evaluate("random", tasks, environment=settings_of_value, out=tmp_path / "plain")  # nothing is left to be played
    paid = evaluate("random", tasks, reward="value", out=tmp_path / "value")
    assert list(paid.records()) == list(plain.records())


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: ConversationEnv(reward="valu"), "unknown reward 'valu': did you mean 'value'"),
        (lambda: WorkflowEnv(tasks=TASKS[:1], reward="advantages"), "unknown reward 'advantages': did you mean"),
        (lambda: WorkflowEnv(tasks=TASKS[:1], law="training", reward="value"), "reward 'value' under the training law"),
        (lambda: load_config(reward="advantage", law="training"), "expected the benchmark law"),
    ],
)
def test_what_cannot_be_paid_is_refused(make, words):
    with pytest.raises(InvalidInputError, match=words):
        make()


def test_a_task_too_large_to_be_solved_can_only_be_paid_for_success():
    env = ConversationEnv(library=LARGE, max_turns=3000, reward="value")
    task = toy_task(LARGE, *LARGE.names, identifier="all_of_it")
    with pytest.raises(ExactLimitError):
        env.reset(seed=0, options={"task": task})
