"""Episodes of agents that break, are dropped or cancelled, or share an event loop: nothing is left over or mixed up.

Every test also checks that asyncio has nothing to complain about: no task that is destroyed while it waits, no
exception that nobody looked at, no event loop that was never closed.
"""

from __future__ import annotations

import asyncio

import pytest

from resilisim.chat import ChatMessage, RoleModels
from resilisim.chat.scripted import ScriptError
from resilisim.errors import InfrastructureError, InvalidInputError
from resilisim.evaluation.episode.play import play_agent_episode
from resilisim.tasks import Task
from tests.policies.llm.acting import Acting, advance, assert_asyncio_is_content, begin, both_tools, by_hand
from tests.policies.llm.playing import READER, TASK, environment, play_scripted, scripted

pytestmark = pytest.mark.filterwarnings("error")


@pytest.fixture(autouse=True)
def _nothing_is_left_over(caplog):
    yield
    assert_asyncio_is_content(caplog)


def test_after_its_answer_it_says_so_again_and_after_giving_up_it_stays_silent():
    async def answer(run):
        return ""

    async def give_up(run):
        return None

    for does, action in ((answer, "<finish/>"), (give_up, None)):
        policy = Acting(does)
        _, observation, info = begin()
        policy.reset(observation, info)
        assert [policy.act(observation, info) for _ in range(2)] == [action, action]


def test_an_exception_is_raised_and_raised_again():
    async def break_down(run):
        await run.tools.call(READER, {})
        raise KeyError("a bug")

    policy = Acting(break_down)
    env, observation, info = begin()
    policy.reset(observation, info)
    observation, _, info = advance(env, policy.act(observation, info))
    for _ in range(2):
        with pytest.raises(KeyError, match="a bug"):
            policy.act(observation, info)
    assert by_hand(Acting(both_tools, "yes", "yes"))[-1] == "<finish/>"
    policy.does = both_tools
    policy.models = RoleModels(scripted("yes", "yes"))
    assert by_hand(policy)[-1] == "<finish/>"


@pytest.mark.parametrize("error", [InfrastructureError("down"), InvalidInputError("no such model"), ScriptError("x")])
def test_what_the_model_raises_is_raised_by_act_and_by_the_player(error):
    with pytest.raises(type(error)):
        by_hand(Acting(both_tools, "yes", error))
    with pytest.raises(type(error)):
        play_scripted(Acting(both_tools, "yes", error))


def test_act_before_reset_is_a_bug():
    policy = Acting(both_tools)
    with pytest.raises(RuntimeError, match="call reset before act"):
        policy.act("prompt", {})


def test_reset_in_the_middle_drops_the_old_loop():
    endings = []

    async def watched(run):
        try:
            return await both_tools(run)
        finally:
            endings.append(len(run.transcript.calls))

    policy = Acting(watched, *["yes"] * 5)
    for _ in range(2):
        _, observation, info = begin()
        policy.reset(observation, info)
        policy.act(observation, info)
    assert by_hand(policy)[-1] == "<finish/>"
    assert endings == [1, 1, 2]


@pytest.mark.parametrize("closed", [True, False])
def test_a_policy_may_be_dropped_in_the_middle(closed):
    endings = []

    async def watched(run):
        try:
            await run.tools.call(READER, {})
        finally:
            endings.append("ended")

    policy = Acting(watched)
    _, observation, info = begin()
    policy.reset(observation, info)
    policy.act(observation, info)
    if closed:
        policy.close()
    del policy
    assert endings == ["ended"]


def test_a_policy_can_be_used_again_after_close():
    policy = Acting(both_tools, *["yes"] * 4)
    by_hand(policy)
    policy.close()
    assert by_hand(policy)[-1] == "<finish/>"


def test_nothing_that_an_agent_puts_on_itself_gets_into_the_next_episode():
    class Leaky(Acting):
        async def play(self, run):
            seen, self.seen = getattr(self, "seen", False), True
            return str(seen)

    policy = Leaky(both_tools)
    assert [play_scripted(policy)["agent"]["answer"] for _ in range(2)] == ["False", "False"]


def test_two_agents_on_one_event_loop_do_not_mix():
    def does(steps):
        async def calls(run):
            for step in range(steps):
                await run.ask("agent", [ChatMessage("user", f"{steps}: {step}")])
                await asyncio.sleep(0)
                await run.tools.call("tool_info", {"name": f"tool_{steps}_{step}"})
            return str(steps)

        return calls

    async def play():
        agents = [Acting(does(steps), *["ok"] * steps) for steps in (3, 5)]
        envs = [environment(max_turns=9).twin() for _ in agents]
        task = Task.from_mapping(TASK, envs[0].library)
        return await asyncio.gather(
            *(play_agent_episode(env, agent, task, "optimal", 0) for env, agent in zip(envs, agents, strict=True))
        )

    for steps, record in zip((3, 5), asyncio.run(play()), strict=True):
        assert [step["message"] for step in record["steps"]] == [
            *(f"<tool_info>tool_{steps}_{step}</tool_info>" for step in range(steps)),
            "<finish/>",
        ]
        assert [message["content"] for message in record["agent"]["messages"]] == [
            f"{steps}: {step}" for step in range(steps)
        ]
        assert record["agent"]["answer"] == str(steps)


class Stuck:
    """A model that never answers."""

    name = "stuck"

    async def complete(self, request):
        await asyncio.Event().wait()

    async def aclose(self):
        """Do nothing."""


def test_cancelled_in_the_middle_it_leaves_nothing_behind():
    endings = []

    async def watched(run):
        try:
            await run.ask("agent", [ChatMessage("user", "?")])
        finally:
            await asyncio.sleep(0)
            endings.append("ended")

    async def play():
        policy = Acting(watched)
        policy.models = RoleModels(Stuck())
        task = Task.from_mapping(TASK, environment().library)
        episode = asyncio.create_task(play_agent_episode(environment().twin(), policy, task, "optimal", 0))
        await asyncio.sleep(0.01)
        episode.cancel()
        with pytest.raises(asyncio.CancelledError):
            await episode
        return asyncio.all_tasks() - {asyncio.current_task()}

    assert asyncio.run(play()) == set()
    assert endings == ["ended"]
