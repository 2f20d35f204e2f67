"""What a step costs under each part of a law, beside one under the benchmark's, in both environments."""

from __future__ import annotations

import time
from collections import defaultdict

from benchmarks.environment import conversation_rates
from benchmarks.measurement import Measurement
from benchmarks.workflow import batched, random_legal
from resilisim.simulator import Broken, Corrupt, Drift, Duration, ErrorKinds, Latency, Law, Outage, RateLimit

RUNS, NUM_ENVS, STEPS = 5, 1024, 40
PLAIN = "benchmark"
# Each part at a middle strength.
LAWS = {
    "rate_limit": Law(rate_limit=RateLimit(3, 4)),
    "outage": Law(outage=Outage(0.2, 1 / 3)),
    "broken": Law(broken=Broken(0.2)),
    "broken, with equivalents": Law(
        broken=Broken(0.2),
        equivalents={"file_operations_reader": ("network_fetcher",), "file_operations_writer": ("network_router",)},
    ),
    "corrupt": Law(corrupt=Corrupt(0.2)),
    "corrupt, only validators tell": Law(corrupt=Corrupt(0.2, "validators")),
    "drift": Law(drift=Drift(-0.03)),
    "error_kinds": Law(error_kinds=ErrorKinds(access=2)),
    "latency": Law(latency=Latency((Duration(2.0, 0.8), Duration(60.0, 0.2)), timeout=30.0)),
}


def _conversation(law: Law | str) -> float:
    return conversation_rates(law)[1]


def _workflow(law: Law | str) -> float:
    """Return steps a second of CPU time of a batch on one thread, resets included, with random legal actions."""
    envs, choose, taken = batched(copy=False, threads=1, num_envs=NUM_ENVS, law=law), random_legal(), 0.0
    envs.reset(seed=0)
    for step in range(STEPS + STEPS // 4):
        actions = choose(envs)
        start = time.process_time()
        envs.step(actions)
        if step >= STEPS // 4:  # what came before was only to warm up
            taken += time.process_time() - start
    return NUM_ENVS * STEPS / taken


def measure(long: bool) -> list[Measurement]:
    """Measure steps under every law in one process, in turns with the benchmark's."""
    found = []
    for environment, rate in (("Conversation-v0", _conversation), (f"Workflow-v0, {NUM_ENVS:,} at once", _workflow)):
        ratios: defaultdict[str, list[float]] = defaultdict(list)
        for _ in range(RUNS):
            for name, law in LAWS.items():
                plain = rate(PLAIN)
                ratios[name].append(plain / rate(law))
        found += [
            Measurement(f"a step of {environment} under {name} / under the benchmark law", "x the time", values)
            for name, values in ratios.items()
        ]
    return found
