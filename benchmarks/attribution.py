"""Seconds to attribute 10,000 saved episodes again, and what a run's sums cost for each of its episodes."""

from __future__ import annotations

from benchmarks.measurement import Measurement, column, repeated

TARGET_SECONDS = 10.0
TARGET_MICROSECONDS = 60.0
NUM_EPISODES = 10_000
RUNS = 3

# The main guard is needed because the workers import this code again.
_RESCORE = """
import json, resource, tempfile, time
from resilisim.evaluation import evaluate, read_records
from resilisim.evaluation.table.facts import RunCollector
from resilisim.evaluation.run.rescoring import rescore_run
from resilisim.tasks.benchmark import benchmark_tasks
from resilisim.tasks.sources import sample_tasks

def used():
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)

if __name__ == "__main__":
    policies = ["random", "plan-follower", "repairing-follower", "exact-optimum"]
    with tempfile.TemporaryDirectory() as folder:
        tasks = sample_tasks(benchmark_tasks(), 125)
        evaluate(policies, tasks, ["baseline", "optimal"], 10, out=folder, workers=2, progress=False)
        start, before = time.perf_counter(), used()
        summary = rescore_run(folder, workers=2)
        seconds, cpu = time.perf_counter() - start, used() - before
        assert summary.agrees, summary
        records = list(read_records(folder))
        collector = RunCollector()
        start = time.process_time()
        for record in records:
            collector.add(record)
        collecting = time.process_time() - start
    number = summary.num_episodes
    print(json.dumps({"number": number, "seconds": seconds, "cpu": cpu, "collecting": 1e6 * collecting / number}))
"""


def measure(long: bool) -> list[Measurement]:
    """Measure reading, attributing and comparing on two workers, their start included, and the sums of a run."""
    answers = repeated(_RESCORE, RUNS)
    number = answers[0]["number"]
    if number != NUM_EPISODES:
        raise AssertionError(f"{number} episodes were played, expected {NUM_EPISODES}")
    cpu = column(answers, "cpu")
    return [
        Measurement(
            f"{number:,} saved episodes scored and attributed again",
            "s",
            column(answers, "seconds"),
            TARGET_SECONDS,
            "lower",
            note=f"two workers, their start included; {min(cpu):.1f} to {max(cpu):.1f} CPU seconds",
        ),
        Measurement(
            "sums, breakdown and examples of a run, for each episode added",
            "µs of CPU",
            column(answers, "collecting"),
            TARGET_MICROSECONDS,
            "lower",
        ),
    ]
