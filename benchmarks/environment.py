"""Steps a second of Conversation-v0, beside an environment of Gymnasium."""

from __future__ import annotations

import os
import time

import gymnasium

import resilisim  # registers the environment
from benchmarks.measurement import Measurement
from resilisim.seeding import Draws
from resilisim.simulator import Law
from resilisim.tasks.benchmark import benchmark_tasks
from resilisim.tool_library import default_library

TARGET_RATE = 5000.0
STEPS, RUNS, NUM_TASKS = 10_000, 5, 50
PEER = "CartPole-v1"


def conversation_rates(law: Law | str = "benchmark") -> tuple[float, float]:
    """Return tool-call steps a second under a law by the clock, resets included, and by CPU time."""
    env = gymnasium.make(resilisim.CONVERSATION_ID, law=law)
    tasks = benchmark_tasks()[:NUM_TASKS]
    draws = Draws("benchmarks/environment")
    calls = {
        task.instance_id: [
            *(f"<tool_call>{name}</tool_call>" for name in task.required_tools),
            f"<tool_call>{draws.choice(default_library().names)}</tool_call>",
        ]
        for task in tasks
    }
    terminated, episode, turn = True, 0, 0
    sent: list[str] = []
    for steps in range(-STEPS // 10, STEPS):
        if steps == 0:  # what came before was only to warm up
            start, cpu = time.perf_counter(), time.process_time()
        if terminated:
            task = tasks[episode % NUM_TASKS]
            env.reset(seed=episode, options={"task": task, "prompt": "optimal"})
            sent = calls[task.instance_id]
            episode, turn = episode + 1, 0
        _, _, terminated, _, _ = env.step(sent[turn % len(sent)])
        turn += 1
    return STEPS / (time.perf_counter() - start), STEPS / (time.process_time() - cpu)


def _peer() -> float:
    """Return steps a second of Gymnasium's environment, by CPU time, resets included."""
    env = gymnasium.make(PEER)
    env.reset(seed=0)
    start = time.process_time()
    for step in range(STEPS):
        _, _, terminated, truncated, _ = env.step(step % 2)
        if terminated or truncated:
            env.reset()
    return STEPS / (time.process_time() - start)


def measure(long: bool) -> list[Measurement]:
    """Measure tool-call steps, resets included, in one process; both environments take turns."""
    rates, cpu_rates, ratios = [], [], []
    for _ in range(RUNS):
        rate, cpu_rate = conversation_rates()
        rates.append(rate)
        cpu_rates.append(cpu_rate)
        ratios.append(_peer() / cpu_rate)
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else float("nan")
    return [
        Measurement(
            "tool-call steps of Conversation-v0 as gym.make gives it",
            "steps/s",
            rates,
            TARGET_RATE,
            "higher",
            note=f"by CPU time {min(cpu_rates):,.0f} to {max(cpu_rates):,.0f} steps/s (load average {load:.1f})",
        ),
        Measurement(f"{PEER} / Conversation-v0, both by gym.make, CPU time", "x faster", ratios),
    ]
