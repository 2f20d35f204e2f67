"""What the pages world costs one core: generating it, a scripted agent's questions; and what guessing gives."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.measurement import Measurement
from resilisim.chat.types import estimated_tokens
from resilisim.evaluation import evaluate
from resilisim.worlds.pages import guess_rates
from resilisim.worlds.pages.generated import PAGES_VERSION, Recipe, pages_v1

RUNS = 3
MOST_GUESSED = 0.05


def measure(long: bool = False) -> list[Measurement]:
    """Measure; the scripted agent plays the reference solutions of all questions in one process."""
    recipes = [Recipe() for _ in range(RUNS)]
    parts: Mapping[str, Callable[[Recipe], object]] = {
        "writing the encyclopedia": lambda recipe: recipe.pages,
        "indexing it": lambda recipe: recipe.encyclopedia,
        "making and solving its questions": lambda recipe: recipe.tasks(PAGES_VERSION),
    }
    found = [
        Measurement(f"{PAGES_VERSION}: {what}", "s", [_seconds(make, one) for one in recipes])
        for what, make in parts.items()
    ]
    tokens = sum(estimated_tokens(page.text) for page in recipes[0].pages)
    found.append(Measurement(f"{PAGES_VERSION}: its pages", "tokens", [tokens], note=f"{len(recipes[0].pages)} pages"))
    tasks = pages_v1().tasks()
    evaluate(policies=["reference"], tasks=f"{PAGES_VERSION}:6", seeds=1)  # the encyclopedia is made here
    rates = [len(tasks) / _seconds(_play) for _ in range(RUNS)]
    what = f"{PAGES_VERSION}: questions of a scripted agent, with records"
    found.append(Measurement(what, "1/s", rates, better="higher"))
    for kind, rate in guess_rates(tasks).items():
        what = f"{PAGES_VERSION}, {kind}: the most frequent answer is right"
        found.append(Measurement(what, "share", [rate], MOST_GUESSED))
    return found


def _play() -> None:
    with TemporaryDirectory() as folder:
        evaluate(policies=["reference"], tasks=PAGES_VERSION, seeds=1, out=Path(folder) / "run")


def _seconds(work: Callable[..., object], *arguments: object) -> float:
    """Return the processor time that work takes in this process, as idle cores would need it."""
    begin = time.process_time()
    work(*arguments)
    return time.process_time() - begin
