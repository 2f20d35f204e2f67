"""Episodes a second of an evaluation with records on disk."""

from __future__ import annotations

from benchmarks.measurement import Measurement, column, repeated

TARGET_RATE = 1000.0
SHORT_TARGET_RATE = 500.0  # of runs of a few seconds, of which starting the workers takes a good part
RUNS = 3

# The main guard is needed because the workers import this code again.
_EVALUATE = """
import json, resource, sys, tempfile, time
from resilisim.evaluation import evaluate
from resilisim.tasks.benchmark import benchmark_tasks
from resilisim.tasks.sources import sample_tasks

if __name__ == "__main__":
    start = time.perf_counter()
    tasks = sample_tasks(benchmark_tasks(), {tasks})
    with tempfile.TemporaryDirectory() as folder:
        policies = ["random", "plan-follower", "repairing-follower", "exact-optimum"]
        result = evaluate(policies, tasks, {prompts!r}, {seeds}, out=folder, workers=2, progress=False)
        seconds = time.perf_counter() - start
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    cpu = sum(usage.ru_utime + usage.ru_stime for usage in used)
    print(json.dumps({{"rate": result.num_episodes / seconds, "number": result.num_episodes, "cpu": cpu}}))
"""


def measure(long: bool) -> list[Measurement]:
    """Measure four scripted policies on two workers, start of the workers and writing included."""
    optimal = repeated(_EVALUATE.format(tasks=120, prompts=["optimal"], seeds=20), RUNS)
    longer = repeated(_EVALUATE.format(tasks=120, prompts=["optimal"], seeds=60), RUNS)
    both = repeated(_EVALUATE.format(tasks=120, prompts=["baseline", "optimal"], seeds=10), RUNS)
    return [
        _rate("prompt optimal", optimal, SHORT_TARGET_RATE),
        _rate("prompt optimal", longer, TARGET_RATE),
        _rate("prompts baseline and optimal", both, SHORT_TARGET_RATE),
    ]


def _rate(what: str, answers: list[dict[str, float]], target: float) -> Measurement:
    number = answers[0]["number"]
    cpu = min(number / answer["cpu"] for answer in answers), max(number / answer["cpu"] for answer in answers)
    return Measurement(
        f"{number:,} episodes of four scripted policies, {what}",
        "episodes/s",
        column(answers, "rate"),
        target,
        "higher",
        note=f"two workers, their start and the records included; {cpu[0]:,.0f} to {cpu[1]:,.0f} episodes a CPU second",
    )
