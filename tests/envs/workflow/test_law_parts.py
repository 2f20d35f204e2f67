"""Under every law Workflow-v0 is Conversation-v0 without the words, and shows what an agent can know."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from resilisim.envs.conversation import ConversationEnv
from resilisim.envs.workflow import core, spaces
from resilisim.envs.workflow.env import WorkflowEnv
from resilisim.envs.workflow.spaces import INVOKE_TOOL, RETRY_TOOL, VALIDATE_OUTPUT, action_index, meta_action_index
from resilisim.envs.workflow.tables import call_parameters
from resilisim.envs.workflow.vector import WorkflowVectorEnv
from resilisim.errors import InvalidInputError
from resilisim.seeding import EVALUATION_SALT, MAX_SEED
from resilisim.simulator import Broken, Corrupt, Drift, Duration, ErrorKinds, Latency, Law, Message, Outage, RateLimit
from resilisim.simulator.episode import Episode
from resilisim.simulator.exact import Judge, solve
from resilisim.simulator.messages import FINISH
from resilisim.simulator.problem import outcome, success_probability
from resilisim.simulator.rulebook.rules import RESULTS, SOUND, UNCHECKED, UNSOUND, messages_until_free
from resilisim.simulator.state import EpisodeState
from resilisim.simulator.tool_status import FAILED as LAW_FAILED
from tests.envs.workflow.cases import random_legal, toy_task
from tests.simulator.test_parts import SMALL

LATENCY = Latency((Duration(1, 0.5), Duration(4, 0.3), Duration(9, 0.2)), timeout=5, budget=15)
LAWS = {
    "rate limit of tools": Law(rate_limit=RateLimit(1, 3)),
    "rate limit of categories": Law(rate_limit=RateLimit(2, 4, "category")),
    "outage": Law(outage=Outage(0.2, 0.4)),
    "broken with an equivalent": Law(broken=Broken(0.3), equivalents={"a": ("d",)}),
    "corrupt": Law(corrupt=Corrupt(0.3)),
    "corrupt, only validators tell": Law(corrupt=Corrupt(0.3, "validators")),
    "drift": Law(drift=Drift(-0.07)),
    "error kinds": Law(error_kinds=ErrorKinds(1, 2, 3)),
    "latency": Law(latency=LATENCY),
    "bases": Law(bases={"a": 0.3}, errors={"TIMEOUT": 3.0, "INVALID_INPUT": 1.0}),
    "much at once": Law(
        rate_limit=RateLimit(2, 4, "category"),
        outage=Outage(0.1, 0.5, {"one": ("b",)}),
        broken=Broken(0.2, ("a",)),
        corrupt=Corrupt(0.2, "validators"),
        error_kinds=ErrorKinds(access=2),
        latency=LATENCY,
        equivalents={"a": ("d",)},
    ),
}
TASK = toy_task(SMALL, "a", "b")
OPTIONS: dict[str, Any] = {"tasks": [TASK], "library": SMALL, "similarity": None, "salt": EVALUATION_SALT}
SUCCESSES = ("success", "corrupt")


def text_of(message: Message) -> str:
    """Return how Conversation-v0 is told a message."""
    import json

    if message.kind == "execute":
        return f"<tool_call>{message.tool} {json.dumps(dict(message.parameters))}</tool_call>"
    return {"wait": "<wait/>", "finish": "<finish/>"}[message.kind]


def known(state: EpisodeState) -> EpisodeState:
    """Return a state as agents know it."""
    return dataclasses.replace(state, hidden=())


@pytest.mark.parametrize("name", LAWS)
def test_same_messages_same_episode(name: str) -> None:
    law = LAWS[name]
    workflow = WorkflowEnv(law=law, max_turns=8, **OPTIONS)
    conversation = ConversationEnv(law=law, max_turns=8, library=SMALL, search="lexical")
    generator, results, ends = np.random.default_rng(1), set(), set()
    for episode in range(16):
        shown, _ = workflow.reset(options={"task": 0, "episode_seed": episode})
        _, heard = conversation.reset(seed=episode, options={"task": TASK, "prompt": "baseline"})
        assert workflow.episode_state() == heard["state"]
        ended = over = False
        while not ended:
            legal = np.flatnonzero(shown["action_mask"])
            due = [a for a in legal if a < 9 * 5 and a % 5 < 4 and shown["tools"][a % 5, spaces.TOOL_DUE] == 1]
            action = int(generator.choice(due if due and generator.random() < 0.6 else legal))
            message = workflow.message(action)
            assert message is not None
            before = known(heard["state"])
            shown, reward, ended, _, info = workflow.step(action)
            _, said, over, _, heard = conversation.step(text_of(message))
            if message.kind == "execute":
                assert info["execution"]["success"] == heard["execution"]["success"]
                tool = SMALL.index(message.tool or "")
                if heard["state"].status[tool] == LAW_FAILED:
                    is_timeout = shown["tools"][tool, spaces.TOOL_STATUS] == spaces.STATUS_TIMEOUT
                    assert is_timeout == (heard["execution"]["error"] == "TIMEOUT")
                assert heard["execution"]["success_probability"] == success_probability(
                    workflow.problem(), before, SMALL.index(message.tool or ""), message
                )
                results.add(heard.get("result"))
            if not over:
                mine = workflow.episode_state()
                assert mine.counters[:-1] == heard["state"].counters[:-1]
                assert (mine.status, mine.parts) == (heard["state"].status, heard["state"].parts)
                assert mine.hidden == heard["state"].hidden
            if ended and not over:  # Workflow-v0 implies the completion signal, and the closing message
                _, said, over, _, heard = conversation.step("<finish/>" if info["ended_by"] == "completion" else "?")
            assert ended == over
        assert heard["state"].ended_by == info["ended_by"]
        assert bool(said) == info["full_success"] == bool(reward)
        ends.add((info["ended_by"], bool(reward)))
    assert ("completion", True) in ends
    assert len(ends) > 1
    expected = {"rate": "rate_limited", "outa": "outage", "erro": "refused", "late": "too_slow"}.get(name[:4])
    expected = "corrupt" if name.startswith("corrupt") else expected
    assert expected is None or expected in results


@pytest.mark.parametrize("name", [name for name in LAWS if name != "bases"])
def test_what_is_shown_is_what_an_agent_can_know(name: str) -> None:
    workflow, generator = WorkflowEnv(law=LAWS[name], max_turns=12, **OPTIONS), np.random.default_rng(2)
    seen = set()
    for episode in range(6):
        shown, _ = workflow.reset(options={"task": 0, "episode_seed": episode})
        ended = False
        while not ended:
            assert shown in workflow.observation_space
            _check_columns(workflow, shown)
            seen |= {(column, int(value)) for row in shown["tool_parts"] for column, value in enumerate(row)}
            shown, _, ended, _, _ = workflow.step(int(random_legal(shown["action_mask"][None], generator)[0]))
    for column, part in {
        spaces.PART_FREE_IN: "rate",
        spaces.PART_RATE_CALLS_MADE: "rate",
        spaces.PART_RATE_NUM_DUE: "rate",
        spaces.PART_GROUP_NUM_DUE: "outage",
        spaces.PART_GROUP_SEEN: "outage",
        spaces.PART_CHANCE_BROKEN: "broken",
        spaces.PART_SOUNDNESS: "corrupt",
        spaces.PART_BLOCK: "error",
    }.items():
        assert not name.startswith(part) or len({value for place, value in seen if place == column}) > 1


def _check_columns(workflow: WorkflowEnv, shown: dict[str, Any]) -> None:
    problem, state = workflow.problem(), known(workflow.episode_state())
    parts = problem.dynamics
    assert parts is not None
    rules, rows, law = parts.rules, shown["tool_parts"], shown["law"]
    assert law[spaces.LAW_FINISH_CHANCE] == spaces.quantised(parts.chance_done(state))
    if rules.budget > 0:
        assert law[spaces.LAW_TIME_LEFT] == spaces.quantised(1.0 - state.parts[rules.at_time] / rules.budget)
    drift = parts.numbers.law.drift.per_message if parts.numbers.law.drift is not None else 0.0
    assert law[spaces.LAW_RISES] == spaces.quantised(max(0.0, 20.0 * drift))
    assert law[spaces.LAW_FALLS] == spaces.quantised(max(0.0, -20.0 * drift))
    for tool, name in enumerate(SMALL.names):
        chance = max(parts.chances(state, tool, digest)[1] + parts.chances(state, tool, digest)[2] for digest in (5, 7))
        assert rows[tool, spaces.PART_CHANCE] == spaces.quantised(chance)
        assert rows[tool, spaces.PART_FREE_IN] == messages_until_free(rules, state.parts, tool)
        for shared, column in ((rules.rate_key, spaces.PART_RATE_NUM_DUE), (rules.group, spaces.PART_GROUP_NUM_DUE)):
            due = [shown["tools"][other, spaces.TOOL_DUE] for other in range(4) if 0 <= shared[tool] == shared[other]]
            first = min(filter(None, due), default=0)
            assert (rows[tool, column], rows[tool, column + 1]) == (np.count_nonzero(due), first)
        called = state.parts[rules.at_rate + rules.rate_key[tool]] if rules.rate_key[tool] >= 0 else 0
        assert rows[tool, spaces.PART_RATE_CALLS_MADE] == called
        sound = state.parts[rules.at_sound + tool] if rules.at_sound >= 0 else 0
        assert rows[tool, spaces.PART_SOUNDNESS] == sound
        if sound:
            status = spaces.STATUS_FAILED if sound == UNSOUND else spaces.STATUS_SUCCESS
            assert shown["tools"][tool, spaces.TOOL_STATUS] == status
            assert sound in (SOUND, UNCHECKED, UNSOUND)
        if rules.at_block >= 0:
            block = state.parts[rules.at_block + tool]
            opened = any(rules.is_opener[i] and state.status[i] == 2 for i in range(4))
            expected = 2 if block > 1 else int(block == 1 and not opened)
            assert rows[tool, spaces.PART_BLOCK] == expected
            invoke, retry = (action_index(kind, tool, 4) for kind in (INVOKE_TOOL, RETRY_TOOL))
            assert shown["action_mask"][retry] + shown["action_mask"][invoke] == (2 if block > 1 else 1), name
    waits = shown["action_mask"][meta_action_index(0, 4)]
    assert waits == law[spaces.LAW_CAN_WAIT] == rules.waiting_is_productive
    accepts = shown["action_mask"][action_index(VALIDATE_OUTPUT, 4, 4)]
    assert accepts == (0.0 < parts.chance_done(state) < 1.0)


def test_a_place_is_due_until_something_in_it_is_not_known_to_be_corrupt() -> None:
    workflow = WorkflowEnv(law=Law(corrupt=Corrupt(0.5), equivalents={"a": ("d",)}), **OPTIONS)
    shown, _ = workflow.reset(seed=0)
    due = spaces.TOOL_DUE
    assert shown["tools"][:, due].tolist() == [1, 2, 0, 1]
    shown = workflow.follow(action_index(INVOKE_TOOL, 3, 4), "corrupt")[0]
    assert shown["tools"][:, due].tolist() == [1, 2, 0, 1]
    assert shown["tools"][3, spaces.TOOL_STATUS] == spaces.STATUS_FAILED
    shown = workflow.follow(action_index(RETRY_TOOL, 3, 4), "success")[0]
    assert shown["tools"][:, due].tolist() == [0, 1, 0, 0]
    shown, _, ended, _, info = workflow.follow(action_index(INVOKE_TOOL, 1, 4), "success")
    assert ended
    assert (info["full_success"], info["coverage"]) == (True, 1.0)


@pytest.mark.parametrize("parts", [{}, {"latency": Latency((Duration(2, 1.0),), budget=2)}])
@pytest.mark.parametrize("result", SUCCESSES)
def test_the_closing_message_accepts_what_only_looks_sound(parts: dict[str, Any], result: str) -> None:
    law, turns = Law(corrupt=Corrupt(0.5, "validators"), **parts), 1 if not parts else 5
    workflow = WorkflowEnv(law=law, max_turns=turns, **{**OPTIONS, "tasks": [toy_task(SMALL, "a")]})
    workflow.reset(seed=0)
    _, reward, ended, _, info = workflow.follow(action_index(INVOKE_TOOL, 0, 4), result, seconds=2.0)
    assert (ended, info["ended_by"], info["full_success"]) == (True, "completion", result == "success")
    assert reward == float(result == "success")


@pytest.mark.parametrize("reward", ["value", "advantage"])
@pytest.mark.parametrize("name", ["rate limit of tools", "outage", "error kinds", "corrupt, only validators tell"])
def test_rewards_are_those_of_the_judge(name: str, reward: str) -> None:
    workflow = WorkflowEnv(law=LAWS[name], max_turns=5, reward=reward, **OPTIONS)
    generator, optimum = np.random.default_rng(3), solve(workflow.problem())
    for episode in range(8):
        shown, _ = workflow.reset(options={"task": 0, "episode_seed": episode})
        judge, ended, total = Judge(workflow.problem()), False, 0.0
        start = optimum.value(workflow.episode_state())
        while not ended:
            state, mask = workflow.episode_state(), shown["action_mask"]
            action = int(random_legal(mask[None], generator)[0])
            if generator.random() < 0.1:
                action = int(np.flatnonzero(mask == 0)[0])
            message = workflow.message(action)
            shown, paid, ended, _, info = workflow.step(action)
            total += paid
            if reward == "value" and not ended:
                reached = optimum.value(workflow.episode_state())
                assert paid == pytest.approx(reached - optimum.value(state), abs=1e-12)
            if reward == "advantage" and not ended:
                found = judge.judge(state, message or Message("search"), workflow.episode_state())
                assert paid == pytest.approx(-found.regret, abs=1e-12)
        if reward == "value":
            assert total == pytest.approx(float(info["full_success"]) - start, abs=1e-12)
        assert info["episode_return"] == pytest.approx(total, abs=1e-6)


@pytest.mark.parametrize("name", ["broken with an equivalent", "much at once"])
def test_an_episode_is_followed(name: str) -> None:
    """What another episode brought is shown as if it had been brought here."""
    workflow, other = (WorkflowEnv(law=LAWS[name], max_turns=12, **OPTIONS) for _ in range(2))
    generator = np.random.default_rng(4)
    for episode in range(6):
        shown, _ = workflow.reset(options={"task": 0, "episode_seed": episode})
        copied, _ = other.reset(options={"task": 0, "episode_seed": 99})
        ended = False
        while not ended:
            action = int(random_legal(shown["action_mask"][None], generator)[0])
            before = workflow.episode_state()
            shown, _, ended, _, info = workflow.step(action)
            after = workflow.episode_state()
            result, seconds, status = "failure", 0.0, spaces.STATUS_FAILED
            if info["execution"] is not None:
                result, seconds = _brought(workflow, before, after, info["execution"])
                status = spaces.STATUSES.index(info["execution"]["status"])
            copied, _, over, _, _ = other.follow(action, result, status, seconds, before.hidden)
            assert ended == over
            for array in shown:
                assert (shown[array] == copied[array]).all(), array


def _brought(workflow: WorkflowEnv, before: EpisodeState, after: EpisodeState, execution: Any) -> tuple[str, float]:
    """Return the result and the duration by which a state came about."""
    parts, tool = workflow.problem().dynamics, SMALL.index(execution["tool"])
    assert parts is not None
    ticks = after.parts[parts.rules.at_time] - before.parts[parts.rules.at_time] if parts.rules.at_time >= 0 else 0
    down = parts.rules.at_outage >= 0
    for result in RESULTS:
        draw = dataclasses.replace(_draw(result), ticks=ticks, findings=parts.true_findings(before))
        digest = after.parts[parts.rules.at_block + tool] if parts.rules.at_block >= 0 else 0
        parameters = call_parameters(SMALL["a"], 1 if digest == _digest(execution["tool"], 1) else 0)
        message = Message("execute", execution["tool"], parameters)
        found = parts.after(before, message, tool, draw, after.hidden[: parts.rules.num_groups] if down else ())
        after_all = dataclasses.replace(after, counters=(*after.counters[:-1], found.counters[-1]))
        if found == after_all:
            return result, ticks / 1000
    raise AssertionError(execution)


def _draw(result: str) -> Any:
    from resilisim.simulator.rulebook.dynamics import Draw

    return Draw(RESULTS.index(result))


def _digest(tool: str, variant: int) -> int:
    from resilisim.simulator.rulebook.dynamics import parameter_digest

    return parameter_digest(SMALL[tool], call_parameters(SMALL[tool], variant))


PARTS: dict[str, dict[str, Any]] = {
    "rate_limit": {"rate_limit": RateLimit(1, 3)},
    "outage": {"outage": Outage(0.2, 0.4)},
    "broken": {"broken": Broken(0.3), "equivalents": {"a": ("d",)}},
    "corrupt": {"corrupt": Corrupt(0.3)},
    "validators": {"corrupt": Corrupt(0.3, "validators")},
    "drift": {"drift": Drift(-0.07)},
    "error_kinds": {"error_kinds": ErrorKinds(1, 2, 3)},
    "latency": {"latency": LATENCY},
}


@given(st.lists(st.sampled_from(sorted(PARTS)), max_size=2), st.integers(0, MAX_SEED), st.data())
def test_scalar_batch_and_episode_agree_under_pairs_of_parts(names: list[str], seed: int, data: st.DataObject) -> None:
    law = Law(**{field: value for name in names for field, value in PARTS[name].items()})
    scalar = WorkflowEnv(law=law, max_turns=8, **OPTIONS)
    batch = WorkflowVectorEnv(2, law=law, max_turns=8, autoreset_mode="DISABLED", **OPTIONS)
    shown, _ = scalar.reset(options={"task": 0, "episode_seed": seed})
    rows, _ = batch.reset(options={"tasks": np.zeros(2, dtype=np.int64), "seeds": np.array([seed, seed ^ 1])})
    problem = scalar.problem()
    episode, ended = Episode(problem, TASK.instance_id, seed, EVALUATION_SALT), False
    while not ended:
        assert all((shown[name] == rows[name][0]).all() for name in shown)
        legal = np.flatnonzero(shown["action_mask"]).tolist()
        action = data.draw(st.sampled_from(legal))
        message = scalar.message(action)
        assert message is not None
        shown, reward, ended, _, info = scalar.step(action)
        rows, rewards, over, _, _ = batch.step(np.array([action, rows["action_mask"][1].argmax()]))
        assert (reward, ended) == (rewards[0], over[0])
        event = episode.apply(message)
        assert event.success == (info["execution"] and info["execution"]["success"])
        if episode.ended_by is None:
            mine = scalar.episode_state()
            assert mine == dataclasses.replace(
                episode.state, counters=(*episode.state.counters[:-1], mine.counters[-1])
            )
            if ended:  # Workflow-v0 implies the completion signal, and the closing message
                episode.apply(FINISH if info["ended_by"] == "completion" else Message("search"))
        assert ended == (episode.ended_by is not None)
    assert (info["ended_by"], info["full_success"]) == (episode.ended_by, bool(outcome(problem, episode.state)))


@functools.cache
def _played(batched: bool) -> list[Any]:
    """Play one law in two environments for some steps."""
    options = {**OPTIONS, "law": LAWS["much at once"], "max_turns": 8}
    generator = np.random.default_rng(5)
    if batched:
        envs = WorkflowVectorEnv(2, autoreset_mode="SAME_STEP", **options)
        shown, _ = envs.reset(seed=7)
        told = []
        for _ in range(40):
            actions = random_legal(shown["action_mask"], generator)
            shown, rewards, ended, _, _ = envs.step(actions)
            told.append((actions, {name: array.copy() for name, array in shown.items()}, rewards, ended))
        return told
    return []


def _replayed(told: list[Any]) -> Iterator[None]:
    for number in range(2):
        single = WorkflowEnv(law=LAWS["much at once"], max_turns=8, **OPTIONS)
        single.reset(seed=7 + number)
        for actions, shown, rewards, ended in told:
            mine, reward, over, _, _ = single.step(int(actions[number]))
            assert (reward, over) == (rewards[number], ended[number])
            if over:
                mine, _ = single.reset()
            for name in mine:
                assert (mine[name] == shown[name][number]).all(), name
            yield


def test_the_batch_is_the_scalar_environment() -> None:
    assert len(list(_replayed(_played(batched=True)))) == 80


def test_a_saved_batch_goes_on_as_it_would_have() -> None:
    options = {**OPTIONS, "law": LAWS["much at once"], "max_turns": 8}
    first, second = (WorkflowVectorEnv(3, autoreset_mode="SAME_STEP", **options) for _ in range(2))
    shown, _ = first.reset(seed=1)
    generator = np.random.default_rng(6)
    for _ in range(5):
        shown = first.step(random_legal(shown["action_mask"], generator))[0]
    second.set_state(first.get_state())
    for _ in range(20):
        actions = random_legal(shown["action_mask"], generator)
        shown, rewards, _, _, _ = first.step(actions)
        again, paid, _, _, _ = second.step(actions)
        assert (rewards == paid).all()
        for name in shown:
            assert (shown[name] == again[name]).all(), name


@pytest.mark.long
def test_compiled_code_is_the_plain_one(monkeypatch: pytest.MonkeyPatch) -> None:
    told = _played(batched=True)
    with monkeypatch.context() as patch:
        for name in ("begin_episodes", "step_environments"):
            kernel = getattr(core, name)
            patch.setattr(core, name, getattr(kernel, "py_func", kernel))
        assert len(list(_replayed(told))) == 80


def test_laws_are_read_and_refused_in_one_line() -> None:
    for options, said in (
        ({"law": "rate-limit"}, "did you mean 'rate-limits'?"),
        ({"law": "rate-limits", "base": 0.5}, "base is 0.5 beside the law 'rate-limits'"),
        ({"law": 3}, "expected the name of a law"),
        ({"law": "training", "reward": "value"}, "training law"),
    ):
        with pytest.raises(InvalidInputError, match=said):
            WorkflowEnv(**{**OPTIONS, **options})
    assert not WorkflowEnv(law={"base": 0.7}, **OPTIONS).core.has_sections
