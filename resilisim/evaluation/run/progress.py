"""How far something is that takes long, how fast it goes and how long it will take, on standard error."""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from numba.core import event
from rich.console import ConsoleRenderable, Group, RichCast
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from resilisim.at_work import AT_WORK
from resilisim.evaluation.episode.record import FailureRecord
from resilisim.evaluation.table.facts import RunCollector
from resilisim.statistics.estimates import FloatArray
from resilisim.tables.table import Table
from resilisim.terminal import SafeConsole

T = TypeVar("T")

QUIET_SECONDS = 2.0  # what takes no longer says nothing
RATE_SECONDS = 2.0  # a rate that was measured for less time is no basis for an estimate
# Nor is one from a few items, of which some load a model or compile, unless items are slow themselves.
RATE_ITEMS = 10
SLOW_SECONDS = 60.0
RATE_UNITS = (("s", 1.0), ("min", 60.0), ("h", 3600.0))  # a rate is told in the first in which there is one or more
REFRESHES_PER_SECOND = 4
LINE_SECONDS = 10.0  # between two lines where there is no terminal
_STARTING = "starting"  # until an item has ended, where nothing else is known
COMPILING = "compiling, the first time only"


class Progressing:
    """Counts what is done; once it has taken a while, a bar in a terminal shows it, elsewhere a line now and then.

    A thread of its own tells, so that what takes long is told of although nothing has ended yet.

    Args:
        what: What is counted ("episodes"), or being done ("solving").
        total: How many there are; None where nothing is counted, and only the phases are told (`AtWork`).
        finished: How many were there when it began.
        show: True or False to insist; None shows it only for what takes more than QUIET_SECONDS.
        table: What a terminal shows above the bar.
        waits_for: Says what is being waited for, such as requests under way; an empty text says nothing.
    """

    def __init__(
        self,
        what: str,
        total: int | None,
        finished: int = 0,
        show: bool | None = None,
        table: ConsoleRenderable | RichCast | None = None,
        waits_for: Callable[[], str] = str,
    ) -> None:
        self._waits_for = waits_for
        self._what, self._total, self._finished = what, total, finished
        self._clock_start: float | None = None  # from here on the rate is measured
        self._counted_from = finished
        self._stream = sys.stderr
        self._quiet = 0.0 if show else QUIET_SECONDS
        self._table = table
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._tell, daemon=True)
        tell_of_compiling()
        if show is not False and (total is None or finished < total):
            self._thread.start()

    def __enter__(self) -> Progressing:
        """Return itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Take the bar away, or say in a last line how it went, if anything was said before."""
        self._ended.set()
        if self._thread.ident is not None:
            self._thread.join()

    def track(self, items: Iterable[T]) -> Iterator[T]:
        """Yield the items, each counted when the next one is asked for."""
        for item in items:
            yield item
            self.advance()

    def advance(self, number: int = 1) -> None:
        """Count that many more as done."""
        self._finished += number
        if self._clock_start is None:
            # Starting processes and compiling takes seconds that the others do not need again.
            self._clock_start, self._counted_from = time.monotonic(), self._finished

    def _tell(self) -> None:
        if self._ended.wait(self._quiet):
            return
        if self._stream.isatty():
            self._show_bar()
            return
        with contextlib.suppress(OSError):  # nobody listens any more, which is no reason to stop
            while not (self._total is None and self._ended.is_set()):  # whose end is the beginning of something else
                self._stream.write(self._line() + "\n")
                self._stream.flush()
                if self._ended.is_set():
                    return
                self._ended.wait(LINE_SECONDS)

    def _show_bar(self) -> None:
        counted = () if self._total is None else (MofNCompleteColumn(),)
        estimate = TextColumn("{task.fields[estimate]}", markup=False)
        bar = Progress(TextColumn("{task.description}", markup=False), BarColumn(), *counted, estimate)
        task = bar.add_task(self._what, total=self._total, completed=self._finished, estimate=self._estimate())
        content = bar if self._table is None else Group(self._table, bar)
        console = SafeConsole(file=self._stream)
        with Live(content, console=console, transient=True, refresh_per_second=REFRESHES_PER_SECOND):
            while not self._ended.wait(1.0 / REFRESHES_PER_SECOND):
                bar.update(task, completed=self._finished, estimate=self._estimate())

    def _estimate(self) -> str:
        """Return rate and time left, as far as there is a basis for them, what is done and what is waited for."""
        at_work = AT_WORK.told()
        if self._clock_start is not None and COMPILING in at_work:  # which says nothing about the time afterwards
            self._clock_start, self._counted_from = time.monotonic(), self._finished
        rate, known = self._rate(), [text for text in (at_work, self._waits_for()) if text]
        return ", ".join([*([rate] if rate and not (known and rate == _STARTING) else []), *known])

    def _rate(self) -> str:
        """Return rate and time left, or nothing as long as there is no basis for them."""
        if self._clock_start is None:
            return "" if self._total is None else _STARTING
        measured, done = time.monotonic() - self._clock_start, self._finished - self._counted_from
        if measured < RATE_SECONDS or done < (RATE_ITEMS if measured < SLOW_SECONDS else 1):
            return ""
        rate = done / measured
        left = "" if self._total is None else f", {duration((self._total - self._finished) / rate)} left"
        per, seconds = next((per, seconds) for per, seconds in RATE_UNITS if rate * seconds >= 1.0 or per == "h")
        return f"{rate * seconds:,.1f}/{per}{left}"

    def _line(self) -> str:
        estimate = self._estimate()
        if self._total is None:
            return f"{self._what}{': ' if estimate else ''}{estimate}"
        return f"{self._what}: {self._finished:,} of {self._total:,}{', ' if estimate else ''}{estimate}"


def beginning(show: bool | None = None) -> Progressing:
    """Return what tells the phases before there is anything to count: tasks and policies load, some are solved."""
    return Progressing("preparing", None, show=show)


class _Compiling(event.Listener):
    """Makes a phase of what Numba compiles: the first time that code runs on a machine, which takes a minute."""

    def __init__(self) -> None:
        self._begun: list[contextlib.AbstractContextManager[None]] = []

    def on_start(self, event: event.Event) -> None:
        """Begin a phase; what is compiled on the way is a part of it."""
        phase = AT_WORK.on(COMPILING, in_general=True)
        phase.__enter__()
        self._begun.append(phase)

    def on_end(self, event: event.Event) -> None:
        """End it."""
        if self._begun:
            self._begun.pop().__exit__(None, None, None)


@functools.cache
def tell_of_compiling() -> None:
    """Make a phase of compiling from now on."""
    register: Any = event.register  # without type information
    register("numba:compile", _Compiling())


def duration(seconds: float) -> str:
    """Return a time as people say it: "12 s", "3 min 12 s", "2 h 05 min"."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"


_MOST_ROWS = 24  # a terminal shows no more beside the rest


class LiveTable:
    """A look at a run that is under way: one row for each policy and prompt that a collector has taken in.

    The numbers have no intervals, since they are none to draw conclusions from: what is finished first may not be
    typical of the rest.
    """

    def __init__(self, collector: RunCollector) -> None:
        self._collector = collector
        self._broken: Counter[tuple[str, str]] = Counter()

    def fail(self, failure: FailureRecord) -> None:
        """Count an episode that broke for reasons of infrastructure."""
        self._broken[failure["policy"], failure["prompt_type"]] += 1

    def __rich__(self) -> Table:
        """Return the table."""
        with self._collector.lock:  # another thread draws than takes in episodes
            totals = self._collector.table.totals("count", "outcome", "ceiling", "optimum", "luck")
            used = {
                names: (int(sums.total("calls")), int(sums.tokens), sums.cost)
                for names, sums in self._collector.agents.items()
            }
        rows = [*totals, *(names for names in self._broken if names not in totals)]
        asks_models = any(calls for calls, _, _ in used.values())
        headings = ["policy", "prompt", "episodes", "success", "reference", "V*", "adjusted"]
        headings += ["calls", "tokens", "dollars"] if asks_models else []
        headings += ["broken"] if self._broken else []
        lines = []
        for names in rows[:_MOST_ROWS]:
            cells: list[Any] = [*names, *_shares(totals.get(names))]
            if asks_models:
                calls, tokens, cost = used.get(names, (0, 0, 0.0))
                cells += [calls, tokens, "?" if cost is None else f"{cost:.2f}"]
            lines.append([*cells, *([self._broken[names]] if self._broken else [])])
        note = "percent, so far; luck-adjusted with a slope of 1"
        if len(rows) > _MOST_ROWS:
            note += f"; {len(rows) - _MOST_ROWS} more rows"
        return Table("", headings, lines, text_columns=2, notes=[note])


def _shares(totals: FloatArray | None) -> list[Any]:
    if totals is None:
        return [0, "", "", "", ""]
    count, outcome, ceiling, optimum, luck = totals.tolist()
    return [int(count), *(share / count for share in (outcome, ceiling, optimum, outcome - luck))]
