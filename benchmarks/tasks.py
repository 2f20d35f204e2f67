"""Generating the benchmark's tasks, the model's loading included."""

from __future__ import annotations

import tempfile

from benchmarks.measurement import Measurement, column, repeated

TARGET_SECONDS = 20.0
RUNS = 2

_GENERATE = """
import json, time
start = time.perf_counter()
from resilisim.tasks.generation import generate_tasks
number = sum(1 for _ in generate_tasks(seed=0, count=5040))
print(json.dumps({"seconds": time.perf_counter() - start, "cpu": time.process_time(), "number": number}))
"""


def measure(long: bool) -> list[Measurement]:
    """Measure generation with an empty and with a filled cache of embeddings."""
    cold = []
    for _ in range(RUNS):
        with tempfile.TemporaryDirectory() as folder:
            cold += repeated(_GENERATE, 1, RESILISIM_CACHE_DIR=folder)
    with tempfile.TemporaryDirectory() as folder:
        warm = repeated(_GENERATE, RUNS + 1, RESILISIM_CACHE_DIR=folder)[1:]
    return [
        Measurement(
            f"{cold[0]['number']:,} tasks generated in a fresh process, model loading included",
            "s",
            column(cold, "seconds"),
            TARGET_SECONDS,
            note=f"empty cache of embeddings; CPU time {min(column(cold, 'cpu')):.1f} s",
        ),
        Measurement(
            "the same, with the embeddings in the cache",
            "s",
            column(warm, "seconds"),
            note=f"CPU time {min(column(warm, 'cpu')):.1f} s",
        ),
    ]
