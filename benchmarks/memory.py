"""Whether memory stays flat over many episodes of one evaluation.

Episodes must leave nothing behind, so memory is measured over few tasks with many seeds. Tasks leave their solved
tables in a cache of bounded size; what that adds is shown by the long form, over many tasks and with whole episodes.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.measurement import Measurement, in_fresh_process
from resilisim.simulator.exact.optimum import CACHE_BYTES

SAMPLES = (20_000, 100_000, 500_000)
TARGET_GROWTH_MIB = 16.0
FEW_TASKS, MANY_TASKS = 20, 500

_EVALUATE = """
import json, tempfile
from benchmarks import memory
from resilisim.evaluation import evaluate
from resilisim.tasks.benchmark import benchmark_tasks
from resilisim.tasks.sources import sample_tasks

tasks = sample_tasks(benchmark_tasks(), {tasks})
with tempfile.TemporaryDirectory() as folder:
    result = evaluate(memory.{policy}, tasks, ["optimal"], {seeds}, out=folder, workers=1, progress=False)
print(json.dumps({{"rss": memory.seen, "number": result.num_episodes}}))
"""

# Resident memory in MiB, noted after so many episodes; the measured process fills it.
seen: list[float] = []


def resident_mib() -> float:
    """Return the resident memory of this process in MiB."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


class OneCall:
    """Makes one call and stops: the cheapest episode with a draw, a reply and a record. Notes the memory."""

    name = "one-call"
    privileged = False
    episodes = 0

    def reset(self, observation: str, info: Mapping[str, Any]) -> None:
        """Count the episode."""
        self._called = False
        OneCall.episodes += 1
        if OneCall.episodes in SAMPLES:
            seen.append(resident_mib())

    def act(self, observation: str, info: Mapping[str, Any]) -> str | None:
        """Call one tool, then stop."""
        if self._called:
            return None
        self._called = True
        return "<tool_call>file_operations_reader</tool_call>"


class FollowPlan:
    """The plan follower, which also notes the memory."""

    name = "follow-plan"
    privileged = False

    def __init__(self) -> None:
        from resilisim.policies.registry import make_policy  # only the long form needs it

        self._inner = make_policy("plan-follower")

    def reset(self, observation: str, info: Mapping[str, Any]) -> None:
        """Count the episode."""
        OneCall.episodes += 1
        if OneCall.episodes in SAMPLES:
            seen.append(resident_mib())
        self._inner.reset(observation, info)

    def act(self, observation: str, info: Mapping[str, Any]) -> str | None:
        """Follow the plan."""
        return self._inner.act(observation, info)


def measure(long: bool) -> list[Measurement]:
    """Measure resident memory over one evaluation with records."""
    if not Path("/proc/self/statm").exists():
        return []
    policy = "FollowPlan" if long else "OneCall"
    measured = []
    for tasks in (FEW_TASKS, MANY_TASKS) if long else (FEW_TASKS,):
        sizes = in_fresh_process(_EVALUATE.format(policy=policy, tasks=tasks, seeds=SAMPLES[-1] // tasks))["rss"]
        shown = ", ".join(f"{size:.0f} MiB at {number:,}" for size, number in zip(sizes, SAMPLES, strict=True))
        few = tasks == FEW_TASKS
        cache = "" if few else f"; solved tasks are kept, up to {CACHE_BYTES / 2**20:.0f} MiB in each process"
        measured.append(
            Measurement(
                f"growth of memory from {SAMPLES[0]:,} to {SAMPLES[-1]:,} episodes, {tasks} tasks",
                "MiB",
                [sizes[-1] - sizes[0]],
                TARGET_GROWTH_MIB if few else None,
                note=f"policy {policy}, one process, records written: {shown}{cache}",
            )
        )
    return measured
