"""What the pages world costs: generating it, its size, a scripted agent's questions, and what guessing gives."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.measurement import Measurement
from resilisim.chat.types import estimated_tokens
from resilisim.evaluation import evaluate
from resilisim.worlds.pages import PAGES_VERSION, Recipe, guess_rates, pages_v1

RUNS = 3
LEAST_QUESTIONS_PER_SECOND = 200.0  # what the world shall allow one core
MOST_GUESSED = 0.05


def measure(long: bool = False) -> Iterator[Measurement]:
    """Yield the figures; the scripted agent plays the reference solutions of all questions in one process."""
    recipes = [Recipe() for _ in range(RUNS)]
    yield Measurement("pages-v1: writing the encyclopedia", "s", [_seconds(lambda: one.pages) for one in recipes])
    yield Measurement("pages-v1: indexing it", "s", [_seconds(lambda: one.encyclopedia) for one in recipes])
    making = [_seconds(lambda: one.tasks(PAGES_VERSION)) for one in recipes]
    yield Measurement("pages-v1: making and solving its 720 questions", "s", making)
    tokens = sum(estimated_tokens(page.text) for page in recipes[0].pages)
    yield Measurement("pages-v1: tokens of its pages", "tokens", [tokens], note=f"{len(recipes[0].pages)} pages")
    tasks = pages_v1().tasks()
    evaluate(policies=["reference"], tasks=f"{PAGES_VERSION}:6", seeds=1)  # the encyclopedia is made here
    rates = [len(tasks) / _seconds(_play) for _ in range(RUNS)]
    yield Measurement(
        "pages-v1: questions of a scripted agent, with records",
        "1/s",
        rates,
        LEAST_QUESTIONS_PER_SECOND,
        "higher",
    )
    for kind, rate in guess_rates(tasks).items():
        yield Measurement(f"pages-v1, {kind}: the most frequent answer is right", "share", [rate], MOST_GUESSED)


def _play() -> None:
    with TemporaryDirectory() as folder:
        evaluate(policies=["reference"], tasks=PAGES_VERSION, seeds=1, out=Path(folder) / "run")


def _seconds(work: Callable[[], object]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin
