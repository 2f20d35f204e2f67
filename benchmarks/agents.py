"""LLM agents: how close many episodes at once come to what a slow endpoint allows, what they cost, what they leave."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from benchmarks.measurement import REPOSITORY, Measurement, in_fresh_process, repeated
from benchmarks.memory import resident_mib
from resilisim.chat import ChatReply, ChatRequest, TokenUsage

CONCURRENCY = 256
SECONDS = 2.0
ROUNDS, LONG_ROUNDS = 6, 20
TARGET_SHARE = 0.9
TARGET_CPU_MS = 2.0
SAMPLES = (2_000, 5_000, 10_000)
TARGET_GROWTH_MIB = 16.0
RUNS = 3

_THROUGHPUT = """
import json, resource, tempfile, time
from resilisim.chat.middleware import ChatModelSettings
from resilisim.evaluation import evaluate
from resilisim.evaluation.run.contestants import ModelSettings

chat = ChatModelSettings(base_url={url!r}, api_key="none", max_concurrency={concurrency}, timeout_seconds=60.0)
model = ModelSettings(models=("openai:slow",), chat=chat, concurrency={concurrency})
with tempfile.TemporaryDirectory() as folder:
    evaluate("react", 4, "optimal", 1, model=model, progress=False)  # compiles and imports
    began, cpu = time.perf_counter(), time.process_time()
    result = evaluate("react", 32, "optimal", {seeds}, out=folder, model=model, progress=False)
    seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
calls = result.agents()[0].total("calls")
print(json.dumps({{"calls": calls, "seconds": seconds, "cpu": cpu, "episodes": result.num_episodes}}))
"""

_CPU = """
import json, tempfile, time
from benchmarks.agents import InstantModel
from resilisim.evaluation import evaluate
from resilisim.evaluation.run.contestants import ModelSettings
from resilisim.policies.llm.agents.react import ReAct

def react():
    return ReAct(models=MODEL)

MODEL = InstantModel()
settings = ModelSettings(concurrency={concurrency})
evaluate(react, 4, "optimal", 1, model=settings, progress=False)  # compiles and imports
MODEL.calls = 0
with tempfile.TemporaryDirectory() as folder:
    cpu = time.process_time()
    result = evaluate(react, 32, "optimal", 20, out=folder, model=settings, progress=False)
    cpu = time.process_time() - cpu
print(json.dumps({{"milliseconds": 1000 * cpu / MODEL.calls, "calls": MODEL.calls, "number": result.num_episodes}}))
"""

_MEMORY = """
import json, tempfile
from benchmarks.agents import InstantModel, SAMPLES
from resilisim.evaluation import evaluate
from resilisim.evaluation.run.contestants import ModelSettings
from resilisim.policies.llm.agents.react import ReAct

def react():
    return ReAct(models=MODEL)

MODEL = InstantModel(samples=SAMPLES)
with tempfile.TemporaryDirectory() as folder:
    evaluate(react, 20, "optimal", SAMPLES[-1] // 20, out=folder, model=ModelSettings(concurrency=64), progress=False)
print(json.dumps({"rss": MODEL.resident}))
"""


class InstantModel:
    """Answers at once, from the number of messages alone: what is left is our own work.

    Args:
        samples: Numbers of begun episodes at which the resident memory is noted.

    Attributes:
        calls: How often it was asked.
        resident: The memory at each of the samples, in MiB.
    """

    name = "instant"

    def __init__(self, samples: tuple[int, ...] = ()) -> None:
        from tests.doubles.slow_endpoint import CALLS_PER_EPISODE, reply  # measured processes import this module first

        self._replies = [ChatReply(reply(number), usage=TokenUsage(1000, 20)) for number in range(CALLS_PER_EPISODE)]
        self._samples = samples
        self._begun = 0
        self.calls = 0
        self.resident: list[float] = []

    async def complete(self, request: ChatRequest) -> ChatReply:
        """Answer."""
        said = sum(message.role == "assistant" for message in request.messages)
        self.calls += 1
        if said == 0:
            self._begun += 1
            if self._begun in self._samples:
                self.resident.append(resident_mib())
        return self._replies[min(said, len(self._replies) - 1)]

    async def aclose(self) -> None:
        """Nothing is open."""


def measure(long: bool) -> list[Measurement]:
    """Measure throughput against a slow endpoint, own processor time, and memory."""
    return [_throughput(LONG_ROUNDS if long else ROUNDS), _own_time(), *_memory()]


def _throughput(rounds: int) -> Measurement:
    command = [sys.executable, "-m", "tests.doubles.slow_endpoint", str(SECONDS)]
    with subprocess.Popen(
        command, cwd=REPOSITORY, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as endpoint:
        port = endpoint.stdout.readline().strip() if endpoint.stdout is not None else ""
        url = f"http://127.0.0.1:{port}/v1"
        code = _THROUGHPUT.format(url=url, concurrency=CONCURRENCY, seeds=CONCURRENCY * rounds // 32)
        answer = in_fresh_process(code)
        endpoint.terminate()
    ideal = answer["calls"] * SECONDS / CONCURRENCY
    return Measurement(
        f"{CONCURRENCY} episodes at once, an endpoint that answers after {SECONDS:g} s",
        "of ideal",
        [ideal / answer["seconds"]],
        TARGET_SHARE,
        "higher",
        note=f"{answer['episodes']:,} episodes, {answer['calls']:,.0f} calls in {answer['seconds']:.1f} s, "
        f"{1000 * answer['cpu'] / answer['calls']:.1f} ms of one core a call, the client library included",
    )


def _own_time() -> Measurement:
    answers = repeated(_CPU.format(concurrency=CONCURRENCY), RUNS)
    return Measurement(
        "own processor time a turn of a ReAct agent, records and kept replies included",
        "ms",
        [answer["milliseconds"] for answer in answers],
        TARGET_CPU_MS,
        note=f"a model that answers at once, {CONCURRENCY} episodes at once; {answers[0]['calls']:,} turns of "
        f"{answers[0]['number']:,} episodes",
    )


def _memory() -> list[Measurement]:
    if not Path("/proc/self/statm").exists():
        return []
    sizes = in_fresh_process(_MEMORY)["rss"]
    shown = ", ".join(f"{size:.0f} MiB at {number:,}" for size, number in zip(sizes, SAMPLES, strict=True))
    return [
        Measurement(
            f"growth of memory from {SAMPLES[0]:,} to {SAMPLES[-1]:,} episodes of a ReAct agent",
            "MiB",
            [sizes[-1] - sizes[0]],
            TARGET_GROWTH_MIB,
            note=f"64 episodes at once, records written: {shown}",
        )
    ]
