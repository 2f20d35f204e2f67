"""An agent that does what a test's function says, and episodes by hand, as one would play any policy."""

from __future__ import annotations

import asyncio
import gc

from resilisim.chat import ChatMessage
from resilisim.envs.session import Session
from resilisim.policies.llm.options import AgentOptions
from resilisim.policies.llm.policy import LlmPolicy
from resilisim.tasks import Task
from tests.policies.llm.playing import PARSER, READER, TASK, environment, scripted


def assert_asyncio_is_content(caplog):
    """Check that no task was destroyed while it waited, and that no exception was never looked at."""
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
