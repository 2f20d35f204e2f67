"""Prompts of all tasks, and all flawed workflows with their exact costs, each in a fresh process."""

from __future__ import annotations

from benchmarks.measurement import Measurement, column, repeated

TARGET_PROMPTS_SECONDS = 15.0
TARGET_WORKFLOWS_PER_SECOND = 3000.0
RUNS = 3
WORKERS = 2

# The clock starts when the index of the tools is loaded; starting the worker processes is part of the work.
_PROMPTS = """
import json, os, tempfile, time
from pathlib import Path
from resilisim import benchmark_tasks, default_library
from resilisim.datasets.prompt_records import PromptSpec
from resilisim.datasets.export import write_record_file
from resilisim.tool_library.retrieval import default_retriever

if __name__ == "__main__":
    tasks, library = benchmark_tasks(), default_library()
    default_retriever(library).search("read a file")
    spec = PromptSpec(flaws=("tool_misuse",))
    with tempfile.TemporaryDirectory() as folder:
        started = time.perf_counter()
        result = write_record_file(spec, tasks, Path(folder) / "prompts.jsonl", workers={workers})
        seconds = time.perf_counter() - started
        size = os.path.getsize(Path(folder) / "prompts.jsonl")
    print(json.dumps({{"seconds": seconds, "records": result.num_records, "mib": size / 2**20}}))
"""

_FLAWS = """
import json, time
from resilisim import benchmark_tasks
from resilisim.workflows.plan_value import costs_of_tasks

if __name__ == "__main__":
    tasks = benchmark_tasks()
    started = time.perf_counter()
    made = sum(len(costs.flawed) for costs in costs_of_tasks(tasks, workers={workers}))
    seconds = time.perf_counter() - started
    print(json.dumps({{"seconds": seconds, "made": made, "asked": len(tasks) * 7 * 2 * 3}}))
"""


def measure(long: bool) -> list[Measurement]:
    """Measure the prompts of all tasks in four types, and all flawed workflows."""
    prompts = repeated(_PROMPTS.format(workers=WORKERS), RUNS)
    flaws = repeated(_FLAWS.format(workers=WORKERS), RUNS if long else 1)
    return [
        Measurement(
            f"{prompts[0]['records']:,} prompts (5,040 tasks x 4 types), {WORKERS} processes, records written",
            "s",
            column(prompts, "seconds"),
            TARGET_PROMPTS_SECONDS,
            note=f"{prompts[0]['mib']:.0f} MiB of JSON Lines; exact plans, one flaw a task, costs of every plan",
        ),
        Measurement(
            f"flawed workflows with exact costs, {WORKERS} processes",
            "a second",
            [answer["asked"] / answer["seconds"] for answer in flaws],
            TARGET_WORKFLOWS_PER_SECOND,
            "higher",
            note=f"{flaws[0]['asked']:,} asked for, {flaws[0]['made']:,} made and verified, the others refused with a "
            "reason; planning and starting the processes included",
        ),
    ]
