"""Doors: a session's call beside a step, many function agents at once, and calls over MCP."""

from __future__ import annotations

import asyncio
import sys
import time
from typing import Any

from mcp import Client, StdioServerParameters

from benchmarks.agents import CONCURRENCY, LONG_ROUNDS, ROUNDS, SECONDS, TARGET_SHARE
from benchmarks.measurement import Measurement, in_fresh_process, repeated
from resilisim.envs.settings import EnvironmentSettings
from resilisim.integrations.mcp.host import Hosts, http_server
from resilisim.integrations.mcp.server import Episodes, ServedRun

TARGET_RATIO = 1.2
NO_END = ("--max-consecutive-failures", "0")
RUNS = 3

_SESSION = """
import itertools, json, time
from resilisim.envs import ConversationEnv, Session
from resilisim.envs.protocol.native_messages import native_call, openai_message
from resilisim.evaluation.episode.play import Judging
from resilisim.tasks.benchmark import benchmark_tasks

TASKS, SEEDS = benchmark_tasks()[:20], 40
env = ConversationEnv(protocol="native", tools="native")

def calls(*observers):
    def play(task, seed):
        session = Session(env, task, "optimal", seed, observers=[kind() for kind in observers])
        begun = time.process_time()
        for name in task.required_tools:
            if session.ended:
                break
            session.call(name)
        return time.process_time() - begun
    return play

call_of = lambda name: openai_message(native_call(name, {{}}))
MESSAGES = {{task.instance_id: [call_of(name) for name in task.required_tools] for task in TASKS}}

def of_steps(task, seed):
    env.reset(seed=seed, options={{"task": task, "prompt": "optimal"}})
    begun = time.process_time()
    for message in MESSAGES[task.instance_id]:
        if env.step(message)[2]:
            break
    return time.process_time() - begun

ways = [of_steps, calls(), calls(Judging)]

def seconds():
    times = [0.0 for _ in ways]
    for task, seed in itertools.product(TASKS, range(SEEDS)):
        for place, way in enumerate(ways):  # in turn, so that a machine that grows slower is slower for all
            times[place] += way(task, seed)
    return times

seconds()  # compiles, solves, fills caches
times = [sum(each) for each in zip(seconds(), seconds(), seconds())]
number = sum(len(task.required_tools) for task in TASKS) * SEEDS * 3
print(json.dumps({{"session": times[1] / times[0], "judged": times[2] / times[0], "step_us": 1e6 * times[0] / number}}))
"""

_AGENTS = """
import asyncio, json, time
from resilisim import ModelSettings, evaluate
from tests.doubles.slow_endpoint import TOOLS

async def waits(session):
    for name in TOOLS:
        await asyncio.sleep({seconds})  # the model thinks
        await session.acall(name)
    await asyncio.sleep({seconds})
    return "done"

settings = ModelSettings(concurrency={concurrency})
evaluate(agents=waits, tasks=1, progress=False)
begun, cpu = time.perf_counter(), time.process_time()
result = evaluate(agents=waits, tasks=32, prompts="optimal", seeds={seeds}, model=settings, progress=False)
taken, cpu = time.perf_counter() - begun, time.process_time() - cpu
calls = sum(len(record["steps"]) for record in result.records())
print(json.dumps({{"seconds": taken, "cpu": cpu, "calls": calls, "episodes": result.num_episodes}}))
"""


def measure(long: bool) -> list[Measurement]:
    """Measure overhead, throughput of function agents, and calls over MCP."""
    return [
        *_overhead(),
        _throughput(LONG_ROUNDS if long else ROUNDS),
        *asyncio.run(_over_mcp()),
    ]


def _overhead() -> list[Measurement]:
    answers = repeated(_SESSION.format(), RUNS)
    note = f"processor time; a step takes {answers[0]['step_us']:.0f} µs"
    return [
        Measurement(
            "a call of a session / a step of Conversation-v0",
            "times",
            [answer["session"] for answer in answers],
            TARGET_RATIO,
            note=note,
        ),
        Measurement(
            "the same with every call judged by the exact optimum", "times", [answer["judged"] for answer in answers]
        ),
    ]


def _throughput(rounds: int) -> Measurement:
    seeds = CONCURRENCY * rounds // 32
    answer = in_fresh_process(_AGENTS.format(seconds=SECONDS, concurrency=CONCURRENCY, seeds=seeds))
    ideal = answer["calls"] * SECONDS / CONCURRENCY  # each call, and the end, waits once
    return Measurement(
        f"{CONCURRENCY} async function agents at once, each waiting {SECONDS:g} s for every call",
        "of ideal",
        [ideal / answer["seconds"]],
        TARGET_SHARE,
        "higher",
        note=f"{answer['episodes']:,} episodes, {answer['calls']:,} calls in {answer['seconds']:.1f} s, "
        f"{1000 * answer['cpu'] / answer['calls']:.2f} ms of one core a call",
    )


async def _over_mcp(calls: int = 300) -> list[Measurement]:
    command = StdioServerParameters(
        command=sys.executable,
        args=["-m", "resilisim", "mcp", "serve", "--tasks", "1", "--turns", "400", "--loop-length", "0", *NO_END],
    )
    async with Client(command) as client:
        stdio = await _rate(client, calls)
    environment = EnvironmentSettings(max_turns=400, loop_length=0, max_consecutive_failures=0)
    episodes = Episodes(ServedRun(1, seeds=2, environment=environment))
    hosts = Hosts(lambda name: episodes.host(repeats=False))
    http = {}
    async with http_server(hosts) as (url, _):
        for mode in ("auto", "legacy"):
            async with Client(f"{url}/episodes/{mode}/mcp", mode=mode) as client:
                http[mode] = await _rate(client, calls)
    return [
        Measurement("calls over MCP, stdio, one client", "a second", [stdio], better="higher"),
        Measurement(
            "calls over MCP, HTTP, one client in the same process", "a second", [http["legacy"]], better="higher"
        ),
        Measurement(
            "the same by the newer protocol",
            "a second",
            [http["auto"]],
            better="higher",
            note="a server of the library mcp with a tool that does nothing comes to the same",
        ),
    ]


async def _rate(client: Any, calls: int) -> float:
    await client.call_tool("episode_start", {})
    for _ in range(10):
        await client.call_tool("network_fetcher", {})
    begun = time.perf_counter()
    for _ in range(calls):
        await client.call_tool("network_fetcher", {})
    return calls / (time.perf_counter() - begun)
