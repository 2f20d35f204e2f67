"""By hand or in a session it is the same episode, an agent is shown only what it may know, and nothing is left over.

Every test also checks that asyncio has nothing to complain about: no task that is destroyed while it waits, no
exception that nobody looked at, no event loop that was never closed.
"""

from __future__ import annotations

import asyncio
import gc
import json
import types
import warnings

import pytest

from resilisim.chat import ChatMessage
from resilisim.chat.models import RoleModels
from resilisim.chat.scripted_models import ScriptError
from resilisim.envs.session import Session
from resilisim.errors import InfrastructureError, InvalidInputError
from resilisim.evaluation.episode.play import play_agent_episode
from resilisim.policies.llm.agent_options import AgentOptions
from resilisim.policies.llm.policy import LlmPolicy
from resilisim.tasks import Task
from tests.policies.llm.helpers import PARSER, READER, TASK, environment, play_scripted, scripted

pytestmark = pytest.mark.filterwarnings("error")


@pytest.fixture(autouse=True, scope="module")
def _what_others_left_over():
    """What tests of other files left to be collected is not told here, and what they keep is not looked at again."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _nothing_is_left_over(caplog):
    """No task was destroyed while it waited, and no exception was never looked at."""
    yield
    gc.collect()
    assert [record.getMessage() for record in caplog.records if record.name == "asyncio"] == []


class Acting(LlmPolicy[AgentOptions]):
    """An agent that does what a function says."""

    name = "acting"
    options_class = AgentOptions
    components = ("agent",)
    uses_native_calls = True

    def __init__(self, does, *lines, **options):
        super().__init__(scripted(*lines), **options)
        self.does = does

    async def play(self, run):
        assert not hasattr(self, "was_here"), "what an agent puts on itself gets into no other episode"
        self.was_here = True
        return await self.does(run)


async def both_tools(run):
    """Asks the model before each of the two tools that the task needs."""
    run.structure["done"] = []
    for name in (READER, PARSER):
        await run.ask("agent", [ChatMessage("user", f"May I call {name}?")])
        result = await run.tools.call(name, {})
        run.structure["done"].append([name, result.ok])
    return "both"


def begin(seed=0, **options):
    env = environment(**options)
    task = Task.from_mapping(TASK, env.library)
    return env, *env.reset(seed=seed, options={"task": task, "prompt": "optimal"})


def advance(env, action):
    observation, _, terminated, _, info = env.stop() if action is None else env.step(action)
    return observation, terminated, info


def by_hand(policy, seed=0, **options):
    """Play an episode as one would play any policy, with all that the environment tells; return its messages."""
    env, observation, info = begin(seed, **options)
    policy.reset(observation, info)
    actions, terminated = [], False
    while not terminated:
        actions.append(policy.act(observation, info))
        observation, terminated, info = advance(env, actions[-1])
    return actions


def in_session(policy, seed=0, identity="", **options):
    """Let an agent play a session that nobody judges; return its record."""
    env = environment(**options).twin()
    session = Session(env, Task.from_mapping(TASK, env.library), "optimal", seed)
    return asyncio.run(policy.play_session(session, identity=identity))


def without_identity(record):
    """What a record says apart from what comes from the episode's identity."""
    calls = [{**call, "settings": {**call["settings"], "seed": 0}} for call in record["calls"]]
    return {**record, "calls": calls}


@pytest.mark.parametrize("protocol", ["text", "native"])
def test_by_hand_and_by_the_player_it_is_the_same_episode(protocol):
    record = play_scripted(Acting(both_tools, "yes", "yes"), protocol=protocol)
    assert record["outcome"] == 1
    with_hands = by_hand(Acting(both_tools, "yes", "yes"), protocol=protocol)
    written = [action if isinstance(action, str) else json.dumps(action) for action in with_hands]
    assert written == [step["message"] for step in record["steps"]]
    part = in_session(Acting(both_tools, "yes", "yes"), protocol=protocol)
    assert without_identity(part) == without_identity(record["agent"])
    assert part["structure"] == {"done": [[READER, True], [PARSER, True]]}
    assert (part["answer"], part["ended_by"], part["oracle"], part["restarts"]) == ("both", "answer", False, 0)


def test_one_policy_plays_many_episodes_by_hand_and_by_the_player_also_after_close():
    policy = Acting(both_tools, *["yes"] * 12)
    first, second = by_hand(policy), by_hand(policy)
    assert first == second == [f"<tool_call>{READER}</tool_call>", f"<tool_call>{PARSER}</tool_call>", "<finish/>"]
    for seed in (0, 0, 1):
        play_scripted(policy, seed=seed)
    seeds = [request.seed for request in policy.models.default.requests[4:]]
    assert seeds[:2] == seeds[2:4]
    assert len(set(seeds)) == 4, "by task and seed"
    policy.close()
    policy.close()
    assert by_hand(policy)[-1] == "<finish/>"


async def deaf(run):
    """Goes on for ever and swallows whatever is an Exception."""
    try:
        while True:
            try:
                run.count("calls")
                await run.tools.call(*((READER, {}) if run.turns_at_start == 9 else ("tool_info", {"name": "x"})))
            except Exception:
                run.count("swallowed")
    finally:
        await asyncio.sleep(0)
        run.structure["closed"] = True


@pytest.mark.parametrize(
    ("options", "ended_by"), [({"max_turns": 3}, "turns"), ({"base": 1e-9, "max_turns": 9}, "consecutive_failures")]
)
def test_the_environment_ends_the_episode_under_the_agent_and_what_it_does_then_is_done(options, ended_by):
    record = play_scripted(Acting(deaf), **options)
    assert record["ended_by"] == ended_by
    part = record["agent"]
    assert (part["ended_by"], part["answer"], part["structure"]) == ("environment", None, {"closed": True})
    assert part["counters"] == {"calls": len(record["steps"])}
    assert without_identity(in_session(Acting(deaf), **options)) == part


@pytest.mark.parametrize(
    ("protocol", "uses_native", "native"), [("text", True, False), ("native", False, False), ("native", True, True)]
)
def test_native_calls_need_both_the_environment_and_the_agent(protocol, uses_native, native, monkeypatch):
    monkeypatch.setattr(Acting, "uses_native_calls", uses_native)
    seen = []

    async def look(run):
        seen.append(run.native)
        return await both_tools(run)

    record = play_scripted(Acting(look, "yes", "yes"), protocol=protocol)
    assert seen == [native]
    assert record["outcome"] == 1
    assert record["protocol"] == record["agent"]["protocol"] == ("native" if native else "text")


def test_what_an_agent_gets_beyond_the_prompt_marks_the_record():
    async def ask_oracle(run):
        before = run.oracle()
        await both_tools(run)
        return f"{before} {run.oracle()}"

    async def twice(run):
        assert TASK["description"] in run.task
        assert "<tool_call>" in run.prompt
        assert "<tool_call>" not in run.task
        assert run.turns_left == 10
        await run.tools.call("no such tool", {})
        await run.tools.call(READER, {})
        assert (run.turn, run.turns_left) == (1, 9), "only what is sent uses a turn"
        prompt = await run.restart()
        assert (prompt, run.turn, run.turns_left) == (run.prompt, 0, 10)
        return await both_tools(run)

    asked = play_scripted(Acting(ask_oracle, "yes", "yes"))
    assert (asked["agent"]["answer"], asked["agent"]["oracle"], asked["privileged"]) == ("False True", True, True)
    again = play_scripted(Acting(twice, "yes", "yes"))
    assert (again["outcome"], again["agent"]["restarts"]) == (1, 1)
    assert [step["attempt"] for step in again["steps"]] == [1, 1, None]
    plain = play_scripted(Acting(both_tools, "yes", "yes"))
    for record in (again, plain):  # a fresh episode tells nothing that others are not told
        assert (record["agent"]["oracle"], record["privileged"]) == (False, False)


# What would let an agent see more than the prompt and the replies say.
SECRET_ATTRIBUTES = {"instance_id", "required_tools", "success_probability", "problem", "state", "salt"}
SECRET_SEED = 7_654_321_987


def reachable(root):
    """Return every object that can be reached through attributes, items and closures, the oracle's and restart's not.

    In one process nothing can be hidden from code that looks into closures for it; what is asked is that nothing of
    the kind lies about among an agent's data.
    """
    seen, waiting = {}, [root]
    while waiting:
        value = waiting.pop()
        if id(value) in seen or isinstance(value, type | types.ModuleType | types.FunctionType | types.CodeType):
            continue
        seen[id(value)] = value
        if isinstance(value, dict | types.MappingProxyType):
            waiting += [*value.keys(), *value.values()]
        elif isinstance(value, list | tuple | set | frozenset):
            waiting += value
        elif isinstance(value, types.MethodType):
            waiting.append(value.__self__)
        elif type(value).__module__.startswith(("resilisim", "tests")):
            names = {name for kind in type(value).__mro__ for name in getattr(kind, "__slots__", ())}
            names |= set(getattr(value, "__dict__", ()))
            waiting += [getattr(value, name) for name in names if hasattr(value, name) and name != "hooks"]
            waiting += names
    return list(seen.values())


@pytest.mark.parametrize("play", ["by the player", "by hand"])
@pytest.mark.parametrize("protocol", ["text", "native"])
def test_an_agent_holds_nothing_that_it_must_not_know(play, protocol):
    looked, identities = [], set()

    async def look(run):
        identities.add(run.hooks.identity)
        await run.send("<tool_search>read</tool_search>")
        reply = await run.send(f"<tool_call>{READER}</tool_call>")
        looked.append(len(found := reachable([run, reply])))
        texts = [value for value in found if isinstance(value, str)]
        assert not SECRET_ATTRIBUTES.intersection(texts)
        assert not any(TASK["instance_id"] in text or str(SECRET_SEED) in text for text in texts)
        assert SECRET_SEED not in [value for value in found if isinstance(value, int)]
        assert TASK["required_tools"] not in [value for value in found if isinstance(value, list)]
        return "nothing"

    if play == "by hand":
        by_hand(Acting(look), SECRET_SEED, protocol=protocol)
    else:
        play_scripted(Acting(look), seed=SECRET_SEED, protocol=protocol)
        play_scripted(Acting(look), seed=SECRET_SEED, protocol=protocol)
        play_scripted(Acting(look), seed=1, protocol=protocol)
    assert looked[0] > 50, "the walk reaches something"
    assert len(identities) == (1 if play == "by hand" else 2), "they tell episodes apart"
    assert all(len(identity) == 64 and set(identity) <= set("0123456789abcdef") for identity in identities)


def test_the_record_is_json_and_names_what_it_was_made_with():
    policy = Acting(both_tools, "yes \ud800", "yes", max_llm_calls="5")
    policy.name = "acting[max_llm_calls=5]"
    record = play_scripted(policy)
    assert record["policy"] == "acting[max_llm_calls=5]"
    part = json.loads(json.dumps(record["agent"], allow_nan=False))
    assert (part["schema"], part["architecture"]) == ("resilisim-agent-1", "acting")
    assert part["options"]["max_llm_calls"] == 5
    assert part["models"] == {"default": "scripted"}
    assert part["components"]["agent"]["calls"] == 2
    assert part["first_failure"] is None
    assert [event["kind"] for event in part["events"]] == ["answer"]
    assert [call["turn"] for call in part["calls"]] == [0, 1]
    limited = play_scripted(Acting(both_tools, "yes", max_llm_calls=1))
    assert [step["kind"] for step in limited["steps"]] == ["execute", "stop"]
    assert (limited["agent"]["ended_by"], limited["agent"]["events"][-1]["kind"]) == ("max_llm_calls", "limit")


def test_after_its_answer_it_says_so_again_and_after_giving_up_it_stays_silent():
    with pytest.raises(RuntimeError, match="call reset before act"):
        Acting(both_tools).act("prompt", {})
    with pytest.raises(InvalidInputError, match="policy 'acting' needs a language model"):
        LlmPolicy.__init__(Acting(both_tools))

    async def answer(run):
        return ""

    async def give_up(run):
        return None

    for does, action in ((answer, "<finish/>"), (give_up, None)):
        policy = Acting(does)
        _, observation, info = begin()
        policy.reset(observation, info)
        assert [policy.act(observation, info) for _ in range(2)] == [action, action]


@pytest.mark.parametrize("error", [InfrastructureError("down"), InvalidInputError("no such model"), ScriptError("x")])
def test_what_is_raised_is_raised_again_and_the_policy_can_still_be_used(error):
    policy = Acting(both_tools, "yes", error, "yes", "yes")
    env, observation, info = begin()
    policy.reset(observation, info)
    observation, _, info = advance(env, policy.act(observation, info))
    for _ in range(2):
        with pytest.raises(type(error)):
            policy.act(observation, info)
    assert by_hand(policy)[-1] == "<finish/>"
    with pytest.raises(type(error)):
        play_scripted(Acting(both_tools, "yes", type(error)(str(error))))


@pytest.mark.parametrize("how", ["reset", "close", "del"])
def test_an_episode_may_be_dropped_in_the_middle(how):
    endings = []

    async def watched(run):
        try:
            return await both_tools(run)
        finally:
            endings.append(len(run.transcript.calls))

    policy = Acting(watched, *["yes"] * 3)
    _, observation, info = begin()
    policy.reset(observation, info)
    policy.act(observation, info)
    if how == "reset":
        assert by_hand(policy)[-1] == "<finish/>"
    if how == "close":
        policy.close()
    del policy
    assert endings == ([1, 2] if how == "reset" else [1])


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
