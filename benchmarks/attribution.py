"""Seconds to attribute 10,000 saved episodes again, and what a run's sums cost for each of its episodes."""

from __future__ import annotations

from benchmarks.measurement import Measurement, column, repeated

TARGET_SECONDS = 10.0
TARGET_MICROSECONDS = 60.0
NUM_EPISODES = 10_000
RUNS = 3

# The main guard is needed because the workers import this code again.
_RESCORE = """
import json, tempfile, time
from resilisim.evaluation import evaluate, read_records
from resilisim.evaluation.report.facts import RunCollector
from resilisim.evaluation.rescoring import rescore_run
from resilisim.tasks.benchmark import benchmark_tasks
from resilisim.tasks.sources import sample_tasks

if __name__ == "__main__":
    policies = ["random", "plan-follower", "repairing-follower", "exact-optimum"]
    with tempfile.TemporaryDirectory() as folder:
        tasks = sample_tasks(benchmark_tasks(), 125)
        evaluate(policies, tasks, ["baseline", "optimal"], 10, out=folder, workers=2, progress=False)
        start = time.perf_counter()
        summary = rescore_run(folder, workers=2)
        seconds = time.perf_counter() - start
        assert summary.agrees, summary
        records = list(read_records(folder))
        collector = RunCollector()
        start = time.process_time()
        for record in records:
            collector.add(record)
        collecting = time.process_time() - start
    number = summary.num_episodes
    print(json.dumps({"number": number, "seconds": seconds, "collecting": 1e6 * collecting / number}))
"""


def measure(long: bool) -> list[Measurement]:
    """Measure reading, attributing and comparing on two workers, their start included, and the sums of a run."""
    answers = repeated(_RESCORE, RUNS)
    number = answers[0]["number"]
    if number != NUM_EPISODES:
        raise AssertionError(f"{number} episodes were played, expected {NUM_EPISODES}")
    return [
        Measurement(
            f"{number:,} saved episodes scored and attributed again",
            "s",
            column(answers, "seconds"),
            TARGET_SECONDS,
            "lower",
            note="two workers, their start, reading and comparing included; optima not known before",
        ),
        Measurement(
            "sums, breakdown and examples of a run, for each episode added",
            "µs of CPU",
            column(answers, "collecting"),
            TARGET_MICROSECONDS,
            "lower",
        ),
    ]
