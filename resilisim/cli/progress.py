"""How far a long command is, told on standard error by a thread, so also while nothing is finished yet."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import TypeVar

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from resilisim.cli.output import error_console, note

T = TypeVar("T")

QUIET_SECONDS = 2.0  # a command that takes no longer says nothing
LINE_SECONDS = 10.0  # between two lines where there is no terminal
BAR_SECONDS = 0.1  # between two looks at the count


class Progressing:
    """Counts what is done; after QUIET_SECONDS a bar in a terminal shows it, elsewhere a line now and then.

    Args:
        what: What is being done ("solving").
        total: How many there are.
        quiet_seconds: How long to say nothing.
    """

    def __init__(self, what: str, total: int, quiet_seconds: float = QUIET_SECONDS) -> None:
        self._what = what
        self._total = total
        self._quiet_seconds = quiet_seconds
        self._count = 0
        self._began = time.monotonic()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._tell, daemon=True)

    def __enter__(self) -> Progressing:
        """Begin to watch the time."""
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Take the bar away."""
        self._ended.set()
        self._thread.join()

    def track(self, items: Iterable[T]) -> Iterator[T]:
        """Yield the items, each counted when the next one is asked for."""
        for item in items:
            yield item
            self._count += 1

    def advance(self, number: int) -> None:
        """Count that many more as done."""
        self._count += number

    def _tell(self) -> None:
        if self._ended.wait(self._quiet_seconds):
            return
        if sys.stderr.isatty():
            self._show_bar()
            return
        with contextlib.suppress(OSError):  # nobody listens any more, which is no reason to stop the command
            while not self._ended.is_set():
                note(f"{self._what}: {self._count} of {self._total} after {time.monotonic() - self._began:.0f} s")
                self._ended.wait(LINE_SECONDS)

    def _show_bar(self) -> None:
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
        )
        with Progress(*columns, console=error_console(), transient=True) as progress:
            task = progress.add_task(self._what, total=self._total)
            while not self._ended.wait(BAR_SECONDS):
                progress.update(task, completed=self._count)
