"""Whether an export takes constant memory, and how long it takes: 200,000 prompts of all flaws, methods, severities.

Tasks leave their solved tables in a cache of bounded size, which is full after the first tens of thousands of prompts.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar

from benchmarks.measurement import Measurement, in_fresh_process
from benchmarks.memory import resident_mib
from resilisim.datasets.prompt_records import PromptSource, PromptSpec
from resilisim.datasets.schema import Record
from resilisim.simulator.exact.optimum import CACHE_BYTES
from resilisim.tasks import Task
from resilisim.tool_library import ToolLibrary
from resilisim.workflows.flaws import FLAW_METHODS, SEVERITIES

CACHE_NOTE = f"; solved tasks are kept, up to {CACHE_BYTES / 2**20:.0f} MiB in each process"
SAMPLES = (20_000, 100_000, 200_000)
TARGET_GROWTH_MIB = 32.0

_EXPORT = """
import json, resource, tempfile, time
from benchmarks import datasets
from resilisim.datasets import export_dataset

with tempfile.TemporaryDirectory() as folder:
    start = time.perf_counter()
    result = export_dataset(datasets.WatchedPrompts(), "benchmark-v1", folder, format="{file_format}")
    seconds = time.perf_counter() - start
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
size = sum(facts.num_bytes for facts in result.shards) / 2**20
answer = {{"rss": datasets.seen, "peak": peak, "seconds": seconds, "records": result.num_records, "size": size}}
print(json.dumps(answer))
"""

# Resident memory in MiB, noted after so many records; the measured process fills it.
seen: list[float] = []


@dataclass(frozen=True, slots=True)
class WatchedPrompts:
    """The prompts of every flaw, method and severity; while they are made, memory is noted.

    Attributes:
        prompts: The spec that makes them.
    """

    kind: ClassVar[str] = "prompts"
    prompts: PromptSpec = field(
        default_factory=lambda: PromptSpec(
            severities=SEVERITIES, methods=tuple(method for methods in FLAW_METHODS.values() for method in methods)
        )
    )

    def arguments(self) -> dict[str, Any]:
        """Return what decides the records."""
        return self.prompts.arguments()

    def make(self, library: ToolLibrary) -> WatchedSource:
        """Return the source of the records."""
        return WatchedSource(self.prompts.make(library))


class WatchedSource:
    """Passes on the records of a source, and notes memory after those of `SAMPLES`.

    Args:
        source: Where the records come from.
    """

    def __init__(self, source: PromptSource) -> None:
        self.schema = source.schema
        self._source = source
        self._count = 0

    def records(self, task: Task) -> Iterator[Record]:
        """Yield the records of a task."""
        for record in self._source.records(task):
            self._count += 1
            if self._count in SAMPLES:
                seen.append(resident_mib())
            yield record


def measure(long: bool) -> list[Measurement]:
    """Measure resident memory and time of one export by one process; the long form does Parquet too."""
    measured = []
    for file_format in ("jsonl", "parquet") if long else ("jsonl",):
        answer = in_fresh_process(_EXPORT.format(file_format=file_format))
        sizes = answer["rss"]
        amount = f"{answer['records']:,} prompts, {answer['size']:,.0f} MiB"
        shown = ", ".join(f"{size:.0f} MiB at {number:,}" for size, number in zip(sizes, SAMPLES, strict=True))
        measured += [
            Measurement(
                f"growth of memory from {SAMPLES[1]:,} to {SAMPLES[2]:,} exported prompts, {file_format}",
                "MiB",
                [sizes[2] - sizes[1]],
                TARGET_GROWTH_MIB,
                note=f"one process: {shown}; peak {answer['peak']:.0f} MiB{CACHE_NOTE}",
            ),
            Measurement(
                f"prompts exported a second, {file_format}",
                "per s",
                [answer["records"] / answer["seconds"]],
                better="higher",
                note=f"one process: {amount} in {answer['seconds']:.0f} s",
            ),
        ]
    return measured
